//! Errors of hash trees.

/// Errors of hash trees.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The data device or the hash device.
    #[error(transparent)]
    Device(#[from] sapwood_block::Error),
    /// The hash device does not begin with a superblock of dm-verity.
    #[error("{device}: no dm-verity superblock")]
    NoHeader {
        /// Hash device.
        device: String,
    },
    /// A field of the superblock makes no sense.
    #[error("dm-verity superblock: {field} is {value}")]
    Field {
        /// Field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A digest that is not supported.
    #[error("{0:?} is not a digest that Sapwood has; it has sha256 and sha512")]
    Algorithm(String),
    /// The size of blocks is not supported.
    #[error("{0} is not a block size of dm-verity: a power of two from 512 to 65536")]
    BlockSize(u32),
    /// The salt is too long.
    #[error("a salt has at most 256 bytes, and not {0}")]
    Salt(usize),
    /// The data device does not consist of blocks.
    #[error("{device}: {size} bytes are not a number of blocks of {block} bytes")]
    Unaligned {
        /// Data device.
        device: String,
        /// Bytes.
        size: u64,
        /// Bytes of a block.
        block: u32,
    },
    /// A device is smaller than the tree requires.
    #[error("{device}: {size} bytes, but the hash tree needs {needed}")]
    TooSmall {
        /// Device.
        device: String,
        /// Bytes.
        size: u64,
        /// Needed bytes.
        needed: u64,
    },
    /// The root hash has another length than the tree's digests.
    #[error(
        "a root hash has {expected} hexadecimal digits for this tree, and this one has {found}"
    )]
    RootLength {
        /// Digits that are needed.
        expected: usize,
        /// Digits that were given.
        found: usize,
    },
    /// Not hexadecimal.
    #[error("{0:?} is not hexadecimal")]
    Hex(String),
    /// The size of blocks is not supported for files.
    #[error("{0} is not a block size of fs-verity: a power of two from 1024 to 65536")]
    FileBlockSize(u32),
    /// The salt is too long for a file.
    #[error("a salt of fs-verity has at most 32 bytes, and not {0}")]
    FileSalt(usize),
    /// The descriptor of a file with a hash tree is damaged.
    #[error("fs-verity descriptor: wrong {0}")]
    Descriptor(&'static str),
    /// A block of a file, or of its hash tree, differs.
    #[error("block {block} of {what} does not match the hash tree")]
    FileMismatch {
        /// The data, or the hash tree.
        what: &'static str,
        /// Block of it.
        block: u64,
    },
    /// A block of the tree, or of the data, differs.
    #[error("{device}: block {block} does not match the {above}")]
    Mismatch {
        /// Device that has the block.
        device: String,
        /// Block of the device.
        block: u64,
        /// The reference of the comparison.
        above: &'static str,
    },
}

/// Result of an operation on a hash tree.
pub type Result<T, E = Error> = std::result::Result<T, E>;
