//! Devices and the chunk map: the locations of an address's copies, and reading blocks from them.

use std::collections::BTreeMap;

use sapwood_block::Device;
use sapwood_btrfs_format::{BlockGroupFlags, ChunkItem, Expect, validate_block};

use super::finding::BlockFault;

/// Bytes of an element of a striped profile.
const ELEMENT: u64 = 64 << 10;

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

/// Whether copies must be computed from parity.
pub(super) fn has_parity(flags: BlockGroupFlags) -> bool {
    flags.intersects(BlockGroupFlags::RAID5 | BlockGroupFlags::RAID6)
}

/// Number of parts into which a chunk is cut, and of mirrors of each part.
fn parts(chunk: &ChunkItem) -> (u64, u64) {
    let stripes = chunk.stripes.len() as u64;
    match chunk.flags.profile() {
        BlockGroupFlags::RAID0 => (stripes.max(1), 1),
        BlockGroupFlags::RAID10 => ((stripes / 2).max(1), 2),
        _ => (1, stripes),
    }
}

/// Bytes of a chunk on each of its devices.
pub(super) fn on_device(chunk: &ChunkItem) -> u64 {
    chunk.length / parts(chunk).0
}

/// The byte of a chunk at an offset on its stripe `nth`, and the bytes that follow there up to the
/// length of an element; `None` past the end of the stripe.
pub(super) fn byte_of(chunk: &ChunkItem, nth: u64, at: u64) -> Option<(u64, u64)> {
    let (count, mirrors) = parts(chunk);
    if at >= on_device(chunk) {
        return None;
    }
    if count == 1 {
        return Some((at, ELEMENT));
    }
    let element = at / ELEMENT * count + nth / mirrors;
    Some((element * ELEMENT + at % ELEMENT, ELEMENT - at % ELEMENT))
}

impl Source<'_> {
    /// The chunk that contains all of a range.
    pub(super) fn chunk(&self, logical: u64, len: u64) -> Option<(u64, &ChunkItem)> {
        let (start, chunk) = self.chunks.range(..=logical).next_back()?;
        let end = logical.checked_add(len)?;
        (end <= start.saturating_add(chunk.length)).then_some((*start, chunk))
    }

    /// Bytes from an address on that every copy has in one piece; 0 if no chunk contains it.
    pub(super) fn contiguous(&self, logical: u64) -> u64 {
        let Some((start, chunk)) = self.chunk(logical, 1) else {
            return 0;
        };
        let within = logical - start;
        let left = chunk.length - within;
        match parts(chunk) {
            (1, _) => left,
            _ => left.min(ELEMENT - within % ELEMENT),
        }
    }

    /// Locations of the copies of a range; none if no chunk contains it, or if it is not in one
    /// piece.
    pub(super) fn copies(&self, logical: u64, len: u64) -> Vec<CopyAt> {
        let Some((start, chunk)) = self.chunk(logical, len) else {
            return Vec::new();
        };
        if self.contiguous(logical) < len {
            return Vec::new();
        }
        let within = logical - start;
        let (count, mirrors) = parts(chunk);
        let (first, offset) = if count == 1 {
            (0, within)
        } else {
            let element = within / ELEMENT;
            let row = element / count;
            (element % count * mirrors, row * ELEMENT + within % ELEMENT)
        };
        let place = |(copy, stripe): (usize, &sapwood_btrfs_format::StripeItem)| CopyAt {
            copy,
            disk: self.disks.iter().position(|d| d.devid == stripe.devid),
            physical: stripe.offset.saturating_add(offset),
        };
        let stripes = chunk.stripes.iter().skip(first as usize);
        stripes
            .take(mirrors as usize)
            .enumerate()
            .map(place)
            .collect()
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
