//! Free blocks, and their allocation to files.
//!
//! # How it works
//! Data blocks go through three steps, so that data can be on the device before any metadata refers
//! to it:
//!
//! ```text
//!   Space::reserve   counted; the only place of ENOSPC
//!        |
//!     allocate       blocks taken in memory (buddy): no other thread gets them; disk unchanged
//!        |  \
//!        |   cancel  given back
//!      claim         bits set in the bitmap, in a handle, with the extent that names them
//!        |
//!       free         bits cleared in a handle; still used in memory ...
//!        |
//!     committed      ... until that transaction is durable, then allocatable again
//! ```
//!
//! Metadata blocks are allocated and claimed at once ([`allocate_meta`]), and forgotten by the
//! journal when freed.
//!
//! For the choice of blocks see [`choose`]; [`Groups::streams`] separates files that grow at once.

mod choose;
mod discard;
mod space;
#[cfg(test)]
mod tests;

use sapwood_ext4_format::{BitmapKind, bitmap};
use sapwood_jbd2::Handle;

pub(crate) use choose::Request;
use choose::give_back;
pub(crate) use discard::{is_trim_range, trim};
pub(crate) use space::{Reservation, Space};

pub(crate) use crate::group::Extent;
use crate::group::{Group, Groups, Piece};
use crate::{Error, Result};

/// Credits that [`claim`], [`allocate_meta`] or [`free`] needs for each group it touches: bitmap
/// and descriptor. An allocated extent lies in one group.
pub(crate) const CREDITS: u32 = 2;

/// Takes free blocks, in memory only: [`claim`] or [`cancel`] must follow. Takes group locks, one
/// at a time; may read bitmaps. The blocks lie in one group.
///
/// # Errors
/// `NoSpace`: no group that is in use has a free block. Cannot happen to a file that was promised
/// blocks, unless groups went out of use.
pub(crate) fn allocate(groups: &Groups, request: &Request) -> Result<Extent> {
    choose::allocate(groups, request)
}

/// Takes free blocks side by side for several files, as [`allocate`] does for one.
///
/// # Errors
/// `NoSpace`: no group in use has a free block.
pub(crate) fn allocate_stretch(groups: &Groups, goal: u64, len: u32) -> Result<Extent> {
    choose::allocate_plain(groups, goal, len)
}

/// Marks allocated blocks as used in the bitmap, in this transaction. Hold no group lock; may wait
/// as write access does.
///
/// # Errors
/// The bitmap has them in use (the image is damaged); the group is out of use; errors of the
/// journal.
pub(crate) fn claim(groups: &Groups, h: &Handle, extent: Extent) -> Result<()> {
    let (group, start) = groups.place(extent)?;
    let buffer = groups.bitmap(group, BitmapKind::Block)?;
    h.write_access(&buffer)?;
    groups.join_desc(h, group.number)?;
    let mut state = group.lock();
    state.check(group)?;
    let end = start + extent.len;
    let mut content = groups.change_bitmap(h, group, &mut state, BitmapKind::Block, &buffer)?;
    if bitmap::count_set(&content, start, end) != 0 {
        drop(content);
        let reason = format!(
            "{} blocks from {} on were free and are in use in its bitmap",
            extent.len, extent.start
        );
        return Err(groups.put_out_of_use(group, &mut state, reason));
    }
    bitmap::set_range(&mut content, start, end);
    drop(content);
    let free = state.desc.free_clusters().saturating_sub(extent.len);
    state.desc.set_free_clusters(free)?;
    groups.mark_dirty(group, &mut state, BitmapKind::Block);
    Ok(())
}

/// Marks blocks as used that no allocation returned, where they are not: blocks in a fast commit.
/// They lie in one group.
///
/// # Errors
/// They were freed in the same transaction; the group is out of use; errors of the journal.
pub(crate) fn mark_used(groups: &Groups, h: &Handle, extent: Extent) -> Result<()> {
    let (group, start) = groups.place(extent)?;
    let buffer = groups.bitmap(group, BitmapKind::Block)?;
    h.write_access(&buffer)?;
    groups.join_desc(h, group.number)?;
    let mut state = groups.lock_blocks(group)?;
    let mut content = groups.change_bitmap(h, group, &mut state, BitmapKind::Block, &buffer)?;
    let mut taken = 0;
    for bit in start..start + extent.len {
        if bitmap::set_bit(&mut content, bit) {
            continue;
        }
        if !state.buddy.as_mut().is_some_and(|buddy| buddy.take(bit, 1)) {
            return Err(Error::BadGroup {
                group: group.number,
                reason: format!("its block {bit} was freed and is used again"),
            });
        }
        taken += 1;
    }
    drop(content);
    groups.count_blocks(taken, false);
    let free = state.desc.free_clusters().saturating_sub(taken);
    state.desc.set_free_clusters(free)?;
    groups.mark_dirty(group, &mut state, BitmapKind::Block);
    Ok(())
}

/// Gives blocks back that were allocated and not claimed.
pub(crate) fn cancel(groups: &Groups, extent: Extent) {
    groups.count_blocks(extent.len, true);
    give_back(groups, extent);
}

/// Allocates and claims one block for metadata.
///
/// # Errors
/// `NoSpace`: no group in use has a free block; the bitmap is damaged; errors of the journal.
pub(crate) fn allocate_meta(groups: &Groups, h: &Handle, goal: u64) -> Result<u64> {
    let extent = choose::allocate_plain(groups, goal, 1)?;
    claim(groups, h, extent)?;
    Ok(extent.start)
}

/// Frees claimed blocks in this transaction; they can be allocated again when it is durable.
/// `metadata`: the journal may hold them, so they are forgotten and revoked. Blocks of a group that
/// is out of use stay used.
///
/// # Errors
/// The bitmap has them free (the image is damaged), the range is outside the groups or contains
/// metadata of a group; the errors of the journal.
pub(crate) fn free(groups: &Groups, h: &Handle, extent: Extent, metadata: bool) -> Result<()> {
    let geometry = groups.geometry();
    geometry.check_blocks(extent.start, extent.len.into())?;
    if groups.is_system(extent.start, extent.len.into()) {
        let (group, _) = geometry.group_of_block(extent.start)?;
        return Err(Error::BadGroup {
            group,
            reason: format!(
                "{} blocks from {} on were to be freed, but are metadata of a group",
                extent.len, extent.start
            ),
        });
    }
    let mut start = extent.start;
    let end = extent.start + u64::from(extent.len);
    while start < end {
        let (number, offset) = geometry.group_of_block(start)?;
        let group = groups.group(number)?;
        let here = u64::from(group.blocks().saturating_sub(offset))
            .min(end - start)
            .max(1);
        let len = u32::try_from(here).unwrap_or(1);
        free_piece(groups, h, group, (offset, len))?;
        start += here;
    }
    if metadata {
        for block in extent.start..end {
            h.forget(block)?;
        }
    }
    Ok(())
}

/// Ends the growth of this inode for a while: other files may use the blocks kept for it.
pub(crate) fn end_stream(groups: &Groups, ino: u32) {
    if let Some(kept) = groups.streams().remove(ino) {
        give_back(groups, kept);
    }
}

/// Whether blocks may be kept for an inode.
pub(crate) fn has_stream(groups: &Groups, ino: u32) -> bool {
    groups.streams().has(ino)
}

fn free_piece(groups: &Groups, h: &Handle, group: &Group, piece: Piece) -> Result<()> {
    let (start, len) = piece;
    let buffer = match groups.bitmap(group, BitmapKind::Block) {
        // Its blocks stay used until a check repairs it.
        Err(Error::BadGroup { .. }) => return Ok(()),
        other => other?,
    };
    h.write_access(&buffer)?;
    groups.join_desc(h, group.number)?;
    let mut state = group.lock();
    if state.is_out_of_use() {
        return Ok(());
    }
    let mut content = groups.change_bitmap(h, group, &mut state, BitmapKind::Block, &buffer)?;
    if bitmap::count_zero(&content, start, start + len) != 0 {
        drop(content);
        let first = group.first_block + u64::from(start);
        let reason = format!("{len} blocks from {first} on are freed, but free in its bitmap");
        return Err(groups.put_out_of_use(group, &mut state, reason));
    }
    bitmap::clear_range(&mut content, start, start + len);
    drop(content);
    let free = state.desc.free_clusters().saturating_add(len);
    state.desc.set_free_clusters(free)?;
    groups.note_freed(group, &mut state, h.tid(), piece);
    groups.mark_dirty(group, &mut state, BitmapKind::Block);
    Ok(())
}
