//! The FUSE protocol as bytes: decodes requests, encodes answers. No I/O.
//!
//! # How it works
//!
//! A request is a header ([`abi::InHeader`]) and a [`Body`]: a struct for the opcode, then names
//! (each ended by a NUL) or data. On `/dev/fuse` struct and rest are contiguous; over io_uring the
//! struct is in a separate place. [`Operation::decode`] takes either form.
//!
//! An answer is a header and the bytes that [`reply`] writes into the transport's buffer.
//!
//! Although the sender is the kernel, nothing is trusted: a length that does not fit the message, a
//! missing NUL or a truncated struct is a [`Malformed`], which the transport answers with its
//! errno. `tests.rs` tests this on byte slices.

pub(crate) mod abi;
pub(crate) mod flags;
pub(crate) mod notify;
pub(crate) mod reply;
mod request;
#[cfg(test)]
mod tests;

use zerocopy::{FromBytes, Immutable, KnownLayout};

pub(crate) use request::Operation;

/// The protocol's major version. Other versions share no layout with it.
pub(crate) const MAJOR: u32 = 7;
/// The newest supported minor version.
pub(crate) const MINOR: u32 = 45;
/// The oldest supported minor version (Linux 5.4).
pub(crate) const OLDEST_MINOR: u32 = 31;

/// Declares the opcodes as an enum with conversions from their numbers.
macro_rules! opcodes {
    ($($name:ident = $number:literal,)*) => {
        /// Operation that a request asks for.
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
    /// The header has another length.
    #[error("a message of {have} bytes has length {stated} in its header")]
    Length {
        /// Length in the header.
        stated: u32,
        /// Length of the message.
        have: usize,
    },
    /// An opcode that is unknown or not served.
    #[error("unknown opcode {0}")]
    Unknown(u32),
    /// A truncated struct, name or data.
    #[error("{what} needs {need} bytes, {have} are left")]
    Short {
        /// The truncated part.
        what: &'static str,
        /// Its size.
        need: usize,
        /// Remaining bytes.
        have: usize,
    },
    /// A name without its NUL.
    #[error("a name has no terminating NUL")]
    NoEnd,
}

impl Malformed {
    /// The errno to answer with. The kernel does not repeat an operation that failed with `ENOSYS`.
    pub(crate) fn errno(self) -> i32 {
        match self {
            Self::Unknown(_) => libc::ENOSYS,
            _ => libc::EIO,
        }
    }
}

/// A request's arguments, consumed from the front.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Body<'a> {
    /// The opcode's struct, if it is in a separate place.
    head: Option<&'a [u8]>,
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    /// Arguments in one piece.
    pub(crate) fn joined(rest: &'a [u8]) -> Self {
        Self { head: None, rest }
    }

    /// Arguments whose struct is in a separate place.
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

    /// Takes a struct from the remaining bytes.
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
            stated: header.len,
            have: message.len(),
        });
    }
    Ok((header, Body::joined(rest)))
}
