//! Sums of one kind of space (data, metadata, system, or mixed), and reservations from them.
//!
//! # How it works
//! Every byte of the kind's block groups is in one of these states:
//!
//! - free
//! - *used*: in the extent tree
//! - *reserved*: allocated, but not yet in the extent tree
//! - *pinned*: freed by a transaction that is not durable yet
//! - *read-only*: superblock copies, groups that are being removed
//!
//! *Promised* bytes are reserved by operations, but not allocated yet. A reservation succeeds while
//! the sum of all these bytes stays within the total, or, for metadata, within the space that
//! unallocated device space could add. So an allocation from a reservation never fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sapwood_btrfs_format::BlockGroupFlags;

use super::group::BlockGroup;
use super::queue::Queue;
use crate::lock::{Rank, RankedMutex, RankedRwLock};

/// Sub-keys of [`Rank::SpaceInfo`]: device map, then groups, then the lists and sums of a kind.
pub(crate) mod sub_key {
    /// Free ranges of the devices; held while a chunk is allocated.
    pub(crate) const DEVICES: u64 = 0;
    /// All block groups.
    pub(crate) const GROUPS: u64 = 1;
    /// Groups of one kind.
    pub(crate) const LIST: u64 = 2;
    /// Sums of one kind.
    pub(crate) const SUMS: u64 = 3;
}

/// Sums in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Length of all groups.
    pub(crate) total: u64,
    /// In the extent tree.
    pub(crate) used: u64,
    /// Allocated, not yet in the extent tree.
    pub(crate) reserved: u64,
    /// Freed, not yet durable.
    pub(crate) pinned: u64,
    /// Cannot be allocated.
    pub(crate) read_only: u64,
    /// Promised to operations.
    pub(crate) promised: u64,
    /// Kept for commits and for deletions on a full file system.
    pub(crate) global: u64,
    /// `total` on the devices, with all copies.
    pub(crate) device_total: u64,
    /// `used` on the devices, with all copies.
    pub(crate) device_used: u64,
}

impl Sums {
    /// Bytes that are in use or promised, without the global reserve.
    pub(crate) fn taken(&self) -> u64 {
        self.used + self.reserved + self.pinned + self.read_only + self.promised
    }

    /// Bytes that can be allocated now.
    pub(crate) fn free(&self) -> u64 {
        let held = self.used + self.reserved + self.pinned + self.read_only;
        self.total.saturating_sub(held)
    }
}

/// One kind of space.
#[derive(Debug)]
pub(crate) struct SpaceInfo {
    /// Content of its groups.
    pub(crate) content: BlockGroupFlags,
    /// Block groups, in the order in which they are tried.
    pub(crate) groups: RankedRwLock<Vec<Arc<BlockGroup>>>,
    sums: RankedMutex<Sums>,
    /// Position of the next tree block, for each [stream](super::alloc).
    pub(crate) cursors: [AtomicU64; 2],
    /// Threads that wait for space.
    pub(crate) queue: Queue,
    /// The last attempt to allocate a chunk found no room.
    pub(crate) full: AtomicBool,
}

impl SpaceInfo {
    /// A kind without groups.
    pub(crate) fn new(class: u64, content: BlockGroupFlags) -> Self {
        Self {
            content,
            groups: RankedRwLock::with_key(Rank::SpaceInfo, (sub_key::LIST, class), Vec::new()),
            sums: RankedMutex::with_key(Rank::SpaceInfo, (sub_key::SUMS, class), Sums::default()),
            cursors: [const { AtomicU64::new(0) }; 2],
            queue: Queue::default(),
            full: AtomicBool::new(false),
        }
    }

    /// The current sums.
    pub(crate) fn sums(&self) -> Sums {
        *self.sums.lock()
    }

    /// Changes sums. The caller holds no block group.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Sums) -> T) -> T {
        change(&mut self.sums.lock())
    }

    /// Adds a group and its numbers.
    pub(crate) fn add_group(&self, group: &Arc<BlockGroup>, used: u64, super_bytes: u64) {
        self.groups.write().push(group.clone());
        self.change(|sums| {
            sums.total += group.len;
            sums.used += used;
            sums.read_only += super_bytes;
            sums.device_total += group.on_device(group.len);
            sums.device_used += group.on_device(used);
        });
    }

    /// Promises `bytes` if they fit in the total plus `beyond`, leaving `keep`.
    pub(crate) fn try_promise(
        self: &Arc<Self>,
        bytes: u64,
        beyond: u64,
        keep: u64,
    ) -> Option<Reservation> {
        let fits = self.change(|sums| {
            let need = sums.taken().saturating_add(bytes).saturating_add(keep);
            let fits = need <= sums.total.saturating_add(beyond);
            if fits {
                sums.promised += bytes;
            }
            fits
        });
        fits.then(|| Reservation {
            info: self.clone(),
            bytes: AtomicU64::new(bytes),
        })
    }

    /// Promises without a check, for operations that must not fail.
    pub(crate) fn promise(self: &Arc<Self>, bytes: u64) -> Reservation {
        self.change(|sums| sums.promised += bytes);
        Reservation {
            info: self.clone(),
            bytes: AtomicU64::new(bytes),
        }
    }
}

/// Bytes promised to an operation. The rest is released when it is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    info: Arc<SpaceInfo>,
    bytes: AtomicU64,
}

impl Reservation {
    /// Whether it is from that kind of space.
    pub(crate) fn is_of(&self, info: &Arc<SpaceInfo>) -> bool {
        Arc::ptr_eq(&self.info, info)
    }

    /// Bytes left.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn subtract(&self, bytes: u64) -> u64 {
        let take = |left: u64| Some(left - left.min(bytes));
        let before = self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        before.unwrap_or_else(|left| left).min(bytes)
    }

    /// Turns up to `bytes` of the promise into allocated bytes; any excess is allocated beyond the
    /// promise.
    pub(crate) fn hand_out(&self, bytes: u64) {
        let kept = self.subtract(bytes);
        self.info.change(|sums| {
            sums.promised -= kept;
            sums.reserved += bytes;
        });
    }

    /// Releases up to `bytes`.
    pub(crate) fn give_back(&self, bytes: u64) {
        let kept = self.subtract(bytes);
        if kept > 0 {
            self.info.change(|sums| sums.promised -= kept);
        }
    }

    /// Moves up to `bytes` into a new reservation.
    pub(crate) fn split(&self, bytes: u64) -> Self {
        Self {
            info: self.info.clone(),
            bytes: AtomicU64::new(self.subtract(bytes)),
        }
    }

    /// Takes over the rest of `other`. Both are from one kind of space.
    pub(crate) fn merge(&self, other: Self) {
        debug_assert!(Arc::ptr_eq(&self.info, &other.info));
        let all = other.bytes.swap(0, Ordering::Relaxed);
        self.bytes.fetch_add(all, Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.give_back(u64::MAX);
    }
}

/// Metadata promised to a transaction handle.
pub(crate) type MetadataReservation = Reservation;
/// Data promised to dirty ranges.
pub(crate) type DataReservation = Reservation;
