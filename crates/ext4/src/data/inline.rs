//! Inline data: a small file that is in its inode.
//!
//! # How it works
//! The first 60 bytes are where a map would be, the rest in the attribute `system.data`, which is
//! there even if it is empty. Such a file has nothing in memory: a write changes the inode in a
//! handle at once. A file that does not fit any more [becomes blocks](convert): the block is
//! written first and one handle then puts it in the place of the inline data, so that a power cut
//! leaves the one or the other.
//!
//! Where the file system has the feature, an empty file becomes inline with its first write that
//! fits.

use std::sync::Arc;

use sapwood_ext4_format::{Incompat, InodeFlags};
use sapwood_vfs::{self as vfs, FileKind};

use super::flush;
use crate::engine::Engine;
use crate::inode::{Inode, MAP_BYTES, STORE_CREDITS};
use crate::map::{self, Mapped};
use crate::store::Store;
use crate::volume::Volume;
use crate::{Error, Result, block_alloc, xattr};

/// Attribute with the part of the data that does not fit into the map.
const ATTRIBUTE: &[u8] = b"system.data";

/// All content. The caller holds `io` shared.
///
/// # Errors
/// [`Error::BadInode`] if the file is longer than its inline data; errors of damaged attributes.
pub(super) fn content(volume: &Volume, inode: &Inode) -> Result<Vec<u8>> {
    let size = usize::try_from(inode.size()).unwrap_or(usize::MAX);
    let mut bytes = inode.map.read().to_vec();
    if size > MAP_BYTES {
        bytes.extend(xattr::get(volume, inode, ATTRIBUTE)?.unwrap_or_default());
    }
    if size > bytes.len() {
        return Err(Error::BadInode {
            ino: inode.ino,
            reason: format!("{size} bytes of inline data, but {} stored", bytes.len()),
        });
    }
    bytes.truncate(size);
    Ok(bytes)
}

/// Fills `buf` from `offset`, within the file. The caller holds `io` shared.
///
/// # Errors
/// [`Error::BadInode`] if the file is longer than its inline data; damaged attributes.
pub(super) fn read_at(volume: &Volume, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
    let content = content(volume, inode)?;
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let part = content.get(start..).unwrap_or_default();
    let (has, lacks) = buf.split_at_mut(part.len().min(buf.len()));
    has.copy_from_slice(part.get(..has.len()).unwrap_or_default());
    lacks.fill(0);
    Ok(())
}

/// Makes an empty file inline if a write of `end` bytes may fit. The write follows.
///
/// # Errors
/// The map is damaged.
pub(super) fn may_begin(store: &Store, inode: &Inode, end: u64) -> Result<bool> {
    if !store
        .geometry
        .features()
        .has_incompat(Incompat::INLINE_DATA)
        || end > most(store)
    {
        return Ok(false);
    }
    let (size, flags) = {
        let state = inode.state.lock();
        (state.size, state.raw.flags())
    };
    let kept = InodeFlags::INLINE_DATA | InodeFlags::ENCRYPT | InodeFlags::VERITY;
    if inode.kind != FileKind::Regular
        || size > 0
        || flags.intersects(kept)
        || !flags.contains(InodeFlags::EXTENTS)
        || inode.data.pending_bytes() > 0
    {
        return Ok(false);
    }
    let all = u64::from(u32::MAX);
    let run = map::lookup(store, inode, 0, all)?;
    Ok(run.what == Mapped::Hole && map::run_end(inode.ino, &run, 0, all)? >= all)
}

/// Most bytes that can be inline.
fn most(store: &Store) -> u64 {
    MAP_BYTES as u64 + u64::from(store.geometry.inode_size()).saturating_sub(128)
}

/// Writes to a file that is inline, or [may become so](may_begin). False, and nothing is changed,
/// if it does not fit.
///
/// # Errors
/// [`Error::BadInode`] if the file is longer than its inline data; damaged attributes.
pub(super) fn write_at(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    offset: u64,
    data: &[u8],
) -> Result<bool> {
    let end = offset.saturating_add(data.len() as u64);
    if end > most(engine) {
        return Ok(false);
    }
    let mut bytes = if inode.flags().contains(InodeFlags::INLINE_DATA) {
        content(engine, inode)?
    } else {
        Vec::new()
    };
    let len = bytes.len().max(end as usize);
    bytes.resize(len, 0);
    if let Some(place) = bytes.get_mut(offset as usize..end as usize) {
        place.copy_from_slice(data);
    }
    put(engine, inode, &bytes)
}

/// Cuts or extends a file that is inline. False, and nothing is changed, if it does not fit.
///
/// # Errors
/// [`Error::BadInode`] if the file is longer than its inline data; damaged attributes.
pub(super) fn truncate(engine: &Arc<Engine>, inode: &Arc<Inode>, size: u64) -> Result<bool> {
    if size > most(engine) {
        return Ok(false);
    }
    let mut bytes = content(engine, inode)?;
    bytes.resize(size as usize, 0);
    put(engine, inode, &bytes)
}

/// Makes `bytes` the inline content. False if they do not fit.
fn put(engine: &Arc<Engine>, inode: &Arc<Inode>, bytes: &[u8]) -> Result<bool> {
    let (front, rest) = bytes.split_at(bytes.len().min(MAP_BYTES));
    let h = engine.start(xattr::credits(engine, rest.len()) + STORE_CREDITS)?;
    match xattr::set_in(engine, &h, inode, ATTRIBUTE, Some(rest)) {
        Ok(()) => {}
        Err(Error::NoSpace | Error::Vfs(vfs::Error::AttributeTooLarge)) => {
            return Ok(false);
        }
        Err(error) => return Err(error),
    }
    {
        let mut map = inode.map.write();
        map.fill(0);
        if let Some(place) = map.get_mut(..front.len()) {
            place.copy_from_slice(front);
        }
        let mut state = inode.state.lock();
        let flags = (state.raw.flags() - InodeFlags::EXTENTS) | InodeFlags::INLINE_DATA;
        state.raw.set_flags(flags);
        state.size = bytes.len() as u64;
        state.raw.set_size(bytes.len() as u64, &engine.geometry)?;
    }
    engine.abort(inode.store(engine, &h))?;
    Ok(true)
}

/// Makes an inline file one with blocks. The caller holds `io` exclusively and no handle.
///
/// # Errors
/// [`Error::NoSpace`]; [`Error::BadInode`] if the file is longer than its inline data; damaged
/// attributes.
pub(super) fn convert(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    let bytes = content(engine, inode)?;
    let extent = if bytes.is_empty() {
        None
    } else {
        Some(place(engine, inode, bytes)?)
    };
    let credits = xattr::credits(engine, 0)
        + map::insert_credits(engine, inode, 1)
        + block_alloc::CREDITS
        + STORE_CREDITS;
    let h = match engine.start(credits) {
        Ok(h) => h,
        Err(error) => {
            extent.inspect(|extent| block_alloc::cancel(&engine.groups, *extent));
            return Err(error);
        }
    };
    engine.abort((|| {
        xattr::set_in(engine, &h, inode, ATTRIBUTE, None)?;
        let extents = engine.geometry.features().has_incompat(Incompat::EXTENTS);
        {
            let mut map = inode.map.write();
            let mut state = inode.state.lock();
            let mut flags = state.raw.flags() - InodeFlags::INLINE_DATA;
            flags.set(InodeFlags::EXTENTS, extents);
            state.raw.set_flags(flags);
            *map = map::empty(flags);
        }
        if let Some(extent) = extent {
            block_alloc::claim(&engine.groups, &h, extent)?;
            map::insert(engine, &h, inode, 0, extent.start, extent.len.into(), true)?;
        }
        inode.data.forget_shape();
        inode.store(engine, &h)
    })())
}

/// Writes inline content to a new block.
fn place(engine: &Arc<Engine>, inode: &Inode, mut bytes: Vec<u8>) -> Result<block_alloc::Extent> {
    let block_size = engine.block_size();
    if bytes.len() as u64 > block_size {
        return Err(Error::BadInode {
            ino: inode.ino,
            reason: "more inline data than a block".into(),
        });
    }
    bytes.resize(block_size as usize, 0);
    let _promised = flush::reserve(engine, 1, true)?;
    let goal = u64::from(engine.geometry.first_data_block());
    let extent = engine.take_blocks(inode.ino, goal, 1)?;
    let at = extent.start.saturating_mul(block_size);
    let written = engine.device.write_at(at, &bytes);
    if let Err(error) = written {
        block_alloc::cancel(&engine.groups, extent);
        engine.health.fail(&error);
        return Err(error.into());
    }
    Ok(extent)
}
