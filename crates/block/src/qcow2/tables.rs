//! The tables of a file in memory: where each cluster of the disk is.

use std::collections::{BTreeMap, BTreeSet};

use super::counts::Counts;
use super::header::{Header, be64, read_cluster};
use crate::{Device, Result};

/// The cluster belongs to nothing else: it is written in place.
const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
/// The cluster reads as zeros (version 3).
const ZERO: u64 = 1;
/// The bits of an entry that are an offset.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// Bytes of L2 tables in memory, about; and of blocks of counts.
pub(super) const MEMORY: usize = 32 << 20;
/// L2 tables in memory, at most and at least.
const MOST_CACHED: usize = 8192;
const LEAST_CACHED: usize = 16;

/// Place of a cluster of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mapping {
    /// Nowhere: the backing file has it, or it is zero.
    Nowhere,
    /// It is zero.
    Zero,
    /// At this offset.
    At {
        /// Offset in the file.
        offset: u64,
        /// Nothing else uses it.
        own: bool,
    },
    /// Compressed, in these bytes.
    Compressed {
        /// Offset in the file.
        offset: u64,
        /// Bytes, at most.
        len: u64,
    },
}

#[derive(Debug)]
struct Table {
    entries: Vec<u64>,
    changed: bool,
}

/// The tables of a file in memory; see the module.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) header: Header,
    l1: Vec<u64>,
    /// Sectors of the L1 table that changed.
    l1_changed: BTreeSet<usize>,
    /// L2 tables by their index in the L1 table.
    l2: BTreeMap<u64, Table>,
    /// Number of changed L2 tables.
    changed: usize,
    pub(super) counts: Counts,
    /// Clusters to which the file has no reference after the next flush.
    forgotten: Vec<u64>,
}

impl Tables {
    pub(super) fn read(device: &dyn Device, header: Header) -> Result<Self> {
        let mut bytes = vec![0; header.l1_entries * 8];
        device.read_at(header.l1_offset, &mut bytes)?;
        Ok(Self {
            l1: bytes.chunks_exact(8).map(|entry| be64(entry, 0)).collect(),
            l1_changed: BTreeSet::new(),
            l2: BTreeMap::new(),
            changed: 0,
            counts: Counts::read(device, &header)?,
            forgotten: Vec::new(),
            header,
        })
    }

    fn split(&self, cluster: u64) -> (u64, usize) {
        let entries = self.header.l2_entries();
        (cluster / entries, (cluster % entries) as usize)
    }

    /// Place of a cluster; `None` if its L2 table has to be [loaded](Self::load) first.
    pub(super) fn find(&self, cluster: u64) -> Option<Mapping> {
        let (index, at) = self.split(cluster);
        let l1 = self.l1.get(index as usize).copied().unwrap_or(0);
        if l1 & OFFSET == 0 && !self.l2.contains_key(&index) {
            return Some(Mapping::Nowhere);
        }
        let entry = self.l2.get(&index)?.entries.get(at).copied().unwrap_or(0);
        Some(self.mapping(entry))
    }

    fn mapping(&self, entry: u64) -> Mapping {
        if entry & COMPRESSED != 0 {
            let bits = 62 - (self.header.cluster_bits - 8);
            let offset = entry & ((1 << bits) - 1);
            let sectors = (entry & (COMPRESSED - 1)) >> bits;
            let len = (sectors + 1) * 512 - offset % 512;
            return Mapping::Compressed { offset, len };
        }
        if self.header.version >= 3 && entry & ZERO != 0 {
            return Mapping::Zero;
        }
        match entry & OFFSET {
            0 => Mapping::Nowhere,
            offset => Mapping::At {
                offset,
                own: entry & COPIED != 0,
            },
        }
    }

    /// Reads the L2 table of a cluster into memory.
    pub(super) fn load(&mut self, device: &dyn Device, cluster: u64) -> Result<()> {
        let (index, _) = self.split(cluster);
        let offset = self.l1.get(index as usize).copied().unwrap_or(0) & OFFSET;
        if offset == 0 || self.l2.contains_key(&index) {
            return Ok(());
        }
        if self.l2.len() >= self.most_cached() {
            let clean = self.l2.iter().find(|(_, table)| !table.changed);
            if let Some(index) = clean.map(|(index, _)| *index) {
                self.l2.remove(&index);
            }
        }
        let entries = self.read_table(device, offset)?;
        let table = Table {
            entries,
            changed: false,
        };
        self.l2.insert(index, table);
        Ok(())
    }

    /// The entries of the L2 table at an offset.
    pub(super) fn read_table(&self, device: &dyn Device, offset: u64) -> Result<Vec<u64>> {
        let bytes = read_cluster(device, "an L2 table", offset, self.header.cluster())?;
        Ok(bytes.chunks_exact(8).map(|entry| be64(entry, 0)).collect())
    }

    /// Makes the disk's cluster lead to `entry`, in memory. The next flush releases the old
    /// cluster.
    fn set(&mut self, device: &dyn Device, cluster: u64, entry: u64) -> Result<()> {
        self.own_table(device, cluster)?;
        let (index, at) = self.split(cluster);
        self.mark(index);
        let table = self.l2.get_mut(&index);
        let Some(place) = table.and_then(|table| table.entries.get_mut(at)) else {
            return Ok(());
        };
        let old = std::mem::replace(place, entry);
        self.forget(old);
        Ok(())
    }

    /// Records that an L2 table changed.
    fn mark(&mut self, index: u64) {
        if let Some(table) = self.l2.get_mut(&index).filter(|table| !table.changed) {
            table.changed = true;
            self.changed += 1;
        }
    }

    /// L2 tables that are kept in memory.
    fn most_cached(&self) -> usize {
        (MEMORY >> self.header.cluster_bits).clamp(LEAST_CACHED, MOST_CACHED)
    }

    /// Gives the L1 entry of a cluster an L2 table of its own.
    fn own_table(&mut self, device: &dyn Device, cluster: u64) -> Result<()> {
        self.load(device, cluster)?;
        let (index, _) = self.split(cluster);
        let l1 = self.l1.get(index as usize).copied().unwrap_or(0);
        if l1 & COPIED != 0 {
            return Ok(());
        }
        let offset = self.take(device)?;
        let empty = || Table {
            entries: vec![0; self.header.l2_entries() as usize],
            changed: false,
        };
        self.l2.entry(index).or_insert_with(empty);
        self.mark(index);
        if let Some(entry) = self.l1.get_mut(index as usize) {
            *entry = offset | COPIED;
        }
        self.l1_changed.insert(index as usize / 64);
        if l1 & OFFSET != 0 {
            self.forgotten.push(l1 & OFFSET);
        }
        Ok(())
    }

    fn forget(&mut self, entry: u64) {
        let size = self.header.cluster();
        let (offset, len) = self.used_by(entry);
        let clusters = offset / size..(offset + len).div_ceil(size);
        self.forgotten
            .extend(clusters.map(|cluster| cluster * size));
    }

    /// The bytes of the file that an entry uses: offset and length. A compressed cluster may end
    /// earlier.
    pub(super) fn used_by(&self, entry: u64) -> (u64, u64) {
        match self.mapping(entry) {
            Mapping::Compressed { offset, len } => (offset, len),
            // A cluster that reads as zeros may have a place all the same.
            _ => match entry & OFFSET {
                0 => (0, 0),
                offset => (offset, self.header.cluster()),
            },
        }
    }

    /// Takes a free cluster of the file, which is made long enough.
    pub(super) fn take(&mut self, device: &dyn Device) -> Result<u64> {
        let offset = self.counts.take(device)?;
        device.grow(offset + self.header.cluster())?;
        Ok(offset)
    }

    /// Makes a cluster lead to a new place.
    pub(super) fn put(&mut self, device: &dyn Device, cluster: u64, offset: u64) -> Result<()> {
        self.set(device, cluster, offset | COPIED)
    }

    /// Makes a cluster lead nowhere, or read as zeros if a backing file would show.
    pub(super) fn drop_cluster(
        &mut self,
        device: &dyn Device,
        cluster: u64,
        backed: bool,
    ) -> Result<()> {
        match backed {
            false => self.set(device, cluster, 0),
            true if self.header.version >= 3 => self.set(device, cluster, ZERO),
            true => Ok(()),
        }
    }

    /// Whether memory differs from the file.
    pub(super) fn is_changed(&self) -> bool {
        self.counts.is_dirty() || !self.forgotten.is_empty() || self.changed > 0
    }

    /// Whether a cluster's L2 table on the device is as in memory.
    pub(super) fn is_stored(&self, cluster: u64) -> bool {
        let (index, _) = self.split(cluster);
        self.l2.get(&index).is_some_and(|table| !table.changed)
    }

    /// Whether a writer should flush.
    pub(super) fn is_full(&self) -> bool {
        self.changed >= self.most_cached() / 2 || self.counts.is_full()
    }

    /// The first cluster of the next L2 table, if none of this one's clusters is in the file.
    pub(super) fn next_table(&self, cluster: u64) -> Option<u64> {
        let (index, _) = self.split(cluster);
        let l1 = self.l1.get(index as usize).copied().unwrap_or(0);
        let nothing = l1 & OFFSET == 0 && !self.l2.contains_key(&index);
        nothing.then(|| (index + 1).saturating_mul(self.header.l2_entries()))
    }

    /// Writes all changed tables durably, in the order that the module describes.
    pub(super) fn flush(&mut self, device: &dyn Device) -> Result<()> {
        self.counts.write_blocks(device)?;
        device.flush()?;
        if self.counts.has_new() {
            self.counts.write_table(device)?;
            device.flush()?;
        }
        for (index, table) in self.l2.iter().filter(|(_, table)| table.changed) {
            let offset = self.l1.get(*index as usize).copied().unwrap_or(0) & OFFSET;
            let bytes: Vec<u8> = table
                .entries
                .iter()
                .flat_map(|entry| entry.to_be_bytes())
                .collect();
            device.write_at(offset, &bytes)?;
        }
        if !self.l1_changed.is_empty() {
            device.flush()?;
            for sector in &self.l1_changed {
                let entries = self.l1.iter().skip(sector * 64).take(64);
                let bytes: Vec<u8> = entries.flat_map(|entry| entry.to_be_bytes()).collect();
                let at = self.header.l1_offset + *sector as u64 * 512;
                device.write_at(at, &bytes)?;
            }
        }
        device.flush()?;
        self.l1_changed.clear();
        for table in self.l2.values_mut() {
            table.changed = false;
        }
        self.changed = 0;
        self.release(device)
    }

    /// Frees clusters that nothing on the device leads to any more.
    fn release(&mut self, device: &dyn Device) -> Result<()> {
        for offset in std::mem::take(&mut self.forgotten) {
            if self.counts.release(device, offset)? {
                let end = device
                    .size()
                    .min(offset.saturating_add(self.header.cluster()));
                device.discard(offset, end.saturating_sub(offset))?;
            }
            if self.counts.is_full() {
                // These counts only become smaller, so their order does not matter.
                self.counts.write_blocks(device)?;
            }
        }
        self.counts.write_blocks(device)
    }

    /// The L1 table.
    pub(super) fn l1(&self) -> impl Iterator<Item = u64> {
        self.l1.iter().map(|entry| entry & OFFSET)
    }
}
