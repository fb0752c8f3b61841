//! Superblocks and their copies.

use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs_format::{MAGIC, SUPER_OFFSETS, SUPER_SIZE, SuperBlock};

/// Bytes of a superblock's checksum field.
const CSUM_FIELD: usize = 32;

/// The state of a superblock copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyState {
    /// Valid, with this generation.
    Valid(u64),
    /// The magic is there, but the copy is damaged.
    Damaged,
    /// No magic.
    Absent,
}

/// A place of a superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuperCopy {
    /// Device, from 0.
    pub device: usize,
    /// Number of the copy: 0, 1 or 2.
    pub number: usize,
    /// Byte offset.
    pub offset: u64,
    /// The state of the copy.
    pub state: CopyState,
}

/// Reads a copy; the superblock if it is valid.
pub(super) fn read(device: &dyn Device, offset: u64) -> (CopyState, Option<Box<SuperBlock>>) {
    let mut bytes = vec![0; SUPER_SIZE];
    let fits = offset
        .checked_add(SUPER_SIZE as u64)
        .is_some_and(|end| end <= device.size());
    if !fits || device.read_at(offset, &mut bytes).is_err() {
        return (CopyState::Absent, None);
    }
    let Ok(sb) = SuperBlock::read(&bytes) else {
        return (CopyState::Absent, None);
    };
    if sb.magic != MAGIC {
        return (CopyState::Absent, None);
    }
    let sum = sb.checksum_kind().is_some_and(|kind| {
        let (head, body) = bytes.split_at(CSUM_FIELD);
        kind.read(head) == Some(kind.compute(body))
    });
    let (sector, node) = (sb.sectorsize.get(), sb.nodesize.get());
    let size = |bytes: u32| bytes.is_power_of_two() && (4096..=65536).contains(&bytes);
    if sum && sb.bytenr.get() == offset && size(sector) && size(node) && sector <= node {
        (CopyState::Valid(sb.generation.get()), Some(Box::new(sb)))
    } else {
        (CopyState::Damaged, None)
    }
}

/// All copies of a device, and the newest valid one. `only`: the number of the copy to use.
pub(super) fn of_device(
    number: usize,
    device: &Arc<dyn Device>,
    only: Option<usize>,
) -> (Vec<SuperCopy>, Option<Box<SuperBlock>>) {
    let mut newest: Option<Box<SuperBlock>> = None;
    let mut copies = Vec::new();
    for (copy, offset) in SUPER_OFFSETS.into_iter().enumerate() {
        if offset.saturating_add(SUPER_SIZE as u64) > device.size() {
            continue;
        }
        let (state, sb) = read(&**device, offset);
        copies.push(SuperCopy {
            device: number,
            number: copy,
            offset,
            state,
        });
        let wanted = only.is_none_or(|only| only == copy);
        let newer = |sb: &SuperBlock| {
            newest
                .as_ref()
                .is_none_or(|old| old.generation.get() < sb.generation.get())
        };
        if let Some(sb) = sb.filter(|sb| wanted && newer(sb)) {
            newest = Some(sb);
        }
    }
    (copies, newest)
}
