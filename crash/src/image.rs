//! [`Images`]: finds crashes that leave the same image, without making the images.
//!
//! # How it works
//! Two crashes of a workload can differ only in sectors that the workload wrote. These sectors are
//! numbered, and each write has the hashes of the sectors that it writes. So an image is a list of
//! hashes, made without copying data. Two crashes with equal lists leave the same image. Two
//! crashes whose lists agree in all sectors that a recovery reads have the same result: recovery is
//! deterministic. A [`Footprint`] records those sectors.

use std::collections::HashMap;

use sapwood_block::{Device, MemoryDevice, SECTOR_SIZE};
use sapwood_testing::{Action, CrashPlan, RecordLog, Torn};
use xxhash_rust::xxh64::xxh64;

/// Hashes of the sectors in which crashes can differ, by number.
pub type Signature = Vec<u64>;

/// The sectors that a recovery read, with their hashes.
#[derive(Debug, Clone, Default)]
pub struct Footprint(Vec<(u32, u64)>);

impl Footprint {
    /// True if the image has the same content in all these sectors.
    #[must_use]
    pub fn matches(&self, signature: &Signature) -> bool {
        let mut read = self.0.iter();
        read.all(|(sector, hash)| signature.get(*sector as usize) == Some(hash))
    }
}

/// Signatures of the images of one recording.
#[derive(Debug)]
pub struct Images<'a> {
    log: &'a RecordLog,
    numbers: HashMap<u64, u32>,
    base: Signature,
    /// For each entry the sectors that it writes, with their new hashes.
    writes: Vec<Vec<(u32, u64)>>,
    /// For each entry the step at which it began, and the one that made it durable.
    fates: Vec<(usize, Option<usize>)>,
}

impl<'a> Images<'a> {
    /// The images of crashes of this log, which began on `base`.
    ///
    /// # Errors
    /// If a write is not made of whole sectors, or `base` cannot be read.
    pub fn new(log: &'a RecordLog, base: &MemoryDevice) -> Result<Self, String> {
        let mut images = Self {
            log,
            numbers: HashMap::new(),
            base: Vec::new(),
            writes: Vec::new(),
            fates: fates(log),
        };
        for entry in log.entries() {
            let mut sectors = Vec::new();
            if let Some((offset, len)) = entry.action.range() {
                if offset % SECTOR_SIZE != 0 || len % SECTOR_SIZE != 0 {
                    return Err(format!("a write of {len} bytes at {offset}"));
                }
                for index in 0..len / SECTOR_SIZE {
                    let sector = offset / SECTOR_SIZE + index;
                    let hash = match &entry.action {
                        Action::Write { data, .. } => {
                            let at = (index * SECTOR_SIZE) as usize;
                            hash(&data[at..at + SECTOR_SIZE as usize])
                        }
                        Action::Discard { .. } | Action::Flush => {
                            hash(&[log.discarded(); SECTOR_SIZE as usize])
                        }
                    };
                    sectors.push((images.number(sector, base)?, hash));
                }
            }
            images.writes.push(sectors);
        }
        Ok(images)
    }

    fn number(&mut self, sector: u64, base: &MemoryDevice) -> Result<u32, String> {
        if let Some(number) = self.numbers.get(&sector) {
            return Ok(*number);
        }
        let mut there = [0; SECTOR_SIZE as usize];
        let read = base.read_at(sector * SECTOR_SIZE, &mut there);
        read.map_err(|error| error.to_string())?;
        let number = self.base.len() as u32;
        self.base.push(hash(&there));
        self.numbers.insert(sector, number);
        Ok(number)
    }

    /// The image after a crash.
    #[must_use]
    pub fn signature(&self, plan: &CrashPlan) -> Signature {
        let mut signature = self.base.clone();
        for (entry, (began, durable)) in self.fates.iter().enumerate() {
            if *began >= plan.at {
                break;
            }
            let durable = durable.is_some_and(|step| step < plan.at);
            let sectors = &self.writes[entry];
            let mut put = |range: std::ops::Range<usize>| {
                for (sector, hash) in sectors.get(range).unwrap_or_default() {
                    signature[*sector as usize] = *hash;
                }
            };
            if durable {
                put(0..sectors.len());
            } else if plan.drop.contains(&entry) {
            } else if let Some(torn) = plan.torn.get(&entry) {
                for part in self.parts(entry, torn) {
                    put(part);
                }
            } else {
                put(0..sectors.len());
            }
        }
        signature
    }

    /// The sectors of an entry that reach the medium.
    fn parts(&self, entry: usize, torn: &Torn) -> Vec<std::ops::Range<usize>> {
        let range = self.log.entries()[entry].action.range();
        let parts = range.map(|(offset, len)| torn.parts(offset, len));
        let sectors = |at: u64| (at / SECTOR_SIZE) as usize;
        let parts = parts.unwrap_or_default().into_iter();
        parts
            .map(|part| sectors(part.start)..sectors(part.end))
            .collect()
    }

    /// The footprint of reads of these byte ranges (offset and length) from an image.
    #[must_use]
    pub fn footprint(&self, signature: &Signature, reads: &[(u64, u64)]) -> Footprint {
        let mut seen: Vec<(u32, u64)> = Vec::new();
        for (offset, len) in reads {
            for sector in offset / SECTOR_SIZE..(offset + len).div_ceil(SECTOR_SIZE) {
                if let Some(number) = self.numbers.get(&sector)
                    && let Some(hash) = signature.get(*number as usize)
                {
                    seen.push((*number, *hash));
                }
            }
        }
        seen.sort_unstable();
        seen.dedup();
        Footprint(seen)
    }
}

/// One hash of a whole signature.
#[must_use]
pub fn digest(signature: &Signature) -> u64 {
    let bytes: Vec<u8> = signature
        .iter()
        .flat_map(|hash| hash.to_le_bytes())
        .collect();
    xxh64(&bytes, 1)
}

fn hash(sector: &[u8]) -> u64 {
    xxh64(sector, 0)
}

fn fates(log: &RecordLog) -> Vec<(usize, Option<usize>)> {
    let mut fates: Vec<(usize, Option<usize>)> = Vec::new();
    for (step, what) in log.steps().iter().enumerate() {
        if let sapwood_testing::Step::Begin(_) = what {
            fates.push((step, None));
        }
    }
    for (entry, fate) in fates.iter_mut().enumerate() {
        fate.1 = log.durable_since(entry);
    }
    fates
}
