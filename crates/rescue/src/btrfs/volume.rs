//! Reads logical addresses: the chunk map and the copies of data.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs_format::{BlockGroupFlags, ChunkItem};

use super::scan::Area;

/// A device of the file system.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) device: Arc<dyn Device>,
    /// Its id; `None` if no superblock of it is left.
    pub(super) devid: Option<u64>,
}

/// A range that is contiguous on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    devid: u64,
    physical: u64,
    len: u64,
}

/// The chunks, by logical address, without overlaps.
#[derive(Debug, Default)]
pub(super) struct ChunkMap(BTreeMap<u64, ChunkItem>);

impl ChunkMap {
    /// Adds a chunk, unless it overlaps one that is there, or contradicts itself.
    pub(super) fn add(&mut self, logical: u64, chunk: ChunkItem) {
        let Some(end) = logical.checked_add(chunk.length) else {
            return;
        };
        let before = self.0.range(..end).next_back();
        let overlaps = before.is_some_and(|(start, other)| start + other.length > logical);
        if chunk.length == 0 || overlaps || !is_sound(&chunk) {
            return;
        }
        self.0.insert(logical, chunk);
    }

    /// The chunks.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &ChunkItem)> {
        self.0.iter().map(|(logical, chunk)| (*logical, chunk))
    }

    fn find(&self, logical: u64) -> Option<(u64, &ChunkItem)> {
        let upto = (Bound::Unbounded, Bound::Included(logical));
        let (start, chunk) = self.0.range(upto).next_back()?;
        (logical - start < chunk.length).then_some((logical - start, chunk))
    }
}

/// Whether the arithmetic of a chunk's profile holds.
fn is_sound(chunk: &ChunkItem) -> bool {
    use BlockGroupFlags as F;
    let (profile, stripes) = (chunk.flags.profile(), chunk.stripes.len());
    let parity = parity(chunk);
    let sub = usize::from(chunk.sub_stripes);
    let striped = profile.intersects(F::RAID0 | F::RAID10 | F::RAID5 | F::RAID6);
    let fits = match profile {
        F::RAID10 => sub >= 1 && stripes >= sub && stripes.is_multiple_of(sub),
        F::RAID5 | F::RAID6 => stripes > parity,
        _ => stripes >= 1,
    };
    let bounded = |offset: u64| offset.checked_add(chunk.length).is_some();
    fits && (!striped || chunk.stripe_len > 0)
        && chunk.stripes.iter().all(|stripe| bounded(stripe.offset))
}

/// Parity stripes of each row.
fn parity(chunk: &ChunkItem) -> usize {
    match chunk.flags.profile() {
        BlockGroupFlags::RAID5 => 1,
        BlockGroupFlags::RAID6 => 2,
        _ => 0,
    }
}

/// The number of copies that a chunk has of each byte.
fn copies(chunk: &ChunkItem) -> usize {
    use BlockGroupFlags as F;
    match chunk.flags.profile() {
        F::RAID0 | F::RAID5 | F::RAID6 => 1,
        F::RAID10 => chunk.sub_stripes.into(),
        _ => chunk.stripes.len(),
    }
}

/// The first piece of a copy from `within` bytes into a chunk on, at most `len` bytes.
fn piece(chunk: &ChunkItem, within: u64, len: u64, copy: usize) -> Option<Piece> {
    use BlockGroupFlags as F;
    let len = len.min(chunk.length - within);
    let stripes = chunk.stripes.len() as u64;
    let profile = chunk.flags.profile();
    if !profile.intersects(F::RAID0 | F::RAID10 | F::RAID5 | F::RAID6) {
        let stripe = chunk.stripes.get(copy)?;
        return Some(Piece {
            devid: stripe.devid,
            physical: stripe.offset.checked_add(within)?,
            len,
        });
    }
    let (element, inner) = (within / chunk.stripe_len, within % chunk.stripe_len);
    let (row, stripe) = if profile == F::RAID10 {
        let sub = u64::from(chunk.sub_stripes);
        let groups = stripes / sub;
        (element / groups, element % groups * sub + copy as u64)
    } else {
        let data = stripes - parity(chunk) as u64;
        let (row, column) = (element / data, element % data);
        let rotation = if data < stripes { row } else { 0 };
        (row, (column + rotation) % stripes)
    };
    let stripe = chunk.stripes.get(usize::try_from(stripe).ok()?)?;
    let down = row.checked_mul(chunk.stripe_len)?.checked_add(inner)?;
    Some(Piece {
        devid: stripe.devid,
        physical: stripe.offset.checked_add(down)?,
        len: len.min(chunk.stripe_len - inner),
    })
}

/// Devices and chunks.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) members: Vec<Member>,
    pub(super) chunks: ChunkMap,
}

impl Volume {
    /// The devices.
    pub(super) fn devices(&self) -> Vec<Arc<dyn Device>> {
        let devices = self.members.iter().map(|member| Arc::clone(&member.device));
        devices.collect()
    }

    /// Index of the device with this id. The only device is taken for every id.
    fn member(&self, devid: u64) -> Option<usize> {
        let exact = self.members.iter().position(|m| m.devid == Some(devid));
        if exact.is_some() {
            return exact;
        }
        let unknown = self.members.iter().position(|m| m.devid.is_none());
        unknown.filter(|_| self.members.len() == 1)
    }

    /// Number of copies of the byte at an address; 0 outside of all chunks.
    pub(super) fn copies(&self, logical: u64) -> usize {
        self.chunks
            .find(logical)
            .map_or(0, |(_, chunk)| copies(chunk))
    }

    /// Reads a copy. False if any part of it cannot be read.
    pub(super) fn read(&self, logical: u64, buf: &mut [u8], copy: usize) -> bool {
        let mut done = 0;
        while done < buf.len() {
            let at = logical.checked_add(done as u64);
            let Some((within, chunk)) = at.and_then(|at| self.chunks.find(at)) else {
                return false;
            };
            let rest = (buf.len() - done) as u64;
            let Some(piece) = piece(chunk, within, rest, copy).filter(|piece| piece.len > 0) else {
                return false;
            };
            let end = done + piece.len as usize;
            let Some(member) = self.member(piece.devid) else {
                return false;
            };
            let device = &self.members[member].device;
            if device.read_at(piece.physical, &mut buf[done..end]).is_err() {
                return false;
            }
            done = end;
        }
        true
    }

    /// The areas of chunks with metadata, on the devices that are there.
    pub(super) fn metadata_areas(&self) -> Vec<Area> {
        let content = BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM;
        let mut areas = Vec::new();
        for (_, chunk) in self.chunks.iter() {
            if !chunk.flags.intersects(content) {
                continue;
            }
            let parts = (chunk.stripes.len() - parity(chunk)) / copies(chunk).max(1);
            let len = chunk.length / (parts.max(1) as u64);
            for stripe in &chunk.stripes {
                let Some(device) = self.member(stripe.devid) else {
                    continue;
                };
                let size = self.members[device].device.size();
                let end = stripe.offset.saturating_add(len).min(size);
                if stripe.offset < end {
                    areas.push(Area {
                        device,
                        start: stripe.offset,
                        end,
                    });
                }
            }
        }
        areas.sort_by_key(|area| (area.device, area.start));
        areas.dedup_by(|next, before| {
            let touches = next.device == before.device && next.start <= before.end;
            if touches {
                before.end = before.end.max(next.end);
            }
            touches
        });
        areas
    }
}
