//! Errors of extent nodes.

use thiserror::Error;

/// An invalid extent node. The caller reports inode and block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ExtentError {
    /// Too few bytes for a header.
    #[error("extent node of {found} bytes")]
    Short {
        /// Length in bytes.
        found: usize,
    },
    /// The magic is wrong.
    #[error("extent header with magic {found:#06x}")]
    Magic {
        /// Found value.
        found: u16,
    },
    /// `max` is zero or more than the bytes have room for.
    #[error("extent node has max {max}, but room for {room} entries")]
    Max {
        /// Value in the header.
        max: u16,
        /// Entries that fit.
        room: usize,
    },
    /// More entries than `max`, or none in an inner node.
    #[error("extent node of depth {depth} with {entries} entries of {max}")]
    Entries {
        /// Entries in use.
        entries: u16,
        /// Room.
        max: u16,
        /// Depth.
        depth: u16,
    },
    /// The depth differs from the one that the parent requires, or is above the limit.
    #[error("extent node of depth {found}, expected {expected}")]
    Depth {
        /// Value in the header.
        found: u16,
        /// Depth according to the parent, or the limit for a root.
        expected: u16,
    },
    /// Entry with no length.
    #[error("extent {index} at logical block {logical} has no length")]
    Empty {
        /// Entry.
        index: usize,
        /// Logical block of the entry.
        logical: u32,
    },
    /// An entry overlaps or precedes the one before it.
    #[error("extent entry {index} at logical block {logical} begins before {after}")]
    Order {
        /// Entry.
        index: usize,
        /// Logical block of the entry.
        logical: u32,
        /// Smallest allowed start.
        after: u64,
    },
    /// An entry is outside of the range that the parent gives to this node.
    #[error(
        "extent entry {index} at logical blocks {logical}..{end} is outside of {first}..{limit}"
    )]
    Range {
        /// Entry.
        index: usize,
        /// Logical block of the entry.
        logical: u32,
        /// End of the entry.
        end: u64,
        /// Begin of the node's range.
        first: u32,
        /// End of the node's range.
        limit: u64,
    },
    /// An entry points outside of the device.
    #[error("extent entry {index} points to blocks {physical}+{len} outside of {first}..{limit}")]
    Physical {
        /// Entry.
        index: usize,
        /// First block.
        physical: u64,
        /// Blocks.
        len: u32,
        /// First block that may be named.
        first: u64,
        /// Blocks of the device.
        limit: u64,
    },
    /// The checksum in the tail is wrong.
    #[error("extent node checksum {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// Value in the tail.
        found: u32,
        /// Computed value.
        expected: u32,
    },
    /// A change names an entry that is not there.
    #[error("no entry {index} in an extent node of {entries}")]
    NoEntry {
        /// Requested entry.
        index: usize,
        /// Entries there.
        entries: usize,
    },
    /// A change needs more room than there is.
    #[error("extent node is full ({max} entries)")]
    Full {
        /// Entries for which there is room.
        max: u16,
    },
    /// An extent was put into an inner node or an index into a leaf.
    #[error("entry of the other kind for an extent node of depth {depth}")]
    Kind {
        /// The node's depth.
        depth: u16,
    },
    /// A value that cannot be encoded on disk.
    #[error("extent {logical}+{len} -> {physical} does not fit the format")]
    Unencodable {
        /// Logical block.
        logical: u32,
        /// Blocks.
        len: u32,
        /// Physical block.
        physical: u64,
    },
}
