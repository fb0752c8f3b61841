//! A block group: one chunk's space, in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Condvar;
use sapwood_btrfs_format::BlockGroupFlags;

use super::devices::Layout;
use super::free_space::FreeSpace;
use super::free_space::RangeDelta;
use super::info::SpaceInfo;
use crate::error::{Error, Result};
use crate::lock::{Rank, RankedMutex, RankedMutexGuard};
use sapwood_base::RangeSet;

/// One block group. Its address, length and content never change.
#[derive(Debug)]
pub(crate) struct BlockGroup {
    /// Logical address.
    pub(crate) start: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Content and profile, as bits of [`BlockGroupFlags`].
    flags: AtomicU64,
    /// Kind of space to which it belongs.
    pub(crate) info: Arc<SpaceInfo>,
    /// Areas of superblock copies; never allocated.
    pub(crate) excluded: RangeSet,
    state: RankedMutex<GroupState>,
    /// Notified when loading, or a flush of the free-space items, ends.
    changed: Condvar,
}

/// Whether the free space is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loaded {
    /// No thread has begun to read it.
    No,
    /// A thread is reading it.
    Running,
    /// Yes.
    Yes,
}

/// The variable state of a block group. All in bytes.
#[derive(Debug)]
pub(crate) struct GroupState {
    /// Bytes in the extent tree.
    pub(crate) used: u64,
    /// Allocated, not yet in the extent tree.
    pub(crate) reserved: u64,
    /// Freed, not yet durable.
    pub(crate) pinned: u64,
    /// `used` in the group's item; `None` if it has no item yet.
    pub(crate) item_used: Option<u64>,
    /// Free to be allocated.
    pub(crate) free: FreeSpace,
    /// Whether `free` is valid.
    pub(crate) loaded: Loaded,
    /// Being removed: nothing is allocated any more.
    pub(crate) removing: bool,
    /// Being moved: it is not removed.
    pub(crate) moving: bool,
    /// Changes that the free-space tree does not have yet.
    pub(crate) delta: RangeDelta,
    /// A thread is writing an earlier `delta` to the free-space tree.
    pub(crate) flushing: bool,
}

impl BlockGroup {
    /// A group with `used` bytes in use. A new one (`item_used` is `None`) is completely free.
    pub(crate) fn new(
        start: u64,
        len: u64,
        flags: BlockGroupFlags,
        info: Arc<SpaceInfo>,
        excluded: RangeSet,
        item_used: Option<u64>,
    ) -> Self {
        let mut state = GroupState {
            used: item_used.unwrap_or(0),
            reserved: 0,
            pinned: 0,
            item_used,
            free: FreeSpace::new(),
            loaded: Loaded::No,
            removing: false,
            moving: false,
            delta: RangeDelta::default(),
            flushing: false,
        };
        if item_used.is_none() {
            state.loaded = Loaded::Yes;
            for (from, to) in excluded.gaps(start, start + len) {
                // Gaps are disjoint, and nothing was free before.
                let _ = state.free.add(from, to - from);
            }
        }
        Self {
            start,
            len,
            flags: AtomicU64::new(flags.bits()),
            info,
            excluded,
            state: RankedMutex::with_key(Rank::BlockGroup, (start, 0), state),
            changed: Condvar::new(),
        }
    }

    /// First byte after it.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Whether it contains an address.
    pub(crate) fn contains(&self, logical: u64) -> bool {
        (self.start..self.end()).contains(&logical)
    }

    /// Bytes that `len` bytes of it take on the devices, with all copies.
    pub(crate) fn on_device(&self, len: u64) -> u64 {
        len * Layout::of(self.flags()).copies
    }

    /// Content and profile.
    pub(crate) fn flags(&self) -> BlockGroupFlags {
        BlockGroupFlags::from_bits_retain(self.flags.load(Ordering::Acquire))
    }

    /// Gives it another profile. No handle is open.
    pub(crate) fn set_flags(&self, flags: BlockGroupFlags) {
        let used = self.lock().used;
        self.info.change(|sums| {
            sums.device_total -= self.on_device(self.len);
            sums.device_used -= self.on_device(used);
            self.flags.store(flags.bits(), Ordering::Release);
            sums.device_total += self.on_device(self.len);
            sums.device_used += self.on_device(used);
        });
    }

    /// Ranges that are not free (start, end). The free space is loaded.
    pub(crate) fn not_free(&self) -> Vec<(u64, u64)> {
        let mut taken = RangeSet::new();
        taken.insert(self.start, self.end());
        for (start, len) in self.lock().free.iter() {
            taken.remove(start, start + len);
        }
        taken.iter().collect()
    }

    /// Keeps the group while it moves. False if it is being removed.
    pub(crate) fn begin_move(&self) -> bool {
        let mut state = self.lock();
        state.moving = !state.removing;
        state.moving
    }

    /// The group may be removed again.
    pub(crate) fn end_move(&self) {
        self.lock().moving = false;
    }

    /// Locks its state.
    pub(crate) fn lock(&self) -> RankedMutexGuard<'_, GroupState> {
        self.state.lock()
    }

    /// Loads the free space with `read` unless it is loaded. Waits for another thread that is
    /// loading it. `read` runs without locks and returns the free ranges (start, end).
    ///
    /// # Errors
    /// Errors of `read`; [`Error::FreeSpace`] if ranges overlap or are outside the group.
    pub(crate) fn load(&self, read: impl FnOnce() -> Result<Vec<(u64, u64)>>) -> Result<()> {
        let mut state = self.state.lock();
        while state.loaded == Loaded::Running {
            state.wait(&self.changed);
        }
        if state.loaded == Loaded::Yes {
            return Ok(());
        }
        state.loaded = Loaded::Running;
        drop(state);
        let free = read().and_then(|ranges| self.fill(&ranges));
        let mut state = self.state.lock();
        let result = free.map(|free| state.free = free);
        state.loaded = if result.is_ok() {
            Loaded::Yes
        } else {
            Loaded::No
        };
        drop(state);
        self.changed.notify_all();
        result
    }

    fn fill(&self, ranges: &[(u64, u64)]) -> Result<FreeSpace> {
        let mut free = FreeSpace::new();
        for &(from, to) in ranges {
            let bad = || Error::FreeSpace {
                group: self.start,
                start: from,
                end: to,
            };
            if from < self.start || to > self.end() || from >= to {
                return Err(bad());
            }
            for (from, to) in self.excluded.gaps(from, to) {
                if !free.add(from, to - from) {
                    return Err(bad());
                }
            }
        }
        Ok(free)
    }

    /// Takes the changes that the free-space tree does not have, after no other thread writes
    /// earlier ones. `None` if there are none. The caller must call
    /// [`flush_done`](Self::flush_done).
    pub(crate) fn start_flush(&self) -> Option<RangeDelta> {
        let mut state = self.state.lock();
        while state.flushing {
            state.wait(&self.changed);
        }
        if state.delta.is_empty() {
            return None;
        }
        state.flushing = true;
        Some(std::mem::take(&mut state.delta))
    }

    /// Ends the flush that [`start_flush`](Self::start_flush) began.
    pub(crate) fn flush_done(&self) {
        self.state.lock().flushing = false;
        self.changed.notify_all();
    }

    /// Bytes of superblock copies.
    pub(crate) fn super_bytes(&self) -> u64 {
        self.excluded.bytes()
    }

    /// Takes `len` bytes at a multiple of `len` for a tree block.
    pub(crate) fn take_block(&self, cursor: u64, len: u64) -> Option<u64> {
        let mut state = self.state.lock();
        if state.removing || state.free.bytes() < len {
            return None;
        }
        let at = state.free.take_aligned(cursor, len, len)?;
        state.reserved += len;
        Some(at)
    }

    /// Takes between `min` and `want` bytes for data.
    pub(crate) fn take_data(
        &self,
        hint: u64,
        min: u64,
        want: u64,
        sector: u64,
    ) -> Option<(u64, u64)> {
        let mut state = self.state.lock();
        if state.removing || state.free.largest() < min {
            return None;
        }
        let found = state.free.take_range(hint, min, want, sector)?;
        state.reserved += found.1;
        Some(found)
    }

    /// Takes exactly these bytes.
    pub(crate) fn take_exactly(&self, bytenr: u64, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        if !state.free.take(bytenr, len) {
            return Err(Error::FreeSpace {
                group: self.start,
                start: bytenr,
                end: bytenr.saturating_add(len),
            });
        }
        state.reserved += len;
        drop(state);
        self.info.change(|sums| sums.reserved += len);
        Ok(())
    }

    /// Frees allocated space that never reached the extent tree.
    pub(crate) fn untake(&self, bytenr: u64, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.reserved = self.less(state.reserved, len, bytenr)?;
        self.put_free(&mut state, bytenr, len)?;
        drop(state);
        self.info.change(|sums| sums.reserved -= len);
        Ok(())
    }

    /// Records that allocated space is in the extent tree.
    pub(crate) fn inserted(&self, bytenr: u64, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.reserved = self.less(state.reserved, len, bytenr)?;
        state.used += len;
        state.delta.take(bytenr, bytenr + len);
        drop(state);
        self.info.change(|sums| {
            sums.reserved -= len;
            sums.used += len;
            sums.device_used += self.on_device(len);
        });
        Ok(())
    }

    /// Records that an extent left the extent tree. It stays pinned until that is durable.
    pub(crate) fn removed(&self, bytenr: u64, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.used = self.less(state.used, len, bytenr)?;
        state.pinned += len;
        state.delta.free(bytenr, bytenr + len);
        drop(state);
        self.info.change(|sums| {
            sums.used -= len;
            sums.pinned += len;
            sums.device_used -= self.on_device(len);
        });
        Ok(())
    }

    /// Pins allocated space that never reached the extent tree.
    pub(crate) fn pin_reserved(&self, bytenr: u64, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.reserved = self.less(state.reserved, len, bytenr)?;
        state.pinned += len;
        drop(state);
        self.info.change(|sums| {
            sums.reserved -= len;
            sums.pinned += len;
        });
        Ok(())
    }

    /// Frees a range after the transaction that pinned it is durable.
    pub(crate) fn unpin(&self, bytenr: u64, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        state.pinned = self.less(state.pinned, len, bytenr)?;
        self.put_free(&mut state, bytenr, len)?;
        let read_only = state.removing;
        drop(state);
        self.info.change(|sums| {
            sums.pinned -= len;
            if read_only {
                sums.read_only += len;
            }
        });
        Ok(())
    }

    fn less(&self, sum: u64, len: u64, bytenr: u64) -> Result<u64> {
        sum.checked_sub(len).ok_or(Error::FreeSpace {
            group: self.start,
            start: bytenr,
            end: bytenr.saturating_add(len),
        })
    }

    fn put_free(&self, state: &mut GroupState, bytenr: u64, len: u64) -> Result<()> {
        if bytenr >= self.start && bytenr + len <= self.end() && state.free.add(bytenr, len) {
            return Ok(());
        }
        Err(Error::FreeSpace {
            group: self.start,
            start: bytenr,
            end: bytenr.saturating_add(len),
        })
    }
}
