//! Truncation, and freeing all of a file.
//!
//! # How it works
//! Growing only changes the size: the new part is a hole. Only the rest of the last block is zeroed
//! first.
//!
//! Shrinking first settles memory: it discards dirty data after the new end, waits for data in
//! flight, and zeroes the rest of the block that the new end cuts, in memory. Then one handle makes
//! the inode an orphan and sets the size, and blocks are taken out of the map from the end of the
//! file, as many in each handle as its credits allow. A power cut in between leaves an orphan, and
//! the next mount continues. The last handle removes the inode from the orphans.

use std::ops::Range;
use std::sync::Arc;

use sapwood_ext4_format::InodeFlags;
use sapwood_vfs::{self as vfs, FileKind};

use super::flush::discard;
use super::{inline, write};
use crate::engine::Engine;
use crate::inode::{Inode, STORE_CREDITS};
use crate::map::{self, Mapped};
use crate::{Result, block_alloc, orphan};

/// Further credits of a step of a removal, in addition to the least: fewer steps are faster.
const STEP: u32 = 32;

/// Sets the length of a file. The caller holds `io` exclusively and no handle, and sets the times.
///
/// # Errors
/// [`vfs::Error::FileTooLarge`]; [`NoSpace`](crate::Error::NoSpace); the map is damaged; errors of
/// the device.
pub(crate) fn truncate(engine: &Arc<Engine>, inode: &Arc<Inode>, size: u64) -> Result<()> {
    engine.check()?;
    if size != inode.size() {
        inode.check_changeable()?;
    }
    if inode.flags().contains(InodeFlags::INLINE_DATA) {
        if inline::truncate(engine, inode, size)? {
            return Ok(());
        }
        inline::convert(engine, inode)?;
    }
    let old = inode.size();
    if size > old {
        if size > inode.max_size(engine) {
            return Err(vfs::Error::FileTooLarge.into());
        }
        write::zero_tail(engine, inode, old)?;
        return set_size(engine, inode, size);
    }
    block_alloc::end_stream(&engine.groups, inode.ino);
    let end = engine.block_ceil(size);
    if size < old {
        write::zero_part(engine, inode, size..end, old)?;
    }
    discard(engine, inode, end..u64::MAX);
    let blocks = end / engine.block_size()..map::BLOCKS_MAX;
    if !has_blocks(engine, inode, blocks.clone())? {
        return if size == old {
            Ok(())
        } else {
            set_size(engine, inode, size)
        };
    }
    engine.abort(shrink(engine, inode, size, blocks))
}

/// Frees the blocks after the end of an orphan, which then is none if it has a name. The caller
/// holds `io` exclusively and no handle.
///
/// # Errors
/// The map is damaged; errors of the device.
pub(crate) fn cut_orphan(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    truncate(engine, inode, inode.size())?;
    release_orphan(engine, inode)
}

/// Removes the record of an orphan that has a name and is complete. Hold no handle.
///
/// # Errors
/// Errors of the device; the image is damaged.
pub(crate) fn release_orphan(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    if !inode.is_linked() || !engine.orphans.knows(inode.ino) {
        return Ok(());
    }
    let h = engine.start(orphan::CREDITS + STORE_CREDITS)?;
    orphan::remove(engine, &h, inode)?;
    inode.store(engine, &h)
}

/// Whether the file may have blocks in a range that ends after its last one.
fn has_blocks(engine: &Engine, inode: &Inode, blocks: Range<u64>) -> Result<bool> {
    if !inode.flags().contains(InodeFlags::EXTENTS) || blocks.is_empty() {
        return Ok(!blocks.is_empty());
    }
    let run = map::lookup(engine, inode, blocks.start, blocks.end - blocks.start)?;
    let end = map::run_end(inode.ino, &run, blocks.start, blocks.end)?;
    Ok(run.what != Mapped::Hole || end < blocks.end)
}

/// Sets the size, in memory and on disk, where no block must be freed.
pub(super) fn set_size(engine: &Arc<Engine>, inode: &Arc<Inode>, size: u64) -> Result<()> {
    let h = engine.start_tracked(STORE_CREDITS)?;
    put_size(engine, inode, size)?;
    inode.store(engine, &h)
}

fn put_size(engine: &Engine, inode: &Inode, size: u64) -> Result<()> {
    let mut state = inode.state.lock();
    state.raw.set_size(size, &engine.geometry)?;
    state.size = size;
    Ok(())
}

fn shrink(engine: &Arc<Engine>, inode: &Arc<Inode>, size: u64, blocks: Range<u64>) -> Result<()> {
    let quota = engine.quota.credits();
    let step = remove_credits(engine, inode) + orphan::CREDITS + STORE_CREDITS + quota;
    let mut h = engine.start_tracked(step)?;
    orphan::add(engine, &h, inode)?;
    put_size(engine, inode, size)?;
    let first = blocks.start;
    let mut left = blocks;
    loop {
        left = map::remove(engine, &h, inode, left)?;
        inode.store(engine, &h)?;
        if left.is_empty() {
            break;
        }
        h.restart(step)?;
    }
    let last = orphan::CREDITS + STORE_CREDITS + quota;
    if !h.ensure(last) {
        h.restart(last)?;
    }
    // One without a name stays an orphan.
    if inode.is_linked() {
        orphan::remove(engine, &h, inode)?;
        inode.store(engine, &h)?;
    }
    let mut data = inode.data.state.lock();
    data.hole_from = Some(first);
    data.hint = None;
    Ok(())
}

/// Credits that a step of a removal begins with, without the inode's.
fn remove_credits(engine: &Engine, inode: &Inode) -> u32 {
    let need = map::remove_credits(engine, inode);
    let most = engine.journal.most_credits() / 2;
    need.saturating_add(STEP).min(most.max(need))
}

/// Frees the blocks of a range, in handles of its own. The caller ensures that no data of them is
/// in memory.
///
/// # Errors
/// The map is damaged.
pub(super) fn remove_blocks(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    blocks: Range<u64>,
) -> Result<()> {
    if blocks.is_empty() {
        return Ok(());
    }
    let step = remove_credits(engine, inode);
    map::in_steps(engine, inode, blocks, step, map::remove)
}

/// Frees everything that an inode without a name has. The caller holds `io` exclusively and no
/// handle; the inode is an orphan.
///
/// # Errors
/// The map is damaged; errors of the device.
pub(crate) fn delete_content(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    engine.check()?;
    discard(engine, inode, 0..u64::MAX);
    block_alloc::end_stream(&engine.groups, inode.ino);
    if has_map(engine, inode) && has_blocks(engine, inode, 0..map::BLOCKS_MAX)? {
        engine.abort(remove_blocks(engine, inode, 0..map::BLOCKS_MAX))?;
    }
    inode.state.lock().size = 0;
    Ok(())
}

/// Whether the file is only an inode, on disk and in memory. The caller holds `io` exclusively.
///
/// # Errors
/// The map is damaged.
pub(crate) fn is_bare(engine: &Engine, inode: &Inode) -> Result<bool> {
    if !inode.data.is_idle() || block_alloc::has_stream(&engine.groups, inode.ino) {
        return Ok(false);
    }
    Ok(!has_map(engine, inode) || !has_blocks(engine, inode, 0..map::BLOCKS_MAX)?)
}

/// Whether the inode's 60 bytes are a map.
fn has_map(engine: &Engine, inode: &Inode) -> bool {
    let state = inode.state.lock();
    match inode.kind {
        FileKind::Regular | FileKind::Directory => {
            !state.raw.flags().contains(InodeFlags::INLINE_DATA)
        }
        FileKind::Symlink => {
            !state.raw.flags().contains(InodeFlags::INLINE_DATA)
                && !state.raw.is_fast_symlink(&engine.geometry)
        }
        _ => false,
    }
}
