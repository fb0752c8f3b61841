//! Numbers for statfs, as the kernel computes them, and the size of the global reserve, which they
//! include.

use std::sync::atomic::Ordering;

use sapwood_btrfs_format::NAME_MAX;
use sapwood_vfs::FsStat;

use super::devices::{DeviceSpace, Layout};
use super::info::SpaceInfo;
use super::state::Space;

/// Number of blocks that the kernel assumes for one item: levels, each copied and split.
const ITEM_BLOCKS: u64 = 8 * 2;
/// Items that unlinking may change.
const UNLINK_ITEMS: u64 = 6;
/// Largest global reserve.
const GLOBAL_LIMIT: u64 = 512 << 20;
/// If less free metadata than this is left beyond the global reserve, nothing is available.
const METADATA_MARGIN: u64 = 4 << 20;

/// The fsid folded to 8 bytes: its 32-bit words, big-endian, two by two.
fn folded(fsid: &[u8; 16]) -> u64 {
    let word = |at: usize| {
        let bytes = fsid.get(at * 4..at * 4 + 4).unwrap_or_default();
        bytes
            .iter()
            .fold(0u64, |word, byte| word << 8 | u64::from(*byte))
    };
    (word(0) ^ word(2)) | (word(1) ^ word(3)) << 32
}

/// Device bytes of a kind: (in groups, used).
fn on_device(info: &SpaceInfo) -> (u64, u64) {
    let sums = info.sums();
    (sums.device_total, sums.device_used)
}

impl Space {
    /// Recomputes the global reserve, which is kept for commits and for deletions on a full file
    /// system: the size of the trees that every commit changes, so that all of their blocks can be
    /// copied.
    pub(crate) fn update_global_reserve(&self) {
        let trees = &self.trees;
        let mut bytes = 0u64;
        let mut items = 1 + UNLINK_ITEMS;
        let fixed = [&trees.extent, &trees.csum];
        let maybe = [&trees.free_space, &trees.group];
        for tree in fixed.into_iter().chain(maybe.into_iter().flatten()) {
            bytes = bytes.saturating_add(tree.item().bytes_used.get());
            items += 1;
        }
        let item = ITEM_BLOCKS * self.nodesize;
        let delayed = UNLINK_ITEMS * if trees.free_space.is_some() { 2 } else { 1 };
        let global = bytes.max((items + delayed) * item).min(GLOBAL_LIMIT);
        self.metadata.change(|sums| sums.global = global);
    }

    /// Size of the global reserve in bytes.
    pub(crate) fn global_reserve(&self) -> u64 {
        self.metadata.sums().global
    }

    /// The numbers for the file system `fsid`, seen through the subvolume `root_id`. It only reads
    /// sums, and never waits for the device.
    pub(crate) fn statfs(&self, fsid: &[u8; 16], root_id: u64) -> FsStat {
        // A group whose removal begins counts either as a group or as unallocated.
        let devices = self.devices.lock();
        let copies = {
            let groups = self.data.groups.read();
            groups
                .iter()
                .map(|group| group.on_device(1))
                .max()
                .unwrap_or(1)
        };
        let (data_total, data_used) = on_device(&self.data);
        let (system_total, system_used) = on_device(&self.system);
        let (metadata_total, metadata_used) = if self.mixed {
            (0, 0)
        } else {
            on_device(&self.metadata)
        };
        debug_assert!(system_total >= system_used);
        let used = data_used + system_used + metadata_used;
        let global = self.global_reserve();
        let unit = |bytes: u64| bytes / self.sector;
        let blocks = unit(self.total_bytes() / copies);
        let free = blocks
            .saturating_sub(unit(used / copies))
            .saturating_sub(unit(global));
        let layout = Layout::of(self.chunk_flags(&self.data));
        let written = |devid| self.volume.is_written(devid);
        // Includes the space that the commit releases by removing other chunks.
        let unallocated = devices.room(&layout, &written, DeviceSpace::soon_unallocated);
        let mut available = (data_total.saturating_sub(data_used) + unallocated) / copies;
        let metadata_free = metadata_total.saturating_sub(metadata_used);
        let exhausted = metadata_free < METADATA_MARGIN + global;
        if !self.mixed && exhausted && self.metadata.full.load(Ordering::Relaxed) {
            available = 0;
        }
        FsStat {
            block_size: self.sector as u32,
            blocks,
            blocks_free: free,
            blocks_available: unit(available),
            inodes: 0,
            inodes_free: 0,
            name_max: NAME_MAX as u32,
            fsid: folded(fsid) ^ root_id.rotate_left(32),
        }
    }
}
