//! Verifies the extents of a block group in every copy, in several threads.
//!
//! # How it works
//! Other threads may change the file system meanwhile. So the list of extents may be stale: an
//! extent was freed, committed and allocated again, and its place has other bytes. A run of extents
//! that seems bad is therefore verified once more, with the extents as of the last commit, while
//! nothing that the last commit has is reused ([`Space::keep_committed`]). Only this result counts,
//! and only then is a copy repaired: bytes with a checksum cannot change meanwhile. Bytes without
//! one may be written in place, so they are copied while no other thread writes
//! ([`Volume::copy_over`]).
//!
//! [`Space::keep_committed`]: crate::space::Space::keep_committed
//! [`Volume::copy_over`]: crate::devices::Volume::copy_over

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use sapwood_base::{Pace, RangeSet};
use sapwood_btrfs_format::{Checksum, ExtentFlags, ExtentItemRef, ItemError, Key, kind};

use super::files::{BadRange, State};
use super::{OnStep, Position, ScrubReport, ScrubStep};
use crate::Result;
use crate::devices::BlockExpect;
use crate::devices::errors::ErrorKind;
use crate::transaction::Store;

/// Most bytes that are read of a copy at a time.
const RUN: u64 = 1 << 20;
const MOST_THREADS: usize = 8;

/// An extent in the extent tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    start: u64,
    len: u64,
    /// For a tree block, its generation, and its level if the item contains it.
    block: Option<(u64, Option<u8>)>,
}

impl Extent {
    pub(super) fn read(key: &Key, item: &[u8], nodesize: u64) -> Result<Self, ItemError> {
        let skinny = key.kind == kind::METADATA_ITEM;
        let parsed = ExtentItemRef::parse(key.kind, item)?;
        let level = skinny.then_some(u8::try_from(key.offset).unwrap_or(u8::MAX));
        let is_block = parsed.flags.contains(ExtentFlags::TREE_BLOCK);
        Ok(Self {
            start: key.objectid,
            len: if skinny { nodesize } else { key.offset },
            block: is_block.then_some((parsed.generation, level)),
        })
    }
}

/// Work that one thread does at once: a tree block, or data that follows each other.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    len: u64,
    /// Start of the extent in which it begins.
    first: u64,
    block: Option<(u64, Option<u8>)>,
}

fn runs(extents: &[Extent]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for extent in extents {
        let (mut at, end) = (extent.start, extent.start.saturating_add(extent.len));
        if let (Some(last), None) = (runs.last_mut(), extent.block)
            && last.block.is_none()
            && last.start + last.len == at
        {
            let more = (RUN - last.len.min(RUN)).min(end - at);
            last.len += more;
            at += more;
        }
        while at < end {
            let len = if extent.block.is_some() {
                end - at
            } else {
                RUN.min(end - at)
            };
            let block = extent.block;
            runs.push(Run {
                start: at,
                len,
                first: extent.start,
                block,
            });
            at += len;
        }
    }
    runs
}

/// The state of a scrub.
pub(super) struct Scan<'s> {
    store: &'s Arc<Store>,
    read_only: bool,
    total: u64,
    done: AtomicU64,
    pace: Option<Pace>,
    report: Mutex<ScrubReport>,
    /// Ranges of data with a bad copy.
    bad: Mutex<Vec<BadRange>>,
}

impl<'s> Scan<'s> {
    pub(super) fn new(
        store: &'s Arc<Store>,
        limit: Option<u64>,
        read_only: bool,
        total: u64,
    ) -> Self {
        Self {
            store,
            read_only,
            total,
            done: AtomicU64::new(0),
            pace: limit.map(Pace::new),
            report: Mutex::default(),
            bad: Mutex::default(),
        }
    }

    pub(super) fn step(&self, position: Option<Position>) -> ScrubStep {
        ScrubStep {
            done: self.done.load(Ordering::Relaxed),
            total: self.total,
            position,
        }
    }

    /// Verifies extents. The caller's thread takes part and calls `step`.
    pub(super) fn group(
        &mut self,
        extents: &[Extent],
        step: &mut OnStep<'_>,
    ) -> Result<ControlFlow<()>> {
        let runs = runs(extents);
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let this = &*self;
        let work = |step: &mut dyn FnMut() -> ControlFlow<()>| -> Result<()> {
            while !stop.load(Ordering::Relaxed) {
                let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    break;
                };
                let verified = this.run(run);
                if verified.is_err() || step().is_break() {
                    stop.store(true, Ordering::Relaxed);
                }
                verified?;
                while !stop.load(Ordering::Relaxed)
                    && let Some(pause) = this.pause()
                {
                    thread::sleep(pause);
                    if step().is_break() {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            }
            Ok(())
        };
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let others = threads.min(MOST_THREADS).min(runs.len()).saturating_sub(1);
        let mut ended = ControlFlow::Continue(());
        thread::scope(|scope| {
            let spawn = |_| {
                let builder = thread::Builder::new().name("btrfs-scrub".to_owned());
                let silent = || work(&mut || ControlFlow::Continue(()));
                // Without a thread the others do its work.
                builder.spawn_scoped(scope, silent).ok()
            };
            let others: Vec<_> = (0..others).filter_map(spawn).collect();
            let own = work(&mut || {
                ended = step(&this.step(None));
                ended
            });
            for other in others {
                match other.join() {
                    Ok(done) => done?,
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            own
        })?;
        Ok(ended)
    }

    /// Moves the findings into the report, and returns the bad ranges of data.
    pub(super) fn finish(self, report: &mut ScrubReport) -> Vec<BadRange> {
        let own = self.report.into_inner();
        report.unverified += own.unverified;
        report.lost_blocks.extend(own.lost_blocks);
        for (devid, own) in own.devices {
            let device = report.devices.entry(devid).or_default();
            device.bytes += own.bytes;
            device.unreadable += own.unreadable;
            device.data += own.data;
            device.trees += own.trees;
            device.repaired += own.repaired;
            device.lost += own.lost;
        }
        let mut bad = self.bad.into_inner();
        bad.sort_unstable();
        bad
    }

    fn run(&self, run: &Run) -> Result<()> {
        let done = match self.good_bytes(run) {
            Ok(Some(bytes)) => bytes,
            Ok(None) | Err(_) => self.again(run)?,
        };
        self.done.fetch_add(done, Ordering::Relaxed);
        Ok(())
    }

    /// How long a thread waits next, so that the bytes of all threads keep below the rate.
    fn pause(&self) -> Option<Duration> {
        let pace = self.pace.as_ref()?;
        pace.pause(self.done.load(Ordering::Relaxed))
    }

    /// Reads all copies of a run. Returns how many bytes that are; `None` if one of them seems bad.
    fn good_bytes(&self, run: &Run) -> Result<Option<u64>> {
        let volume = &self.store.volume;
        if volume.members().any(|member| member.is_stale()) {
            return Ok(None);
        }
        let mut bytes = vec![0; run.len as usize];
        let copies = self.copies(run.start, run.len)?;
        if let Some((generation, level)) = run.block {
            let want = expected(generation, level);
            let good = |copy: &usize| volume.is_good_copy(run.start, &mut bytes, *copy, &want);
            if !copies.iter().all(good) {
                return Ok(None);
            }
        } else {
            let store = self.store;
            let sums = store.checksums.lookup(store, run.start, run.len)?;
            for &copy in &copies {
                volume.read_uncounted(run.start, &mut bytes, copy)?;
                let sectors = bytes.chunks(store.sectorsize as usize).zip(&sums);
                let bad = |(sector, sum): (&[u8], &Option<Checksum>)| {
                    sum.is_some_and(|sum| store.checksum.compute(sector) != sum)
                };
                if sectors.into_iter().any(bad) {
                    return Ok(None);
                }
            }
            self.count_unverified(run.first, run.start, &sums)?;
        }
        for &copy in &copies {
            self.note(run.start, run.len, copy, |device, bytes| {
                device.bytes += bytes;
            })?;
        }
        Ok(Some(run.len * copies.len() as u64))
    }

    /// Verifies a run that seems bad, as far as the last commit has it, and repairs bad copies.
    /// Returns how many bytes were read.
    fn again(&self, run: &Run) -> Result<u64> {
        // While a commit is written, the trees as of the last commit are not on the devices yet.
        let order = self.store.transactions.superblock_order.lock();
        let _committed = self.store.space.keep_committed();
        let end = run.start + run.len;
        let mut there = super::extents_in(self.store, run.first, end)?;
        drop(order);
        there.retain_mut(|extent| {
            let to = extent.start.saturating_add(extent.len);
            if extent.block.is_some() {
                return extent.start >= run.start;
            }
            extent.start = extent.start.max(run.start);
            extent.len = to.min(end).saturating_sub(extent.start);
            extent.len > 0
        });
        let (first, mut done) = (run.first, 0);
        for run in runs(&there) {
            let copies = match run.block {
                Some((generation, level)) => self.block(run.start, generation, level)?,
                None => self.data(first, run.start, run.len)?,
            };
            done += run.len * copies as u64;
        }
        Ok(done)
    }

    /// Counts sectors from `start` on that have no checksum. `first` is the start of the extent in
    /// which they begin.
    fn count_unverified(&self, first: u64, start: u64, sums: &[Option<Checksum>]) -> Result<()> {
        if sums.iter().all(Option::is_some) {
            return Ok(());
        }
        let store = self.store;
        let sector = u64::from(store.sectorsize);
        let end = start + sums.len() as u64 * sector;
        // The checksums of an extent that was freed since are gone with it.
        let mut there = RangeSet::new();
        let mut cursor = store
            .roots
            .extent_tree
            .seek(store, &Key::new(first, 0, 0))?;
        while let Some((key, _)) = cursor.item().filter(|(key, _)| key.objectid < end) {
            if key.kind == kind::EXTENT_ITEM {
                there.insert(key.objectid, key.objectid.saturating_add(key.offset));
            }
            cursor.next()?;
        }
        let sectors = (start..).step_by(sector as usize).zip(sums);
        let missing =
            sectors.filter(|(at, sum)| sum.is_none() && !there.within(*at, at + sector).is_empty());
        self.report.lock().unverified += missing.count() as u64 * sector;
        Ok(())
    }

    /// The copies of a range whose devices are there.
    fn copies(&self, start: u64, len: u64) -> Result<Vec<usize>> {
        let volume = &self.store.volume;
        let mut there = Vec::new();
        for copy in 0..volume.copies(start)? {
            let pieces = volume.map(start, len, copy)?;
            if pieces.iter().all(|piece| volume.is_written(piece.devid)) {
                there.push(copy);
            }
        }
        Ok(there)
    }

    /// Changes the numbers of the devices that have a copy of a range.
    fn note(
        &self,
        start: u64,
        len: u64,
        copy: usize,
        change: impl Fn(&mut super::DeviceErrors, u64),
    ) -> Result<()> {
        let pieces = self.store.volume.map(start, len, copy)?;
        let mut report = self.report.lock();
        for piece in pieces {
            change(report.devices.entry(piece.devid).or_default(), piece.len);
        }
        Ok(())
    }

    /// Verifies all copies of a tree block. Returns how many were read.
    fn block(&self, start: u64, generation: u64, level: Option<u8>) -> Result<usize> {
        let volume = &self.store.volume;
        let len = u64::from(self.store.nodesize);
        let want = expected(generation, level);
        let mut bytes = vec![0; len as usize];
        let (mut good, mut bad) = (None, Vec::new());
        let copies = self.copies(start, len)?;
        for &copy in &copies {
            self.note(start, len, copy, |device, bytes| device.bytes += bytes)?;
            match volume.read_tree_copy(start, &mut bytes, copy, &want) {
                Ok(()) => good = Some(bytes.clone()),
                Err(crate::Error::Device(_)) => {
                    self.note(start, len, copy, |device, _| device.unreadable += 1)?;
                    bad.push(copy);
                }
                Err(error) => {
                    log::warn!("copy {} of tree block {start}: {error}", copy + 1);
                    self.note(start, len, copy, |device, _| device.trees += 1)?;
                    bad.push(copy);
                }
            }
        }
        for way in volume.rebuilds(start)? {
            if good.is_none() && volume.read_tree_copy(start, &mut bytes, way, &want).is_ok() {
                good = Some(bytes.clone());
            }
        }
        let Some(good) = good else {
            self.report.lock().lost_blocks.push(start);
            for copy in bad {
                self.note(start, len, copy, |device, _| device.lost += 1)?;
            }
            return Ok(copies.len());
        };
        for copy in bad {
            self.repair(start, &good, copy)?;
        }
        Ok(copies.len())
    }

    /// Overwrites a bad copy, unless nothing is to be changed.
    fn repair(&self, start: u64, good: &[u8], copy: usize) -> Result<()> {
        self.repaired_by((start, good.len() as u64), copy, || {
            self.store.volume.repair(start, good, copy)
        })
    }

    /// Runs a repair of a bad copy, unless nothing is to be changed.
    fn repaired_by(
        &self,
        (start, len): (u64, u64),
        copy: usize,
        repair: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        match repair() {
            Ok(()) => self.note(start, len, copy, |device, _| device.repaired += 1),
            Err(error) => {
                log::warn!(
                    "logical {start}: copy {} is not repaired: {error}",
                    copy + 1
                );
                self.note(start, len, copy, |device, _| device.lost += 1)
            }
        }
    }

    /// Verifies all copies of data. Returns how many were read. `first` is the start of the extent
    /// in which it begins.
    fn data(&self, first: u64, start: u64, len: u64) -> Result<usize> {
        let store = self.store;
        let sums = store.checksums.lookup(store, start, len)?;
        let copies = self.copies(start, len)?;
        let sector = u64::from(store.sectorsize);
        self.count_unverified(first, start, &sums)?;
        let mut all = Vec::new();
        for &copy in &copies {
            self.note(start, len, copy, |device, bytes| device.bytes += bytes)?;
            all.push(self.read_copy(start, len, copy, &sums)?);
        }
        for nth in 0..sums.len() {
            self.judge(start + nth as u64 * sector, nth, &copies, &all, &sums)?;
        }
        Ok(copies.len())
    }

    /// Reads a copy, and compares each sector with its checksum.
    fn read_copy(
        &self,
        start: u64,
        len: u64,
        copy: usize,
        sums: &[Option<Checksum>],
    ) -> Result<CopyRead> {
        let (store, sector) = (self.store, self.store.sectorsize as usize);
        let mut bytes = vec![0; len as usize];
        let whole = store.volume.read(start, &mut bytes, copy).is_ok();
        let stale = self.is_stale(start, copy)?;
        let mut states = Vec::with_capacity(sums.len());
        for (nth, (part, sum)) in bytes.chunks_mut(sector).zip(sums).enumerate() {
            let at = start + (nth * sector) as u64;
            let read = whole || store.volume.read(at, part, copy).is_ok();
            states.push(match sum {
                _ if !read => Sector::Unreadable,
                Some(sum) if store.checksum.compute(part) == *sum => Sector::Good,
                Some(_) => Sector::Bad,
                None if stale => Sector::Stale,
                None => Sector::Unverified,
            });
        }
        Ok(CopyRead { bytes, states })
    }

    fn is_stale(&self, start: u64, copy: usize) -> Result<bool> {
        let volume = &self.store.volume;
        let sector = self.store.sectorsize.into();
        let pieces = volume.map(start, sector, copy)?;
        let members = volume.members().filter(|member| member.is_stale());
        let stale: Vec<u64> = members.map(|member| member.devid).collect();
        Ok(pieces.iter().any(|piece| stale.contains(&piece.devid)))
    }

    /// Repairs the bad copies of a sector.
    fn judge(
        &self,
        at: u64,
        nth: usize,
        copies: &[usize],
        all: &[CopyRead],
        sums: &[Option<Checksum>],
    ) -> Result<()> {
        let sector = self.store.sectorsize as usize;
        let state = |read: &CopyRead| read.states.get(nth).copied();
        let broken = |read: &CopyRead| state(read).is_none_or(|state| !state.is_usable());
        let usable = copies.iter().zip(all).filter(|(_, read)| !broken(read));
        let best = usable.min_by_key(|(_, read)| state(read));
        if !all.iter().any(broken) {
            return Ok(());
        }
        let part = |read: &CopyRead| {
            read.bytes
                .get(nth * sector..(nth + 1) * sector)
                .map(<[u8]>::to_vec)
        };
        let sum = sums.get(nth).copied().flatten();
        let good = best.and_then(|(_, read)| part(read));
        let good = good.or_else(|| self.rebuilt(at, sum));
        let mut differing = 0;
        for (copy, read) in copies.iter().zip(all).filter(|(_, read)| broken(read)) {
            let found = state(read).unwrap_or(Sector::Unreadable);
            if found == Sector::Stale && good.is_some() && part(read) == good {
                continue;
            }
            differing += 1;
            self.found(at, *copy, found)?;
            match (&good, best) {
                // Bytes without a checksum may have changed since they were read.
                (Some(_), Some((from, _))) if sum.is_none() => {
                    let len = sector as u64;
                    let volume = &self.store.volume;
                    let repair = || volume.copy_over(at, len, *from, *copy);
                    self.repaired_by((at, len), *copy, repair)?;
                }
                (Some(good), _) => self.repair(at, good, *copy)?,
                (None, _) => self.note(at, sector as u64, *copy, |device, _| device.lost += 1)?,
            }
        }
        if differing > 0 {
            self.bad.lock().push(BadRange {
                at,
                len: sector as u64,
                state: if good.is_some() {
                    State::Good
                } else {
                    State::Lost
                },
            });
        }
        Ok(())
    }

    fn found(&self, at: u64, copy: usize, found: Sector) -> Result<()> {
        let len = self.store.sectorsize.into();
        if found == Sector::Unreadable {
            return self.note(at, len, copy, |device, _| device.unreadable += 1);
        }
        let volume = &self.store.volume;
        volume.count_corruption(at, copy, ErrorKind::Corruption);
        self.note(at, len, copy, |device, _| device.data += 1)
    }

    /// A sector rebuilt from parity that has its checksum.
    fn rebuilt(&self, at: u64, sum: Option<Checksum>) -> Option<Vec<u8>> {
        let store = self.store;
        let mut bytes = vec![0; store.sectorsize as usize];
        for way in store.volume.rebuilds(at).ok()? {
            let read = store.volume.read(at, &mut bytes, way);
            if read.is_ok() && sum.is_none_or(|sum| store.checksum.compute(&bytes) == sum) {
                return Some(bytes);
            }
        }
        None
    }
}

fn expected(generation: u64, level: Option<u8>) -> BlockExpect {
    BlockExpect {
        level,
        generation: Some(generation),
        ..BlockExpect::default()
    }
}

/// A copy of a run.
struct CopyRead {
    bytes: Vec<u8>,
    states: Vec<Sector>,
}

/// The state of a copy of a sector, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sector {
    Good,
    /// There is no checksum.
    Unverified,
    /// There is no checksum, and its device missed commits.
    Stale,
    Bad,
    Unreadable,
}

impl Sector {
    fn is_usable(self) -> bool {
        matches!(self, Self::Good | Self::Unverified)
    }
}
