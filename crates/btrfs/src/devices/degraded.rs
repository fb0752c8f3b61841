//! Missing devices, and devices that fail while the file system is open.
//!
//! # How it works
//! A device that refuses a write or a flush *fails*, if every byte that it holds has a copy on
//! another device. From then on it is neither written nor read. Otherwise the request fails, as on
//! a single device.
//!
//! A device that missed a write must be known as stale when it returns. [`DeviceSet`] sees that by
//! the generation of its superblock, which must be older by more than a power cut explains: by two.
//! So nothing is acknowledged before the superblocks of the others are two generations ahead
//! ([`Volume::acknowledged_from`]). Until then an fsync commits the transaction, because a log does
//! not change the generation, and a commit is followed by another one. The same holds after a mount
//! without some of the devices.
//!
//! A power cut before the second of these commits leaves the failed device one generation behind.
//! Nothing was acknowledged since the failure, and checksums find the blocks that the device
//! missed.
//!
//! [`DeviceSet`]: super::DeviceSet

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use sapwood_block::{Device, PatientDevice};
use sapwood_btrfs_format::{BlockGroupFlags, ChunkItem, SuperBlock};

use super::device_set::Member;
use super::errors::ErrorKind;
use super::{SuperSet, Volume, stripe, superblock};
use crate::{Error, Result};

/// Generations that a device which missed a write is behind, at least.
const BEHIND: u64 = 2;

/// State that only a failure of a device needs.
#[derive(Debug)]
pub(super) struct Losses {
    /// Generation of the newest superblock that any device may have.
    newest: u64,
}

impl Losses {
    pub(super) fn new(generation: u64) -> Self {
        Self { newest: generation }
    }
}

/// A request that a device refused.
pub(super) struct Refused {
    pub(super) devid: u64,
    pub(super) error: sapwood_block::Error,
}

impl Volume {
    /// A device that is written: it is there and has not failed.
    pub(super) fn written(&self, devid: u64) -> Option<&Member> {
        let member = self.devices.get(devid)?;
        (!member.has_failed()).then_some(member)
    }

    /// Whether a device is written.
    pub(crate) fn is_written(&self, devid: u64) -> bool {
        self.written(devid).is_some()
    }

    /// Whether bytes of a chunk may be read from a device. A stale one may have the only copy.
    fn is_readable(&self, chunk: &ChunkItem, devid: u64) -> bool {
        let mirrored = stripe::tolerates_a_loss(chunk);
        let member = self.devices.get(devid);
        member.is_some_and(|member| !(mirrored && (member.has_failed() || member.is_stale())))
    }

    /// Ids of all devices that are written.
    pub(crate) fn written_ids(&self) -> BTreeSet<u64> {
        let members = self.devices.members();
        let healthy = members.filter(|member| !member.has_failed());
        healthy.map(|member| member.devid).collect()
    }

    /// The devices that are there.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> + Clone {
        self.devices.members()
    }

    /// The lowest superblock generation with which a commit, or a log, may be acknowledged.
    pub(crate) fn acknowledged_from(&self) -> u64 {
        self.acknowledged_from.load(Ordering::Acquire)
    }

    /// Ends the scrub of stale devices: all of their bytes are current and durable. The next
    /// superblocks go to them, too.
    pub(crate) fn end_resync(&self) {
        self.devices.members().for_each(Member::set_current);
    }

    /// Ends the use of a device that is no longer part of the file system. Writes and discards that
    /// began before have ended when this returns.
    pub(crate) fn retire(&self, devid: u64) {
        if let Some(member) = self.devices.get(devid) {
            member.set_removed();
        }
        drop(self.writes.write());
    }

    /// Records that devices are missing.
    pub(super) fn begin_degraded(&self) {
        let behind = self.losses.lock().newest.saturating_add(BEHIND);
        self.acknowledged_from.fetch_max(behind, Ordering::AcqRel);
    }

    /// The error for a chunk without enough devices.
    pub(super) fn too_few(&self, chunk: &ChunkItem) -> Error {
        too_few(chunk, &|devid| self.is_written(devid))
    }

    /// Checks that the devices which are there have all bytes of a chunk. A read-only volume may
    /// lack data.
    ///
    /// # Errors
    /// [`Error::TooFewDevices`].
    pub(super) fn check_survives(&self, logical: u64, chunk: &ChunkItem) -> Result<()> {
        let here = |devid| self.is_readable(chunk, devid);
        if stripe::survives(chunk, &here) {
            return Ok(());
        }
        let error = too_few(chunk, &here);
        let trees = BlockGroupFlags::SYSTEM | BlockGroupFlags::METADATA;
        if !self.read_only || chunk.flags.intersects(trees) {
            return Err(error);
        }
        log::warn!("data at logical address {logical}: {error}");
        Ok(())
    }

    /// Handles refused writes of a logical range: the devices fail if others have all of it.
    ///
    /// # Errors
    /// The first error, if a byte was written nowhere; [`Error::TooFewDevices`].
    pub(super) fn after_write(&self, logical: u64, len: u64, refused: Vec<Refused>) -> Result<()> {
        let lost: BTreeSet<u64> = refused.iter().map(|refused| refused.devid).collect();
        for refused in &refused {
            self.count(refused.devid, ErrorKind::Write);
        }
        let mut at = logical;
        while at < logical + len {
            let (start, chunk) = self.chunk_at(at)?;
            let here = |devid| !lost.contains(&devid) && self.written(devid).is_some();
            if !stripe::survives(&chunk, &here) {
                let first = refused.into_iter().next();
                return Err(first.map_or_else(|| too_few(&chunk, &here), |r| r.error.into()));
            }
            at = start + chunk.length;
        }
        refused
            .into_iter()
            .try_for_each(|refused| self.lose(refused))
    }

    /// Marks a device as failed, unless chunks would then lack bytes.
    ///
    /// # Errors
    /// The error of the device.
    pub(super) fn lose(&self, refused: Refused) -> Result<()> {
        let chunks = self.chunks();
        // Held, so that two devices with copies of the same bytes cannot fail at once.
        let losses = self.losses.lock();
        let devid = refused.devid;
        let here = |other| other != devid && self.written(other).is_some();
        if !chunks
            .iter()
            .all(|(_, chunk)| stripe::survives(chunk, &here))
        {
            return Err(refused.error.into());
        }
        let behind = losses.newest.saturating_add(BEHIND);
        self.acknowledged_from.fetch_max(behind, Ordering::AcqRel);
        let failed = self.devices.get(devid).is_some_and(Member::set_failed);
        if failed {
            log::error!(
                "device {devid} of the file system failed and is used no more: {}",
                refused.error
            );
        }
        Ok(())
    }

    /// Counts an error of a device.
    pub(crate) fn count(&self, devid: u64, kind: ErrorKind) {
        if let Some(member) = self.devices.get(devid) {
            member.errors.count(kind);
        }
    }

    /// Makes all completed writes durable, on every device.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn flush(&self) -> Result<()> {
        if let Some(new) = self.replacing().filter(|new| new.is_named()) {
            new.send(|device| device.flush());
        }
        let members = self.devices.members();
        let members: Vec<&Member> = members.filter(|member| !member.has_failed()).collect();
        let mut flushed = at_once(&members, |member| member.device.flush());
        flushed.try_for_each(|(member, flushed)| {
            let Err(error) = flushed else {
                return Ok(());
            };
            self.count(member.devid, ErrorKind::Flush);
            let devid = member.devid;
            self.lose(Refused { devid, error })
        })
    }

    /// Writes all copies of the superblock to every device. The caller has flushed all devices.
    /// When this returns, the first copy on each device is durable.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn write_supers(&self, supers: &SuperSet) -> Result<()> {
        self.losses.lock().newest = supers.generation.get();
        self.each_super(supers, superblock::write_all)
    }

    /// Writes the first copy of the superblock to every device, for a log. The caller has flushed
    /// all devices. The copies are durable when this returns.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn write_log_super(&self, supers: &SuperSet) -> Result<()> {
        self.each_super(supers, superblock::write_first)
    }

    /// A power cut may leave any of the devices with its old superblock. Nothing is acknowledged
    /// then, and both superblocks lead to blocks that are durable on all devices.
    fn each_super(
        &self,
        supers: &SuperSet,
        write: impl Fn(&dyn Device, &SuperBlock) -> Result<()> + Sync,
    ) -> Result<()> {
        let members = self.devices.members();
        let current = members.filter(|member| !member.has_failed() && !member.is_stale());
        let current: Vec<&Member> = current.collect();
        let mut written = at_once(&current, |member| {
            let patient = PatientDevice::new(Arc::clone(&member.device), self.patience());
            match supers.of(member.devid) {
                Some(sb) => write(&patient, &sb),
                None => Ok(()),
            }
        });
        written.try_for_each(|(member, written)| match written {
            Err(Error::Device(error)) => {
                self.count(member.devid, ErrorKind::Write);
                let devid = member.devid;
                self.lose(Refused { devid, error })
            }
            other => other,
        })?;
        let named = self.replacing().filter(|new| new.is_named());
        let Some((sb, new)) = named.and_then(|new| Some((supers.of(new.devid())?, new))) else {
            return Ok(());
        };
        // The old device has its superblock now, so the new one is never newer.
        new.send_super(self.patience(), |device| write(device, &sb))
    }

    /// Checks that no two chunks claim the same range of a device.
    ///
    /// # Errors
    /// [`Error::BadChunk`].
    pub(crate) fn check_extents(&self) -> Result<()> {
        let mut taken: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        for (logical, chunk) in self.chunks() {
            for extent in stripe::extents(&chunk) {
                let (devid, from) = (extent.devid, extent.physical);
                let end = from.saturating_add(extent.len);
                let before = taken.range((devid, 0)..(devid, end)).next_back();
                if let Some((&(_, at), &other_end)) = before
                    && other_end > from
                {
                    let reason = format!(
                        "its bytes {from}..{end} of device {devid} overlap the bytes of another \
                         chunk at {at}"
                    );
                    return Err(Error::BadChunk { logical, reason });
                }
                taken.insert((devid, from), end);
            }
        }
        Ok(())
    }
}

/// Calls `work` for several devices at once, for the first one in the caller's thread.
fn at_once<'m, T: Send>(
    members: &[&'m Member],
    work: impl Fn(&Member) -> T + Sync,
) -> std::vec::IntoIter<(&'m Member, T)> {
    let Some((first, others)) = members.split_first() else {
        return Vec::new().into_iter();
    };
    let done = thread::scope(|scope| {
        let work = &work;
        let spawn = |member: &&'m Member| {
            let member: &'m Member = member;
            let builder = thread::Builder::new().name("btrfs-device".to_owned());
            (member, builder.spawn_scoped(scope, move || work(member)))
        };
        let others: Vec<_> = others.iter().map(spawn).collect();
        let mut done = vec![(*first, work(first))];
        done.extend(others.into_iter().map(|(member, thread)| {
            let done = match thread.map(thread::ScopedJoinHandle::join) {
                Ok(Ok(done)) => done,
                Ok(Err(panic)) => std::panic::resume_unwind(panic),
                // No thread could be started.
                Err(_) => work(member),
            };
            (member, done)
        }));
        done
    });
    done.into_iter()
}

/// The error for a chunk without enough devices.
fn too_few(chunk: &ChunkItem, here: &dyn Fn(u64) -> bool) -> Error {
    let devices: BTreeSet<u64> = chunk.stripes.iter().map(|stripe| stripe.devid).collect();
    let present = devices.iter().filter(|devid| here(**devid)).count();
    Error::TooFewDevices {
        profile: chunk.flags.profile_name(),
        present,
        needed: devices.len() - stripe::tolerated(chunk),
        of: devices.len(),
    }
}

/// The copies of a range that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mirrors(u64);

impl Mirrors {
    /// Number of the first copy.
    pub(crate) fn first(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
    }

    /// Numbers of the copies, in the order in which they are tried.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..64).filter(move |n| self.0 >> n & 1 == 1)
    }
}

impl Volume {
    /// The copies of a logical range whose devices can be read.
    ///
    /// # Errors
    /// [`Error::Unmapped`]; [`Error::TooFewDevices`] if there is none.
    pub(crate) fn readable(&self, logical: u64, len: u64) -> Result<Mirrors> {
        let (start, chunk) = self.chunk_at(logical)?;
        let count = self.mirrors(logical, len)?.min(64);
        let mut all = Mirrors(u64::MAX >> (64 - count.max(1)));
        let mut members = self.devices.members();
        let whole = members.all(|m| !m.has_failed() && !m.is_stale());
        if whole && !self.devices.may_be_degraded() {
            return Ok(all);
        }
        let copies = stripe::copies(&chunk);
        for mirror in all.iter().filter(|mirror| *mirror < copies) {
            let mut pieces = self.map(logical, len, mirror)?.into_iter();
            if !pieces.all(|piece| self.is_readable(&chunk, piece.devid)) {
                all.0 &= !(1 << mirror);
            }
        }
        if all.0 == 0 && len <= chunk.length - (logical - start) {
            let here = |devid| self.is_readable(&chunk, devid);
            if !stripe::survives(&chunk, &here) {
                return Err(too_few(&chunk, &here));
            }
        }
        Ok(all)
    }
}
