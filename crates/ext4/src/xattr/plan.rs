//! Decides the place of an attribute, on copies of both sets.

use sapwood_ext4_format::{Incompat, XATTR_VALUE_MAX, XattrSet, XattrValue, acl_to_disk};
use sapwood_vfs as vfs;

use super::sets::{block_of, body_set, is_acl, parse_block, split};
use crate::inode::Inode;
use crate::volume::Volume;
use crate::{Error, Result};

/// The new contents of both places. The value of an attribute that goes to an inode of its own is
/// in `outside`; its entry is there already, and lacks the inode's number.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) body: XattrSet,
    pub(super) block: XattrSet,
    pub(super) body_changed: bool,
    pub(super) block_changed: bool,
    /// It is the rest of inline data, which the format keeps as an attribute.
    pub(super) inline_data: bool,
    /// A value for an inode of its own.
    pub(super) outside: Option<Outside>,
    /// Inode that held the value until now.
    pub(super) released: Option<u32>,
}

/// A value for an inode of its own.
#[derive(Debug)]
pub(super) struct Outside {
    pub(super) index: u8,
    pub(super) name: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) in_body: bool,
}

/// Plans to set an attribute, or to remove it (`None`). The caller holds `io` exclusively, so that
/// the plan stays good.
///
/// # Errors
/// `NoSpace` if it fits nowhere, `AttributeTooLarge`, `NotSupported` for an unknown name, damage.
pub(super) fn plan(
    volume: &Volume,
    inode: &Inode,
    name: &[u8],
    value: Option<&[u8]>,
) -> Result<Plan> {
    let (index, rest) = split(name)?;
    let mut body = body_set(volume, inode)?;
    let (users, mut block) = match block_of(volume, inode)? {
        Some(buffer) => parse_block(volume, inode, &buffer)?,
        None => (0, XattrSet::default()),
    };
    let in_body = body.remove(index, rest);
    let in_block = block.remove(index, rest);
    // The value of a block that others share stays theirs.
    let own = in_block.as_ref().filter(|_| users == 1);
    let old = in_body.as_ref().or(own);
    let released = old.and_then(|xattr| match xattr.value {
        XattrValue::Inode { inode, .. } => Some(inode),
        XattrValue::Bytes(_) => None,
    });
    let mut plan = Plan {
        body_changed: in_body.is_some(),
        block_changed: in_block.is_some(),
        body,
        block,
        inline_data: index == sapwood_ext4_format::xattr_index::SYSTEM,
        outside: None,
        released,
    };
    let Some(value) = value else {
        return Ok(plan);
    };
    if value.len() as u64 > u64::from(XATTR_VALUE_MAX) {
        return Err(vfs::Error::AttributeTooLarge.into());
    }
    let stored = if is_acl(index) {
        acl_to_disk(value).map_err(|_| vfs::Error::Invalid)?
    } else {
        value.to_vec()
    };
    let inline_data = plan.inline_data;
    let room = Room::of(volume, inode);
    let placed = plan.place(
        index,
        rest,
        XattrValue::Bytes(stored.clone()),
        &room,
        inline_data,
    );
    if placed.is_some() {
        return Ok(plan);
    }
    let features = volume.geometry.features();
    if inline_data || !features.has_incompat(Incompat::EA_INODE) {
        return Err(Error::NoSpace);
    }
    let empty = XattrValue::Inode {
        inode: 0,
        size: 0,
        hash: 0,
    };
    let in_body = plan
        .place(index, rest, empty, &room, false)
        .ok_or(Error::NoSpace)?;
    plan.outside = Some(Outside {
        index,
        name: rest.to_vec(),
        value: stored,
        in_body,
    });
    Ok(plan)
}

/// Bytes that the two places have.
struct Room {
    body: usize,
    block: usize,
}

impl Room {
    fn of(volume: &Volume, inode: &Inode) -> Self {
        Self {
            body: inode.state.lock().raw.attr_area().len(),
            block: volume.geometry.block_size() as usize,
        }
    }
}

impl Plan {
    /// Puts an attribute where it fits; true: into the inode. Attributes in a block stay there
    /// while they fit, so that the inode's room stays for small ones.
    fn place(
        &mut self,
        index: u8,
        name: &[u8],
        value: XattrValue,
        room: &Room,
        only_body: bool,
    ) -> Option<bool> {
        let mut body = self.body.clone();
        body.set(index, name, value.clone());
        if body.ibody_size_needed() <= room.body {
            self.body = body;
            self.body_changed = true;
            return Some(true);
        }
        let mut block = self.block.clone();
        block.set(index, name, value);
        if !only_body && block.block_size_needed() <= room.block {
            self.block = block;
            self.block_changed = true;
            return Some(false);
        }
        None
    }
}
