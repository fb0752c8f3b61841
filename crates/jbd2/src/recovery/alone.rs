//! Replaces the log by one transaction that a recovery wrote.
//!
//! A recovery that replays more than the blocks of the log, for example fast commits, changes many
//! blocks that belong together. If it wrote them home one by one, a power cut could leave some of
//! them. As one transaction of the log, a later recovery replays all of them or none.

use crate::codec::{Codec, Tag};
use crate::log::Log;
use crate::{Error, Result, commit};

impl Log {
    /// Makes these blocks, in rising order, the only transaction of an empty log, durably. Returns
    /// false, with nothing changed, if they do not fit. A recovery would write them home;
    /// [`finish_alone`](Self::finish_alone) follows once they are there.
    ///
    /// # Errors
    /// [`Error::NeedsRecovery`](crate::Error::NeedsRecovery) if the log is not empty;
    /// [`Error::Device`](crate::Error::Device).
    pub fn commit_alone(&self, blocks: &[(u64, Vec<u8>)]) -> Result<bool> {
        if self.needs_recovery() {
            return Err(Error::NeedsRecovery);
        }
        self.write_alone(self.superblock().sequence(), blocks)
    }

    /// Marks the log empty after its transaction of [`commit_alone`](Self::commit_alone) is durable
    /// at home.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    pub fn finish_alone(&self) -> Result<()> {
        let next = self.superblock().sequence().wrapping_add(1);
        self.update_superblock(|superblock| superblock.set_tail(0, next))
    }

    /// Replaces the log by one transaction with these blocks, in rising order, and makes it
    /// durable. Returns false, with nothing changed, if they do not fit. `sequence` is the number
    /// after that of the last transaction of the log, whose blocks must be durable at home. The new
    /// transaction supersedes fast commits that follow the last transaction, in the same write.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    pub fn write_alone(&self, sequence: u32, blocks: &[(u64, Vec<u8>)]) -> Result<bool> {
        let codec = self.codec();
        let descriptors = blocks.len().div_ceil(codec.tags_per_block());
        let cost = (blocks.len() + descriptors + 1) as u64;
        let wide = blocks
            .last()
            .is_some_and(|(block, _)| *block > u64::from(u32::MAX));
        if cost > self.size() || wide && !codec.is_wide() {
            return Ok(false);
        }
        let mut pieces = Vec::new();
        for part in blocks.chunks(codec.tags_per_block()) {
            let mut tags = Vec::with_capacity(part.len());
            let at = pieces.len();
            for (block, content) in part {
                let escaped = Codec::needs_escape(content);
                let piece = if escaped {
                    commit::escape(content)
                } else {
                    content.clone()
                };
                tags.push(Tag {
                    block: *block,
                    escaped,
                    checksum: codec.data_checksum(sequence, &piece),
                });
                pieces.push(piece);
            }
            pieces.insert(at, codec.descriptor(sequence, &tags));
        }
        // First an empty log with this number: it makes the fast commits of the old log stale.
        let first = u32::try_from(self.block_at(0)).unwrap_or(1);
        self.update_superblock(|superblock| superblock.set_tail(first, sequence))?;
        let bytes: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        commit::write_uncommitted(self, 0, &bytes)?;
        commit::write_commit(self, sequence.into(), pieces.len() as u64)?;
        // `e2fsck` leaves out the whole log if the area holds those of a committed transaction.
        if self.fast_commit_blocks() > 0 {
            self.erase_fast_commits()?;
        }
        Ok(true)
    }
}
