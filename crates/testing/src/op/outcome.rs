//! [`Outcome`]: the result of an operation.

use sapwood_vfs::{Attr, Error, FileKind, InodeFlags, Result};

/// The visible attributes of an inode that are the same on every engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Type.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names; of a directory only whether it has any.
    pub nlink: u32,
    /// Device number.
    pub rdev: u64,
    /// Length in bytes; 0 for a directory.
    pub size: u64,
    /// Inode flags.
    pub flags: InodeFlags,
}

impl From<&Attr> for Seen {
    fn from(attr: &Attr) -> Self {
        let is_dir = attr.kind == FileKind::Directory;
        Self {
            kind: attr.kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            nlink: if is_dir {
                attr.nlink.min(1)
            } else {
                attr.nlink
            },
            rdev: attr.rdev,
            size: if is_dir { 0 } else { attr.size },
            flags: attr.flags,
        }
    }
}

/// The result of an operation, as far as it must be the same on every engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Done,
    /// It found or changed an inode that looks like this.
    Inode(Seen),
    /// Bytes that were read, the target of a link, or the value of an attribute.
    Bytes(Vec<u8>),
    /// Offset after a write, or number of bytes copied.
    Number(u64),
    /// Names and types in a directory, sorted.
    Entries(Vec<(Vec<u8>, FileKind)>),
    /// Names of extended attributes, sorted.
    Names(Vec<Vec<u8>>),
    /// The slot is empty.
    Empty,
    /// It failed with this error.
    Failed(Error),
    /// It failed, and the trait does not define the error.
    Refused,
    /// The file system contradicts itself: always a failure.
    Wrong(String),
}

impl From<Result<Outcome>> for Outcome {
    fn from(result: Result<Outcome>) -> Self {
        result.unwrap_or_else(Outcome::Failed)
    }
}

impl Outcome {
    /// Whether the operation succeeded.
    pub(super) fn success(self) -> Result<()> {
        match self {
            Self::Failed(error) => Err(error),
            Self::Refused => Err(Error::NotSupported),
            Self::Empty => Err(Error::Invalid),
            Self::Wrong(what) => Err(Error::corrupt(what)),
            _ => Ok(()),
        }
    }
}
