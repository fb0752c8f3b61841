//! Where the partitions of a disk are.

use sapwood_block::partition::Scheme;

use super::content::Built;
use super::{
    DiskBuilder, DiskError, NAME, PARTITIONS, PRIMARY, PartitionRange, PartitionSize, Result,
    SECTOR, TABLE,
};
use crate::sources::derived_uuid;

impl DiskBuilder {
    /// Finds partitions that cannot be made.
    pub(super) fn check(&self) -> Result<()> {
        let count = self.partitions.len();
        let most = match self.scheme {
            Scheme::Mbr if self.from.is_none() => PRIMARY,
            Scheme::Mbr | Scheme::Gpt => PARTITIONS,
        };
        if !(1..=most).contains(&count) {
            return Err(DiskError::Count { count, most });
        }
        if !self.alignment.is_power_of_two() || self.alignment < SECTOR {
            return Err(DiskError::Alignment(self.alignment));
        }
        if self.from.is_some() && self.size.is_some() {
            return Err(DiskError::DiskKept("size"));
        }
        let mut rest = false;
        for (index, partition) in self.partitions.iter().enumerate() {
            let name = &partition.name;
            let before = self.partitions.get(..index).unwrap_or_default();
            if self.reproducible && partition.key.is_some() {
                let why = "an encrypted partition differs each time, so it is not reproducible";
                let name = name.clone();
                return Err(DiskError::Layers { name, why });
            }
            if self.scheme == Scheme::Mbr && self.from.is_none() {
                partition.mbr_type()?;
            }
            let units = name.encode_utf16().count();
            let bad = name.contains(|char: char| char.is_control());
            if bad || !(1..=NAME).contains(&units) || before.iter().any(|one| one.name == *name) {
                return Err(DiskError::Name(name.clone()));
            }
            if partition.size == PartitionSize::Rest {
                if rest || self.size.is_none() {
                    return Err(DiskError::Rest(name.clone()));
                }
                rest = true;
            }
        }
        Ok(())
    }

    /// A UUID derived from the disk's, if that was given.
    pub(super) fn derived(&self, index: usize, what: &str) -> Option<[u8; 16]> {
        let what = format!("partition {index}: {what}");
        Some(derived_uuid(&self.uuid?, &what))
    }

    fn aligned(&self, bytes: u64) -> u64 {
        bytes
            .div_ceil(self.alignment)
            .saturating_mul(self.alignment)
    }

    /// Bytes of the backup of the table, at the end of the disk.
    fn backup(&self) -> u64 {
        match self.scheme {
            Scheme::Gpt => TABLE * SECTOR,
            Scheme::Mbr => 0,
        }
    }

    /// Bytes of a disk whose last partition has this end.
    pub(super) fn whole(&self, end: u64) -> u64 {
        self.aligned(end.saturating_add(self.backup()))
    }

    /// The places of all partitions.
    pub(super) fn places(&self, built: &[Built]) -> Result<Vec<PartitionRange>> {
        let mut sizes = Vec::new();
        for (partition, content) in self.partitions.iter().zip(built) {
            sizes.push(partition.bytes(content)?);
        }
        let first = self.aligned((1 + TABLE) * SECTOR);
        let lay_out = |rest: u64| -> (Vec<PartitionRange>, u64) {
            let mut at = first;
            let mut places = Vec::new();
            for size in &sizes {
                let start = self.aligned(at);
                let len = size.unwrap_or(rest);
                places.push(PartitionRange { start, len });
                at = start.saturating_add(len);
            }
            (places, at)
        };
        let (places, end) = lay_out(0);
        let Some(size) = self.size else {
            return Ok(places);
        };
        let usable = size.saturating_sub(self.backup());
        let takes_rest = sizes.iter().any(Option::is_none);
        let unit = self.alignment.max(4096);
        let rest = usable.saturating_sub(end) / unit * unit;
        if end > usable || (takes_rest && rest == 0) {
            let needed = self.whole(end + if takes_rest { unit } else { 0 });
            return Err(DiskError::Full { needed, size });
        }
        Ok(lay_out(rest).0)
    }
}
