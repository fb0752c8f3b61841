//! Filling a file system from sources, in their order.

use std::path::Path;

use super::{BuildError, Filled, Growth, Noted, Source, Sources};
use crate::archive::{ArchiveError, Entries, Extraction, Into as Place, Layer, Scratch, Whiteouts};
use crate::changes::Changes;
use crate::copy::{self, CopyReport};
use crate::fs::FileSystem;
use crate::manifest::Manifest;
use crate::progress::OnProgress;
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
            growth,
            progress,
        };
        let mut filled = Filled::default();
        for source in &self.list {
            if let Some(report) = filling.source(source)? {
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
    growth: Option<&'p mut Growth>,
    progress: &'p mut OnProgress<'q>,
}

impl<'f> Filling<'f, '_, '_> {
    /// Fills it from a source. The report is of a directory.
    fn source(&mut self, source: &Source) -> Result<Option<CopyReport>, BuildError> {
        match source {
            Source::Directory(path) => return self.copy(path, false).map(Some),
            Source::LayerDirectory(path) => {
                copy::list(path, |entries| self.uncover(entries))
                    .map_err(|error| error.of(path))?;
                return self.copy(path, true).map(Some);
            }
            Source::LayerTar(input) => {
                input.keep(self.scratch, |entries| self.uncover(entries))?;
                input.with(|entries| {
                    let into = below(self.place(Whiteouts::Refused)?);
                    self.grown(entries, |entries, progress| {
                        let layer = &mut Layer::new(entries);
                        Extraction::new(into).run(layer, progress).map(drop)
                    })
                })?;
            }
            Source::Archive(input) => {
                input.with(|entries| self.extract(entries, input.whiteouts()))?;
            }
            Source::Layer(input) => {
                input.keep(self.scratch, |entries| self.whiteouts(entries))?;
                input.with(|entries| self.extract(entries, Whiteouts::Applied))?;
            }
            Source::Oci(container) => {
                let image = container.open()?;
                for layer in 0..image.layers() {
                    if layer > 0 {
                        image
                            .layer(layer, Some(self.scratch), |entries| self.whiteouts(entries))?;
                    }
                    let extract =
                        |entries: &mut dyn Entries| self.extract(entries, Whiteouts::Applied);
                    image.layer(layer, None, extract)?;
                }
            }
        }
        Ok(None)
    }

    /// Copies a directory, which may be a layer in the form of overlayfs.
    fn copy(&mut self, path: &Path, layer: bool) -> Result<CopyReport, BuildError> {
        let (fs, image, changes) = (self.fs, self.image, self.changes);
        Ok(copy::fill(fs, image, path, layer, changes, self.progress)?)
    }

    /// Extracts an archive.
    fn extract(
        &mut self,
        entries: &mut dyn Entries,
        whiteouts: Whiteouts,
    ) -> Result<(), ArchiveError> {
        let into = self.place(whiteouts)?;
        self.grown(entries, |entries, progress| {
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
        match &mut self.growth {
            None => work(entries, self.progress),
            Some(growth) => {
                let mut grow = |more| Ok(growth.add(more, fs, image)?);
                work(&mut Noted::new(entries, &mut grow), self.progress)
            }
        }
    }

    /// Removes the names that the whiteouts of a layer hide.
    fn whiteouts(&self, entries: &mut dyn Entries) -> Result<(), ArchiveError> {
        Extraction::new(self.place(Whiteouts::Applied)?).whiteouts(entries)
    }

    /// Makes room for a layer in the form of overlayfs.
    fn uncover(&self, entries: &mut dyn Entries) -> Result<(), ArchiveError> {
        let into = below(self.place(Whiteouts::Refused)?);
        Extraction::new(into).uncover(&mut Layer::new(entries))
    }

    /// The root of the image.
    fn place(&self, whiteouts: Whiteouts) -> Result<Place<'f>, ArchiveError> {
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
