//! Counts the references of a file that lazy reference counts left dirty.

use std::collections::BTreeMap;

use super::header::{DIRTY, INCOMPATIBLE_AT, be64};
use super::tables::{Mapping, Tables};
use crate::Qcow2Error;
use crate::{Device, Error, Result};

/// The bits of an entry that are an offset.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;

/// Gives every cluster at least the count that the tables say, durably, and clears the mark.
pub(super) fn counts(device: &dyn Device, tables: &mut Tables) -> Result<()> {
    let header = tables.header.clone();
    let size = header.cluster();
    let mut used: BTreeMap<u64, u64> = BTreeMap::new();
    let mut add = |offset: u64, len: u64| {
        for cluster in offset / size..offset.saturating_add(len).div_ceil(size) {
            *used.entry(cluster).or_default() += 1;
        }
    };
    add(0, size);
    add(header.l1_offset, header.l1_entries as u64 * 8);
    let mut tops: Vec<u64> = tables.l1().collect();
    if header.snapshots > 0 {
        let what = "reference counts to be repaired beside snapshots: qemu-img check -r all";
        let why = Qcow2Error::Feature(what.to_owned());
        return Err(Error::qcow2(device.name(), why));
    }
    tops.retain(|offset| *offset != 0);
    for offset in tops {
        add(offset, size);
        for entry in tables.read_table(device, offset)? {
            match tables.mapping(entry) {
                Mapping::Nowhere => {}
                Mapping::Zero | Mapping::At { .. } if entry & OFFSET == 0 => {}
                Mapping::Zero | Mapping::At { .. } => add(entry & OFFSET, size),
                Mapping::Compressed { offset, len } => add(offset, len),
            }
        }
    }
    for cluster in tables.counts.own_clusters() {
        *used.entry(cluster).or_default() += 1;
    }
    let end = device.size().div_ceil(size);
    for (cluster, count) in used.into_iter().filter(|(cluster, _)| *cluster < end) {
        if tables.counts.get(device, cluster)? < count {
            tables.counts.set(device, cluster, count)?;
        }
    }
    tables.flush(device)?;
    let mut sector = [0; 512];
    device.read_at(0, &mut sector)?;
    let at = INCOMPATIBLE_AT as usize;
    let cleared = be64(&sector, at) & !DIRTY;
    sector[at..at + 8].copy_from_slice(&cleared.to_be_bytes());
    device.write_fua(0, &sector)
}
