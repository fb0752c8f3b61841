//! The ranges of the devices that belong to chunks, and how large a new chunk is.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use sapwood_base::RangeSet;
use sapwood_btrfs_format::{BlockGroupFlags, ChunkItem, DevItem, SUPER_OFFSETS, StripeItem};

/// Chunks are never in the first MiB of a device, which has boot loaders and the superblock.
pub(crate) const FIRST_CHUNK_OFFSET: u64 = 1 << 20;
/// Chunks begin and end at multiples of this.
pub(crate) const STRIPE_LEN: u64 = 64 << 10;

/// A device's space for chunks.
#[derive(Clone, Debug)]
pub(crate) struct DeviceSpace {
    /// Device id.
    pub(crate) devid: u64,
    /// Device uuid.
    pub(crate) uuid: [u8; 16],
    /// Bytes that the file system may use.
    pub(crate) total: u64,
    /// New chunks end before this, while the device shrinks.
    pub(crate) limit: u64,
    /// Bytes in device extents that have items.
    pub(crate) used: u64,
    /// Ranges of chunks, including chunks whose removal is not durable yet.
    taken: RangeSet,
    /// Ranges of chunks whose removal is not durable yet.
    leaving: RangeSet,
}

impl DeviceSpace {
    /// A device without chunks.
    pub(crate) fn new(item: &DevItem) -> Self {
        Self {
            devid: item.devid.get(),
            uuid: item.uuid,
            total: item.total_bytes.get(),
            limit: u64::MAX,
            used: item.bytes_used.get(),
            taken: RangeSet::new(),
            leaving: RangeSet::new(),
        }
    }

    /// Bytes that belong to no chunk.
    pub(crate) fn unallocated(&self) -> u64 {
        self.holes(&self.taken).map(|(from, to)| to - from).sum()
    }

    /// Bytes that will belong to no chunk once all removals are durable.
    pub(crate) fn soon_unallocated(&self) -> u64 {
        let mut staying = self.taken.clone();
        for (from, to) in self.leaving.within(0, u64::MAX) {
            staying.remove(from, to);
        }
        self.holes(&staying).map(|(from, to)| to - from).sum()
    }

    /// Aligned gaps of `taken` that chunks may get.
    fn holes(&self, taken: &RangeSet) -> impl Iterator<Item = (u64, u64)> + use<> {
        let end = self.total.min(self.limit);
        let holes = taken.gaps(FIRST_CHUNK_OFFSET, end);
        holes.into_iter().filter_map(|(from, to)| {
            let (from, to) = (from.next_multiple_of(STRIPE_LEN), to - to % STRIPE_LEN);
            (from < to).then_some((from, to))
        })
    }

    /// Ranges below `end` that belong to no chunk and to no copy of the superblock: (start, end).
    pub(crate) fn clear_holes(&self, end: u64) -> Vec<(u64, u64)> {
        let mut taken = self.taken.clone();
        for copy in SUPER_OFFSETS {
            taken.insert(copy, copy + STRIPE_LEN);
        }
        let holes = taken.gaps(FIRST_CHUNK_OFFSET, end.min(self.total));
        let aligned = holes.into_iter().map(|(from, to)| {
            let from = from.next_multiple_of(STRIPE_LEN);
            (from, to - to % STRIPE_LEN)
        });
        aligned.filter(|(from, to)| from < to).collect()
    }

    /// Ranges that belong to no chunk and to no copy of the superblock: (start, end).
    pub(crate) fn unused(&self) -> Vec<(u64, u64)> {
        self.clear_holes(u64::MAX)
    }

    /// The first hole of `want` bytes, else the largest one: (start, bytes).
    pub(crate) fn hole(&self, want: u64) -> Option<(u64, u64)> {
        let mut best: Option<(u64, u64)> = None;
        for (from, to) in self.holes(&self.taken) {
            if to - from >= want {
                return Some((from, want));
            }
            if best.is_none_or(|(_, len)| to - from > len) {
                best = Some((from, to - from));
            }
        }
        best
    }

    /// Records a chunk's stripe.
    pub(crate) fn take(&mut self, offset: u64, len: u64) {
        self.taken.insert(offset, offset.saturating_add(len));
    }

    /// Whether a range belongs to no chunk.
    pub(super) fn is_free(&self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len);
        self.taken.within(offset, end).is_empty()
    }

    /// Records a range as a chunk's, if all of it belongs to none.
    pub(crate) fn claim(&mut self, offset: u64, len: u64) -> bool {
        let free = self.is_free(offset, len);
        if free {
            self.take(offset, len);
        }
        free
    }

    /// Removes a chunk's stripe, when the removal of the chunk is durable.
    pub(crate) fn give(&mut self, offset: u64, len: u64) {
        self.taken.remove(offset, offset.saturating_add(len));
        self.leaving.remove(offset, offset.saturating_add(len));
    }

    /// Records that the chunk with this stripe is removed; [`give`](Self::give) follows.
    fn leave(&mut self, offset: u64, len: u64) {
        self.leaving.insert(offset, offset.saturating_add(len));
    }
}

/// All devices, and the next chunk's logical address. A thread that allocates a chunk holds the
/// lock of this.
#[derive(Debug)]
pub(crate) struct Devices {
    /// Devices, keyed by device id.
    pub(crate) by_id: BTreeMap<u64, DeviceSpace>,
    /// First address after all chunks seen so far. Addresses are not reused while mounted.
    pub(crate) next_logical: u64,
}

impl Devices {
    /// Devices with the stripes of existing chunks.
    pub(crate) fn new(devices: Vec<DeviceSpace>, chunks: &[(u64, Arc<ChunkItem>)]) -> Self {
        let mut this = Self {
            by_id: devices.into_iter().map(|d| (d.devid, d)).collect(),
            next_logical: 0,
        };
        for (logical, chunk) in chunks {
            this.take(*logical, chunk);
        }
        this
    }

    /// Records a chunk.
    pub(crate) fn take(&mut self, logical: u64, chunk: &ChunkItem) {
        for (devid, offset, len) in stripes(chunk) {
            if let Some(device) = self.by_id.get_mut(&devid) {
                device.take(offset, len);
            }
        }
        let end = logical.saturating_add(chunk.length);
        self.next_logical = self.next_logical.max(end);
    }

    /// Records that a chunk is removed by a transaction that is not durable yet.
    pub(crate) fn leave(&mut self, chunk: &ChunkItem) {
        for (devid, offset, len) in stripes(chunk) {
            if let Some(device) = self.by_id.get_mut(&devid) {
                device.leave(offset, len);
            }
        }
    }

    /// Removes a chunk, when its removal is durable.
    pub(crate) fn give(&mut self, chunk: &ChunkItem) {
        for (devid, offset, len) in stripes(chunk) {
            if let Some(device) = self.by_id.get_mut(&devid) {
                device.give(offset, len);
            }
        }
    }

    /// Bytes of all devices that belong to no chunk.
    #[cfg(test)]
    pub(crate) fn unallocated(&self) -> u64 {
        self.by_id.values().map(DeviceSpace::unallocated).sum()
    }

    /// Device bytes that chunks of a layout can get, by the free bytes of each device. Only devices
    /// for which `written` is true take part. As the kernel counts them: the device with least room
    /// shares chunks with the next larger ones until it is full.
    pub(crate) fn room(
        &self,
        layout: &Layout,
        written: &dyn Fn(u64) -> bool,
        free: impl Fn(&DeviceSpace) -> u64,
    ) -> u64 {
        let devices = self.by_id.values().filter(|device| written(device.devid));
        let whole = STRIPE_LEN * layout.on_device;
        let mut rest: Vec<u64> = devices
            .map(|device| {
                let free = free(device);
                free - free % whole
            })
            .collect();
        rest.sort_unstable();
        let (mut bytes, mut rest) = (0, &mut rest[..]);
        while rest.len() >= layout.least {
            let width = layout.usual.unwrap_or(rest.len()).min(rest.len());
            let smallest = rest.first().copied().unwrap_or(0);
            bytes += smallest * width as u64;
            rest.iter_mut()
                .take(width)
                .for_each(|free| *free -= smallest);
            rest = rest.split_first_mut().map_or(&mut [], |(_, rest)| rest);
        }
        bytes
    }

    /// Places for a chunk of about `want` bytes: as many devices as the layout takes, those with
    /// the largest holes first. `None` if too few have room.
    pub(crate) fn place(
        &self,
        layout: &Layout,
        want: u64,
        written: &dyn Fn(u64) -> bool,
    ) -> Option<PlacedStripes> {
        let least = STRIPE_LEN * layout.on_device;
        let devices = self.by_id.values().filter(|device| written(device.devid));
        let open: Vec<&DeviceSpace> = devices
            .filter(|device| device.hole(least).is_some_and(|(_, len)| len >= least))
            .collect();
        let count = layout.count(open.len())?;
        let parts = layout.parts(count);
        let wanted = (want / parts - want / parts % STRIPE_LEN).max(STRIPE_LEN);
        let hole = |device: &&'_ DeviceSpace| {
            let (at, len) = device.hole(wanted * layout.on_device)?;
            Some((
                Reverse((len, device.unallocated())),
                device.devid,
                device.uuid,
                at,
            ))
        };
        let mut holes: Vec<_> = open.iter().filter_map(hole).collect();
        holes.sort();
        holes.truncate(count);
        let smallest = holes.iter().map(|(Reverse((len, _)), ..)| *len).min()?;
        let len = smallest / layout.on_device;
        let len = len - len % STRIPE_LEN;
        let stripes = holes.iter().flat_map(|(_, devid, dev_uuid, at)| {
            (0..layout.on_device).map(move |nth| StripeItem {
                devid: *devid,
                offset: at + nth * len,
                dev_uuid: *dev_uuid,
            })
        });
        Some(PlacedStripes {
            stripes: stripes.collect(),
            length: len * parts,
        })
    }
}

/// Places for the stripes of a new chunk.
#[derive(Debug)]
pub(crate) struct PlacedStripes {
    /// Stripes in the order of the chunk item.
    pub(crate) stripes: Vec<StripeItem>,
    /// Bytes of the chunk.
    pub(crate) length: u64,
}

/// Locations of a chunk's stripes: (device id, offset, bytes).
pub(crate) fn stripes(chunk: &ChunkItem) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
    let extents = crate::devices::stripe::extents(chunk);
    extents.map(|extent| (extent.devid, extent.physical, extent.len))
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The arrangement of a profile's chunks on devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Devices that a chunk needs.
    pub(crate) least: usize,
    /// Devices that a chunk has at most; all if there is no bound.
    most: Option<usize>,
    /// The number of devices is a multiple of this.
    multiple: usize,
    /// Devices of a chunk in the estimate of free space, as the kernel assumes.
    usual: Option<usize>,
    /// Stripes on each device.
    pub(crate) on_device: u64,
    /// Copies of each byte.
    pub(crate) copies: u64,
}

impl Layout {
    /// The layout of a profile that can be written.
    pub(crate) fn of(flags: BlockGroupFlags) -> Self {
        use BlockGroupFlags as F;
        let mirrored = |copies: usize| Self {
            least: copies,
            most: Some(copies),
            multiple: copies,
            usual: Some(copies),
            on_device: 1,
            copies: copies as u64,
        };
        let single = mirrored(1);
        match flags.profile() {
            F::DUP => Self {
                on_device: 2,
                copies: 2,
                ..single
            },
            F::RAID0 => Self {
                most: None,
                usual: None,
                ..single
            },
            F::RAID1 => mirrored(2),
            F::RAID1C3 => mirrored(3),
            F::RAID1C4 => mirrored(4),
            F::RAID10 => Self {
                most: None,
                usual: Some(4),
                ..mirrored(2)
            },
            _ => single,
        }
    }

    /// Devices of a chunk, if this many have room; `None` if too few have.
    pub(crate) fn count(&self, devices: usize) -> Option<usize> {
        let most = self.most.unwrap_or(devices).min(devices);
        let count = most - most % self.multiple;
        (count >= self.least).then_some(count)
    }

    /// Parts into which the bytes of a chunk on this many devices are divided.
    pub(crate) fn parts(&self, devices: usize) -> u64 {
        devices as u64 * self.on_device / self.copies
    }

    /// Number of a stripe's mirrors that the chunk item records.
    pub(crate) fn sub_stripes(flags: BlockGroupFlags) -> u16 {
        if flags.profile() == BlockGroupFlags::RAID10 {
            2
        } else {
            1
        }
    }
}

/// Profiles over several devices, the one that loses least first.
pub(crate) const BY_REDUNDANCY: [BlockGroupFlags; 5] = [
    BlockGroupFlags::RAID1C4,
    BlockGroupFlags::RAID1C3,
    BlockGroupFlags::RAID10,
    BlockGroupFlags::RAID1,
    BlockGroupFlags::RAID0,
];

/// Bytes that a chunk of this content should have on a file system of `total` bytes: data 1 GiB,
/// metadata 256 MiB (1 GiB from 50 GiB on), system 32 MiB, never more than a tenth of it all.
pub(crate) fn wanted(content: BlockGroupFlags, total: u64) -> u64 {
    let usual = if content.contains(BlockGroupFlags::DATA) {
        GIB
    } else if content.contains(BlockGroupFlags::SYSTEM) {
        32 * MIB
    } else if total > 50 * GIB {
        GIB
    } else {
        256 * MIB
    };
    let tenth = (total / 10).next_multiple_of(STRIPE_LEN);
    usual.min(tenth).max(STRIPE_LEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_aligned_and_behind_the_first_mib() {
        let mut device = DeviceSpace::new(&DevItem {
            devid: 1.into(),
            total_bytes: ((64 << 20) + 5000).into(),
            ..DevItem::default()
        });
        assert_eq!(device.hole(4 << 20), Some((1 << 20, 4 << 20)));
        assert_eq!(device.hole(1 << 30), Some((1 << 20, 63 << 20)));
        device.take(2 << 20, 3 << 20);
        device.take((8 << 20) + 4096, 1 << 20);
        assert_eq!(device.hole(1 << 20), Some((1 << 20, 1 << 20)));
        assert_eq!(device.hole(3 << 20), Some((5 << 20, 3 << 20)));
        let behind = (9 << 20) + STRIPE_LEN;
        assert_eq!(device.hole(1 << 30), Some((behind, (64 << 20) - behind)));
        let before = device.unallocated();
        device.leave(2 << 20, 3 << 20);
        assert_eq!(device.unallocated(), before);
        assert_eq!(device.soon_unallocated(), before + (3 << 20));
        device.give(2 << 20, 3 << 20);
        assert_eq!(device.unallocated(), before + (3 << 20));
        assert_eq!(device.soon_unallocated(), before + (3 << 20));
        assert_eq!(device.hole(7 << 20), Some((1 << 20, 7 << 20)));
    }

    fn devices(sizes: &[u64]) -> Devices {
        let device = |(nth, size): (usize, &u64)| {
            DeviceSpace::new(&DevItem {
                devid: (nth as u64 + 1).into(),
                total_bytes: (size + FIRST_CHUNK_OFFSET).into(),
                ..DevItem::default()
            })
        };
        Devices::new(sizes.iter().enumerate().map(device).collect(), &[])
    }

    #[test]
    fn chunks_lie_on_the_devices_with_most_room() {
        use BlockGroupFlags as F;
        let placed = |sizes: &[u64], profile, want| {
            let placed = devices(sizes).place(&Layout::of(profile), want, &|_| true)?;
            let ids: Vec<u64> = placed.stripes.iter().map(|s| s.devid).collect();
            Some((ids, placed.length / MIB))
        };
        let uneven = [10 * GIB, 2 * GIB, 30 * GIB, 5 * GIB];
        let at = |profile| placed(&uneven, profile, GIB);
        assert_eq!(at(F::empty()), Some((vec![3], 1024)));
        assert_eq!(at(F::DUP), Some((vec![3, 3], 1024)));
        assert_eq!(at(F::RAID1), Some((vec![3, 1], 1024)));
        assert_eq!(at(F::RAID1C3), Some((vec![3, 1, 4], 1024)));
        assert_eq!(at(F::RAID1C4), Some((vec![3, 1, 4, 2], 1024)));
        assert_eq!(at(F::RAID0), Some((vec![3, 1, 4, 2], 1024)));
        assert_eq!(at(F::RAID10), Some((vec![3, 1, 4, 2], 1024)));
        let small = [GIB, 100 * MIB, GIB];
        assert_eq!(
            placed(&small, F::RAID0, 3 * GIB),
            Some((vec![1, 3, 2], 300))
        );
        assert_eq!(placed(&small, F::RAID10, GIB), Some((vec![1, 3], 1024)));
        assert_eq!(placed(&small, F::RAID1C4, GIB), None);
        assert_eq!(placed(&[GIB], F::RAID1, GIB), None);
    }

    #[test]
    fn room_is_what_the_profile_can_use() {
        use BlockGroupFlags as F;
        let room = |sizes: &[u64], profile| {
            let layout = Layout::of(profile);
            devices(sizes).room(&layout, &|_| true, DeviceSpace::unallocated) / MIB
        };
        let sizes = [100 * MIB, 200 * MIB, 400 * MIB];
        assert_eq!(room(&sizes, F::empty()), 700);
        assert_eq!(room(&sizes, F::RAID0), 300 + 200 + 200);
        assert_eq!(room(&sizes, F::RAID1), 200 + 200);
        assert_eq!(room(&sizes, F::RAID1C3), 300);
        assert_eq!(room(&sizes, F::RAID1C4), 0);
        assert_eq!(room(&[100 * MIB], F::RAID1), 0);
    }

    #[test]
    fn sizes_follow_content_and_total() {
        let (data, system) = (BlockGroupFlags::DATA, BlockGroupFlags::SYSTEM);
        let metadata = BlockGroupFlags::METADATA;
        assert_eq!(wanted(data, 100 * GIB), GIB);
        assert_eq!(wanted(data | metadata, 100 * GIB), GIB);
        assert_eq!(wanted(metadata, 10 * GIB), 256 * MIB);
        assert_eq!(wanted(metadata, 51 * GIB), GIB);
        assert_eq!(wanted(system, 10 * GIB), 32 * MIB);
        assert_eq!(wanted(data, 100 * MIB), 10 * MIB);
        assert_eq!(wanted(data, 0), STRIPE_LEN);
    }
}
