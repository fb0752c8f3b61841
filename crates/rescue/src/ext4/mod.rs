//! ext4 (and ext2, ext3): backups of superblock and descriptors, copies in the journal, and files.

mod deleted;
mod dir;
mod files;
mod free;
mod journal;
mod lookup;
mod map;
mod nameless;
mod owners;
mod supers;
mod volume;

use std::collections::BTreeMap;
use std::sync::Arc;

use sapwood_block::Device;
use sapwood_ext4_format::SUPER_OFFSET;

pub use files::Files;
pub use supers::FoundSuper;
pub use volume::{DescSource, JournalState};

use crate::{Error, Result, Watch};
use volume::Volume;

/// Options for reading a damaged image.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Options {
    /// Use the superblock in this block, counted in blocks of the file system or in KiB.
    pub super_block: Option<u64>,
    /// Do not replay the journal. Its copies are still used where a block is damaged.
    pub ignore_journal: bool,
}

/// An opened image.
pub struct Image {
    volume: Volume,
    used: FoundSuper,
}

/// A place of a superblock.
#[derive(Debug, Clone)]
pub struct SuperPlace {
    /// Byte offset.
    pub offset: u64,
    /// Last write in seconds since 1970, or the defect.
    pub state: std::result::Result<u64, String>,
}

/// A survey of an image.
#[derive(Debug, Clone)]
pub struct Survey {
    /// Byte offset of the superblock that is used.
    pub used: u64,
    /// All places.
    pub supers: Vec<SuperPlace>,
    /// Number of groups by the source of their descriptors.
    pub groups: BTreeMap<DescSource, u64>,
    /// The journal.
    pub journal: JournalState,
    /// Copies of blocks in the journal.
    pub copies: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Inodes that no directory leads to.
    pub nameless: u64,
}

impl Image {
    /// Finds a superblock, the group descriptors and the journal.
    ///
    /// # Errors
    /// [`Error::NoExt4`], [`Error::Superblock`], [`Error::Interrupted`].
    pub fn open(device: Arc<dyn Device>, options: Options, watch: &dyn Watch) -> Result<Self> {
        let used = match options.super_block {
            Some(block) => at_block(&*device, block)?,
            None => supers::find(&*device, watch)?,
        };
        let volume = Volume::open(device, &used, options.ignore_journal);
        Ok(Self { volume, used })
    }

    /// Surveys the image. Reads all inodes and directories.
    #[must_use]
    pub fn survey(self) -> Survey {
        let supers = supers::places(&*self.volume.device, &self.volume.geometry);
        let supers = supers.into_iter().map(|(offset, found)| SuperPlace {
            offset,
            state: found.map(|found| found.written),
        });
        let mut groups = BTreeMap::new();
        for group in &self.volume.groups {
            *groups.entry(group.source).or_default() += 1;
        }
        let (supers, used) = (supers.collect(), self.used.offset);
        let (journal, copies) = (self.volume.journal.clone(), self.volume.copies.len() as u64);
        let files = self.files();
        let (nameless, inodes) = files.nameless();
        Survey {
            used,
            supers,
            groups,
            journal,
            copies,
            inodes: *inodes,
            nameless: nameless.len() as u64,
        }
    }

    /// The superblock that is used.
    #[must_use]
    pub fn superblock(&self) -> &FoundSuper {
        &self.used
    }

    /// The files.
    #[must_use]
    pub fn files(self) -> Files {
        Files::new(self.volume)
    }
}

/// The superblock in a block of any size, if a backup belongs there.
fn at_block(device: &dyn Device, block: u64) -> Result<FoundSuper> {
    let mut why = "no superblock".to_owned();
    let sizes = [4096_u64, 1024, 2048, 8192, 16384, 32768, 65536];
    for size in sizes {
        // The first superblock follows the boot sector, also within block 0.
        let offset = match block {
            0 => SUPER_OFFSET,
            _ => block.saturating_mul(size),
        };
        match supers::read(device, offset) {
            Ok(found) if offset == SUPER_OFFSET || found.is_backup_at(offset) => {
                return Ok(found);
            }
            Ok(_) => {}
            Err(found) => why = found,
        }
    }
    Err(Error::Superblock {
        offset: block.saturating_mul(4096),
        why,
    })
}
