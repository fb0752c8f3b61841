//! An image that keeps inode numbers, blocks and names of an older one, so that the difference of
//! the two files is small.
//!
//! # How it works
//! 1. The sources fill a scratch image, as they fill any new image. It defines the tree.
//! 2. The new file gets a copy of the older image.
//! 3. `pairs` finds for each inode of the scratch image the inode of the copy that becomes it: by
//!    path, and for files that only one side has by content and by name.
//! 4. `remove` removes all other names from the copy, cuts files that become shorter, and gives back
//!    blocks that differ and cannot be overwritten: on btrfs compressed and shared extents. A commit
//!    makes this space available.
//! 5. `make` walks the scratch image in the order of names. It makes new inodes, writes the blocks
//!    of a file that differ, and sets attributes that differ. An inode that does not differ is not
//!    changed, nor are its times.
//! 6. On btrfs, changed tree blocks return to their old addresses.
//! 7. Free space is zeroed, and on ext4 unused inodes, gaps between names and the log. So the new
//!    image has no deleted content of the older one.
//!
//! One thread does all of it, with one fixed time. An ext4 is changed past its journal, a btrfs
//! overwrites data, and a file that is not complete has no name, so neither needs a recovery.

mod content;
mod make;
mod pairs;
mod remove;
mod zeroed;

use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_block::{Device, DiskFormat};
use sapwood_btrfs::places;

use crate::Kind;
use crate::archive::path;
use crate::fs::{FileSystem, verity};
use crate::image::{self, Mounted, OpenError};
use crate::inspect::{Details, Info, info};
use crate::mkfs::MkfsOptions;
use crate::new_file::NewFile;
use crate::options::Options;
use crate::progress::{OnProgress, Progress, Stop};
use crate::tree::{HeldInode, Names};
use crate::vfs::{self, TrimRange};
pub(crate) use zeroed::{Zeroed, next_data};

/// The phase of [`Progress::Done`] in which an image is made like another one. Its unit is the file.
pub const ADAPTING: &str = "adapting";

/// Bytes of the older image that are copied at a time.
const PIECE: usize = 1 << 20;

/// Why an image could not be made like an older one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LikeError {
    /// The older image cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The older image cannot be inspected.
    #[error(transparent)]
    Inspect(crate::Error),
    /// The new image is to have another format.
    #[error("{}: is {found}, and the new image is to be {wanted}", path.display())]
    Kind {
        /// The older image.
        path: PathBuf,
        /// Its format.
        found: Kind,
        /// The format of the new image.
        wanted: Kind,
    },
    /// The older image was not unmounted.
    #[error("{}: was not unmounted; `sapwood trim` recovers it", .0.display())]
    Unclean(PathBuf),
    /// The older image is one device of several.
    #[error("{}: is one of several devices of a btrfs", .0.display())]
    Several(PathBuf),
    /// There is no source.
    #[error("{}: a new image like it needs sources", .0.display())]
    NoSources(PathBuf),
    /// A file of the copy or of the scratch image.
    #[error("{}: {action} {}: {source}", image.display(), path.display())]
    File {
        /// The new image.
        image: PathBuf,
        /// The failed step.
        action: &'static str,
        /// Path of the file in the image.
        path: PathBuf,
        /// The error.
        source: vfs::Error,
    },
    /// The copy could not be written.
    #[error(transparent)]
    Device(#[from] sapwood_block::Error),
    /// The copy could not be opened or closed.
    #[error(transparent)]
    FileSystem(#[from] crate::Error),
    /// The caller stopped it.
    #[error("interrupted; no image was made")]
    Stopped,
}

/// A failure of a step at a path of the image.
struct Failed {
    action: &'static str,
    path: Vec<u8>,
    source: Cause,
}

enum Cause {
    Fs(vfs::Error),
    Stopped,
}

type Result<T, E = Failed> = std::result::Result<T, E>;

/// Adds the step and the path to an error.
fn at<'p>(action: &'static str, path: &'p [u8]) -> impl FnOnce(vfs::Error) -> Failed + 'p {
    move |source| Failed {
        action,
        path: path.to_owned(),
        source: Cause::Fs(source),
    }
}

fn check(stop: &Stop) -> Result<()> {
    if !stop.is_stopped() {
        return Ok(());
    }
    Err(Failed {
        action: "",
        path: Vec::new(),
        source: Cause::Stopped,
    })
}

/// The names in a directory, sorted.
fn names(dir: &HeldInode<'_>) -> vfs::Result<Vec<Vec<u8>>> {
    let mut listing = Names::default();
    let mut names = Vec::new();
    while let Some(entry) = listing.next(dir.file_system(), dir.ino())? {
        names.push(entry.name);
    }
    names.sort_unstable();
    Ok(names)
}

/// The node of a name in a directory, if it exists.
fn child<'a>(dir: &HeldInode<'a>, name: &[u8]) -> vfs::Result<Option<HeldInode<'a>>> {
    match dir.child(name) {
        Ok(node) => Ok(Some(node)),
        Err(vfs::Error::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The bit of fs-verity in [`Attr::layout`](vfs::Attr::layout), as `FS_IOC_GETFLAGS` has it.
const VERITY: u32 = 0x10_0000;

/// The descriptor of the hash tree of a file, if it has one. The content of such a file is never
/// changed.
fn sealed(node: &HeldInode<'_>) -> vfs::Result<Option<Vec<u8>>> {
    if node.attr().layout & VERITY == 0 {
        return Ok(None);
    }
    verity::stored(node.file_system(), node.ino())
}

/// The image that the new one is like.
#[derive(Debug, Clone)]
pub(crate) struct Older {
    path: PathBuf,
    info: Info,
}

impl Older {
    /// Reads facts about an image for a new one of this kind.
    ///
    /// # Errors
    /// [`LikeError`]: it cannot be opened, has another format, several devices or a journal on
    /// another device, or was not unmounted.
    pub(crate) fn open(path: &Path, wanted: Kind) -> Result<Self, LikeError> {
        let info = info(path).map_err(LikeError::Inspect)?;
        let (found, unclean) = match &info.details {
            Details::Btrfs { log, devices, .. } => {
                if *devices > 1 {
                    return Err(LikeError::Several(path.to_owned()));
                }
                (Kind::Btrfs, *log)
            }
            Details::Ext4 { journal, .. } => (Kind::Ext4, *journal == Some(true)),
        };
        let path = path.to_owned();
        if found != wanted {
            return Err(LikeError::Kind {
                path,
                found,
                wanted,
            });
        }
        if unclean {
            return Err(LikeError::Unclean(path));
        }
        if found == Kind::Ext4 {
            let device = image::open_device(&path, true)?;
            // A copy would use the journal of the older image.
            let internal = sapwood_ext4::refuse_external_journal(&*device);
            internal.map_err(|source| ext4_error(&path, source))?;
        }
        Ok(Self { path, info })
    }

    /// Sets the UUID of this image, which the report shows, in the options of the scratch image. On
    /// ext4 also sets the sizes of blocks and inodes, which limit attributes and their precision.
    pub(crate) fn adjust(&self, options: &mut MkfsOptions) {
        options.set_uuid(self.info.uuid);
        options.clear_size();
        if let Details::Ext4 {
            block_size,
            inode_size,
            ..
        } = self.info.details
        {
            options.set_ext4_units(block_size, inode_size);
        }
    }

    fn device(&self) -> Result<Arc<dyn Device>, OpenError> {
        image::open_device(&self.path, true)
    }

    /// Copies the image into a new file. Returns its size in bytes.
    ///
    /// # Errors
    /// [`LikeError`]: one of the two cannot be read or written.
    pub(crate) fn copy_to(&self, new: &NewFile, stop: &Stop) -> Result<u64, LikeError> {
        let old = self.device()?;
        let size = old.size();
        let device = new.device_of(size)?;
        let mut piece = vec![0; PIECE];
        let mut done = 0;
        // Only a raw image in a file of its own has its bytes at the same places in the file.
        let file = File::open(&self.path).ok().filter(|file| {
            let same = |found: Metadata| found.is_file() && found.len() == size;
            old.format() == DiskFormat::Raw && file.metadata().is_ok_and(same)
        });
        while done < size {
            if let Some(file) = &file {
                match zeroed::next_data(file, done) {
                    Some(data) if data < size => done = data,
                    _ => break,
                }
            }
            if stop.is_stopped() {
                return Err(LikeError::Stopped);
            }
            let left = usize::try_from(size - done).unwrap_or(PIECE).min(PIECE);
            let bytes = piece.get_mut(..left).unwrap_or_default();
            old.read_at(done, bytes)?;
            zeroed::write_used(&*device, done, bytes)?;
            done += left as u64;
        }
        Ok(size)
    }
}

/// Gives the image in the file `new`, a copy of `older`, the tree of the image in `scratch`.
/// `filling` has the options that open the image.
///
/// # Errors
/// [`LikeError`]; the image is not complete then.
pub(crate) fn adapt(
    older: &Older,
    new: &NewFile,
    scratch: &NewFile,
    filling: &Options,
    stop: &Stop,
    progress: &mut OnProgress<'_>,
) -> Result<(), LikeError> {
    let path = new.path();
    let reading = filling.clone().read_only(true);
    let wanted = FileSystem::open_on(scratch.device()?, path, &reading)?;
    let device = Zeroed::over(new, new.device()?)?;
    let fs = FileSystem::open_on(device.clone(), path, filling)?;
    let changed = change(&fs, &**wanted.engine(), stop, progress);
    changed.map_err(|failed| failed.of(path))?;
    wanted.close()?;
    if let Mounted::Btrfs(btrfs) = fs.engine() {
        let restored = places::restore(btrfs, &older.device()?);
        restored.map_err(|source| btrfs_error(path, source))?;
    }
    let trimmed = fs.engine().trim(&TrimRange::default());
    trimmed.map_err(|source| LikeError::free_space(path, source))?;
    close(fs, &device, path)
}

/// Erases unused parts of the new image: a resize leaves copies of the blocks that it moves, and its
/// log. `filling` has the options that open the image.
///
/// # Errors
/// [`LikeError`].
pub(crate) fn erase(new: &NewFile, filling: &Options) -> Result<(), LikeError> {
    let path = new.path();
    let device = Zeroed::over(new, new.device()?)?;
    let fs = FileSystem::open_on(device.clone(), path, filling)?;
    let trimmed = fs.engine().trim(&TrimRange::default());
    trimmed.map_err(|source| LikeError::free_space(path, source))?;
    close(fs, &device, path)
}

/// Closes the image. On ext4 also erases stale metadata.
fn close(fs: FileSystem, device: &Arc<dyn Device>, path: &Path) -> Result<(), LikeError> {
    let kind = fs.engine().image_kind();
    fs.close()?;
    if kind == Kind::Ext4 {
        let erased = sapwood_ext4::erase_unused(device);
        erased.map_err(|source| ext4_error(path, source))?;
    }
    Ok(device.flush()?)
}

fn btrfs_error(path: &Path, source: sapwood_btrfs::Error) -> OpenError {
    OpenError::Btrfs {
        path: path.to_owned(),
        source: Box::new(source),
    }
}

fn ext4_error(path: &Path, source: sapwood_ext4::Error) -> OpenError {
    OpenError::Ext4 {
        path: path.to_owned(),
        source: Box::new(source),
    }
}

/// Changes the tree of `fs` until it equals `new`.
fn change(
    fs: &FileSystem,
    new: &dyn vfs::FileSystem,
    stop: &Stop,
    progress: &mut OnProgress<'_>,
) -> Result<()> {
    let there: &dyn vfs::FileSystem = &**fs.engine();
    let kind = fs.engine().image_kind();
    let btrfs = match fs.engine() {
        Mounted::Btrfs(btrfs) => Some(&**btrfs),
        _ => None,
    };
    progress(Progress::Total(0));
    let pairs = pairs::find(there, new, stop)?;
    let stash = remove::others(there, btrfs, new, &pairs, stop)?;
    there.sync().map_err(at("commit", b""))?;
    make::all((there, kind), new, &pairs, stash, stop, progress)?;
    // Space is available to others, and therefore free, after a commit.
    there.sync().map_err(at("commit", b""))
}

impl LikeError {
    /// The free space of an image could not be zeroed.
    pub(crate) fn free_space(image: &Path, source: vfs::Error) -> Self {
        at("zero the free space of", b"")(source).of(image)
    }
}

impl Failed {
    fn of(self, image: &Path) -> LikeError {
        match self.source {
            Cause::Stopped => LikeError::Stopped,
            Cause::Fs(source) => LikeError::File {
                image: image.to_owned(),
                action: self.action,
                path: path(&[b"/", self.path.as_slice()].concat()),
                source,
            },
        }
    }
}
