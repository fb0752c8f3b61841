//! Reads all used space of a file system, mounted or not, in every copy, and repairs bad copies
//! from good ones.
//!
//! # How it works
//! The extent tree lists all extents of a block group. `extents` verifies them in several
//! threads: data against its checksums, tree blocks by their own, each copy by itself. A bad copy
//! is overwritten with a good one, or with bytes rebuilt from parity.
//!
//! A stale device missed the commits of a mount without it. It is accepted here, is not read where
//! another device has the same bytes, and gets all of them. Its superblock is written last, after a
//! flush. Until then it stays stale, so an interrupted scrub leaves nothing half done.
//!
//! After each block group all repairs are flushed. A later scrub may continue there, unless the
//! file system changed since ([`Position`]) or a device is stale.

mod donors;
mod extents;
mod files;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs_format::{Key, SUPER_SIZE, kind, validate_super};
use sapwood_vfs::{FileSystem, Timestamp};

use crate::devices::{DeviceSet, Member, superblock};
use crate::mount::Btrfs;
use crate::options::{Options, SubvolumeChoice};
use crate::transaction::Store;
use crate::{Error, Result};
pub use donors::{Donated, Donor, Offer, TakeOffer};
use extents::{Extent, Scan};
pub use files::DamagedFile;
use files::State;

/// Parameters of a scrub.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScrubOptions {
    /// Repairs nothing.
    pub read_only: bool,
    /// Devices may be missing, as far as the profiles allow.
    pub degraded: bool,
    /// Bytes that are read in a second at most, of all devices together.
    pub limit: Option<u64>,
    /// End of an earlier scrub, which this one continues.
    pub resume: Option<Position>,
    /// Time of the changes, for a reproducible result.
    pub time: Option<Timestamp>,
}

/// The progress of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Generation of the file system at that time.
    pub generation: u64,
    /// All block groups below this logical address are done.
    pub logical: u64,
}

/// A step of a scrub.
#[derive(Clone, Copy, Debug)]
pub struct ScrubStep {
    /// Bytes read, of all copies.
    pub done: u64,
    /// Bytes to read, about.
    pub total: u64,
    /// Set when a block group is done and its repairs are durable.
    pub position: Option<Position>,
}

/// Errors of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceErrors {
    /// Name of the device.
    pub name: String,
    /// It missed commits, and was brought up to date.
    pub was_stale: bool,
    /// Bytes read.
    pub bytes: u64,
    /// Sectors or tree blocks that the device did not return.
    pub unreadable: u64,
    /// Sectors of data that differ from their checksum.
    pub data: u64,
    /// Tree blocks that are not valid.
    pub trees: u64,
    /// Superblocks that are not valid.
    pub superblocks: u64,
    /// Sectors and tree blocks that were repaired.
    pub repaired: u64,
    /// Sectors and tree blocks that could not be repaired.
    pub lost: u64,
}

impl DeviceErrors {
    /// All errors found.
    #[must_use]
    pub fn found(&self) -> u64 {
        self.unreadable + self.data + self.trees + self.superblocks
    }
}

/// The result of a scrub.
#[derive(Clone, Debug, Default)]
pub struct ScrubReport {
    /// Errors of each device, keyed by device id.
    pub devices: BTreeMap<u64, DeviceErrors>,
    /// Bytes of data without checksums, whose copies cannot be verified.
    pub unverified: u64,
    /// Logical addresses of tree blocks without a good copy.
    pub lost_blocks: Vec<u64>,
    /// Files with bad sectors.
    pub files: Vec<DamagedFile>,
    /// The contributions of the donors, in their order.
    pub donated: Vec<Donated>,
    /// The callback stopped the scrub.
    pub interrupted: bool,
}

impl ScrubReport {
    /// Whether every byte has a good copy, and every copy is good now.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let devices = self.devices.values();
        let left =
            devices.map(|device| device.lost + device.found().saturating_sub(device.repaired));
        self.lost_blocks.is_empty() && left.sum::<u64>() == 0
    }
}

/// Callback of a scrub.
pub type OnStep<'s> = dyn FnMut(&ScrubStep) -> ControlFlow<()> + Send + 's;

/// Scrubs the file system on `devices`. Nothing else uses them meanwhile.
///
/// # Errors
/// The errors of a mount; a device that fails, an unreadable tree of extents or checksums. Repairs
/// until then stay.
pub fn scrub(
    devices: &[Arc<dyn Device>],
    options: &ScrubOptions,
    step: &mut OnStep<'_>,
) -> Result<ScrubReport> {
    scrub_with(devices, options, &mut [], step)
}

/// Like [`scrub`], and repairs sectors of data without a good copy from the donors.
///
/// # Errors
/// The errors of [`scrub`]. The error of a donor is in the report.
pub fn scrub_with(
    devices: &[Arc<dyn Device>],
    options: &ScrubOptions,
    donors: &mut [Box<dyn Donor>],
    step: &mut OnStep<'_>,
) -> Result<ScrubReport> {
    let mut engine = Options {
        subvolume: SubvolumeChoice::Id(0),
        background: false,
        read_only: options.read_only,
        no_log_replay: options.read_only,
        degraded: options.degraded,
        resync: true,
        ..Options::default()
    };
    if let Some(time) = options.time {
        engine.set_reproducible(time);
    }
    let (_, supers) = DeviceSet::assemble(devices, engine.access(options.read_only))?;
    let resume = options
        .resume
        .filter(|p| p.generation == supers.generation.get());
    let mut report = ScrubReport::default();
    let fs = Btrfs::open(devices.to_vec(), engine)?;
    let done = run(&fs, options, (resume, donors), &mut report, step);
    let closed = fs.unmount();
    done?;
    closed?;
    Ok(report)
}

/// Scrubs a mounted file system, which stays in use. Space that is allocated meanwhile need not be
/// read. On a read-only mount nothing is repaired. `limit` and `read_only` of the options count.
///
/// # Errors
/// A device that fails, an unreadable tree of extents or checksums. Repairs until then stay.
pub fn scrub_mounted(
    fs: &Btrfs,
    options: &ScrubOptions,
    step: &mut OnStep<'_>,
) -> Result<ScrubReport> {
    let options = ScrubOptions {
        read_only: options.read_only || fs.engine.read_only(),
        ..*options
    };
    let mut report = ScrubReport::default();
    run(fs, &options, (None, &mut []), &mut report, step)?;
    Ok(report)
}

/// Verifies all copies of the block group at `start`, and repairs bad ones. Returns how many
/// sectors and tree blocks have no good copy. The repairs are durable with the next flush.
///
/// # Errors
/// A device that fails, an unreadable tree of extents or checksums.
pub(crate) fn verify_group(store: &Arc<Store>, start: u64) -> Result<u64> {
    let mut scan = Scan::new(store, None, false, 0);
    let (_, len) = store.space.group_shape(start)?;
    let extents = extents_in(store, start, start.saturating_add(len))?;
    let _ = scan.group(&extents, &mut |_| ControlFlow::Continue(()))?;
    let mut report = ScrubReport::default();
    let bad = scan.finish(&mut report);
    let lost = bad
        .iter()
        .filter(|range| range.state == State::Lost)
        .count();
    let unrepaired: u64 = report.devices.values().map(|device| device.lost).sum();
    Ok(unrepaired.max((lost + report.lost_blocks.len()) as u64))
}

fn run(
    fs: &Btrfs,
    options: &ScrubOptions,
    (resume, donors): (Option<Position>, &mut [Box<dyn Donor>]),
    report: &mut ScrubReport,
    step: &mut OnStep<'_>,
) -> Result<()> {
    let store: &Arc<Store> = &fs.engine;
    // No superblock is written while they are read.
    let order = store.transactions.superblock_order.lock();
    for member in store.volume.members() {
        let device = report.devices.entry(member.devid).or_default();
        member.device.name().clone_into(&mut device.name);
        device.was_stale = member.is_stale();
        device.superblocks = bad_superblocks(member, store);
    }
    drop(order);
    let groups = store.space.all_groups();
    let copies = |start| store.volume.copies(start).map(|copies| copies as u64);
    let mut total = 0;
    for group in &groups {
        // A group may have been removed since.
        total += group.lock().used * copies(group.start).unwrap_or(0);
    }
    let mut scan = Scan::new(store, options.limit, options.read_only, total);
    // A stale device lacks bytes that an earlier scrub verified on the others alone.
    let resyncs = store.volume.members().any(|member| member.is_stale());
    let resume = resume.filter(|_| !resyncs);
    let from = resume.map_or(0, |position| position.logical);
    for group in groups.iter().filter(|group| group.start >= from) {
        let extents = extents_in(store, group.start, group.end())?;
        if scan.group(&extents, step)?.is_break() {
            report.interrupted = true;
            break;
        }
        if !options.read_only {
            store.volume.flush()?;
        }
        let position = Position {
            generation: store.last_committed(),
            logical: group.end(),
        };
        if step(&scan.step(Some(position))).is_break() {
            report.interrupted = true;
            break;
        }
    }
    let after = scan.step(None);
    let mut bad = scan.finish(report);
    if !donors.is_empty() && !options.read_only && !report.interrupted {
        donors::repair(&fs.engine, donors, &mut bad, report, &mut || step(&after))?;
    }
    report.files = files::with(&fs.engine, &bad)?;
    if options.read_only {
        return Ok(());
    }
    store.volume.flush()?;
    if !report.interrupted {
        end_resync(store, report);
    }
    finish(store, report)
}

/// A stale device is current if every byte was written to it.
fn end_resync(store: &Store, report: &ScrubReport) {
    let lacks = |device: &DeviceErrors| device.was_stale && device.lost > 0;
    if report.devices.values().any(lacks) {
        log::warn!("a stale device stays stale: not every byte could be written to it");
        return;
    }
    store.volume.end_resync();
}

/// Writes superblocks and error counters, with one more commit.
fn finish(store: &Arc<Store>, report: &mut ScrubReport) -> Result<()> {
    let found: u64 = report.devices.values().map(DeviceErrors::found).sum();
    let stale = report.devices.values().any(|device| device.was_stale);
    if found == 0 && !stale {
        return Ok(());
    }
    let h = store.join()?;
    let transid = h.transid();
    h.end()?;
    store.commit_and_unpin(Some(transid))?;
    for (devid, device) in &mut report.devices {
        if store.volume.is_written(*devid) {
            device.repaired += device.superblocks;
        }
    }
    Ok(())
}

/// Number of superblock copies of a device that are not valid, or of another file system. All of
/// them count if the device is not written any more.
fn bad_superblocks(member: &Member, store: &Store) -> u64 {
    let mut bad = 0;
    let device = &*member.device;
    let own = superblock::read_newest(device).map(|own| own.dev_item.total_bytes.get());
    let end = device.size().min(own.unwrap_or(u64::MAX));
    for offset in superblock::copies(end) {
        let mut bytes = [0; SUPER_SIZE];
        let read = device.read_at(offset, &mut bytes);
        let valid = !member.has_failed()
            && read.is_ok()
            && validate_super(&bytes, offset).is_ok_and(|sb| sb.fsid == store.fsid);
        bad += u64::from(!valid);
    }
    bad
}

/// The extents that begin in `start..end`, in order.
fn extents_in(store: &Store, start: u64, end: u64) -> Result<Vec<Extent>> {
    let mut found = Vec::new();
    let tree = &store.roots.extent_tree;
    let nodesize = u64::from(store.nodesize);
    tree.walk_committed(store, &Key::new(start, 0, 0), &mut |key, item| {
        if key.objectid >= end {
            return Ok(false);
        }
        if key.kind == kind::EXTENT_ITEM || key.kind == kind::METADATA_ITEM {
            let bad = |source| Error::BadItem {
                root: tree.id(),
                key,
                source,
            };
            found.push(Extent::read(&key, item, nodesize).map_err(bad)?);
        }
        Ok(true)
    })?;
    Ok(found)
}
