//! The image files of the contestants.
//!
//! # How it works
//! In a sparse file, each fsync makes the host's file system allocate blocks and commit its own
//! journal. The measurement would include that, with its noise. So on a disk one file is written
//! out when it is first needed; all contestants use it one after the other, each with a new file
//! system in it. In memory, and on a disk without enough space, each run has a sparse file of its
//! own.

use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use sapwood_block::{FileDevice, OpenOptions};
use tempfile::TempDir;

use crate::contestant::Format;
use crate::error::{Context, Result};
use crate::program::output;

/// Requirements of a row for its image and mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// Size of the image in bytes.
    pub(crate) bytes: u64,
    /// Sparse, as images that users make.
    pub(crate) sparse: bool,
    /// Inodes that an ext4 must have.
    pub(crate) inodes: u64,
}

impl Room {
    /// Enough for most rows.
    pub(crate) const USUAL: Self = Self {
        bytes: 8 << 30,
        sparse: false,
        inodes: 0,
    };
}

/// The images that were written out; they are removed with this value.
#[derive(Debug, Default)]
pub(crate) struct Images {
    /// All images are sparse.
    sparse: bool,
    /// By medium and size; `None` if images of this size are always sparse there.
    written: RefCell<Vec<(PathBuf, u64, Option<TempDir>)>>,
}

/// Space that must stay free on the medium, in bytes.
const SPARE: u64 = 4 << 30;
/// Magic number in `statfs(2)`.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// A directory on a medium that is removed with its value.
///
/// # Errors
/// I/O errors of the medium.
pub(crate) fn home(medium: &Path) -> Result<TempDir> {
    let made = tempfile::Builder::new()
        .prefix("sapwood-bench-")
        .tempdir_in(medium);
    made.on(medium.display())
}

impl Images {
    pub(crate) fn new(sparse: bool) -> Self {
        Self {
            sparse,
            ..Self::default()
        }
    }

    /// An image on `medium`. It may have the content of an earlier run; `home` is the directory for
    /// an image of this run alone.
    ///
    /// # Errors
    /// I/O errors of the medium.
    pub(crate) fn get(&self, medium: &Path, room: Room, home: &Path) -> Result<PathBuf> {
        if !self.sparse && !room.sparse {
            let mut written = self.written.borrow_mut();
            let like = |(at, bytes, _): &_| (at, bytes) == (&medium.to_owned(), &room.bytes);
            if !written.iter().any(like) {
                let image = write_out(medium, room.bytes)?;
                written.push((medium.to_owned(), room.bytes, image));
            }
            let found = written.iter().find(|one| like(one));
            if let Some((_, _, Some(home))) = found {
                return Ok(home.path().join("image"));
            }
        }
        let image = home.join("image");
        File::create(&image)?
            .set_len(room.bytes)
            .on(image.display())?;
        Ok(image)
    }
}

/// A directory with an image of zeros that is allocated completely, if the medium is a disk with
/// space for it.
fn write_out(medium: &Path, bytes: u64) -> Result<Option<TempDir>> {
    let below = rustix::fs::statfs(medium).on(medium.display())?;
    let free = below.f_bavail.saturating_mul(below.f_bsize as u64);
    if below.f_type == TMPFS_MAGIC {
        return Ok(None);
    }
    if free < bytes.saturating_add(SPARE) {
        eprintln!(
            "{}: no room for an image that is written out",
            medium.display()
        );
        return Ok(None);
    }
    eprintln!(
        "{}: an image of {} MiB is written out",
        medium.display(),
        bytes >> 20
    );
    let home = home(medium)?;
    let path = home.path().join("image");
    let mut file = File::create(&path)?;
    let zeros = vec![0; 1 << 20];
    for _ in 0..bytes >> 20 {
        file.write_all(&zeros).on(path.display())?;
    }
    drop(file);
    forget_cached(&path)?;
    Ok(Some(home))
}

/// Writes a file's cached pages back and drops them.
///
/// # Errors
/// I/O errors of the medium.
pub(crate) fn forget_cached(path: &Path) -> Result<()> {
    let file = File::open(path).on(path.display())?;
    file.sync_all().on(path.display())?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).on(path.display())
}

/// Makes an empty file system, the same for Sapwood and for its peers. It discards nothing.
///
/// # Errors
/// Errors of the engine, or of the program.
pub(crate) fn format(format: Format, image: &Path, room: Room) -> Result<()> {
    let device = || FileDevice::open(image, OpenOptions::default());
    match format {
        Format::Btrfs => {
            let options = sapwood_btrfs::mkfs::MkfsOptions {
                force: true,
                discard: false,
                ..sapwood_btrfs::mkfs::MkfsOptions::default()
            };
            sapwood_btrfs::mkfs::mkfs(&device()?, &options)?;
        }
        Format::Ext4 => {
            // One for each 16 KiB is the default.
            let needed = room.inodes > room.bytes / 16384;
            let options = sapwood_ext4::mkfs::MkfsOptions {
                inodes: needed.then_some(room.inodes),
                force: true,
                discard: false,
                ..sapwood_ext4::mkfs::MkfsOptions::default()
            };
            sapwood_ext4::mkfs::mkfs(&device()?, &options)?;
        }
        Format::Xfs => {
            output(Command::new("mkfs.xfs").args(["-q", "-f", "-K"]).arg(image))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn images_are_kept_on_a_disk_and_sparse_where_asked() {
        let medium = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let homes = [(); 2].map(|()| home(medium.path()).unwrap());
        let get = |images: &Images, sparse, home: &TempDir| {
            let room = Room {
                bytes: 3 << 20,
                sparse,
                ..Room::USUAL
            };
            images.get(medium.path(), room, home.path()).unwrap()
        };
        let images = Images::new(false);
        let written = get(&images, false, &homes[0]);
        let again = get(&images, false, &homes[1]);
        let own = get(&images, true, &homes[0]);
        let blocks = |path: &Path| path.metadata().unwrap().blocks();
        assert_eq!(blocks(&own), 0);
        let free = rustix::fs::statvfs(medium.path()).unwrap();
        if free.f_bavail * free.f_frsize > 2 * SPARE {
            // With less free space, each caller gets a sparse image of its own.
            assert_ne!(written, own);
            assert_eq!(written, again);
            assert!(blocks(&written) >= 3 << 11, "{}", blocks(&written));
        }
        drop(images);
        assert!(!written.exists() || written.starts_with(homes[0].path()));
        let sparse = get(&Images::new(true), false, &homes[1]);
        assert!(sparse.starts_with(homes[1].path()));
    }
}
