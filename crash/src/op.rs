//! [`Op`]: one operation of a workload. The texts of the operations identify a failure.
//!
//! A path is relative to the mount; `.` is the root. A [`Target`] is a path or `@N`, the inode
//! that slot `N` holds open, with a name or without.

use std::fmt;
use std::str::FromStr;

/// The inode of an operation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// By a path.
    Path(String),
    /// By the slot that holds it.
    Held(usize),
}

/// Number of slots.
pub const SLOTS: usize = 4;

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

/// A text that is not an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError(pub String);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not an operation: {:?}", self.0)
    }
}

impl std::error::Error for ParseError {}

/// Declares [`Op`] with the verb of each variant: its text is the verb and its fields.
macro_rules! ops {
    ($($(#[doc = $doc:literal])* $verb:literal $name:ident { $($field:ident : $ty:ty = $about:literal),* $(,)? })*) => {
        /// One operation. Offsets and lengths are bytes.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Op {
            $($(#[doc = $doc])* $name { $(#[doc = $about] $field: $ty),* },)*
        }

        impl fmt::Display for Op {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name { $($field),* } => {
                        f.write_str($verb)?;
                        $(write!(f, " {}", $field)?;)*
                        Ok(())
                    })*
                }
            }
        }

        impl Op {
            /// The verb, which names the kind of operation.
            #[must_use]
            pub fn verb(&self) -> &'static str {
                match self { $(Self::$name { .. } => $verb,)* }
            }

            /// All verbs.
            pub const VERBS: &'static [&'static str] = &[$($verb),*];
        }

        impl FromStr for Op {
            type Err = ParseError;

            fn from_str(text: &str) -> Result<Self, ParseError> {
                let bad = || ParseError(text.to_owned());
                let mut words = text.split_whitespace();
                let op = match words.next().ok_or_else(bad)? {
                    $($verb => Self::$name {
                        $($field: {
                            let word = words.next().ok_or_else(bad)?;
                            word.parse::<$ty>().map_err(|_| bad())?
                        }),*
                    },)*
                    _ => return Err(bad()),
                };
                if words.next().is_some() { Err(bad()) } else { Ok(op) }
            }
        }
    };
}

ops! {
    /// Creates a regular file.
    "creat" Create { at: String = "Path." }
    /// Creates a directory.
    "mkdir" Mkdir { at: String = "Path." }
    /// Creates a symbolic link.
    "symlink" Symlink { target: String = "What it says.", at: String = "Path." }
    /// Creates a character device.
    "mknod" Mknod { at: String = "Path." }
    /// Creates a regular file without a name.
    "tmpfile" Tmpfile { dir: String = "Directory.", slot: usize = "Slot that then holds it." }
    /// Holds an inode in a slot.
    "hold" Hold { at: String = "Path.", slot: usize = "Slot." }
    /// Empties a slot.
    "release" Release { slot: usize = "Slot." }
    /// Writes.
    "write" Write { file: Target = "File.", offset: u64 = "Offset.", len: u64 = "Length.", tag: u8 = "Decides the content." }
    /// Writes at the end of the file.
    "append" Append { file: Target = "File.", len: u64 = "Length.", tag: u8 = "Decides the content." }
    /// Allocates and extends the file.
    "falloc" Allocate { file: Target = "File.", offset: u64 = "Offset.", len: u64 = "Length." }
    /// Allocates; the size stays.
    "falloc-keep" AllocateKeep { file: Target = "File.", offset: u64 = "Offset.", len: u64 = "Length." }
    /// Makes a hole.
    "punch" Punch { file: Target = "File.", offset: u64 = "Offset.", len: u64 = "Length." }
    /// Makes a range read as zeros.
    "zero" Zero { file: Target = "File.", offset: u64 = "Offset.", len: u64 = "Length." }
    /// As `zero`; the size stays.
    "zero-keep" ZeroKeep { file: Target = "File.", offset: u64 = "Offset.", len: u64 = "Length." }
    /// Sets the size.
    "truncate" Truncate { file: Target = "File.", size: u64 = "New size." }
    /// Adds a name to an inode.
    "link" Link { from: Target = "What.", to: String = "New name." }
    /// Renames; replaces an existing target.
    "rename" Rename { from: String = "Old name.", to: String = "New name." }
    /// Swaps two names.
    "exchange" Exchange { a: String = "One.", b: String = "The other." }
    /// Removes a name.
    "unlink" Unlink { at: String = "Path." }
    /// Removes a directory.
    "rmdir" Rmdir { at: String = "Path." }
    /// Sets an extended attribute.
    "setxattr" SetXattr { on: Target = "Inode.", name: String = "Name without `user.`.", len: u64 = "Bytes of the value.", tag: u8 = "Decides the value." }
    /// Removes an extended attribute.
    "removexattr" RemoveXattr { on: Target = "Inode.", name: String = "Name without `user.`." }
    /// Sets a default ACL on a directory, or an access ACL on anything else.
    "setacl" SetAcl { on: Target = "Inode.", uid: u32 = "User that may read and write." }
    /// Sets the permission bits.
    "chmod" Chmod { on: Target = "Inode.", perm: u32 = "Bits, decimal." }
    /// Sets the owner.
    "chown" Chown { on: Target = "Inode.", uid: u32 = "User.", gid: u32 = "Group." }
    /// Sets the access time, and the modification time to one second more.
    "utimes" SetTimes { on: Target = "Inode.", sec: u32 = "Seconds since 1970." }
    /// Shares extents between files, or within one.
    "reflink" Reflink { from: Target = "Source.", from_offset: u64 = "Offset there.", to: Target = "Destination.", to_offset: u64 = "Offset there.", len: u64 = "Length; 0: to the end." }
    /// Creates a subvolume.
    "subvolume" Subvolume { at: String = "Path." }
    /// Creates a snapshot.
    "snapshot" Snapshot { source: String = "Root of a subvolume.", at: String = "Path." }
    /// Deletes a subvolume.
    "delsubvol" DeleteSubvolume { at: String = "Path." }
    /// Makes an empty file `nodatacow`.
    "nocow" Nocow { file: Target = "File." }
    /// Turns on compression for new data of a file.
    "compress" Compress { file: Target = "File." }
    /// Makes an inode durable.
    "fsync" Fsync { on: Target = "Inode." }
    /// Makes data and size of a file durable.
    "fdatasync" Fdatasync { on: Target = "Inode." }
    /// Makes everything durable.
    "sync" Sync { }
}

impl Op {
    /// True if its return guarantees durability.
    #[must_use]
    pub fn persists(&self) -> bool {
        matches!(
            self,
            Self::Fsync { .. } | Self::Fdatasync { .. } | Self::Sync {}
        )
    }
}

/// Operations as one text: separated by `; `.
#[must_use]
pub fn to_text(ops: &[Op]) -> String {
    let ops: Vec<String> = ops.iter().map(ToString::to_string).collect();
    ops.join("; ")
}

/// Operations from a text: separated by `;` or lines. Empty ones are skipped.
///
/// # Errors
/// [`ParseError`] with the first part that is not an operation.
pub fn from_text(text: &str) -> Result<Vec<Op>, ParseError> {
    let parts = text.split([';', '\n']).map(str::trim);
    parts
        .filter(|part| !part.is_empty())
        .map(str::parse)
        .collect()
}

/// The data of a write with this tag at `offset`: no zeros, and different from other tags at every
/// offset.
#[must_use]
pub fn pattern(tag: u8, offset: u64, len: u64) -> Vec<u8> {
    let byte = |at: u64| {
        let mixed = (at >> 9).wrapping_mul(0x9e37_79b9) >> 3;
        // There are 251 values per offset, so neighbouring tags never have the same one.
        ((mixed + u64::from(tag) * 7) % 251 + 1) as u8
    };
    (offset..offset + len).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back() {
        let text = "creat A/x; write A/x 0 4096 3; hold A/x 1; unlink A/x; fsync @1; sync; \
                    reflink A/foo 0 @1 4096 0; symlink to A/l; setxattr . n 5 2";
        let ops = from_text(text).unwrap();
        assert_eq!(ops.len(), 9);
        assert_eq!(to_text(&ops), text);
        assert_eq!(
            ops[4],
            Op::Fsync {
                on: Target::Held(1)
            }
        );
        for bad in ["creat", "creat a b", "fly a", "write a 0 x 1"] {
            assert!(from_text(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn patterns_of_neighbouring_tags_differ_everywhere() {
        let (a, b) = (pattern(3, 1000, 5000), pattern(4, 1000, 5000));
        assert!(a.iter().zip(&b).all(|(x, y)| x != y && *x != 0 && *y != 0));
        assert_eq!(pattern(3, 2000, 10), a[1000..1010]);
    }
}
