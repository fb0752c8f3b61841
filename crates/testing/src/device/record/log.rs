//! [`RecordLog`]: the recorded history, and the part of it that a crash may change.

use std::sync::Arc;

use super::plan::{CrashPlan, Replayer};
use crate::device::Torn;
use sapwood_block::MemoryDevice;

/// The operation of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A write.
    Write {
        /// First byte.
        offset: u64,
        /// The whole data.
        data: Arc<[u8]>,
        /// Write-through.
        fua: bool,
    },
    /// A flush.
    Flush,
    /// A discard.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

impl Action {
    /// Offset and length in bytes; a flush has none.
    #[must_use]
    pub fn range(&self) -> Option<(u64, u64)> {
        match self {
            Self::Write { offset, data, .. } => Some((*offset, data.len() as u64)),
            Self::Discard { offset, len } => Some((*offset, *len)),
            Self::Flush => None,
        }
    }
}

/// A recorded request, identified by its index in [`RecordLog::entries`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedRequest {
    /// The operation.
    pub action: Action,
}

/// One event of the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The request with this index began.
    Begin(usize),
    /// A request ended.
    End {
        /// Its index.
        entry: usize,
        /// Whether it succeeded.
        ok: bool,
    },
    /// A mark of the test.
    Mark(Arc<str>),
}

/// The crash points `start..=end`, which have the same durable flushes before them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epoch {
    /// First crash point.
    pub start: usize,
    /// Last crash point: just before the end of the flush that closes the epoch.
    pub end: usize,
    /// Writes and discards that are volatile at `end`.
    pub volatile: Vec<usize>,
}

/// The outcome of the request of an entry, as indices of steps.
#[derive(Debug, Clone, Copy)]
struct Fate {
    began: usize,
    /// The step that made it durable.
    durable: Option<usize>,
    failed: bool,
}

/// A recorded history. The module defines crash point, durable and volatile.
#[derive(Debug, Clone)]
pub struct RecordLog {
    entries: Vec<RecordedRequest>,
    steps: Vec<Step>,
    fates: Vec<Fate>,
    discarded: u8,
}

impl RecordLog {
    pub(super) fn new(entries: Vec<RecordedRequest>, steps: Vec<Step>) -> Self {
        let fates = fates(&entries, &steps);
        Self {
            entries,
            steps,
            fates,
            discarded: 0,
        }
    }

    /// The same history on a device on which discarded bytes read as `byte` after a crash. A device
    /// guarantees nothing about them.
    #[must_use]
    pub fn discards_leave(mut self, byte: u8) -> Self {
        self.discarded = byte;
        self
    }

    /// What a discarded byte reads as.
    #[must_use]
    pub fn discarded(&self) -> u8 {
        self.discarded
    }

    /// All requests, in the order of their begins.
    #[must_use]
    pub fn entries(&self) -> &[RecordedRequest] {
        &self.entries
    }

    /// All events, in order.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The last crash point: after all events.
    #[must_use]
    pub fn end(&self) -> usize {
        self.steps.len()
    }

    /// The last crash point at which exactly the first `n` writes (discards included) have begun:
    /// just before the next one begins.
    #[must_use]
    pub fn after_writes(&self, n: usize) -> usize {
        let begins = self.steps.iter().enumerate().filter(
            |(_, step)| matches!(step, Step::Begin(e) if self.entries[*e].action.range().is_some()),
        );
        begins.map(|(i, _)| i).nth(n).unwrap_or(self.end())
    }

    /// The crash points with a new possible or guaranteed state: 0, after the begin of each write,
    /// after each step that made something durable, and after each mark.
    #[must_use]
    pub fn crash_points(&self) -> Vec<usize> {
        let mut points = vec![0];
        let mut seals: Vec<usize> = self.fates.iter().filter_map(|f| f.durable).collect();
        seals.sort_unstable();
        for (i, step) in self.steps.iter().enumerate() {
            let new = match step {
                Step::Begin(entry) => self.entries[*entry].action.range().is_some(),
                Step::End { .. } => seals.binary_search(&i).is_ok(),
                Step::Mark(_) => true,
            };
            if new {
                points.push(i + 1);
            }
        }
        points
    }

    /// The step that made an entry durable: all later crash points have it.
    #[must_use]
    pub fn durable_since(&self, entry: usize) -> Option<usize> {
        self.fates.get(entry)?.durable
    }

    /// Marks that were set before crash point `at`, with the index of their step.
    pub fn marks_before(&self, at: usize) -> impl Iterator<Item = (usize, &str)> {
        let steps = self.steps.iter().take(at).enumerate();
        steps.filter_map(|(i, step)| match step {
            Step::Mark(label) => Some((i, &**label)),
            _ => None,
        })
    }

    /// The flush epochs, in order; at least one. Each crash point belongs to one epoch.
    #[must_use]
    pub fn epochs(&self) -> Vec<Epoch> {
        let is_seal = |(i, step): (usize, &Step)| match step {
            Step::End { entry, ok: true } => {
                (self.entries[*entry].action == Action::Flush).then_some(i)
            }
            _ => None,
        };
        let ends = self.steps.iter().enumerate().filter_map(is_seal);
        let mut start = 0;
        let mut epochs = Vec::new();
        for end in ends.chain([self.end()]) {
            epochs.push(Epoch {
                start,
                end,
                volatile: self.volatile(end),
            });
            start = end + 1;
        }
        epochs
    }

    /// Writes and discards that began before crash point `at` and are not durable there.
    #[must_use]
    pub fn volatile(&self, at: usize) -> Vec<usize> {
        (0..self.begun(at))
            .filter(|&e| self.entries[e].action.range().is_some() && !self.is_durable(e, at))
            .collect()
    }

    /// A plan for crash point `at` that the seed determines. Sometimes all volatile writes arrive
    /// or none does; mostly each one arrives, is lost or is torn with some probability.
    #[must_use]
    pub fn random_plan(&self, at: usize, seed: u64) -> CrashPlan {
        let mut random = SplitMix(seed);
        let mut plan = CrashPlan::at(at);
        let lose = match random.below(8) {
            0 => return plan,
            1 => 100,
            _ => 10 + random.below(80),
        };
        let tear = if lose == 100 { 0 } else { random.below(50) };
        for entry in self.volatile(at) {
            if random.below(100) < lose {
                plan.drop.insert(entry);
            } else if random.below(100) < tear
                && let Some((offset, len)) = self.entries[entry].action.range()
            {
                let sectors = Torn::sectors_of(offset, len).max(1);
                let torn = match random.below(2) {
                    0 => Torn::Prefix(random.below(sectors)),
                    _ => Torn::Sectors((0..sectors).filter(|_| random.below(2) == 0).collect()),
                };
                plan.torn.insert(entry, torn);
            }
        }
        plan
    }

    /// The device after a crash. `base` is the device when the log began.
    ///
    /// For many images of one log a [`Replayer`] is faster.
    ///
    /// # Panics
    /// If `base` is smaller than the device that was recorded.
    #[must_use]
    pub fn image(&self, base: &MemoryDevice, plan: &CrashPlan) -> MemoryDevice {
        Replayer::new(self, base).image(plan)
    }

    /// Number of entries that began before crash point `at`; they are the first ones.
    pub(super) fn begun(&self, at: usize) -> usize {
        self.fates.partition_point(|f| f.began < at)
    }

    /// True if no crash at `at` or later can touch the entry.
    pub(super) fn is_durable(&self, entry: usize, at: usize) -> bool {
        self.fates[entry].durable.is_some_and(|step| step < at)
    }

    pub(super) fn has_failed(&self, entry: usize) -> bool {
        self.fates[entry].failed
    }
}

/// Finds for each entry the step that made it durable.
fn fates(entries: &[RecordedRequest], steps: &[Step]) -> Vec<Fate> {
    let mut fates: Vec<Fate> = Vec::with_capacity(entries.len());
    // Successful writes, in the order of their ends; a flush covers a prefix of them.
    let mut ended: Vec<usize> = Vec::new();
    let mut covered = 0;
    // For each flush, the number of `ended` writes that it covers.
    let mut covers = vec![0; entries.len()];
    for (i, step) in steps.iter().enumerate() {
        match *step {
            Step::Begin(entry) => {
                covers[entry] = ended.len();
                fates.push(Fate {
                    began: i,
                    durable: None,
                    failed: false,
                });
            }
            Step::End { entry, ok: false } => fates[entry].failed = true,
            Step::End { entry, ok: true } => match entries[entry].action {
                Action::Flush => {
                    for &done in ended.get(covered..covers[entry]).unwrap_or_default() {
                        fates[done].durable.get_or_insert(i);
                    }
                    covered = covered.max(covers[entry]);
                }
                Action::Write { fua: true, .. } => fates[entry].durable = Some(i),
                Action::Write { .. } | Action::Discard { .. } => ended.push(entry),
            },
            Step::Mark(_) => {}
        }
    }
    fates
}

/// The generator SplitMix64 (Steele, Lea and Flood 2014): small, and the same everywhere.
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }
}
