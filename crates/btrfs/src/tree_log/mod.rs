//! The tree log: an fsync makes files durable without a commit.
//!
//! # How it works
//! An fsync of an inode goes through these steps. A module in parentheses has the details.
//!
//! ```text
//!  data       is written back; only its I/O is waited for
//!  lock       the inode's `io` lock, shared: its data, names and attributes stay as they are
//!  handle     of the running transaction T, which cannot be committed until the fsync is done
//!  plan       which other inodes have to be logged for it; their locks too      (plan)
//!  write      items into the log tree of the subvolume                          (write, extents)
//!  unlock
//!  commit     the log is made durable, with what other callers logged meanwhile (commit)
//! ```
//!
//! The log of T builds on T-1, which may still be in flight to disk. The log's blocks are written
//! meanwhile; only its superblock waits for T-1's.
//!
//! Why it is cheap:
//! - A subvolume has one log tree per transaction. A log root tree names them all, and the
//!   superblock names that. The transaction records the logged items of an inode, so only changes
//!   are logged again, also after the inode was evicted and loaded again.
//! - An unlink or rename of a logged name logs nothing. It records the directory and the inode as
//!   *pending* ([`pending`]). The next fsync that concerns them logs their names as they are then,
//!   together with its own work. A directory is never logged because one of its names changed.
//!
//! Trouble cases:
//! - If a log cannot express a change, or after an error, the transaction is committed instead, and
//!   [`CommitReason`] counts why. An error half-way breaks the log for the rest of the transaction;
//!   its durable part stays right.
//! - The inode changed only in T-1, which is being written: the fsync waits for that commit.
//! - The inode has no name any more: the removal of its last names is logged. If no power cut could
//!   show a name of it, nothing is logged.
//!
//! The tests are in `tests/suite/log_*.rs`; the crash explorer covers the rest.

mod commit;
mod extents;
mod names;
mod pending;
mod plan;
mod state;
#[cfg(test)]
mod tests;
mod write;

use std::sync::Arc;

use sapwood_vfs::FileKind;

pub(crate) use state::Fsyncs;

use crate::commit_reason::CommitReason;
use crate::data::{self, Files, Wait};
use crate::inode::Inode;
use crate::lock::RankedReadGuard;
use crate::namespace::NameLog;
use crate::transaction::{Handle, Store};
use crate::{Error, Result};
use plan::{Locked, LogPlan, Planner, Refusal};
use state::Writer;
use state::{SubvolumeLog, TransactionLog};

/// Items that an fsync of one inode usually touches.
const ITEMS: u64 = 8;

/// The outcome of an fsync.
pub(crate) enum Outcome {
    /// The inode had not changed.
    Empty,
    /// The log is durable.
    Logged,
    /// The transaction must be committed.
    Commit(CommitReason),
    /// The commit of this transaction is in progress and must be waited for.
    Await(u64),
}

/// Logs an inode and makes the log durable.
///
/// # Errors
/// The inode's data could not be written; the mount failed.
pub(crate) fn fsync(files: &Arc<Files>, fsyncs: &Fsyncs, inode: &Arc<Inode>) -> Result<Outcome> {
    if !files.options.tree_log {
        return Ok(Outcome::Commit(CommitReason::Disabled));
    }
    let _under_way = fsyncs.begin();
    write_back(files, inode)?;
    let mut locked = Locked::new();
    locked.insert(inode.objectid, Arc::clone(inode));
    let mut items = ITEMS;
    loop {
        let guards = lock(&locked);
        write_back(files, inode)?;
        if is_durable(files, inode) {
            return Ok(Outcome::Empty);
        }
        let mut h = match files.start(items) {
            Ok(h) => h,
            Err(Error::NoSpace) => return Ok(Outcome::Commit(CommitReason::NoSpace)),
            Err(error) => return Err(error),
        };
        if let Some(outcome) = refuse(&h, inode) {
            return Ok(outcome);
        }
        let trans = h.trans().clone();
        let log = TransactionLog::of(&trans).find(inode.root.id());
        let groups = only_its_group(fsyncs);
        if !inode.is_linked() && !may_come_back(&h, log.as_deref(), inode) {
            return Ok(Outcome::Empty);
        }
        let known = log
            .as_ref()
            .and_then(|log| is_logged(&h, log, inode, groups));
        if let Some(number) = known {
            drop(guards);
            return Ok(synced(&mut h, fsyncs, number));
        }
        let planner = Planner::new(files, &inode.root, h.transid(), log, &locked, groups);
        let plan = match planner.plan(inode) {
            Ok(plan) => plan,
            Err(Refusal::Lock(more)) => {
                drop(h);
                drop(guards);
                locked.extend(more.into_iter().map(|inode| (inode.objectid, inode)));
                continue;
            }
            Err(Refusal::Commit(cause)) => return Ok(Outcome::Commit(cause)),
            Err(Refusal::Failed(error)) => {
                ::log::warn!("{inode:?} cannot be logged: {error}");
                return Ok(Outcome::Commit(CommitReason::Failed));
            }
        };
        if plan.items() > items {
            items = plan.items().next_power_of_two();
            continue;
        }
        let written = write(&mut h, inode, &plan);
        drop(guards);
        return Ok(match written {
            Ok(number) => synced(&mut h, fsyncs, number),
            Err(error) => {
                ::log::warn!("{inode:?} cannot be logged: {error}");
                TransactionLog::of(&trans).set_broken(CommitReason::Failed);
                Outcome::Commit(CommitReason::Failed)
            }
        });
    }
}

/// Whether an fsync logs only those pending names that belong to its inode. The names of the whole
/// subvolume need the locks of inodes that other fsyncs use.
fn only_its_group(fsyncs: &Fsyncs) -> bool {
    fsyncs.under_way() > 1
}

fn write_back(files: &Arc<Files>, inode: &Arc<Inode>) -> Result<()> {
    if inode.kind != FileKind::Regular {
        return Ok(());
    }
    data::flush(files, inode, 0..u64::MAX, Wait::Io)
}

/// Takes the `io` locks of inodes of one tree, shared, in their order.
fn lock(inodes: &Locked) -> Vec<RankedReadGuard<'_, ()>> {
    inodes.values().map(|inode| inode.io.read()).collect()
}

/// Whether the last durable transaction has all of an inode, or the removal of its last name.
fn is_durable(store: &Store, inode: &Inode) -> bool {
    let durable = store.last_committed();
    let (transid, names_in, linked) = {
        let state = inode.state.lock();
        (state.transid, state.names_in, state.nlink > 0)
    };
    if linked {
        transid <= durable && !inode.data.has_changed(durable)
    } else {
        names_in <= durable
    }
}

/// Whether a power cut could show a name of an inode that has none now: the log has the inode, or
/// the last commit has names of it, or cannot be read.
fn may_come_back(h: &Handle, log: Option<&SubvolumeLog>, inode: &Inode) -> bool {
    let logged = log.and_then(|log| log.find(inode.objectid));
    if logged.is_some_and(|found| found.logged.lock().exists) {
        return true;
    }
    if inode.state.lock().generation == h.transid() {
        return false;
    }
    let names = names::committed(h.store(), &inode.root, inode.objectid);
    names.map_or(true, |names| !names.is_empty())
}

/// The reason why an inode is not logged in the handle's transaction.
fn refuse(h: &Handle, inode: &Inode) -> Option<Outcome> {
    let (transid, names_in, linked) = {
        let state = inode.state.lock();
        (state.transid, state.names_in, state.nlink > 0)
    };
    if !linked && names_in < h.transid() {
        return Some(Outcome::Await(names_in));
    }
    if linked && transid < h.transid() && !inode.data.has_changed(h.transid() - 1) {
        return Some(Outcome::Await(transid));
    }
    let root = &inode.root;
    if root.is_dead() {
        return Some(Outcome::Commit(CommitReason::DeadSubvolume));
    }
    if root.item().otransid.get() == h.transid() {
        return Some(Outcome::Commit(CommitReason::NewSubvolume));
    }
    TransactionLog::of(h.trans()).broken().map(Outcome::Commit)
}

/// The log that has all of the current inode, if no pending inode of its group must be added.
fn is_logged(h: &Handle, log: &SubvolumeLog, inode: &Inode, groups: bool) -> Option<u64> {
    let found = log.find(inode.objectid)?;
    let logged = *found.logged.lock();
    let (sequence, names, xattrs) = {
        let state = inode.state.lock();
        (state.sequence, state.names_version, state.xattrs_version)
    };
    let current = if groups {
        !log.pending().concerns(inode.objectid)
    } else {
        log.pending().is_empty()
    };
    if !inode.is_linked() {
        return (current && logged.removed && logged.names == names).then_some(logged.number);
    }
    let same = logged.full
        && (logged.sequence, logged.names, logged.xattrs) == (sequence, names, xattrs)
        && !inode.data.has_unlogged(h.transid());
    let changes = inode.dir.changes(h.transid());
    let entries = changes.overflow || !changes.added.is_empty() || !changes.removed.is_empty();
    (same && !entries && current).then_some(logged.number)
}

/// Writes a plan into the log; returns the number of the log that it will be in.
fn write(h: &mut Handle, inode: &Inode, plan: &LogPlan) -> Result<u64> {
    let store = h.store().clone();
    let trans = h.trans().clone();
    let all = TransactionLog::of(&trans);
    let log = all.create(h, inode.root.id())?;
    let logging = all.begin();
    let number = logging.number();
    let mut writer = Writer {
        h,
        store,
        log,
        number,
    };
    writer.write(plan)?;
    Ok(number)
}

fn synced(h: &mut Handle, fsyncs: &Fsyncs, number: u64) -> Outcome {
    match commit::commit(h, fsyncs, number) {
        Ok(()) => Outcome::Logged,
        Err(cause) => Outcome::Commit(cause),
    }
}

/// The tree log, as the receiver of added and removed names.
#[derive(Debug, Default)]
pub(crate) struct LoggedNames;

impl NameLog for LoggedNames {
    fn name_added(&self, h: &mut Handle, inode: &Arc<Inode>) {
        let Some(log) = TransactionLog::of(h.trans()).find(inode.root.id()) else {
            return;
        };
        let found = log.find(inode.objectid);
        if found.is_some_and(|found| found.logged.lock().exists) {
            log.pending().add(inode.objectid, Arc::clone(inode));
        }
    }

    fn name_removed(&self, h: &mut Handle, dir: &Arc<Inode>, inode: &Arc<Inode>) {
        name_removed(h, dir, inode);
    }

    fn forbid(&self, h: &Handle, reason: CommitReason) {
        TransactionLog::of(h.trans()).set_broken(reason);
    }
}

/// A name of `inode` in `dir` was removed in the handle's transaction. Records the two as pending,
/// each if the log has it. Expects both `io` locks exclusively.
fn name_removed(h: &mut Handle, dir: &Arc<Inode>, inode: &Arc<Inode>) {
    let Some(log) = TransactionLog::of(h.trans()).find(dir.root.id()) else {
        return;
    };
    let logged = |objectid| {
        let found = log.find(objectid);
        found.map_or_else(Default::default, |inode| *inode.logged.lock())
    };
    let full = logged(dir.objectid).full;
    let exists = logged(inode.objectid).exists && inode.root.id() == dir.root.id();
    let mut pending = log.pending();
    for (has, noted) in [(full, dir), (exists, inode)] {
        if has {
            pending.add(noted.objectid, Arc::clone(noted));
        }
    }
    if full || exists {
        pending.tie(dir.objectid, inode.objectid);
    }
}
