//! Reads logical addresses: the chunk map and the copies of data.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs_format::{BlockGroupFlags, ChunkItem};

use super::scan::{Area, Identity, block};

/// A device of the file system.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) device: Arc<dyn Device>,
    /// Its id; `None` if it is not known: no superblock of it is left.
    pub(super) devid: Option<u64>,
    /// Generation of its newest superblock.
    pub(super) generation: u64,
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

    /// Indexes of the devices whose id is not known, among several.
    fn unknown(&self) -> Vec<usize> {
        if self.members.len() < 2 {
            return Vec::new();
        }
        let all = self.members.iter().enumerate();
        let unknown = all.filter(|(_, member)| member.devid.is_none());
        unknown.map(|(index, _)| index).collect()
    }

    /// Finds the ids of devices without a superblock: the one id in whose stripes most of the
    /// device's tree blocks are. `blocks`: device, logical address and byte offset of tree blocks.
    pub(super) fn identify(&mut self, blocks: impl Iterator<Item = (usize, u64, u64)>) {
        let unknown = self.unknown();
        if unknown.is_empty() {
            return;
        }
        let mut votes: BTreeMap<(usize, u64), usize> = BTreeMap::new();
        for (device, logical, physical) in blocks.filter(|(device, ..)| unknown.contains(device)) {
            let Some((within, chunk)) = self.chunks.find(logical) else {
                continue;
            };
            let pieces = (0..copies(chunk)).filter_map(|copy| piece(chunk, within, 1, copy));
            for piece in pieces.filter(|piece| piece.physical == physical) {
                *votes.entry((device, piece.devid)).or_default() += 1;
            }
        }
        for device in unknown {
            let of_device = votes.range((device, 0)..=(device, u64::MAX));
            let free = of_device.filter(|((_, devid), _)| self.member(*devid).is_none());
            let mut best: Vec<(usize, u64)> = free.map(|((_, id), count)| (*count, *id)).collect();
            best.sort_unstable_by(|one, other| other.cmp(one));
            // Copies at the same offset of all devices show nothing.
            match best[..] {
                [(most, devid), (next, _), ..] if most > next => {
                    self.members[device].devid = Some(devid);
                }
                [(_, devid)] => self.members[device].devid = Some(devid),
                _ => {}
            }
        }
    }

    /// The only device whose id is not known, and the only id of which no device is known.
    pub(super) fn last(&self) -> Option<(usize, u64)> {
        let [device] = self.unknown()[..] else {
            return None;
        };
        let stripes = self.chunks.iter().flat_map(|(_, chunk)| &chunk.stripes);
        let mut left: BTreeSet<u64> = stripes.map(|stripe| stripe.devid).collect();
        left.retain(|devid| self.member(*devid).is_none());
        let devid = left.first().filter(|_| left.len() == 1)?;
        Some((device, *devid))
    }

    /// Byte offsets of the copies of the byte at an address that are on a device.
    pub(super) fn on_device(&self, logical: u64, devid: u64) -> Vec<u64> {
        let Some((within, chunk)) = self.chunks.find(logical) else {
            return Vec::new();
        };
        let pieces = (0..copies(chunk)).filter_map(|copy| piece(chunk, within, 1, copy));
        let pieces = pieces.filter(|piece| piece.devid == devid);
        pieces.map(|piece| piece.physical).collect()
    }

    /// Numbers of the copies of the byte at an address, in the order in which they are read; none
    /// outside of all chunks. Copies on devices that missed commits come last. Also returns the
    /// number of copies that the chunk has. Copies with higher numbers are guesses, which need a
    /// checksum: each takes a device whose id is not known for the device that is missing.
    pub(super) fn copies(&self, logical: u64) -> (Vec<usize>, usize) {
        let Some((within, chunk)) = self.chunks.find(logical) else {
            return (Vec::new(), 0);
        };
        let sure = copies(chunk);
        let newest = self.members.iter().map(|member| member.generation).max();
        let is_stale = |copy: &usize| {
            let piece = piece(chunk, within, 1, *copy);
            let member = piece.and_then(|piece| self.member(piece.devid));
            let member = member.and_then(|member| self.members.get(member));
            member.is_some_and(|member| Some(member.generation) < newest)
        };
        let mut order: Vec<usize> = (0..sure).collect();
        order.sort_by_key(is_stale);
        let missing = chunk.stripes.iter().any(|s| self.member(s.devid).is_none());
        if missing {
            order.extend(sure..sure * (1 + self.unknown().len()));
        }
        (order, sure)
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
            let sure = copies(chunk).max(1);
            let piece = piece(chunk, within, rest, copy % sure).filter(|piece| piece.len > 0);
            let Some(piece) = piece else {
                return false;
            };
            let end = done + piece.len as usize;
            let guess = (copy / sure).checked_sub(1);
            let guess = guess.and_then(|number| self.unknown().get(number).copied());
            let Some(member) = self.member(piece.devid).or(guess) else {
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

    /// The bytes of the tree block at an address with a generation, from the first valid copy.
    pub(super) fn tree_block(
        &self,
        logical: u64,
        generation: u64,
        identity: &Identity,
    ) -> Option<Vec<u8>> {
        let mut bytes = vec![0; identity.nodesize as usize];
        let (copies, _) = self.copies(logical);
        let good = copies.into_iter().any(|copy| {
            self.read(logical, &mut bytes, copy)
                && block(&bytes, identity).is_some_and(|block| {
                    block.bytenr() == logical && block.generation() == generation
                })
        });
        good.then_some(bytes)
    }

    /// All bytes of the devices whose id is not known, among several.
    pub(super) fn unknown_areas(&self) -> Vec<Area> {
        let area = |device: usize| Area {
            device,
            start: 0,
            end: self.members[device].device.size(),
        };
        self.unknown().into_iter().map(area).collect()
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
