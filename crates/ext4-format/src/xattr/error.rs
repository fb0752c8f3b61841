//! What is wrong with a list of xattrs.

use thiserror::Error;

/// Which part of an entry an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrPart {
    /// The entry or its name.
    Entry,
    /// The value.
    Value,
}

/// A list of xattrs that does not parse, or does not fit. The caller knows inode or block and names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum XattrError {
    /// Too few bytes for the head.
    #[error("xattr list of {found} bytes")]
    Short {
        /// Bytes there.
        found: usize,
    },
    /// The magic is another.
    #[error("xattr block with magic {found:#010x}")]
    Magic {
        /// What is there.
        found: u32,
    },
    /// The block says that it is more than one, or that none or too many inodes share it.
    #[error("xattr block of {blocks} blocks with {refcount} references")]
    Header {
        /// Its block count.
        blocks: u32,
        /// Its reference count.
        refcount: u32,
    },
    /// An entry, a name or a value leads out of the list.
    #[error("xattr entry at {offset}: {part:?} is out of bounds")]
    Bounds {
        /// Where the entry is.
        offset: usize,
        /// Entry or value.
        part: XattrPart,
    },
    /// A value lies over the entries or over another value.
    #[error("xattr entry at {offset}: its value overlaps {with:?}")]
    Overlap {
        /// Where the entry is.
        offset: usize,
        /// What it lies over.
        with: XattrPart,
    },
    /// Index and name do not go together, or the name has a NUL.
    #[error("xattr entry at {offset}: bad name of index {index}")]
    Name {
        /// Where the entry is.
        offset: usize,
        /// Its name index.
        index: u8,
    },
    /// A name is there twice.
    #[error("xattr entry at {offset}: its name is there already")]
    Duplicate {
        /// Where the entry is.
        offset: usize,
    },
    /// An inode number that no value can have.
    #[error("xattr entry at {offset}: value in inode {inode} of {inodes}")]
    Inode {
        /// Where the entry is.
        offset: usize,
        /// Inode it names.
        inode: u32,
        /// Highest inode.
        inodes: u32,
    },
    /// The hash of an entry is another.
    #[error("xattr entry at {offset}: hash {found:#010x}, expected {expected:#010x}")]
    EntryHash {
        /// Where the entry is.
        offset: usize,
        /// What the entry says.
        found: u32,
        /// What name and value give.
        expected: u32,
    },
    /// The checksum is another.
    #[error("xattr block checksum {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// What the block says.
        found: u32,
        /// What the bytes give.
        expected: u32,
    },
    /// The set does not fit.
    #[error("xattrs take {need} bytes where {room} are")]
    Full {
        /// Bytes needed.
        need: usize,
        /// Bytes there.
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
