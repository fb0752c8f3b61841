//! Group commit: makes a log durable for all callers that wait for it.
//!
//! # How it works
//! The logs of a transaction are numbered. A caller that changed log trees waits until the log that
//! was being filled then is durable. If no thread collects that log, the caller does:
//!
//! ```text
//!  collect     no logger is at work: root items are brought up to date, the dirty blocks taken
//!              and frozen; the next log begins to be filled
//!  write       its blocks; meanwhile other threads fill, collect and write the next log
//!  wait        for the blocks of the log before it, which it shares
//!  flush
//!  superblock  under the superblock-order lock: the transaction before must be durable. If a
//!              newer log is durable already, nothing is left to do
//! ```
//!
//! At most two logs are in progress, and only one while many callers fsync: groups are large enough
//! then, and a second log would halve them. No thread waits for a time. A client that is alone
//! writes at once, and callers that arrive while it writes share the next log
//! (`many_that_fsync_share_one_log_after_another`).
//!
//! The handle that a caller holds keeps the transaction from being committed meanwhile, so the
//! space of its blocks is not released under a write. An error breaks the log of the transaction:
//! every waiter falls back to a commit.

use std::sync::Arc;

use sapwood_btrfs_format::SUPER_SIZE;

use super::state::Fsyncs;
use super::state::{LogState, TransactionLog};
use crate::Result;
use crate::commit_reason::CommitReason;
use crate::counters::Counters;
use crate::lock::RankedMutexGuard;
use crate::transaction::{Handle, Store};
use crate::tree::{TreeBlock, freeze, write_blocks};

/// fsyncs in progress from which on one log at a time is better than two.
const MANY: usize = 12;

/// A collected log.
struct Collected {
    number: u64,
    blocks: Vec<Arc<TreeBlock>>,
    /// Address and level of its root.
    top: (u64, u8),
    /// Blocks that it no longer contains.
    left: Vec<u64>,
}

/// Waits until log `number` is durable, or makes it so.
///
/// # Errors
/// The reason why the transaction must be committed instead.
pub(super) fn commit(h: &mut Handle, fsyncs: &Fsyncs, number: u64) -> Result<(), CommitReason> {
    let store = h.store().clone();
    let trans = h.trans().clone();
    let log = TransactionLog::of(&trans);
    while !log.is_durable(number) {
        let state = log.state.lock();
        if let Some(cause) = state.broken {
            return Err(cause);
        }
        let many = fsyncs.under_way() >= MANY;
        let most = if many { 1 } else { 2 };
        let free = state.filling - state.durable <= most;
        if state.durable >= number {
            continue;
        }
        if state.filling != number || state.collecting || !free {
            log.signals.of(number).wait(state);
            continue;
        }
        let collected = collect(h, log, state);
        let result = collected
            .map_err(|error| (error, CommitReason::Failed))
            .and_then(|collected| finish(&store, h, log, collected));
        if let Err((error, cause)) = result {
            ::log::warn!(
                "the log of transaction {} is given up: {error}",
                h.transid()
            );
            log.set_broken(cause);
        }
    }
    Ok(())
}

/// Stops loggers for a moment and takes the blocks to write.
fn collect(
    h: &mut Handle,
    log: &TransactionLog,
    mut state: RankedMutexGuard<'_, LogState>,
) -> Result<Collected> {
    state.collecting = true;
    while state.loggers > 0 {
        state.wait(&log.signals.quiet);
    }
    let root = state.root.clone();
    let trees: Vec<_> = state.trees.values().cloned().collect();
    drop(state);
    let done = (|| -> Result<(u64, u8)> {
        let Some(root) = root else {
            return Ok((0, 0));
        };
        for tree in trees {
            let known = tree.tree.item().bytenr.get();
            let first = root.get(h, &tree.item_key())?.is_none();
            if first || known != tree.tree.node().bytenr() {
                let item = tree.item(h.transid());
                root.put(h, &tree.item_key(), item.bytes())?;
            }
        }
        let node = root.node();
        Ok((node.bytenr(), node.level()))
    })();
    let log_blocks = &h.trans().log_blocks;
    let blocks = log_blocks.dirty.take();
    freeze(&blocks);
    let left = log_blocks.take_left();
    let mut state = log.state.lock();
    let number = state.filling;
    state.filling += 1;
    state.collecting = false;
    log.signals.opened.notify_all();
    Ok(Collected {
        number,
        blocks,
        top: done?,
        left,
    })
}

/// Writes a collected log and makes the superblock name it.
fn finish(
    store: &Arc<Store>,
    h: &Handle,
    log: &TransactionLog,
    collected: Collected,
) -> Result<(), (crate::Error, CommitReason)> {
    let failed = |error| (error, CommitReason::LogWrite);
    write_blocks(store, &collected.blocks).map_err(failed)?;
    let bytes = collected.blocks.len() as u64 * u64::from(store.nodesize);
    Counters::add(&store.counters.log.bytes, bytes);
    {
        let mut state = log.state.lock();
        while state.written + 1 < collected.number && state.broken.is_none() {
            state.wait(&log.signals.written);
        }
        if state.broken.is_some() {
            return Ok(());
        }
        state.written = collected.number;
        log.signals.written.notify_all();
    }
    // Its blocks must be readable as soon as the superblock names them, but a new chunk becomes
    // durable only with a commit.
    if store.space.has_pending_chunks() {
        log.set_broken(CommitReason::NewChunk);
        return Ok(());
    }
    store.volume.flush().map_err(failed)?;
    Counters::count(&store.counters.log.flushes);
    let order = store.transactions.superblock_order.lock();
    if log.state.lock().durable < collected.number {
        store
            .health
            .check()
            .map_err(|reason| failed(reason.into()))?;
        let mut sb = store.super_block.lock().clone();
        debug_assert_eq!(sb.generation.get() + 1, h.transid());
        (sb.log_root, sb.log_root_level) = (collected.top.0.into(), collected.top.1);
        store.volume.write_log_super(&sb).map_err(failed)?;
        if store.volume.acknowledged_from() > sb.generation.get() {
            drop(order);
            log.set_broken(CommitReason::LostDevice);
            return Ok(());
        }
        Counters::add(&store.counters.log.bytes, SUPER_SIZE as u64);
        Counters::count(&store.counters.log.commits);
        Counters::count(&store.counters.log.flushes);
        log.set_durable(collected.number);
    }
    drop(order);
    let log_blocks = &h.trans().log_blocks;
    log_blocks
        .give_back(&store.space, &collected.left)
        .map_err(|error| (error, CommitReason::Failed))
}
