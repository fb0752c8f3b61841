//! What is wrong with a node of a hash tree.

use thiserror::Error;

use crate::DirError;

/// A node that does not parse, or a change that it cannot take. The caller knows inode and block and names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HtreeError {
    /// The block passed in is not of the file system's block size.
    #[error("htree block of {found} bytes, expected {expected}")]
    Size {
        /// Bytes passed in.
        found: usize,
        /// Block size.
        expected: usize,
    },
    /// The root does not begin with `.` and `..`.
    #[error("htree root without . and ..")]
    Dots,
    /// The root's info is of another form.
    #[error("htree root info of length {info_length}, flags {flags:#x}")]
    Info {
        /// Its length field.
        info_length: u8,
        /// Its flags.
        flags: u8,
    },
    /// The kind of hash is not known.
    #[error("htree hash of kind {found}")]
    HashVersion {
        /// What is there.
        found: u8,
    },
    /// More levels than the features allow.
    #[error("htree of {found} inner levels, at most {most}")]
    Levels {
        /// What the root says.
        found: u8,
        /// What may be.
        most: u8,
    },
    /// The block is no inner node.
    #[error("no htree node")]
    NoNode,
    /// The limit is not the one that the block size gives.
    #[error("htree node with limit {found}, expected {expected}")]
    Limit {
        /// What the node says.
        found: u16,
        /// What fits.
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
    #[error("htree entry {index}: hash {hash:#010x} behind {before:#010x}")]
    Order {
        /// Entry.
        index: usize,
        /// Its hash.
        hash: u32,
        /// The hash before it.
        before: u32,
    },
    /// An entry points to the root or behind the directory's end.
    #[error("htree entry {index}: block {block} of {blocks}")]
    Block {
        /// Entry.
        index: usize,
        /// Block it names.
        block: u32,
        /// Blocks of the directory.
        blocks: u32,
    },
    /// The checksum is another.
    #[error("htree node checksum {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// What the block says.
        found: u32,
        /// What the bytes give.
        expected: u32,
    },
    /// A change needs room that is not there.
    #[error("htree node is full ({limit} entries)")]
    Full {
        /// Entries for which there is room.
        limit: usize,
    },
    /// A change names an entry that is not there, or one that it may not touch.
    #[error("htree node has no entry {index} to change")]
    NoEntry {
        /// Entry asked for.
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
