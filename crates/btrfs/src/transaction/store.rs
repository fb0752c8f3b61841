//! The parts of a mount that transactions work on, and the participants of a commit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use sapwood_base::Health;
use sapwood_btrfs_format::{ChecksumKind, CompatRo, Incompat};
use sapwood_vfs::{Ambient, Timestamp};

use super::handle::Handle;
use super::table::Transactions;
use crate::checksum::Checksums;
use crate::counters::Counters;
use crate::devices::{SuperSet, Volume};
use crate::lock::{Rank, RankedMutex};
use crate::quota::Quotas;
use crate::space::{Pressure, Space};
use crate::tree::{BlockCache, Opened, Roots, TreeRead};
use crate::{Options, Result};

/// A part of the engine above transactions that acts in a commit. It keeps its own state for that.
///
/// A commit calls the hooks in this order, each for all participants in the order of
/// [`Store::set_participants`].
pub(crate) trait Participant: Send + Sync {
    /// Space runs out: writes back dirty data and waits until the trees have it. Called before a
    /// commit, by a thread that holds no handle.
    fn write_back(self: Arc<Self>) {}

    /// The commit is about to wait for [pinned](Transactions::pin) ordered extents: completes them
    /// without delay.
    fn hurry(&self) {}

    /// No other handle of the transaction is open, and all delayed items are in the trees: makes
    /// the changes that belong to the end of the transaction.
    ///
    /// # Errors
    /// The error that must prevent the commit.
    fn settle(&self, _h: &mut Handle) -> Result<()> {
        Ok(())
    }

    /// The transaction is durable, and the space that it freed is free.
    fn completed(&self) {}
}

/// Block groups whose v1 space cache is dropped in one handle.
const CACHES_AT_ONCE: usize = 8;
/// Items that go with the cache of a group: header, inode, a few extents and their refs.
const CACHE_ITEMS: u64 = 12;

/// The state that transactions work on; always in an `Arc`.
pub(crate) struct Store {
    pub(crate) options: Options,
    pub(crate) health: Health,
    /// Clock and random numbers of the mount.
    pub(crate) ambient: Ambient,
    pub(crate) counters: Counters,
    pub(crate) volume: Arc<Volume>,
    pub(crate) blocks: BlockCache,
    pub(crate) roots: Roots,
    pub(crate) checksums: Checksums,
    pub(crate) space: Space,
    pub(crate) quotas: Arc<Quotas>,
    pub(crate) transactions: Transactions,
    /// The superblocks as of the last commit, changed only by the thread that holds the
    /// superblock-order lock.
    pub(crate) super_block: RankedMutex<SuperSet>,
    /// Bytes of the smallest unit of data.
    pub(crate) sectorsize: u32,
    /// Bytes of a tree block.
    pub(crate) nodesize: u32,
    /// Checksum algorithm of tree blocks and data.
    pub(crate) checksum: ChecksumKind,
    /// The visible fsid.
    pub(crate) fsid: [u8; 16],
    /// Incompatible features, as at the mount.
    pub(crate) incompat: Incompat,
    /// Incompatible features that came into use since the mount; the next commit records them.
    new_incompat: AtomicU64,
    /// As [`new_incompat`](Self::new_incompat), features that only a writer must know.
    new_compat_ro: AtomicU64,
    participants: OnceLock<Vec<Weak<dyn Participant>>>,
    /// Changes that the next commit makes.
    queued: RankedMutex<Vec<QueuedChange>>,
}

/// A change that a commit makes, when no other handle is open.
pub(crate) type QueuedChange = Box<dyn FnOnce(&mut Handle) -> Result<()> + Send>;

impl Store {
    /// The store of an opened file system. Starts no thread and changes nothing.
    ///
    /// # Errors
    /// The errors of [`Space::open`].
    pub(crate) fn new(opened: Opened, options: Options, read_only: bool) -> Result<Arc<Self>> {
        let Opened {
            volume,
            super_block,
            blocks,
            roots,
        } = opened;
        volume.set_patience(options.patience);
        let checksum = volume.geometry().checksum;
        let space = Space::open(&blocks, &roots, &super_block)?;
        if let Some(bytes) = options.largest_chunk {
            space.set_largest_chunk(bytes);
        }
        if options.keep_opened {
            space.keep_until(super_block.generation.get());
        }
        let generation = super_block.generation.get();
        let quotas = Quotas::open(&blocks, &roots, generation);
        quotas.begin_tracing(&space);
        Ok(Arc::new(Self {
            quotas,
            counters: Counters::default(),
            checksums: Checksums::new(&roots.csum_tree, &super_block, checksum),
            space,
            new_incompat: AtomicU64::new(0),
            new_compat_ro: AtomicU64::new(0),
            health: Health::new(read_only),
            ambient: Ambient::new(
                options.fixed_time,
                &[
                    &super_block.fsid,
                    &super_block.generation.get().to_le_bytes(),
                ],
            ),
            transactions: Transactions::new(super_block.generation.get()),
            sectorsize: super_block.sectorsize.get(),
            nodesize: super_block.nodesize.get(),
            checksum,
            fsid: super_block.fsid,
            incompat: super_block.incompat(),
            super_block: RankedMutex::new(Rank::Leaf, super_block),
            volume,
            blocks,
            roots,
            options,
            participants: OnceLock::new(),
            queued: RankedMutex::new(Rank::Leaf, Vec::new()),
        }))
    }

    /// Sets, once, the participants of commits. A dropped participant no longer takes part.
    pub(crate) fn set_participants(&self, participants: Vec<Weak<dyn Participant>>) {
        let set = self.participants.set(participants);
        debug_assert!(set.is_ok(), "the participants are set twice");
    }

    /// The participants of commits.
    pub(super) fn participants(&self) -> impl Iterator<Item = Arc<dyn Participant>> {
        let all = self.participants.get().into_iter().flatten();
        all.filter_map(Weak::upgrade)
    }

    /// Makes the next commit make a change. An error of it must prevent the commit.
    pub(crate) fn queue_change(&self, change: QueuedChange) {
        self.queued.lock().push(change);
    }

    /// The changes of [`queue_change`](Self::queue_change), once.
    pub(super) fn take_queued(&self) -> Vec<QueuedChange> {
        std::mem::take(&mut *self.queued.lock())
    }

    /// Records that an incompatible feature is in use, before anything that uses it is committed.
    pub(crate) fn add_incompat(&self, feature: Incompat) {
        self.new_incompat.fetch_or(feature.bits(), Ordering::SeqCst);
    }

    /// The features of [`add_incompat`](Self::add_incompat).
    pub(super) fn new_incompat(&self) -> Incompat {
        Incompat::from_bits_retain(self.new_incompat.load(Ordering::SeqCst))
    }

    /// Records that a feature is in use that a writer must know, before anything that uses it is
    /// committed.
    pub(crate) fn add_compat_ro(&self, feature: CompatRo) {
        self.new_compat_ro
            .fetch_or(feature.bits(), Ordering::SeqCst);
    }

    /// The features of [`add_compat_ro`](Self::add_compat_ro).
    pub(super) fn new_compat_ro(&self) -> CompatRo {
        CompatRo::from_bits_retain(self.new_compat_ro.load(Ordering::SeqCst))
    }

    /// Makes a file system that was opened ready for changes: drops the v1 space cache, which is
    /// right only as long as no other engine writes.
    ///
    /// # Errors
    /// No space, unreadable blocks.
    pub(crate) fn drop_stale_caches(self: &Arc<Self>) -> Result<()> {
        if self.read_only() {
            return Ok(());
        }
        while self.space.has_v1_cache()? {
            let mut h = self.start_urgent(CACHE_ITEMS * CACHES_AT_ONCE as u64)?;
            self.space.drop_v1_cache(&mut h, CACHES_AT_ONCE)?;
            h.end()?;
        }
        Ok(())
    }

    /// The time.
    pub(crate) fn now(&self) -> Timestamp {
        self.ambient.now()
    }

    /// Whether changes are refused.
    pub(crate) fn read_only(&self) -> bool {
        self.health.read_only()
    }
}

impl TreeRead for Store {
    fn blocks(&self) -> &BlockCache {
        &self.blocks
    }
}

impl Pressure for Arc<Store> {
    fn write_back(&self) -> Result<()> {
        for participant in self.participants() {
            participant.write_back();
        }
        Ok(self.health.check()?)
    }

    fn commit(&self) -> Result<()> {
        self.commit_and_unpin(None)
    }
}
