//! Counts the references of a file that lazy reference counts left dirty.

use super::header::{DIRTY, INCOMPATIBLE_AT, set_field};
use super::tables::Tables;
use crate::Qcow2Error;
use crate::{Device, Error, Result};

/// Clusters of a file whose counts are computed here, at most: it takes two bytes for each.
const MOST_CLUSTERS: u64 = 1 << 26;

/// Raises the count of every cluster to the number of its references in the tables, durably, and
/// clears the mark.
pub(super) fn counts(device: &dyn Device, tables: &mut Tables) -> Result<()> {
    let header = tables.header.clone();
    let size = header.cluster();
    let refused = |what: &str| {
        let what = format!("reference counts to be repaired {what}: qemu-img check -r all");
        Error::qcow2(device.name(), Qcow2Error::Feature(what))
    };
    if header.snapshots > 0 {
        return Err(refused("beside snapshots"));
    }
    let clusters = device.size().div_ceil(size);
    if clusters > MOST_CLUSTERS {
        return Err(refused("in a file of this size"));
    }
    let mut used = Used {
        device,
        size,
        counts: vec![0; clusters as usize],
    };
    used.add("the header", 0, size)?;
    let l1_bytes = header.l1_entries as u64 * 8;
    used.add("the L1 table", header.l1_offset, l1_bytes)?;
    let tops: Vec<u64> = tables.l1().filter(|offset| *offset != 0).collect();
    for offset in tops {
        // Without snapshots, only one entry leads to an L2 table.
        if used.add("an L2 table", offset, size)? > 1 {
            let cluster = offset / size;
            let why = Qcow2Error::Count { cluster, count: 1 };
            return Err(Error::qcow2(device.name(), why));
        }
        for entry in tables.read_table(device, offset)? {
            let (offset, len) = tables.used_by(entry);
            if len > 0 {
                let left = device.size().saturating_sub(offset).max(1);
                used.add("a cluster", offset, len.min(left))?;
            }
        }
    }
    for cluster in tables.counts.own_clusters() {
        used.add("a table of counts", cluster.saturating_mul(size), size)?;
    }
    for (cluster, count) in (0..).zip(used.counts) {
        if count > 0 && tables.counts.get(device, cluster)? < count.into() {
            tables.counts.set(device, cluster, count.into())?;
        }
        if tables.counts.is_full() {
            // Counts that are too large are leaks at worst.
            tables.flush(device)?;
        }
    }
    tables.flush(device)?;
    let cleared = header.incompatible & !DIRTY;
    set_field(device, INCOMPATIBLE_AT, &cleared.to_be_bytes())
}

/// Number of uses of each cluster of the file.
struct Used<'d> {
    device: &'d dyn Device,
    size: u64,
    counts: Vec<u16>,
}

impl Used<'_> {
    /// Adds a use of the clusters of a range. Returns the count of the first.
    fn add(&mut self, what: &'static str, offset: u64, len: u64) -> Result<u16> {
        let outside = || Error::qcow2(self.device.name(), Qcow2Error::Place { what, offset });
        let end = offset.checked_add(len).ok_or_else(outside)?;
        let (first, end) = (offset / self.size, end.div_ceil(self.size));
        let range = first as usize..end as usize;
        let counts = self.counts.get_mut(range).ok_or_else(outside)?;
        for count in counts.iter_mut() {
            *count = count.saturating_add(1);
        }
        Ok(counts.first().copied().unwrap_or(0))
    }
}
