//! Recovery: writes committed blocks from the log to their home locations.
//!
//! # How it works
//! 1. [`Log::scan`] reads the log from its tail and decides which transactions count. It writes
//!    nothing.
//! 2. [`RecoveryPlan::replay`] writes the newest copy of every block that is not revoked, in the
//!    order of the blocks, and flushes. Its target may be an overlay in memory.
//! 3. The engine may replay fast commits.
//! 4. [`Log::reset`] marks the log empty.
//!
//! A crash before the end of the reset changes nothing: the next recovery repeats all steps.
//!
//! Rules:
//! - The log ends at the first block that does not belong to the expected transaction. A
//!   transaction without a commit block does not count, nor does anything after it.
//! - A commit block that was torn after its fields commits its transaction, as in the kernel, but
//!   `e2fsck` rejects its checksum and drops the transaction. So the replay first writes that
//!   commit block again, whole, and flushes, before it replays any block.
//! - A commit block with a wrong checksum was torn, and ends the log before its transaction. If the
//!   transaction after it is complete, the torn one was not the last: the log is damaged, which is
//!   an error.
//! - A good commit block proves that the device had all blocks of its transaction. If one of them
//!   has a wrong checksum, the log is damaged, which is an error. With [`Incompat::ASYNC_COMMIT`],
//!   commit blocks may be written early, so the transaction counts as torn.
//! - With checksums, a later commit block of this log past its end proves that the log was damaged
//!   there, which is an error. The commit block must not be older than the newest one that counts,
//!   so that a stale one of an earlier journal is not taken for it.
//! - A revoke record cancels copies of the block in its own and older transactions.
//! - A block's home must be allowed by the caller, and never lies in the journal itself.
//!
//! The size of the log bounds the work: each of its blocks is examined once.
//!
//! [`Incompat::ASYNC_COMMIT`]: crate::Incompat::ASYNC_COMMIT

mod alone;
mod list;
mod reader;
mod replay;
mod scan;

use std::collections::{BTreeMap, HashMap};

pub use list::{LogCopy, LogEntry};

use crate::Result;
use crate::log::Log;

/// A committed transaction that a scan found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scanned {
    /// Its sequence number.
    pub sequence: u32,
    /// Block of the journal at which it begins.
    pub block: u64,
    /// Blocks that it logged.
    pub blocks: u64,
    /// Blocks that it revoked.
    pub revokes: u64,
    /// Time of the commit, in seconds since 1970.
    pub seconds: u64,
}

/// A copy of a block in the log.
#[derive(Debug, Clone, Copy)]
struct Record {
    /// Index of its transaction in the scan.
    index: usize,
    /// Block of the journal that holds it.
    block: u64,
    escaped: bool,
}

/// The work of a recovery. Nothing is written yet.
#[derive(Debug)]
pub struct RecoveryPlan<'a> {
    log: &'a Log,
    transactions: Vec<Scanned>,
    /// The newest copy of each block, by home location.
    records: BTreeMap<u64, Record>,
    /// The newest transaction that revoked a block, by block.
    revokes: HashMap<u64, usize>,
    /// Blocks with revoked copies only.
    revoked: u64,
    /// Torn commit blocks of transactions that count: block of the journal, and the whole content.
    torn: Vec<(u64, Vec<u8>)>,
    /// Sequence number after the last transaction.
    end: u32,
}

/// Result of a recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovery {
    /// Sequence number of the first transaction that was replayed.
    pub first: Option<u32>,
    /// Sequence number of the last transaction that was replayed.
    pub last: Option<u32>,
    /// Transactions.
    pub transactions: u64,
    /// Blocks written.
    pub blocks: u64,
    /// Blocks whose copies were all revoked.
    pub revoked: u64,
    /// Where the engine has to look for fast commits. `None` if the journal has no area for them or
    /// the log was empty.
    pub fast_commit: Option<FastCommits>,
    /// Sequence number of the next transaction after a reset.
    next: u32,
}

/// The area of fast commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FastCommits {
    /// Its blocks; see [`Log::read_fast_commit`].
    pub blocks: u64,
    /// The transaction that current fast commits belong to.
    pub expected: u32,
}

impl Log {
    /// Plans a recovery. Writes nothing. `allowed` returns whether a block may be a home location.
    /// Blocks of the journal and blocks past the end of the device are refused even if it allows
    /// them.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt), [`Error::Target`](crate::Error::Target),
    /// [`Error::Device`](crate::Error::Device).
    pub fn scan(&self, allowed: &dyn Fn(u64) -> bool) -> Result<RecoveryPlan<'_>> {
        let mut plan = scan::scan(self)?;
        plan.drop_revoked();
        plan.check_targets(allowed)?;
        Ok(plan)
    }

    /// Marks the log empty. The replay must be durable.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    pub fn reset(&self, recovery: &Recovery) -> Result<()> {
        self.update_superblock(|superblock| superblock.set_tail(0, recovery.next))
    }

    /// Scans, replays to the file system's device and resets. For journals without fast commits.
    /// Does nothing for an empty log.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt), [`Error::Target`](crate::Error::Target),
    /// [`Error::Device`](crate::Error::Device).
    pub fn recover(&self, allowed: &dyn Fn(u64) -> bool) -> Result<Recovery> {
        let plan = self.scan(allowed)?;
        let recovery = plan.replay(&**self.home())?;
        if self.needs_recovery() {
            self.reset(&recovery)?;
        }
        Ok(recovery)
    }
}

impl RecoveryPlan<'_> {
    /// The committed transactions, the oldest first.
    #[must_use]
    pub fn transactions(&self) -> &[Scanned] {
        &self.transactions
    }

    /// Blocks that a replay will write, in order.
    pub fn targets(&self) -> impl Iterator<Item = u64> + '_ {
        self.records.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sapwood_block::{Device, MemoryDevice};
    use sapwood_testing::{Action, RecordDevice};

    use super::*;
    use crate::codec::Tag;
    use crate::format::Incompat;
    use crate::superblock::NewJournal;
    use crate::{LayoutMap, LayoutRun};

    /// A log with these blocks, on a device that has the journal at block 100.
    fn log_of(blocks: impl FnOnce(&crate::codec::Codec) -> Vec<Vec<u8>>) -> Log {
        let device = Arc::new(MemoryDevice::new(200 << 10));
        let new = NewJournal {
            block_size: 1024,
            blocks: 50,
            fast_commit_blocks: 0,
            uuid: [1; 16],
            external_at: None,
        };
        device
            .write_at(100 << 10, &new.superblock().unwrap())
            .unwrap();
        let run = LayoutRun {
            logical: 0,
            physical: 100,
            len: 50,
        };
        let layout = LayoutMap::new(vec![run], 200).unwrap();
        let mut log = Log::load(device, layout, 1024).unwrap();
        log.set_form(Incompat::CSUM_V3).unwrap();
        let blocks = blocks(log.codec());
        let pieces: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
        log.write_ring(0, &pieces).unwrap();
        log.update_superblock(|superblock| superblock.set_tail(1, u32::MAX))
            .unwrap();
        log
    }

    fn logged(codec: &crate::codec::Codec, sequence: u32, block: u64, byte: u8) -> [Vec<u8>; 2] {
        let data = vec![byte; 1024];
        let tag = Tag {
            block,
            escaped: false,
            checksum: codec.data_checksum(sequence, &data),
        };
        [codec.descriptor(sequence, &[tag]), data]
    }

    #[test]
    fn a_revoke_counts_for_its_own_and_older_transactions() {
        // The sequence numbers wrap, too.
        let (one, two) = (u32::MAX, 0);
        let log = log_of(|codec| {
            let mut blocks = Vec::new();
            blocks.extend(logged(codec, one, 5, 1));
            blocks.extend(logged(codec, one, 6, 1));
            blocks.push(codec.commit(one, 0, 0));
            blocks.extend(logged(codec, two, 5, 2));
            blocks.push(codec.revoke(two, &[5, 6]));
            blocks.push(codec.commit(two, 0, 0));
            blocks.extend(logged(codec, 1, 6, 3));
            blocks.push(codec.commit(1, 0, 0));
            blocks
        });
        let plan = log.scan(&|_| true).unwrap();
        assert_eq!(plan.targets().collect::<Vec<_>>(), [6]);
        let recovery = plan.replay(&**log.device()).unwrap();
        assert_eq!((recovery.first, recovery.last), (Some(one), Some(1)));
        assert_eq!((recovery.blocks, recovery.revoked), (1, 1));
        let mut byte = [0];
        log.device().read_at(6 << 10, &mut byte).unwrap();
        assert_eq!(byte, [3]);
    }

    #[test]
    fn a_torn_commit_block_ends_the_log_if_it_is_the_last() {
        // In the fields of the block.
        let torn = |codec: &crate::codec::Codec| torn_commit(codec, 0, 50);
        let log = log_of(|codec| {
            let mut blocks = logged(codec, u32::MAX, 5, 1).to_vec();
            blocks.push(codec.commit(u32::MAX, 0, 0));
            blocks.extend(logged(codec, 0, 5, 2));
            blocks.push(torn(codec));
            blocks
        });
        let plan = log.scan(&|_| true).unwrap();
        assert_eq!(plan.transactions().len(), 1);
        let log = log_of(|codec| {
            let mut blocks = logged(codec, u32::MAX, 5, 1).to_vec();
            blocks.push(codec.commit(u32::MAX, 0, 0));
            blocks.push(torn(codec));
            blocks.push(codec.commit(1, 0, 0));
            blocks
        });
        let err = log.scan(&|_| true).unwrap_err();
        let reason = crate::Damage::Commit;
        assert!(
            matches!(err, crate::Error::Corrupt { sequence: 0, reason: seen, .. } if seen == reason)
        );
    }

    #[test]
    fn a_committed_block_with_a_wrong_checksum_is_damage() {
        let log = log_of(|codec| {
            let mut blocks = logged(codec, u32::MAX, 5, 1).to_vec();
            blocks.push(codec.commit(u32::MAX, 0, 0));
            blocks.extend(logged(codec, 0, 6, 2));
            blocks.push(codec.commit(0, 0, 0));
            if let Some(byte) = blocks[4].last_mut() {
                *byte ^= 1;
            }
            blocks
        });
        let err = log.scan(&|_| true).unwrap_err();
        let reason = crate::Damage::Data;
        assert!(
            matches!(err, crate::Error::Corrupt { sequence: 0, reason: seen, .. } if seen == reason)
        );
    }

    #[test]
    fn a_commit_block_torn_after_its_fields_commits() {
        let log = log_of(|codec| {
            let mut blocks = logged(codec, u32::MAX, 5, 1).to_vec();
            blocks.push(codec.commit(u32::MAX, 0, 0));
            blocks.extend(logged(codec, 0, 5, 2));
            blocks.push(torn_commit(codec, 0, 512));
            blocks
        });
        let plan = log.scan(&|_| true).unwrap();
        assert_eq!(plan.transactions().len(), 2);
    }

    #[test]
    fn a_torn_commit_block_is_whole_and_durable_before_anything_is_home() {
        let written = log_of(|codec| {
            let mut blocks = logged(codec, u32::MAX, 5, 1).to_vec();
            blocks.push(torn_commit(codec, u32::MAX, 512));
            blocks
        });
        let device = Arc::new(RecordDevice::new(MemoryDevice::new(200 << 10)));
        let mut image = vec![0; 200 << 10];
        written.device().read_at(0, &mut image).unwrap();
        device.inner().write_at(0, &image).unwrap();
        let log = Log::load(device.clone(), written.layout().clone(), 1024).unwrap();
        let before = log.scan(&|_| true).unwrap();
        before.replay(&**log.device()).unwrap();
        let whole = log.codec().commit(u32::MAX, 0, 0);
        let log = device.log();
        let actions: Vec<&Action> = log.entries().iter().map(|entry| &entry.action).collect();
        let [
            Action::Write { offset, data, .. },
            Action::Flush,
            home,
            Action::Flush,
        ] = &actions[..]
        else {
            panic!("{actions:?}");
        };
        assert_eq!((*offset, data[..] == whole), (103 << 10, true));
        assert_eq!(home.range(), Some((5 << 10, 1024)));
        // There is nothing to mend the next time.
        let again = Log::load(device.clone(), written.layout().clone(), 1024).unwrap();
        assert!(again.scan(&|_| true).unwrap().torn.is_empty());
    }

    /// A commit block, overwritten from byte `from` on.
    fn torn_commit(codec: &crate::codec::Codec, sequence: u32, from: usize) -> Vec<u8> {
        let mut block = codec.commit(sequence, 0, 0);
        block[from..].fill(7);
        block
    }
}
