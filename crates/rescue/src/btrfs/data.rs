//! Data of extents, verified with the checksum tree.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use sapwood_btrfs::expand;
use sapwood_btrfs_format::{Checksum, Key, kind, objectid};

use super::items::floor;
use super::leaves::Leaves;
use super::nodes::Nodes;
use super::taken::{Extent, Taken};
use super::volume::Volume;
use crate::Lost;

/// Largest compressed extent, in bytes, compressed or not.
const MOST_COMPRESSED: u64 = 1 << 20;
/// Expanded extents that are kept.
const EXPANDED: usize = 8;

/// A compressed extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Compressed {
    pub(super) algorithm: u8,
    pub(super) extent: Extent,
    /// Bytes on disk.
    pub(super) stored: u64,
    /// Bytes expanded.
    pub(super) len: u64,
}

/// An expanded extent, by its address.
type Expanded = (u64, Arc<Vec<u8>>);

/// Reads data.
pub(super) struct Data {
    volume: Arc<Volume>,
    nodes: Arc<Nodes>,
    checksums: Leaves,
    /// Data with a wrong checksum is an error.
    verify: bool,
    /// Generation of the state.
    state: u64,
    /// Shared by the states of an image, and found when data without a checksum is read.
    taken: Arc<OnceLock<Taken>>,
    expanded: Mutex<Vec<Expanded>>,
}

impl Data {
    pub(super) fn new(
        volume: Arc<Volume>,
        nodes: Arc<Nodes>,
        checksums: Leaves,
        verify: bool,
        (state, taken): (u64, Arc<OnceLock<Taken>>),
    ) -> Self {
        Self {
            volume,
            nodes,
            checksums,
            verify,
            state,
            taken,
            expanded: Mutex::default(),
        }
    }

    /// Fills `buf` from a logical address of an extent. `sums`: the data has checksums, as far as
    /// they are known.
    pub(super) fn read(
        &self,
        extent: Extent,
        logical: u64,
        buf: &mut [u8],
        sums: bool,
    ) -> Result<(), Lost> {
        let sector = u64::from(self.nodes.identity.sectorsize);
        let before = logical % sector;
        let start = logical - before;
        let lost = Lost::Data { logical };
        let len = (before + buf.len() as u64).next_multiple_of(sector);
        if start.checked_add(len).is_none() {
            return Err(lost);
        }
        let mut bytes = vec![0; usize::try_from(len).map_err(|_| lost.clone())?];
        let expected = if sums && self.verify {
            self.sums(start, len / sector)
        } else {
            Vec::new()
        };
        let unverified = expected.is_empty() || expected.contains(&None);
        if self.verify && unverified && self.is_taken(extent, logical, buf.len() as u64) {
            return Err(Lost::Taken { logical });
        }
        let kind = self.nodes.identity.checksum;
        let mut open: Vec<usize> = (0..(len / sector) as usize).collect();
        let mut copy_bytes = vec![0; bytes.len()];
        let (copies, guesses) = self.volume.copies(start);
        for copy in copies {
            let whole = self.volume.read(start, &mut copy_bytes, copy);
            open.retain(|number| {
                let at = number * sector as usize..(number + 1) * sector as usize;
                let part = &mut copy_bytes[at.clone()];
                let logical = start + at.start as u64;
                if !whole && !self.volume.read(logical, part, copy) {
                    return true;
                }
                let wanted = expected.get(*number).copied().flatten();
                let good = match wanted {
                    Some(wanted) => kind.compute(part) == wanted,
                    None => copy < guesses,
                };
                if good {
                    bytes[at.clone()].copy_from_slice(part);
                }
                !good
            });
            if open.is_empty() {
                break;
            }
        }
        if !open.is_empty() {
            return Err(lost);
        }
        let before = before as usize;
        buf.copy_from_slice(&bytes[before..before + buf.len()]);
        Ok(())
    }

    /// Whether another file had a part of an extent after this state.
    fn is_taken(&self, extent: Extent, logical: u64, len: u64) -> bool {
        if self.state >= self.nodes.index.newest() {
            return false;
        }
        let taken = self.taken.get_or_init(|| Taken::find(&self.nodes));
        taken.is_taken(extent, self.state, logical, len)
    }

    /// The known checksums of sectors.
    fn sums(&self, start: u64, count: u64) -> Vec<Option<Checksum>> {
        let kind = self.nodes.identity.checksum;
        let sector = u64::from(self.nodes.identity.sectorsize);
        let key = |logical| Key::new(objectid::EXTENT_CSUM, kind::EXTENT_CSUM, logical);
        let mut sums = Vec::new();
        let mut current: Option<(Key, Vec<u8>)> = None;
        for number in 0..count {
            let logical = start + number * sector;
            let find = |item: &Option<(Key, Vec<u8>)>| {
                let (first, data) = item.as_ref()?;
                let at = logical.checked_sub(first.offset)? / sector;
                let at = usize::try_from(at).ok()?.checked_mul(kind.size())?;
                kind.read(data.get(at..)?)
            };
            let mut sum = find(&current);
            if sum.is_none() {
                current = floor(&self.nodes, &self.checksums, key(logical), key(0));
                sum = find(&current);
            }
            sums.push(sum);
        }
        sums
    }

    /// The whole content of a compressed extent.
    pub(super) fn expand(&self, extent: &Compressed, sums: bool) -> Result<Arc<Vec<u8>>, Lost> {
        let logical = extent.extent.0;
        let known = |(at, bytes): &&Expanded| *at == logical && bytes.len() as u64 == extent.len;
        if let Some((_, bytes)) = self.expanded.lock().iter().find(known) {
            return Ok(Arc::clone(bytes));
        }
        let broken = Lost::Compressed { logical };
        if extent.stored.max(extent.len) > MOST_COMPRESSED {
            return Err(broken);
        }
        let mut stored = vec![0; extent.stored as usize];
        self.read(extent.extent, logical, &mut stored, sums)?;
        let bytes = self.inline(extent.algorithm, &stored, extent.len);
        let bytes = Arc::new(bytes.ok_or(broken)?);
        let mut expanded = self.expanded.lock();
        if expanded.len() >= EXPANDED {
            expanded.remove(0);
        }
        expanded.push((logical, Arc::clone(&bytes)));
        Ok(bytes)
    }

    /// Expands data; `None` if it is damaged.
    pub(super) fn inline(&self, algorithm: u8, stored: &[u8], len: u64) -> Option<Vec<u8>> {
        if len > MOST_COMPRESSED {
            return None;
        }
        let sector = self.nodes.identity.sectorsize as usize;
        expand(algorithm, stored, len as usize, sector)
    }
}
