//! The files of an archive, put into an image: tar, cpio, and layers of containers.
//!
//! An archive may be compressed with gzip, zstd, xz or bzip2. Names are taken from the root of the
//! image, or from a directory in it, with or without a leading `/`; one with `..` is refused.
//! Symbolic links are followed within the image only, and below a directory not at all, because
//! they could lead out of it. A later entry replaces an earlier one of its name. Owners are the
//! numbers of the archive. Runs of zeros become holes.
//!
//! `tar` and `cpio` read an archive as a sequence of entries (`entry`), whatever their format says
//! them with; `extract` makes them in a file system. Nothing that an archive says is trusted: sizes
//! of headers are bounded, and an error names the entry.

mod acl;
mod compression;
mod cpio;
mod entry;
mod error;
mod extract;
mod gate;
mod overlay;
mod pax;
mod sparse;
mod tar;

use std::io::{BufReader, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::changes::Changes;
use crate::fs::FileSystem;
use crate::progress::{self, OnProgress};
use crate::{tree, vfs};
pub(crate) use compression::{is_plain, plain};
pub(crate) use cpio::CpioReader;
pub(crate) use entry::{Attributes, Entries, Entry, EntryKind, device, time};
pub use error::ArchiveError;
use error::Result;
pub(crate) use error::path;
pub(crate) use extract::{Extraction, Into, PIECE, Whiteouts, components, is_whiteout};
#[cfg(feature = "fuse")]
pub(crate) use gate::{Change, Client};
pub(crate) use overlay::{Layer, Mark, strip};
pub(crate) use pax::base64;
pub(crate) use tar::TarReader;

/// Bytes that are read of an archive at once.
const READ: usize = 64 * 1024;

/// The entries of a tar archive, which may be compressed.
///
/// # Errors
/// It cannot be read.
pub(crate) fn tar_entries<'r>(reader: impl Read + 'r) -> Result<Box<dyn Entries + 'r>> {
    let buffered = BufReader::with_capacity(READ, plain(reader)?);
    Ok(Box::new(TarReader::new(buffered)))
}

/// The entries of a cpio archive, which may be compressed.
///
/// # Errors
/// It cannot be read.
pub(crate) fn cpio_entries<'r>(reader: impl Read + 'r) -> Result<Box<dyn Entries + 'r>> {
    let buffered = BufReader::with_capacity(READ, plain(reader)?);
    Ok(Box::new(CpioReader::new(buffered)))
}

impl FileSystem {
    /// Puts the files of a tar archive into the image. An entry replaces a file of its name, and is
    /// added to a directory of its name. A directory that is not in the archive belongs to the
    /// [creator](Self::set_creator). A name that is a whiteout of a container layer is an error:
    /// [`extract_layer_into`](Self::extract_layer_into) applies it.
    ///
    /// # Errors
    /// The archive cannot be read, or the image refuses an entry. What was extracted until then
    /// stays.
    pub fn extract_tar(&self, archive: impl Read) -> crate::Result<()> {
        self.extract_tar_into("/", archive, &mut progress::ignore)
    }

    /// As [`extract_tar`](Self::extract_tar), into a directory that exists, with progress. Below
    /// any other directory than the root no symbolic link is followed.
    ///
    /// # Errors
    /// The archive cannot be read, or the image refuses an entry. What was extracted until then
    /// stays.
    pub fn extract_tar_into(
        &self,
        dir: impl AsRef<Path>,
        archive: impl Read,
        progress: &mut OnProgress<'_>,
    ) -> crate::Result<()> {
        let changes = Changes::default();
        let into = self.extracting(dir.as_ref(), Whiteouts::Refused, &changes)?;
        let extracted = Extraction::new(into).run(&mut *tar_entries(archive)?, progress);
        Ok(extracted.map(drop)?)
    }

    /// Applies a layer of a container image to a directory that exists: a tar archive whose
    /// whiteouts remove what is there (`.wh.NAME`, and `.wh..wh..opq` for all that a directory
    /// has). The archive is read twice from its start. Otherwise as
    /// [`extract_tar_into`](Self::extract_tar_into).
    ///
    /// # Errors
    /// The layer cannot be read, or the image refuses an entry. What was applied until then stays.
    pub fn extract_layer_into(
        &self,
        dir: impl AsRef<Path>,
        mut archive: impl Read + Seek,
        progress: &mut OnProgress<'_>,
    ) -> crate::Result<()> {
        let (dir, changes) = (dir.as_ref(), Changes::default());
        archive.rewind().map_err(ArchiveError::Read)?;
        let into = self.extracting(dir, Whiteouts::Applied, &changes)?;
        Extraction::new(into).whiteouts(&mut *tar_entries(&mut archive)?)?;
        archive.rewind().map_err(ArchiveError::Read)?;
        let into = self.extracting(dir, Whiteouts::Applied, &changes)?;
        let extracted = Extraction::new(into).run(&mut *tar_entries(archive)?, progress);
        Ok(extracted.map(drop)?)
    }

    /// How an archive is extracted into a directory.
    fn extracting<'a>(
        &'a self,
        dir: &Path,
        whiteouts: Whiteouts,
        changes: &'a Changes,
    ) -> Result<Into<'a>> {
        let base = Path::new("/").join(dir);
        self.read_dir(&base)?;
        let fs: &dyn vfs::FileSystem = &**self.engine();
        let node = tree::resolve(fs, base.as_os_str().as_bytes(), true);
        let node = node.map_err(|source| ArchiveError::Inode {
            path: base.clone(),
            source,
        })?;
        Ok(Into {
            fs,
            base: node,
            through_links: base == Path::new("/"),
            creator: self.creator(),
            changes,
            building: None,
            whiteouts,
            client: None,
        })
    }
}
