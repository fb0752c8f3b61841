//! Filling an image that was made.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use super::subvolumes::{self, NewSubvolume};
use crate::build::BuildError;
use crate::changes::Changes;
use crate::copy::{self, CopyReport};
use crate::fs::FileSystem;
use crate::options::Options;
use crate::progress::OnProgress;
use crate::sources::{Filled, Sources};
use crate::vfs::Timestamp;

/// How a directory is put into an image.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct FillOptions {
    /// Directories that become subvolumes of btrfs.
    pub subvolumes: Vec<NewSubvolume>,
    /// Compression of btrfs, as the mount option `compress` takes it: `zstd:3`.
    pub compress: Option<String>,
    /// Times that are not the source's become this one, and the image depends on the source alone.
    pub time: Option<SystemTime>,
}

impl FillOptions {
    /// Finds what would make [`fill_with`] fail at once, before an image is made for it.
    ///
    /// # Errors
    /// [`BuildError::File`]: `source` is no directory; [`BuildError::NoSubvolume`];
    /// [`BuildError::Option`]: no such compression.
    pub fn check(&self, source: &Path) -> Result<(), BuildError> {
        fs::read_dir(source).map_err(|error| BuildError::File {
            path: source.to_owned(),
            source: error,
        })?;
        subvolumes::checked(&self.subvolumes, source)?;
        self.opening().map(drop)
    }

    fn opening(&self) -> Result<Options, BuildError> {
        let mut opening = filling(self.time.map(Into::into))?;
        if let Some(compression) = &self.compress {
            let set = opening.set("compress", Some(compression));
            set.map_err(BuildError::Option)?;
        }
        Ok(opening)
    }
}

/// Fills the image or device `image` with everything that is in the directory `source`, as
/// [`crate::ImageBuilder::from_dir`]. What cannot be copied is reported to `progress` and left out.
///
/// # Errors
/// [`BuildError::FileSystem`], [`BuildError::Copy`], [`BuildError::NoSubvolume`];
/// [`BuildError::Option`]: no such compression.
pub fn fill_with(
    image: &Path,
    source: &Path,
    options: &FillOptions,
    progress: &mut OnProgress<'_>,
) -> Result<CopyReport, BuildError> {
    let wanted = subvolumes::checked(&options.subvolumes, source)?;
    let fs = FileSystem::open_with_options(image, &options.opening()?)?;
    let filled = subvolumes::create(&fs, &wanted).and_then(|()| {
        let report = copy::fill(&fs, image, source, false, &Changes::default(), progress)?;
        subvolumes::finish(&fs, &wanted)?;
        Ok(report)
    });
    let ended = fs.close();
    let report = filled?;
    ended?;
    Ok(report)
}

/// Fills the image in `file`, which is called `image` in errors, from sources in their order. The
/// root belongs to the owner given, else to that of the last source that has one, else to the
/// caller. What cannot be copied from a directory is reported to `progress` and left out.
///
/// # Errors
/// [`BuildError`]; what was filled until then stays.
pub fn fill(
    file: &Path,
    image: &Path,
    sources: &Sources,
    root_owner: Option<(u32, u32)>,
    progress: &mut OnProgress<'_>,
) -> Result<CopyReport, BuildError> {
    let fs = FileSystem::open_with_options(file, &filling(sources.time())?)?;
    let filled = fill_open(&fs, image, sources, root_owner, progress);
    let ended = fs.close();
    let filled = filled?;
    ended?;
    Ok(filled.copied)
}

pub(super) fn fill_open(
    fs: &FileSystem,
    image: &Path,
    sources: &Sources,
    root_owner: Option<(u32, u32)>,
    progress: &mut OnProgress<'_>,
) -> Result<Filled, BuildError> {
    let owner = root_owner.unwrap_or_else(|| builder_of(sources.time()));
    fs.set_owner("/", Some(owner.0), Some(owner.1))?;
    let filled = sources.fill(fs, image, owner, progress)?;
    if let Some((uid, gid)) = root_owner.filter(|_| sources.has_dir()) {
        fs.set_owner("/", Some(uid), Some(gid))?;
    }
    Ok(filled)
}

/// How an image is open while it is filled: nothing has to be durable before the end, and what
/// waits in memory to be written only takes memory. With a time the result is reproducible.
pub(super) fn filling(time: Option<Timestamp>) -> Result<Options, BuildError> {
    let mut options = Options::default();
    if let Some(time) = time {
        options.set_reproducible(time);
    }
    for (name, value) in [
        ("cache_size", "64M"),
        ("dirty_size", "32M"),
        ("commit", "4"),
    ] {
        options.set(name, Some(value)).map_err(BuildError::Option)?;
    }
    Ok(options)
}

/// The owner of what no source has: root in an image that depends on the sources alone, else the
/// caller.
pub(super) fn builder_of(time: Option<Timestamp>) -> (u32, u32) {
    time.map_or_else(caller, |_| (0, 0))
}

fn caller() -> (u32, u32) {
    (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    )
}
