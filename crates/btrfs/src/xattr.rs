//! Extended attributes, ACLs and properties.
//!
//! An attribute is an entry of the packed item `XATTR_ITEM (inode, hash of its name)`. ACLs are
//! attributes too, kept equal to the mode. The property `btrfs.compression` names the algorithm for
//! new data of a file, and is inherited from the directory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_btrfs_format::{
    DirItem, DirItemRef, Key, dir_items, file_type, kind, leaf_data_size, name_hash,
};
use sapwood_vfs::front::AttributeChange;
use sapwood_vfs::rules::{self, XattrClass};
use sapwood_vfs::{self as vfs, SetXattrMode, acl};

use crate::error::bad_item;
use crate::inode::Inode;
use crate::transaction::{Handle, Store};
use crate::tree::Change;
use crate::{Compression, Result};

/// Name of the property that sets the compression of new data.
pub(crate) const COMPRESSION: &[u8] = b"btrfs.compression";

fn key_of(objectid: u64, name: &[u8]) -> Key {
    Key::new(objectid, kind::XATTR_ITEM, name_hash(name).into())
}

/// The value of an attribute, if the inode has it.
pub(crate) fn get(store: &Store, inode: &Inode, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let key = key_of(inode.objectid, name);
    let Some(item) = inode.root.get(store, &key)? else {
        return Ok(None);
    };
    let entry = inode.root.packed_entry(key, &item, name)?;
    Ok(entry.map(|entry| entry.data.to_vec()))
}

/// Names of all attributes. Expects the `io` lock.
pub(crate) fn list(store: &Store, inode: &Inode) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let mut cursor = inode
        .root
        .seek(store, &Key::new(inode.objectid, kind::XATTR_ITEM, 0))?;
    while let Some((key, item)) = cursor.item() {
        if key.objectid != inode.objectid || key.kind != kind::XATTR_ITEM {
            break;
        }
        for entry in dir_items(item) {
            let entry = entry.map_err(|reason| bad_item(inode.root.id(), key, reason))?;
            names.push(entry.name.to_vec());
        }
        cursor.next()?;
    }
    Ok(names)
}

/// Encodes an attribute for a packed item.
pub(crate) fn encode(name: &[u8], value: &[u8]) -> Vec<u8> {
    DirItemRef {
        location: Key::MIN,
        transid: 0,
        kind: file_type::XATTR,
        name,
        data: value,
    }
    .encode()
}

/// Key and item of an attribute of a new inode, which has no other with that hash.
pub(crate) fn new_item(objectid: u64, name: &[u8], value: &[u8]) -> (Key, Vec<u8>) {
    (key_of(objectid, name), encode(name, value))
}

/// Largest packed item of attributes.
fn room(store: &Store) -> usize {
    leaf_data_size(store.nodesize as usize).saturating_sub(25)
}

/// Stores `value`, or removes the attribute if it is `None`, in a started handle. Fails
/// without a change.
fn put(
    h: &mut Handle,
    inode: &Inode,
    name: &[u8],
    value: Option<&[u8]>,
    mode: SetXattrMode,
) -> Result<()> {
    let room = room(h.store());
    inode.state.lock().xattrs_version += 1;
    inode.root.modify(h, &key_of(inode.objectid, name), |old| {
        let mut rest = Vec::new();
        let mut found = false;
        for entry in dir_items(old.unwrap_or_default()).flatten() {
            if entry.name == name {
                found = true
            } else {
                rest.extend(entry.encode())
            }
        }
        match (mode, found) {
            (SetXattrMode::Create, true) => return Err(vfs::Error::Exists.into()),
            (SetXattrMode::Replace, false) => return Err(vfs::Error::NoAttribute.into()),
            _ => {}
        }
        if let Some(value) = value {
            rest.extend(encode(name, value));
        }
        match (rest.len() > room, rest.is_empty()) {
            (true, _) => Err(vfs::Error::NoSpace.into()),
            (false, true) if !found => Ok(Change::Keep),
            (false, true) => Ok(Change::Delete),
            (false, false) => Ok(Change::Put(rest)),
        }
    })
}

/// Stores or removes an attribute, checking only the room, as part of an operation.
pub(crate) fn replace(
    h: &mut Handle,
    inode: &Inode,
    name: &[u8],
    value: Option<&[u8]>,
) -> Result<()> {
    put(h, inode, name, value, SetXattrMode::Any)
}

/// Refuses a value for which the format has no room.
pub(crate) fn check_size(store: &Store, name: &[u8], value: &[u8]) -> Result<()> {
    let limit = room(store).saturating_sub(DirItem::SIZE + name.len());
    if value.len() > rules::XATTR_VALUE_MAX {
        return Err(vfs::Error::AttributeTooLarge.into());
    }
    if value.len() > limit {
        Err(vfs::Error::NoSpace.into())
    } else {
        Ok(())
    }
}

/// One change of one attribute, with the permission bits that go with it. Expects the `io` lock
/// exclusively.
pub(crate) fn change(
    store: &Arc<Store>,
    inode: &Arc<Inode>,
    change: AttributeChange<'_>,
) -> Result<()> {
    let AttributeChange {
        name,
        class,
        value,
        mode,
        perm,
    } = change;
    if value.is_some() {
        inode.lacks_capability.store(false, Ordering::Release);
    }
    let mut h = match value {
        Some(value) => {
            store.charge_quota(inode.root.id(), 1 + value.len() as u64 / 256)?;
            store.start(2)?
        }
        None => store.start_urgent(2)?,
    };
    put(&mut h, inode, name, value, mode)?;
    let now = store.now();
    inode.change(&h, |state| {
        if let Some(perm) = perm {
            state.set_perm(perm);
        }
        state.inode_changed(now);
    });
    h.end()?;
    if class == XattrClass::DefaultAcl {
        inode.dir.lock().default_acl = None;
    }
    Ok(())
}

/// Sets or, with an empty value, removes the compression property. It is ignored for an inode that
/// is neither file nor directory.
pub(crate) fn set_property(
    store: &Arc<Store>,
    inode: &Arc<Inode>,
    name: &[u8],
    value: &[u8],
    mode: SetXattrMode,
) -> Result<()> {
    if name != COMPRESSION {
        return Err(vfs::Error::Invalid.into());
    }
    let Some(flags) = rules::set_compression(inode.kind, inode.vfs_flags(), value)? else {
        return Ok(());
    };
    if flags.contains(vfs::InodeFlags::COMPRESS) {
        let known = std::str::from_utf8(value).map(str::parse::<Compression>);
        if !matches!(known, Ok(Ok(_))) {
            return Err(vfs::Error::Invalid.into());
        }
    }
    let mut h = store.start(2)?;
    let stored = (!value.is_empty()).then_some(value);
    put(&mut h, inode, name, stored, mode)?;
    let now = store.now();
    inode.change(&h, |state| {
        state.set_vfs_flags(flags);
        state.inode_changed(now);
    });
    h.end()?;
    inode.forget_property();
    Ok(())
}

/// The default ACL of a directory, from memory once it was looked up.
pub(crate) fn default_acl(store: &Store, dir: &Inode) -> Result<Option<Arc<[u8]>>> {
    if let Some(known) = &dir.dir.lock().default_acl {
        return Ok(known.clone());
    }
    let found: Option<Arc<[u8]>> = get(store, dir, acl::DEFAULT)?.map(Into::into);
    dir.dir.lock().default_acl = Some(found.clone());
    Ok(found)
}

/// Value of the compression property of a file, from memory once it was looked up.
pub(crate) fn compression(store: &Store, inode: &Inode) -> Result<Option<Arc<[u8]>>> {
    if let Some(known) = &*inode.property.lock() {
        return Ok(known.clone());
    }
    let found: Option<Arc<[u8]>> = get(store, inode, COMPRESSION)?.map(Into::into);
    *inode.property.lock() = Some(found.clone());
    Ok(found)
}
