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
        self.build_signatures(&mut built, &roots, &new)?;
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
        let end = places.last().map_or(0, |place| place.start + place.len);
        let size = self.image_size(self.size.unwrap_or_else(|| self.whole(end)));
        let made = self.described(disk_uuid, size, &places, roots);
        self.finish(new, &made, progress, |disk| {
            let (file, path) = (disk.file(), disk.path());
            for ((partition, content), place) in self.partitions.iter().zip(&built).zip(&places) {
                partition.copy(content, *place, file, path)?;
            }
            drop(built);
            self.write_table(file, path, &made)
        })?;
        Ok(made)
    }

    /// Bytes of a disk of `size` bytes in the format of the image, so that the backup of the table
    /// is at its end.
    pub(super) fn image_size(&self, size: u64) -> u64 {
        match self.format {
            OutputFormat::Vhd => size.next_multiple_of(VHD_UNIT),
            _ => size,
        }
    }

    /// Has `fill` write the bytes of the disk, and gives the image its format and its name.
    pub(super) fn finish(
        &self,
        new: NewFile,
        made: &BuiltDisk,
        progress: &mut OnProgress<'_>,
        fill: impl FnOnce(&NewFile) -> Result<()>,
    ) -> Result<()> {
        let raw = match self.format {
            OutputFormat::Raw => None,
            _ => Some(new.scratch()?),
        };
        let disk = raw.as_ref().unwrap_or(&new);
        let sized = disk.file().set_len(made.size);
        sized.map_err(|source| DiskError::File {
            path: new.path().to_owned(),
            source,
        })?;
        fill(disk)?;
        let identity = Identity {
            uuid: made.uuid,
            time: self.time.unwrap_or_else(|| self.fixed_time()),
        };
        if let Some(raw) = raw {
            convert(&raw, &new, self.format, identity, progress)?;
        }
        Ok(new.finish()?)
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
            scheme: self.scheme,
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
