//! Opening and closing a file system.
//!
//! # How it works
//! 1. The superblock and the journal's inode are read straight from the device.
//! 2. A journal that needs recovery is replayed. A read-only mount replays it into memory, so that
//!    it shows the result of a recovery and does not write to the image.
//! 3. The layers are assembled: store, volume, engine. Fast commits are replayed, and orphans are
//!    finished.
//!
//! Reasons to refuse a mount are found before the first write. The exception is the journal, which
//! is validated as a whole before it is replayed. An orphan that cannot be finished does not fail
//! the mount.
//!
//! While the file system is mounted for writing, its superblock is marked as needing recovery (with
//! a journal) or as not clean (without one). Closing removes the mark, after everything else is at
//! its home location.

mod background;
mod front;
mod host;
mod journal;
pub(crate) mod sync;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use sapwood_base::Health;
use sapwood_block::{Device, OVERLAY_PAGE, OverlayDevice, PatientDevice};
use sapwood_ext4_format::{
    Compat, Geometry, Incompat, RoCompat, SUPER_OFFSET, SUPER_SIZE, SuperBlock, SuperState,
};
use sapwood_jbd2::{Cache, Host, Journal};
use sapwood_vfs::{Ambient, Timestamp};

use crate::alarm::Alarm;
use crate::block_alloc::Space;
use crate::counters::Counters;
use crate::data::new_writeback;
use crate::engine::Engine;
use crate::group::Groups;
use crate::inode::InodeTable;
use crate::journal_device::{JournalDevice, is_external};
use crate::lock::{Rank, RankedMutex};
use crate::mmp::Protection;
use crate::on_demand::OnDemand;
use crate::orphan_set::Orphans;
use crate::quota_table::QuotaTable;
use crate::store::Store;
use crate::track::Tracker;
use crate::volume::{SharedBlocks, Volume};
use crate::{DataMode, Error, FastCommits, Options, Result, quota, recovery};
use background::Background;
pub use journal::refuse_external_journal;
pub(crate) use journal::{journal_layout, open_empty_log, read_inode_unverified};
use journal::{journal_memory, log_form, open_log};

/// A mounted ext2, ext3 or ext4 file system.
pub type Ext4 = sapwood_vfs::front::Front<Mount>;

/// The engine of a mount, below its [front](sapwood_vfs::front).
pub struct Mount {
    pub(crate) engine: Arc<Engine>,
    /// Held by the thread that moves a directory from one parent to another.
    pub(crate) topology: RankedMutex<()>,
    background: Background,
}

impl Mount {
    /// Mounts the file system on this device.
    ///
    /// # Errors
    /// Errors of the device or the image, see [`Error`].
    pub(crate) fn open(device: Arc<dyn Device>, options: Options) -> Result<Self> {
        let engine = open(device, options)?;
        if !engine.read_only() {
            engine.writeback.start(&engine);
        }
        let background = Background::start(&engine);
        keep_protection(&engine);
        Ok(Self {
            engine,
            topology: RankedMutex::new(Rank::RenameTopology, ()),
            background,
        })
    }

    /// Makes everything durable and ends the background threads. Later changes fail.
    ///
    /// # Errors
    /// The error that kept changes from becoming durable.
    pub fn close(&self) -> Result<()> {
        self.background.stop(&self.engine);
        let result = close(&self.engine);
        self.engine.writeback.stop();
        self.engine.health.close();
        result
    }

    /// The counters of the mount by name.
    pub fn counters(&self) -> Vec<(String, u64)> {
        self.engine.counters.all(&self.engine.journal)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.background.stop(&self.engine);
    }
}

/// The path of changes to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum With {
    /// Through the journal, if the image has one.
    Log,
    /// Directly to the home location: for blocks that must not use the journal.
    InPlace,
}

/// Reads and validates the superblock.
///
/// # Errors
/// [`Error::NotExt4`], [`Error::Format`]; errors of the device.
pub(crate) fn read_super(device: &dyn Device) -> Result<SuperBlock> {
    let not_ext4 = || Error::NotExt4 {
        device: device.name().to_owned(),
    };
    if device.size() < SUPER_OFFSET + SUPER_SIZE as u64 {
        return Err(not_ext4());
    }
    let mut bytes = vec![0; SUPER_SIZE];
    device.read_at(SUPER_OFFSET, &mut bytes)?;
    let sb = SuperBlock::read(&bytes)?;
    if sb.magic.get() != sapwood_ext4_format::SUPER_MAGIC {
        return Err(not_ext4());
    }
    Ok(SuperBlock::parse(&bytes)?)
}

/// Refuses features that this version cannot read, or write.
///
/// # Errors
/// [`Error::UnsupportedFeature`], [`Error::ReadOnlyFeature`].
pub(crate) fn check_features(sb: &SuperBlock, read_only: bool) -> Result<()> {
    let features = sb.features();
    if features.has_incompat(Incompat::JOURNAL_DEV) {
        return Err(Error::UnsupportedFeature("journal_dev".into()));
    }
    let blockers = features.read_blockers();
    if !blockers.is_empty() {
        return Err(Error::UnsupportedFeature(blockers.names().join(", ")));
    }
    let blockers = sb.write_blockers();
    if !read_only && !blockers.is_empty() {
        return Err(Error::ReadOnlyFeature(blockers.join(", ")));
    }
    Ok(())
}

/// Opens a file system; see the module's documentation.
///
/// # Errors
/// Errors of the device or the image.
pub(crate) fn open(device: Arc<dyn Device>, options: Options) -> Result<Arc<Engine>> {
    open_with(device, options, Quotas::Kept)
}

/// Treatment of the image's quotas by a writable mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quotas {
    /// Usage is kept.
    Kept,
    /// Usage becomes stale. For a mount whose changes stay in memory.
    Ignored,
}

fn open_with(device: Arc<dyn Device>, mut options: Options, quotas: Quotas) -> Result<Arc<Engine>> {
    options.read_only |= device.read_only();
    let sb = read_super(&*device)?;
    check_features(&sb, options.read_only)?;
    quota::check_wanted(&sb, &options.quotas)?;
    if options.no_load && !options.read_only {
        return Err(Error::NoLoadNeedsReadOnly);
    }
    if let Some(journal) = options.journal.as_ref().filter(|_| !is_external(&sb)) {
        let device = journal.device().name().to_owned();
        return Err(Error::NeedlessJournalDevice { device });
    }
    let geometry = Geometry::new(&sb)?;
    geometry.check_device(device.size())?;
    let unclean = is_unclean(&sb);
    if options.read_only {
        if options.no_load || !unclean {
            let engine = assemble(device, options, With::Log)?;
            engine.needed_recovery.store(unclean, Ordering::Relaxed);
            return Ok(engine);
        }
        return open_recovered_in_memory(device, options);
    }
    let (device, protection) = Protection::take(&device, &sb, &options)?;
    // Every mount writes the superblock before anything else.
    device.watch(SUPER_OFFSET, SUPER_SIZE as u64)?;
    let sb = read_super(&*device)?;
    check_features(&sb, false)?;
    // Another machine may have used the file system until the protection was taken.
    let unclean = unclean || is_unclean(&sb);
    if let Some(protection) = &protection {
        options.journal = options.journal.map(|journal| protection.fence(&journal));
    }
    recover_journal(&device, &sb, &Geometry::new(&sb)?, options.journal.as_ref())?;
    let with = if options.in_place {
        With::InPlace
    } else {
        With::Log
    };
    let engine = assemble(device, options, with)?;
    engine.needed_recovery.store(unclean, Ordering::Relaxed);
    if let Some(protection) = protection {
        let _ = engine.protection.set(protection);
    }
    if quotas == Quotas::Kept {
        quota::load(&engine)?;
    }
    // The last step that can fail because of the image, and it only reads.
    let orphans = recovery::find(&engine)?;
    mark_mounted(&engine)?;
    // Records of fast commits, replayed now or in an opening that a power cut ended, do not change
    // quota files.
    if unclean && engine.quota.is_on() && sb.features().has_compat(Compat::FAST_COMMIT) {
        quota::recount(&engine)?;
    }
    recovery::finish_all(&engine, &orphans);
    Ok(engine)
}

/// Whether the last mount of a file system did not end with an unmount.
fn is_unclean(sb: &SuperBlock) -> bool {
    sb.features().has_incompat(Incompat::RECOVER) || recovery::may_have_orphans(sb)
}

/// Shows the state after a recovery, without a write to the device.
fn open_recovered_in_memory(device: Arc<dyn Device>, mut options: Options) -> Result<Arc<Engine>> {
    options.journal = options.journal.map(|journal| journal.in_memory());
    let overlay: Arc<dyn Device> = Arc::new(OverlayDevice::new(device));
    let sb = read_super(&*overlay)?;
    if sb.write_blockers().is_empty() {
        let recovering = Options {
            read_only: false,
            background: false,
            unprotected: true,
            ..options.clone()
        };
        let engine = open_with(Arc::clone(&overlay), recovering, Quotas::Ignored)?;
        close(&engine)?;
    } else {
        let geometry = Geometry::new(&sb)?;
        recover_journal(&overlay, &sb, &geometry, options.journal.as_ref())?;
    }
    let engine = assemble(overlay, options, With::Log)?;
    engine.needed_recovery.store(true, Ordering::Relaxed);
    Ok(engine)
}

/// Replays the journal, if it needs that, with its fast commits. Damage is found before anything is
/// written. The journal is emptied last, so that an interrupted recovery starts again.
fn recover_journal(
    device: &Arc<dyn Device>,
    sb: &SuperBlock,
    geometry: &Geometry,
    journal: Option<&JournalDevice>,
) -> Result<()> {
    let features = sb.features();
    if !features.has_compat(Compat::HAS_JOURNAL) || !features.has_incompat(Incompat::RECOVER) {
        return Ok(());
    }
    let log = open_log(device, sb, geometry, journal)?;
    if !log.needs_recovery() {
        return Ok(());
    }
    let plan = log.scan(&|block| geometry.may_be_logged(block))?;
    if log.fast_commit_blocks() == 0 {
        let recovery = plan.replay(&**device)?;
        log::info!("{}: journal recovered", device.name());
        return Ok(log.reset(&recovery)?);
    }
    // Fast commits prove valid only after all of them were replayed.
    let overlay = Arc::new(OverlayDevice::new(Arc::clone(device)));
    let recovery = plan.replay(&*overlay)?;
    if let Some(commits) = &recovery.fast_commit {
        let options = Options {
            background: false,
            ..Options::default()
        };
        let engine = assemble(
            Arc::clone(&overlay) as Arc<dyn Device>,
            options,
            With::InPlace,
        )?;
        recovery::replay(&engine, &log, commits)?;
        sync::sync(&engine)?;
        recovery::erase_stale(&log, commits)?;
        plan.replay(&**device)?;
        log_what_changed(&overlay, &log, commits.expected)?;
    }
    overlay.write_home()?;
    log::info!("{}: journal recovered", device.name());
    Ok(log.reset(&recovery)?)
}

/// Makes one transaction of the fast commits' changes, after the transactions of the log were
/// written to their home locations. Bitmaps, descriptors and inodes belong together: a power cut
/// while they are written back must leave all of them to the next recovery.
fn log_what_changed(overlay: &OverlayDevice, log: &sapwood_jbd2::Log, sequence: u32) -> Result<()> {
    let size = u64::from(log.block_size());
    let mut numbers = BTreeSet::new();
    for page in overlay.written() {
        numbers.extend(page / size..(page + OVERLAY_PAGE).div_ceil(size));
    }
    let mut blocks = Vec::new();
    for number in numbers {
        let mut old = vec![0; log.block_size() as usize];
        let mut new = old.clone();
        if (number + 1) * size > overlay.size() {
            continue;
        }
        overlay.inner().read_at(number * size, &mut old)?;
        overlay.read_at(number * size, &mut new)?;
        if old != new {
            blocks.push((number, new));
        }
    }
    if !blocks.is_empty() && !log.write_alone(sequence, &blocks)? {
        log::warn!(
            "the journal has no room for {} blocks of a recovery",
            blocks.len()
        );
    }
    Ok(())
}

/// Sets up everything that a mount needs. Starts no thread.
fn assemble(device: Arc<dyn Device>, options: Options, with: With) -> Result<Arc<Engine>> {
    let sb = read_super(&*device)?;
    let geometry = Geometry::new(&sb)?;
    geometry.check_device(device.size())?;
    // Writes of a transaction wait for space on the host; data does not.
    let patient: Arc<dyn Device> =
        Arc::new(PatientDevice::new(Arc::clone(&device), options.patience));
    let cache = Arc::new(Cache::new(
        Arc::clone(&patient),
        geometry.block_size(),
        options.cache_bytes,
    ));
    let groups = Arc::new(Groups::open(&cache, &geometry, options.discard)?);
    let has_journal = sb.features().has_compat(Compat::HAS_JOURNAL);
    let journal_options = sapwood_jbd2::Options {
        closing_credits: closing_credits(&geometry),
        ..journal_memory(options.cache_bytes, geometry.block_size())
    };
    let journal = if has_journal && with == With::Log && !options.read_only {
        let journal = options.journal.as_ref();
        let journal = journal.map(|journal| journal.patient(options.patience));
        let mut log = open_log(&patient, &sb, &geometry, journal.as_ref())?;
        log.set_form(log_form(&sb, &options))?;
        log.set_time(options.fixed_time.map(Timestamp::since_epoch));
        Journal::with_log(Arc::clone(&cache), log, journal_options)?
    } else {
        Journal::in_place(Arc::clone(&cache), journal_options)
    };
    let fast_commits = possible_fast_commits(&sb, &journal, &options);
    let clean_at_mount = sb.state().contains(SuperState::VALID);
    let hidden = [
        sb.usr_quota_inum.get(),
        sb.grp_quota_inum.get(),
        sb.prj_quota_inum.get(),
        sb.orphan_file_inum.get(),
    ];
    let first_ino = geometry.first_ino();
    let ambient = ambient(&sb, &options);
    let store = Store {
        on_demand: OnDemand::new(&sb),
        space: Space::open(&groups, &journal, &sb),
        orphans: Orphans::new(),
        super_block: RankedMutex::new(Rank::Superblock, sb),
        health: Health::new(options.read_only),
        ambient,
        counters: Counters::default(),
        fast_commits: Tracker::new(fast_commits, first_ino),
        alarm: Alarm::new(),
        device,
        geometry: groups.live_geometry(),
        cache,
        journal,
        groups,
        hidden,
        clean_at_mount,
        needed_recovery: AtomicBool::new(false),
        protection: OnceLock::new(),
        quota: QuotaTable::default(),
        options,
    };
    let writeback = new_writeback(&store.options);
    let volume = Volume {
        inodes: InodeTable::new(store.options.inode_bytes),
        xattr_blocks: SharedBlocks::new(),
        store,
    };
    let engine = Arc::new(Engine { volume, writeback });
    let host: Weak<dyn Host> = Arc::downgrade(&engine) as Weak<dyn Host>;
    engine.journal.attach(host);
    Ok(engine)
}

/// Takes the multiple mount protection of the file system on a device, for a caller that changes it
/// without mounting it. Returns the device to write to. The protection is renewed until it is
/// dropped. With a `time`, commits record it.
///
/// # Errors
/// [`Error::InUse`], [`Error::CheckRunning`]; a superblock or features that refuse a mount for
/// writing.
pub fn protect(
    device: &Arc<dyn Device>,
    time: Option<Timestamp>,
) -> Result<(Arc<dyn Device>, Option<Protection>)> {
    protect_as(device, &**device, time)
}

/// Like [`protect`], also for a file system that [`folds_only`].
///
/// # Errors
/// The errors of [`protect`].
pub(crate) fn protect_for_resize(
    device: &Arc<dyn Device>,
    time: Option<Timestamp>,
) -> Result<(Arc<dyn Device>, Option<Protection>)> {
    let sb = read_super(&**device)?;
    if !folds_only(&sb) {
        return protect(device, time);
    }
    take_protection(device, &sb, time)
}

/// Whether nothing but casefold keeps a file system from a mount for writing, and it needs no
/// recovery.
pub(crate) fn folds_only(sb: &SuperBlock) -> bool {
    let mut without = sb.clone();
    let mut features = sb.features();
    let folds = features.has_incompat(Incompat::CASEFOLD);
    features.incompat -= Incompat::CASEFOLD;
    without.set_features(features);
    folds && check_features(&without, false).is_ok() && !is_unclean(sb)
}

/// Like [`protect`], with the superblock of another device: one that has a repaired copy.
///
/// # Errors
/// The errors of [`protect`].
pub fn protect_as(
    device: &Arc<dyn Device>,
    superblock: &dyn Device,
    time: Option<Timestamp>,
) -> Result<(Arc<dyn Device>, Option<Protection>)> {
    let sb = read_super(superblock)?;
    check_features(&sb, false)?;
    take_protection(device, &sb, time)
}

fn take_protection(
    device: &Arc<dyn Device>,
    sb: &SuperBlock,
    time: Option<Timestamp>,
) -> Result<(Arc<dyn Device>, Option<Protection>)> {
    let options = Options {
        fixed_time: time,
        ..Options::default()
    };
    let (device, protection) = Protection::take(device, sb, &options)?;
    if let Some(protection) = &protection {
        protection.keep(Box::new(|error| log::error!("{error}")));
    }
    Ok((device, protection))
}

/// Starts the thread of the multiple mount protection, if the mount has it and may have threads.
fn keep_protection(engine: &Arc<Engine>) {
    let threads = engine.options.background && engine.options.fixed_time.is_none();
    let Some(protection) = engine.protection.get().filter(|_| threads) else {
        return;
    };
    let mount = Arc::downgrade(engine);
    protection.keep(Box::new(move |error| {
        if let Some(engine) = mount.upgrade() {
            engine.health.fail(error);
        }
    }));
}

/// The mode of fast commits that the image and the options allow.
fn possible_fast_commits(sb: &SuperBlock, journal: &Journal, options: &Options) -> FastCommits {
    let area = |log: &sapwood_jbd2::Log| log.fast_commit_blocks() > 0;
    // A replay of records would need the entries of new owners.
    let possible = options.data != DataMode::Journal
        && !sb.features().has_ro_compat(RoCompat::QUOTA)
        && sb.features().has_compat(Compat::FAST_COMMIT)
        && journal.log().is_some_and(area);
    if possible {
        options.fast_commit
    } else {
        FastCommits::Off
    }
}

/// The clock and random numbers of a mount. Two mounts draw different numbers.
fn ambient(sb: &SuperBlock, options: &Options) -> Ambient {
    let mounts = sb.mnt_count.get().to_le_bytes();
    let free = sb.free_inodes_count.get().to_le_bytes();
    Ambient::new(options.fixed_time, &[&sb.uuid, &mounts, &free])
}

/// Blocks that the end of a transaction may add: descriptors of groups that no handle counted.
fn closing_credits(geometry: &Geometry) -> u32 {
    geometry.desc_blocks().clamp(4, 16)
}

/// Marks the file system in use in the superblock. Nothing was written before; after it, no defect
/// of the image fails the mount.
fn mark_mounted(engine: &Engine) -> Result<()> {
    let mut sb = engine.super_block.lock();
    let mut features = sb.features();
    if features.has_compat(Compat::ORPHAN_FILE) {
        features.ro_compat |= RoCompat::ORPHAN_PRESENT;
    }
    if features.has_compat(Compat::HAS_JOURNAL) {
        features.incompat |= Incompat::RECOVER;
    } else {
        let state = sb.state() - SuperState::VALID;
        sb.set_state(state);
    }
    sb.set_features(features);
    sb.set_mtime(engine.ambient.seconds());
    // Like a tool, and unlike a mount, changes in place do not count.
    if !engine.options.in_place {
        sb.mnt_count = sb.mnt_count.get().wrapping_add(1).into();
    }
    let mut copy = sb.clone();
    drop(sb);
    write_super(&*engine.device, &mut copy)
}

/// Writes the superblock past the journal, which must hold no newer copy of it.
fn write_super(device: &dyn Device, sb: &mut SuperBlock) -> Result<()> {
    sb.set_checksum();
    device.flush()?;
    Ok(device.write_fua(SUPER_OFFSET, sb.bytes())?)
}

/// Makes everything durable and marks the superblock as recovered. Threads must have ended.
///
/// # Errors
/// The error that kept changes from becoming durable; the superblock then still requires recovery.
pub(crate) fn close(engine: &Arc<Engine>) -> Result<()> {
    if engine.read_only() {
        return Ok(engine.health.check_unfailed()?);
    }
    sync::sync(engine)?;
    engine.journal.close()?;
    engine.health.check_unfailed()?;
    let (free_blocks, free_inodes) = engine.groups.totals();
    let mut sb = engine.super_block.lock();
    let mut features = sb.features();
    features.incompat.remove(Incompat::RECOVER);
    features.ro_compat.remove(RoCompat::ORPHAN_PRESENT);
    sb.set_features(features);
    if engine.clean_at_mount {
        let state = sb.state() | SuperState::VALID;
        sb.set_state(state);
    }
    sb.set_wtime(engine.ambient.seconds());
    sb.set_free_blocks_count(free_blocks)?;
    sb.free_inodes_count = free_inodes.into();
    let mut copy = sb.clone();
    drop(sb);
    write_super(&*engine.device, &mut copy)?;
    match engine.protection.get() {
        Some(protection) => protection.release(),
        None => Ok(()),
    }
}
