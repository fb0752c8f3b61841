//! Data in the inode: the first 60 bytes use the space of the block map, the rest is the value of
//! the xattr `system.data`.
//!
//! An inline directory begins with its parent's inode number (there is no `.` and `..`). Entries
//! follow in two regions: the other 56 bytes, and the xattr's value. Each is filled like a block
//! without tail. The `region_*` methods of [`DirFormat`] work on them. Source: kernel
//! documentation, `filesystems/ext4/inlinedata.rst`.
//!
//! [`DirFormat`]: crate::DirFormat

/// Bytes of inline data in the inode's block map.
pub const INLINE_IN_BLOCKS: usize = 60;
/// Bytes of an inline directory before its first entry.
pub(crate) const INLINE_DIR_HEAD: usize = 4;
/// Name of the xattr with the rest, after the prefix `system.`.
pub const INLINE_XATTR: &[u8] = b"data";

/// Parent of an inline directory, from the inode's 60 bytes; `None` if they are fewer.
pub fn inline_dir_parent(blocks: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(*blocks.first_chunk()?))
}

/// The region of entries in the inode's 60 bytes.
pub fn inline_dir_region(blocks: &[u8]) -> Option<&[u8]> {
    blocks.get(INLINE_DIR_HEAD..INLINE_IN_BLOCKS)
}

/// The region of entries in the inode's 60 bytes, to change.
pub fn inline_dir_region_mut(blocks: &mut [u8]) -> Option<&mut [u8]> {
    blocks.get_mut(INLINE_DIR_HEAD..INLINE_IN_BLOCKS)
}
