//! Errors of opening a damaged file system, and the causes of unreadable files.

use sapwood_btrfs_format::Key;
use thiserror::Error;

/// The result of opening.
pub type Result<T> = std::result::Result<T, Error>;

/// Why nothing of a file system can be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The device.
    #[error("{0}")]
    Device(#[from] sapwood_block::Error),
    /// The watcher ended the scan.
    #[error("interrupted")]
    Interrupted,
    /// Neither a superblock nor a tree block of btrfs.
    #[error("no superblock and no tree block of btrfs in {bytes} bytes")]
    NoBtrfs {
        /// Bytes that were scanned.
        bytes: u64,
    },
    /// No superblock of ext4.
    #[error("no superblock of ext4 in {bytes} bytes")]
    NoExt4 {
        /// Bytes that were scanned.
        bytes: u64,
    },
    /// The superblock copy that the caller chose is not valid.
    #[error("no valid superblock at byte {offset}: {why}")]
    Superblock {
        /// Byte offset on the device.
        offset: u64,
        /// The defect.
        why: String,
    },
    /// No superblock copy has this number.
    #[error("there is no superblock copy {number}; btrfs has copies 0, 1 and 2")]
    NoSuchCopy {
        /// Number.
        number: u64,
    },
    /// No root of the tree of roots has this generation.
    #[error("no tree root of generation {generation} was found")]
    NoGeneration {
        /// Generation.
        generation: u64,
    },
    /// No root of the tree of roots at all.
    #[error("no tree root was found")]
    NoRoots,
    /// The address of a tree root that the caller chose has no valid block.
    #[error("no tree block of the root tree at address {logical}")]
    NoRootAt {
        /// Logical address.
        logical: u64,
    },
}

/// Why a file, directory or range cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Lost {
    /// Items of a tree.
    #[error("tree {tree}: the block with key {key} is lost")]
    Item {
        /// Tree.
        tree: u64,
        /// First key that is missing.
        key: Key,
    },
    /// A tree without any readable block.
    #[error("tree {tree} is lost")]
    Tree {
        /// Tree.
        tree: u64,
    },
    /// An inode.
    #[error("inode {ino} is lost")]
    Inode {
        /// Inode number.
        ino: u64,
    },
    /// Data with a wrong checksum in every copy, or without a readable copy.
    #[error("data at {logical}: no copy is readable and has the right checksum")]
    Data {
        /// Logical address, or byte offset of the device.
        logical: u64,
    },
    /// A compressed extent that does not expand.
    #[error("data at {logical}: the compressed extent is damaged")]
    Compressed {
        /// Logical address.
        logical: u64,
    },
    /// A block of a file's map.
    #[error("inode {ino}: block {block} of its map is damaged")]
    Map {
        /// Inode number.
        ino: u64,
        /// Block number.
        block: u64,
    },
    /// A block of a directory.
    #[error("directory {ino}: block {block} is damaged")]
    Directory {
        /// Inode number.
        ino: u64,
        /// Block of the directory.
        block: u64,
    },
    /// A block outside of the file system.
    #[error("inode {ino}: block {block} is outside of the file system")]
    Outside {
        /// Inode number.
        ino: u64,
        /// Block number.
        block: u64,
    },
    /// A block of a deleted file that another file has now.
    #[error("deleted inode {ino}: block {block} is in use by another file")]
    Reused {
        /// Inode number.
        ino: u64,
        /// Block number.
        block: u64,
    },
    /// A block of a deleted file that another file had later, which was deleted, too.
    #[error("deleted inode {ino}: block {block} was in use by another file later")]
    Overwritten {
        /// Inode number.
        ino: u64,
        /// Block number.
        block: u64,
    },
    /// Data of an older state in space that another file had later, without a checksum.
    #[error("data at {logical}: its space was in use by another file later")]
    Taken {
        /// Logical address.
        logical: u64,
    },
    /// An extended attribute.
    #[error("inode {ino}: its extended attributes are damaged")]
    Attributes {
        /// Inode number.
        ino: u64,
    },
}

impl From<Lost> for sapwood_vfs::Error {
    fn from(lost: Lost) -> Self {
        Self::Corrupt(sapwood_vfs::Cause::new(lost))
    }
}
