//! The space of a mounted file system: state that all parts of this module share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use sapwood_btrfs_format::{
    BlockGroupFlags, BlockGroupItem, CompatRo, Incompat, Key, SUPER_OFFSETS, SuperBlock, kind,
};

use super::deletions::Deletions;
use super::devices::{DeviceSpace, Devices, STRIPE_LEN, stripes};
use super::extent_refs::ItemRules;
use super::free_space_tree::{Collector, Span};
use super::group::{BlockGroup, Loaded};
use super::info::{Reservation, SpaceInfo, sub_key};
use super::places::Places;
use crate::devices::{Volume, stripe};
use crate::error::{Error, Result};
use crate::lock::{Rank, RankedMutex, RankedReadGuard, RankedRwLock};
use crate::tree::{BlockCache, Root, Roots, TreeRead};
use sapwood_base::RangeSet;

/// Block groups, sums, devices, and the trees that record them.
#[derive(Debug)]
pub(crate) struct Space {
    pub(super) volume: Arc<Volume>,
    pub(super) blocks: BlockCache,
    pub(super) trees: Trees,
    pub(super) rules: ItemRules,
    pub(super) sector: u64,
    pub(super) nodesize: u64,
    /// Bytes of all devices, for the superblock.
    pub(super) total_bytes: AtomicU64,
    /// Bytes that a new chunk has at most.
    pub(super) largest_chunk: AtomicU64,
    /// Data and metadata share groups.
    pub(super) mixed: bool,
    pub(super) data: Arc<SpaceInfo>,
    pub(super) metadata: Arc<SpaceInfo>,
    pub(super) system: Arc<SpaceInfo>,
    pub(super) groups: RankedRwLock<BTreeMap<u64, Arc<BlockGroup>>>,
    pub(super) devices: RankedMutex<Devices>,
    /// Deletions of files in progress.
    pub(crate) deletions: Deletions,
    /// Groups that have no items yet.
    pub(super) fresh: RankedMutex<Vec<Arc<BlockGroup>>>,
    /// Addresses for the copies of certain tree blocks.
    pub(super) places: Places,
    /// Reserved for heads that wait to be run.
    pub(super) delayed: Reservation,
    /// Height of the highest tree seen.
    pub(super) height: AtomicU8,
    /// Extents of this transaction and earlier ones are not reused.
    pub(super) kept: AtomicU64,
    /// Bytes of extents from this transaction on are recorded by owner, for simple quotas.
    pub(super) owned_since: AtomicU64,
    /// Extents whose refs change are recorded, for quotas.
    pub(super) tracing: AtomicBool,
    /// Held exclusively while freed space becomes free.
    pub(super) reuse: RankedRwLock<()>,
}

impl Drop for Space {
    fn drop(&mut self) {
        // A group and the list that it is in refer to each other.
        for info in [&self.data, &self.metadata, &self.system] {
            info.groups.write().clear();
        }
    }
}

/// The trees that record space.
#[derive(Debug)]
pub(super) struct Trees {
    pub(super) root: Arc<Root>,
    pub(super) chunk: Arc<Root>,
    pub(super) device: Arc<Root>,
    pub(super) extent: Arc<Root>,
    pub(super) csum: Arc<Root>,
    pub(super) free_space: Option<Arc<Root>>,
    pub(super) group: Option<Arc<Root>>,
}

impl TreeRead for Space {
    fn blocks(&self) -> &BlockCache {
        &self.blocks
    }
}

impl Space {
    /// Reads all block-group items. Free space is read later, group by group.
    ///
    /// # Errors
    /// [`Error::BadBlockGroup`] for a chunk without a group or a group that contradicts its
    /// chunk; unreadable blocks.
    pub(crate) fn open(blocks: &BlockCache, roots: &Roots, sb: &SuperBlock) -> Result<Self> {
        let volume = blocks.volume().clone();
        let chunks = volume.chunks();
        let mixed = sb.incompat().contains(Incompat::MIXED_GROUPS);
        let both = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
        let data = if mixed { both } else { BlockGroupFlags::DATA };
        let data = Arc::new(SpaceInfo::new(0, data));
        let metadata = if mixed {
            data.clone()
        } else {
            Arc::new(SpaceInfo::new(1, BlockGroupFlags::METADATA))
        };
        let valid = CompatRo::FREE_SPACE_TREE | CompatRo::FREE_SPACE_TREE_VALID;
        let free_space = roots.free_space_tree.clone();
        let devices = volume.device_items();
        let devices: Vec<_> = devices.map(DeviceSpace::new).collect();
        let this = Self {
            trees: Trees {
                root: roots.root_tree.clone(),
                chunk: roots.chunk_tree.clone(),
                device: roots.dev_tree.clone(),
                extent: roots.extent_tree.clone(),
                csum: roots.csum_tree.clone(),
                // An invalid tree is left unchanged; a kernel that supports it rebuilds it.
                free_space: free_space.filter(|_| sb.compat_ro().contains(valid)),
                group: roots.block_group_tree.clone(),
            },
            rules: ItemRules {
                skinny: sb.incompat().contains(Incompat::SKINNY_METADATA),
                nodesize: sb.nodesize.get(),
                owners: false,
            },
            sector: sb.sectorsize.get().into(),
            nodesize: sb.nodesize.get().into(),
            total_bytes: AtomicU64::new(sb.total_bytes.get()),
            largest_chunk: AtomicU64::new(u64::MAX),
            mixed,
            deletions: Deletions::default(),
            places: Places::default(),
            delayed: metadata.promise(0),
            data,
            metadata,
            system: Arc::new(SpaceInfo::new(2, BlockGroupFlags::SYSTEM)),
            groups: RankedRwLock::with_key(Rank::SpaceInfo, (sub_key::GROUPS, 0), BTreeMap::new()),
            devices: RankedMutex::with_key(
                Rank::SpaceInfo,
                (sub_key::DEVICES, 0),
                Devices::new(devices, &chunks),
            ),
            fresh: RankedMutex::new(Rank::Leaf, Vec::new()),
            height: AtomicU8::new(0),
            kept: AtomicU64::new(0),
            owned_since: AtomicU64::new(u64::MAX),
            tracing: AtomicBool::new(false),
            reuse: RankedRwLock::new(Rank::Reuse, ()),
            blocks: blocks.clone(),
            volume,
        };
        for (logical, chunk) in &chunks {
            this.open_group(*logical, chunk.length, chunk.flags)?;
        }
        for root in roots.all_cached() {
            this.note_level(root.node().level());
        }
        this.update_global_reserve();
        this.read_device_errors()?;
        Ok(this)
    }

    /// Prevents the reuse of freed extents that transaction `transid` or an earlier one allocated.
    pub(crate) fn keep_until(&self, transid: u64) {
        self.kept.store(transid, Ordering::Relaxed);
    }

    /// Until the guard is dropped, extents that the last commit has are neither overwritten nor
    /// discarded, except files and preallocated extents that are written in place. Commits that
    /// free space wait.
    pub(crate) fn keep_committed(&self) -> RankedReadGuard<'_, ()> {
        self.reuse.read()
    }

    /// Whether an extent that this transaction allocated is not reused.
    pub(crate) fn keeps(&self, generation: u64) -> bool {
        generation <= self.kept.load(Ordering::Relaxed)
    }

    /// The tree that contains the block-group items.
    pub(super) fn group_tree(&self) -> &Arc<Root> {
        self.trees.group.as_ref().unwrap_or(&self.trees.extent)
    }

    fn open_group(&self, start: u64, len: u64, flags: BlockGroupFlags) -> Result<()> {
        let bad = |reason: &str| Error::BadBlockGroup {
            group: start,
            reason: reason.to_owned(),
        };
        let key = Key::new(start, kind::BLOCK_GROUP_ITEM, len);
        let found = self.group_tree().get(self, &key)?;
        let found = found.ok_or_else(|| bad("the chunk has no block group"))?;
        let item = BlockGroupItem::read(&found).map_err(|e| bad(&e.to_string()))?;
        let used = item.used.get();
        if used > len {
            return Err(bad("uses more than it has"));
        }
        if item.flags.get() != flags.bits() {
            return Err(bad("differs from its chunk"));
        }
        self.add_group(start, len, flags, Some(used));
        Ok(())
    }

    /// Adds a group. `item_used` is `None` for a new one.
    pub(super) fn add_group(
        &self,
        start: u64,
        len: u64,
        flags: BlockGroupFlags,
        item_used: Option<u64>,
    ) -> Arc<BlockGroup> {
        let info = self.info_of(flags).clone();
        let excluded = self.super_copies(start, len);
        let group = BlockGroup::new(start, len, flags, info.clone(), excluded, item_used);
        let group = Arc::new(group);
        self.groups.write().insert(start, group.clone());
        info.add_group(&group, item_used.unwrap_or(0), group.super_bytes());
        group
    }

    /// The kind of space for a group with these flags.
    pub(super) fn info_of(&self, flags: BlockGroupFlags) -> &Arc<SpaceInfo> {
        if flags.contains(BlockGroupFlags::SYSTEM) {
            &self.system
        } else if flags.contains(BlockGroupFlags::DATA) {
            &self.data
        } else {
            &self.metadata
        }
    }

    /// Logical ranges of a chunk on superblock copies; 64 KiB are excluded for each.
    fn super_copies(&self, start: u64, len: u64) -> RangeSet {
        let mut excluded = RangeSet::new();
        let Ok((_, chunk)) = self.volume.chunk_at(start) else {
            return excluded;
        };
        if start < SUPER_OFFSETS[0] {
            excluded.insert(start, SUPER_OFFSETS[0].min(start + len));
        }
        for (nth, (_, offset, stripe_len)) in stripes(&chunk).enumerate() {
            for copy in SUPER_OFFSETS {
                let from = copy.max(offset);
                let to = (copy + STRIPE_LEN).min(offset.saturating_add(stripe_len));
                if from >= to {
                    continue;
                }
                for (at, bytes) in stripe::within(&chunk, nth, from - offset, to - offset) {
                    if at + bytes <= len {
                        excluded.insert(start + at, start + at + bytes);
                    }
                }
            }
        }
        excluded
    }

    /// The group that contains an address.
    ///
    /// # Errors
    /// [`Error::Unmapped`].
    pub(super) fn group_at(&self, logical: u64) -> Result<Arc<BlockGroup>> {
        let groups = self.groups.read();
        let found = groups.range(..=logical).next_back();
        let found = found.filter(|(_, group)| group.contains(logical));
        let unmapped = Error::Unmapped { logical, len: 1 };
        found.map(|(_, group)| group.clone()).ok_or(unmapped)
    }

    /// All groups by address.
    pub(crate) fn all_groups(&self) -> Vec<Arc<BlockGroup>> {
        self.groups.read().values().cloned().collect()
    }

    /// A group's parameters for the free-space tree.
    pub(super) fn span(&self, group: &BlockGroup) -> Span {
        Span {
            start: group.start,
            len: group.len,
            sector: self.sector,
        }
    }

    /// Reads a group's free space unless it is in memory. Reads only trees as of the last commit.
    /// They are valid, because nothing in a group changes before it is loaded, and no lock is
    /// needed that the caller may hold.
    ///
    /// # Errors
    /// Unreadable blocks; [`Error::FreeSpace`] for contradicting items.
    pub(super) fn ensure_loaded(&self, group: &BlockGroup) -> Result<()> {
        if group.lock().loaded == Loaded::Yes {
            return Ok(());
        }
        group.load(|| match &self.trees.free_space {
            Some(tree) => self.read_free_space_items(tree, group),
            None => self.read_gaps(group),
        })
    }

    pub(super) fn read_free_space_items(
        &self,
        tree: &Arc<Root>,
        group: &BlockGroup,
    ) -> Result<Vec<(u64, u64)>> {
        let mut collector = Collector::new(self.span(group));
        let first = collector.first_key();
        tree.walk_committed(self, &first, &mut |key, item| collector.take(key, item))?;
        collector.finish()
    }

    /// Space that no extent covers is free.
    pub(super) fn read_gaps(&self, group: &BlockGroup) -> Result<Vec<(u64, u64)>> {
        let mut used = RangeSet::new();
        let first = Key::new(group.start, 0, 0);
        let extent = &self.trees.extent;
        extent.walk_committed(self, &first, &mut |key, _| {
            if key.objectid >= group.end() {
                return Ok(false);
            }
            let len = match key.kind {
                kind::EXTENT_ITEM => key.offset,
                kind::METADATA_ITEM => self.nodesize,
                _ => return Ok(true),
            };
            used.insert(key.objectid, key.objectid.saturating_add(len));
            Ok(true)
        })?;
        Ok(used.gaps(group.start, group.end()))
    }

    /// Records the height of trees, for reservations.
    pub(super) fn note_level(&self, level: u8) {
        self.height
            .fetch_max(level.saturating_add(1), Ordering::Relaxed);
    }

    /// Limits the size of new chunks to this many bytes.
    pub(crate) fn set_largest_chunk(&self, bytes: u64) {
        let bytes = bytes.max(STRIPE_LEN) / STRIPE_LEN * STRIPE_LEN;
        self.largest_chunk.store(bytes, Ordering::Relaxed);
    }

    /// Bytes of all devices.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes.load(Ordering::Relaxed)
    }

    /// Bytes in extents, for the superblock.
    pub(crate) fn bytes_used(&self) -> u64 {
        let groups = self.all_groups();
        groups.iter().map(|group| group.lock().used).sum()
    }

    /// Id, size, and bytes in device extents that have items, of each device: for the device items
    /// of the superblocks.
    pub(crate) fn device_bytes(&self) -> Vec<(u64, u64, u64)> {
        let devices = self.devices.lock();
        let devices = devices.by_id.values();
        devices.map(|d| (d.devid, d.total, d.used)).collect()
    }
}
