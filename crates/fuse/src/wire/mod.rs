//! The FUSE protocol as bytes: requests decoded, answers encoded. No I/O, no meaning.
//!
//! # How it works
//!
//! A request is a header ([`abi::InHeader`]) and a [`Body`]: a struct that belongs to the
//! opcode, then names (each ended by a NUL) or data. On `/dev/fuse` the two stand one after
//! the other; over io_uring the struct has a place of its own. [`Operation::decode`]
//! takes either.
//!
//! An answer is a header and the bytes that [`reply`] writes into a buffer that the
//! transport gives.
//!
//! The other end is the kernel, yet nothing is believed: a length that does not
//! fit the bytes there, a missing NUL, a struct cut short is a [`Malformed`], which the transport
//! answers with its errno. Tests: `tests.rs`, on byte slices.

pub(crate) mod abi;
pub(crate) mod flags;
pub(crate) mod notify;
pub(crate) mod reply;
mod request;
#[cfg(test)]
mod tests;

use zerocopy::{FromBytes, Immutable, KnownLayout};

pub(crate) use request::Operation;

/// The protocol's major version. Another one shares no layout with it.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version whose additions we know.
pub(crate) const MINOR: u32 = 45;
/// The oldest minor version that we serve (Linux 5.4).
pub(crate) const OLDEST_MINOR: u32 = 31;

/// Declares the opcodes: as an enum, and from their numbers.
macro_rules! opcodes {
    ($($name:ident = $number:literal,)*) => {
        /// What a request asks for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u32)]
        #[allow(missing_docs, reason = "the protocol's names")]
        pub(crate) enum Opcode { $($name = $number,)* }

        impl Opcode {
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];
        }

        impl TryFrom<u32> for Opcode {
            type Error = Malformed;

            fn try_from(number: u32) -> Result<Self, Malformed> {
                match number {
                    $($number => Ok(Self::$name),)*
                    _ => Err(Malformed::Unknown(number)),
                }
            }
        }
    };
}

opcodes! {
    Lookup = 1,
    Forget = 2,
    GetAttr = 3,
    SetAttr = 4,
    ReadLink = 5,
    Symlink = 6,
    Mknod = 8,
    Mkdir = 9,
    Unlink = 10,
    Rmdir = 11,
    Rename = 12,
    Link = 13,
    Open = 14,
    Read = 15,
    Write = 16,
    StatFs = 17,
    Release = 18,
    Fsync = 20,
    SetXattr = 21,
    GetXattr = 22,
    ListXattr = 23,
    RemoveXattr = 24,
    Flush = 25,
    Init = 26,
    OpenDir = 27,
    ReadDir = 28,
    ReleaseDir = 29,
    FsyncDir = 30,
    Access = 34,
    Create = 35,
    Interrupt = 36,
    Destroy = 38,
    Ioctl = 39,
    BatchForget = 42,
    Fallocate = 43,
    ReadDirPlus = 44,
    Rename2 = 45,
    Lseek = 46,
    CopyFileRange = 47,
    SyncFs = 50,
    TmpFile = 51,
    Statx = 52,
    CopyFileRange64 = 53,
}

/// Why a request cannot be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// A message shorter than its header.
    #[error("a message of {0} bytes has no room for its header")]
    NoHeader(usize),
    /// The header tells another length.
    #[error("a message of {have} bytes says that it has {said}")]
    Length {
        /// What the header says.
        said: u32,
        /// What is there.
        have: usize,
    },
    /// An opcode that we do not know, or do not serve.
    #[error("opcode {0} is not known")]
    Unknown(u32),
    /// A struct, a name or data cut short.
    #[error("{what} needs {need} bytes, {have} are left")]
    Short {
        /// What should be there.
        what: &'static str,
        /// Its size.
        need: usize,
        /// What is left.
        have: usize,
    },
    /// A name without its end.
    #[error("a name has no end")]
    NoEnd,
}

impl Malformed {
    /// What to answer. The kernel stops asking for what it hears `ENOSYS` of.
    pub(crate) fn errno(self) -> i32 {
        match self {
            Self::Unknown(_) => libc::ENOSYS,
            _ => libc::EIO,
        }
    }
}

/// A request's arguments, taken from their front.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Body<'a> {
    /// The opcode's struct, where it has a place of its own.
    head: Option<&'a [u8]>,
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    /// Everything in one piece.
    pub(crate) fn joined(rest: &'a [u8]) -> Self {
        Self { head: None, rest }
    }

    /// The struct here, what follows it there.
    pub(crate) fn split(head: &'a [u8], rest: &'a [u8]) -> Self {
        Self {
            head: Some(head),
            rest,
        }
    }

    /// Takes the opcode's struct.
    pub(crate) fn header<T>(&mut self, what: &'static str) -> Result<T, Malformed>
    where
        T: FromBytes + KnownLayout + Immutable,
    {
        let Some(head) = self.head.take() else {
            return self.next(what);
        };
        T::read_from_prefix(head)
            .map(|(value, _)| value)
            .map_err(|_| Malformed::Short {
                what,
                need: size_of::<T>(),
                have: head.len(),
            })
    }

    /// Takes a struct from what follows.
    pub(crate) fn next<T>(&mut self, what: &'static str) -> Result<T, Malformed>
    where
        T: FromBytes + KnownLayout + Immutable,
    {
        match T::read_from_prefix(self.rest) {
            Ok((value, rest)) => {
                self.rest = rest;
                Ok(value)
            }
            Err(_) => Err(Malformed::Short {
                what,
                need: size_of::<T>(),
                have: self.rest.len(),
            }),
        }
    }

    /// Takes a name, without its NUL.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.rest.iter().position(|&byte| byte == 0);
        let (name, rest) = end
            .and_then(|end| self.rest.split_at_checked(end))
            .ok_or(Malformed::NoEnd)?;
        self.rest = rest.get(1..).unwrap_or(&[]);
        Ok(name)
    }

    /// Takes `len` bytes.
    pub(crate) fn data(&mut self, what: &'static str, len: u32) -> Result<&'a [u8], Malformed> {
        let need = usize::try_from(len).unwrap_or(usize::MAX);
        let (data, rest) = self.rest.split_at_checked(need).ok_or(Malformed::Short {
            what,
            need,
            have: self.rest.len(),
        })?;
        self.rest = rest;
        Ok(data)
    }
}

/// Splits a message from `/dev/fuse` into header and arguments.
pub(crate) fn split_message(message: &[u8]) -> Result<(abi::InHeader, Body<'_>), Malformed> {
    let (header, rest) =
        abi::InHeader::read_from_prefix(message).map_err(|_| Malformed::NoHeader(message.len()))?;
    if usize::try_from(header.len) != Ok(message.len()) {
        return Err(Malformed::Length {
            said: header.len,
            have: message.len(),
        });
    }
    Ok((header, Body::joined(rest)))
}
