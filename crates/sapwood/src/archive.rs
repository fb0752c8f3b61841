//! The files of an archive, put into an image: tar, cpio, and layers of containers.
//!
//! An archive may be compressed with gzip, zstd, xz or bzip2. Names are taken from the root of the
//! image, or from a directory in it, with or without a leading `/`; one with `..` is refused.
//! Symbolic links are followed within the image only, and below a directory not at all, because
//! they could lead out of it. A later entry replaces an earlier one of its name. Owners are the
//! numbers of the archive. Runs of zeros become holes.
//!
//! `tar` and `cpio` read an archive as a sequence of entries (`entry`), the same for both formats;
//! `extract` makes them in a file system. An archive is not trusted: sizes of headers are bounded,
//! and an error names the entry.

mod acl;
mod compression;
mod cpio;
mod entry;
mod error;
mod extract;
mod gate;
mod kept;
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
pub(crate) use compression::{decompressed, is_plain, plain};
pub(crate) use cpio::CpioReader;
pub(crate) use entry::{Attributes, Entries, Entry, EntryKind, device, time};
pub use error::ArchiveError;
use error::Result;
pub(crate) use error::path;
pub(crate) use extract::{Extraction, Into, PIECE, Whiteouts, components, is_whiteout};
#[cfg(feature = "fuse")]
pub(crate) use gate::{Change, Client};
pub(crate) use gate::{Final, Gate, new_inode};
pub(crate) use kept::{Kept, Scratch, Section};
pub(crate) use overlay::{Layer, Mark, strip};
pub(crate) use pax::base64;
pub(crate) use tar::TarReader;

/// Bytes that are read of an archive at once.
const READ: usize = 64 * 1024;

/// Passes the entries of a tar archive, which may be compressed, to `work`.
///
/// # Errors
/// The archive cannot be read; the error of `work`.
pub(crate) fn tar_entries<T, E: From<ArchiveError>>(
    archive: impl Read + Send,
    work: impl FnOnce(&mut dyn Entries) -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    decompressed(archive, |plain| work(&mut TarReader::new(buffered(plain))))
}

/// A buffered reader of a decompressed archive.
pub(crate) fn buffered<R: Read>(plain: R) -> BufReader<R> {
    BufReader::with_capacity(READ, plain)
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
    pub fn extract_tar(&self, archive: impl Read + Send) -> crate::Result<()> {
        self.extract_tar_into("/", archive, &mut progress::ignore)
    }

    /// Extracts a tar archive into a directory that exists, by the rules of
    /// [`extract_tar`](Self::extract_tar) and with progress. Below any other directory than the
    /// root no symbolic link is followed.
    ///
    /// # Errors
    /// The archive cannot be read, or the image refuses an entry. What was extracted until then
    /// stays.
    pub fn extract_tar_into(
        &self,
        dir: impl AsRef<Path>,
        archive: impl Read + Send,
        progress: &mut OnProgress<'_>,
    ) -> crate::Result<()> {
        let changes = Changes::default();
        let into = self.extracting(dir.as_ref(), Whiteouts::Refused, &changes)?;
        let extracted = tar_entries(archive, |entries| {
            Extraction::new(into).run(entries, progress).map(drop)
        });
        Ok(extracted?)
    }

    /// Applies a layer of a container image to a directory that exists. A layer is a tar archive.
    /// Its whiteouts remove what the layers below have: `.wh.NAME` one name, and `.wh..wh..opq`
    /// everything in a directory. The archive is read from its start; one that is not compressed is
    /// read twice. All other entries follow the rules of
    /// [`extract_tar_into`](Self::extract_tar_into).
    ///
    /// # Errors
    /// The layer cannot be read, or the image refuses an entry. What was applied until then stays.
    pub fn extract_layer_into(
        &self,
        dir: impl AsRef<Path>,
        archive: impl Read + Seek + Send,
        progress: &mut OnProgress<'_>,
    ) -> crate::Result<()> {
        Ok(self.extract_layer(dir.as_ref(), archive, progress)?)
    }

    fn extract_layer(
        &self,
        dir: &Path,
        mut archive: impl Read + Seek + Send,
        progress: &mut OnProgress<'_>,
    ) -> Result<()> {
        let changes = Changes::default();
        let into = || self.extracting(dir, Whiteouts::Applied, &changes);
        let mut start = Vec::new();
        archive.rewind()?;
        archive.by_ref().take(6).read_to_end(&mut start)?;
        archive.rewind()?;
        let hide = |plain: &mut dyn Read| {
            Extraction::new(into()?).whiteouts(&mut TarReader::new(buffered(plain)))
        };
        let mut make = |plain: &mut dyn Read| {
            let entries = &mut TarReader::new(buffered(plain));
            Extraction::new(into()?).run(entries, progress).map(drop)
        };
        if is_plain(&start) {
            hide(&mut archive)?;
            archive.rewind()?;
            return make(&mut archive);
        }
        let scratch = Scratch::default();
        let (kept, ()) = decompressed(archive, |plain| Kept::while_read(plain, &scratch, hide))?;
        make(&mut kept.reader())
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
            at: b"",
            creator: self.creator(),
            changes,
            building: None,
            whiteouts,
            client: None,
        })
    }
}
