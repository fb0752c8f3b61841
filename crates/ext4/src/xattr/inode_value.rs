//! Values in inodes of their own (`ea_inode`).

use std::sync::Arc;

use sapwood_ext4_format::{
    EXTENT_MAX_DEPTH, Inode as RawInode, InodeFlags, XattrSigns, XattrValue, crc32c, file_mode,
    xattr_entry_hash,
};
use sapwood_jbd2::Handle;
use sapwood_vfs::FileKind;

use super::sets::damaged;
use crate::inode::Inode;
use crate::volume::Volume;
use crate::{Error, Result, inode_alloc, map, orphan};

/// Credits for a value of `len` bytes: its inode, the tree above its blocks, the orphans; each
/// block with its bitmap and descriptor.
pub(super) fn credits(volume: &Volume, len: usize) -> u32 {
    const INODE: u32 = inode_alloc::CREDITS + EXTENT_MAX_DEPTH as u32 + 2 * orphan::CREDITS + 2;
    let blocks = (len as u64).div_ceil(volume.block_size());
    INODE + 3 * u32::try_from(blocks).unwrap_or(u32::MAX / 8)
}

/// Reads a value.
///
/// # Errors
/// The inode is no such value or differs from its checksum; errors of the device.
pub(super) fn read(volume: &Volume, owner: &Inode, ino: u32, size: u32) -> Result<Vec<u8>> {
    let value = load(volume, owner, ino)?;
    let mut bytes = Vec::with_capacity(size as usize);
    let blocks = u64::from(size).div_ceil(volume.block_size());
    for block in 0..blocks {
        let buffer = map::block_of(volume, &value, block)?;
        bytes.extend_from_slice(&buffer.read());
    }
    bytes.truncate(size as usize);
    let stored = value.state.lock().raw.ea_hash();
    let sum = crc32c(volume.geometry.csum_seed(), &bytes);
    if bytes.len() != size as usize || sum != stored {
        return Err(damaged(
            owner,
            format!("value in inode {ino}: wrong checksum"),
        ));
    }
    Ok(bytes)
}

/// The inode of a value. Through the table, so that all see one count.
fn load(volume: &Volume, owner: &Inode, ino: u32) -> Result<Arc<Inode>> {
    let value = volume.inodes.get(volume, ino)?;
    let flagged = value.flags().contains(InodeFlags::EA_INODE);
    if !flagged || value.kind != FileKind::Regular {
        return Err(damaged(owner, format!("inode {ino} holds no value")));
    }
    Ok(value)
}

/// Writes a value to a new inode, and returns its reference for the entry.
///
/// # Errors
/// No space; errors of the journal.
pub(super) fn write(
    volume: &Volume,
    h: &Handle,
    owner: &Inode,
    name: &[u8],
    bytes: &[u8],
) -> Result<XattrValue> {
    let geometry = &volume.geometry;
    let ino = inode_alloc::allocate(volume, h, owner, FileKind::Regular)?;
    let sum = crc32c(geometry.csum_seed(), bytes);
    let mut raw = RawInode::new(geometry);
    raw.set_mode(file_mode::REGULAR | 0o600);
    raw.set_links(1);
    raw.set_generation(volume.ambient.random());
    raw.set_flags(InodeFlags::EA_INODE | map::new_flags(volume, FileKind::Directory));
    map::init(&mut raw, FileKind::Directory);
    raw.set_ea_refcount(1);
    raw.set_ea_hash(sum);
    let value = Inode::new(ino, FileKind::Regular, raw, geometry);
    let value = Arc::new(value);
    let step = geometry.block_size() as usize;
    for (number, piece) in bytes.chunks(step).enumerate() {
        let buffer = map::append_block(volume, h, &value, number as u64)?;
        let mut content = h.modify(&buffer)?;
        if let Some(place) = content.get_mut(..piece.len()) {
            place.copy_from_slice(piece);
        }
    }
    {
        let mut state = value.state.lock();
        state.raw.set_size(bytes.len() as u64, geometry)?;
        state.size = bytes.len() as u64;
    }
    volume.inodes.insert_new(&value)?;
    value.store(volume, h)?;
    charge(volume, owner, bytes.len() as u64, true)?;
    let hash = xattr_entry_hash(name, &sum.to_le_bytes(), XattrSigns::Unsigned);
    Ok(XattrValue::Inode {
        inode: ino,
        size: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        hash,
    })
}

/// Adds the blocks of a value of `len` bytes to the count of the inode with the attribute, or
/// subtracts them.
fn charge(volume: &Volume, owner: &Inode, len: u64, more: bool) -> Result<()> {
    let sectors = len.div_ceil(volume.block_size()) * (volume.block_size() / 512);
    let mut state = owner.state.lock();
    let now = state.raw.sectors(&volume.geometry);
    let now = if more {
        now.saturating_add(sectors)
    } else {
        now.saturating_sub(sectors)
    };
    Ok(state.raw.set_sectors(now, &volume.geometry)?)
}

/// Counts one more attribute that refers to a value.
///
/// # Errors
/// The image is damaged; errors of the journal.
pub(super) fn refer(volume: &Volume, h: &Handle, owner: &Inode, ino: u32) -> Result<()> {
    let value = load(volume, owner, ino)?;
    {
        let mut state = value.state.lock();
        let count = state.raw.ea_refcount();
        state.raw.set_ea_refcount(count.saturating_add(1));
    }
    charge(volume, owner, value.size(), true)?;
    value.store(volume, h)
}

/// Counts one attribute less that refers to a value. After the last one, the inode is an orphan.
///
/// # Errors
/// The image is damaged; errors of the journal.
pub(super) fn release(volume: &Volume, h: &Handle, owner: &Inode, ino: u32) -> Result<()> {
    let value = load(volume, owner, ino)?;
    let left = {
        let mut state = value.state.lock();
        let count = state.raw.ea_refcount();
        let left = count.checked_sub(1).ok_or_else(|| Error::BadInode {
            ino,
            reason: "a value that no attribute refers to".into(),
        })?;
        state.raw.set_ea_refcount(left);
        if left == 0 {
            state.raw.set_links(0);
        }
        left
    };
    charge(volume, owner, value.size(), false)?;
    if left == 0 {
        orphan::add(volume, h, &value)?;
        volume.xattr_blocks.unused_values.lock().push(ino);
    }
    value.store(volume, h)
}
