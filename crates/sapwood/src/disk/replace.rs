//! A disk that is a copy of an existing one, with other contents of some partitions.
//!
//! # How it works
//! The table, the boot code before the first partition and all other partitions are copied byte for
//! byte. Each named partition keeps its number, place, size and type. A partition with a hash tree,
//! and the partition of the tree, get the UUIDs that follow from the root hash.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use sapwood_block::Device;
use sapwood_block::partition::{GptCopy, Partition, PartitionTable, Scheme};
use uuid::Uuid;

use super::signature::partition_name;
use super::table::type_of_mbr;
use super::{
    BuiltDisk, BuiltPartition, DiskBuilder, DiskError, NewPartition, PartitionContent,
    PartitionRange, PartitionSize, Result,
};
use crate::image::open_device;
use crate::new_file::NewFile;
use crate::progress::OnProgress;
use crate::repartition::{self, RepartitionError};

/// Bytes that are copied at a time.
const PIECE: u64 = 1 << 20;

/// An existing disk.
struct Existing {
    device: Arc<dyn Device>,
    table: PartitionTable,
    /// The first copy of a GPT.
    gpt: Option<GptCopy>,
}

impl Existing {
    fn open(path: &Path) -> Result<Self> {
        let device = open_device(path, true)?;
        let table = PartitionTable::read(&*device).map_err(RepartitionError::from)?;
        let gpt = match table.scheme {
            Scheme::Gpt => Some(repartition::undamaged_gpt(&*device)?),
            Scheme::Mbr => None,
        };
        Ok(Self { device, table, gpt })
    }

    /// The partition that a new one replaces.
    fn partition(&self, new: &NewPartition) -> Result<&Partition> {
        let found = self.table.find(self.device.name(), &new.name);
        let found = found.map_err(RepartitionError::from)?;
        let kept = |property| DiskError::Kept {
            name: new.name.clone(),
            property,
        };
        if new.size != PartitionSize::Content {
            return Err(kept("size"));
        }
        let other = new.kind.is_some_and(|kind| kind != self.type_of(found));
        if other || new.mbr_kind.is_some() {
            return Err(kept("type"));
        }
        if new.boot {
            return Err(kept("boot flag"));
        }
        if new.uuid.is_some() && self.gpt.is_none() {
            return Err(kept("UUID"));
        }
        Ok(found)
    }

    fn type_of(&self, partition: &Partition) -> [u8; 16] {
        match self.gpt {
            Some(_) => Uuid::parse_str(&partition.kind).map(Uuid::into_bytes),
            None => Ok(type_of_mbr(&partition.kind)),
        }
        .unwrap_or_default()
    }

    /// The UUID of a partition. An MBR has none.
    fn uuid_of(&self, partition: &Partition) -> [u8; 16] {
        let gpt = self.gpt.as_ref();
        let uuid = gpt.and_then(|gpt| repartition::uuid_of(gpt, partition.number));
        uuid.unwrap_or_default()
    }

    /// The UUID of the disk: in an MBR, four bytes of its first sector.
    fn uuid(&self) -> Result<[u8; 16]> {
        let mut uuid = [0; 16];
        match &self.gpt {
            Some(gpt) => uuid = repartition::disk_uuid(gpt).unwrap_or_default(),
            None => self.device.read_at(440, &mut uuid[..4])?,
        }
        Ok(uuid)
    }

    /// Copies everything outside of these places.
    fn copy(&self, replaced: &[PartitionRange], to: &NewFile) -> Result<()> {
        let size = self.device.size();
        let mut holes: Vec<_> = replaced.to_vec();
        holes.push(PartitionRange {
            start: size,
            len: 0,
        });
        holes.sort_by_key(|hole| hole.start);
        let mut at = 0;
        for hole in holes {
            self.copy_range(at, hole.start, to)?;
            at = hole.start.saturating_add(hole.len);
        }
        Ok(())
    }

    fn copy_range(&self, mut at: u64, end: u64, to: &NewFile) -> Result<()> {
        let mut piece = vec![0; PIECE as usize];
        while at < end {
            let len = PIECE.min(end - at);
            let bytes = piece.get_mut(..len as usize).unwrap_or_default();
            if !self.device.has_no_data(at, len) {
                self.device.read_at(at, bytes)?;
                if bytes.iter().any(|byte| *byte != 0) {
                    let written = to.file().write_all_at(bytes, at);
                    written.map_err(|source| DiskError::File {
                        path: to.path().to_owned(),
                        source,
                    })?;
                }
            }
            at += len;
        }
        Ok(())
    }
}

impl DiskBuilder {
    /// Makes the copy of the disk at `from`.
    pub(super) fn write_replaced(
        mut self,
        from: &Path,
        path: &Path,
        progress: &mut OnProgress<'_>,
    ) -> Result<BuiltDisk> {
        let existing = Existing::open(from)?;
        let found = self.fit_into(&existing)?;
        let new = NewFile::create(path, self.replace)?;
        let mut built = Vec::new();
        for (index, partition) in self.partitions.iter().enumerate() {
            let uuid = self.derived(index, "file system");
            built.push(partition.build(None, uuid, &new, progress)?);
        }
        let seed = self.uuid.unwrap_or_else(|| *Uuid::new_v4().as_bytes());
        let roots = self.build_hashes(&mut built, seed, &new, progress)?;
        self.build_signatures(&mut built, &roots, &new)?;
        let mut made = BuiltDisk {
            scheme: existing.table.scheme,
            uuid: existing.uuid()?,
            size: self.image_size(existing.device.size()),
            partitions: Vec::new(),
        };
        for (index, there) in found.iter().enumerate() {
            let own = self.partitions.get(index).and_then(|new| new.uuid);
            let hashed = || self.uuid_of_root_hash(index, &roots);
            let uuid = own.or_else(hashed).filter(|_| existing.gpt.is_some());
            made.partitions.push(BuiltPartition {
                name: there
                    .label
                    .clone()
                    .unwrap_or_else(|| there.number.to_string()),
                start: there.start,
                len: there.len,
                kind: existing.type_of(there),
                uuid: uuid.unwrap_or_else(|| existing.uuid_of(there)),
                root_hash: roots.get(index).cloned().flatten(),
            });
        }
        self.finish(new, &made, progress, |disk| {
            let places = found.iter().map(|there| PartitionRange {
                start: there.start,
                len: there.len,
            });
            let places: Vec<_> = places.collect();
            existing.copy(&places, disk)?;
            for ((new, content), place) in self.partitions.iter().zip(&built).zip(&places) {
                new.copy(content, *place, disk.file(), disk.path())?;
            }
            if existing.gpt.is_some() {
                let numbers = found.iter().map(|there| there.number);
                let uuids = made.partitions.iter().map(|made| made.uuid);
                let uuids: Vec<_> = numbers.zip(uuids).collect();
                let grown = made.size > existing.device.size();
                repartition::set_uuids(&*disk.device()?, &uuids, grown)?;
            }
            Ok(())
        })?;
        Ok(made)
    }

    /// Gives each partition the size of the existing one that it replaces, which is returned.
    fn fit_into(&mut self, existing: &Existing) -> Result<Vec<Partition>> {
        let mut found: Vec<Partition> = Vec::new();
        let trees = self.partitions.iter();
        let trees = trees.filter_map(|new| Some(new.verity.as_ref()?.partition.clone()));
        let mut trees: Vec<String> = trees.collect();
        let signed = self.partitions.iter().filter(|new| new.signature.is_some());
        trees.extend(signed.map(|new| partition_name(&new.name)));
        for new in &mut self.partitions {
            let is_empty = matches!(new.content, PartitionContent::Empty);
            if is_empty && !trees.contains(&new.name) {
                let (name, why) = (new.name.clone(), "an existing partition needs a content");
                return Err(DiskError::Layers { name, why });
            }
            let partition = existing.partition(new)?;
            if found.iter().any(|other| other.number == partition.number) {
                return Err(DiskError::Name(new.name.clone()));
            }
            new.size = PartitionSize::Bytes(partition.len);
            found.push(partition.clone());
        }
        Ok(found)
    }
}
