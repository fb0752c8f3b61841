//! Setting and removing attributes.

use std::sync::Arc;

use sapwood_ext4_format::{XattrSet, XattrValue};
use sapwood_jbd2::Handle;
use sapwood_vfs::front::AttributeChange;
use sapwood_vfs::{self as vfs, SetXattrMode, Timestamp};

use super::plan::{Plan, plan};
use super::{credits, damaged, get, inode_value, shared};
use crate::Result;
use crate::commit_reason::Reason;
use crate::inode::Inode;
use crate::volume::Volume;

/// Sets or removes (`None`) an attribute within a handle; no rules are applied. The caller holds
/// `io` exclusively (or the inode is new), stores the inode, and deletes unused values when the
/// handle has ended.
///
/// # Errors
/// `NoSpace`, `AttributeTooLarge` before anything changed; damage, the journal.
pub(crate) fn set_in(
    volume: &Volume,
    h: &Handle,
    inode: &Inode,
    name: &[u8],
    value: Option<&[u8]>,
) -> Result<()> {
    let plan = plan(volume, inode, name, value)?;
    apply(volume, h, inode, plan)
}

fn apply(volume: &Volume, h: &Handle, inode: &Inode, mut plan: Plan) -> Result<()> {
    volume.fast_commits.whole(h, Reason::Xattrs);
    if !plan.inline_data {
        volume.set_on_demand(h, &volume.on_demand.ext_attr)?;
    }
    if let Some(outside) = &plan.outside {
        let value = inode_value::write(volume, h, inode, &outside.name, &outside.value)?;
        let set = match outside.in_body {
            true => &mut plan.body,
            false => &mut plan.block,
        };
        set.set(outside.index, &outside.name, value);
    }
    if plan.body_changed {
        let mut state = inode.state.lock();
        plan.body
            .write_ibody(state.raw.attr_area_mut())
            .map_err(|reason| damaged(inode, reason))?;
    }
    if plan.block_changed {
        shared::replace(volume, h, inode, &plan.block)?;
    }
    match plan.released {
        Some(ino) => inode_value::release(volume, h, inode, ino),
        None => Ok(()),
    }
}

/// One change of one attribute, with the permission bits that go with it. The caller holds `io`
/// exclusively.
///
/// # Errors
/// See [`vfs::front::Engine::change_attribute`]. The caller deletes unused values afterwards.
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
    let plan = plan(volume, inode, name, value)?;
    let len = value.map_or(0, <[u8]>::len);
    let blocks = match plan.outside.is_some() {
        true => (len as u64).div_ceil(volume.block_size()) + 1,
        false => u64::from(plan.block_changed && value.is_some()),
    };
    let _reserved = volume.space.reserve(blocks, true)?;
    let h = volume.start_tracked(1 + credits(volume, inode, len))?;
    volume.abort((|| {
        apply(volume, &h, inode, plan)?;
        {
            let mut state = inode.state.lock();
            if let Some(perm) = perm {
                state.set_perm(perm);
            }
            state.changed(Timestamp::now());
        }
        inode.store(volume, &h)
    })())?;
    Ok(())
}

/// Frees all attributes of an inode that is being deleted; restarts the handle as needed. The
/// caller stores the inode, and deletes unused values when the handle has ended.
///
/// # Errors
/// Damage, the journal.
pub(crate) fn drop_all(volume: &Volume, h: &mut Handle, inode: &Inode) -> Result<()> {
    for ino in own_values(volume, inode)? {
        if !h.ensure(super::DROP_CREDITS) {
            h.restart(super::DROP_CREDITS)?;
        }
        volume.fast_commits.whole(h, Reason::Xattrs);
        inode_value::release(volume, h, inode, ino)?;
    }
    {
        let mut state = inode.state.lock();
        state.raw.attr_area_mut().fill(0);
        if state.raw.file_acl() != 0 {
            volume.fast_commits.whole(h, Reason::Xattrs);
        }
    }
    shared::replace(volume, h, inode, &XattrSet::default())
}

/// Inodes of values that go with this inode: those of a block that others share stay.
fn own_values(volume: &Volume, inode: &Inode) -> Result<Vec<u32>> {
    let mut entries = super::body_set(volume, inode)?.entries;
    if let Some(buffer) = super::block_of(volume, inode)? {
        let (users, set) = super::parse_block(volume, inode, &buffer)?;
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
