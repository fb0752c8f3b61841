//! Makes the content of each partition, and puts them into the disk.

use std::path::Path;
use std::time::SystemTime;

use uuid::Uuid;

use super::content::Built;
use super::{
    BuiltDisk, BuiltPartition, DiskBuilder, DiskError, PartitionRange, PartitionSize, Result,
};
use crate::new_file::NewFile;
use crate::output::{Identity, OutputFormat, VHD_UNIT, convert};
use crate::progress::OnProgress;
use crate::verity::RootHash;

impl DiskBuilder {
    /// Makes the disk image, when the UUID is decided.
    pub(super) fn write(&self, path: &Path, progress: &mut OnProgress<'_>) -> Result<BuiltDisk> {
        let failed = |source| DiskError::File {
            path: path.to_owned(),
            source,
        };
        let new = NewFile::create(path, self.replace)?;
        let disk_uuid = self.uuid.unwrap_or_else(|| *Uuid::new_v4().as_bytes());
        let mut built = Vec::new();
        for (index, partition) in self.partitions.iter().enumerate() {
            let rest = partition.size == PartitionSize::Rest;
            built.push(if rest {
                Built::Nothing
            } else {
                partition.build(None, self.derived(index, "file system"), &new, progress)?
            });
        }
        let roots = self.build_hashes(&mut built, disk_uuid, &new, progress)?;
        let places = self.places(&built)?;
        for (index, (partition, place)) in self.partitions.iter().zip(&places).enumerate() {
            let hashes = matches!(built.get(index), Some(Built::Made(_)));
            if partition.size == PartitionSize::Rest && !hashes {
                let uuid = self.derived(index, "file system");
                let content = partition.build(Some(place.len), uuid, &new, progress)?;
                if let Some(slot) = built.get_mut(index) {
                    *slot = content;
                }
            }
        }
        let raw = match self.format {
            OutputFormat::Raw => None,
            _ => Some(new.scratch()?),
        };
        let disk = raw.as_ref().unwrap_or(&new).file();
        let end = places.last().map_or(0, |place| place.start + place.len);
        let size = match (self.size.unwrap_or_else(|| self.whole(end)), self.format) {
            // So that the backup of the table is at the end of the disk.
            (size, OutputFormat::Vhd) => size.next_multiple_of(VHD_UNIT),
            (size, _) => size,
        };
        disk.set_len(size).map_err(failed)?;
        for ((partition, content), place) in self.partitions.iter().zip(&built).zip(&places) {
            partition.copy(content, *place, disk, path)?;
        }
        drop(built);
        let made = self.described(disk_uuid, size, &places, roots);
        self.write_table(disk, path, &made)?;
        let identity = Identity {
            uuid: disk_uuid,
            time: self.time.unwrap_or_else(|| self.fixed_time()),
        };
        if let Some(raw) = raw {
            convert(&raw, &new, self.format, identity, progress)?;
        }
        new.finish()?;
        Ok(made)
    }

    /// The disk and its partitions, with the UUIDs that they get.
    fn described(
        &self,
        uuid: [u8; 16],
        size: u64,
        places: &[PartitionRange],
        roots: Vec<Option<RootHash>>,
    ) -> BuiltDisk {
        let partitions = self.partitions.iter().zip(places).zip(&roots).enumerate();
        let partitions = partitions.map(|(index, ((partition, place), root))| {
            let derived = || self.derived(index, "table");
            let hashed = self.uuid_of_root_hash(index, &roots);
            let own = partition.uuid.or(hashed).or_else(derived);
            BuiltPartition {
                name: partition.name.clone(),
                start: place.start,
                len: place.len,
                kind: partition.gpt_type(),
                uuid: own.unwrap_or_else(|| *Uuid::new_v4().as_bytes()),
                root_hash: root.clone(),
            }
        });
        BuiltDisk {
            uuid,
            size,
            partitions: partitions.collect(),
        }
    }

    /// The time of a format that records one, where none is given.
    fn fixed_time(&self) -> SystemTime {
        if self.reproducible {
            SystemTime::UNIX_EPOCH
        } else {
            SystemTime::now()
        }
    }
}
