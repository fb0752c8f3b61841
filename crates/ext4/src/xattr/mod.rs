//! Extended attributes: in the inode, in a block that inodes share, in inodes of their own.
//!
//! # How it works
//! An inode has up to two sets: one after its extra fields, one in a block. A change is *planned*
//! on copies of both: the attribute stays in its place if it fits there, else it goes into the
//! inode, else into the block, else (`ea_inode`) its value goes to an inode of its own. An
//! attribute that does not fit is refused before the first change. Then the plan is *applied* in a
//! handle.
//!
//! A block that several inodes share is never changed: an inode that changes its set gets another
//! block. An inode whose set equals a recently written block shares that block ([`shared`]). An
//! inode with a value counts the attributes that refer to it. When the last one is removed it
//! becomes an orphan, to be deleted outside of the handle
//! ([`reap_values`](crate::namespace::reap::reap_values)).
//!
//! Trouble cases: a value that no place holds (`what_fits_nowhere_is_refused`), a shared block that
//! one of its inodes changes (`a_shared_block_is_left_alone`), a value that outgrows its place
//! (`values_move_between_places`).

mod inode_value;
mod plan;
mod sets;
mod shared;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use sapwood_ext4_format::{
    Geometry, Incompat, XattrSet, XattrValue, acl_from_disk, xattr_block_seal, xattr_full_name,
    xattr_index,
};
use sapwood_jbd2::Handle;
use sapwood_vfs::front::AttributeChange;
use sapwood_vfs::{self as vfs, SetXattrMode};

use crate::Result;
use crate::commit_reason::CommitReason;
use crate::inode::Inode;
use crate::volume::Volume;
use plan::plan;
pub(crate) use plan::{XattrLayout, plan_new};
use sets::{block_of, block_set, body_set, damaged, is_acl, parse_block, split};

/// Credits with which [`drop_all`] is begun: the block, its bitmap and descriptor; inodes of
/// values.
pub(crate) const DROP_CREDITS: u32 = 16;

/// Value of an attribute by its full name. The caller holds `io` shared.
///
/// # Errors
/// The attributes are damaged; errors of the device.
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

/// Full names of all visible attributes. The caller holds `io` shared.
///
/// # Errors
/// The attributes are damaged; errors of the device.
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

/// Whether the inode may have attributes, judged by its object alone: a quick look before a slow
/// one.
pub(crate) fn may_have(inode: &Inode) -> bool {
    let state = inode.state.lock();
    let magic = sapwood_ext4_format::XATTR_MAGIC.to_le_bytes();
    state.raw.file_acl() != 0 || state.raw.attr_area().starts_with(&magic)
}

/// Credits that [`set_in`] needs for a value of `len` bytes.
pub(crate) fn credits(volume: &Volume, len: usize) -> u32 {
    let outside = volume.geometry.features().has_incompat(Incompat::EA_INODE);
    let of_value = outside.then(|| inode_value::credits(volume, len));
    set_credits(volume) + of_value.unwrap_or(0)
}

/// Credits to change both sets: an old and a new block with their bitmaps and descriptors.
fn set_credits(volume: &Volume) -> u32 {
    const BLOCKS: u32 = 6;
    BLOCKS + volume.on_demand.ext_attr_credits()
}

/// Puts the checksum into a block of attributes.
pub(crate) fn seal_block(
    geometry: &Geometry,
    block: u64,
    content: &mut [u8],
) -> Result<(), String> {
    xattr_block_seal(content, geometry.csum_seed(), block).map_err(|reason| reason.to_string())
}

/// Sets or removes (`None`) an attribute within a handle; no rules are applied. The caller holds
/// `io` exclusively (or the inode is new), stores the inode, and deletes unused values when the
/// handle has ended.
///
/// # Errors
/// `NoSpace`, `AttributeTooLarge` before anything changed; the image is damaged; errors of the
/// journal.
pub(crate) fn set_in(
    volume: &Volume,
    h: &Handle,
    inode: &Inode,
    name: &[u8],
    value: Option<&[u8]>,
) -> Result<()> {
    let layout = plan(volume, inode, name, value)?;
    apply(volume, h, inode, layout)
}

/// Applies a planned change. The caller stores the inode.
///
/// # Errors
/// No space for a block; the image is damaged; errors of the journal.
pub(crate) fn apply(
    volume: &Volume,
    h: &Handle,
    inode: &Inode,
    mut layout: XattrLayout,
) -> Result<()> {
    volume.fast_commits.whole(h, CommitReason::Xattrs);
    if !layout.inline_data {
        volume.set_on_demand(h, &volume.on_demand.ext_attr)?;
    }
    for outside in &layout.outside {
        let value = inode_value::write(volume, h, inode, &outside.name, &outside.value)?;
        let set = if outside.in_body {
            &mut layout.body
        } else {
            &mut layout.block
        };
        set.set(outside.index, &outside.name, value);
    }
    if layout.body_changed {
        let mut state = inode.state.lock();
        layout
            .body
            .write_ibody(state.raw.attr_area_mut())
            .map_err(|reason| damaged(inode, reason))?;
    }
    if layout.block_changed {
        shared::replace(volume, h, inode, &layout.block)?;
    }
    match layout.released {
        Some(ino) => inode_value::release(volume, h, inode, ino),
        None => Ok(()),
    }
}

/// One change of one attribute, with the permission bits that go with it. The caller holds `io`
/// exclusively, and deletes unused values afterwards.
///
/// # Errors
/// `Exists` or `NoAttribute` if the mode forbids the change; the errors of [`plan()`]; the image is
/// damaged; errors of the journal.
pub(crate) fn change(
    volume: &Volume,
    inode: &Arc<Inode>,
    change: AttributeChange<'_>,
) -> Result<()> {
    let AttributeChange {
        name,
        value,
        mode,
        perm,
        ..
    } = change;
    let found = match mode {
        SetXattrMode::Any => false,
        _ => get(volume, inode, name)?.is_some(),
    };
    match (mode, found) {
        (SetXattrMode::Create, true) => return Err(vfs::Error::Exists.into()),
        (SetXattrMode::Replace, false) => return Err(vfs::Error::NoAttribute.into()),
        _ => {}
    }
    let layout = plan(volume, inode, name, value)?;
    let blocks = value.map_or(0, |_| layout.blocks(volume));
    let _reserved = volume.space.reserve(blocks, true)?;
    let h = volume.start_tracked(1 + credits(volume, value.map_or(0, <[u8]>::len)))?;
    volume.abort((|| {
        apply(volume, &h, inode, layout)?;
        {
            let mut state = inode.state.lock();
            if let Some(perm) = perm {
                state.set_perm(perm);
            }
            state.changed(volume.now());
        }
        inode.store(volume, &h)
    })())?;
    Ok(())
}

/// Frees all attributes of an inode that is being deleted; restarts the handle as needed. The
/// caller stores the inode, and deletes unused values when the handle has ended.
///
/// # Errors
/// The image is damaged; errors of the journal.
pub(crate) fn drop_all(volume: &Volume, h: &mut Handle, inode: &Inode) -> Result<()> {
    for ino in own_values(volume, inode)? {
        if !h.ensure(DROP_CREDITS) {
            h.restart(DROP_CREDITS)?;
        }
        volume.fast_commits.whole(h, CommitReason::Xattrs);
        inode_value::release(volume, h, inode, ino)?;
    }
    {
        let mut state = inode.state.lock();
        state.raw.attr_area_mut().fill(0);
        if state.raw.file_acl() != 0 {
            volume.fast_commits.whole(h, CommitReason::Xattrs);
        }
    }
    shared::replace(volume, h, inode, &XattrSet::default())
}

/// Inodes of values that are deleted with this inode: the values of a block that others share stay.
fn own_values(volume: &Volume, inode: &Inode) -> Result<Vec<u32>> {
    let mut entries = body_set(volume, inode)?.entries;
    if let Some(buffer) = block_of(volume, inode)? {
        let (users, set) = parse_block(volume, inode, &buffer)?;
        if users <= 1 {
            entries.extend(set.entries);
        }
    }
    let values = entries.iter().filter_map(|xattr| match xattr.value {
        XattrValue::Inode { inode, .. } => Some(inode),
        XattrValue::Bytes(_) => None,
    });
    Ok(values.collect())
}
