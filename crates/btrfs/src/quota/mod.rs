//! Quota groups: their numbers are kept right by every commit, and limits are enforced.
//!
//! # How it works
//! While quotas are on and the numbers are right, a transaction records each extent whose refs it
//! changes ([`Space::trace`]). When the commit has run all delayed refs of files' trees, it finds
//! the owners of these extents as of the last commit and now ([`owners`]), and changes the groups'
//! numbers by the difference ([`account`]). The new numbers, and the status with the transaction's
//! generation, are part of the same commit. So a crash leaves the numbers of the last commit next
//! to the trees of the last commit. Without quotas nothing is recorded.
//!
//! If the numbers cannot be known at a bearable cost, the status gets the flag "inconsistent", with
//! which every implementation ignores them until they are counted anew:
//! - a deleted subvolume shares a part of its tree that is too large to walk ([`MOST_WALKED`])
//! - a snapshot leaves a group that its source is in, or the other way round ([`account`])
//! - a backref leads nowhere
//! - another program wrote to the file system and did not keep the numbers, which shows in the
//!   status's generation
//!
//! Limits ([`limits`]) count bytes that are promised to dirty data, and those allocated since the
//! last commit, with the numbers of the last commit. They are not enforced while the numbers are
//! wrong.
//!
//! # Simple quotas
//! They count an extent, once, for the tree that it was allocated for. A data extent has its owner
//! in its item; a tree block in its header. So a transaction adds up the bytes of extents that get
//! an item or lose it, and the commit adds the sums to the groups.
//! Extents from before the quotas were enabled count nothing. A group of a higher level has the sum
//! of its subvolumes.

mod account;
mod change;
mod limits;
mod owners;
mod recount;
mod table;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sapwood_btrfs_format::{
    Block, FileExtent, Key, QgroupInfo, QgroupLimit, QgroupStatus, kind, objectid,
};

use crate::error::bad_item;
use crate::lock::{Rank, RankedMutex};
use crate::space::{Extent, Space, SpaceWrite};
use crate::tree::{BlockCache, Change, Expect, Root, Roots, view};
use crate::{Error, Result};
use account::Taken;
use table::{Group, STATUS, Table, flag, level};

pub(crate) use change::Outcome;
pub(crate) use limits::{Exceeded, QuotaHold};
pub(crate) use owners::Trees;

/// Tree blocks that a transaction walks below blocks that a deleted subvolume leaves.
const MOST_WALKED: u64 = 1 << 16;
/// Extents that a transaction records at most.
const MOST_TRACED: usize = 1 << 22;
/// Recorded extents from which on a transaction is committed early.
const MANY_TRACED: usize = 1 << 16;

/// The quotas of a mounted file system.
#[derive(Debug)]
pub(crate) struct Quotas {
    state: RankedMutex<State>,
    /// Quotas are on: there is a table.
    on: AtomicBool,
    /// Tree blocks walked in this transaction.
    walked: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    table: Option<Table>,
    /// The numbers are right, and kept so.
    exact: bool,
    /// The quota tree could not be read: its status is all that is changed.
    damaged: bool,
    /// Snapshots of this transaction.
    taken: Vec<Taken>,
    /// Groups of subvolumes that this transaction dropped.
    removed: Vec<u64>,
    /// Bytes allocated since the last commit, by subvolume.
    fresh: BTreeMap<u64, u64>,
}

impl Quotas {
    /// Reads the quotas of a file system whose last commit is `generation`. A quota tree that
    /// cannot be read does not prevent changes.
    pub(crate) fn open(blocks: &BlockCache, roots: &Roots, generation: u64) -> Arc<Self> {
        let mut state = State::default();
        match read(blocks, roots) {
            Ok(table) => {
                state.exact = table.as_ref().is_some_and(|table| {
                    let status = &table.status;
                    match table.simple_since {
                        // Another program cannot write without knowledge of the feature.
                        Some(_) => status.flags.get() == flag::ON | flag::SIMPLE,
                        None => {
                            let current = status.generation.get() == generation;
                            status.flags.get() == flag::ON && current
                        }
                    }
                });
                state.table = table;
            }
            Err(error) => {
                log::warn!("{error}: quotas are not kept up to date");
                state.damaged = true;
            }
        }
        Arc::new(Self {
            on: AtomicBool::new(state.table.is_some()),
            walked: AtomicU64::new(0),
            state: RankedMutex::new(Rank::Leaf, state),
        })
    }

    /// Whether the numbers are right, and kept so.
    fn is_exact(&self) -> bool {
        self.state.lock().exact
    }

    /// Lets transactions record what the commits need.
    pub(crate) fn begin_tracing(&self, space: &Space) {
        let state = self.state.lock();
        let simple = state.table.as_ref().and_then(|table| table.simple_since);
        space.set_tracing(state.exact && simple.is_none());
        space.set_owned_since(simple);
    }

    /// Whether a transaction that recorded so many extents should end.
    pub(crate) fn is_much(&self, recorded: usize) -> bool {
        recorded >= MANY_TRACED
    }

    /// Gives up the numbers until they are counted anew; the next commit marks them.
    pub(crate) fn lose(&self, space: &Space, reason: &str) {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.exact) {
            space.set_tracing(false);
            drop(state);
            log::warn!("quota numbers are inconsistent until a rescan: {reason}");
        }
    }

    /// Makes the group of a new subvolume in a directory of subvolume `inside`. A snapshot has the
    /// limits of its source. With simple quotas, a subvolume is in the groups of the one around it.
    ///
    /// # Errors
    /// Unreadable blocks, no space.
    pub(crate) fn add_group(
        &self,
        h: &mut dyn SpaceWrite,
        (subvolume, inside): (u64, u64),
        source: Option<u64>,
    ) -> Result<()> {
        let (root, limit, parents) = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let Some(table) = &mut state.table else {
                return Ok(());
            };
            let simple = table.simple_since.is_some();
            let source = source.filter(|_| !simple);
            if let Some(source) = source {
                let id = subvolume;
                state.taken.push(Taken { source, id });
            }
            if table.groups.contains_key(&subvolume) {
                return Ok(());
            }
            let limit = source.and_then(|id| Some(table.groups.get(&id)?.limit));
            let group = Group {
                limit: limit.unwrap_or_default(),
                ..Group::default()
            };
            let limit = group.limit;
            table.groups.insert(subvolume, group);
            let hierarchy = Arc::make_mut(&mut table.hierarchy);
            let mut parents = Vec::new();
            if simple {
                parents = hierarchy.parents(inside).to_vec();
                parents.retain(|parent| hierarchy.add(subvolume, *parent));
            }
            (table.root.clone(), limit, parents)
        };
        put_info(h, &root, subvolume, (0, 0))?;
        root.put(h, &limit_key(subvolume), limit.bytes())?;
        for parent in parents {
            put_relation(h, &root, subvolume, parent)?;
        }
        Ok(())
    }

    /// Deletes the group of a dropped subvolume, at the next commit.
    pub(crate) fn remove_group(&self, subvolume: u64) {
        self.state.lock().removed.push(subvolume);
    }

    /// Records everything below a shared tree block that a deleted subvolume leaves: the refs below
    /// do not change, but the owners do.
    pub(crate) fn trace_below(
        &self,
        h: &dyn SpaceWrite,
        trees: Trees<'_>,
        (bytenr, level): (u64, u8),
    ) {
        if !trees.space.is_tracing() {
            return;
        }
        match self.walk(h, trees, (bytenr, level)) {
            Ok(true) => {}
            Ok(false) => self.lose(trees.space, "a large shared tree was deleted"),
            Err(error) => self.lose(trees.space, &error.to_string()),
        }
    }

    /// False if there is too much to record.
    fn walk(&self, h: &dyn SpaceWrite, trees: Trees<'_>, top: (u64, u8)) -> Result<bool> {
        let changes = h.changes();
        let mut left = vec![top];
        while let Some((bytenr, level)) = left.pop() {
            let walked = self.walked.fetch_add(1, Ordering::Relaxed);
            if walked >= MOST_WALKED || changes.traced.count() >= MOST_TRACED {
                return Ok(false);
            }
            trees.space.trace(h, trees.space.block(bytenr, level));
            let expect = Expect {
                level: Some(level),
                ..Expect::default()
            };
            let bytes = trees.blocks.get(bytenr, &expect)?.snapshot();
            let block = view(&bytes)?;
            for ptr in block.ptrs() {
                left.push((ptr.blockptr.get(), level.saturating_sub(1)));
            }
            for extent in data_extents(&block) {
                trees.space.trace(h, extent?);
            }
        }
        Ok(true)
    }

    /// Brings the numbers up to date. For the commit, when no further ref of a files' tree changes
    /// in its transaction.
    ///
    /// # Errors
    /// Unreadable blocks of the quota tree, no space.
    pub(crate) fn account(&self, h: &mut dyn SpaceWrite, trees: Trees<'_>) -> Result<()> {
        let (exact, simple) = {
            let mut state = self.state.lock();
            if state.damaged {
                state.damaged = false;
                drop(state);
                return mark_inconsistent(h, trees.roots);
            }
            let Some(table) = &state.table else {
                state.removed.clear();
                return Ok(());
            };
            (state.exact, table.simple_since.is_some())
        };
        self.walked.store(0, Ordering::Relaxed);
        if simple {
            self.account_simply(h, trees.space)?;
        } else if exact {
            trees.space.run_delayed_refs(h, None)?;
            let extents = h.changes().traced.take();
            match account::compare(trees, &extents) {
                Ok(moves) => self.apply(h, trees.space, &moves)?,
                Err(error) => self.lose(trees.space, &error.to_string()),
            }
        }
        let (removed, root) = {
            let mut state = self.state.lock();
            state.taken.clear();
            state.settle_fresh();
            let removed = std::mem::take(&mut state.removed);
            (
                removed,
                state.table.as_ref().map(|table| table.root.clone()),
            )
        };
        let Some(root) = root else {
            return Ok(());
        };
        for id in removed {
            // With simple quotas, extents of a dropped subvolume may live on in others.
            if !simple || self.is_empty(id) {
                self.delete_group(h, trees.space, &root, id)?;
            }
        }
        let transid = h.transid();
        let exact = self.is_exact();
        let status = change_status(h, &root, |status| {
            status.generation = transid.into();
            if !exact {
                // A rescan that continued would take the part before its position for right.
                let flags = status.flags.get() & !flag::RESCAN;
                status.flags = (flags | flag::INCONSISTENT).into();
                status.rescan = 0.into();
            }
        })?;
        if let (Some(table), Some(status)) = (&mut self.state.lock().table, status) {
            table.status = status;
        }
        Ok(())
    }

    /// Applies the differences of a transaction, and writes the numbers that changed.
    fn apply(&self, h: &mut dyn SpaceWrite, space: &Space, moves: &account::Moves) -> Result<()> {
        let applied = {
            let mut state = self.state.lock();
            let taken = std::mem::take(&mut state.taken);
            let Some(table) = &mut state.table else {
                return Ok(());
            };
            account::apply(table, moves, &taken).map(|changed| {
                let numbers = changed.iter().filter_map(|id| {
                    let group = table.groups.get(id)?;
                    Some((*id, (group.referenced, group.exclusive)))
                });
                (table.root.clone(), numbers.collect::<Vec<_>>())
            })
        };
        match applied {
            Ok((root, numbers)) => {
                for (id, numbers) in numbers {
                    put_info(h, &root, id, numbers)?;
                }
            }
            Err(reason) => self.lose(space, reason),
        }
        Ok(())
    }

    /// Adds the bytes that the transaction allocated, or freed, to the groups of their owners.
    fn account_simply(&self, h: &mut dyn SpaceWrite, space: &Space) -> Result<()> {
        space.run_delayed_refs(h, None)?;
        let owned = h.changes().owned.take();
        let mut changed = BTreeMap::new();
        let (mut lost, root) = {
            let mut state = self.state.lock();
            let Some(table) = &mut state.table else {
                return Ok(());
            };
            let mut lost = owned.unknown;
            for (owner, change) in owned.changes {
                for id in table.hierarchy.with_ancestors(owner) {
                    let Some(group) = table.groups.get_mut(&id) else {
                        continue;
                    };
                    let sum = |bytes: u64| bytes.checked_add_signed(change);
                    match (sum(group.referenced), sum(group.exclusive)) {
                        (Some(referenced), Some(exclusive)) => {
                            (group.referenced, group.exclusive) = (referenced, exclusive);
                            changed.insert(id, (referenced, exclusive));
                        }
                        _ => lost = true,
                    }
                }
            }
            (lost, table.root.clone())
        };
        lost &= self.is_exact();
        if lost {
            self.lose(space, "the bytes of simple quotas contradict the extents");
        }
        for (id, numbers) in changed {
            put_info(h, &root, id, numbers)?;
        }
        Ok(())
    }

    /// Whether a group counts nothing.
    fn is_empty(&self, id: u64) -> bool {
        let state = self.state.lock();
        let group = state.table.as_ref().and_then(|table| table.groups.get(&id));
        group.is_none_or(|group| group.referenced == 0 && group.exclusive == 0)
    }

    /// Deletes a group with its relations.
    fn delete_group(
        &self,
        h: &mut dyn SpaceWrite,
        space: &Space,
        root: &Arc<Root>,
        id: u64,
    ) -> Result<()> {
        let (related, left) = {
            let mut state = self.state.lock();
            let Some(table) = &mut state.table else {
                return Ok(());
            };
            let hierarchy = Arc::make_mut(&mut table.hierarchy);
            let parents = hierarchy.parents(id).to_vec();
            for parent in &parents {
                hierarchy.remove(id, *parent);
            }
            let group = table.groups.remove(&id);
            (parents, group.is_some_and(|group| group.referenced > 0))
        };
        if left {
            self.lose(space, "a deleted subvolume had bytes left");
        }
        for parent in related {
            delete_relation(h, root, id, parent)?;
        }
        root.delete(h, &info_key(id))?;
        root.delete(h, &limit_key(id))?;
        Ok(())
    }
}

impl State {
    /// The numbers now contain what was allocated.
    fn settle_fresh(&mut self) {
        for (subvolume, bytes) in std::mem::take(&mut self.fresh) {
            self.release(subvolume, bytes);
        }
    }

    fn release(&mut self, subvolume: u64, bytes: u64) {
        let Some(table) = &mut self.table else {
            return;
        };
        for id in table.hierarchy.with_ancestors(subvolume) {
            if let Some(group) = table.groups.get_mut(&id) {
                group.ahead = group.ahead.saturating_sub(bytes);
            }
        }
    }
}

/// The data extents that a leaf refers to.
fn data_extents<'b>(leaf: &Block<'b>) -> impl Iterator<Item = Result<Extent>> + use<'b> {
    let leaf = *leaf;
    (0..leaf.items().len()).filter_map(move |slot| {
        let (key, data) = match leaf.entry(slot) {
            Ok(entry) => entry,
            Err(source) => {
                let root = leaf.owner();
                return Some(Err(Error::Block { root, source }));
            }
        };
        if key.kind != kind::EXTENT_DATA {
            return None;
        }
        match FileExtent::parse(data) {
            Ok(FileExtent::Regular(item) | FileExtent::Prealloc(item)) if !item.is_hole() => {
                Some(Ok(Extent {
                    bytenr: item.disk_bytenr,
                    len: item.disk_num_bytes,
                    level: None,
                }))
            }
            Ok(_) => None,
            Err(source) => Some(Err(bad_item(leaf.owner(), key, source))),
        }
    })
}

fn read(blocks: &BlockCache, roots: &Roots) -> Result<Option<Table>> {
    match roots.get(objectid::QUOTA_TREE) {
        Ok(root) => Table::read(blocks, root),
        Err(Error::NoSuchRoot(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn info_key(group: u64) -> Key {
    Key::new(0, kind::QGROUP_INFO, group)
}

fn limit_key(group: u64) -> Key {
    Key::new(0, kind::QGROUP_LIMIT, group)
}

/// Writes a group's numbers: referenced and exclusive bytes.
fn put_info(
    h: &mut dyn SpaceWrite,
    root: &Arc<Root>,
    group: u64,
    (referenced, exclusive): (u64, u64),
) -> Result<()> {
    let info = QgroupInfo {
        generation: h.transid().into(),
        referenced: referenced.into(),
        referenced_compressed: referenced.into(),
        exclusive: exclusive.into(),
        exclusive_compressed: exclusive.into(),
    };
    root.put(h, &info_key(group), info.bytes())
}

fn put_relation(h: &mut dyn SpaceWrite, root: &Arc<Root>, a: u64, b: u64) -> Result<()> {
    for (from, to) in [(a, b), (b, a)] {
        root.put(h, &Key::new(from, kind::QGROUP_RELATION, to), &[])?;
    }
    Ok(())
}

fn delete_relation(h: &mut dyn SpaceWrite, root: &Arc<Root>, a: u64, b: u64) -> Result<()> {
    for (from, to) in [(a, b), (b, a)] {
        root.delete(h, &Key::new(from, kind::QGROUP_RELATION, to))?;
    }
    Ok(())
}

/// Changes the status item; bytes that follow the known ones stay. Returns the new status.
fn change_status(
    h: &mut dyn SpaceWrite,
    root: &Arc<Root>,
    change: impl Fn(&mut QgroupStatus),
) -> Result<Option<QgroupStatus>> {
    let mut new = None;
    root.modify(h, &STATUS, |old| {
        let old = old.unwrap_or_default();
        let mut status = QgroupStatus::read(old)
            .map_err(|source| bad_item(objectid::QUOTA_TREE, STATUS, source))?;
        let before = status;
        change(&mut status);
        new = Some(status);
        if status == before {
            return Ok(Change::Keep);
        }
        let mut bytes = old.to_vec();
        bytes.splice(..QgroupStatus::SIZE, status.bytes().iter().copied());
        Ok(Change::Put(bytes))
    })?;
    Ok(new)
}

/// Marks the numbers of a quota tree that cannot be read as a whole, if its status can be.
fn mark_inconsistent(h: &mut dyn SpaceWrite, roots: &Roots) -> Result<()> {
    let marked = roots.get(objectid::QUOTA_TREE).and_then(|root| {
        let item = root.get(h.blocks(), &STATUS)?;
        let status = item.and_then(|item| QgroupStatus::read(&item).ok());
        Ok(status.map(|_| root))
    });
    match marked {
        Ok(Some(root)) => {
            change_status(h, &root, |status| {
                status.flags = (status.flags.get() | flag::INCONSISTENT).into();
            })?;
        }
        Ok(None) => {}
        Err(error) => log::warn!("quota tree: {error}"),
    }
    Ok(())
}

/// Parts of a group's id: level, and id within the level.
fn parts(group: u64) -> (u64, u64) {
    (level(group), group & ((1 << table::LEVEL_SHIFT) - 1))
}

/// Limits that an item sets: referenced and exclusive bytes.
fn set_limits(limit: &QgroupLimit) -> (Option<u64>, Option<u64>) {
    let flags = limit.flags.get();
    let set = |flag: u64, most: u64| (flags & flag != 0).then_some(most);
    (
        set(table::limit_flag::REFERENCED, limit.max_referenced.get()),
        set(table::limit_flag::EXCLUSIVE, limit.max_exclusive.get()),
    )
}
