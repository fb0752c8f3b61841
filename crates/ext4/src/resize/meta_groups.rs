//! The step from the classic descriptor table to meta groups, for a file system that grows past the
//! reserved descriptor blocks.
//!
//! # How it works
//! The classic table takes every block that is reserved for it, in each group with a copy of the
//! superblock, so no metadata moves. It keeps that length: `s_first_meta_bg` counts its blocks. The
//! descriptors of all further groups are in those groups. The kernel grows a mounted file system to
//! the same layout.
//!
//! The resize inode names the reserved blocks and allows no meta groups, so it is removed in the
//! same transaction.

use sapwood_ext4_format::{
    Compat, Features, Geometry, INDIRECT_DIRECT, Incompat, Inode, SuperBlock, special_ino,
};

use super::image::Image;
use super::journal::{self, Borrowed};
use super::{ResizeError, Result};

/// Revision of a superblock with feature fields.
const REV_DYNAMIC: u32 = 1;

/// The superblock `sb` with meta groups after the capacity of `old`'s table. `wanted`: bytes of the
/// new file system.
///
/// # Errors
/// [`ResizeError::TooLarge`] if the superblock has no feature fields.
pub(super) fn use_meta_groups(sb: &mut SuperBlock, old: &Geometry, wanted: u64) -> Result<()> {
    if sb.rev_level.get() < REV_DYNAMIC {
        let why = "its revision has no meta groups";
        return Err(ResizeError::TooLarge { wanted, why });
    }
    let mut features = sb.features();
    features.incompat |= Incompat::META_BG;
    features.compat -= Compat::RESIZE_INODE;
    sb.set_features(features);
    sb.first_meta_bg = longest_table(old).into();
    sb.reserved_gdt_blocks = 0.into();
    Ok(())
}

/// Blocks that the classic descriptor table has at most.
fn longest_table(geometry: &Geometry) -> u32 {
    geometry.desc_blocks() + u32::from(geometry.reserved_gdt_blocks())
}

/// Blocks of the file system whose descriptors fill the classic table.
pub(super) fn border(geometry: &Geometry) -> u64 {
    let groups = u64::from(longest_table(geometry)) * u64::from(geometry.descs_per_block());
    u64::from(geometry.first_data_block()) + groups * u64::from(geometry.blocks_per_group())
}

/// Whether the step from `old` to `new` removes the resize inode.
pub(super) fn loses_resize_inode(old: &Geometry, new: &Geometry) -> bool {
    let has = |features: Features| features.has_compat(Compat::RESIZE_INODE);
    has(old.features()) && !has(new.features())
}

/// Gives a file system without a journal one for the step. Without it, no order of writes lets
/// `e2fsck` complete the step. `None`: there is no room for a journal, or it would be too small.
///
/// # Errors
/// Errors of the device.
pub(super) fn borrow(image: &mut Image, old: &Geometry) -> Result<Option<Borrowed>> {
    let longer = longest_table(old) - old.desc_blocks();
    if longer <= journal::MOST_TABLES {
        journal::borrow(image)
    } else {
        Ok(None)
    }
}

/// Frees the block of pointers of the resize inode, and clears the inode. The blocks that it
/// reserved belong to the descriptor table.
///
/// # Errors
/// The inode leads out of the file system; errors of the device.
pub(super) fn remove_resize_inode(image: &mut Image) -> Result<()> {
    let ino = special_ino::RESIZE;
    let inode = image.inode(ino)?;
    let pointers = u64::from(inode.block_word(INDIRECT_DIRECT as usize + 1));
    if pointers != 0 {
        image.geometry.check_blocks(pointers, 1)?;
        image.free(pointers, 1);
    }
    image.put_inode(ino, Inode::new(&image.geometry))
}
