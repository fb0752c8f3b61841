//! Storage of the files in a new image.

use sapwood::{NewSubvolume, PathFlags, Storage};

use crate::failure::{Failure, Result, USAGE};

#[derive(Debug, clap::Args)]
pub(super) struct StorageArgs {
    /// Make the directory of that path a subvolume (btrfs); it is empty if no source has it
    #[arg(long, value_name = "[rw|ro|default|default-ro:]PATH")]
    subvol: Vec<NewSubvolume>,
    /// Compress the files with zlib, lzo or zstd (btrfs), or only files that match the pattern, as
    /// for --exclude; no for none. The last pattern that matches a file counts
    #[arg(long, value_name = "ALGORITHM[:LEVEL][=GLOB]")]
    compress: Vec<String>,
    /// Set flags of a file or directory: nodatacow, nodatasum (btrfs; on a directory for everything
    /// below), immutable, append, nodump, noatime, sync, dirsync
    #[arg(long, value_name = "FLAG[,FLAG...]:PATH")]
    inode_flags: Vec<PathFlags>,
    /// Make files that match the pattern immutable, with a hash tree of fs-verity
    #[arg(long, value_name = "GLOB")]
    fs_verity: Vec<String>,
    /// Files with the same content share its space (btrfs)
    #[arg(long, visible_alias = "reflink")]
    dedupe: bool,
}

impl StorageArgs {
    /// Applies the given options.
    ///
    /// # Errors
    /// A compression or pattern that makes no sense.
    pub(super) fn apply(&self, storage: &mut Storage) -> Result<()> {
        for one in &self.subvol {
            storage.subvolume(one.clone());
        }
        for text in &self.compress {
            let set = match text.split_once('=') {
                Some((how, pattern)) => storage.compress_matching(pattern, how),
                None => storage.compress(text),
            };
            set.map_err(|error| Failure::new(USAGE, format_args!("--compress: {error}")))?;
        }
        for one in &self.inode_flags {
            storage.inode_flags(one.clone());
        }
        for pattern in &self.fs_verity {
            let set = storage.fs_verity(pattern);
            set.map_err(|error| Failure::new(USAGE, format_args!("--fs-verity: {error}")))?;
        }
        if self.dedupe {
            storage.dedupe();
        }
        Ok(())
    }
}
