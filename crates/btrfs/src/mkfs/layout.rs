//! Locations of the first chunks, and the addresses in them for tree blocks.

use std::cmp::Reverse;

use sapwood_btrfs_format::{BlockGroupFlags, ChunkItem, SUPER_OFFSETS, StripeItem, objectid};

use super::error::MkfsError;
use super::options::{MkfsOptions, SECTOR_SIZE};
use crate::devices::stripe;
use crate::space::Layout;

/// Only the superblock is before this offset.
pub(super) const RESERVED: u64 = 1 << 20;
/// Bytes of a stripe element, and of the area around each superblock without extents.
pub(super) const STRIPE_LEN: u64 = 64 << 10;

const MIB: u64 = 1 << 20;

/// One of the first chunks.
#[derive(Clone, Debug)]
pub(super) struct PlannedChunk {
    pub(super) logical: u64,
    pub(super) length: u64,
    pub(super) flags: BlockGroupFlags,
    /// Device, counted from 0, and byte offset of each stripe.
    pub(super) stripes: Vec<(usize, u64)>,
}

impl PlannedChunk {
    /// The chunk item. `uuids` are the UUIDs of all devices.
    pub(super) fn item(&self, uuids: &[[u8; 16]]) -> ChunkItem {
        let stripes = self.stripes.iter().map(|&(device, offset)| StripeItem {
            devid: device as u64 + 1,
            offset,
            dev_uuid: uuids.get(device).copied().unwrap_or_default(),
        });
        ChunkItem {
            length: self.length,
            owner: objectid::EXTENT_TREE,
            stripe_len: STRIPE_LEN,
            flags: self.flags,
            io_align: STRIPE_LEN as u32,
            io_width: STRIPE_LEN as u32,
            sector_size: SECTOR_SIZE,
            sub_stripes: Layout::sub_stripes(self.flags),
            stripes: stripes.collect(),
        }
    }

    /// Device ids, offsets and lengths of its device extents.
    pub(super) fn extents(&self) -> Vec<(u64, u64, u64)> {
        let item = self.item(&[]);
        let extents = stripe::extents(&item);
        let places = extents.map(|extent| (extent.devid, extent.physical, extent.len));
        places.collect()
    }

    /// Device, counted from 0, and offset of each copy of a tree block.
    pub(super) fn places(&self, bytenr: u64, len: u64) -> Vec<(usize, u64)> {
        let item = self.item(&[]);
        let copies = 0..stripe::copies(&item);
        let pieces = copies.filter_map(|n| stripe::piece(&item, bytenr - self.logical, len, n));
        let places = pieces.map(|piece| (piece.devid as usize - 1, piece.physical));
        places.collect()
    }

    /// Whether a copy of the range is in the free area around a superblock.
    fn on_super(&self, logical: u64, len: u64) -> bool {
        self.places(logical, len).iter().any(|(_, start)| {
            SUPER_OFFSETS
                .iter()
                .any(|sb| *start < sb + STRIPE_LEN && *sb < start + len)
        })
    }

    /// The first `count` block addresses, without those on superblocks; fewer if the chunk is too
    /// small.
    pub(super) fn block_addresses(&self, nodesize: u32) -> impl Iterator<Item = u64> + '_ {
        let len = u64::from(nodesize);
        (0..self.length / len)
            .map(move |n| self.logical + n * len)
            .filter(move |at| !self.on_super(*at, len))
    }
}

/// Bytes of each chunk.
struct Sizes {
    system: u64,
    metadata: u64,
    data: u64,
}

fn round_down(bytes: u64) -> u64 {
    bytes / STRIPE_LEN * STRIPE_LEN
}

/// Smallest default sizes: with these the kernel has room in addition to its reserve (368 nodes of
/// metadata as of Linux 6.18) for a large operation.
fn floors(options: &MkfsOptions) -> Sizes {
    let nodesize = u64::from(options.node_size());
    Sizes {
        system: MIB.max(nodesize * 64),
        metadata: nodesize * 640,
        data: MIB,
    }
}

/// The defaults of `mkfs.btrfs` on large devices, scaled down on small ones.
fn defaults(size: u64, floors: &Sizes) -> Sizes {
    let cap = if size > 50 << 30 { 1 << 30 } else { 256 * MIB };
    let metadata = (size / 20).min(cap).max((size / 8).min(8 * MIB));
    Sizes {
        system: round_down((size / 64).min(8 * MIB)).max(floors.system),
        metadata: round_down(metadata).max(floors.metadata),
        data: round_down((size / 8).min(8 * MIB)).max(floors.data),
    }
}

fn chosen(
    content: &'static str,
    asked: Option<u64>,
    default: u64,
    minimum: u64,
) -> Result<u64, MkfsError> {
    match asked {
        Some(bytes) if bytes < minimum || bytes % STRIPE_LEN != 0 => Err(MkfsError::ChunkSize {
            content,
            bytes,
            minimum,
        }),
        Some(bytes) => Ok(bytes),
        None => Ok(default),
    }
}

/// Plans the first chunks on devices of these sizes: system, metadata, data; or system and mixed.
/// `device` names them in errors.
///
/// # Errors
/// [`MkfsError::ChunkSize`], [`MkfsError::TooSmall`].
pub(super) fn plan(
    device: &str,
    sizes: &[u64],
    options: &MkfsOptions,
) -> Result<Vec<PlannedChunk>, MkfsError> {
    let devices = sizes;
    let size = devices.iter().sum();
    let least = floors(options);
    let normal = defaults(size, &least);
    // An explicit size may be as small as the first blocks need: this engine reserves less.
    let nodes = u64::from(options.node_size()) * 32;
    let sizes = Sizes {
        system: chosen("system", options.system_chunk, normal.system, nodes)?,
        metadata: chosen("metadata", options.metadata_chunk, normal.metadata, nodes)?,
        data: chosen("data", options.data_chunk, normal.data, STRIPE_LEN)?,
    };
    if let Some(chunks) = place(devices, options, &sizes) {
        return Ok(chunks);
    }
    // The defaults may be slightly too large for a small device for which the smallest sizes are
    // not.
    let least = Sizes {
        system: options.system_chunk.unwrap_or(least.system),
        metadata: options.metadata_chunk.unwrap_or(least.metadata),
        data: options.data_chunk.unwrap_or(least.data),
    };
    place(devices, options, &least).ok_or_else(|| MkfsError::TooSmall {
        device: device.to_owned(),
        size,
        minimum: wanted(options, &least)
            .iter()
            .fold(RESERVED, |sum, (flags, length)| {
                sum + length * Layout::of(*flags).copies
            }),
    })
}

/// Content and profile, and length, of each chunk.
fn wanted(options: &MkfsOptions, sizes: &Sizes) -> Vec<(BlockGroupFlags, u64)> {
    use BlockGroupFlags as F;
    let metadata = options.metadata_profile().flags();
    let data = options.data_profile().flags();
    let mut chunks = vec![(F::SYSTEM | metadata, sizes.system)];
    if options.mixed {
        chunks.push((F::DATA | F::METADATA | metadata, sizes.metadata));
    } else {
        chunks.push((F::METADATA | metadata, sizes.metadata));
        chunks.push((F::DATA | data, sizes.data));
    }
    chunks
}

/// Refuses profiles that need more devices than there are.
pub(super) fn check_devices(options: &MkfsOptions, devices: usize) -> Result<(), MkfsError> {
    let metadata = options.metadata_profile();
    for (content, profile) in [("metadata", metadata), ("data", options.data_profile())] {
        let needed = Layout::of(profile.flags()).least;
        if needed > devices {
            return Err(MkfsError::TooFewDevices {
                content,
                profile: profile.flags().profile_name(),
                needed,
                given: devices,
            });
        }
    }
    Ok(())
}

/// Puts each chunk on the devices with most room, after the chunks that are there; `None` if they
/// do not fit.
fn place(devices: &[u64], options: &MkfsOptions, sizes: &Sizes) -> Option<Vec<PlannedChunk>> {
    let mut next = vec![RESERVED; devices.len()];
    let mut logical = RESERVED;
    let mut chunks = Vec::new();
    for (flags, length) in wanted(options, sizes) {
        let layout = Layout::of(flags);
        let room = |at: &usize| Some(devices.get(*at)?.saturating_sub(*next.get(*at)?));
        let mut order: Vec<usize> = (0..devices.len()).collect();
        order.sort_by_key(|at| Reverse(room(at)));
        let count = layout.count(devices.len())?;
        let parts = layout.parts(count);
        let each = length.div_ceil(parts).next_multiple_of(STRIPE_LEN);
        let mut stripes = Vec::new();
        for device in order.into_iter().take(count) {
            let physical = next.get_mut(device)?;
            for _ in 0..layout.on_device {
                stripes.push((device, *physical));
                let end = physical.checked_add(each);
                *physical =
                    end.filter(|end| devices.get(device).is_some_and(|size| end <= size))?;
            }
        }
        chunks.push(PlannedChunk {
            logical,
            length: each * parts,
            flags,
            stripes,
        });
        logical = logical.checked_add(each * parts)?;
    }
    Some(chunks)
}

#[cfg(test)]
mod tests {
    use super::super::options::Profile;
    use super::*;

    #[test]
    fn no_block_lies_on_a_superblock() {
        let chunk = PlannedChunk {
            logical: 1 << 20,
            length: 8 << 20,
            flags: BlockGroupFlags::METADATA | BlockGroupFlags::DUP,
            stripes: vec![(0, 60 << 20), (0, 100 << 20)],
        };
        let addresses: Vec<u64> = chunk.block_addresses(16384).collect();
        assert_eq!(addresses.len(), 512 - 4);
        assert!(!addresses.contains(&(5 << 20)));
        assert!(addresses.contains(&((5 << 20) + STRIPE_LEN)));
    }

    #[test]
    fn sizes_follow_the_device() {
        let options = MkfsOptions::default();
        let metadata = |size| plan("d", &[size], &options).unwrap()[1].length;
        assert_eq!(metadata(1 << 30), 53_673_984);
        assert_eq!(metadata(20 << 30), 256 << 20);
        assert_eq!(metadata(100 << 30), 1 << 30);
        assert_eq!(metadata(64 << 20), 10 << 20);
        assert!(plan("d", &[24 << 20], &options).is_ok());
        match plan("d", &[(24 << 20) - 1], &options) {
            Err(MkfsError::TooSmall { minimum, .. }) => assert_eq!(minimum, 24 << 20),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn mirrored_chunks_lie_on_different_devices() {
        let options = MkfsOptions {
            metadata: Some(Profile::Raid1c3),
            data: Some(Profile::Raid10),
            ..MkfsOptions::default()
        };
        let chunks = plan("d", &[1 << 30; 5], &options).unwrap();
        let devices = |nth: usize| -> Vec<usize> {
            chunks[nth]
                .stripes
                .iter()
                .map(|(device, _)| *device)
                .collect()
        };
        assert_eq!(devices(0), [0, 1, 2]);
        assert_eq!(devices(1), [3, 4, 0]);
        assert_eq!(devices(2).len(), 4);
        for chunk in &chunks {
            assert_eq!(stripe::check(chunk.logical, &chunk.item(&[])), Ok(()));
        }
    }

    #[test]
    fn chunks_go_where_most_room_is() {
        let options = MkfsOptions::default();
        let devices = |sizes: &[u64]| -> Vec<usize> {
            let chunks = plan("d", sizes, &options).unwrap();
            chunks.iter().map(|chunk| chunk.stripes[0].0).collect()
        };
        assert_eq!(devices(&[1 << 30]), [0, 0, 0]);
        assert_eq!(devices(&[1 << 30, 1 << 30]), [0, 1, 0]);
        assert_eq!(devices(&[64 << 20, 1 << 30]), [1, 1, 1]);
        assert_eq!(devices(&[1 << 30, 64 << 20, 1 << 30]), [0, 2, 0]);
    }
}
