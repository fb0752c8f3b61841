//! Filling a file system from sources, in their order.

use std::path::Path;

use super::below::Below;
use super::input::Stopped;
use super::{BuildError, Filled, Growth, Noted, Placed, Source, Sources};
use crate::archive::{ArchiveError, Entries, Extraction, Into as Place, Layer, Scratch, Whiteouts};
use crate::changes::Changes;
use crate::copy::{self, CopyReport};
use crate::fs::FileSystem;
use crate::manifest::Manifest;
use crate::progress::{OnProgress, Stop};
use crate::tree::HeldInode;
use crate::vfs::{self, Credentials, Timestamp};

impl Sources {
    /// Fills a file system, which is called `image` in errors. Directories that no source has
    /// belong to `owner`.
    pub(crate) fn fill(
        &self,
        fs: &FileSystem,
        image: &Path,
        owner: (u32, u32),
        growth: Option<&mut Growth>,
        progress: &mut OnProgress<'_>,
    ) -> Result<Filled, BuildError> {
        let time = self.time.unwrap_or_else(Timestamp::now);
        self.storage.begin(fs, owner)?;
        let mut filling = Filling {
            fs,
            image,
            owner,
            time,
            changes: &self.changes,
            scratch: &self.scratch,
            stop: &self.stop,
            growth,
            progress,
        };
        let mut filled = Filled::default();
        for placed in &self.list {
            self.check_stop()?;
            if let Some(report) = filling.source(placed)? {
                filled.copied.add(report);
            }
        }
        for path in &self.manifests {
            Manifest::read(path)?.apply(fs, &self.changes, self.changes.time(time))?;
        }
        self.storage.finish(fs, progress)?;
        Ok(filled)
    }
}

/// A file system that is being filled.
struct Filling<'f, 'p, 'q> {
    fs: &'f FileSystem,
    image: &'f Path,
    owner: (u32, u32),
    time: Timestamp,
    changes: &'f Changes,
    scratch: &'f Scratch,
    stop: &'f Stop,
    growth: Option<&'p mut Growth>,
    progress: &'p mut OnProgress<'q>,
}

impl<'f> Filling<'f, '_, '_> {
    /// Fills it from a source. The report is of a directory.
    fn source(&mut self, placed: &Placed) -> Result<Option<CopyReport>, BuildError> {
        let at = &placed.at;
        match &placed.source {
            Source::Directory(path) => return self.copy(path, at, false).map(Some),
            Source::LayerDirectory(path) => {
                copy::list(path, |entries| self.uncover(entries, at))
                    .map_err(|error| error.of(path))?;
                return self.copy(path, at, true).map(Some);
            }
            Source::LayerTar(input) => {
                input.keep(self.scratch, |entries| self.uncover(entries, at))?;
                input.with(|entries| {
                    let into = below(self.place(Whiteouts::Refused, at)?);
                    self.grown(&mut Below::new(entries, at), |entries, progress| {
                        let layer = &mut Layer::new(entries);
                        Extraction::new(into).run(layer, progress).map(drop)
                    })
                })?;
            }
            Source::Archive(input) => {
                input.with(|entries| self.extract(entries, at, input.whiteouts()))?;
            }
            Source::Layer(input) => {
                input.keep(self.scratch, |entries| self.whiteouts(entries, at))?;
                input.with(|entries| self.extract(entries, at, Whiteouts::Applied))?;
            }
            Source::Oci(container) => {
                let image = container.open()?;
                for layer in 0..image.layers() {
                    if layer > 0 {
                        let hide = |entries: &mut dyn Entries| self.whiteouts(entries, at);
                        image.layer(layer, Some(self.scratch), hide)?;
                    }
                    let extract =
                        |entries: &mut dyn Entries| self.extract(entries, at, Whiteouts::Applied);
                    image.layer(layer, None, extract)?;
                }
            }
        }
        Ok(None)
    }

    /// Copies a directory, which may be a layer in the form of overlayfs, into the directory `at`.
    fn copy(&mut self, path: &Path, at: &[u8], layer: bool) -> Result<CopyReport, BuildError> {
        if !at.is_empty() {
            let mut into = self.place(Whiteouts::Refused, at)?;
            into.through_links = !layer;
            Extraction::new(into).make_directory(at, self.progress)?;
        }
        let (fs, image, changes) = (self.fs, self.image, self.changes);
        let (stop, progress) = (self.stop, &mut *self.progress);
        let filled = copy::fill((fs, image, at), path, layer, changes, stop, progress);
        Ok(filled?)
    }

    /// Extracts an archive into the directory `at`.
    fn extract(
        &mut self,
        entries: &mut dyn Entries,
        at: &[u8],
        whiteouts: Whiteouts,
    ) -> Result<(), ArchiveError> {
        let into = self.place(whiteouts, at)?;
        self.grown(&mut Below::new(entries, at), |entries, progress| {
            Extraction::new(into).run(entries, progress).map(drop)
        })
    }

    /// Hands the entries to `work`. The image grows for each, if it can.
    fn grown(
        &mut self,
        entries: &mut dyn Entries,
        work: impl FnOnce(&mut dyn Entries, &mut OnProgress<'_>) -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        let (fs, image) = (self.fs, self.image);
        let entries = &mut Stopped::new(entries, self.stop);
        match &mut self.growth {
            None => work(entries, self.progress),
            Some(growth) => {
                let mut grow = |more| Ok(growth.add(more, fs, image)?);
                work(&mut Noted::new(entries, &mut grow), self.progress)
            }
        }
    }

    /// Removes the names in the directory `at` that the whiteouts of a layer hide.
    fn whiteouts(&self, entries: &mut dyn Entries, at: &[u8]) -> Result<(), ArchiveError> {
        let entries = &mut Stopped::new(entries, self.stop);
        let extraction = Extraction::new(self.place(Whiteouts::Applied, at)?);
        extraction.whiteouts(&mut Below::new(entries, at))
    }

    /// Makes room for a layer in the form of overlayfs in the directory `at`.
    fn uncover(&self, entries: &mut dyn Entries, at: &[u8]) -> Result<(), ArchiveError> {
        let into = below(self.place(Whiteouts::Refused, at)?);
        let entries = &mut Stopped::new(entries, self.stop);
        Extraction::new(into).uncover(&mut Layer::new(&mut Below::new(entries, at)))
    }

    /// The root of the image, for a source that goes into the directory `at`.
    fn place<'a>(&self, whiteouts: Whiteouts, at: &'a [u8]) -> Result<Place<'a>, ArchiveError>
    where
        'f: 'a,
    {
        let fs: &dyn vfs::FileSystem = &**self.fs.engine();
        let base = HeldInode::root(fs).map_err(|source| ArchiveError::Inode {
            path: "/".into(),
            source,
        })?;
        let (uid, gid) = self.owner;
        Ok(Place {
            fs,
            base,
            through_links: true,
            at,
            creator: Credentials {
                uid,
                gid,
                umask: 0o022,
                keep_setgid: true,
            },
            changes: self.changes,
            building: Some(self.changes.time(self.time)),
            whiteouts,
            client: None,
        })
    }
}

/// The same place, where no symbolic link is followed: overlayfs follows none either.
fn below(place: Place<'_>) -> Place<'_> {
    Place {
        through_links: false,
        ..place
    }
}
