//! Errors of each device, counted as the kernel does, for the device tree's items.

use std::sync::atomic::{AtomicU64, Ordering};

use sapwood_btrfs_format::DevStats;

/// Kinds of errors, in the order of the item's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// A write was refused.
    Write,
    /// A read was refused.
    Read,
    /// A flush was refused.
    Flush,
    /// Bytes differ from their checksum.
    Corruption,
    /// A tree block is of another generation.
    Generation,
}

/// Errors of one device.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounts {
    counts: [AtomicU64; 5],
    /// Sum of the counts in the item.
    stored: AtomicU64,
}

impl ErrorCounts {
    /// Counts one error.
    pub(crate) fn count(&self, kind: ErrorKind) {
        if let Some(count) = self.counts.get(kind as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The counts, in the order of [`ErrorKind`].
    pub(crate) fn all(&self) -> [u64; 5] {
        self.counts.each_ref().map(|n| n.load(Ordering::Relaxed))
    }

    /// Adds the counts of the item that the device tree has.
    pub(crate) fn load(&self, item: &DevStats) {
        let DevStats {
            write_errors,
            read_errors,
            flush_errors,
            corruption_errors,
            generation_errors,
        } = *item;
        let stored = [
            write_errors,
            read_errors,
            flush_errors,
            corruption_errors,
            generation_errors,
        ];
        for (count, stored) in self.counts.iter().zip(stored) {
            count.fetch_add(stored.get(), Ordering::Relaxed);
        }
        let sum = stored.iter().map(|n| n.get());
        self.stored
            .store(sum.fold(0, u64::wrapping_add), Ordering::Relaxed);
    }

    /// Lets [`changed`](Self::changed) return the item, whatever is stored.
    pub(crate) fn count_as_changed(&self) {
        self.stored.store(u64::MAX, Ordering::Relaxed);
    }

    /// The item, if it differs from the stored one. It counts as stored from now on.
    pub(crate) fn changed(&self) -> Option<DevStats> {
        let all = self.all();
        let sum = all.iter().copied().fold(0, u64::wrapping_add);
        if self.stored.swap(sum, Ordering::Relaxed) == sum {
            return None;
        }
        let [write, read, flush, corruption, generation] = all.map(Into::into);
        Some(DevStats {
            write_errors: write,
            read_errors: read,
            flush_errors: flush,
            corruption_errors: corruption,
            generation_errors: generation,
        })
    }
}
