//! Making an empty subvolume.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_btrfs_format::{InodeItem, InodeRefRef, Key, RootItem, Timespec, kind, objectid};
use sapwood_vfs::{self as vfs, Timestamp, rules};

use super::choose::next_id;
use super::layer::Subvolumes;
use super::uuid_tree::{self, Which};
use crate::Result;
use crate::inode::{Inode, InodeState};
use crate::namespace::dir;
use crate::namespace::names::{self, Target};
use crate::transaction::{Handle, Store};
use crate::tree::{Root, create_root};

/// Items that making a subvolume can touch: name (two), directory, root item, root refs (two),
/// uuid, the top directory (two), its quota group (two).
pub(super) const ITEMS: u64 = 12;

/// Type and permission bits of the top directory of a new subvolume.
const TOP_MODE: u32 = 0o040_755;

/// Creates an empty subvolume named `name` in `dir`; returns its top directory.
///
/// # Errors
/// `Invalid` or `NameTooLong` for the name, `NotDirectory`, `ReadOnly`, `NotFound` if `dir` was
/// deleted, `Exists`, `Overflow`; [`Error::NoSpace`](crate::Error::NoSpace).
pub(crate) fn create(
    subvolumes: &Arc<Subvolumes>,
    dir: &Arc<Inode>,
    name: &[u8],
) -> Result<Arc<Inode>> {
    let _changes = subvolumes.changes.lock();
    let _io = dir.io.write();
    check_new_name(subvolumes, dir, name)?;
    let id = next_id(subvolumes)?;
    let index = dir::next_index(subvolumes, dir)?;
    let mut h = subvolumes.start(ITEMS)?;
    names::add_entry(&mut h, dir, name, Target::subvolume(id), index)?;
    let inside = dir.root.id();
    let made = make(&mut h, id, inside).and_then(|root| {
        names::add_root_refs(&mut h, dir, id, index, name)?;
        Ok(root)
    });
    let root = h.finish(made)?;
    subvolumes.inodes.load(subvolumes, &root, root.top_dir())
}

/// Refuses an invalid or existing name for a new subvolume. The caller holds the directory's lock.
pub(super) fn check_new_name(
    subvolumes: &Arc<Subvolumes>,
    dir: &Arc<Inode>,
    name: &[u8],
) -> Result<()> {
    rules::check_name(name)?;
    dir.require_dir()?;
    dir.require_writable()?;
    if !dir.takes_names() {
        return Err(vfs::Error::NotFound.into());
    }
    names::check_vacant(subvolumes, dir, name)?;
    Ok(rules::check_add_name(dir.vfs_flags())?)
}

/// Makes the tree, with its top directory, its root item, its uuid and its quota group.
fn make(h: &mut Handle, id: u64, inside: u64) -> Result<Arc<Root>> {
    let root = create_root(h, id)?;
    let now = h.store().now();
    let item = {
        let mut item = root.item();
        fill(h.store(), &mut item, h.transid(), now);
        *item
    };
    let top = objectid::FIRST_FREE;
    let mut state = InodeState::new(TOP_MODE, now);
    state.generation = h.transid();
    state.transid = h.transid();
    let parent = InodeRefRef {
        index: 0,
        name: b"..",
    };
    let items = [
        (
            Key::new(top, kind::INODE_ITEM, 0),
            state.to_item().bytes().to_vec(),
        ),
        (Key::new(top, kind::INODE_REF, top), parent.encode()),
    ];
    root.insert_batch(h, &items)?;
    root.highest_objectid().store(top, Ordering::Release);
    // First the object: a thread that finds the item must not load a second one.
    h.store().roots.insert(root.clone());
    let root_tree = h.store().roots.root_tree.clone();
    root_tree.insert(h, &root.item_key(), item.bytes())?;
    uuid_tree::add(h, Which::Own, &item.uuid, id)?;
    h.store().clone().quotas.add_group(h, (id, inside), None)?;
    Ok(root)
}

fn fill(store: &Store, item: &mut RootItem, transid: u64, now: Timestamp) {
    item.inode = InodeItem::of_new_tree(store.nodesize);
    item.root_dirid = objectid::FIRST_FREE.into();
    item.bytes_used = u64::from(store.nodesize).into();
    item.uuid = store.ambient.uuid();
    item.ctransid = transid.into();
    item.otransid = transid.into();
    item.ctime = Timespec::new(now.sec, now.nsec);
    item.otime = item.ctime;
}
