//! The plan of an fsync: all items to log, decided before the first is written.
//!
//! # How it works
//! Logging an inode's names can require more. Current names are compared with the names at the last
//! commit, because a replay starts from there:
//!
//! - A *new* name needs the directories above it that are new or were moved in this transaction. If
//!   the last commit has another inode under that name or index, it also needs that inode's new
//!   name, because replay removes the old one.
//! - A *lost* name is deleted by replay if the inode has another one in that directory; else the
//!   directory is logged as existing, with a range item over the one index.
//! - If a rename gave the lost name to another inode, that inode's names are logged too.
//! - If a logged name was removed again, replay must also delete the committed entry that it had
//!   displaced.
//! - If a committed file was renamed or linked in this transaction, its fsync also logs other
//!   changes in those directories, as Linux does: at most 64 names, and only while no other fsync
//!   runs. Replay does not need this.
//! - Replay deletes an entry that a directory lost (if the directory is logged in full). If the
//!   entry's inode has other names, they are logged, because the inode would be lost otherwise.
//!
//! For each inode that one of these rules touches, the [pending](super::pending) inodes of its
//! group are logged too.
//!
//! All these inodes must keep their names until they are logged, so their `io` locks are needed,
//! and locks of inodes are taken in one order. The plan is therefore repeated with the locks that
//! the last attempt lacked, until none is missing. A change that a log cannot express ends in a
//! [`CommitReason`].

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use sapwood_btrfs_format::{Key, dir_items, kind};
use sapwood_vfs::{self as vfs, FileKind};

use super::names::{self, NameRef};
use super::state::{Logged, SubvolumeLog};
use crate::commit_reason::CommitReason;
use crate::data::Files;
use crate::inode::Changes;
use crate::inode::Inode;
use crate::namespace::dir;
use crate::tree::Root;
use crate::{Error, Result};

/// Most names of a directory that are logged in addition to the names of the fsync's inode.
const MOST_NEIGHBOURS: usize = 64;

/// Inodes whose `io` locks are held, by number.
pub(super) type Locked = BTreeMap<u64, Arc<Inode>>;

/// Reasons why there is no plan.
pub(super) enum Refusal {
    /// Lock these too, and plan again.
    Lock(Vec<Arc<Inode>>),
    /// Commit the transaction.
    Commit(CommitReason),
    /// A block cannot be read.
    Failed(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<CommitReason> for Refusal {
    fn from(cause: CommitReason) -> Self {
        Self::Commit(cause)
    }
}

/// One inode to log.
pub(super) struct Step {
    /// The inode; its `io` lock is held.
    pub(super) inode: Arc<Inode>,
    /// All of it, not only that it exists.
    pub(super) full: bool,
    /// Entries to log, by index.
    pub(super) entries: BTreeSet<u64>,
    /// Removed entries by index; true if the last commit has them.
    pub(super) removed: BTreeMap<u64, bool>,
}

/// The items to log.
#[derive(Default)]
pub(super) struct LogPlan {
    /// Inodes whose locks are held.
    pub(super) steps: BTreeMap<u64, Step>,
    /// New inodes to log as existing; their names in logged directories cannot change.
    pub(super) children: BTreeMap<u64, Arc<Inode>>,
    /// Pending inodes that it brings up to date.
    pub(super) pending: Vec<u64>,
}

impl LogPlan {
    /// Items that it will touch, roughly.
    pub(super) fn items(&self) -> u64 {
        let entries: usize = self
            .steps
            .values()
            .map(|step| 6 + step.entries.len() + step.removed.len())
            .sum();
        (entries + 4 * self.children.len()) as u64
    }
}

/// Makes a plan.
pub(super) struct Planner<'a> {
    files: &'a Arc<Files>,
    root: &'a Arc<Root>,
    transid: u64,
    log: Option<Arc<SubvolumeLog>>,
    locked: &'a Locked,
    plan: LogPlan,
    /// The inode of the fsync.
    target: u64,
    queue: Vec<u64>,
    missing: Vec<Arc<Inode>>,
    /// Only pending inodes that are tied to a logged one are wanted.
    groups: bool,
    /// Inodes whose groups' pending inodes were all found.
    touched: HashSet<u64>,
}

impl<'a> Planner<'a> {
    /// A plan for a log of `root` in transaction `transid`, of which the caller holds a handle.
    /// With `groups`, it includes only the pending inodes of the groups that it touches, otherwise
    /// all.
    pub(super) fn new(
        files: &'a Arc<Files>,
        root: &'a Arc<Root>,
        transid: u64,
        log: Option<Arc<SubvolumeLog>>,
        locked: &'a Locked,
        groups: bool,
    ) -> Self {
        Self {
            files,
            root,
            transid,
            log,
            locked,
            plan: LogPlan::default(),
            target: 0,
            queue: Vec::new(),
            missing: Vec::new(),
            groups,
            touched: HashSet::new(),
        }
    }

    /// The plan for an fsync of `target`.
    ///
    /// # Errors
    /// [`Refusal::Lock`] while `io` locks are missing, [`Refusal::Commit`] for a change that a log
    /// cannot express, [`Refusal::Failed`].
    pub(super) fn plan(mut self, target: &Arc<Inode>) -> Result<LogPlan, Refusal> {
        self.target = target.objectid;
        self.want(target, target.is_linked());
        if !self.groups {
            let all = self.log.as_ref().map(|log| log.pending().all());
            self.pending(all.unwrap_or_default());
        }
        while let Some(objectid) = self.queue.pop() {
            self.visit(objectid)?;
        }
        if self.missing.is_empty() {
            Ok(self.plan)
        } else {
            Err(Refusal::Lock(self.missing))
        }
    }

    fn logged(&self, objectid: u64) -> Logged {
        let found = self.log.as_ref().and_then(|log| log.find(objectid));
        found.map_or_else(Logged::default, |inode| *inode.logged.lock())
    }

    /// The plan depends on this inode: the pending inodes of its group are logged too.
    fn touch(&mut self, objectid: u64) {
        let Some(log) = &self.log else {
            return;
        };
        if self.groups {
            let group = log.pending().group(objectid, &mut self.touched);
            self.pending(group);
        }
    }

    fn pending(&mut self, pending: Vec<(u64, Arc<Inode>)>) {
        for (number, inode) in pending {
            self.plan.pending.push(number);
            self.want(&inode, false);
        }
    }

    fn want(&mut self, inode: &Arc<Inode>, full: bool) {
        let objectid = inode.objectid;
        self.touch(objectid);
        if !self.locked.contains_key(&objectid) {
            self.missing.push(Arc::clone(inode));
            return;
        }
        let new = !self.plan.steps.contains_key(&objectid);
        let step = self.plan.steps.entry(objectid).or_insert_with(|| Step {
            inode: Arc::clone(inode),
            full: false,
            entries: BTreeSet::new(),
            removed: BTreeMap::new(),
        });
        if new || (full && !step.full) {
            self.queue.push(objectid);
        }
        step.full |= full || inode.kind == FileKind::Symlink;
    }

    /// The step of a directory that lost an entry.
    fn lost_entry(&mut self, dir: &Arc<Inode>, index: u64) {
        self.want(dir, false);
        if let Some(step) = self.plan.steps.get_mut(&dir.objectid) {
            step.removed.insert(index, true);
        }
    }

    fn visit(&mut self, objectid: u64) -> Result<(), Refusal> {
        let Some(step) = self.plan.steps.get(&objectid) else {
            return Ok(());
        };
        let (inode, full) = (Arc::clone(&step.inode), step.full);
        let logged = self.logged(objectid);
        let (names_in, version) = {
            let state = inode.state.lock();
            (state.names_in, state.names_version)
        };
        if names_in == self.transid && !(logged.exists && logged.names == version) {
            self.names(&inode)?;
        }
        if inode.kind == FileKind::Directory && (full || logged.full) {
            self.directory(&inode, full)?;
        }
        Ok(())
    }

    /// An inode of the same tree that is in use under a name.
    fn alive(&self, objectid: u64) -> Result<Option<Arc<Inode>>> {
        match self.files.inodes.load(self.files, self.root, objectid) {
            Ok(inode) if inode.is_linked() && !inode.state.lock().deleted => Ok(Some(inode)),
            Ok(_) | Err(Error::Vfs(vfs::Error::Stale)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn names(&mut self, inode: &Arc<Inode>) -> Result<(), Refusal> {
        let (files, root) = (self.files, self.root);
        let now = names::current(files, root, inode.objectid)?;
        let before = names::committed(files, root, inode.objectid)?;
        let same = |one: &NameRef, other: &NameRef| {
            one.parent == other.parent && one.name == other.name && one.index == other.index
        };
        for name in now.iter().chain(&before) {
            self.touch(name.parent);
        }
        for name in &now {
            if !before.iter().any(|old| same(old, name)) {
                self.new_name(inode, name)?;
            }
        }
        if self.logged(inode.objectid).exists {
            self.leaving(inode, &now)?;
        }
        if now.is_empty() && !before.is_empty() {
            self.gone(inode.objectid)?;
        }
        for name in &before {
            let kept = |new: &&NameRef| new.parent == name.parent && new.name == name.name;
            if now.iter().any(|new| kept(&new)) {
                continue;
            }
            self.taken_over(inode.objectid, name.parent, &name.name)?;
            let beside = |new: &NameRef| new.parent == name.parent && !new.extended;
            if !name.extended && now.iter().any(beside) {
                continue;
            }
            match self.alive(name.parent)? {
                Some(dir) => self.lost_entry(&dir, name.index),
                None => return Err(CommitReason::RemovedParent.into()),
            }
        }
        let changed = before.len() != now.len()
            || now
                .iter()
                .any(|name| !before.iter().any(|old| same(old, name)));
        let old_file = !before.is_empty() && inode.kind != FileKind::Directory;
        if changed && inode.objectid == self.target && old_file {
            self.neighbours(now.iter().chain(&before))?;
        }
        Ok(())
    }

    /// Other changes in the directories of the names that the target of the fsync has or had. No
    /// reader of a log needs them. Linux makes them durable, and programs rely on that.
    fn neighbours<'n>(&mut self, names: impl Iterator<Item = &'n NameRef>) -> Result<(), Refusal> {
        if self.groups {
            return Ok(());
        }
        let dirs: BTreeSet<u64> = names.map(|name| name.parent).collect();
        for dir in dirs {
            let Some(dir) = self.alive(dir)? else {
                continue;
            };
            let changes = dir.dir.changes(self.transid);
            let count = changes.added.len() + changes.removed.len();
            if !changes.overflow && count <= MOST_NEIGHBOURS {
                self.want(&dir, true);
            }
        }
        Ok(())
    }

    /// A rename may have given a name that `loser` lost to another inode. Replay takes the name
    /// from the one, so the other must be logged too: a rename is durable as a whole or not at all.
    fn taken_over(&mut self, loser: u64, dir: u64, name: &[u8]) -> Result<(), Refusal> {
        let taker = names::current_by_name(self.files, self.root, dir, name)?;
        match taker {
            Some(location) if location.kind != kind::INODE_ITEM => {
                Err(CommitReason::SubvolumeName.into())
            }
            Some(location) if location.objectid != loser => {
                self.touch(location.objectid);
                if let Some(taker) = self.alive(location.objectid)? {
                    self.want_new(&taker);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Finds logged names that were removed again. Replay took each from its owner at the last
    /// commit, whose entry must not return.
    fn leaving(&mut self, inode: &Inode, now: &[NameRef]) -> Result<(), Refusal> {
        let Some(log) = self.log.clone() else {
            return Ok(());
        };
        let (files, root) = (self.files, self.root);
        for name in names::current(files, &log.tree, inode.objectid)? {
            self.touch(name.parent);
            let kept = |new: &NameRef| new.parent == name.parent && new.name == name.name;
            if now.iter().any(kept) {
                continue;
            }
            self.taken_over(inode.objectid, name.parent, &name.name)?;
            let before = names::committed_by_name(files, root, name.parent, &name.name)?;
            let Some(before) = before.filter(|before| before.objectid != inode.objectid) else {
                continue;
            };
            if names::current_by_name(files, root, name.parent, &name.name)? == Some(before) {
                continue;
            }
            let had = names::committed(files, root, before.objectid)?;
            let Some(old) = had.into_iter().find(kept) else {
                continue;
            };
            match self.alive(name.parent)? {
                Some(dir) => self.lost_entry(&dir, old.index),
                None => return Err(CommitReason::RemovedParent.into()),
            }
        }
        Ok(())
    }

    fn new_name(&mut self, inode: &Inode, name: &NameRef) -> Result<(), Refusal> {
        let (files, root) = (self.files, self.root);
        let by_name = names::committed_by_name(files, root, name.parent, &name.name)?;
        let by_index = names::committed_at(files, root, name.parent, name.index)?;
        for location in by_name.into_iter().chain(by_index) {
            self.displaced(inode, &location)?;
        }
        let top = root.top_dir();
        let mut at = files.inodes.load(files, root, name.parent)?;
        loop {
            self.touch(at.objectid);
            if at.state.lock().names_in == self.transid {
                self.want_new(&at);
            }
            // No directory is within itself; on a damaged tree this ends the loop.
            if at.objectid == top || at.objectid == inode.objectid {
                return Ok(());
            }
            at = dir::parent(files, &at)?;
        }
    }

    /// Plans to log a directory above a new name, unless the log has its current state.
    fn want_new(&mut self, dir: &Arc<Inode>) {
        let logged = self.logged(dir.objectid);
        let version = dir.state.lock().names_version;
        let known = logged.exists && logged.names == version;
        if !known && !self.plan_has(dir.objectid) {
            self.want(dir, false);
        }
    }

    fn plan_has(&self, objectid: u64) -> bool {
        self.plan.steps.contains_key(&objectid)
    }

    /// Plans to log the inode that has a name at the last commit: replay removes the name from it.
    fn displaced(&mut self, inode: &Inode, location: &Key) -> Result<(), Refusal> {
        if location.kind != kind::INODE_ITEM {
            return Err(CommitReason::SubvolumeName.into());
        }
        if location.objectid == inode.objectid {
            return Ok(());
        }
        self.touch(location.objectid);
        match self.alive(location.objectid)? {
            Some(other) => {
                if !self.plan_has(other.objectid) {
                    self.want(&other, false);
                }
                Ok(())
            }
            None => self.gone(location.objectid),
        }
    }

    /// Checks that an inode without a name had no entries at the last commit: replay may remove it,
    /// and would remove the entries with it.
    fn gone(&self, objectid: u64) -> Result<(), Refusal> {
        if names::had_entries(self.files, self.root, objectid)? {
            return Err(CommitReason::ReplacedDirectory.into());
        }
        Ok(())
    }

    /// The entries of a directory that is, or will be, logged in full.
    fn directory(&mut self, dir: &Arc<Inode>, full: bool) -> Result<(), Refusal> {
        let changes: Changes = dir.dir.changes(self.transid);
        if changes.overflow {
            return Err(CommitReason::ManyNames.into());
        }
        for index in changes.removed {
            self.removed_entry(dir, index, full)?;
        }
        if full {
            for index in changes.added {
                self.added_entry(dir, index)?;
            }
        }
        Ok(())
    }

    fn step(&mut self, dir: &Inode) -> Option<&mut Step> {
        self.plan.steps.get_mut(&dir.objectid)
    }

    fn removed_entry(&mut self, dir: &Arc<Inode>, index: u64, full: bool) -> Result<(), Refusal> {
        let before = names::committed_entry(self.files, self.root, dir.objectid, index)?;
        let committed = before.is_some();
        if let Some(step) = self.step(dir) {
            step.removed.insert(index, committed);
        }
        // The last commit does not have this entry; an earlier log of the transaction may.
        let before = match (before, self.log.clone()) {
            (None, Some(log)) => names::logged_entry(self.files, &log.tree, dir.objectid, index)?,
            (before, _) => before,
        };
        let Some((location, name)) = before else {
            return Ok(());
        };
        if location.kind != kind::INODE_ITEM {
            return Err(CommitReason::SubvolumeName.into());
        }
        self.touch(location.objectid);
        self.taken_over(location.objectid, dir.objectid, &name)?;
        let Some(inode) = self.alive(location.objectid)? else {
            return if committed {
                self.gone(location.objectid)
            } else {
                Ok(())
            };
        };
        let now = names::current(self.files, self.root, inode.objectid)?;
        let elsewhere = now.iter().any(|name| name.parent != dir.objectid);
        if elsewhere || inode.kind == FileKind::Directory {
            // A directory with only its entry logged: Linux 6.18 cannot replay it if the
            // directory's first item is the first of a leaf.
            self.want_new(&inode);
        } else if !full {
            // Logging its new entry is enough, because the last commit has the inode.
            for name in now {
                let known = names::committed_at(self.files, self.root, dir.objectid, name.index)?;
                if known.is_none() {
                    self.added_entry(dir, name.index)?;
                }
            }
        }
        Ok(())
    }

    fn added_entry(&mut self, dir: &Arc<Inode>, index: u64) -> Result<(), Refusal> {
        let Some(bytes) = dir::entry_at(self.files, dir, index)? else {
            return Ok(());
        };
        if let Some(step) = self.step(dir) {
            step.entries.insert(index);
        }
        let key = Key::new(dir.objectid, kind::DIR_INDEX, index);
        let entry = dir_items(&bytes).next().transpose();
        let entry = entry.map_err(|source| Error::BadItem {
            root: self.root.id(),
            key,
            source,
        })?;
        let Some(location) = entry.map(|entry| entry.location) else {
            return Ok(());
        };
        if location.kind != kind::INODE_ITEM {
            return Err(CommitReason::SubvolumeName.into());
        }
        let files = self.files;
        self.touch(location.objectid);
        let Some(child) = self.alive(location.objectid)? else {
            return Ok(());
        };
        let (generation, names_in) = {
            let state = child.state.lock();
            (state.generation, state.names_in)
        };
        if generation == self.transid {
            self.new_child(&child);
        } else if names_in == self.transid {
            let now = names::current(files, self.root, child.objectid)?;
            let before = names::committed(files, self.root, child.objectid)?;
            let elsewhere = |name: &NameRef| name.parent != dir.objectid;
            // The log has older names of this inode.
            let stale = self.logged(child.objectid).exists;
            if stale || now.iter().chain(&before).any(elsewhere) {
                self.want_new(&child);
            }
        }
        let conflict =
            names::committed_by_name(files, self.root, dir.objectid, entry_name(&bytes))?;
        match conflict {
            Some(other) => self.displaced(&child, &other),
            None => Ok(()),
        }
    }

    /// An inode made in this transaction has to exist for its entry to count. Files in a new
    /// directory are new too, and are logged with it.
    fn new_child(&mut self, child: &Arc<Inode>) {
        let logged = self.logged(child.objectid);
        let version = child.state.lock().names_version;
        let known = logged.exists && logged.names == version;
        match child.kind {
            FileKind::Directory if !(known && logged.full) => {
                if !self
                    .plan
                    .steps
                    .get(&child.objectid)
                    .is_some_and(|step| step.full)
                {
                    self.want(child, true);
                }
            }
            _ if known => {}
            _ if version > 0 => self.want_new(child),
            _ => {
                self.plan.children.insert(child.objectid, Arc::clone(child));
            }
        }
    }
}

fn entry_name(bytes: &[u8]) -> &[u8] {
    let entry = dir_items(bytes).next();
    entry
        .and_then(|entry| entry.ok())
        .map_or(&[], |entry| entry.name)
}
