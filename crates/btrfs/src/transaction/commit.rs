//! The commit: makes one transaction durable, with a new superblock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use sapwood_btrfs_format::{CompatRo, ItemError, RootBackup, SuperBlock, Timespec, objectid};

use super::handle::Handle;
use super::state::State;
use super::store::Store;
use super::table::{Transaction, Turn};
use crate::counters::Counters;
use crate::devices::SuperSet;
use crate::quota::Trees;
use crate::tree::{Root, write_blocks};
use crate::{Error, Result};

/// Delayed refs from which on it is worth running them before the commit.
const EARLY_REFS: usize = 500;
/// Most rounds of [`settle_roots`]: more indicate a bug.
const MOST_ROUNDS: usize = 1000;

impl Store {
    /// Waits until transaction `transid` (default: the newest in which something changed) is
    /// durable; commits it unless another thread does. Callers that arrive together share one
    /// commit.
    ///
    /// # Errors
    /// The error that made the mount read-only, if that was before the transaction was durable.
    pub(crate) fn commit(self: &Arc<Self>, transid: Option<u64>) -> Result<()> {
        self.commit_until(transid, State::SuperWritten)
    }

    /// Like [`commit`](Self::commit), and the space that the transaction freed is free.
    ///
    /// # Errors
    /// The error that made the mount read-only, if that was before the transaction was durable.
    pub(crate) fn commit_and_unpin(self: &Arc<Self>, transid: Option<u64>) -> Result<()> {
        self.commit_until(transid, State::Completed)
    }

    /// Transid of the newest durable transaction.
    pub(crate) fn last_committed(&self) -> u64 {
        self.transactions.last_committed()
    }

    fn commit_until(self: &Arc<Self>, transid: Option<u64>, until: State) -> Result<()> {
        let all = &self.transactions;
        // Fixed now: the call does not wait for later changes.
        let Some(target) = all.target(&self.health, transid)? else {
            return Ok(());
        };
        self.run_early(target)?;
        self.commit_target(target, until)?;
        // A device that missed writes must be known as stale before anything is acknowledged.
        while all.last_committed() < self.volume.acknowledged_from() {
            let h = self.join()?;
            let next = h.transid();
            h.end()?;
            self.commit_target(next, until)?;
        }
        Ok(())
    }

    fn commit_target(self: &Arc<Self>, target: u64, until: State) -> Result<()> {
        let all = &self.transactions;
        while let Turn::Commit(trans) = all.turn(&self.health, target, until)? {
            self.run_commit(trans)?;
        }
        Ok(())
    }

    /// Runs most of the delayed refs before the commit excludes other threads.
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
        // Taken only now: a handle that the commit waited for may be a log commit's, which takes it
        // too.
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

    /// The steps that need the transaction at rest. Afterwards none of its blocks changes.
    fn settle(&self, h: &mut Handle) -> Result<SuperSet> {
        h.write_delayed()?;
        if self.trans.dirty_roots.all().is_empty() {
            // The root tree must have the superblock's generation, so a block must change.
            h.record_root(&self.store.roots.get(objectid::FS_TREE)?);
        }
        let store = self.store;
        for participant in store.participants() {
            participant.settle(h)?;
        }
        for change in store.take_queued() {
            change(h)?;
        }
        store.space.write_device_errors(h)?;
        self.account(h)?;
        settle_roots(h)?;
        Counters::count(&store.counters.commits);
        let old = store.super_block.lock().clone();
        let super_block = next_super(store, &old, self.trans.transid)?;
        for root in self.trans.dirty_roots.all() {
            root.switch_commit_root();
        }
        Ok(super_block)
    }

    /// Brings quotas up to date: no further ref of a files' tree changes in this transaction.
    fn account(&self, h: &mut Handle) -> Result<()> {
        let store = self.store;
        let trees = Trees {
            space: &store.space,
            roots: &store.roots,
            blocks: &store.blocks,
        };
        store.quotas.account(h, trees)
    }

    /// Writes blocks, then the superblock that makes them count.
    fn write(&self, super_block: &SuperSet) -> Result<()> {
        let store = self.store;
        write_blocks(store, &self.trans.dirty_blocks.take())?;
        store.volume.flush()?;
        // A handle that failed while it changed trees of this transaction has reported that by now.
        store.health.check()?;
        store.volume.write_supers(super_block)?;
        *store.super_block.lock() = super_block.clone();
        Ok(())
    }
}

/// Runs delayed refs, and writes root items, block groups and new chunks, until all of them are
/// current. Each of these steps can make more of the others necessary; it ends because every block
/// is copied at most once in a transaction.
fn settle_roots(h: &mut Handle) -> Result<()> {
    let store = h.store().clone();
    let mut written = BTreeMap::new();
    for _ in 0..MOST_ROUNDS {
        store.space.run_delayed_refs(h, None)?;
        let mut changed = false;
        for root in h.trans().dirty_roots.all() {
            changed |= write_root_item(h, &root, &mut written)?;
        }
        changed |= store.space.finish_pending_chunks(h)?;
        changed |= store.space.write_dirty_block_groups(h)?;
        if !changed && h.trans().space.delayed.pending() == 0 {
            return Ok(());
        }
    }
    Err(Error::CommitUnsettled(h.transid()))
}

/// Writes a root item whose tree has another top block or size than the item, or whose fields were
/// changed. True if it did. `written`: sizes that this commit wrote, by tree.
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
            let now = h.store().now();
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

/// The superblock of transaction `transid`: `old` with the current tops of all trees, the system
/// chunks, one more backup, and without a log.
///
/// # Errors
/// [`Error::SystemChunks`] if the system chunks do not fit; [`Error::NoSuchRoot`].
fn next_super(store: &Store, old: &SuperSet, transid: u64) -> Result<SuperSet> {
    let roots = &store.roots;
    let mut sb = old.clone();
    sb.generation = transid.into();
    let top = roots.root_tree.node();
    sb.root = top.bytenr().into();
    sb.root_level = top.level();
    let top = roots.chunk_tree.node();
    sb.chunk_root = top.bytenr().into();
    sb.chunk_root_level = top.level();
    sb.chunk_root_generation = top.generation().into();
    sb.log_root = 0.into();
    sb.log_root_level = 0;
    sb.incompat_flags = (sb.incompat() | store.new_incompat()).bits().into();
    sb.compat_ro_flags = (sb.compat_ro() | store.new_compat_ro()).bits().into();
    sb.bytes_used = store.space.bytes_used().into();
    sb.total_bytes = store.space.total_bytes().into();
    let devices = store.space.device_bytes();
    let ids: Vec<u64> = devices.iter().map(|(devid, ..)| *devid).collect();
    sb.keep_devices(&ids);
    for (devid, total, used) in devices {
        sb.set_device(devid, total, used);
    }
    if !sb.compat_ro().contains(CompatRo::FREE_SPACE_TREE) {
        // No space cache of the first version is kept, and one on disk is stale now.
        sb.cache_generation = 0.into();
    }
    // It was right as of the last commit, and every change of a subvolume keeps it so.
    if old.uuid_tree_generation == old.generation {
        sb.uuid_tree_generation = transid.into();
    }
    let chunks = store.space.system_chunks();
    let system = chunks.iter().map(|(logical, chunk)| (*logical, &**chunk));
    sb.set_sys_chunks(system).map_err(system_chunks)?;
    let slot = next_backup(old);
    let backup = backup_of(store, &sb)?;
    if let Some(place) = sb.super_roots.get_mut(slot) {
        *place = backup;
    }
    Ok(sb)
}

fn system_chunks(_: ItemError) -> Error {
    Error::SystemChunks
}

/// Slot of the ring after the newest backup's.
fn next_backup(old: &SuperBlock) -> usize {
    let newest = old
        .super_roots
        .iter()
        .position(|backup| backup.tree_root_gen == old.generation);
    newest.map_or(0, |slot| (slot + 1) % old.super_roots.len())
}

fn backup_of(store: &Store, sb: &SuperBlock) -> Result<RootBackup> {
    let roots = &store.roots;
    let fs_tree = roots.get(objectid::FS_TREE)?;
    let top = |root: &Root| {
        let node = root.node();
        (node.bytenr().into(), node.generation().into(), node.level())
    };
    let (tree_root, tree_root_gen, tree_root_level) = top(&roots.root_tree);
    let (chunk_root, chunk_root_gen, chunk_root_level) = top(&roots.chunk_tree);
    let (extent_root, extent_root_gen, extent_root_level) = top(&roots.extent_tree);
    let (fs_root, fs_root_gen, fs_root_level) = top(&fs_tree);
    let (dev_root, dev_root_gen, dev_root_level) = top(&roots.dev_tree);
    let (csum_root, csum_root_gen, csum_root_level) = top(&roots.csum_tree);
    Ok(RootBackup {
        tree_root,
        tree_root_gen,
        chunk_root,
        chunk_root_gen,
        extent_root,
        extent_root_gen,
        fs_root,
        fs_root_gen,
        dev_root,
        dev_root_gen,
        csum_root,
        csum_root_gen,
        total_bytes: sb.total_bytes,
        bytes_used: sb.bytes_used,
        num_devices: sb.num_devices,
        tree_root_level,
        chunk_root_level,
        extent_root_level,
        fs_root_level,
        dev_root_level,
        csum_root_level,
        ..RootBackup::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backups_go_round() {
        let sb = SuperBlock {
            generation: 7.into(),
            ..SuperBlock::default()
        };
        assert_eq!(next_backup(&sb), 0);
        for (slot, next) in [(0, 1), (2, 3), (3, 0)] {
            let mut sb = sb;
            sb.super_roots[slot].tree_root_gen = 7.into();
            assert_eq!(next_backup(&sb), next);
        }
    }
}
