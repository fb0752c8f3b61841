//! Hash trees of partitions, in partitions of their own.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use sapwood_block::{Device, FileDevice, OpenOptions};

use super::content::Built;
use super::table::{native_type, verity_type};
use super::{DiskBuilder, DiskError, NewPartition, PartitionContent, PartitionSize, Result};
use crate::image::OpenError;
use crate::new_file::NewFile;
use crate::progress::OnProgress;
use crate::sources::derived_uuid;
use crate::verity::{self, RootHash, VerityError};

impl DiskBuilder {
    /// Adds the partitions of hash trees that are not there, and gives both partitions their types.
    pub(super) fn add_hash_partitions(&mut self) -> Result<()> {
        let (mut index, mut taken) = (0, HashSet::new());
        // Partitions of an existing disk keep their types.
        let has_types = self.from.is_some();
        while let Some(partition) = self.partitions.get_mut(index) {
            index += 1;
            let Some(hashes) = partition.verity.clone() else {
                continue;
            };
            let refuse = |name: &str, why| DiskError::Layers {
                name: name.to_owned(),
                why,
            };
            if partition.key.is_some() {
                let why = "it has a key, so it has no hash tree";
                return Err(refuse(&partition.name, why));
            }
            if partition.size == PartitionSize::Rest {
                let why = "a partition with a hash tree needs a size of its own";
                return Err(refuse(&partition.name, why));
            }
            if matches!(
                partition.content,
                PartitionContent::Empty | PartitionContent::Swap(_)
            ) {
                let why = "a hash tree is for a file system or a file";
                return Err(refuse(&partition.name, why));
            }
            let named = ["root", "usr"].contains(&&*partition.name);
            if named && partition.kind.is_none() && !has_types {
                partition.kind = native_type(&partition.name);
            }
            let kind = verity_type(partition.gpt_type());
            let mut others = self.partitions.iter();
            let at = others.position(|other| other.name == hashes.partition);
            let at = at.unwrap_or(index);
            if at == index
                && self
                    .partitions
                    .get(at)
                    .is_none_or(|it| it.name != hashes.partition)
            {
                let made = NewPartition {
                    name: hashes.partition.clone(),
                    ..NewPartition::default()
                };
                self.partitions.insert(at, made);
            }
            let Some(tree) = self.partitions.get_mut(at) else {
                continue;
            };
            let first = taken.insert(hashes.partition);
            let plain = first && tree.key.is_none() && tree.verity.is_none();
            if !plain || !matches!(tree.content, PartitionContent::Empty) {
                let why = "the partition of a hash tree has no other content";
                return Err(refuse(&tree.name, why));
            }
            if !has_types {
                tree.kind = tree.kind.or(kind);
            }
        }
        Ok(())
    }

    /// The place of the partition with the tree of another one.
    fn hashes_of(&self, index: usize) -> Option<usize> {
        let hashes = self.partitions.get(index)?.verity.as_ref()?;
        let mut all = self.partitions.iter();
        all.position(|other| other.name == hashes.partition)
    }

    /// Builds the hash trees of partitions that are built, as contents of other partitions. Returns
    /// the root hash of each partition that has a tree.
    pub(super) fn build_hashes(
        &self,
        built: &mut [Built],
        disk_uuid: [u8; 16],
        new: &NewFile,
        progress: &mut OnProgress<'_>,
    ) -> Result<Vec<Option<RootHash>>> {
        let mut roots = vec![None; built.len()];
        for (index, partition) in self.partitions.iter().enumerate() {
            let (Some(hashes), Some(at)) = (&partition.verity, self.hashes_of(index)) else {
                continue;
            };
            let mut params = hashes.params.clone();
            if params.salt.is_empty() {
                let half = |part: u8| {
                    let what = format!("partition {index}: salt {part}");
                    derived_uuid(&disk_uuid, &what)
                };
                params.salt = [half(0), half(1)].concat();
            }
            let file = new.scratch()?;
            let data = match built.get(index) {
                Some(Built::Made(made)) => made.device(),
                Some(Built::File(_, path)) => opened(path),
                _ => return Err(DiskError::NoSize(partition.name.clone())),
            };
            let opened = data.and_then(|data| Ok((data, file.device()?)));
            let made = opened
                .map_err(|error| VerityError::from(OpenError::Device(error)))
                .and_then(|(data, tree)| {
                    verity::build_of_new(new.path(), &*data, &*tree, &params, progress)
                });
            let made = made.map_err(|source| DiskError::Verity {
                name: partition.name.clone(),
                source: Box::new(source),
            })?;
            if let (Some(slot), Some(place)) = (roots.get_mut(index), built.get_mut(at)) {
                *slot = Some(made.root);
                *place = Built::Made(file);
            }
        }
        Ok(roots)
    }

    /// The UUID of a partition that is a part of a root hash: the first 128 bits for the data, the
    /// last ones for the tree.
    pub(super) fn uuid_of_root_hash(
        &self,
        index: usize,
        roots: &[Option<RootHash>],
    ) -> Option<[u8; 16]> {
        if let Some(root) = roots.get(index)? {
            return root.0.first_chunk().copied();
        }
        let mut all = 0..self.partitions.len();
        let data = all.find(|data| self.hashes_of(*data) == Some(index))?;
        roots.get(data)?.as_ref()?.0.last_chunk().copied()
    }
}

/// A file as a device that is only read.
fn opened(path: &Path) -> sapwood_block::Result<Arc<dyn Device>> {
    let device = FileDevice::open(path, OpenOptions::read_only())?;
    Ok(Arc::new(device))
}
