//! The quota tree in memory: groups with their numbers and limits, and their hierarchy.
//!
//! A group's id has the level in its upper 16 bits. Groups of level 0 have the ids of subvolumes.
//! A relation makes a group a member of one of a higher level, and is stored in both directions.
//!
//! Facts: btrfs documentation, "Quota groups"; the items were compared with images that the kernel
//! wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sapwood_btrfs_format::{Key, QgroupInfo, QgroupLimit, QgroupStatus, kind, objectid};

use crate::error::bad_item;
use crate::tree::{Root, TreeRead};
use crate::{Error, Result};

/// The key of the status item.
pub(super) const STATUS: Key = Key::new(0, kind::QGROUP_STATUS, 0);
/// First bit of the level in a group's id.
pub(super) const LEVEL_SHIFT: u32 = 48;

/// Flags of the status item.
pub(super) mod flag {
    /// Quotas are on.
    pub(crate) const ON: u64 = 1;
    /// A rescan has not ended.
    pub(crate) const RESCAN: u64 = 2;
    /// The numbers are wrong.
    pub(crate) const INCONSISTENT: u64 = 4;
    /// Simple quotas.
    pub(crate) const SIMPLE: u64 = 8;
}

/// Flags of a limit item.
pub(super) mod limit_flag {
    /// Referenced bytes are limited.
    pub(crate) const REFERENCED: u64 = 1;
    /// Exclusive bytes are limited.
    pub(crate) const EXCLUSIVE: u64 = 2;
}

/// Level of a group.
pub(super) fn level(group: u64) -> u64 {
    group >> LEVEL_SHIFT
}

/// A group.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    /// Bytes that its subvolumes reach.
    pub(super) referenced: u64,
    /// Bytes that only its subvolumes reach.
    pub(super) exclusive: u64,
    /// Limits.
    pub(super) limit: QgroupLimit,
    /// Bytes that are reserved, or were allocated since the last commit.
    pub(super) ahead: u64,
}

/// Members and parents of groups that have any.
#[derive(Clone, Debug, Default)]
pub(super) struct Hierarchy {
    parents: BTreeMap<u64, Vec<u64>>,
    members: BTreeMap<u64, Vec<u64>>,
}

impl Hierarchy {
    /// Adds a member to a group of a higher level. False if the levels are wrong.
    pub(super) fn add(&mut self, member: u64, parent: u64) -> bool {
        if level(member) >= level(parent) {
            return false;
        }
        let parents = self.parents.entry(member).or_default();
        if !parents.contains(&parent) {
            parents.push(parent);
            self.members.entry(parent).or_default().push(member);
        }
        true
    }

    /// Removes a member from a group. False if it was none.
    pub(super) fn remove(&mut self, member: u64, parent: u64) -> bool {
        let parents = self.parents.entry(member).or_default();
        let before = parents.len();
        parents.retain(|other| *other != parent);
        let members = self.members.entry(parent).or_default();
        members.retain(|other| *other != member);
        self.parents.get(&member).map_or(0, Vec::len) < before
    }

    /// Direct parents of a group.
    pub(super) fn parents(&self, group: u64) -> &[u64] {
        self.parents.get(&group).map_or(&[], Vec::as_slice)
    }

    /// Direct members of a group.
    pub(super) fn members(&self, group: u64) -> &[u64] {
        self.members.get(&group).map_or(&[], Vec::as_slice)
    }

    /// A group and all groups that it is in, directly or not. Levels rise, so the walk ends.
    pub(super) fn with_ancestors(&self, group: u64) -> BTreeSet<u64> {
        closure(group, |group| self.parents(group))
    }

    /// The subvolumes in a group; of level 0, itself.
    pub(super) fn subvolumes(&self, group: u64) -> BTreeSet<u64> {
        let mut all = closure(group, |group| self.members(group));
        all.retain(|group| level(*group) == 0);
        all
    }
}

fn closure<'h>(group: u64, next: impl Fn(u64) -> &'h [u64]) -> BTreeSet<u64> {
    let (mut all, mut left) = (BTreeSet::from([group]), vec![group]);
    while let Some(group) = left.pop() {
        for other in next(group) {
            if all.insert(*other) {
                left.push(*other);
            }
        }
    }
    all
}

/// The quota tree in memory.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// The tree.
    pub(super) root: Arc<Root>,
    /// The status item. Its bytes may be followed by others, which stay.
    pub(super) status: QgroupStatus,
    /// With simple quotas, extents from this transaction on are counted.
    pub(super) simple_since: Option<u64>,
    /// All groups by id.
    pub(super) groups: BTreeMap<u64, Group>,
    /// Relations of groups.
    pub(super) hierarchy: Arc<Hierarchy>,
}

impl Table {
    /// Reads a quota tree. `None` if it has no status, or quotas are off.
    ///
    /// # Errors
    /// [`Error::Quota`] for an item that contradicts others, [`Error::BadItem`] for a malformed
    /// one; unreadable blocks.
    pub(super) fn read(env: &(impl TreeRead + ?Sized), root: Arc<Root>) -> Result<Option<Self>> {
        let bad = |key| move |source| bad_item(objectid::QUOTA_TREE, key, source);
        let (mut status, mut simple_since) = (None, None);
        let mut groups: BTreeMap<u64, Group> = BTreeMap::new();
        let mut limits = Vec::new();
        let mut relations = Vec::new();
        let mut cursor = root.seek(env, &Key::MIN)?;
        while let Some((key, data)) = cursor.item() {
            match key.kind {
                kind::QGROUP_STATUS => {
                    let read = QgroupStatus::read(data).map_err(bad(key))?;
                    if read.flags.get() & flag::SIMPLE != 0 {
                        simple_since = Some(enabled(data).ok_or(Error::Quota {
                            key,
                            reason: "simple quotas without the transaction that enabled them",
                        })?);
                    }
                    status = Some(read);
                }
                kind::QGROUP_INFO => {
                    let info = QgroupInfo::read(data).map_err(bad(key))?;
                    let group = groups.entry(key.offset).or_default();
                    group.referenced = info.referenced.get();
                    group.exclusive = info.exclusive.get();
                }
                kind::QGROUP_LIMIT => {
                    limits.push((key, QgroupLimit::read(data).map_err(bad(key))?));
                }
                kind::QGROUP_RELATION => relations.push(key),
                _ => {}
            }
            cursor.next()?;
        }
        drop(cursor);
        let Some(status) = status.filter(|status| status.flags.get() & flag::ON != 0) else {
            return Ok(None);
        };
        for (key, limit) in limits {
            // Without its numbers a group does not exist.
            if let Some(group) = groups.get_mut(&key.offset) {
                group.limit = limit;
            }
        }
        let hierarchy = Arc::new(hierarchy(&groups, &relations)?);
        Ok(Some(Self {
            root,
            status,
            simple_since,
            groups,
            hierarchy,
        }))
    }

    /// The groups of higher levels, with the sums of their subvolumes, which the numbers are with
    /// simple quotas.
    pub(super) fn sums(&self) -> Vec<(u64, u64, u64)> {
        let higher = self.groups.keys().filter(|id| level(**id) > 0);
        higher
            .map(|id| {
                let subvolumes = self.hierarchy.subvolumes(*id);
                let groups = subvolumes.iter().filter_map(|id| self.groups.get(id));
                groups.fold((*id, 0, 0), |(id, referenced, exclusive), group| {
                    let referenced = group.referenced.saturating_add(referenced);
                    (id, referenced, group.exclusive.saturating_add(exclusive))
                })
            })
            .collect()
    }

    /// A group, to change it.
    ///
    /// # Errors
    /// [`Error::NoSuchGroup`].
    pub(super) fn group_mut(&mut self, id: u64) -> Result<&mut Group> {
        self.groups.get_mut(&id).ok_or_else(|| no_group(id))
    }
}

/// The transaction that enabled simple quotas, after the known part of a status item.
fn enabled(status: &[u8]) -> Option<u64> {
    let bytes = status.get(QgroupStatus::SIZE..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes))
}

fn hierarchy(groups: &BTreeMap<u64, Group>, relations: &[Key]) -> Result<Hierarchy> {
    let mut hierarchy = Hierarchy::default();
    for key in relations {
        let bad = |reason| Error::Quota { key: *key, reason };
        let (a, b) = (key.objectid, key.offset);
        if !groups.contains_key(&a) || !groups.contains_key(&b) {
            return Err(bad("a group of the relation does not exist"));
        }
        if level(a) == level(b) {
            return Err(bad("the groups of the relation have the same level"));
        }
        hierarchy.add(a.min(b), a.max(b));
    }
    Ok(hierarchy)
}

/// The error for a group that does not exist.
pub(super) fn no_group(id: u64) -> Error {
    Error::NoSuchGroup {
        level: level(id),
        id: id & ((1 << LEVEL_SHIFT) - 1),
    }
}
