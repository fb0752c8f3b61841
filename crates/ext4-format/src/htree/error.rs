//! Errors of hash-tree nodes.

use thiserror::Error;

use crate::DirError;

/// A node that does not parse, or a change that it cannot take. The caller reports inode and block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HtreeError {
    /// The block passed in is not of the file system's block size.
    #[error("htree block of {found} bytes, expected {expected}")]
    Size {
        /// Length in bytes.
        found: usize,
        /// Block size.
        expected: usize,
    },
    /// The root does not begin with `.` and `..`.
    #[error("htree root without . and ..")]
    Dots,
    /// The root's info has an unknown form.
    #[error("htree root info of length {info_length}, flags {flags:#x}")]
    Info {
        /// Length field of the root.
        info_length: u8,
        /// Flags of the root.
        flags: u8,
    },
    /// Unknown kind of hash.
    #[error("htree hash of kind {found}")]
    HashVersion {
        /// Found value.
        found: u8,
    },
    /// More levels than the features allow.
    #[error("htree of {found} inner levels, at most {most}")]
    Levels {
        /// Levels in the root.
        found: u8,
        /// Most levels allowed.
        most: u8,
    },
    /// The block is not an inner node.
    #[error("not an htree node")]
    NoNode,
    /// The limit differs from the one for the block size.
    #[error("htree node with limit {found}, expected {expected}")]
    Limit {
        /// Value in the node.
        found: u16,
        /// Size that fits.
        expected: usize,
    },
    /// No entry, or more than the limit.
    #[error("htree node with {count} entries of {limit}")]
    Count {
        /// Entries in use.
        count: u16,
        /// Room.
        limit: u16,
    },
    /// Hashes do not ascend.
    #[error("htree entry {index}: hash {hash:#010x} after {before:#010x}")]
    Order {
        /// Entry.
        index: usize,
        /// Hash of the entry.
        hash: u32,
        /// The hash before it.
        before: u32,
    },
    /// An entry points to the root or past the directory's end.
    #[error("htree entry {index}: block {block} of {blocks}")]
    Block {
        /// Entry.
        index: usize,
        /// Block it names.
        block: u32,
        /// Blocks of the directory.
        blocks: u32,
    },
    /// The checksum is wrong.
    #[error("htree node checksum {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// Value in the block.
        found: u32,
        /// Computed value.
        expected: u32,
    },
    /// A change needs room that is not there.
    #[error("htree node is full ({limit} entries)")]
    Full {
        /// Entries for which there is room.
        limit: usize,
    },
    /// A change names a missing entry, or one that it must not change.
    #[error("htree node has no entry {index} to change")]
    NoEntry {
        /// Requested entry.
        index: usize,
    },
    /// A leaf has too few names to be split.
    #[error("htree leaf with {names} names cannot be split")]
    NoSplit {
        /// Names in it.
        names: usize,
    },
    /// A leaf does not parse.
    #[error(transparent)]
    Leaf(#[from] DirError),
}
