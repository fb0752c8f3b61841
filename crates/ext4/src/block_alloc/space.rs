//! Promises of blocks, and the numbers of `statfs`.
//!
//! # How it works
//! Two sums, both without a lock: the free blocks of all groups (kept by [`Groups`], changed by
//! each allocation), and the blocks that were promised and not yet taken. A promise of `n` blocks
//! succeeds if the free blocks cover all promises, the tree blocks that they may need, and the
//! reserve:
//!
//! - blocks that only the superuser may use (`s_r_blocks_count`);
//! - a pool for metadata: a fiftieth of all blocks, 4096 at most. Directories and maps that grow
//!   beyond every estimate take from it, so that an operation that has begun does not fail.
//!
//! Tree blocks are estimated over the sum of all promises: one for each half leaf of extents of one
//! block. A single promise of a few blocks would round up to more than it needs.
//!
//! Blocks that were freed but whose transaction is not durable are not free. If a promise fails
//! only because of them, the thread commits, and tries again
//! (`freed_blocks_are_not_given_before_their_commit_and_a_promise_waits_for_freed_blocks`).
//! Deletions need no promise.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sapwood_ext4_format::{Compat, Geometry, Incompat, SuperBlock};
use sapwood_jbd2::Journal;
use sapwood_vfs::FsStat;

use crate::group::Groups;
use crate::{Error, Result};

/// Longest name, in bytes.
const NAME_MAX: u32 = 255;
/// Blocks set aside for metadata, at most.
const MOST_POOL: u64 = 4096;

/// Sums and promises of blocks. `ENOSPC` happens where blocks are promised, nowhere later.
pub(crate) struct Space {
    groups: Arc<Groups>,
    journal: Arc<Journal>,
    promised: Arc<AtomicU64>,
    /// Blocks for the superuser only.
    reserved: AtomicU64,
    /// Blocks for metadata.
    pool: AtomicU64,
    /// Blocks of fixed structures: superblocks, descriptors, bitmaps, inode tables, journal.
    overhead: AtomicU64,
}

/// Blocks promised to a file; dropping it releases the rest.
#[derive(Debug)]
pub(crate) struct Reservation {
    promised: Arc<AtomicU64>,
    blocks: u64,
    /// Promised bytes of the owners: each counter has this reservation's blocks.
    owners: Vec<Arc<AtomicU64>>,
    block_size: u64,
}

impl Reservation {
    /// Blocks left.
    #[cfg(test)]
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Gives part of it back: those blocks are allocated now, or not needed.
    pub(crate) fn give_back(&mut self, blocks: u64) {
        let blocks = blocks.min(self.blocks);
        self.blocks -= blocks;
        self.promised.fetch_sub(blocks, Ordering::AcqRel);
        for owner in &self.owners {
            owner.fetch_sub(blocks * self.block_size, Ordering::AcqRel);
        }
    }

    /// Counts the reservation for its owners. The caller has added its bytes to their counters.
    pub(crate) fn count_for(&mut self, owners: Vec<Arc<AtomicU64>>) {
        self.owners = owners;
    }

    /// Adds another reservation. All blocks then count for the owners of this one.
    pub(crate) fn merge(&mut self, mut other: Self) {
        let (own, more) = (self.blocks, std::mem::take(&mut other.blocks));
        let less = std::mem::take(&mut other.owners);
        for owner in &less {
            owner.fetch_sub(more * self.block_size, Ordering::AcqRel);
        }
        let mut added = more;
        if self.owners.is_empty() {
            self.owners = less;
            added += own;
        }
        for owner in &self.owners {
            owner.fetch_add(added * self.block_size, Ordering::AcqRel);
        }
        self.blocks = own + more;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.give_back(self.blocks);
    }
}

impl Space {
    /// Counts of a file system that was just opened.
    pub(crate) fn open(groups: &Arc<Groups>, journal: &Arc<Journal>, sb: &SuperBlock) -> Self {
        let space = Self {
            reserved: AtomicU64::default(),
            overhead: AtomicU64::default(),
            pool: AtomicU64::default(),
            groups: Arc::clone(groups),
            journal: Arc::clone(journal),
            promised: Arc::new(AtomicU64::new(0)),
        };
        space.renew(sb);
        space
    }

    /// Renews the numbers of a file system that grew.
    pub(crate) fn renew(&self, sb: &SuperBlock) {
        let geometry = self.groups.geometry();
        let pool = if geometry.features().has_incompat(Incompat::EXTENTS) {
            (geometry.blocks_count() / 50).min(MOST_POOL)
        } else {
            0
        };
        let reserved = sb.reserved_blocks_count().min(geometry.blocks_count());
        self.pool.store(pool, Ordering::Relaxed);
        self.reserved.store(reserved, Ordering::Relaxed);
        self.overhead
            .store(overhead(geometry, sb), Ordering::Relaxed);
    }

    /// Blocks that a promise leaves free. `privileged`: it may use the superuser's reserve.
    fn kept(&self, privileged: bool) -> u64 {
        let reserved = if privileged {
            0
        } else {
            self.reserved.load(Ordering::Relaxed)
        };
        self.pool.load(Ordering::Relaxed).saturating_add(reserved)
    }

    /// Promises `data` blocks of data and the metadata that they may need. `privileged`: may use
    /// the superuser's reserve. May wait for a commit: hold no handle, and no lock above an
    /// inode's.
    ///
    /// # Errors
    /// `NoSpace`; errors of the journal.
    pub(crate) fn reserve(&self, data: u64, privileged: bool) -> Result<Reservation> {
        if let Some(reservation) = self.try_reserve(data, privileged, 0) {
            return Ok(reservation);
        }
        let freed = self.groups.freed_blocks();
        if freed > 0 && self.try_reserve(data, privileged, freed).is_some() {
            self.journal.commit_and_settle()?;
        }
        self.try_reserve(data, privileged, 0).ok_or(Error::NoSpace)
    }

    /// Promises blocks that were promised before and are free again. Waits for nothing.
    pub(crate) fn try_reserve_again(&self, data: u64) -> Option<Reservation> {
        self.try_reserve(data, true, 0)
    }

    /// A promise out of the free blocks, and `more`.
    fn try_reserve(&self, data: u64, privileged: bool, more: u64) -> Option<Reservation> {
        let kept = self.kept(privileged);
        let mut promised = self.promised.load(Ordering::Acquire);
        loop {
            let sum = promised.checked_add(data)?;
            let need = sum.checked_add(self.tree_blocks(sum))?.checked_add(kept)?;
            if need > self.groups.free_blocks().saturating_add(more) {
                return None;
            }
            let swapped = self.promised.compare_exchange_weak(
                promised,
                sum,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match swapped {
                Ok(_) => break,
                Err(now) => promised = now,
            }
        }
        Some(Reservation {
            promised: Arc::clone(&self.promised),
            blocks: data,
            owners: Vec::new(),
            block_size: self.groups.geometry().block_size().into(),
        })
    }

    /// Tree blocks for this many blocks of data, each in an extent of its own, leaves half full.
    fn tree_blocks(&self, data: u64) -> u64 {
        let per_leaf = u64::from(self.groups.geometry().block_size()) / 12 / 2;
        data / per_leaf.max(1)
    }

    /// Most blocks of data that fit, with their [tree blocks](Self::tree_blocks), into this many
    /// free blocks.
    fn most_data(&self, free: u64) -> u64 {
        let per_leaf = (u64::from(self.groups.geometry().block_size()) / 12 / 2).max(1);
        let data = free - free / (per_leaf + 1);
        if data + self.tree_blocks(data) > free {
            data - 1
        } else {
            data
        }
    }

    /// Promised and not yet taken.
    pub(crate) fn promised(&self) -> u64 {
        self.promised.load(Ordering::Acquire)
    }

    /// The result of `statfs`: sizes without fixed structures, as the kernel counts them (`bsddf`).
    pub(crate) fn statfs(&self) -> FsStat {
        let geometry = self.groups.geometry();
        let freed = self
            .groups
            .free_blocks()
            .saturating_add(self.groups.freed_blocks());
        let promised = self.promised();
        let free = freed.saturating_sub(promised);
        let kept = self.kept(false);
        let most = self.most_data(freed.saturating_sub(kept));
        let uuid = geometry.uuid();
        let half = |at: usize| {
            let bytes = uuid.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            u64::from_le_bytes(bytes.unwrap_or_default())
        };
        FsStat {
            block_size: geometry.block_size(),
            blocks: geometry
                .blocks_count()
                .saturating_sub(self.overhead.load(Ordering::Relaxed)),
            blocks_free: free,
            blocks_available: most.saturating_sub(promised),
            inodes: geometry.inodes_count().into(),
            inodes_free: self.groups.free_inodes().into(),
            name_max: NAME_MAX,
            fsid: half(0) ^ half(8),
        }
    }
}

/// Blocks that can never hold files: the superblock's number, else counted.
fn overhead(geometry: &Geometry, sb: &SuperBlock) -> u64 {
    let stored = u64::from(sb.overhead_clusters.get()) << geometry.cluster_ratio_bits();
    if stored > 0 && stored < geometry.blocks_count() {
        return stored;
    }
    let own = 2 + u64::from(geometry.inode_table_blocks());
    let groups =
        (0..geometry.group_count()).map(|group| own + u64::from(geometry.fixed_blocks(group)));
    let first = u64::from(geometry.first_data_block());
    let counted = groups
        .fold(first, u64::saturating_add)
        .saturating_add(journal_blocks(geometry, sb));
    counted.min(geometry.blocks_count())
}

/// Blocks of an internal journal, from the copy of its inode in the superblock: words 15 and 16 are
/// its size.
fn journal_blocks(geometry: &Geometry, sb: &SuperBlock) -> u64 {
    if !geometry.features().has_compat(Compat::HAS_JOURNAL) || sb.jnl_backup_type != 1 {
        return 0;
    }
    let size = u64::from(sb.jnl_blocks[15].get()) << 32 | u64::from(sb.jnl_blocks[16].get());
    size >> geometry.block_bits()
}
