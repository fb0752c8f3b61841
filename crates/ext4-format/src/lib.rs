//! On-disk structures of ext4: structures, checksums, validators, readable dumps. No I/O and no
//! state. Input is never trusted: any bytes give a value or a typed error, never a panic.
//!
//! Sizes and offsets are bytes unless the name has blocks, clusters or sectors (512 bytes).
//! Integers on disk are little-endian. The facts are from the public description of the format
//! (kernel documentation, `filesystems/ext4`).

mod acl;
pub mod bitmap;
mod casefold;
mod checksum;
mod dir;
mod dump;
mod error;
mod extent;
mod features;
mod geometry;
mod group;
mod hash;
mod htree;
mod indirect;
mod inline;
mod inode;
mod layout;
mod mmp;
mod orphan;
mod quota;
mod superblock;
mod validate;
mod xattr;

pub use acl::*;
pub use casefold::*;
pub use checksum::{crc32c, inode_seed, same_seed_generation, uuid_seed};
pub use dir::*;
pub use dump::{DumpGroup, DumpInode, DumpSuper};
pub use error::{BitmapKind, FormatError};
pub use extent::*;
pub use features::{Compat, Features, Incompat, RoCompat};
pub use geometry::{BLOCK_NUMBER_BITS, DESC_SIZE_64BIT, DESC_SIZE_MIN, Geometry};
pub use group::{DiskGroupDesc, GroupDesc, GroupFlags};
pub use hash::*;
pub use htree::*;
pub use indirect::*;
pub use inline::*;
pub use inode::{
    DiskInode, EXTRA_ISIZE_FULL, I_BLOCK_SIZE, INODE_BASE_SIZE, Inode, InodeFlags, LINK_MAX,
    Timestamp, file_mode, special_ino,
};

pub use mmp::{
    MMP_MAGIC, MMP_MAX_CHECK_INTERVAL, MMP_MIN_CHECK_INTERVAL, MMP_SEQ_CLEAN, MMP_SEQ_FSCK,
    MMP_SEQ_MAX, MMP_UPDATE_INTERVAL, MmpBlock,
};
pub use orphan::*;
pub use quota::*;
pub use superblock::{
    CHECKSUM_CRC32C, CREATOR_HURD, GOOD_OLD_FIRST_INO, GOOD_OLD_INODE_SIZE, MountOpts, REV_DYNAMIC,
    REV_GOOD_OLD, SUPER_MAGIC, SUPER_OFFSET, SUPER_SIZE, SuperBlock, SuperFlags, SuperState,
    errors_behaviour, hash_version, usual_backups,
};
pub use validate::{
    validate_block_bitmap, validate_group, validate_inode, validate_inode_bitmap, validate_super,
};
pub use xattr::*;
