//! Errors of xattr lists.

use thiserror::Error;

/// The part of an entry that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrPart {
    /// The entry or its name.
    Entry,
    /// The value.
    Value,
}

/// A list of xattrs that does not parse or does not fit. The caller reports inode or block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum XattrError {
    /// Too few bytes for the head.
    #[error("xattr list of {found} bytes")]
    Short {
        /// Length in bytes.
        found: usize,
    },
    /// The magic is wrong.
    #[error("xattr block with magic {found:#010x}")]
    Magic {
        /// Found value.
        found: u32,
    },
    /// The block's count is not 1, or its reference count is 0 or too large.
    #[error("xattr block of {blocks} blocks with {refcount} references")]
    Header {
        /// Block count of the header.
        blocks: u32,
        /// Reference count of the header.
        refcount: u32,
    },
    /// An entry, a name or a value is outside the list.
    #[error("xattr entry at {offset}: {part:?} is out of bounds")]
    Bounds {
        /// Offset of the entry.
        offset: usize,
        /// Entry or value.
        part: XattrPart,
    },
    /// A value overlaps the entries or another value.
    #[error("xattr entry at {offset}: its value overlaps {with:?}")]
    Overlap {
        /// Offset of the entry.
        offset: usize,
        /// The part that it overlaps.
        with: XattrPart,
    },
    /// Index and name do not match, or the name has a NUL.
    #[error("xattr entry at {offset}: bad name of index {index}")]
    Name {
        /// Offset of the entry.
        offset: usize,
        /// Name index of the entry.
        index: u8,
    },
    /// A name exists twice.
    #[error("xattr entry at {offset}: duplicate name")]
    Duplicate {
        /// Offset of the entry.
        offset: usize,
    },
    /// An inode number that cannot hold a value.
    #[error("xattr entry at {offset}: value in inode {inode} of {inodes}")]
    Inode {
        /// Offset of the entry.
        offset: usize,
        /// Inode it names.
        inode: u32,
        /// Highest inode.
        inodes: u32,
    },
    /// The hash of an entry is another.
    #[error("xattr entry at {offset}: hash {found:#010x}, expected {expected:#010x}")]
    EntryHash {
        /// Offset of the entry.
        offset: usize,
        /// Value in the entry.
        found: u32,
        /// Hash of name and value.
        expected: u32,
    },
    /// The checksum is wrong.
    #[error("xattr block checksum {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// Value in the block.
        found: u32,
        /// Computed value.
        expected: u32,
    },
    /// The set does not fit.
    #[error("xattrs need {need} bytes, {room} are available")]
    Full {
        /// Bytes needed.
        need: usize,
        /// Length in bytes.
        room: usize,
    },
    /// A name is too long, or a value too large, to be written here.
    #[error("xattr name of {name} bytes or value of {value} bytes is too large")]
    TooLarge {
        /// Bytes of the name.
        name: usize,
        /// Bytes of the value.
        value: usize,
    },
}
