//! Ordered extents: ranges whose extent is allocated, on their way to the device and then into
//! the tree.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::extent_map::{Content, ExtentMap, Stored};
use crate::Result;
use crate::lock::{Rank, RankedMutex};
use crate::transaction::{Handle, Store, Transaction};

/// Names a range in flight of one file.
pub(crate) type InFlightId = u64;

/// Place of an ordered extent's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A new extent.
    New(Stored),
    /// Over the data of an extent that is not shared.
    Overwrite(Stored),
    /// Into a preallocated extent that is not shared.
    Prealloc(Stored),
    /// Into the tree; these are the bytes of the item, compressed or not.
    Inline {
        /// Bytes once uncompressed.
        ram_len: u64,
        /// Number of the compression, 0 for none.
        compression: u8,
        /// Bytes of the item.
        data: Vec<u8>,
    },
}

/// A range of a file in flight, with its extent.
#[derive(Debug)]
pub(crate) struct OrderedExtent {
    /// The range, whole sectors.
    pub(crate) range: Range<u64>,
    /// End of the file's bytes in it: the range may continue to the end of its last sector.
    pub(crate) bytes_end: u64,
    /// Place of the bytes.
    pub(crate) target: Target,
    /// Entry among the ranges in flight.
    pub(crate) entry: InFlightId,
    /// Checksums of the data on disk, one after another; empty if the file has none. Complete once
    /// the I/O is done.
    sums: RankedMutex<Vec<u8>>,
    /// Writes whose I/O is not done.
    writes: AtomicUsize,
    failed: AtomicBool,
    /// Some I/O failed, only because the host has no space.
    refused: AtomicBool,
    /// Some I/O failed for another reason.
    broken: AtomicBool,
    pins: RankedMutex<Pins>,
}

#[derive(Debug, Default)]
struct Pins {
    transactions: Vec<Arc<Transaction>>,
    complete: bool,
}

impl OrderedExtent {
    /// An ordered extent of a file with `size` bytes, with room for `sums` bytes of checksums.
    pub(crate) fn new(
        range: Range<u64>,
        size: u64,
        target: Target,
        entry: InFlightId,
        sums: usize,
    ) -> Self {
        Self {
            bytes_end: size.clamp(range.start, range.end),
            range,
            target,
            entry,
            sums: RankedMutex::new(Rank::Leaf, vec![0; sums]),
            writes: AtomicUsize::new(1),
            failed: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            pins: RankedMutex::new(Rank::OrderedPins, Pins::default()),
        }
    }

    /// Length of the range in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The extent map that is true once this is complete.
    pub(crate) fn map(&self) -> ExtentMap {
        let content = match &self.target {
            Target::New(stored) | Target::Overwrite(stored) | Target::Prealloc(stored) => {
                Content::Data(*stored)
            }
            Target::Inline { .. } => Content::Inline,
        };
        ExtentMap {
            start: self.range.start,
            end: self.range.end,
            content,
        }
    }

    /// Checksums of this range of the data on disk. Complete once the I/O is done.
    pub(crate) fn sums(&self) -> Vec<u8> {
        self.sums.lock().clone()
    }

    pub(crate) fn set_sums(&self, at: usize, sums: &[u8]) {
        if let Some(place) = self.sums.lock().get_mut(at..at + sums.len()) {
            place.copy_from_slice(sums);
        }
    }

    /// Expects this many writes.
    pub(crate) fn set_writes(&self, writes: usize) {
        self.writes.store(writes, Ordering::Release);
    }

    /// Records the result of one write. Returns true if it was the last one.
    pub(crate) fn write_done<T>(&self, result: &Result<T>) -> bool {
        if let Err(error) = result {
            self.failed.store(true, Ordering::Release);
            let why = if error.is_host_full() {
                &self.refused
            } else {
                &self.broken
            };
            why.store(true, Ordering::Release);
        }
        self.writes.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether its bytes must be written later: the host had no space for them.
    pub(crate) fn refused(&self) -> bool {
        self.refused.load(Ordering::Acquire) && !self.broken.load(Ordering::Acquire)
    }

    /// Whether some of its I/O failed.
    pub(crate) fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Makes the commit of the handle's transaction wait until this is complete. False if it
    /// is complete already.
    pub(crate) fn pin(&self, h: &Handle) -> bool {
        let mut pins = self.pins.lock();
        if pins.complete {
            return false;
        }
        if !pins
            .transactions
            .iter()
            .any(|trans| Arc::ptr_eq(trans, h.trans()))
        {
            // Counted before any thread can complete it: completion takes this lock too.
            h.store().transactions.pin(h.trans());
            pins.transactions.push(Arc::clone(h.trans()));
        }
        true
    }

    /// Unpins the transactions that waited for this extent. It is complete, or failed for good.
    pub(crate) fn complete(&self, store: &Store) {
        let waiting = {
            let mut pins = self.pins.lock();
            pins.complete = true;
            std::mem::take(&mut pins.transactions)
        };
        for trans in waiting {
            store.transactions.unpin(&trans);
        }
    }
}
