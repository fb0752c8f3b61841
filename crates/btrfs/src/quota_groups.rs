//! Turns quotas on and off, shows and changes quota groups and their limits, and counts their
//! numbers anew, of a file system that is mounted or not.
//!
//! # How it works
//! Each change is part of a commit of its own, and runs when no other handle is open. A change of
//! relations counts the numbers anew, as [`QuotaChange::Rescan`] does. Other operations of a mount
//! wait for that. So the numbers are never wrong meanwhile, unlike during a rescan of the kernel.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use parking_lot::Mutex;
use sapwood_block::Device;
use sapwood_btrfs_format::{Incompat, InodeItem, Key, objectid};
use sapwood_vfs::{FileSystem, Timestamp};

use crate::quota::{Outcome, Trees};
use crate::relocate;
use crate::transaction::{Handle, Store};
use crate::tree::{Root, create_root, drop_root};
use crate::{Btrfs, Error, Result};

/// First bit of the level in a stored id.
const LEVEL_SHIFT: u32 = 48;

/// Id of a quota group, written `LEVEL/ID`. Level 0 has the ids of subvolumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    /// Level.
    pub level: u16,
    /// Id within the level, of 48 bits.
    pub id: u64,
}

impl GroupId {
    fn of(stored: u64) -> Self {
        Self {
            level: (stored >> LEVEL_SHIFT) as u16,
            id: stored & ((1 << LEVEL_SHIFT) - 1),
        }
    }

    fn stored(self) -> u64 {
        u64::from(self.level) << LEVEL_SHIFT | self.id
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.level, self.id)
    }
}

/// Text that is no id of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a quota group: write LEVEL/ID, for example 1/100, or the id of a subvolume")]
pub struct BadGroupId;

impl FromStr for GroupId {
    type Err = BadGroupId;

    fn from_str(text: &str) -> std::result::Result<Self, BadGroupId> {
        let (level, id) = text.split_once('/').unwrap_or(("0", text));
        let level = level.parse().map_err(|_| BadGroupId)?;
        let id = id.parse().map_err(|_| BadGroupId)?;
        if id >= 1 << LEVEL_SHIFT {
            return Err(BadGroupId);
        }
        Ok(Self { level, id })
    }
}

/// A quota group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Group {
    /// Id.
    pub id: GroupId,
    /// Bytes of extents that its subvolumes reach.
    pub referenced: u64,
    /// Bytes of extents that only its subvolumes reach.
    pub exclusive: u64,
    /// Limit of `referenced`.
    pub max_referenced: Option<u64>,
    /// Limit of `exclusive`.
    pub max_exclusive: Option<u64>,
    /// Groups that it is directly a member of.
    pub parents: Vec<GroupId>,
}

/// The quotas of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quotas {
    /// The numbers are right. Otherwise they need a [`QuotaChange::Rescan`], and limits are not
    /// enforced.
    pub consistent: bool,
    /// All groups, by level and id.
    pub groups: Vec<Group>,
}

/// A change of the limits of a group. The outer `None` keeps a limit, the inner one removes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Limit of referenced bytes.
    pub referenced: Option<Option<u64>>,
    /// Limit of exclusive bytes.
    pub exclusive: Option<Option<u64>>,
}

/// A change of quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaChange {
    /// Turns quotas on, with a group for each subvolume. Counts anew if they are on.
    Enable,
    /// Turns simple quotas on, which count extents from now on, for the subvolume that they were
    /// allocated for. Linux knows them since 6.7.
    EnableSimple,
    /// Turns quotas off, and deletes all groups.
    Disable,
    /// Counts all numbers anew.
    Rescan,
    /// Makes a group.
    Create(GroupId),
    /// Deletes a group without members, whose subvolume does not exist.
    Remove(GroupId),
    /// Makes the first group a member of the second, which has a higher level.
    Assign(GroupId, GroupId),
    /// Ends the membership of the first group in the second.
    Unassign(GroupId, GroupId),
    /// Changes the limits of a group.
    Limit(GroupId, Limits),
}

/// The quotas of an open file system. `None` if they are off.
///
/// # Errors
/// [`Error::Quota`] for a quota tree that contradicts itself; unreadable blocks.
pub fn show(fs: &Btrfs) -> Result<Option<Quotas>> {
    let engine = &fs.engine;
    let found = engine.quotas.report(&engine.blocks, &engine.roots)?;
    Ok(found.map(|(consistent, groups)| Quotas {
        consistent,
        groups: groups
            .into_iter()
            .map(|group| Group {
                id: GroupId::of(group.id),
                referenced: group.bytes.0,
                exclusive: group.bytes.1,
                max_referenced: group.limits.0,
                max_exclusive: group.limits.1,
                parents: group.parents.into_iter().map(GroupId::of).collect(),
            })
            .collect(),
    }))
}

/// The quotas of the file system on `devices`, which stays as it is. `None` if they are off.
///
/// # Errors
/// The errors of a mount and of [`show`].
pub fn show_on(devices: &[Arc<dyn Device>], degraded: bool) -> Result<Option<Quotas>> {
    show(&relocate::open_to_read(devices, degraded)?)
}

/// Changes the quotas of an open file system. The change is durable when this returns.
///
/// # Errors
/// [`Error::NoQuotas`], [`Error::NoSuchGroup`], [`Error::QuotaGroup`] if the change is refused;
/// `Busy` if a deleted subvolume cannot be dropped completely; no space, unreadable blocks.
pub fn change(fs: &Btrfs, change: QuotaChange) -> Result<()> {
    let store: &Arc<Store> = &fs.engine;
    let counts = matches!(
        change,
        QuotaChange::Enable
            | QuotaChange::Rescan
            | QuotaChange::Assign(..)
            | QuotaChange::Unassign(..)
    );
    // A tree that is dropped in part cannot be counted.
    if counts && !fs.finish_cleaning() {
        return Err(sapwood_vfs::Error::Busy.into());
    }
    let outcome = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&outcome);
    store.change_in_commit(move |h| {
        *slot.lock() = Some(apply(h, change)?);
        Ok(())
    })?;
    let outcome = outcome.lock().take();
    outcome.unwrap_or(Ok(()))
}

/// Changes the quotas of the file system on `devices`. Nothing else uses them meanwhile.
///
/// # Errors
/// The errors of a mount and of [`change`].
pub fn change_on(
    devices: &[Arc<dyn Device>],
    degraded: bool,
    time: Option<Timestamp>,
    wanted: QuotaChange,
) -> Result<()> {
    let fs = relocate::open(devices, time, degraded)?;
    let done = change(&fs, wanted);
    let closed = fs.unmount();
    done?;
    Ok(closed?)
}

/// Makes the change in a commit. The inner error is a refusal, before which nothing changed.
fn apply(h: &mut Handle, change: QuotaChange) -> Result<Outcome> {
    let store = Arc::clone(h.store());
    let quotas = &store.quotas;
    let trees = Trees {
        space: &store.space,
        roots: &store.roots,
        blocks: &store.blocks,
    };
    match change {
        QuotaChange::Enable => {
            if !quotas.is_on() {
                enable(h, &store, false)?;
            }
            recount(h, &store)
        }
        QuotaChange::EnableSimple if quotas.is_simple() => Ok(Ok(())),
        QuotaChange::EnableSimple if quotas.is_on() => Ok(Err(Error::FullQuotas)),
        QuotaChange::EnableSimple => {
            // What is pending belongs to the time before.
            store.space.run_delayed_refs(h, None)?;
            enable(h, &store, true)?;
            Ok(Ok(()))
        }
        QuotaChange::Disable => disable(h, &store),
        QuotaChange::Rescan => recount(h, &store),
        QuotaChange::Create(id) => quotas.create_group(h, id.stored()),
        QuotaChange::Remove(id) => quotas.destroy_group(h, trees, id.stored()),
        QuotaChange::Assign(member, parent) | QuotaChange::Unassign(member, parent) => {
            let add = matches!(change, QuotaChange::Assign(..));
            let related = quotas.relate(h, (member.stored(), parent.stored()), add)?;
            if related.is_err() {
                return Ok(related);
            }
            if quotas.is_simple() {
                return quotas.add_up(h);
            }
            recount(h, &store)
        }
        QuotaChange::Limit(id, limits) => {
            quotas.limit(h, id.stored(), (limits.referenced, limits.exclusive))
        }
    }
}

/// Ids of the subvolumes.
fn subvolumes(store: &Store) -> Result<Vec<u64>> {
    let mut ids = store.roots.ids()?;
    ids.retain(|id| objectid::is_fs_tree(*id));
    Ok(ids)
}

fn recount(h: &mut Handle, store: &Arc<Store>) -> Result<Outcome> {
    if store.quotas.is_simple() {
        return Ok(Err(Error::SimpleQuotas));
    }
    let ids = subvolumes(store)?;
    for id in &ids {
        if store.roots.get(*id)?.is_dead() {
            return Ok(Err(sapwood_vfs::Error::Busy.into()));
        }
    }
    let trees = Trees {
        space: &store.space,
        roots: &store.roots,
        blocks: &store.blocks,
    };
    store.quotas.recount(h, trees, &ids)
}

/// Makes the quota tree.
fn enable(h: &mut Handle, store: &Arc<Store>, simple: bool) -> Result<()> {
    if store.roots.get(objectid::QUOTA_TREE).is_ok() {
        // One of quotas that are off, or a damaged one.
        remove_tree(h, store)?;
    }
    let root: Arc<Root> = create_root(h, objectid::QUOTA_TREE)?;
    let item = {
        let mut item = root.item();
        item.inode = InodeItem::of_new_tree(store.nodesize);
        item.bytes_used = u64::from(store.nodesize).into();
        item.uuid = store.ambient.uuid();
        *item
    };
    store.roots.insert(Arc::clone(&root));
    let root_tree = Arc::clone(&store.roots.root_tree);
    root_tree.insert(h, &root.item_key(), item.bytes())?;
    let ids = subvolumes(store)?;
    if simple {
        store.add_incompat(Incompat::SIMPLE_QUOTA);
    }
    store.quotas.begin(h, (&root, &store.space), &ids, simple)
}

fn disable(h: &mut Handle, store: &Arc<Store>) -> Result<Outcome> {
    if let Err(Error::NoSuchRoot(_)) = store.roots.get(objectid::QUOTA_TREE) {
        return Ok(Err(Error::NoQuotas));
    }
    remove_tree(h, store)?;
    let trees = Trees {
        space: &store.space,
        roots: &store.roots,
        blocks: &store.blocks,
    };
    store.quotas.end(trees);
    Ok(Ok(()))
}

/// Deletes the quota tree.
fn remove_tree(h: &mut Handle, store: &Arc<Store>) -> Result<()> {
    let root = store.roots.get(objectid::QUOTA_TREE)?;
    root.delete_range(h, &Key::MIN, &Key::MAX)?;
    drop_root(h, &root)?;
    h.trans().dirty_roots.remove(root.id());
    let root_tree = Arc::clone(&store.roots.root_tree);
    root_tree.delete(h, &root.item_key())?;
    store.roots.forget(root.id());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_groups_are_read_as_they_are_written() {
        for text in ["0/5", "1/100", "65535/281474976710655"] {
            let id: GroupId = text.parse().unwrap();
            assert_eq!(id.to_string(), text);
            assert_eq!(GroupId::of(id.stored()), id);
        }
        assert_eq!("257".parse(), Ok(GroupId { level: 0, id: 257 }));
        for bad in [
            "",
            "1/",
            "/1",
            "a/1",
            "65536/1",
            "1/281474976710656",
            "1/2/3",
            "-1/2",
        ] {
            assert_eq!(bad.parse::<GroupId>(), Err(BadGroupId), "{bad}");
        }
    }
}
