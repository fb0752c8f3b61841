//! Reads the log from its tail to its end.

use std::collections::{BTreeMap, HashMap};

use zerocopy::FromBytes;

use super::reader::Reader;
use super::{Record, RecoveryPlan, Scanned};
use crate::checksum::crc32_be;
use crate::codec::Codec;
use crate::error::Damage;
use crate::format::{CHECKSUM_CRC32, Compat, Incompat, RawCommit, block_type};
use crate::log::Log;
use crate::{Error, Result};

/// The transaction being read.
#[derive(Debug, Default)]
struct Current {
    /// Block of the journal at which it begins.
    begin: u64,
    records: Vec<(u64, Record)>,
    revokes: Vec<u64>,
    /// The first damage found in it.
    damage: Option<(u64, Damage)>,
    /// Checksum of version 1 so far.
    crc: u32,
}

/// A transaction that does not count. What follows it decides whether it was the last.
#[derive(Debug, Clone, Copy)]
struct Broken {
    sequence: u32,
    block: u64,
    damage: Damage,
}

impl From<Broken> for Error {
    fn from(broken: Broken) -> Self {
        Self::Corrupt {
            sequence: broken.sequence,
            block: broken.block,
            reason: broken.damage,
        }
    }
}

struct Scan<'a> {
    log: &'a Log,
    codec: Codec,
    /// Commit blocks have checksums of version 1.
    sums: bool,
    /// Commit blocks may be written before the blocks that they commit.
    early: bool,
    reader: Reader<'a>,
    /// Position in the ring.
    at: u64,
    /// Blocks of the log that are not examined yet.
    left: u64,
    sequence: u32,
    current: Current,
    broken: Option<Broken>,
    plan: RecoveryPlan<'a>,
}

pub(super) fn scan(log: &Log) -> Result<RecoveryPlan<'_>> {
    let superblock = log.superblock();
    let plan = RecoveryPlan {
        log,
        transactions: Vec::new(),
        records: BTreeMap::new(),
        revokes: HashMap::new(),
        revoked: 0,
        torn: Vec::new(),
        end: superblock.sequence(),
    };
    if !log.needs_recovery() {
        return Ok(plan);
    }
    let mut scan = Scan {
        log,
        codec: *log.codec(),
        sums: superblock.compat().contains(Compat::CHECKSUM),
        early: superblock.incompat().contains(Incompat::ASYNC_COMMIT),
        reader: Reader::new(log),
        at: log.position_of(superblock.start().into()),
        left: log.size(),
        sequence: superblock.sequence(),
        current: Current::default(),
        broken: None,
        plan,
    };
    scan.begin();
    while scan.block()? {}
    scan.look_ahead()?;
    Ok(scan.plan)
}

impl Scan<'_> {
    /// Begins the next transaction at the current position.
    fn begin(&mut self) {
        self.current = Current {
            begin: self.log.block_at(self.at),
            crc: !0,
            ..Current::default()
        };
    }

    /// Advances to the next block. Returns its number in the journal, or `None` after a full round.
    fn step(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        let block = self.log.block_at(self.at);
        self.at += 1;
        Some(block)
    }

    fn damaged(&mut self, block: u64, damage: Damage) {
        self.current.damage.get_or_insert((block, damage));
    }

    /// Examines one block that the journal wrote, and the copies that it names. False at the end of
    /// the log.
    fn block(&mut self) -> Result<bool> {
        let Some(block) = self.step() else {
            return Ok(false);
        };
        let bytes = self.reader.block(block)?;
        let header = Codec::header(bytes).filter(|h| h.sequence.get() == self.sequence);
        let Some(header) = header else {
            return Ok(false);
        };
        // Copied, because reading the named blocks replaces the window.
        let bytes = bytes.to_vec();
        match header.block_type.get() {
            block_type::DESCRIPTOR => self.descriptor(block, &bytes),
            block_type::REVOKE => {
                self.revoke(block, &bytes);
                Ok(true)
            }
            block_type::COMMIT => self.commit(block, &bytes),
            _ => Ok(false),
        }
    }

    fn descriptor(&mut self, block: u64, bytes: &[u8]) -> Result<bool> {
        if !self.codec.tail_is_good(bytes) {
            self.damaged(block, Damage::Descriptor);
        }
        if self.sums {
            self.current.crc = crc32_be(self.current.crc, bytes);
        }
        for tag in self.codec.tags(bytes) {
            let Some(at) = self.step() else {
                return Ok(false);
            };
            if self.sums || self.codec.has_checksums() {
                let data = self.reader.block(at)?;
                if self.sums {
                    self.current.crc = crc32_be(self.current.crc, data);
                }
                if self.codec.data_checksum(self.sequence, data) != tag.checksum
                    && self.codec.has_checksums()
                {
                    self.damaged(at, Damage::Data);
                }
            }
            let record = Record {
                index: self.plan.transactions.len(),
                block: at,
                escaped: tag.escaped,
            };
            self.current.records.push((tag.block, record));
        }
        Ok(true)
    }

    fn revoke(&mut self, block: u64, bytes: &[u8]) {
        match self.codec.revoked(bytes) {
            Some(blocks) if self.codec.tail_is_good(bytes) => self.current.revokes.extend(blocks),
            _ => self.damaged(block, Damage::Revoke),
        }
    }

    fn commit(&mut self, block: u64, bytes: &[u8]) -> Result<bool> {
        let Ok((commit, _)) = RawCommit::read_from_prefix(bytes) else {
            return Ok(false);
        };
        let good = self.codec.commit_is_good(bytes) && self.old_sum_is_good(&commit);
        let damage = if good {
            self.current.damage
        } else {
            Some((block, Damage::Commit))
        };
        let Some((at, damage)) = damage else {
            // The transaction is complete.
            if let Some(broken) = self.broken {
                return Err(broken.into());
            }
            let whole = Codec::whole_commit(bytes);
            if self.codec.has_checksums() && whole != bytes {
                self.plan.torn.push((block, whole));
            }
            self.accept(&commit);
            return Ok(true);
        };
        let broken = Broken {
            sequence: self.sequence,
            block: at,
            damage,
        };
        if good && !self.early {
            return Err(broken.into());
        }
        self.broken.get_or_insert(broken);
        self.sequence = self.sequence.wrapping_add(1);
        self.begin();
        Ok(true)
    }

    /// Whether a checksum of version 1 is right, or there is none.
    fn old_sum_is_good(&self, commit: &RawCommit) -> bool {
        if !self.sums {
            return true;
        }
        let sum = commit.checksum[0].get();
        match (commit.checksum_type, commit.checksum_size) {
            (CHECKSUM_CRC32, 4) => sum == self.current.crc,
            (0, 0) => sum == 0,
            _ => false,
        }
    }

    fn accept(&mut self, commit: &RawCommit) {
        let current = std::mem::take(&mut self.current);
        let index = self.plan.transactions.len();
        self.plan.transactions.push(Scanned {
            sequence: self.sequence,
            block: current.begin,
            blocks: current.records.len() as u64,
            revokes: current.revokes.len() as u64,
            seconds: commit.seconds.get(),
        });
        self.plan.records.extend(current.records);
        let revokes = current.revokes.into_iter().map(|block| (block, index));
        self.plan.revokes.extend(revokes);
        self.sequence = self.sequence.wrapping_add(1);
        self.plan.end = self.sequence;
        self.begin();
    }

    /// Searches past the end for a commit block that proves that the log was longer.
    fn look_ahead(&mut self) -> Result<()> {
        let last = self.plan.transactions.last();
        let since = last.map_or(0, |one| one.seconds);
        if !self.codec.has_checksums() {
            return Ok(());
        }
        // A transaction takes at most a quarter of the log.
        for _ in 0..self.left.min(self.log.size() / 3) {
            let Some(block) = self.step() else {
                break;
            };
            let bytes = self.reader.block(block)?;
            let Some(header) = Codec::header(bytes) else {
                continue;
            };
            let ahead = header.sequence.get().wrapping_sub(self.plan.end);
            let is_commit = header.block_type.get() == block_type::COMMIT;
            // With early commit blocks, the commit block of the torn transaction itself proves
            // nothing.
            let expected = u64::from(self.early)..self.log.size();
            if !is_commit || !expected.contains(&u64::from(ahead)) {
                continue;
            }
            let commit = RawCommit::read_from_prefix(bytes);
            let younger = commit.is_ok_and(|(raw, _)| raw.seconds.get() >= since);
            if younger && self.codec.commit_is_good(bytes) {
                return Err(Error::Corrupt {
                    sequence: self.plan.end,
                    block: self.current.begin,
                    reason: Damage::Gap,
                });
            }
        }
        Ok(())
    }
}
