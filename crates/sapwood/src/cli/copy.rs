//! `sapwood cp`: files between this machine and images, without a mount.
//!
//! Both sides are a [`Side`]; a copy walks the source and makes the same at the destination, with several threads for what
//! files hold ([`walk`]). What `-a` keeps: owner, mode, times, xattrs (with ACLs), hard links, special files, holes.

mod image_side;
mod local_side;
mod walk;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use sapwood::target::Target;
use sapwood_vfs::{FileKind, Timestamp};

use super::SubvolumeChoice;
use super::failure::{Failure, Result};
use super::{files, progress};
use image_side::ImageSide;
use local_side::LocalSide;
use walk::Copy;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What to copy, then where to; each [IMAGE:]PATH
    #[arg(value_name = "SOURCE... DESTINATION", required = true, num_args = 2..)]
    places: Vec<OsString>,
    /// Copy directories with all below them
    #[arg(short, long)]
    recursive: bool,
    /// As -r, and keep owner, mode, times, extended attributes, hard links and special files
    #[arg(short, long)]
    archive: bool,
    /// No progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

/// What is known of a file on either side.
#[derive(Debug, Clone)]
struct Meta {
    kind: FileKind,
    perm: u32,
    uid: u32,
    gid: u32,
    rdev: u64,
    size: u64,
    nlink: u64,
    /// Identity of the inode, for hard links.
    id: (u64, u64),
    atime: Timestamp,
    mtime: Timestamp,
}

/// Takes a piece of a file: its offset and bytes.
type Sink<'s> = dyn FnMut(u64, &[u8]) -> Result<()> + 's;
/// Hands all pieces of a file to a sink.
type Fill<'f> = dyn FnMut(&mut Sink<'_>) -> Result<()> + 'f;

/// What a thread keeps from file to file.
#[derive(Debug)]
struct Scratch {
    /// Room for a piece of a file: [`CHUNK`] bytes.
    piece: Vec<u8>,
    /// Room for names, and for a value, of attributes.
    names: Vec<u8>,
    value: Vec<u8>,
}

/// Most bytes of all names, or of a value, of a file's attributes on Linux.
const XATTR_MAX: usize = 65536;

impl Default for Scratch {
    fn default() -> Self {
        Self {
            piece: vec![0; CHUNK],
            names: vec![0; XATTR_MAX],
            value: vec![0; XATTR_MAX],
        }
    }
}

/// One side of a copy. Paths are relative to the side's own root.
trait Side: Sync {
    fn meta(&self, path: &[u8]) -> Result<Option<Meta>>;
    /// Metadata of what a symbolic link at the end of the path leads to.
    fn meta_followed(&self, path: &[u8]) -> Result<Option<Meta>>;
    fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>>;
    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>>;
    fn xattrs(&self, path: &[u8], scratch: &mut Scratch) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    /// Calls `sink` with every piece of data of a file; what lies between is holes.
    fn read(&self, path: &[u8], scratch: &mut Scratch, sink: &mut Sink<'_>) -> Result<()>;
    fn make(&self, path: &[u8], meta: &Meta, target: &[u8]) -> Result<()>;
    fn link(&self, old: &[u8], new: &[u8]) -> Result<()>;
    fn remove(&self, path: &[u8]) -> Result<()>;
    /// Writes a file's content: `fill` hands over its pieces.
    fn write(&self, path: &[u8], size: u64, fill: &mut Fill<'_>) -> Result<()>;
    fn set_xattrs(&self, path: &[u8], xattrs: &[(Vec<u8>, Vec<u8>)]) -> Result<()>;
    fn set_meta(&self, path: &[u8], meta: &Meta) -> Result<()>;
    fn shown(&self, path: &[u8]) -> String;
}

pub(super) fn run(args: &Args) -> Result<()> {
    let Some((destination, sources)) = args.places.split_last() else {
        return Ok(());
    };
    let sources: Vec<Target> = sources.iter().map(|place| Target::parse(place)).collect();
    let destination = Target::parse(destination);
    let mut images: Vec<(PathBuf, bool)> = Vec::new();
    for (target, written) in sources
        .iter()
        .map(|target| (target, false))
        .chain([(&destination, true)])
    {
        let Target::Image { image, .. } = target else {
            continue;
        };
        match images.iter_mut().find(|(other, _)| other == image) {
            Some((_, writable)) => *writable |= written,
            None => images.push((image.clone(), written)),
        }
    }
    let mut open: HashMap<PathBuf, ImageSide> = HashMap::new();
    for (image, written) in images {
        let fs = sapwood::image::open(&image, &args.choice.options(!written)?)?;
        open.insert(image.clone(), ImageSide::new(image, fs));
    }
    let result = copy_all(args, &sources, &destination, &open);
    for (image, side) in &open {
        side.fs()
            .unmount()
            .map_err(|error| Failure::local(image, error))?;
    }
    result
}

fn copy_all(
    args: &Args,
    sources: &[Target],
    destination: &Target,
    open: &HashMap<PathBuf, ImageSide>,
) -> Result<()> {
    let local = LocalSide::new(PathBuf::new());
    let side = |target: &Target| -> (&dyn Side, Vec<u8>) {
        match target {
            Target::Local(path) => (&local, path.as_os_str().as_encoded_bytes().to_vec()),
            Target::Image { image, path } => match open.get(image) {
                Some(side) => (side, path.clone()),
                None => (&local, Vec::new()),
            },
        }
    };
    let (to, to_path) = side(destination);
    let into_dir = to
        .meta_followed(&to_path)?
        .is_some_and(|meta| meta.kind == FileKind::Directory);
    if sources.len() > 1 && !into_dir {
        return Err(Failure::on(to.shown(&to_path), "is no directory"));
    }
    let bar = if args.quiet {
        ProgressBar::hidden()
    } else {
        progress::items("copied")
    };
    for source in sources {
        let (from, from_path) = side(source);
        let last = from_path
            .rsplit(|byte| *byte == b'/')
            .find(|part| !part.is_empty())
            .unwrap_or_default();
        let target = if into_dir && !last.is_empty() && last != b"." {
            join(&to_path, last)
        } else {
            to_path.clone()
        };
        let copy = Copy {
            from,
            to,
            recursive: args.recursive || args.archive,
            archive: args.archive,
            bar: &bar,
        };
        copy.tree(&from_path, &target)?;
    }
    bar.finish_and_clear();
    Ok(())
}

/// Copies all that is in a directory of this machine to the root of a file system.
pub(super) fn fill(fs: &sapwood::image::Mounted, source: &Path, quiet: bool) -> Result<()> {
    let from = LocalSide::new(source.to_owned());
    let to = ImageSide::new(PathBuf::from("image"), fs.clone());
    let bar = if quiet {
        ProgressBar::hidden()
    } else {
        progress::items("copied")
    };
    let copy = Copy {
        from: &from,
        to: &to,
        recursive: true,
        archive: true,
        bar: &bar,
    };
    copy.tree(b"", b"")?;
    bar.finish_and_clear();
    Ok(())
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir {
        b"" => name.to_vec(),
        dir if dir.ends_with(b"/") => [dir, name].concat(),
        dir => [dir, b"/", name].concat(),
    }
}

/// Bytes read or written at once.
const CHUNK: usize = 1 << 20;

fn shown_in_image(image: &Path, path: &[u8]) -> String {
    format!("{}:{}", image.display(), files::shown_path(path))
}
