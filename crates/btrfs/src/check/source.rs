//! Devices and the chunk map: the locations of an address's copies, and reading blocks from them.

use std::collections::BTreeMap;

use sapwood_block::Device;
use sapwood_btrfs_format::{BlockGroupFlags, ChunkItem, Expect, validate_block};

use super::finding::BlockFault;

/// A device of the file system.
pub(super) struct Disk<'d> {
    pub(super) devid: u64,
    pub(super) device: &'d dyn Device,
}

/// One copy of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyAt {
    /// Number of the copy.
    pub(super) copy: usize,
    /// Index among the devices; `None` if the device is missing.
    pub(super) disk: Option<usize>,
    pub(super) physical: u64,
}

/// All copies of a block that were read.
pub(super) struct BlockCopies {
    /// Bytes of the first good copy.
    pub(super) good: Option<Vec<u8>>,
    /// Numbers of the good copies that differ from the first good one.
    pub(super) differing: Vec<usize>,
    pub(super) bad: Vec<(CopyAt, BlockFault)>,
}

/// Devices and chunk map.
pub(super) struct Source<'d> {
    pub(super) disks: Vec<Disk<'d>>,
    /// Chunks by logical address.
    pub(super) chunks: BTreeMap<u64, ChunkItem>,
}

/// Whether every stripe of the profile is a whole copy.
pub(super) fn is_mirrored(flags: BlockGroupFlags) -> bool {
    !flags.intersects(
        BlockGroupFlags::RAID0
            | BlockGroupFlags::RAID10
            | BlockGroupFlags::RAID5
            | BlockGroupFlags::RAID6,
    )
}

impl Source<'_> {
    /// The chunk that contains all of a range.
    pub(super) fn chunk(&self, logical: u64, len: u64) -> Option<(u64, &ChunkItem)> {
        let (start, chunk) = self.chunks.range(..=logical).next_back()?;
        let end = logical.checked_add(len)?;
        (end <= start.saturating_add(chunk.length)).then_some((*start, chunk))
    }

    /// Locations of the copies of a range; none if no chunk contains it.
    pub(super) fn copies(&self, logical: u64, len: u64) -> Vec<CopyAt> {
        let Some((start, chunk)) = self.chunk(logical, len) else {
            return Vec::new();
        };
        let place = |(copy, stripe): (usize, &sapwood_btrfs_format::StripeItem)| CopyAt {
            copy,
            disk: self.disks.iter().position(|d| d.devid == stripe.devid),
            physical: stripe.offset.saturating_add(logical - start),
        };
        chunk.stripes.iter().enumerate().map(place).collect()
    }

    /// Name of the device of a copy.
    pub(super) fn device_name(&self, at: &CopyAt) -> String {
        let disk = at.disk.and_then(|n| self.disks.get(n));
        disk.map_or_else(
            || "missing device".to_owned(),
            |d| d.device.name().to_owned(),
        )
    }

    /// Fills `buf` from one copy.
    pub(super) fn read(&self, at: &CopyAt, buf: &mut [u8]) -> Result<(), String> {
        let Some(disk) = at.disk.and_then(|n| self.disks.get(n)) else {
            return Err("the device is missing".to_owned());
        };
        disk.device
            .read_at(at.physical, buf)
            .map_err(|err| err.to_string())
    }

    /// Reads all copies of a block, or stops after the first good one.
    pub(super) fn block(&self, expect: &Expect, all: bool) -> BlockCopies {
        let mut out = BlockCopies {
            good: None,
            differing: Vec::new(),
            bad: Vec::new(),
        };
        let mut buf = vec![0; expect.nodesize as usize];
        for at in self.copies(expect.logical, expect.nodesize.into()) {
            let checked = self.read(&at, &mut buf).map_err(BlockFault::Read);
            let checked = checked.and_then(|()| Ok(validate_block(&buf, expect)?));
            match (checked, &out.good) {
                (Err(fault), _) => out.bad.push((at, fault)),
                (Ok(()), Some(good)) if *good != buf => out.differing.push(at.copy),
                (Ok(()), Some(_)) => {}
                (Ok(()), None) if !all => {
                    out.good = Some(buf);
                    return out;
                }
                (Ok(()), None) => out.good = Some(buf.clone()),
            }
        }
        out
    }
}
