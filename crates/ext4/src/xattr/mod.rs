//! Extended attributes: in the inode, in a block that inodes share, in inodes of their own.
//!
//! # How it works
//! An inode has up to two sets: one behind its extra fields, one in a block. A change is *planned*
//! on copies of both: the attribute goes where it was if it fits there, else into the inode, else
//! into the block, else (`ea_inode`) its value goes to an inode of its own. What does not fit is
//! refused before anything changes. Then the plan is *applied* in a handle.
//!
//! A block that several inodes share is never changed: an inode that changes its set gets another
//! block. An inode whose set equals that of a block written recently shares that block
//! ([`shared`]). An inode with a value counts the attributes that refer to it. When the last one is
//! removed it becomes an orphan, to be deleted outside of the handle
//! ([`reap_values`](crate::ops::reap::reap_values)).
//!
//! Trouble cases: a value that no place holds (`what_fits_nowhere_is_refused`), a shared block that
//! one of its inodes changes (`a_shared_block_is_left_alone`), a value that outgrows its place
//! (`values_move_between_places`).

mod change;
mod inode_value;
mod plan;
mod shared;
#[cfg(test)]
mod tests;

use sapwood_ext4_format::{
    Geometry, Incompat, XattrSet, XattrValue, acl_from_disk, xattr_block_seal, xattr_block_verify,
    xattr_full_name, xattr_index, xattr_split_name,
};
use sapwood_jbd2::Buffer;
use sapwood_vfs as vfs;
use std::sync::Arc;

pub(crate) use change::{change, drop_all, set_in};

use crate::inode::Inode;
use crate::volume::Volume;
use crate::{Error, Result};

/// Credits with which [`drop_all`] is begun: the block, its bitmap and descriptor; inodes of
/// values.
pub(crate) const DROP_CREDITS: u32 = 16;

/// Kind of a validated block of attributes, see [`Buffer::kind`].
const KIND: u8 = crate::seal::SealKind::Xattr as u8;

fn damaged(inode: &Inode, reason: impl ToString) -> Error {
    Error::BadInode {
        ino: inode.ino,
        reason: format!("attributes: {}", reason.to_string()),
    }
}

/// The set that stands in the inode.
fn body_set(volume: &Volume, inode: &Inode) -> Result<XattrSet> {
    let state = inode.state.lock();
    XattrSet::parse_ibody(state.raw.attr_area(), volume.geometry.inodes_count())
        .map_err(|reason| damaged(inode, reason))
}

/// The block of attributes of an inode, validated, if it has one.
fn block_of(volume: &Volume, inode: &Inode) -> Result<Option<Arc<Buffer>>> {
    let block = inode.state.lock().raw.file_acl();
    if block == 0 {
        return Ok(None);
    }
    let buffer = volume.block(block)?;
    if buffer.kind() != KIND {
        let content = buffer.read();
        let bad = |reason: String| Error::BadBlock {
            ino: inode.ino,
            block,
            reason,
        };
        if volume.geometry.metadata_csum() {
            xattr_block_verify(&content, volume.geometry.csum_seed(), block)
                .map_err(|reason| bad(reason.to_string()))?;
        }
        XattrSet::parse_block(&content, volume.geometry.inodes_count())
            .map_err(|reason| bad(reason.to_string()))?;
        buffer.set_kind(KIND);
    }
    Ok(Some(buffer))
}

/// The set that stands in a block.
fn parse_block(volume: &Volume, inode: &Inode, buffer: &Buffer) -> Result<(u32, XattrSet)> {
    XattrSet::parse_block(&buffer.read(), volume.geometry.inodes_count())
        .map(|(header, set)| (header.refcount.get(), set))
        .map_err(|reason| Error::BadBlock {
            ino: inode.ino,
            block: buffer.block(),
            reason: reason.to_string(),
        })
}

/// The set that stands in the inode's block; empty without one.
fn block_set(volume: &Volume, inode: &Inode) -> Result<XattrSet> {
    match block_of(volume, inode)? {
        Some(buffer) => Ok(parse_block(volume, inode, &buffer)?.1),
        None => Ok(XattrSet::default()),
    }
}

/// Index and name on disk of a full name.
fn split(name: &[u8]) -> Result<(u8, &[u8])> {
    Ok(xattr_split_name(name).ok_or(vfs::Error::NotSupported)?)
}

fn is_acl(index: u8) -> bool {
    matches!(
        index,
        xattr_index::POSIX_ACL_ACCESS | xattr_index::POSIX_ACL_DEFAULT
    )
}

/// Value of an attribute by its full name. The caller holds `io` shared.
///
/// # Errors
/// The attributes are damaged, the device.
pub(crate) fn get(volume: &Volume, inode: &Inode, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let Ok((index, rest)) = split(name) else {
        return Ok(None);
    };
    let mut found = body_set(volume, inode)?.get(index, rest).cloned();
    if found.is_none() {
        found = block_set(volume, inode)?.get(index, rest).cloned();
    }
    let value = match found.map(|xattr| xattr.value) {
        None => return Ok(None),
        Some(XattrValue::Bytes(bytes)) => bytes,
        Some(XattrValue::Inode {
            inode: ino, size, ..
        }) => inode_value::read(volume, inode, ino, size)?,
    };
    if is_acl(index) {
        return acl_from_disk(&value)
            .map(Some)
            .map_err(|reason| damaged(inode, reason));
    }
    Ok(Some(value))
}

/// Full names of all that callers may see. The caller holds `io` shared.
///
/// # Errors
/// As [`get`].
pub(crate) fn list(volume: &Volume, inode: &Inode) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for set in [body_set(volume, inode)?, block_set(volume, inode)?] {
        for xattr in set.entries {
            let hidden = matches!(
                xattr.index,
                xattr_index::SYSTEM | xattr_index::LUSTRE | xattr_index::ENCRYPTION
            );
            if !hidden {
                names.extend(xattr_full_name(xattr.index, &xattr.name));
            }
        }
    }
    Ok(names)
}

/// Whether the inode may have attributes, by what its object tells: a quick look before a slow one.
pub(crate) fn may_have(inode: &Inode) -> bool {
    let state = inode.state.lock();
    let magic = sapwood_ext4_format::XATTR_MAGIC.to_le_bytes();
    state.raw.file_acl() != 0 || state.raw.attr_area().starts_with(&magic)
}

/// Credits that [`set_in`] needs for a value of `len` bytes: an old and a new block with their
/// bitmaps and descriptors, and an inode for the value where there may be one.
pub(crate) fn credits(volume: &Volume, _inode: &Inode, len: usize) -> u32 {
    credits_of_new(volume, len)
}

/// The same for a new inode.
pub(crate) fn credits_of_new(volume: &Volume, len: usize) -> u32 {
    const BLOCKS: u32 = 6;
    let needed = BLOCKS + volume.on_demand.ext_attr_credits();
    if !volume.geometry.features().has_incompat(Incompat::EA_INODE) {
        return needed;
    }
    let blocks = (len as u64).div_ceil(volume.block_size());
    needed + inode_value::CREDITS + 3 * u32::try_from(blocks).unwrap_or(u32::MAX / 8)
}

/// Puts the checksum into a block of attributes.
pub(crate) fn seal_block(
    geometry: &Geometry,
    block: u64,
    content: &mut [u8],
) -> Result<(), String> {
    xattr_block_seal(content, geometry.csum_seed(), block).map_err(|reason| reason.to_string())
}
