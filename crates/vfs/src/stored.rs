//! Inodes and names as an image stores them, and the differences of two trees of them.
//!
//! Send and diff read both formats in these terms.

use crate::{FileKind, Timestamp};

/// An inode as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredInode {
    /// Type.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names.
    pub nlink: u32,
    /// Device number, as `makedev` composes it.
    pub rdev: u64,
    /// Length in bytes.
    pub size: u64,
    /// With the number it identifies the inode: for btrfs the transaction that made it.
    pub generation: u64,
    /// The format's flags.
    pub flags: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub otime: Timestamp,
}

/// A name of an inode.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkName {
    /// Number of the directory.
    pub dir: u64,
    /// The name.
    pub name: Vec<u8>,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedInode {
    /// Number of the inode.
    pub number: u64,
    /// Its type, as the directory has it.
    pub kind: Option<FileKind>,
    /// The name.
    pub name: Vec<u8>,
}

/// The parts of an inode that differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Parts {
    /// The inode exists on one side only, or its attributes differ.
    pub inode: bool,
    /// Names.
    pub names: bool,
    /// Extended attributes.
    pub xattrs: bool,
    /// Content.
    pub data: bool,
}

/// An inode that differs between two trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangedInode {
    /// Inode number.
    pub number: u64,
    /// The parts that differ.
    pub parts: Parts,
}
