//! The reference counts of the clusters of a file, in memory, and the choice of free clusters.

use std::collections::{BTreeMap, BTreeSet};

use super::header::{COUNTS_AT, Header, be64, read_cluster, set_field};
use super::tables::MEMORY;
use crate::Qcow2Error;
use crate::{Device, Error, Result};

/// Largest offset of a cluster.
const MOST_OFFSET: u64 = (1 << 56) - 1;

/// The reference counts of a file; see the module.
#[derive(Debug)]
pub(super) struct Counts {
    cluster_bits: u32,
    order: u32,
    /// Place of the table in the file.
    offset: u64,
    /// Places of the blocks of counts; 0: the block has only zeros.
    table: Vec<u64>,
    blocks: BTreeMap<usize, Vec<u8>>,
    dirty: BTreeSet<usize>,
    /// Blocks that the table on the device does not lead to.
    new: BTreeSet<usize>,
    /// Start of the search for a free cluster.
    next: u64,
}

impl Counts {
    pub(super) fn read(device: &dyn Device, header: &Header) -> Result<Self> {
        let mut bytes = vec![0; (header.counts_clusters << header.cluster_bits) as usize];
        device.read_at(header.counts_offset, &mut bytes)?;
        let entries = bytes.chunks_exact(8).map(|entry| be64(entry, 0) & !511);
        Ok(Self {
            cluster_bits: header.cluster_bits,
            order: header.count_order,
            offset: header.counts_offset,
            table: entries.collect(),
            blocks: BTreeMap::new(),
            dirty: BTreeSet::new(),
            new: BTreeSet::new(),
            next: 0,
        })
    }

    /// Clusters that a block counts.
    fn per_block(&self) -> u64 {
        (8 << self.cluster_bits) >> self.order
    }

    /// Blocks that are kept in memory.
    fn most_cached(&self) -> usize {
        (MEMORY >> self.cluster_bits).max(16)
    }

    /// Whether the changed blocks should be written.
    pub(super) fn is_full(&self) -> bool {
        self.dirty.len() >= self.most_cached() / 2
    }

    /// Index of the block of a cluster, and of the count in it.
    fn place(&self, cluster: u64) -> (usize, usize) {
        let index = usize::try_from(cluster / self.per_block()).unwrap_or(usize::MAX);
        (index, (cluster % self.per_block()) as usize)
    }

    /// Reads a block of counts; false if there is none.
    fn load(&mut self, device: &dyn Device, index: usize) -> Result<bool> {
        if self.blocks.contains_key(&index) {
            return Ok(true);
        }
        let offset = self.table.get(index).copied().unwrap_or(0);
        if offset == 0 {
            return Ok(false);
        }
        if self.blocks.len() >= self.most_cached() {
            let clean = self.blocks.keys().find(|index| !self.dirty.contains(index));
            if let Some(index) = clean.copied() {
                self.blocks.remove(&index);
            }
        }
        let what = "a block of reference counts";
        let block = read_cluster(device, what, offset, 1 << self.cluster_bits)?;
        self.blocks.insert(index, block);
        Ok(true)
    }

    /// The count of a cluster.
    pub(super) fn get(&mut self, device: &dyn Device, cluster: u64) -> Result<u64> {
        let (index, at) = self.place(cluster);
        if !self.load(device, index)? {
            return Ok(0);
        }
        let block = self.blocks.get(&index).map_or(&[][..], Vec::as_slice);
        Ok(count(block, self.order, at))
    }

    /// Sets the count of a cluster, in memory.
    pub(super) fn set(&mut self, device: &dyn Device, cluster: u64, value: u64) -> Result<()> {
        let (index, at) = self.place(cluster);
        if !self.load(device, index)? {
            self.add_block(device, index)?;
        }
        let most = u64::MAX >> (64 - (1_u32 << self.order));
        if value > most {
            let count = most;
            return Err(Error::qcow2(
                device.name(),
                Qcow2Error::Count { cluster, count },
            ));
        }
        if let Some(block) = self.blocks.get_mut(&index) {
            set_count(block, self.order, at, value);
            self.dirty.insert(index);
        }
        Ok(())
    }

    /// Takes a free cluster. Returns its offset.
    pub(super) fn take(&mut self, device: &dyn Device) -> Result<u64> {
        let mut cluster = self.free_from(device, self.next)?;
        let (index, _) = self.place(cluster);
        if !self.load(device, index)? {
            self.add_block(device, index)?;
            // The block, or a larger table, may have taken the cluster.
            cluster = self.free_from(device, cluster)?;
        }
        let offset = self.offset_of(device, cluster)?;
        self.set(device, cluster, 1)?;
        self.next = cluster + 1;
        Ok(offset)
    }

    /// The first free cluster from one on. The search ends soon after the end of the file: a file
    /// that counts many clusters beyond it is damaged.
    fn free_from(&mut self, device: &dyn Device, from: u64) -> Result<u64> {
        let end = device.size() >> self.cluster_bits;
        let most = end.max(from).saturating_add(self.per_block() * 2);
        for cluster in from..most {
            if self.get(device, cluster)? == 0 {
                return Ok(cluster);
            }
        }
        let (cluster, count) = (most, self.get(device, most)?);
        let why = Qcow2Error::Count { cluster, count };
        Err(Error::qcow2(device.name(), why))
    }

    fn offset_of(&self, device: &dyn Device, cluster: u64) -> Result<u64> {
        let most = MOST_OFFSET >> self.cluster_bits;
        if cluster < most {
            Ok(cluster << self.cluster_bits)
        } else {
            Err(Error::qcow2(device.name(), Qcow2Error::Full))
        }
    }

    /// Makes a cluster free that nothing on the device leads to. True if it is not in use any more.
    pub(super) fn release(&mut self, device: &dyn Device, offset: u64) -> Result<bool> {
        let cluster = offset >> self.cluster_bits;
        let count = self.get(device, cluster)?;
        let Some(less) = count.checked_sub(1) else {
            return Err(Error::qcow2(
                device.name(),
                Qcow2Error::Count { cluster, count },
            ));
        };
        self.set(device, cluster, less)?;
        if less == 0 {
            self.next = self.next.min(cluster);
        }
        Ok(less == 0)
    }

    /// Adds a block, which counts itself: all clusters that it counts are free.
    fn add_block(&mut self, device: &dyn Device, index: usize) -> Result<()> {
        let first = index as u64 * self.per_block();
        if index >= self.table.len() {
            self.grow(device, index, first)?;
        }
        let offset = self.offset_of(device, first)?;
        device.grow(offset + (1 << self.cluster_bits))?;
        let taken = self
            .blocks
            .get(&index)
            .map_or(0, |block| count(block, self.order, 0));
        if taken == 0 {
            let mut block = vec![0; 1 << self.cluster_bits];
            set_count(&mut block, self.order, 0, 1);
            self.blocks.insert(index, block);
        }
        if let Some(entry) = self.table.get_mut(index) {
            *entry = offset;
        }
        self.dirty.insert(index);
        self.new.insert(index);
        Ok(())
    }

    /// Moves the table to a larger place, in clusters that the block `index`, the first beyond it,
    /// is to count. The header leads to it at once; the old place is lost to the file.
    fn grow(&mut self, device: &dyn Device, index: usize, first: u64) -> Result<()> {
        let size = 1_u64 << self.cluster_bits;
        let entries = (index + 1).max(self.table.len() * 2) as u64;
        let clusters = (entries * 8).div_ceil(size);
        if clusters + 1 > self.per_block() {
            return Err(Error::qcow2(device.name(), Qcow2Error::Full));
        }
        let old = self.table.len() as u64 * 8 / size;
        let offset = self.offset_of(device, first + 1)?;
        device.grow(offset + clusters * size)?;
        let mut block = vec![0; size as usize];
        for at in 0..=clusters {
            set_count(&mut block, self.order, at as usize, 1);
        }
        device.write_at(self.offset_of(device, first)?, &block)?;
        self.blocks.insert(index, block);
        // Blocks that the old table does not lead to are written before the new one does.
        self.write_blocks(device)?;
        device.flush()?;
        self.table.resize((clusters * size / 8) as usize, 0);
        let block_at = self.offset_of(device, first)?;
        if let Some(entry) = self.table.get_mut(index) {
            *entry = block_at;
        }
        let bytes: Vec<u8> = self
            .table
            .iter()
            .flat_map(|entry| entry.to_be_bytes())
            .collect();
        device.write_at(offset, &bytes)?;
        device.flush()?;
        let mut place = offset.to_be_bytes().to_vec();
        place.extend((clusters as u32).to_be_bytes());
        set_field(device, COUNTS_AT, &place)?;
        let gone = std::mem::replace(&mut self.offset, offset);
        self.new.clear();
        for cluster in 0..old {
            self.release(device, gone + cluster * size)?;
        }
        Ok(())
    }

    /// Whether something is to be written.
    pub(super) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Whether the table has to lead to new blocks.
    pub(super) fn has_new(&self) -> bool {
        !self.new.is_empty()
    }

    /// Writes the blocks that changed.
    pub(super) fn write_blocks(&mut self, device: &dyn Device) -> Result<()> {
        for index in &self.dirty {
            let offset = self.table.get(*index).copied().unwrap_or(0);
            if let Some(block) = self.blocks.get(index).filter(|_| offset != 0) {
                device.write_at(offset, block)?;
            }
        }
        self.dirty.clear();
        Ok(())
    }

    /// Makes the table lead to new blocks.
    pub(super) fn write_table(&mut self, device: &dyn Device) -> Result<()> {
        let sectors: BTreeSet<usize> = self.new.iter().map(|index| index / 64).collect();
        for sector in sectors {
            let entries = self.table.iter().skip(sector * 64).take(64);
            let bytes: Vec<u8> = entries.flat_map(|entry| entry.to_be_bytes()).collect();
            device.write_at(self.offset + sector as u64 * 512, &bytes)?;
        }
        self.new.clear();
        Ok(())
    }

    /// Clusters that the table and the blocks occupy.
    pub(super) fn own_clusters(&self) -> Vec<u64> {
        let first = self.offset >> self.cluster_bits;
        let table = (self.table.len() as u64 * 8) >> self.cluster_bits;
        let blocks = self.table.iter().filter(|offset| **offset != 0);
        (first..first + table)
            .chain(blocks.map(|offset| offset >> self.cluster_bits))
            .collect()
    }
}

/// A count in a block.
fn count(block: &[u8], order: u32, at: usize) -> u64 {
    let byte = |at: usize| u64::from(block.get(at).copied().unwrap_or(0));
    if order < 3 {
        let per_byte = 8 >> order;
        let bits = 1_u32 << order;
        let shift = (at % per_byte) as u32 * bits;
        return (byte(at / per_byte) >> shift) & ((1 << bits) - 1);
    }
    let bytes = 1_usize << (order - 3);
    (0..bytes).fold(0, |value, n| value << 8 | byte(at * bytes + n))
}

fn set_count(block: &mut [u8], order: u32, at: usize, value: u64) {
    if order < 3 {
        let per_byte = 8 >> order;
        let bits = 1_u32 << order;
        let shift = (at % per_byte) as u32 * bits;
        let mask = ((1_u16 << bits) - 1) as u8;
        if let Some(byte) = block.get_mut(at / per_byte) {
            *byte = *byte & !(mask << shift) | (value as u8 & mask) << shift;
        }
        return;
    }
    let bytes = 1_usize << (order - 3);
    let all = value.to_be_bytes();
    if let Some(place) = block.get_mut(at * bytes..(at + 1) * bytes) {
        place.copy_from_slice(&all[8 - bytes..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_widths_come_back() {
        for order in 0..=6 {
            let mut block = vec![0; 512];
            let most = u64::MAX >> (64 - (1_u32 << order));
            for at in [0, 1, 5, 7, 8, 63] {
                set_count(&mut block, order, at, most);
                assert_eq!(count(&block, order, at), most, "{order} {at}");
                set_count(&mut block, order, at, 1);
                assert_eq!(count(&block, order, at), 1, "{order} {at}");
            }
            assert_eq!(count(&block, order, 2), 0);
        }
    }
}
