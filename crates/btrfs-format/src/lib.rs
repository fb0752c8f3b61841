//! On-disk structures of btrfs: items, keys, checksums, tree blocks, the block validator and
//! readable dumps. No I/O and no state. Input is never trusted: any bytes give a value or a typed
//! error, never a panic.
//!
//! Sizes and offsets are bytes; integers on disk are little-endian. The facts are from the public
//! description of the format (btrfs documentation, "On-disk format").

mod balance;
pub mod block;
mod block_mut;
mod checksum;
mod chunk;
mod dump;
mod error;
mod extent;
mod file_extent;
mod flags;
mod inode;
mod key;
mod layout;
mod root;
mod space;
pub mod stream;
mod superblock;
mod validate;

pub use balance::{BalanceArgs, BalanceArgsFlags, BalanceFlags, BalanceItem, SINGLE_PROFILE};
pub use block::{Block, Header, Item, KeyPtr, header_flag, leaf_data_size, node_ptrs};
pub use block_mut::{BlockInit, BlockMut};
pub use checksum::{
    Checksum, ChecksumKind, Mismatch, extent_data_ref_hash, extref_hash, name_hash,
};
pub use chunk::{Chunk, ChunkItem, DevExtent, DevItem, DevStats, Stripe, StripeItem};
pub use dump::{DumpBlock, DumpSuper};
pub use error::ItemError;
pub use extent::{
    BlockGroupItem, ExtentDataRef, ExtentInlineRef, ExtentItem, ExtentItemRef, InlineRef,
    InlineRefs, SharedDataRef, TreeBlockInfo,
};
pub use file_extent::{
    FileExtent, FileExtentHeader, FileExtentRegular, RegularExtent, extent_type,
};
pub use flags::{
    BlockGroupFlags, CompatRo, ExtentFlags, FreeSpaceFlags, Incompat, InodeFlags, RootFlags,
    SuperFlags, compression, file_type,
};
pub use inode::{
    DirItem, DirItemRef, DirLogItem, InodeExtref, InodeExtrefRef, InodeItem, InodeRef, InodeRefRef,
    NAME_MAX, Packed, Timespec, VerityHeader, dir_items, inode_extrefs, inode_refs, join_device,
    split_device,
};
pub use key::{DiskKey, Key, kind, objectid};
pub use root::{
    RootItem, RootRef, RootRefRef, root_ref, uuid_from_key_parts, uuid_item, uuid_key_parts,
};
pub use space::{
    FREE_SPACE_BITMAP_BITS, FreeSpaceEntry, FreeSpaceHeader, FreeSpaceInfo, QgroupInfo,
    QgroupLimit, QgroupStatus,
};
pub(crate) use superblock::SYS_CHUNK_ARRAY_SIZE;
pub use superblock::{MAGIC, RootBackup, SUPER_OFFSETS, SUPER_SIZE, SuperBlock, SysChunks};
pub use validate::{
    BlockError, Expect, ItemProblem, SuperError, validate_block, validate_content, validate_super,
};
