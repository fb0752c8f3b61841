//! Targets of symbolic links.
//!
//! A short target is in the inode, a long one in a block. That block is journaled, as in the
//! kernel: after a power cut there is either no link or the link with its target. Links with inline
//! data are read, but none is made.

use std::sync::Arc;

use sapwood_ext4_format::{Incompat, InodeFlags};
use sapwood_jbd2::Handle;
use sapwood_vfs as vfs;

use super::inline;
use crate::inode::{Inode, MAP_BYTES};
use crate::map;
use crate::volume::Volume;
use crate::{Error, Result};

/// Target of a symbolic link. The caller holds `io` shared.
///
/// # Errors
/// [`Error::BadInode`]; the map is damaged; errors of the device.
pub(crate) fn readlink(volume: &Volume, inode: &Arc<Inode>) -> Result<Vec<u8>> {
    let (size, flags, fast) = {
        let state = inode.state.lock();
        let fast = state.raw.is_fast_symlink(&volume.geometry);
        (state.size, state.raw.flags(), fast)
    };
    if flags.contains(InodeFlags::ENCRYPT) {
        return Err(vfs::Error::NotSupported.into());
    }
    let bad = |reason: &str| Error::BadInode {
        ino: inode.ino,
        reason: reason.to_owned(),
    };
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    if flags.contains(InodeFlags::INLINE_DATA) {
        return inline::content(volume, inode);
    }
    let target = if fast {
        inode.map.read().get(..size).map(<[u8]>::to_vec)
    } else {
        let buffer = map::block_of(volume, inode, 0)?;
        buffer.read().get(..size).map(<[u8]>::to_vec)
    };
    let target = target.ok_or_else(|| bad("symbolic link longer than a block"))?;
    // Readers stop at a zero byte.
    let end = target.iter().position(|byte| *byte == 0);
    let target = target
        .get(..end.unwrap_or(target.len()))
        .unwrap_or_default();
    if target.is_empty() {
        return Err(bad("symbolic link without a target"));
    }
    Ok(target.to_vec())
}

/// Gives a new symbolic link its target, within a handle; the caller stores the inode.
///
/// # Errors
/// [`vfs::Error::NameTooLong`] for one of a block or more; [`Error::NoSpace`].
pub(crate) fn write_symlink(
    volume: &Volume,
    h: &Handle,
    inode: &Arc<Inode>,
    target: &[u8],
) -> Result<()> {
    if target.len() as u64 >= volume.block_size() {
        return Err(vfs::Error::NameTooLong.into());
    }
    if target.len() < MAP_BYTES {
        if let Some(place) = inode.map.write().get_mut(..target.len()) {
            place.copy_from_slice(target);
        }
    } else {
        if volume.geometry.features().has_incompat(Incompat::EXTENTS) {
            let mut map = inode.map.write();
            let mut state = inode.state.lock();
            let flags = state.raw.flags() | InodeFlags::EXTENTS;
            state.raw.set_flags(flags);
            *map = map::empty(flags);
        }
        let buffer = map::append_block(volume, h, inode, 0)?;
        let mut content = h.modify(&buffer)?;
        if let Some(place) = content.get_mut(..target.len()) {
            place.copy_from_slice(target);
        }
    }
    let mut state = inode.state.lock();
    state.size = target.len() as u64;
    state.raw.set_size(target.len() as u64, &volume.geometry)?;
    Ok(())
}
