//! Writes the blocks that a scan found to their home locations.

use sapwood_block::Device;

use super::{FastCommits, Record, Recovery, RecoveryPlan};
use crate::format::MAGIC;
use crate::home;
use crate::{Error, Result};

/// Blocks in memory at once.
const BATCH_BYTES: usize = 4 << 20;

impl RecoveryPlan<'_> {
    /// Removes the copies that were revoked after they were logged.
    pub(super) fn drop_revoked(&mut self) {
        let before = self.records.len();
        let revokes = &self.revokes;
        self.records.retain(|target, record| {
            let revoked = revokes.get(target);
            revoked.is_none_or(|index| *index < record.index)
        });
        self.revoked = (before - self.records.len()) as u64;
    }

    /// Refuses copies whose home is no place for metadata.
    pub(super) fn check_targets(&self, allowed: &dyn Fn(u64) -> bool) -> Result<()> {
        let own = |target| !self.log.is_external() && self.log.layout().holds(target);
        let blocks = self.log.home().size() / u64::from(self.log.block_size());
        for (target, record) in &self.records {
            let target = *target;
            if target >= blocks || own(target) || !allowed(target) {
                let transaction = self.transactions.get(record.index);
                let sequence = transaction.map_or(self.end, |one| one.sequence);
                return Err(Error::Target { sequence, target });
            }
        }
        Ok(())
    }

    /// Writes every block, and flushes. `target` is the file system's device, or one on top of it. A
    /// replay may be repeated; after a crash, the kernel or `e2fsck` may also repeat it.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn replay(&self, target: &dyn Device) -> Result<Recovery> {
        let block_size = self.log.block_size();
        self.mend_torn_commits(target)?;
        let batch = (BATCH_BYTES / block_size as usize).max(1);
        let records: Vec<(&u64, &Record)> = self.records.iter().collect();
        for part in records.chunks(batch) {
            let mut contents = Vec::with_capacity(part.len());
            for (block, record) in part {
                contents.push((**block, self.content(record)?));
            }
            let blocks: Vec<(u64, &[u8])> = contents
                .iter()
                .map(|(block, content)| (*block, content.as_slice()))
                .collect();
            home::write_blocks(target, block_size, &blocks)?;
        }
        if !records.is_empty() {
            target.flush()?;
        }
        Ok(self.outcome())
    }

    /// Writes torn commit blocks whole, and flushes. Only their zeros are missing, so that this may
    /// be torn, too.
    fn mend_torn_commits(&self, target: &dyn Device) -> Result<()> {
        let target = if self.log.is_external() {
            &**self.log.device()
        } else {
            target
        };
        for (block, whole) in &self.torn {
            let at = self.log.physical(*block)?;
            home::write_blocks(target, self.log.block_size(), &[(at, whole.as_slice())])?;
        }
        if !self.torn.is_empty() {
            target.flush()?;
        }
        Ok(())
    }

    fn content(&self, record: &Record) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.log.block_size() as usize];
        self.log.read(record.block, &mut bytes)?;
        if let Some(start) = bytes.first_chunk_mut().filter(|_| record.escaped) {
            *start = MAGIC.to_be_bytes();
        }
        Ok(bytes)
    }

    fn outcome(&self) -> Recovery {
        let blocks = self.log.fast_commit_blocks();
        let fast_commit = FastCommits {
            blocks,
            expected: self.end,
        };
        let needed = self.log.needs_recovery();
        Recovery {
            first: self.transactions.first().map(|one| one.sequence),
            last: self.transactions.last().map(|one| one.sequence),
            transactions: self.transactions.len() as u64,
            blocks: self.records.len() as u64,
            revoked: self.revoked,
            fast_commit: (blocks > 0 && needed).then_some(fast_commit),
            // A torn transaction may have left blocks with the number `end`.
            next: self.end.wrapping_add(u32::from(needed)),
        }
    }
}
