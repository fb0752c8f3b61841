//! The store of a mount: its blocks, the journal that changes them, and state that all modules
//! above share.
//!
//! A mount is built in layers. Each one has the parts of the layer below, to which it dereferences:
//! the [`Store`], the [volume](crate::volume::Volume) with the inodes, the
//! [engine](crate::engine::Engine) with the writeback of file data. A function takes the lowest
//! layer that has everything it needs.

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use sapwood_base::Health;
use sapwood_block::Device;
use sapwood_ext4_format::{SUPER_OFFSET, SUPER_SIZE, SuperBlock, special_ino};
use sapwood_jbd2::{Buffer, Cache, Handle, Journal};
use sapwood_vfs::{Ambient, Timestamp};

use crate::alarm::Alarm;
use crate::block_alloc::{self, Extent, Space};
use crate::commit_reason::CommitReason;
use crate::counters::Counters;
use crate::group::{Groups, LiveGeometry};
use crate::lock::{Rank, RankedMutex, assert_held_at_most};
use crate::mmp::Protection;
use crate::on_demand::{OnDemand, OnDemandFeature};
use crate::orphan_set::Orphans;
use crate::quota_table::QuotaTable;
use crate::track::Tracker;
use crate::{Error, Options, Result};

/// The lowest layer of a mount.
pub(crate) struct Store {
    pub(crate) options: Options,
    pub(crate) health: Health,
    /// Clock and random numbers of the mount.
    pub(crate) ambient: Ambient,
    pub(crate) device: Arc<dyn Device>,
    /// Sizes and places. They change only when the file system grows.
    pub(crate) geometry: LiveGeometry,
    pub(crate) cache: Arc<Cache>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) space: Space,
    pub(crate) counters: Counters,
    /// Changes of the running transaction, for the next fast commit.
    pub(crate) fast_commits: Tracker,
    /// Requests to the background thread.
    pub(crate) alarm: Alarm,
    /// Inodes, in addition to the reserved ones, that only the file system itself uses; 0: none.
    pub(crate) hidden: [u32; 4],
    /// Features that operations set when they first need them.
    pub(crate) on_demand: OnDemand,
    /// The orphans.
    pub(crate) orphans: Orphans,
    /// The superblock had the state "valid" when it was mounted.
    pub(crate) clean_at_mount: bool,
    /// The image was not unmounted: it needed a recovery, on disk or in memory, when it was opened.
    pub(crate) needed_recovery: AtomicBool,
    /// Usage of users, groups and projects, if the image keeps it.
    pub(crate) quota: QuotaTable,
    /// Multiple mount protection, if the image has it and the mount is writable.
    pub(crate) protection: OnceLock<Protection>,
    /// The superblock. A thread changes it with [`Store::change_super`].
    pub(crate) super_block: RankedMutex<SuperBlock>,
}

impl Store {
    /// The time.
    pub(crate) fn now(&self) -> Timestamp {
        self.ambient.now()
    }

    /// Bytes of a block.
    pub(crate) fn block_size(&self) -> u64 {
        u64::from(self.geometry.block_size())
    }

    /// Start of the block that `offset` lies in.
    pub(crate) fn block_floor(&self, offset: u64) -> u64 {
        offset - offset % self.block_size()
    }

    /// End of the blocks that `end` bytes take.
    pub(crate) fn block_ceil(&self, end: u64) -> u64 {
        end.checked_next_multiple_of(self.block_size())
            .unwrap_or_else(|| self.block_floor(u64::MAX))
    }

    /// The blocks of a range of bytes that begins and ends with whole ones; the end may be
    /// [`u64::MAX`].
    pub(crate) fn blocks_of(&self, range: &Range<u64>) -> Range<u64> {
        let block_size = self.block_size();
        range.start / block_size..range.end.div_ceil(block_size)
    }

    /// Whether only the file system itself uses an inode: a reserved one except the root, a quota
    /// file, the orphan file.
    pub(crate) fn is_special(&self, ino: u32) -> bool {
        let reserved = ino < self.geometry.first_ino() && ino != special_ino::ROOT;
        reserved || self.hidden.contains(&ino)
    }

    /// Refuses changes if the mount takes none.
    ///
    /// # Errors
    /// The error that made the mount read-only.
    pub(crate) fn check(&self) -> Result<()> {
        Ok(self.health.check()?)
    }

    /// Takes at most `want` blocks for an inode, in memory only. If there seem to be none, blocks
    /// that were freed and wait for a commit may help: hold no handle.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn take_blocks(&self, ino: u32, goal: u64, want: u32) -> Result<Extent> {
        let request = block_alloc::Request {
            goal,
            len: want,
            ino,
        };
        let extent = match block_alloc::allocate(&self.groups, &request) {
            Err(Error::NoSpace) => {
                self.journal.commit_and_settle()?;
                block_alloc::allocate(&self.groups, &request)?
            }
            other => other?,
        };
        if extent.len == 0 || extent.len > want {
            block_alloc::cancel(&self.groups, extent);
            return Err(Error::NoSpace);
        }
        Ok(extent)
    }

    /// Starts a handle that may change `credits` blocks. May wait for a commit. A fast commit
    /// cannot express its changes.
    ///
    /// # Errors
    /// The mount takes no changes; the journal failed.
    pub(crate) fn start(&self, credits: u32) -> Result<Handle> {
        let h = self.start_tracked(credits)?;
        self.fast_commits.whole(&h, CommitReason::Operation);
        Ok(h)
    }

    /// Like [`start`](Self::start), for operations that the [tracker](Tracker) records, so that a
    /// replay of the records repeats them.
    ///
    /// # Errors
    /// The mount is read-only; the journal was aborted.
    pub(crate) fn start_tracked(&self, credits: u32) -> Result<Handle> {
        assert_held_at_most(Rank::Inode);
        self.check()?;
        self.alarm.change();
        Ok(self
            .journal
            .start(credits.saturating_add(self.quota.credits()))?)
    }

    /// A metadata block, read if it is not in memory. Nothing is validated.
    ///
    /// # Errors
    /// The block is outside the device; errors of the device.
    pub(crate) fn block(&self, block: u64) -> Result<Arc<Buffer>> {
        Ok(self.cache.get(block)?)
    }

    /// Changes the superblock in this transaction.
    ///
    /// # Errors
    /// Errors of the device and of the journal.
    pub(crate) fn change_super(
        &self,
        h: &Handle,
        change: impl FnOnce(&mut SuperBlock),
    ) -> Result<()> {
        let buffer = self.block(self.geometry.super_block())?;
        h.write_access(&buffer)?;
        let mut sb = self.super_block.lock();
        change(&mut sb);
        sb.set_checksum();
        let at = (SUPER_OFFSET % self.block_size()) as usize;
        let mut content = h.modify(&buffer)?;
        if let Some(place) = content.get_mut(at..at + SUPER_SIZE) {
            place.copy_from_slice(sb.bytes());
        }
        Ok(())
    }

    /// Sets a feature that an operation needs, in this transaction, unless the superblock has it.
    ///
    /// # Errors
    /// Errors of the device and of the journal.
    pub(crate) fn set_on_demand(&self, h: &Handle, wanted: &OnDemandFeature) -> Result<()> {
        if wanted.is_set() {
            return Ok(());
        }
        // No operation reserves a credit for a change that happens once in the life of an image.
        let _ = h.ensure(1);
        self.fast_commits.whole(h, CommitReason::Operation);
        self.change_super(h, |sb| sb.add_features(wanted.feature()))?;
        wanted.note_set();
        Ok(())
    }

    /// Sets the feature that an inode of this size needs. The inode is stored in this handle.
    ///
    /// # Errors
    /// Errors of the device and of the journal.
    pub(crate) fn set_size_feature(&self, h: &Handle, size: u64) -> Result<()> {
        match self.on_demand.of_size(size) {
            Some(feature) => self.set_on_demand(h, feature),
            None => Ok(()),
        }
    }

    /// Whether changes are refused.
    pub(crate) fn read_only(&self) -> bool {
        self.health.read_only()
    }

    /// Makes the mount read-only because an operation failed halfway, and passes the error on. Not
    /// for errors that were found before the first change.
    pub(crate) fn abort<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.health.fail(error);
        }
        result
    }
}
