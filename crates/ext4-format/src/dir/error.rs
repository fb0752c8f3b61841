//! Errors of directory blocks.

use thiserror::Error;

/// A directory block that does not parse, or a change that it cannot take. The caller reports inode
/// and block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DirError {
    /// The block passed in is not of the file system's block size.
    #[error("directory block of {found} bytes, expected {expected}")]
    Size {
        /// Length in bytes.
        found: usize,
        /// Block size.
        expected: usize,
    },
    /// Bytes end within an entry.
    #[error("directory entry at {offset} is cut off")]
    Cut {
        /// Offset of the entry.
        offset: usize,
    },
    /// `rec_len` is not a multiple of 4, too short, or points out of the block.
    #[error("directory entry at {offset} of length {rec_len}, {room} bytes are left")]
    RecLen {
        /// Offset of the entry.
        offset: usize,
        /// Length of the record.
        rec_len: usize,
        /// Bytes from there to the end.
        room: usize,
    },
    /// The name is empty or does not fit its entry.
    #[error("directory entry at {offset}: name of {name_len} bytes in {rec_len}")]
    NameLen {
        /// Offset of the entry.
        offset: usize,
        /// Bytes of the name.
        name_len: usize,
        /// Bytes of the entry.
        rec_len: usize,
    },
    /// A name has a `/` or a NUL.
    #[error("directory entry at {offset}: name with a slash or NUL")]
    Name {
        /// Offset of the entry.
        offset: usize,
    },
    /// The inode number is above the file system's.
    #[error("directory entry at {offset}: inode {inode} of {inodes}")]
    Inode {
        /// Offset of the entry.
        offset: usize,
        /// Inode it names.
        inode: u32,
        /// Highest inode.
        inodes: u32,
    },
    /// No tail where one must be.
    #[error("directory block without checksum tail")]
    Tail,
    /// The checksum is wrong.
    #[error("directory block checksum {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// Value in the block.
        found: u32,
        /// Computed value.
        expected: u32,
    },
    /// A change names an offset where no entry in use is.
    #[error("no directory entry at {offset}")]
    NoEntry {
        /// Requested offset.
        offset: usize,
    },
    /// A name that cannot be in a directory: empty, too long, with a slash or NUL.
    #[error("name of {len} bytes cannot be written to a directory")]
    BadName {
        /// Length of the name.
        len: usize,
    },
    /// The entries do not fit into the block.
    #[error("{need} bytes of directory entries where {room} fit")]
    Full {
        /// Bytes needed.
        need: usize,
        /// Length in bytes.
        room: usize,
    },
}
