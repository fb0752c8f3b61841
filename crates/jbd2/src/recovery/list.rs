//! Lists the blocks of a log for display. It validates nothing and refuses nothing.

use zerocopy::FromBytes;

use super::reader::Reader;
use crate::Result;
use crate::codec::Codec;
use crate::format::{RawCommit, block_type};
use crate::log::Log;

/// A copy of a block in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogCopy {
    /// Home location of the block.
    pub home: u64,
    /// Block of the journal that holds the copy.
    pub at: u64,
    /// The copy begins with zeros in place of the journal's magic.
    pub escaped: bool,
    /// The checksum is right, or there is none.
    pub good: bool,
}

/// A block of the journal itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEntry {
    /// Names the copies that follow it.
    Descriptor {
        /// Transaction.
        sequence: u32,
        /// Block of the journal.
        block: u64,
        /// The copies.
        copies: Vec<LogCopy>,
        /// The checksum is right, or there is none.
        good: bool,
    },
    /// Names blocks whose older copies are not replayed.
    Revoke {
        /// Transaction.
        sequence: u32,
        /// Block of the journal.
        block: u64,
        /// The blocks.
        homes: Vec<u64>,
        /// Its checksum and size are right.
        good: bool,
    },
    /// Ends a transaction.
    Commit {
        /// Transaction.
        sequence: u32,
        /// Block of the journal.
        block: u64,
        /// Time of the commit, in seconds since 1970.
        seconds: u64,
        /// Its checksum is right, or it has none. A checksum of version 1 is not verified.
        good: bool,
    },
    /// The first block that is not part of the next transaction.
    End {
        /// The transaction that would come next.
        sequence: u32,
        /// Block of the journal.
        block: u64,
    },
}

impl Log {
    /// Calls `each` for every block that the journal itself wrote, from the tail to the first block
    /// that does not belong to the next transaction. Calls it never if the log is empty. Checksums
    /// are verified, but a wrong one does not end the list.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device).
    pub fn entries(&self, each: &mut dyn FnMut(LogEntry)) -> Result<()> {
        if !self.needs_recovery() {
            return Ok(());
        }
        let superblock = self.superblock();
        let mut sequence = superblock.sequence();
        let begin = self.position_of(superblock.start().into());
        let mut ring = (begin..begin + self.size()).map(|at| self.block_at(at));
        let mut reader = Reader::new(self);
        while let Some(block) = ring.next() {
            let bytes = reader.block(block)?.to_vec();
            let header = Codec::header(&bytes).filter(|h| h.sequence.get() == sequence);
            let kind = header.map(|header| header.block_type.get());
            match kind {
                Some(block_type::DESCRIPTOR) => {
                    let copies = self.copies(&bytes, sequence, &mut ring, &mut reader)?;
                    let good = self.codec().tail_is_good(&bytes);
                    each(LogEntry::Descriptor {
                        sequence,
                        block,
                        copies,
                        good,
                    });
                }
                Some(block_type::REVOKE) => {
                    let homes = self.codec().revoked(&bytes).map(Vec::from_iter);
                    let good = self.codec().tail_is_good(&bytes) && homes.is_some();
                    each(LogEntry::Revoke {
                        sequence,
                        block,
                        homes: homes.unwrap_or_default(),
                        good,
                    });
                }
                Some(block_type::COMMIT) => {
                    let commit = RawCommit::read_from_prefix(&bytes);
                    each(LogEntry::Commit {
                        sequence,
                        block,
                        seconds: commit.map_or(0, |(raw, _)| raw.seconds.get()),
                        good: self.codec().commit_is_good(&bytes),
                    });
                    sequence = sequence.wrapping_add(1);
                }
                _ => {
                    each(LogEntry::End { sequence, block });
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The copies that a descriptor names; they follow it in the ring.
    fn copies(
        &self,
        descriptor: &[u8],
        sequence: u32,
        ring: &mut dyn Iterator<Item = u64>,
        reader: &mut Reader<'_>,
    ) -> Result<Vec<LogCopy>> {
        let codec = self.codec();
        let mut copies = Vec::new();
        for tag in codec.tags(descriptor) {
            let Some(at) = ring.next() else {
                break;
            };
            let data = reader.block(at)?;
            copies.push(LogCopy {
                home: tag.block,
                at,
                escaped: tag.escaped,
                good: !codec.has_checksums() || codec.data_checksum(sequence, data) == tag.checksum,
            });
        }
        Ok(copies)
    }
}
