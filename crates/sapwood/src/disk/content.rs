//! The content of a partition: built in a file of its own, and copied to its place.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use sapwood_base::RangeSet;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{
    DiskError, NewPartition, PartitionContent, PartitionRange, PartitionSize, Result, SECTOR, swap,
};
use crate::build::ImageBuilder;
use crate::fat::{FatError, FatImage};
use crate::luks::{self, FormatOptions, HEADER_SIZE};
use crate::new_file::NewFile;
use crate::output::OutputFormat;
use crate::progress::OnProgress;
use crate::sources::derived_uuid;
use crate::unused;

/// Bytes that are copied at a time.
const PIECE: usize = 1 << 20;

/// The content of a partition, before it is copied to its place.
pub(super) enum Built {
    Nothing,
    File(File, PathBuf),
    Made(NewFile),
}

impl NewPartition {
    /// A hash of the content of the partition, and of its options.
    pub(super) fn hash(&self) -> Result<[u8; 32]> {
        let mut hash = Sha256::new();
        let about = (&self.name, self.kind, self.uuid, self.size);
        hash.update(format!("{about:?}"));
        if let Some(verity) = &self.verity {
            hash.update(format!("{verity:?}"));
        }
        if self.mbr_kind.is_some() || self.boot {
            hash.update(format!("{:?}", (self.mbr_kind, self.boot)));
        }
        match &self.content {
            PartitionContent::Empty => {}
            PartitionContent::File(path) => {
                let failed = |source| DiskError::File {
                    path: path.clone(),
                    source,
                };
                let mut file = File::open(path).map_err(failed)?;
                io::copy(&mut file, &mut hash).map_err(failed)?;
            }
            PartitionContent::Image(builder) => {
                let found = builder.hash().map_err(|source| DiskError::Build {
                    name: self.name.clone(),
                    source: Box::new(source),
                })?;
                hash.update(found);
            }
            PartitionContent::Swap(label) => hash.update(format!("swap {label:?}")),
            PartitionContent::Fat(image) => {
                let found = image.hash().map_err(|source| DiskError::Build {
                    name: self.name.clone(),
                    source: Box::new(source),
                })?;
                hash.update(found);
            }
        }
        Ok(hash.finalize().into())
    }

    /// Builds the content, encrypted if it is to be: of `size` bytes, or of its own size, in a file
    /// next to `disk`.
    pub(super) fn build(
        &self,
        size: Option<u64>,
        uuid: Option<[u8; 16]>,
        disk: &NewFile,
        progress: &mut OnProgress<'_>,
    ) -> Result<Built> {
        let size = match self.size {
            PartitionSize::Bytes(bytes) => Some(bytes),
            _ => size,
        };
        let Some(key) = &self.key else {
            return self.build_plain(size, uuid, disk, progress);
        };
        let inner = match size {
            Some(size) if size <= HEADER_SIZE => {
                return Err(DiskError::TooLarge {
                    name: self.name.clone(),
                    content: HEADER_SIZE + SECTOR,
                    size,
                });
            }
            size => size.map(|size| size - HEADER_SIZE),
        };
        let built = self.build_plain(inner, uuid, disk, progress)?;
        let (from, path, unused) = match &built {
            Built::Nothing => {
                return Err(DiskError::Layers {
                    name: self.name.clone(),
                    why: "an encrypted partition needs a content",
                });
            }
            Built::File(file, path) => (file, path.as_path(), RangeSet::new()),
            Built::Made(made) => (made.file(), made.path(), unused::ranges(made)),
        };
        let len = size_of(from, path)?;
        let options = FormatOptions {
            uuid: uuid.map(|uuid| derived_uuid(&uuid, "volume")),
            ..FormatOptions::default()
        };
        let out = disk.scratch()?;
        let encrypted = luks::encrypt((from, len, &unused), path, &out, (key, &options), progress);
        encrypted.map_err(|source| DiskError::Encrypt {
            name: self.name.clone(),
            source: Box::new(source),
        })?;
        Ok(Built::Made(out))
    }

    /// Builds the content as it is before encryption.
    fn build_plain(
        &self,
        size: Option<u64>,
        uuid: Option<[u8; 16]>,
        disk: &NewFile,
        progress: &mut OnProgress<'_>,
    ) -> Result<Built> {
        let builder = match &self.content {
            PartitionContent::Empty => return Ok(Built::Nothing),
            PartitionContent::File(path) => {
                let file = File::open(path).map_err(|source| DiskError::File {
                    path: path.clone(),
                    source,
                })?;
                return Ok(Built::File(file, path.clone()));
            }
            PartitionContent::Swap(label) => return self.build_swap(label, size, uuid, disk),
            PartitionContent::Fat(image) => {
                return self.build_fat(image, size, uuid, disk, progress);
            }
            PartitionContent::Image(builder) => builder,
        };
        let mut builder = ImageBuilder::clone(builder).format(OutputFormat::Raw);
        if let Some(size) = size {
            builder = builder.size(size);
        }
        if let Some(uuid) = uuid {
            builder = builder.default_uuid(uuid);
        }
        let file = disk.scratch()?;
        let made = builder.make_in_scratch(&file, progress);
        made.map_err(|source| DiskError::Build {
            name: self.name.clone(),
            source: Box::new(source),
        })?;
        Ok(Built::Made(file))
    }

    /// Builds swap space.
    fn build_swap(
        &self,
        label: &str,
        size: Option<u64>,
        uuid: Option<[u8; 16]>,
        disk: &NewFile,
    ) -> Result<Built> {
        let size = size.ok_or_else(|| DiskError::NoSize(self.name.clone()))?;
        let uuid = uuid.unwrap_or_else(|| *Uuid::new_v4().as_bytes());
        let page = swap::header(size, uuid, label);
        let page = page.ok_or_else(|| DiskError::Swap(self.name.clone()))?;
        let file = disk.scratch()?;
        let sized = file.file().set_len(size);
        let written = sized.and_then(|()| file.file().write_all_at(&page, 0));
        written.map_err(|source| DiskError::File {
            path: disk.path().to_owned(),
            source,
        })?;
        Ok(Built::Made(file))
    }

    /// Builds a FAT volume, whose number is the start of `uuid`.
    fn build_fat(
        &self,
        image: &FatImage,
        size: Option<u64>,
        uuid: Option<[u8; 16]>,
        disk: &NewFile,
        progress: &mut OnProgress<'_>,
    ) -> Result<Built> {
        let file = disk.scratch()?;
        let uuid = uuid.unwrap_or_else(|| *Uuid::new_v4().as_bytes());
        let [a, b, c, d, ..] = uuid;
        let id = u32::from_be_bytes([a, b, c, d]);
        let made = image.make_in_scratch(&file, size, id, progress);
        made.map_err(|error| match error {
            FatError::Full { needed, size } => DiskError::TooLarge {
                name: self.name.clone(),
                content: needed,
                size,
            },
            source => DiskError::Fat {
                name: self.name.clone(),
                source: Box::new(source),
            },
        })?;
        Ok(Built::Made(file))
    }

    /// Bytes of the partition; `None` if it takes the rest.
    pub(super) fn bytes(&self, content: &Built) -> Result<Option<u64>> {
        let found = match content {
            Built::Nothing => None,
            Built::File(file, path) => Some(size_of(file, path)?),
            Built::Made(made) => Some(size_of(made.file(), made.path())?),
        };
        let sectors = |bytes: u64| bytes.div_ceil(SECTOR).saturating_mul(SECTOR);
        match (self.size, found) {
            (PartitionSize::Rest, _) => Ok(None),
            (PartitionSize::Bytes(size), Some(content)) if content > sectors(size) => {
                let name = self.name.clone();
                Err(DiskError::TooLarge {
                    name,
                    content,
                    size,
                })
            }
            (PartitionSize::Bytes(size), _) if size > 0 => Ok(Some(sectors(size))),
            (PartitionSize::Content, Some(content)) if content > 0 => Ok(Some(sectors(content))),
            _ => Err(DiskError::NoSize(self.name.clone())),
        }
    }

    /// Copies the content to its place on the disk.
    pub(super) fn copy(
        &self,
        content: &Built,
        place: PartitionRange,
        disk: &File,
        path: &Path,
    ) -> Result<()> {
        let (source, source_path) = match content {
            Built::Nothing => return Ok(()),
            Built::File(file, path) => (file.try_clone(), path.clone()),
            Built::Made(made) => (made.file().try_clone(), made.path().to_owned()),
        };
        let read = |source| DiskError::File {
            path: source_path.clone(),
            source,
        };
        let source = source.map_err(read)?;
        let len = size_of(&source, &source_path)?;
        if len > place.len {
            return Err(DiskError::TooLarge {
                name: self.name.clone(),
                content: len,
                size: place.len,
            });
        }
        copy_data(&source, len, disk, place.start).map_err(|error| match error {
            Copied::Read(source) => read(source),
            Copied::Write(source) => DiskError::File {
                path: path.to_owned(),
                source,
            },
        })
    }
}

/// Bytes of a file or block device.
fn size_of(mut file: &File, path: &Path) -> Result<u64> {
    let end = io::Seek::seek(&mut file, io::SeekFrom::End(0));
    end.map_err(|source| DiskError::File {
        path: path.to_owned(),
        source,
    })
}

/// The side of a copy that failed.
enum Copied {
    Read(io::Error),
    Write(io::Error),
}

/// Copies all but holes and zeros.
fn copy_data(from: &File, len: u64, to: &File, start: u64) -> std::result::Result<(), Copied> {
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < len {
        at = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok(()),
            // A file system or device that knows no holes.
            Err(_) => at,
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(at))
            .unwrap_or(len)
            .min(len);
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
            let bytes = piece.get_mut(..want).unwrap_or_default();
            from.read_exact_at(bytes, at).map_err(Copied::Read)?;
            if bytes.iter().any(|byte| *byte != 0) {
                to.write_all_at(bytes, start + at).map_err(Copied::Write)?;
            }
            at += want as u64;
        }
    }
    Ok(())
}
