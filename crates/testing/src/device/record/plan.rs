//! [`CrashPlan`]: one crash; [`Replayer`]: the images of many crashes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::log::{Action, RecordLog};
use crate::device::Torn;
use sapwood_block::MemoryDevice;

/// One possible crash of a recorded history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CrashPlan {
    /// The crash point.
    pub at: usize,
    /// Volatile entries that are lost.
    pub drop: BTreeSet<usize>,
    /// Volatile entries that arrive in part. One that is also dropped is lost.
    pub torn: BTreeMap<usize, Torn>,
}

impl CrashPlan {
    /// A crash at this point that loses nothing that began.
    #[must_use]
    pub fn at(at: usize) -> Self {
        Self {
            at,
            ..Self::default()
        }
    }

    /// The same crash, but these volatile entries are lost.
    #[must_use]
    pub fn without(mut self, entries: impl IntoIterator<Item = usize>) -> Self {
        self.drop.extend(entries);
        self
    }

    /// The same crash, but this volatile entry arrives in part.
    #[must_use]
    pub fn tearing(mut self, entry: usize, torn: Torn) -> Self {
        self.torn.insert(entry, torn);
        self
    }

    /// The same crash, but it tears no write that overlaps these bytes of the device, such as the
    /// only copy of a superblock that a mount reads.
    ///
    /// # Panics
    /// If the plan is not for this log.
    #[must_use]
    pub fn tearing_outside(mut self, log: &RecordLog, bytes: &Range<u64>) -> Self {
        self.torn.retain(|entry, _| {
            let range = log.entries()[*entry].action.range();
            range.is_none_or(|(at, len)| at >= bytes.end || at + len <= bytes.start)
        });
        self
    }
}

/// Makes crash images of one log. Plans in order of their crash point are the cheapest: the
/// replayer applies the entries that are durable at all later points once, and the images share
/// them.
#[derive(Debug)]
pub struct Replayer<'a> {
    log: &'a RecordLog,
    base: MemoryDevice,
    settled: MemoryDevice,
    /// Entries in `settled`, and the crash point for which they are all durable.
    applied: usize,
    at: usize,
}

impl<'a> Replayer<'a> {
    /// `base` is the device when the log began; it is not changed.
    ///
    /// # Panics
    /// If `base` is smaller than the device that was recorded.
    #[must_use]
    pub fn new(log: &'a RecordLog, base: &MemoryDevice) -> Self {
        let succeeded = (0..log.entries().len()).filter(|&e| !log.has_failed(e));
        let ranges = succeeded.filter_map(|e| log.entries()[e].action.range());
        let need = ranges.map(|(offset, len)| offset + len).max().unwrap_or(0);
        let size = sapwood_block::Device::size(base);
        assert!(
            need <= size,
            "the log writes up to {need}, the base ends at {size}"
        );
        Self {
            log,
            base: base.snapshot(),
            settled: base.snapshot(),
            applied: 0,
            at: 0,
        }
    }

    /// The device after this crash.
    pub fn image(&mut self, plan: &CrashPlan) -> MemoryDevice {
        self.settle(plan.at);
        let image = self.settled.snapshot();
        for entry in self.applied..self.log.begun(plan.at) {
            let durable = self.log.is_durable(entry, plan.at);
            match plan.torn.get(&entry) {
                _ if durable => self.apply(&image, entry, None),
                _ if plan.drop.contains(&entry) => {}
                Some(torn) => self.apply(&image, entry, Some(torn)),
                None if self.log.has_failed(entry) => {}
                None => self.apply(&image, entry, None),
            }
        }
        image
    }

    /// Applies the leading entries that are durable at `at`.
    fn settle(&mut self, at: usize) {
        if at < self.at {
            self.settled = self.base.snapshot();
            self.applied = 0;
        }
        self.at = at;
        let begun = self.log.begun(at);
        while self.applied < begun {
            let entry = self.applied;
            let is_flush = self.log.entries()[entry].action == Action::Flush;
            if !is_flush && !self.log.is_durable(entry, at) {
                break;
            }
            self.apply(&self.settled, entry, None);
            self.applied += 1;
        }
    }

    /// Gives bytes the content that a discard leaves.
    fn discard(&self, image: &MemoryDevice, mut at: u64, end: u64) {
        if self.log.discarded() == 0 {
            return image.clear(at, end - at);
        }
        let bytes = [self.log.discarded(); 64 << 10];
        while at < end {
            let step = (end - at).min(bytes.len() as u64);
            image.put(at, &bytes[..step as usize]);
            at += step;
        }
    }

    fn apply(&self, image: &MemoryDevice, entry: usize, torn: Option<&Torn>) {
        let action = &self.log.entries()[entry].action;
        let Some((offset, len)) = action.range() else {
            return;
        };
        // A failed request may have any offset and length.
        let size = sapwood_block::Device::size(image);
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return;
        }
        let whole = || std::iter::once(0..len).collect();
        for part in torn.map_or_else(whole, |t| t.parts(offset, len)) {
            match action {
                Action::Write { data, .. } => {
                    let bytes = &data[part.start as usize..part.end as usize];
                    image.put(offset + part.start, bytes);
                }
                Action::Discard { .. } => {
                    self.discard(image, offset + part.start, offset + part.end);
                }
                Action::Flush => {}
            }
        }
    }
}
