//! The engine: everything that is shared by all threads of a mount.

use std::sync::Arc;

use sapwood_base::Health;
use sapwood_block::Device;
use sapwood_ext4_format::{Geometry, SUPER_OFFSET, SUPER_SIZE, SuperBlock, special_ino};
use sapwood_jbd2::{Buffer, Cache, Handle, Journal};

use crate::background::Alarm;
use crate::block_alloc::Space;
use crate::commit_reason::Reason;
use crate::counters::Counters;
use crate::data::Writeback;
use crate::fast_commit::{Tracker, note};
use crate::group::Groups;
use crate::lock::{Rank, RankedMutex, assert_held_at_most};
use crate::on_demand::OnDemand;
use crate::orphan::Orphans;
use crate::table::InodeTable;
use crate::xattr::SharedBlocks;
use crate::{Options, Result};

/// Shared state of a mount; always behind an `Arc`.
pub(crate) struct Engine {
    pub(crate) options: Options,
    pub(crate) health: Health,
    pub(crate) device: Arc<dyn Device>,
    /// What never changes while mounted.
    pub(crate) geometry: Geometry,
    pub(crate) cache: Arc<Cache>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) space: Space,
    pub(crate) inodes: InodeTable,
    pub(crate) orphans: Orphans,
    pub(crate) writeback: Writeback,
    /// Blocks of attributes that inodes share.
    pub(crate) xattr_blocks: SharedBlocks,
    pub(crate) counters: Counters,
    /// What the next fast commit has to say.
    pub(crate) fast_commits: Tracker,
    /// What the thread that works by time waits for.
    pub(crate) alarm: Alarm,
    /// Inodes beside the reserved ones that only the file system itself uses; 0: none.
    pub(crate) hidden: [u32; 4],
    /// Features that operations set when they first need them.
    pub(crate) on_demand: OnDemand,
    /// The superblock said at mount that all had been in order.
    pub(crate) clean_at_mount: bool,
    /// Held by the thread that moves a directory from one parent to another.
    pub(crate) topology: RankedMutex<()>,
    /// The superblock; a thread that changes it writes it with [`Engine::store_super`].
    pub(crate) super_block: RankedMutex<SuperBlock>,
}

impl Engine {
    /// Bytes of a block.
    pub(crate) fn block_size(&self) -> u64 {
        u64::from(self.geometry.block_size())
    }

    /// Whether only the file system itself uses an inode: the reserved ones but for the root, quota files, the orphan
    /// file.
    pub(crate) fn is_special(&self, ino: u32) -> bool {
        let reserved = ino < self.geometry.first_ino() && ino != special_ino::ROOT;
        reserved || self.hidden.contains(&ino)
    }

    /// Starts a handle that may change `credits` blocks. May wait for a commit. No fast commit says what it changes.
    ///
    /// # Errors
    /// The mount takes no changes; the journal failed.
    pub(crate) fn start(&self, credits: u32) -> Result<Handle> {
        let h = self.start_noted(credits)?;
        note::whole(self, &h, Reason::Operation);
        Ok(h)
    }

    /// As [`start`](Self::start), for operations that a replay of their [notes](note) does again.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn start_noted(&self, credits: u32) -> Result<Handle> {
        assert_held_at_most(Rank::Inode);
        self.health.check()?;
        self.alarm.change();
        Ok(self.journal.start(credits)?)
    }

    /// A metadata block, read if it is not in memory. Nothing is validated.
    ///
    /// # Errors
    /// The block is outside the device; the device.
    pub(crate) fn block(&self, block: u64) -> Result<Arc<Buffer>> {
        Ok(self.cache.get(block)?)
    }

    /// Changes the superblock in this transaction.
    ///
    /// # Errors
    /// The device, the journal.
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

    /// Whether changes are refused.
    pub(crate) fn read_only(&self) -> bool {
        self.health.read_only()
    }

    /// Turns the mount read-only because an operation failed halfway, and passes the error on. Errors
    /// that were found before anything was changed do not come here.
    pub(crate) fn abort<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.health.fail(error);
        }
        result
    }
}
