//! Copies between this machine and images, and between images, as cp(1) makes them.
//!
//! ```no_run
//! use sapwood::{CopyOptions, Place, copy};
//!
//! let fs = sapwood::open("disk.img")?;
//! let (from, to) = (Place::host("project"), Place::image(&fs, "home"));
//! copy(&[from], &to, &CopyOptions::archive(), &mut |_| {})?.complete()?;
//! fs.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it works
//! Both sides are a `Side`; a copy walks the nodes of the source and makes the same in a sink, with
//! several threads for the content of files (`walk`). A path that the caller names may lead through
//! symbolic links; below it a copy follows none (`side`). An archive copy keeps owner, mode, times,
//! xattrs, hard links, special files and holes. It removes ACLs that the source does not have. Any
//! other copy belongs to the caller and has no set-id bits. A copy within an image shares the
//! content where the format can.

mod canonical;
mod changed;
mod error;
mod image_side;
mod local_node;
mod local_side;
mod nodes;
mod one;
mod preloaded;
mod report;
#[cfg(feature = "fuse")]
mod send;
mod side;
mod stream;
mod survey;
mod unpack;
mod walk;

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub use error::{CopyCause, CopyError};
pub use unpack::{UntarError, untar};

use crate::changes::Changes;
use crate::fs::FileSystem;
use crate::progress::{OnProgress, Stop};
use crate::shown;
use crate::vfs::{Credentials, FileKind};
use changed::Changed;
use error::Result;
use image_side::ImageSide;
use local_side::LocalSide;
use report::Report;
use side::{Rules, Side, Source};
pub(crate) use survey::{Surveyor, list, survey};
use walk::{Copy, Target};

/// The metadata and kinds of files that a copy keeps, and its treatment of existing files.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CopyOptions {
    /// Copy directories with everything below them.
    pub recursive: bool,
    /// Copy recursively, and keep owner, mode, times, extended attributes, hard links and special
    /// files.
    pub archive: bool,
    /// Owner and group of every inode that the copy makes in an image. `None`: an archive copy
    /// keeps the source's; any other copy uses the effective ids of the caller.
    pub owner: Option<(u32, u32)>,
    /// Keep owner, mode, times and extended attributes, as `cp -p`.
    pub preserve: bool,
    /// Treatment of a file that has the name of a copy.
    pub existing: Existing,
    /// Permission bits that a copy in an image does not get, unless it is an archive copy.
    pub umask: u32,
    /// Permission, set-id and sticky bits of every file that is written, also of one that existed.
    /// It overrides the source and the umask. Directories are not concerned.
    pub mode: Option<u32>,
    /// Continue after a part of a file that cannot be read, which becomes a hole. Otherwise the
    /// copy of that file ends there. Either way the file is reported as left out.
    pub keep_going: bool,
    /// Ends the copy early.
    pub stop: Stop,
}

/// Treatment of a file that exists already. Directories are always merged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Existing {
    /// The copy replaces it.
    #[default]
    Replace,
    /// It stays, and the copy is left out without an error, as with `cp -n`.
    Keep,
    /// It stays unless the source was changed later, as with `cp -u`.
    KeepNewer,
}

impl Default for CopyOptions {
    /// A copy of files alone, which belongs to the caller, with the umask `0o022`.
    fn default() -> Self {
        Self {
            recursive: false,
            archive: false,
            owner: None,
            preserve: false,
            existing: Existing::Replace,
            umask: 0o022,
            mode: None,
            keep_going: false,
            stop: Stop::new(),
        }
    }
}

impl CopyOptions {
    /// Directories with everything below them, as `cp -r`.
    #[must_use]
    pub fn recursive() -> Self {
        Self {
            recursive: true,
            ..Self::default()
        }
    }

    /// Directories and everything that can be kept, as `cp -a`.
    #[must_use]
    pub fn archive() -> Self {
        Self {
            archive: true,
            ..Self::recursive()
        }
    }

    fn rules(&self) -> Rules {
        Rules {
            archive: self.archive || self.preserve,
            inherits: false,
            owner: self.owner,
            mode: self.mode.map(|mode| mode & 0o7777),
            caller: Credentials {
                uid: rustix::process::geteuid().as_raw(),
                gid: rustix::process::getegid().as_raw(),
                umask: self.umask,
                keep_setgid: true,
            },
        }
    }
}

/// Counters of a copy.
#[derive(Debug, Default)]
#[must_use = "a copy leaves out what it cannot copy"]
pub struct CopyReport {
    /// Names that were copied.
    pub copied: u64,
    /// Names that were left out; each was reported as [`Progress::Failed`](crate::Progress::Failed)
    /// with its error.
    pub left_out: u64,
    /// Files that stayed as they were, because of [`CopyOptions::existing`].
    pub kept: u64,
    /// Bytes of content that were copied, without holes.
    pub bytes: u64,
    /// The error of the first name that was left out.
    pub(crate) first_error: Option<CopyError>,
}

impl CopyReport {
    /// Adds the report of a further copy.
    pub(crate) fn add(&mut self, later: Self) {
        self.copied = self.copied.saturating_add(later.copied);
        self.left_out = self.left_out.saturating_add(later.left_out);
        self.kept = self.kept.saturating_add(later.kept);
        self.bytes = self.bytes.saturating_add(later.bytes);
        if self.first_error.is_none() {
            self.first_error = later.first_error;
        }
    }

    /// The error of the first name that was left out.
    #[doc(hidden)]
    #[must_use]
    pub fn first_error(&self) -> Option<&CopyError> {
        self.first_error.as_ref()
    }

    /// The error of the first name that was left out, by value.
    #[cfg_attr(
        not(all(target_os = "linux", not(sapwood_portable))),
        allow(dead_code, reason = "of receiving into a directory")
    )]
    pub(crate) fn into_first_error(self) -> Option<CopyError> {
        self.first_error
    }

    /// The number of names that were copied, if nothing was left out.
    ///
    /// # Errors
    /// The error of the first name that was left out.
    pub fn complete(self) -> crate::Result<u64> {
        match self.first_error {
            None => Ok(self.copied),
            Some(error) => Err(error.into()),
        }
    }
}

/// A source or the destination of a copy.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Place<'f> {
    /// Standard input or standard output.
    Standard,
    /// A path of this machine.
    Host(PathBuf),
    /// A path in an image.
    Image(&'f FileSystem, PathBuf),
}

impl<'f> Place<'f> {
    /// A path of this machine.
    #[must_use]
    pub fn host(path: impl Into<PathBuf>) -> Self {
        Self::Host(path.into())
    }

    /// A path in an image.
    #[must_use]
    pub fn image(fs: &'f FileSystem, path: impl Into<PathBuf>) -> Self {
        Self::Image(fs, path.into())
    }
}

/// Copies `sources` to `destination` as cp(1): into it if it is a directory, else to that name. A
/// source that ends in `/.` is copied into the destination without its own name.
///
/// A file that cannot be copied, or a source that does not exist, is reported to `progress` and
/// left out. A walk holds a descriptor of this machine for each level of directories, and a few for
/// each processor.
///
/// # Errors
/// A failure that every further file would meet: a full or read-only destination, or a destination
/// of several sources that is no directory. Everything else is in the report.
pub fn copy(
    sources: &[Place<'_>],
    destination: &Place<'_>,
    options: &CopyOptions,
    progress: &mut OnProgress<'_>,
) -> crate::Result<CopyReport> {
    let mut images = Images::default();
    let sources: Vec<Operand> = sources.iter().map(|place| images.operand(place)).collect();
    let destination = images.operand(destination);
    let copied = copy_operands(&sources, &destination, &images.0, options, progress);
    Ok(copied?)
}

/// An operand of a copy.
enum Operand {
    Standard,
    /// A path of this machine.
    Local(Vec<u8>),
    /// A path in the image of this index.
    Image(usize, Vec<u8>),
}

/// The images that operands are in, each once.
#[derive(Default)]
struct Images(Vec<ImageSide>);

impl Images {
    fn operand(&mut self, place: &Place<'_>) -> Operand {
        let (fs, path) = match place {
            Place::Standard => return Operand::Standard,
            Place::Host(path) => return Operand::Local(path.as_os_str().as_bytes().to_vec()),
            Place::Image(fs, path) => (*fs, path),
        };
        let index = self.0.iter().position(|side| side.fs().is_same(fs));
        let index = index.unwrap_or_else(|| {
            let number = self.0.len();
            self.0.push(ImageSide::new(
                fs.image_path().to_owned(),
                fs.clone(),
                number as u64,
            ));
            number
        });
        let path = path.as_os_str().as_bytes();
        let start = path.iter().position(|byte| *byte != b'/');
        let path = path.get(start.unwrap_or(path.len())..).unwrap_or_default();
        Operand::Image(index, path.to_vec())
    }
}

/// Where copies go, and the names that this command made there.
struct Destination<'d> {
    side: &'d dyn Side,
    path: &'d [u8],
    made: HashSet<Vec<u8>>,
}

fn copy_operands(
    sources: &[Operand],
    destination: &Operand,
    sides: &[ImageSide],
    options: &CopyOptions,
    progress: &mut OnProgress<'_>,
) -> Result<CopyReport> {
    let local = LocalSide::new(PathBuf::new());
    let side = |index: usize| sides.get(index).map_or(&local as &dyn Side, |side| side);
    let mut to = match destination {
        Operand::Standard => None,
        Operand::Local(path) => Some((&local as &dyn Side, path)),
        Operand::Image(index, path) => Some((side(*index), path)),
    }
    .map(|(side, path)| Destination {
        side,
        path,
        made: HashSet::new(),
    });
    if sources.len() > 1
        && let Some(to) = &to
    {
        let found = to.side.sink(to.path, true)?;
        if found.is_none_or(|node| node.meta().kind != FileKind::Directory) {
            let place = shown::name(to.path);
            return Err(CopyError::on(place, CopyCause::DestinationNotDirectory));
        }
    }
    let report = Report::new(progress, options.stop.clone());
    let images = sides.iter().map(ImageSide::fs);
    let copy = Copy {
        canonical: images.into_iter().any(FileSystem::is_reproducible),
        recursive: options.recursive || options.archive,
        links: options.archive,
        existing: options.existing,
        keep_going: options.keep_going,
        rules: options.rules(),
        report: &report,
    };
    for source in sources {
        let copied = match source {
            Operand::Standard => from_standard(&copy, to.as_mut()),
            Operand::Local(path) => from_path(&copy, &local, path, to.as_mut()),
            Operand::Image(index, path) => from_path(&copy, side(*index), path, to.as_mut()),
        };
        copy.go_on(copied)?;
    }
    Ok(report.end())
}

fn from_standard(copy: &Copy<'_>, to: Option<&mut Destination<'_>>) -> Result<()> {
    let stop = copy.report.stop();
    let umask = copy.rules.caller.umask;
    let from: Source<'_> = Box::new(LocalSide::standard(false)?.into_input(stop, umask));
    let Some(to) = to else {
        let output = Box::new(LocalSide::standard(true)?);
        return copy.tree(from, false, Target::Content(output));
    };
    match to.side.sink(to.path, true)? {
        Some(there) if there.meta().kind == FileKind::Directory => {
            Err(CopyError::on(there.shown(), CopyCause::Nameless))
        }
        _ => copy.tree(from, false, to.target(None, true, false)?),
    }
}

fn from_path<'s>(
    copy: &Copy<'_>,
    side: &'s dyn Side,
    path: &[u8],
    to: Option<&mut Destination<'s>>,
) -> Result<()> {
    // With a slash at the end the path means the target of the link.
    let follow = !copy.links || path.ends_with(b"/");
    let gone = || CopyError::on(side.shown(path), CopyCause::Missing);
    let from = side.source(path, follow)?.ok_or_else(gone)?;
    let directory = from.meta().kind == FileKind::Directory;
    if path.ends_with(b"/") && !directory {
        return Err(CopyError::on(from.shown(), CopyCause::NotDirectory));
    }
    if directory && !copy.recursive {
        return Err(CopyError::on(from.shown(), CopyCause::NeedsRecursive));
    }
    let target = match to {
        None => Target::Content(Box::new(LocalSide::standard(true)?)),
        Some(to) => to.target(last_name(path), copy.by_content(from.meta()), directory)?,
    };
    copy.tree(from, side.is_image(), target)
}

/// The name that a copy gets in a directory. `a/..` has none, because it would lead out of the
/// destination.
fn last_name(path: &[u8]) -> Option<&[u8]> {
    let last = path
        .rsplit(|byte| *byte == b'/')
        .find(|part| !part.is_empty());
    last.filter(|name| *name != b"." && *name != b"..")
}

impl<'d> Destination<'d> {
    /// The target of one source. `reads`: its content is copied, not the node; `directory`: it is
    /// one.
    fn target(&mut self, last: Option<&[u8]>, reads: bool, directory: bool) -> Result<Target<'d>> {
        let (side, path) = (self.side, self.path);
        let as_directory = path.ends_with(b"/") || path.ends_with(b"/.");
        let missing = || CopyError::on(side.shown(path), CopyCause::NoDirectory);
        match side.sink(path, true)? {
            Some(there) if there.meta().kind == FileKind::Directory => {
                let Some(name) = last else {
                    return Ok(Target::Directory(there));
                };
                if !self.made.insert(name.to_vec()) && !directory {
                    let why = CopyCause::Replaces(shown::name(name));
                    return Err(CopyError::on(there.shown(), why));
                }
                return Ok(Target::Name(there, name.to_vec()));
            }
            Some(there) if as_directory => {
                return Err(CopyError::on(there.shown(), CopyCause::NotDirectory));
            }
            Some(there) if reads || directory => return Ok(Target::Content(there)),
            Some(_) => {}
            None if as_directory && !directory => return Err(missing()),
            None => {
                if let Some(link) = side.sink(path, false)? {
                    return Err(CopyError::on(link.shown(), CopyCause::Dangling));
                }
            }
        }
        let (dir, name) = side.sink_parent(path)?;
        match last_name(&name) {
            Some(_) => Ok(Target::Name(dir, name)),
            None => Err(missing()),
        }
    }
}

/// Copies everything in a directory of this machine, with changes, to the directory `at` of a file
/// system, which is called `image` in errors. `layer`: the source is a layer in the form of
/// overlayfs; its whiteouts and its attributes of overlayfs are left out.
pub(crate) fn fill(
    (fs, image, at): (&FileSystem, &Path, &[u8]),
    source: &Path,
    layer: bool,
    changes: &Changes,
    stop: &Stop,
    progress: &mut OnProgress<'_>,
) -> Result<CopyReport> {
    let from = LocalSide::new(source.to_owned());
    let to = ImageSide::new(image.to_owned(), fs.clone(), 0);
    let on_source = |cause| CopyError::on(source.display(), cause);
    let gone = || on_source(CopyCause::Missing);
    let top = from.source(b"", true)?.ok_or_else(gone)?;
    if top.meta().kind != FileKind::Directory {
        return Err(on_source(CopyCause::NotDirectory));
    }
    let missing = || CopyError::on(to.shown(at), CopyCause::Missing);
    let directory = to.sink(at, true)?.ok_or_else(missing)?;
    let report = Report::new(progress, stop.clone());
    let copy = Copy {
        canonical: fs.is_reproducible(),
        recursive: true,
        links: true,
        existing: Existing::Replace,
        keep_going: false,
        rules: CopyOptions::archive().rules(),
        report: &report,
    };
    let top = Changed::new(top, at.to_vec(), layer, changes);
    copy.tree(Box::new(top), false, Target::Directory(directory))?;
    Ok(report.end())
}
