//! The commit: makes one transaction durable.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use sapwood_btrfs_format::{Timespec, objectid};
use sapwood_vfs::Timestamp;

use super::handle::Handle;
use super::state::State;
use super::store::Store;
use super::super_copy;
use super::table::{Transaction, Turn};
use crate::counters::Counters;
use crate::tree::{Root, write_blocks};
use crate::volume::SuperSet;
use crate::{Error, Result};

/// Delayed refs from which on it is worth running them before the commit.
const EARLY_REFS: usize = 500;
/// Runs of delayed refs after which [`Store::run_frees`] leaves the rest to the commit.
const MOST_RUNS: usize = 4;
/// Rounds of [`settle_roots`] after which something is wrong.
const MOST_ROUNDS: usize = 1000;

impl Store {
    /// Waits until transaction `transid` (default: the newest in which something changed) is
    /// durable; commits it unless another thread does. Callers that arrive together share one
    /// commit.
    ///
    /// # Errors
    /// What made the mount read-only, if that was before the transaction was durable.
    pub(crate) fn commit(self: &Arc<Self>, transid: Option<u64>) -> Result<()> {
        self.commit_until(transid, State::SuperWritten)
    }

    /// As [`commit`](Self::commit), and the space that the transaction freed is free.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub(crate) fn commit_and_unpin(self: &Arc<Self>, transid: Option<u64>) -> Result<()> {
        self.commit_until(transid, State::Completed)
    }

    /// Transid of the newest durable transaction.
    pub(crate) fn last_committed(&self) -> u64 {
        self.transactions.last_committed()
    }

    fn commit_until(self: &Arc<Self>, transid: Option<u64>, until: State) -> Result<()> {
        let all = &self.transactions;
        // Fixed now: what changes while we wait is not ours to wait for.
        let Some(target) = all.target(&self.health, transid)? else {
            return Ok(());
        };
        self.run_early(target)?;
        while let Turn::Commit(trans) = all.turn(&self.health, target, until)? {
            self.run_commit(trans)?;
        }
        Ok(())
    }

    /// Runs most of the delayed refs before the commit keeps others out.
    fn run_early(self: &Arc<Self>, target: u64) -> Result<()> {
        let running = self.transactions.running(target);
        let pending = running.map_or(0, |trans| trans.space.delayed.pending());
        if pending < EARLY_REFS || self.health.failed() {
            return Ok(());
        }
        let mut h = self.join()?;
        let done = self.space.run_delayed_refs(&mut h, Some(pending));
        if let Err(err) = &done {
            h.abort(err);
        }
        done
    }

    /// Runs the delayed refs of the running transaction if they free data, so that the space counts
    /// as free before the commit.
    ///
    /// # Errors
    /// Those of the extent tree; the mount takes no changes then.
    pub(crate) fn run_frees(self: &Arc<Self>) -> Result<()> {
        if self.health.read_only() {
            return Ok(());
        }
        let newest = self.transactions.target(&self.health, None)?;
        let running = newest.and_then(|newest| self.transactions.running(newest));
        if !running.is_some_and(|trans| trans.space.delayed.frees_data()) {
            return Ok(());
        }
        let mut h = self.join()?;
        // Running refs makes others, of tree blocks, which may come first.
        for _ in 0..MOST_RUNS {
            let trans = h.trans().clone();
            if !trans.space.delayed.frees_data() {
                break;
            }
            let pending = trans.space.delayed.pending();
            if let Err(err) = self.space.run_delayed_refs(&mut h, Some(pending)) {
                h.abort(&err);
                return Err(err);
            }
        }
        Ok(())
    }

    fn run_commit(self: &Arc<Self>, trans: Arc<Transaction>) -> Result<()> {
        let mut claim = Claim {
            store: self,
            trans,
            done: false,
        };
        let begun = Instant::now();
        let result = claim.run();
        self.counters.commit_latency.record(begun.elapsed());
        if let Err(err) = &result {
            self.health.fail(err);
        } else {
            claim.done = true;
        }
        result
    }
}

/// A claimed transaction. Dropped before it is done, by an error or a panic, it fails the mount, so
/// that no thread waits for ever.
struct Claim<'a> {
    store: &'a Arc<Store>,
    trans: Arc<Transaction>,
    done: bool,
}

impl Claim<'_> {
    fn run(&self) -> Result<()> {
        let (store, trans) = (self.store, &self.trans);
        let transactions = &store.transactions;
        transactions.drain_starters(trans, || {
            for participant in store.participants() {
                participant.hurry();
            }
        });
        transactions.advance(trans, State::CommitDoing);
        // Only now: a handle that was waited for may have been a log's, which wants it too.
        let order = transactions.superblock_order.lock();
        store.health.check()?;
        let mut handle = store.enter_commit()?;
        let super_block = self.settle(&mut handle)?;
        drop(handle);
        transactions.advance(trans, State::Unblocked);
        self.write(&super_block)?;
        transactions.advance(trans, State::SuperWritten);
        drop(order);
        trans.log_blocks.release_all(&store.blocks, &store.space)?;
        store.space.unpin(&trans.space, store.options.discard)?;
        transactions.advance(trans, State::Completed);
        for participant in store.participants() {
            participant.completed();
        }
        Ok(())
    }

    /// All that has to see the transaction at rest. Afterwards none of its blocks changes.
    fn settle(&self, h: &mut Handle) -> Result<SuperSet> {
        if !sapwood_fault::planted(43) {
            h.write_delayed()?;
        }
        if self.trans.dirty_roots.all().is_empty() {
            // The root tree has to be of the superblock's generation, so something must change.
            h.record_root(&self.store.roots.get(objectid::FS_TREE)?);
        }
        let store = self.store;
        for participant in store.participants() {
            participant.settle(h)?;
        }
        settle_roots(h)?;
        Counters::count(&store.counters.commits);
        let old = store.super_block.lock().clone();
        let super_block = super_copy::next(store, &old, self.trans.transid)?;
        for root in self.trans.dirty_roots.all() {
            root.switch_commit_root();
        }
        Ok(super_block)
    }

    /// Writes blocks, then the superblock that makes them count.
    fn write(&self, super_block: &SuperSet) -> Result<()> {
        let store = self.store;
        write_blocks(store, &self.trans.dirty_blocks.take())?;
        if !sapwood_fault::planted(41) {
            store.volume.flush()?;
        }
        // A handle that failed while it changed trees of this transaction has said so by now.
        store.health.check()?;
        store.volume.write_supers(super_block)?;
        *store.super_block.lock() = super_block.clone();
        Ok(())
    }
}

/// Runs delayed refs, and writes root items, block groups and new chunks, until all of them say
/// what is. Each of these steps can make more of the others necessary; it ends because every
/// block is copied at most once in a transaction.
fn settle_roots(h: &mut Handle) -> Result<()> {
    let store = h.store().clone();
    let mut written = BTreeMap::new();
    for _ in 0..MOST_ROUNDS {
        let limit = sapwood_fault::planted(40).then_some(0);
        store.space.run_delayed_refs(h, limit)?;
        let mut changed = false;
        for root in h.trans().dirty_roots.all() {
            changed |= write_root_item(h, &root, &mut written)?;
        }
        changed |= store.space.finish_pending_chunks(h)?;
        if !sapwood_fault::planted(44) {
            changed |= store.space.write_dirty_block_groups(h)?;
        }
        if !changed && h.trans().space.delayed.pending() == 0 {
            return Ok(());
        }
    }
    Err(Error::CommitUnsettled(h.transid()))
}

/// Writes a root item whose tree has another top block or another size than it says, or whose
/// fields were changed. True if it did. `written`: sizes that this commit wrote, by tree.
fn write_root_item(
    h: &mut Handle,
    root: &Arc<Root>,
    written: &mut BTreeMap<u64, u64>,
) -> Result<bool> {
    // The superblock points at these two.
    if [objectid::ROOT_TREE, objectid::CHUNK_TREE].contains(&root.id()) {
        return Ok(false);
    }
    let node = root.node();
    let (moved, size) = {
        let mut item = root.item();
        let moved = item.bytenr.get() != node.bytenr() || item.level != node.level();
        if moved && objectid::is_fs_tree(root.id()) {
            item.ctransid = h.transid().into();
            let now = Timestamp::now();
            item.ctime = Timespec::new(now.sec, now.nsec);
        }
        (moved, item.bytes_used.get())
    };
    if !moved && written.get(&root.id()) == Some(&size) {
        return Ok(false);
    }
    written.insert(root.id(), size);
    let item = root.update_item(node.generation());
    let root_tree = h.store().roots.root_tree.clone();
    root_tree.put(h, &root.item_key(), item.bytes())?;
    Ok(true)
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.done {
            let transid = self.trans.transid;
            self.store.health.fail(&Error::CommitFailed(transid));
            self.store.transactions.fail(&self.trans);
        }
    }
}
