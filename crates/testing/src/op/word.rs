//! The words of an operation's text.

use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;

use sapwood_vfs::{Credentials, NewInode, Timestamp};

use super::SLOTS;

/// A value that is one word.
pub(super) trait Word: Sized {
    fn print(&self) -> String;
    fn parse(word: &str) -> Option<Self>;
}

macro_rules! plain {
    ($($ty:ty)*) => { $(impl Word for $ty {
        fn print(&self) -> String {
            self.to_string()
        }

        fn parse(word: &str) -> Option<Self> {
            word.parse().ok()
        }
    })* };
}

plain!(String u32 u64 usize bool Target);

impl<T: Word> Word for Option<T> {
    fn print(&self) -> String {
        self.as_ref().map_or_else(|| "-".to_owned(), Word::print)
    }

    fn parse(word: &str) -> Option<Self> {
        match word {
            "-" => Some(None),
            word => T::parse(word).map(Some),
        }
    }
}

impl Word for Timestamp {
    fn print(&self) -> String {
        format!("{}.{:09}", self.sec, self.nsec)
    }

    fn parse(word: &str) -> Option<Self> {
        let (sec, nsec) = word.split_once('.')?;
        Some(Self {
            sec: sec.parse().ok()?,
            nsec: nsec.parse().ok()?,
        })
    }
}

/// Bytes in hexadecimal; `-` for none.
impl Word for Vec<u8> {
    fn print(&self) -> String {
        if self.is_empty() {
            return "-".to_owned();
        }
        self.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    fn parse(word: &str) -> Option<Self> {
        if word == "-" {
            return Some(Self::new());
        }
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        word.as_bytes().chunks(2).map(pair).collect()
    }
}

/// The inode of an operation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// By a path.
    Path(String),
    /// By the slot that holds it.
    Held(usize),
}

impl From<&str> for Target {
    fn from(text: &str) -> Self {
        let slot = text.strip_prefix('@').and_then(|n| n.parse().ok());
        match slot {
            Some(slot) if slot < SLOTS => Self::Held(slot),
            _ => Self::Path(text.to_owned()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => f.write_str(path),
            Self::Held(slot) => write!(f, "@{slot}"),
        }
    }
}

impl FromStr for Target {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(text.into())
    }
}

/// Bytes to write. Their texts are `3`, `=7` and `~123`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fill {
    /// A pattern of this number: no zeros, and different from other numbers at every offset.
    Tag(u8),
    /// This byte repeated: compresses well.
    Byte(u8),
    /// Bytes generated from this seed: do not compress.
    Seed(u64),
}

impl Fill {
    /// The data of a write at `offset`.
    #[must_use]
    pub fn bytes(self, offset: u64, len: u64) -> Vec<u8> {
        match self {
            Self::Tag(tag) => {
                let byte = |at: u64| {
                    let mixed = (at >> 9).wrapping_mul(0x9e37_79b9) >> 3;
                    // There are 251 values per offset, so neighbouring tags never have the same
                    // one.
                    ((mixed + u64::from(tag) * 7) % 251 + 1) as u8
                };
                (offset..offset + len).map(byte).collect()
            }
            Self::Byte(byte) => vec![byte; len as usize],
            Self::Seed(seed) => {
                let mut bytes = vec![0; len as usize];
                fastrand::Rng::with_seed(seed).fill(&mut bytes);
                bytes
            }
        }
    }
}

impl Word for Fill {
    fn print(&self) -> String {
        match self {
            Self::Tag(tag) => tag.to_string(),
            Self::Byte(byte) => format!("={byte}"),
            Self::Seed(seed) => format!("~{seed}"),
        }
    }

    fn parse(word: &str) -> Option<Self> {
        if let Some(byte) = word.strip_prefix('=') {
            return byte.parse().ok().map(Self::Byte);
        }
        match word.strip_prefix('~') {
            Some(seed) => seed.parse().ok().map(Self::Seed),
            None => word.parse().ok().map(Self::Tag),
        }
    }
}

/// The user of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    /// The superuser without a umask.
    Root,
    /// User and group 1000 with umask 022.
    User,
}

impl Who {
    /// The same as an argument of the trait.
    #[must_use]
    pub fn credentials(self) -> Credentials {
        match self {
            Self::Root => Credentials::ROOT,
            Self::User => Credentials {
                uid: 1000,
                gid: 1000,
                umask: 0o022,
                keep_setgid: false,
            },
        }
    }
}

impl Word for Who {
    fn print(&self) -> String {
        match self {
            Self::Root => "root".to_owned(),
            Self::User => "user".to_owned(),
        }
    }

    fn parse(word: &str) -> Option<Self> {
        [Self::Root, Self::User]
            .into_iter()
            .find(|who| who.print() == word)
    }
}

/// An inode that is neither a file nor a directory nor a symbolic link. The text of a device is
/// `c` or `b` and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Special {
    /// Character device with this number.
    Char(u64),
    /// Block device with this number.
    Block(u64),
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
}

impl Special {
    /// The same as an argument of the trait.
    #[must_use]
    pub fn new_inode(self) -> NewInode<'static> {
        match self {
            Self::Char(rdev) => NewInode::CharDevice(rdev),
            Self::Block(rdev) => NewInode::BlockDevice(rdev),
            Self::Fifo => NewInode::Fifo,
            Self::Socket => NewInode::Socket,
        }
    }
}

impl Word for Special {
    fn print(&self) -> String {
        match self {
            Self::Char(rdev) => format!("c{rdev}"),
            Self::Block(rdev) => format!("b{rdev}"),
            Self::Fifo => "p".to_owned(),
            Self::Socket => "s".to_owned(),
        }
    }

    fn parse(word: &str) -> Option<Self> {
        match word.split_at_checked(1)? {
            ("c", rdev) => rdev.parse().ok().map(Self::Char),
            ("b", rdev) => rdev.parse().ok().map(Self::Block),
            ("p", "") => Some(Self::Fifo),
            ("s", "") => Some(Self::Socket),
            _ => None,
        }
    }
}

/// The words of a text that are not read yet: fields, then options.
pub(super) struct Named<'a> {
    fields: std::vec::IntoIter<&'a str>,
    options: Vec<(&'a str, &'a str)>,
}

impl<'a> Named<'a> {
    /// Splits a text; `None` if a field follows an option.
    pub(super) fn of(text: &'a str) -> Option<Self> {
        let is_option = |word: &&str| {
            let pair = word.split_once('=');
            pair.is_some_and(|(name, _)| !name.is_empty())
        };
        let mut fields: Vec<&str> = text.split_whitespace().collect();
        let first = fields.iter().position(is_option).unwrap_or(fields.len());
        let options = fields.split_off(first);
        let options = options.iter().map(|word| word.split_once('='));
        Some(Self {
            options: options.collect::<Option<_>>()?,
            fields: fields.into_iter(),
        })
    }

    pub(super) fn field(&mut self) -> Option<&'a str> {
        self.fields.next()
    }

    /// The value of an option; `None` if it is wrong.
    pub(super) fn option<T: Word>(&mut self, name: &str, default: T) -> Option<T> {
        match self.options.iter().position(|(option, _)| *option == name) {
            Some(at) => T::parse(self.options.remove(at).1),
            None => Some(default),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fields.len() == 0 && self.options.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_neighbouring_tags_differ_everywhere() {
        let (a, b) = (
            Fill::Tag(3).bytes(1000, 5000),
            Fill::Tag(4).bytes(1000, 5000),
        );
        assert!(a.iter().zip(&b).all(|(x, y)| x != y && *x != 0 && *y != 0));
        assert_eq!(Fill::Tag(3).bytes(2000, 10), a[1000..1010]);
    }
}
