//! The commit: makes one transaction durable.
//!
//! # How it works
//! One thread at a time claims a transaction ([`Claim`]). It waits for the handles, calls the
//! engine for its last changes, and takes a snapshot of the blocks. From then on the next
//! transaction runs. Then it writes the snapshot into the log. Order of the blocks there:
//!
//! 1. revoke blocks
//! 2. descriptor blocks, each followed by the blocks that it names
//! 3. the commit block
//!
//! The commit block is written alone, and made durable, after all others are durable: a transaction
//! counts if and only if its commit block is there. The other blocks go out in a few large writes,
//! with zeros at the place of the commit block. A commit block is zero beyond its first sector, so
//! that it cannot be torn: `e2fsck` treats a torn one as corruption, as it sums the whole block.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sapwood_base::lock::assert_held_at_most;

use crate::buffer::Content;
use crate::codec::{Codec, Tag};
use crate::counters::Counters;
use crate::home;
use crate::host::{Closing, Request};
use crate::journal::{Journal, LogSide};
use crate::log::Log;
use crate::nesting::assert_no_handle;
use crate::rank::Rank;
use crate::state::State;
use crate::superblock::Superblock;
use crate::table::CommitRole;
use crate::transaction::{Snapshot, Transaction};
use crate::{Error, Result, Tid};

impl Journal {
    /// Waits until transaction `tid` is durable, and commits it unless another thread does. Callers
    /// that arrive together share one commit. Returns at once if the transaction is durable
    /// already, or if nothing changed in it.
    ///
    /// The caller holds no handle.
    ///
    /// # Errors
    /// The error that aborted the journal, if that was before the transaction was durable.
    pub fn commit(&self, tid: Tid) -> Result<()> {
        assert_no_handle();
        self.commit_until(tid, State::Committed)
    }

    /// Waits until every change made so far is durable.
    ///
    /// # Errors
    /// The error that aborted the journal, also if nothing changed since.
    pub fn commit_all(&self) -> Result<()> {
        match self.table.newest_changed() {
            Some(tid) => self.commit(tid),
            None => self.failure.check(),
        }
    }

    /// Like [`commit_all`](Self::commit_all), and also waits for
    /// [`Host::after_commit`](crate::Host::after_commit): the blocks that the transaction freed may
    /// then be used again.
    ///
    /// # Errors
    /// The error that aborted the journal.
    pub fn commit_and_settle(&self) -> Result<()> {
        match self.table.newest_changed() {
            Some(tid) => self.commit_until(tid, State::Completed),
            None => self.failure.check(),
        }
    }

    /// Writes every block back to its home location and marks the log empty, so that the next mount
    /// has nothing to recover. No handle may start any more.
    ///
    /// # Errors
    /// The error that aborted the journal.
    pub fn close(&self) -> Result<()> {
        self.commit_and_settle()?;
        self.checkpoint()?;
        self.empty_log()
    }

    pub(crate) fn commit_until(&self, tid: Tid, until: State) -> Result<()> {
        assert_held_at_most(Rank::Nothing);
        let mut own = false;
        while let CommitRole::Leader(trans) = self.table.claim_commit(&self.failure, tid, until)? {
            own = true;
            self.run_commit(trans)?;
        }
        if !own {
            Counters::count(&self.counters.shared_commits);
        }
        Ok(())
    }

    /// Requests a checkpoint if the log, or the memory for its blocks, is nearly full.
    fn request_checkpoint_if_low(&self) {
        let many = |side: &LogSide| side.pending.len() > side.many_pending;
        if self.table.log_is_low() || self.log.as_ref().is_some_and(many) {
            self.request(Request::Checkpoint);
        }
    }

    fn run_commit(&self, trans: Arc<Transaction>) -> Result<()> {
        let mut claim = Claim {
            journal: self,
            trans,
            done: false,
        };
        let result = claim.run();
        match &result {
            Ok(()) => claim.done = true,
            Err(err) => self.fail(err),
        }
        result
    }
}

/// A claimed transaction. If it is dropped before its commit is done, by an error or a panic, it
/// aborts the journal, so that no thread waits for ever.
struct Claim<'a> {
    journal: &'a Journal,
    trans: Arc<Transaction>,
    done: bool,
}

impl Claim<'_> {
    fn run(&self) -> Result<()> {
        let (journal, trans) = (self.journal, &self.trans);
        journal.table.drain(trans);
        // A handle that the drain waited for may have aborted the journal.
        journal.failure.check()?;
        let snapshot = self.close()?;
        match &journal.log {
            Some(side) => self.write_log(side, &snapshot)?,
            None => self.write_in_place(&snapshot)?,
        }
        for one in &snapshot.blocks {
            one.buffer.advance_undo(&one.content);
        }
        Counters::count(&journal.counters.commits);
        journal.table.committed(trans);
        if let Some(side) = &journal.log {
            side.pending.wait_complete(&snapshot.revoked);
        }
        drop(snapshot);
        if let Some(host) = journal.host() {
            host.after_commit(trans.tid);
        }
        journal.table.completed(trans);
        journal.request_checkpoint_if_low();
        Ok(())
    }

    /// Calls the engine for its last changes, puts the checksums into the blocks, takes the
    /// snapshot.
    fn close(&self) -> Result<Snapshot> {
        let (journal, trans) = (self.journal, &self.trans);
        if let Some(host) = journal.host() {
            let said = host.before_commit(&Closing {
                table: &journal.table,
                failure: &journal.failure,
                counters: &journal.counters,
                trans,
            });
            said.map_err(|err| Error::Host {
                tid: trans.tid,
                reason: err.to_string().into(),
            })?;
            let members = trans.members();
            for buffer in members.iter().filter(|buffer| buffer.seal().is_some()) {
                host.seal(buffer, &mut buffer.write());
            }
        }
        Ok(trans.snapshot())
    }

    /// Lets the next transaction run, and writes this one to the log.
    fn write_log(&self, side: &LogSide, snapshot: &Snapshot) -> Result<()> {
        let (journal, tid) = (self.journal, self.trans.tid);
        side.pending.will_log(tid, snapshot);
        let cost = cost(side.log.codec(), snapshot);
        let start = journal
            .table
            .unblock(&self.trans, cost)?
            .unwrap_or_default();
        if !side.log.needs_recovery() {
            // The first commit: from now on a recovery reads the log.
            let block = side.log.block_at(start) as u32;
            let begin = |superblock: &mut Superblock| superblock.set_tail(block, tid as u32);
            side.log.update_superblock(begin)?;
        }
        let end = write_blocks(&side.log, &journal.counters, tid, start, snapshot)?;
        // A handle that failed while it changed blocks of this transaction has aborted the journal
        // by now.
        journal.failure.check()?;
        write_commit(&side.log, tid, end)?;
        side.pending.committed(tid, snapshot);
        if side.fast.swap(false, Ordering::SeqCst) {
            side.log.erase_fast_commits()?;
        }
        Ok(())
    }

    /// Lets the next transaction run, and writes the blocks of this one to their home locations.
    fn write_in_place(&self, snapshot: &Snapshot) -> Result<()> {
        let journal = self.journal;
        journal.table.unblock(&self.trans, 0)?;
        let blocks: Vec<(u64, &[u8])> = snapshot
            .blocks
            .iter()
            .map(|one| (one.buffer.block(), one.content.as_slice()))
            .collect();
        let device = journal.cache.device();
        home::write_blocks(&**device, journal.cache.block_size(), &blocks)?;
        device.flush()?;
        Counters::add(&journal.counters.blocks_logged, blocks.len() as u64);
        Ok(())
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.done {
            let err = Error::CommitUnfinished(self.trans.tid);
            self.journal.table.failed(&self.trans);
            self.journal.fail(&err);
        }
    }
}

enum Piece {
    Made(Vec<u8>),
    Shared(Content),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Made(bytes) => bytes,
            Self::Shared(content) => content,
        }
    }
}

/// Blocks of the log that the snapshot takes, including the commit block.
fn cost(codec: &Codec, snapshot: &Snapshot) -> u64 {
    let blocks = snapshot.blocks.len();
    let descriptors = blocks.div_ceil(codec.tags_per_block());
    let revokes = snapshot.revoked.len().div_ceil(codec.revokes_per_block());
    (blocks + descriptors + revokes + 1) as u64
}

/// Writes all but the commit block from position `at` of the ring on. Returns the position after
/// the last block.
fn write_blocks(
    log: &Log,
    counters: &Counters,
    tid: Tid,
    at: u64,
    snapshot: &Snapshot,
) -> Result<u64> {
    let codec = log.codec();
    let sequence = tid as u32;
    let mut pieces = Vec::new();
    for blocks in snapshot.revoked.chunks(codec.revokes_per_block()) {
        pieces.push(Piece::Made(codec.revoke(sequence, blocks)));
    }
    for part in snapshot.blocks.chunks(codec.tags_per_block()) {
        let mut tags = Vec::with_capacity(part.len());
        let at = pieces.len();
        for one in part {
            let block = one.buffer.block();
            if !codec.is_wide() && block > u64::from(u32::MAX) {
                return Err(Error::Target {
                    sequence,
                    target: block,
                });
            }
            let escaped = Codec::needs_escape(&one.content);
            let piece = if escaped {
                Counters::count(&counters.escaped);
                Piece::Made(escape(&one.content))
            } else {
                Piece::Shared(one.content.clone())
            };
            let checksum = codec.data_checksum(sequence, piece.bytes());
            tags.push(Tag {
                block,
                escaped,
                checksum,
            });
            pieces.push(piece);
        }
        pieces.insert(at, Piece::Made(codec.descriptor(sequence, &tags)));
    }
    let bytes: Vec<&[u8]> = pieces.iter().map(Piece::bytes).collect();
    write_uncommitted(log, at, &bytes)?;
    let blocks = snapshot.blocks.len() as u64;
    let overhead = pieces.len() as u64 + 1 - blocks;
    Counters::add(&counters.blocks_logged, blocks);
    Counters::add(&counters.log_overhead_blocks, overhead);
    Counters::add(&counters.revokes, snapshot.revoked.len() as u64);
    Ok(at + pieces.len() as u64)
}

/// Writes the blocks of a transaction from position `at` of the ring on, and zeros after the last
/// one, where its commit block is to be.
pub(crate) fn write_uncommitted(log: &Log, at: u64, pieces: &[&[u8]]) -> Result<()> {
    let zeros = vec![0; log.block_size() as usize];
    let mut pieces = pieces.to_vec();
    pieces.push(&zeros);
    log.write_ring(at, &pieces)
}

/// Makes all preceding writes durable, then writes the commit block at position `at`, durably.
pub(crate) fn write_commit(log: &Log, tid: Tid, at: u64) -> Result<()> {
    log.flush()?;
    let now = log.time();
    let block = log
        .codec()
        .commit(tid as u32, now.as_secs(), now.subsec_nanos());
    log.write_ring_fua(at, &block)
}

/// A copy of the block with zeros in place of the magic.
pub(crate) fn escape(content: &[u8]) -> Vec<u8> {
    let mut bytes = content.to_vec();
    if let Some(start) = bytes.first_chunk_mut::<4>() {
        start.fill(0);
    }
    bytes
}
