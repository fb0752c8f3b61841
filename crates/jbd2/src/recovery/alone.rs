//! Replaces the log by one transaction that a recovery wrote.
//!
//! A recovery that replays more than the blocks of the log, for example fast commits, changes many
//! blocks that belong together. If it wrote them one by one, a power cut could leave some of them.
//! A later recovery replays one transaction of the log as a whole, or not at all.

use std::borrow::Cow;

use crate::codec::{Codec, Tag};
use crate::log::Log;
use crate::{Error, Result, commit};

impl Log {
    /// Makes these blocks, in rising order, the only transaction of an empty log, durably. Returns
    /// false, with nothing changed, if they do not fit. A recovery would replay them. The caller
    /// writes them to their home locations and then calls [`finish_alone`](Self::finish_alone).
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

    /// Most blocks of a transaction that [`commit_alone`](Self::commit_alone) can write.
    #[must_use]
    pub fn most_alone(&self) -> u64 {
        // The commit block, and a descriptor for each run of blocks.
        let left = self.size().saturating_sub(1);
        let run = self.codec().tags_per_block() as u64;
        left - left.div_ceil(run + 1)
    }

    /// Marks the log empty. The blocks of its transaction, made by
    /// [`commit_alone`](Self::commit_alone), must be durable at their home locations.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    pub fn finish_alone(&self) -> Result<()> {
        let next = self.superblock().sequence().wrapping_add(1);
        self.update_superblock(|superblock| superblock.set_tail(0, next))
    }

    /// Replaces the log by one transaction with these blocks, in rising order, and makes it
    /// durable. Returns false, with nothing changed, if they do not fit. `sequence` follows the
    /// number of the last transaction of the log, whose blocks must be durable at their home
    /// locations. The new transaction supersedes fast commits that follow the last transaction, in
    /// the same write.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    pub fn write_alone(&self, sequence: u32, blocks: &[(u64, Vec<u8>)]) -> Result<bool> {
        let codec = self.codec();
        let wide = blocks
            .last()
            .is_some_and(|(block, _)| *block > u64::from(u32::MAX));
        if blocks.len() as u64 > self.most_alone() || wide && !codec.is_wide() {
            return Ok(false);
        }
        let mut pieces = Vec::new();
        for part in blocks.chunks(codec.tags_per_block()) {
            let mut tags = Vec::with_capacity(part.len());
            let at = pieces.len();
            for (block, content) in part {
                let escaped = Codec::needs_escape(content);
                let piece = if escaped {
                    Cow::Owned(commit::escape(content))
                } else {
                    Cow::Borrowed(content.as_slice())
                };
                tags.push(Tag {
                    block: *block,
                    escaped,
                    checksum: codec.data_checksum(sequence, &piece),
                });
                pieces.push(piece);
            }
            pieces.insert(at, Cow::Owned(codec.descriptor(sequence, &tags)));
        }
        // First an empty log with this number: it makes the fast commits of the old log stale.
        let first = u32::try_from(self.block_at(0)).unwrap_or(1);
        self.update_superblock(|superblock| superblock.set_tail(first, sequence))?;
        let bytes: Vec<&[u8]> = pieces.iter().map(AsRef::as_ref).collect();
        commit::write_uncommitted(self, 0, &bytes)?;
        commit::write_commit(self, sequence.into(), pieces.len() as u64)?;
        // `e2fsck` ignores the whole log if the area holds fast commits of a committed transaction.
        if self.fast_commit_blocks() > 0 {
            self.erase_fast_commits()?;
        }
        Ok(true)
    }
}
