//! Deciding where attributes go, on copies of both sets.

use sapwood_ext4_format::{
    Incompat, Inode as RawInode, XATTR_VALUE_MAX, XattrSet, XattrValue, acl_to_disk, xattr_index,
};
use sapwood_vfs as vfs;

use super::inode_value::credits as value_credits;
use super::set_credits;
use super::sets::{block_of, body_set, is_acl, parse_block, split};
use crate::inode::Inode;
use crate::volume::Volume;
use crate::{Error, Result};

/// The new content of both places. The value of an attribute that goes to an inode of its own is in
/// `outside`; its entry is there already, and lacks the inode's number.
#[derive(Debug)]
pub(crate) struct XattrLayout {
    pub(super) body: XattrSet,
    pub(super) block: XattrSet,
    pub(super) body_changed: bool,
    pub(super) block_changed: bool,
    /// It is the rest of inline data, which the format keeps as an attribute.
    pub(super) inline_data: bool,
    /// Values for inodes of their own.
    pub(super) outside: Vec<Outside>,
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
/// the layout stays good.
///
/// # Errors
/// `NoSpace` if it fits nowhere, `AttributeTooLarge`, `NotSupported` for an unknown name; the image
/// is damaged.
pub(super) fn plan(
    volume: &Volume,
    inode: &Inode,
    name: &[u8],
    value: Option<&[u8]>,
) -> Result<XattrLayout> {
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
    let mut layout = XattrLayout {
        body_changed: in_body.is_some(),
        block_changed: in_block.is_some(),
        body,
        block,
        inline_data: index == xattr_index::SYSTEM,
        outside: Vec::new(),
        released,
    };
    if let Some(value) = value {
        let room = Room::of(volume, &inode.state.lock().raw);
        layout.put(volume, (index, rest), value, &room)?;
    }
    Ok(layout)
}

/// Lays out the attributes that a new inode begins with, before it exists. A directory that begins
/// inline has one more, which is in `body`.
///
/// # Errors
/// `NoSpace` if they do not fit, `AttributeTooLarge`, `NotSupported` for an unknown name.
pub(crate) fn plan_new(
    volume: &Volume,
    body: XattrSet,
    attributes: &[(&[u8], Vec<u8>)],
) -> Result<XattrLayout> {
    let mut layout = XattrLayout {
        body,
        block: XattrSet::default(),
        body_changed: false,
        block_changed: false,
        inline_data: false,
        outside: Vec::new(),
        released: None,
    };
    let room = Room::of(volume, &RawInode::new(&volume.geometry));
    for (name, value) in attributes {
        layout.put(volume, split(name)?, value, &room)?;
    }
    Ok(layout)
}

/// Bytes that the two places have.
struct Room {
    body: usize,
    block: usize,
}

impl Room {
    fn of(volume: &Volume, inode: &RawInode) -> Self {
        Self {
            body: inode.attr_area().len(),
            block: volume.geometry.block_size() as usize,
        }
    }
}

impl XattrLayout {
    /// Blocks that it may need.
    pub(crate) fn blocks(&self, volume: &Volume) -> u64 {
        let of_value = |value: &Outside| (value.value.len() as u64).div_ceil(volume.block_size());
        let outside = self.outside.iter().map(|value| of_value(value) + 1);
        u64::from(self.block_changed) + outside.sum::<u64>()
    }

    /// Credits to [apply](super::apply) it to a new inode.
    pub(crate) fn credits(&self, volume: &Volume) -> u32 {
        let of_value = |value: &Outside| value_credits(volume, value.value.len());
        let outside = self.outside.iter().map(of_value);
        set_credits(volume) + outside.sum::<u32>()
    }

    /// Puts an attribute, which neither set has, into the first place that holds it.
    fn put(
        &mut self,
        volume: &Volume,
        (index, name): (u8, &[u8]),
        value: &[u8],
        room: &Room,
    ) -> Result<()> {
        if value.len() as u64 > u64::from(XATTR_VALUE_MAX) {
            return Err(vfs::Error::AttributeTooLarge.into());
        }
        let stored = if is_acl(index) {
            acl_to_disk(value).map_err(|_| vfs::Error::Invalid)?
        } else {
            value.to_vec()
        };
        let bytes = XattrValue::Bytes(stored.clone());
        if self.place(index, name, bytes, room).is_some() {
            return Ok(());
        }
        let features = volume.geometry.features();
        if self.inline_data || !features.has_incompat(Incompat::EA_INODE) {
            return Err(Error::NoSpace);
        }
        let empty = XattrValue::Inode {
            inode: 0,
            size: 0,
            hash: 0,
        };
        let in_body = self.place(index, name, empty, room).ok_or(Error::NoSpace)?;
        self.outside.push(Outside {
            index,
            name: name.to_vec(),
            value: stored,
            in_body,
        });
        Ok(())
    }

    /// Puts an attribute where it fits; true: into the inode, where inline data has to be. A value
    /// in a block stays there while it fits, which keeps the room in the inode for small values.
    fn place(&mut self, index: u8, name: &[u8], value: XattrValue, room: &Room) -> Option<bool> {
        let mut body = self.body.clone();
        body.set(index, name, value.clone());
        if body.ibody_size_needed() <= room.body {
            self.body = body;
            self.body_changed = true;
            return Some(true);
        }
        let mut block = self.block.clone();
        block.set(index, name, value);
        if !self.inline_data && block.block_size_needed() <= room.block {
            self.block = block;
            self.block_changed = true;
            return Some(false);
        }
        None
    }
}
