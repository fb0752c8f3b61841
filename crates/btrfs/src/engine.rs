//! The engine: everything that is shared by all threads of a mount.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use sapwood_block::Device;
use sapwood_btrfs_format::{ChecksumKind, Incompat, SuperBlock};

use crate::counters::Counters;
use crate::data::{Wait, Writeback};
use crate::lock::{Rank, RankedMutex};
use crate::ops::{self, Deletions, InodeTable};
use crate::space::{Pressure, Space};
use crate::subvolume::{self, Cleaner};
use crate::transaction::{Background, Transactions};
use crate::tree::{self, BlockCache, Opened, Root, Roots, TreeRead};
use crate::tree_log;
use crate::volume::{SuperSet, Volume};
use crate::{Error, Options, Result};
use sapwood_base::Health;

/// A mounted btrfs file system.
pub struct Btrfs {
    pub(crate) engine: Arc<Engine>,
    /// The subvolume that is mounted.
    pub(crate) top: Arc<Root>,
    background: Background,
}

/// Shared state of a mount; always behind an `Arc`.
pub(crate) struct Engine {
    pub(crate) options: Options,
    pub(crate) health: Health,
    pub(crate) volume: Arc<Volume>,
    pub(crate) blocks: BlockCache,
    pub(crate) roots: Roots,
    pub(crate) space: Space,
    pub(crate) transactions: Transactions,
    pub(crate) inodes: InodeTable,
    pub(crate) writeback: Writeback,
    pub(crate) counters: Counters,
    /// Unlinked inodes that threads are deleting.
    pub(crate) deletions: Deletions,
    /// Held by the thread that moves a name from one directory to another.
    pub(crate) topology: RankedMutex<()>,
    /// Held by the thread that makes or deletes a subvolume, or changes its flags.
    pub(crate) subvolumes: RankedMutex<()>,
    /// Deleted subvolumes whose blocks are still to be dropped.
    pub(crate) cleaner: Cleaner,
    /// fsyncs under way.
    pub(crate) fsyncs: AtomicUsize,
    /// The quota numbers are marked as wrong, or there are none.
    pub(crate) quota_marked: AtomicBool,
    /// Incompatible features that came into use since the mount; the next commit notes them.
    new_incompat: AtomicU64,
    /// The superblocks as of the last commit, changed only by the thread that holds the
    /// superblock-order lock.
    pub(crate) super_block: RankedMutex<SuperSet>,
    /// Bytes of the smallest unit of data.
    pub(crate) sectorsize: u32,
    /// Bytes of a tree block.
    pub(crate) nodesize: u32,
    /// Checksum algorithm of tree blocks and data.
    pub(crate) checksum: ChecksumKind,
    /// fsid that users see.
    pub(crate) fsid: [u8; 16],
    /// Incompatible features, as at the mount.
    pub(crate) incompat: Incompat,
}

impl Engine {
    /// Opens the devices and reads what every mount needs. Starts no thread and changes nothing.
    ///
    /// # Errors
    /// Those of [`tree::open`]; [`Error::LogPresent`] and [`Error::NoReplayNeedsReadOnly`] if
    /// that would lose, or hide, what was fsynced last.
    pub(crate) fn open(
        devices: Vec<Arc<dyn Device>>,
        options: Options,
    ) -> Result<(Arc<Self>, Arc<Root>)> {
        let read_only = options.read_only || devices.iter().any(|device| device.read_only());
        let opened = tree::open(&devices, read_only, options.cache_bytes)?;
        check_log(&opened.super_block, &options, read_only)?;
        Self::assemble(opened, options, read_only)
    }

    /// As [`open`](Self::open), with a log or without. The next commit drops it.
    ///
    /// # Errors
    /// Those of [`tree::open`].
    pub(crate) fn open_for_replay(
        devices: Vec<Arc<dyn Device>>,
        options: Options,
    ) -> Result<(Arc<Self>, Arc<Root>)> {
        let opened = tree::open(&devices, false, options.cache_bytes)?;
        Self::assemble(opened, options, false)
    }

    fn assemble(
        opened: Opened,
        options: Options,
        read_only: bool,
    ) -> Result<(Arc<Self>, Arc<Root>)> {
        let Opened {
            volume,
            super_block,
            blocks,
            roots,
        } = opened;
        volume.set_patience(options.patience);
        let geometry = volume.geometry();
        let top = subvolume::choose(&blocks, &roots, &options.subvolume)?;
        let engine = Arc::new(Self {
            inodes: InodeTable::new(top.id(), options.inode_bytes),
            writeback: Writeback::new(&options),
            counters: Counters::default(),
            deletions: Deletions::default(),
            topology: RankedMutex::new(Rank::RenameTopology, ()),
            space: Space::open(&blocks, &roots, &super_block)?,
            subvolumes: RankedMutex::new(Rank::Subvolume, ()),
            cleaner: Cleaner::default(),
            quota_marked: AtomicBool::new(false),
            fsyncs: AtomicUsize::new(0),
            new_incompat: AtomicU64::new(0),
            health: Health::new(read_only),
            transactions: Transactions::new(super_block.generation.get()),
            sectorsize: super_block.sectorsize.get(),
            nodesize: super_block.nodesize.get(),
            checksum: geometry.checksum,
            fsid: super_block.fsid,
            incompat: super_block.incompat(),
            super_block: RankedMutex::new(Rank::Leaf, super_block),
            volume,
            blocks,
            roots,
            options,
        });
        Ok((engine, top))
    }

    /// Notes that an incompatible feature is in use, before anything that uses it is committed.
    pub(crate) fn add_incompat(&self, feature: Incompat) {
        self.new_incompat.fetch_or(feature.bits(), Ordering::SeqCst);
    }

    /// What [`add_incompat`](Self::add_incompat) noted.
    pub(crate) fn new_incompat(&self) -> Incompat {
        Incompat::from_bits_retain(self.new_incompat.load(Ordering::SeqCst))
    }

    /// Whether changes are refused.
    pub(crate) fn read_only(&self) -> bool {
        self.health.read_only()
    }
}

/// Refuses a mount that would lose, or hide, what was fsynced last.
fn check_log(super_block: &SuperBlock, options: &Options, read_only: bool) -> Result<()> {
    match (super_block.log_root.get(), options.no_log_replay) {
        (_, true) if !read_only => Err(Error::NoReplayNeedsReadOnly),
        (0, _) | (_, true) => Ok(()),
        (_, false) => Err(Error::LogPresent),
    }
}

/// Deletes what was open and unlinked when the last mount ended. What cannot be deleted keeps its
/// orphan item for a later mount: it is no reason to refuse this one.
fn clean_orphans(engine: &Arc<Engine>, top: &Arc<Root>) {
    if let Err(error) = ops::orphan::clean_once(engine, top) {
        log::warn!("unlinked files of tree {} stay on disk: {error}", top.id());
    }
}

impl TreeRead for Engine {
    fn blocks(&self) -> &BlockCache {
        &self.blocks
    }
}

impl Pressure for Arc<Engine> {
    fn write_back(&self) -> Result<()> {
        // What fails is reported to those who wait for their own file.
        let _ = self.writeback.flush_all(self, Wait::Completion);
        Ok(self.health.check()?)
    }

    fn commit(&self) -> Result<()> {
        self.commit_and_unpin(None)
    }

    fn deleted_below(&self) -> u64 {
        self.deletions.ended_below()
    }

    fn settle_deletions(&self, before: u64) -> bool {
        self.deletions.settle(before)
    }
}

impl Btrfs {
    /// Mounts the file system on these devices.
    ///
    /// # Errors
    /// What is wrong with the devices or the image, see [`Error`](crate::Error).
    pub fn open(devices: Vec<Arc<dyn Device>>, options: Options) -> Result<Self> {
        tree_log::replay::replay_if_needed(&devices, &options)?;
        let (engine, top) = Engine::open(devices, options)?;
        engine.drop_stale_caches()?;
        if !engine.read_only() {
            subvolume::cleaner::find_dead(&engine)?;
            clean_orphans(&engine, &top);
        }
        engine.volume.begin_repairs();
        let background = Background::start(&engine);
        Ok(Self {
            engine,
            top,
            background,
        })
    }

    /// Drops the blocks of all deleted subvolumes and removes empty block groups now, rather than
    /// in the background. False if something deleted is still in use, or an error stopped it.
    pub fn finish_cleaning(&self) -> bool {
        subvolume::cleaner::clean_now(&self.engine)
    }

    /// What the mount counted so far, by name.
    pub fn counters(&self) -> Vec<(String, u64)> {
        self.engine.counters.all()
    }

    /// Makes everything durable and ends the background threads. Later changes fail.
    ///
    /// # Errors
    /// What kept something from becoming durable.
    pub fn close(&self) -> Result<()> {
        self.background.stop(&self.engine);
        let result = ops::sync::sync(&self.engine);
        self.engine.writeback.stop();
        self.engine.health.close();
        result
    }
}

impl Drop for Btrfs {
    fn drop(&mut self) {
        self.background.stop(&self.engine);
    }
}
