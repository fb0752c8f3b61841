//! Changes of groups, limits and relations, and counting anew. All of them run in a commit, when no
//! other handle is open, so the numbers that they find stay true.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_btrfs_format::{QgroupLimit, QgroupStatus, objectid};

use super::owners::Trees;
use super::table::{Group, STATUS, Table, flag, level, limit_flag, no_group};
use super::{
    Quotas, account, delete_relation, limit_key, parts, put_info, put_relation, read, recount,
    set_limits,
};
use crate::space::{Space, SpaceWrite};
use crate::tree::{BlockCache, Root, Roots};
use crate::{Error, Result};

/// A group as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupReport {
    /// Id with the level.
    pub(crate) id: u64,
    /// Referenced and exclusive bytes.
    pub(crate) bytes: (u64, u64),
    /// Limits of both.
    pub(crate) limits: (Option<u64>, Option<u64>),
    /// Groups that it is directly in.
    pub(crate) parents: Vec<u64>,
}

/// A change that was refused before anything changed, or that was made.
pub(crate) type Outcome = std::result::Result<(), Error>;

fn refused(id: u64, reason: &'static str) -> Error {
    let (level, id) = parts(id);
    Error::QuotaGroup { level, id, reason }
}

impl Quotas {
    /// All groups, and whether their numbers are right. `None` if quotas are off.
    ///
    /// # Errors
    /// [`Error::Quota`] and other errors of a quota tree that cannot be read.
    pub(crate) fn report(
        &self,
        blocks: &BlockCache,
        roots: &Roots,
    ) -> Result<Option<(bool, Vec<GroupReport>)>> {
        let (table, exact) = {
            let state = self.state.lock();
            (state.table.clone(), state.exact)
        };
        let Some(table) = table else {
            // Either there is none, or the attempt to read it returns the error.
            read(blocks, roots)?;
            return Ok(None);
        };
        let groups = table.groups.iter().map(|(id, group)| GroupReport {
            id: *id,
            bytes: (group.referenced, group.exclusive),
            limits: set_limits(&group.limit),
            parents: table.hierarchy.parents(*id).to_vec(),
        });
        Ok(Some((exact, groups.collect())))
    }

    /// Whether there are groups.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Fills a new quota tree with a status and a group for each subvolume. `simple`: for simple
    /// quotas, which count extents from the next transaction on.
    ///
    /// # Errors
    /// Unreadable blocks, no space.
    pub(crate) fn begin(
        &self,
        h: &mut dyn SpaceWrite,
        (root, space): (&Arc<Root>, &Space),
        subvolumes: &[u64],
        simple: bool,
    ) -> Result<()> {
        let simple_since = simple.then(|| h.transid().saturating_add(1));
        let kind = simple_since.map_or(0, |_| flag::SIMPLE);
        let status = QgroupStatus {
            version: 1.into(),
            generation: h.transid().into(),
            flags: (flag::ON | kind).into(),
            rescan: 0.into(),
        };
        let mut item = status.bytes().to_vec();
        if let Some(since) = simple_since {
            item.extend_from_slice(&since.to_le_bytes());
        }
        root.put(h, &STATUS, &item)?;
        for id in subvolumes {
            put_info(h, root, *id, (0, 0))?;
            root.put(h, &limit_key(*id), QgroupLimit::default().bytes())?;
        }
        let mut state = self.state.lock();
        state.damaged = false;
        state.table = Some(Table {
            root: Arc::clone(root),
            status,
            simple_since,
            groups: subvolumes
                .iter()
                .map(|id| (*id, Group::default()))
                .collect(),
            hierarchy: Arc::default(),
        });
        state.exact = simple;
        drop(state);
        self.on.store(true, Ordering::Release);
        self.begin_tracing(space);
        Ok(())
    }

    /// Whether the quotas are simple ones.
    pub(crate) fn is_simple(&self) -> bool {
        let state = self.state.lock();
        let table = state.table.as_ref();
        table.is_some_and(|table| table.simple_since.is_some())
    }

    /// Writes the sums of the groups of higher levels, after simple quotas got other relations.
    ///
    /// # Errors
    /// Unreadable blocks, no space.
    pub(crate) fn add_up(&self, h: &mut dyn SpaceWrite) -> Result<Outcome> {
        let (root, sums) = {
            let mut state = self.state.lock();
            let Some(table) = &mut state.table else {
                return Ok(Err(Error::NoQuotas));
            };
            let sums = table.sums();
            for (id, referenced, exclusive) in &sums {
                let group = table.groups.entry(*id).or_default();
                (group.referenced, group.exclusive) = (*referenced, *exclusive);
            }
            (table.root.clone(), sums)
        };
        for (id, referenced, exclusive) in sums {
            put_info(h, &root, id, (referenced, exclusive))?;
        }
        Ok(Ok(()))
    }

    /// Forgets everything. The quota tree is gone.
    pub(crate) fn end(&self, trees: Trees<'_>) {
        trees.space.set_tracing(false);
        trees.space.set_owned_since(None);
        self.on.store(false, Ordering::Release);
        *self.state.lock() = super::State::default();
    }

    /// Counts the numbers of all groups anew, and writes them. `subvolumes`: all of them, none
    /// dropped in part.
    ///
    /// # Errors
    /// Unreadable blocks, no space.
    pub(crate) fn recount(
        &self,
        h: &mut dyn SpaceWrite,
        trees: Trees<'_>,
        subvolumes: &[u64],
    ) -> Result<Outcome> {
        trees.space.run_delayed_refs(h, None)?;
        let moves = match recount::count(trees, subvolumes) {
            Ok(Some(moves)) => moves,
            Ok(None) => return Ok(Err(refused(0, "too many snapshots share extents"))),
            Err(error) => return Ok(Err(error)),
        };
        let (root, numbers) = {
            let mut state = self.state.lock();
            let Some(table) = &mut state.table else {
                return Ok(Err(Error::NoQuotas));
            };
            for group in table.groups.values_mut() {
                (group.referenced, group.exclusive) = (0, 0);
            }
            if let Err(reason) = account::apply(table, &moves, &[]) {
                return Ok(Err(refused(0, reason)));
            }
            let groups = table.groups.iter();
            let numbers = groups.map(|(id, group)| (*id, (group.referenced, group.exclusive)));
            (table.root.clone(), numbers.collect::<Vec<_>>())
        };
        for (id, numbers) in numbers {
            put_info(h, &root, id, numbers)?;
        }
        super::change_status(h, &root, |status| {
            status.flags = flag::ON.into();
            status.rescan = 0.into();
        })?;
        // What was recorded so far is part of the count.
        h.changes().traced.take();
        let mut state = self.state.lock();
        state.taken.clear();
        state.exact = true;
        trees.space.set_tracing(true);
        Ok(Ok(()))
    }

    /// Makes an empty group of a higher level, or the one of a subvolume.
    ///
    /// # Errors
    /// Unreadable blocks, no space.
    pub(crate) fn create_group(&self, h: &mut dyn SpaceWrite, id: u64) -> Result<Outcome> {
        let root = {
            let mut state = self.state.lock();
            let Some(table) = &mut state.table else {
                return Ok(Err(Error::NoQuotas));
            };
            if table.groups.contains_key(&id) {
                return Ok(Err(refused(id, "it exists")));
            }
            table.groups.insert(id, Group::default());
            table.root.clone()
        };
        put_info(h, &root, id, (0, 0))?;
        root.put(h, &limit_key(id), QgroupLimit::default().bytes())?;
        Ok(Ok(()))
    }

    /// Deletes a group without members.
    ///
    /// # Errors
    /// Unreadable blocks, no space.
    pub(crate) fn destroy_group(
        &self,
        h: &mut dyn SpaceWrite,
        trees: Trees<'_>,
        id: u64,
    ) -> Result<Outcome> {
        let root = {
            let state = self.state.lock();
            let Some(table) = &state.table else {
                return Ok(Err(Error::NoQuotas));
            };
            if !table.groups.contains_key(&id) {
                return Ok(Err(no_group(id)));
            }
            if !table.hierarchy.members(id).is_empty() {
                return Ok(Err(refused(id, "it has members")));
            }
            table.root.clone()
        };
        if level(id) == 0 && objectid::is_fs_tree(id) {
            match trees.roots.get(id) {
                Err(Error::NoSuchRoot(_)) => {}
                _ => return Ok(Err(refused(id, "its subvolume exists"))),
            }
        }
        self.delete_group(h, trees.space, &root, id)?;
        Ok(Ok(()))
    }

    /// Makes a group a member of another one, or ends that. The numbers must be counted afterwards.
    ///
    /// # Errors
    /// Unreadable blocks, no space.
    pub(crate) fn relate(
        &self,
        h: &mut dyn SpaceWrite,
        (member, parent): (u64, u64),
        add: bool,
    ) -> Result<Outcome> {
        let root = {
            let mut state = self.state.lock();
            let Some(table) = &mut state.table else {
                return Ok(Err(Error::NoQuotas));
            };
            for id in [member, parent] {
                if !table.groups.contains_key(&id) {
                    return Ok(Err(no_group(id)));
                }
            }
            let hierarchy = Arc::make_mut(&mut table.hierarchy);
            let is_member = hierarchy.parents(member).contains(&parent);
            if add && is_member {
                return Ok(Err(refused(member, "it is a member already")));
            }
            if add && !hierarchy.add(member, parent) {
                return Ok(Err(refused(
                    member,
                    "a member needs a lower level than its group",
                )));
            }
            if !add && !hierarchy.remove(member, parent) {
                return Ok(Err(refused(member, "it is no member")));
            }
            // What is reserved for the member counts in the group, too.
            let ahead = table.groups.get(&member).map_or(0, |group| group.ahead);
            for id in table.hierarchy.with_ancestors(parent) {
                if let Some(group) = table.groups.get_mut(&id) {
                    group.ahead = if add {
                        group.ahead.saturating_add(ahead)
                    } else {
                        group.ahead.saturating_sub(ahead)
                    };
                }
            }
            table.root.clone()
        };
        if !add {
            delete_relation(h, &root, member, parent)?;
            return Ok(Ok(()));
        }
        put_relation(h, &root, member, parent)?;
        Ok(Ok(()))
    }

    /// Changes limits of a group: referenced and exclusive bytes; the outer `None` keeps one, the
    /// inner one removes it.
    ///
    /// # Errors
    /// Unreadable blocks, no space.
    pub(crate) fn limit(
        &self,
        h: &mut dyn SpaceWrite,
        id: u64,
        (referenced, exclusive): (Option<Option<u64>>, Option<Option<u64>>),
    ) -> Result<Outcome> {
        let (root, limit) = {
            let mut state = self.state.lock();
            let Some(table) = &mut state.table else {
                return Ok(Err(Error::NoQuotas));
            };
            let root = table.root.clone();
            let group = match table.group_mut(id) {
                Ok(group) => group,
                Err(error) => return Ok(Err(error)),
            };
            let limit = &mut group.limit;
            let mut flags = limit.flags.get();
            let mut set = |flag: u64, most: Option<u64>| {
                flags = if most.is_some() {
                    flags | flag
                } else {
                    flags & !flag
                };
                most.unwrap_or_default().into()
            };
            if let Some(most) = referenced {
                limit.max_referenced = set(limit_flag::REFERENCED, most);
            }
            if let Some(most) = exclusive {
                limit.max_exclusive = set(limit_flag::EXCLUSIVE, most);
            }
            limit.flags = flags.into();
            (root, *limit)
        };
        root.put(h, &limit_key(id), limit.bytes())?;
        Ok(Ok(()))
    }
}
