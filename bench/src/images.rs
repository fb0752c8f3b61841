//! The image files of the contestants, and the small files of which they make images.
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

use crate::Result;
use crate::contestant::Room;
use crate::error::on;
use crate::workload::small_files;

/// Image files of a run of the suite; they are removed with this value.
#[derive(Debug, Default)]
pub struct Images {
    sparse: bool,
    kept: RefCell<Vec<Kept>>,
    sources: RefCell<Vec<Source>>,
}

/// Small files as a directory and as an archive of the same content, for images of them.
#[derive(Debug)]
pub(crate) struct Source {
    medium: PathBuf,
    files: u32,
    /// The directory; its content is the root of an image.
    pub(crate) tree: PathBuf,
    /// The archive.
    pub(crate) archive: PathBuf,
    /// Removes both with this value.
    _home: tempfile::TempDir,
}

/// An image that was written out.
#[derive(Debug)]
struct Kept {
    medium: PathBuf,
    bytes: u64,
    /// `None` if images on this medium are always sparse.
    home: Option<tempfile::TempDir>,
}

/// Space that must stay free on the medium, in bytes.
const SPARE: u64 = 4 << 30;
const MIB: usize = 1 << 20;

impl Images {
    /// No images so far. All of them are sparse if `sparse`.
    #[must_use]
    pub fn new(sparse: bool) -> Self {
        Self {
            sparse,
            kept: RefCell::default(),
            sources: RefCell::default(),
        }
    }

    /// An image on `medium`. It may have the content of an earlier run; `home` is the directory for
    /// an image of this run alone.
    ///
    /// # Errors
    /// The error of the medium.
    pub fn get(&self, medium: &Path, room: Room, home: &Path) -> Result<PathBuf> {
        if !self.sparse && !room.sparse {
            let mut kept = self.kept.borrow_mut();
            let like = |one: &Kept| one.medium == medium && one.bytes == room.bytes;
            let at = match kept.iter().position(like) {
                Some(at) => at,
                None => {
                    kept.push(Kept::new(medium, room.bytes)?);
                    kept.len() - 1
                }
            };
            if let Some(home) = kept.get(at).and_then(|one| one.home.as_ref()) {
                return Ok(home.path().join("image"));
            }
        }
        let image = home.join("image");
        let file = File::create(&image).map_err(on(&image))?;
        file.set_len(room.bytes).map_err(on(&image))?;
        Ok(image)
    }
}

impl Images {
    /// Calls `work` with `files` small files on `medium`. They are made when they are first needed.
    ///
    /// # Errors
    /// The error of the medium or of `work`.
    pub(crate) fn with_source<T>(
        &self,
        medium: &Path,
        files: u32,
        work: impl FnOnce(&Source) -> Result<T>,
    ) -> Result<T> {
        let mut sources = self.sources.borrow_mut();
        let like = |one: &&Source| one.medium == medium && one.files == files;
        if let Some(source) = sources.iter().find(like) {
            return work(source);
        }
        let source = Source::new(medium, files)?;
        let done = work(&source);
        sources.push(source);
        done
    }
}

impl Source {
    fn new(medium: &Path, files: u32) -> Result<Self> {
        let home = tempfile::Builder::new()
            .prefix("sapwood-bench-")
            .tempdir_in(medium)
            .map_err(on(medium))?;
        let archive = home.path().join("small.tar");
        small_files::make_archive(&archive, files)?;
        let tree = home.path().join("tree");
        small_files::extract(&archive, &tree)?;
        Ok(Self {
            medium: medium.to_owned(),
            files,
            tree,
            archive,
            _home: home,
        })
    }
}

impl Kept {
    fn new(medium: &Path, bytes: u64) -> Result<Self> {
        let below = rustix::fs::statfs(medium).map_err(|errno| on(medium)(errno.into()))?;
        let block = u64::try_from(below.f_bsize).unwrap_or(0);
        let free = below.f_bavail.saturating_mul(block);
        let in_memory = below.f_type == TMPFS_MAGIC;
        let home = if !in_memory && free >= bytes.saturating_add(SPARE) {
            Some(written(medium, bytes)?)
        } else {
            None
        };
        if home.is_none() && !in_memory {
            let medium = medium.display();
            eprintln!("{medium} has no room for an image that is written out; it is sparse");
        }
        Ok(Self {
            medium: medium.to_owned(),
            bytes,
            home,
        })
    }
}

/// Magic number in `statfs(2)`.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// A directory with an image of zeros that is allocated completely.
fn written(medium: &Path, bytes: u64) -> Result<tempfile::TempDir> {
    eprintln!(
        "writing out an image of {} MiB on {}",
        bytes >> 20,
        medium.display()
    );
    let home = tempfile::Builder::new()
        .prefix("sapwood-bench-")
        .tempdir_in(medium)
        .map_err(on(medium))?;
    let path = home.path().join("image");
    let mut file = File::create(&path).map_err(on(&path))?;
    let zeros = vec![0; MIB];
    let mut left = bytes;
    while left > 0 {
        let now = zeros.len().min(usize::try_from(left).unwrap_or(MIB));
        let piece = zeros.get(..now).unwrap_or(&zeros);
        file.write_all(piece).map_err(on(&path))?;
        left -= now as u64;
    }
    drop(file);
    forget_cached(&path)?;
    Ok(home)
}

/// Writes a file's cached pages back and drops them.
///
/// # Errors
/// The error of the medium.
pub fn forget_cached(path: &Path) -> Result<()> {
    let file = File::open(path).map_err(on(path))?;
    file.sync_all().map_err(on(path))?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
        .map_err(|errno| on(path)(errno.into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn images_are_kept_on_a_disk_and_sparse_where_asked() {
        let medium = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let room = |sparse| Room {
            bytes: 3 << 20,
            sparse,
            ..Room::default()
        };
        let homes = [(); 2].map(|()| tempfile::tempdir_in(medium.path()).unwrap());
        let get = |images: &Images, sparse, home: &tempfile::TempDir| {
            images
                .get(medium.path(), room(sparse), home.path())
                .unwrap()
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
