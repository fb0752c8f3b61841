//! Options for reading a damaged image.

use std::time::SystemTime;

use super::Options;
use crate::Kind;

/// Options for reading a damaged image without its engine. The default is the newest state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Rescue {
    /// The format, if the image no longer shows it.
    pub kind: Option<Kind>,
    /// btrfs: the state of this generation, as far as its blocks still exist.
    pub generation: Option<u64>,
    /// btrfs: the state whose tree of roots has its root at this logical address.
    pub root: Option<u64>,
    /// Superblock to use: for btrfs a copy (0, 1 or 2), for ext4 a block.
    pub super_block: Option<u64>,
    /// btrfs: scan whole devices, even if the chunk tree locates the metadata.
    pub whole: bool,
    /// btrfs: read data also if its checksum is wrong.
    pub ignore_data_checksums: bool,
    /// ext4: do not replay the journal. The log of a btrfs is never replayed.
    pub ignore_journal: bool,
    /// Deleted files, under their former paths, in place of the files that are there.
    pub deleted: Option<DeletedFiles>,
}

/// The deleted files to look for: in older states of a btrfs, and in the journal of an ext4.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeletedFiles {
    /// Only files whose content was changed at this time or later.
    pub since: Option<SystemTime>,
    /// btrfs: the most older states to read, the newest first. The default is 100.
    pub states: usize,
}

impl Default for DeletedFiles {
    fn default() -> Self {
        Self {
            since: None,
            states: 100,
        }
    }
}

impl Options {
    /// Reads a damaged image as [`Rescue`] describes, instead of by its engine. In a btrfs, paths
    /// begin at the top level. The image is read-only.
    #[must_use]
    pub fn rescue(mut self, rescue: Rescue) -> Self {
        self.rescue = Some(rescue);
        self.read_only(true)
    }

    /// Reads the state of this generation of a btrfs.
    pub(crate) fn of_generation(mut self, generation: u64) -> Self {
        self.rescue.get_or_insert_default().generation = Some(generation);
        self
    }

    /// The options for reading a damaged image, if it is read that way.
    pub(crate) fn rescues(&self) -> Option<&Rescue> {
        self.rescue.as_ref()
    }
}
