//! `sapwood cp`: files between this machine and images, without a mount.
//!
//! Both sides are a [`Side`]; a copy walks the source and makes the same at the destination, with several threads for the
//! content of files ([`walk`]). What the user names may lead through symbolic links; below it a copy follows none
//! ([`side`]). `-a` keeps owner, mode, times, xattrs (with ACLs), hard links, special files and holes. Without `-a` a copy
//! belongs to the caller and has no set-id bits.

mod image_side;
mod local_node;
mod local_side;
mod one;
mod side;
mod walk;

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use indicatif::ProgressBar;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sapwood::target::Target;
use sapwood_vfs::FileKind;

use super::choice::SubvolumeChoice;
use super::failure::{Failure, Result, USAGE};
use super::{output, owner, progress};
use image_side::ImageSide;
use local_side::LocalSide;
use side::{Found, Rules, Side};
use walk::{Copy, Place};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What to copy, then where to; each [IMAGE:]PATH, or - for standard input or output
    #[arg(value_name = "SOURCE... DESTINATION", required = true, num_args = 2..)]
    pub(super) places: Vec<OsString>,
    /// Copy directories with all below them
    #[arg(short, long)]
    recursive: bool,
    /// As -r, and keep owner, mode, times, extended attributes, hard links and special files
    #[arg(short, long)]
    archive: bool,
    /// Owner of what is made in an image [default: the user that calls; with -a the source's]
    #[arg(long, value_name = "UID:GID", value_parser = owner::parse)]
    owner: Option<(u32, u32)>,
    /// No progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

/// An operand of a copy.
enum Operand {
    /// `-`: standard input or output.
    Standard,
    /// A path of this machine.
    Local(Vec<u8>),
    /// A path in the image of this index.
    Image(usize, Vec<u8>),
}

/// Images that operands name, each with whether it is written to.
#[derive(Default)]
struct Images(Vec<(PathBuf, bool)>);

impl Images {
    fn operand(&mut self, place: &OsString, written: bool) -> Result<Operand> {
        if place == "-" {
            return Ok(Operand::Standard);
        }
        let (image, path) = match Target::parse(place)? {
            Target::Local(path) => {
                return Ok(Operand::Local(path.into_os_string().into_encoded_bytes()));
            }
            Target::Image { image, path } => (image, path),
        };
        let index = self
            .0
            .iter()
            .position(|(other, _)| same_file(other, &image));
        let index = index.unwrap_or_else(|| {
            self.0.push((image, false));
            self.0.len() - 1
        });
        if let Some((_, writable)) = self.0.get_mut(index) {
            *writable |= written;
        }
        Ok(Operand::Image(index, path))
    }
}

/// True if two paths lead to one file.
pub(super) fn same_file(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| path.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    one == other || id(one).is_some_and(|found| id(other) == Some(found))
}

pub(super) fn run(args: &Args) -> Result<()> {
    let Some((destination, sources)) = args.places.split_last() else {
        return Ok(());
    };
    let mut images = Images::default();
    let sources = sources.iter().map(|place| images.operand(place, false));
    let sources = sources.collect::<Result<Vec<_>>>()?;
    let destination = images.operand(destination, true)?;
    if args.owner.is_some() && !matches!(destination, Operand::Image(..)) {
        return Err(Failure::new(USAGE, "--owner is for copies into an image"));
    }
    lift_file_limit();
    let mut sides = Vec::new();
    for (number, (image, written)) in (0..).zip(images.0) {
        let opened = sapwood::image::open(&image, &args.choice.options(!written)?)?;
        sides.push(ImageSide::new(image, opened, number));
    }
    let result = copy_all(args, &sources, &destination, &sides);
    for side in &sides {
        let ended = side.fs().unmount();
        ended.map_err(|error| Failure::local(side.image(), error))?;
    }
    result
}

/// A walk holds a descriptor for each level of directories.
fn lift_file_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = maximum;
    // With the limit as it is all but very deep trees can be copied.
    let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
}

fn bar(quiet: bool) -> ProgressBar {
    match quiet {
        true => ProgressBar::hidden(),
        false => progress::items("copied"),
    }
}

/// Where copies go, and the names that this command made there.
struct Destination<'d> {
    side: &'d dyn Side,
    path: &'d [u8],
    made: HashSet<Vec<u8>>,
}

fn copy_all(
    args: &Args,
    sources: &[Operand],
    destination: &Operand,
    sides: &[ImageSide],
) -> Result<()> {
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
        let found = to.side.find(to.path, true)?;
        if found.is_none_or(|node| node.meta().kind != FileKind::Directory) {
            return Err(Failure::on(output::name(to.path), "is no directory"));
        }
    }
    let (bar, failures) = (bar(args.quiet), AtomicU64::new(0));
    let rules = Rules {
        archive: args.archive,
        owner: args.owner,
        caller: owner::caller(),
    };
    let copy = Copy {
        recursive: args.recursive || args.archive,
        rules,
        bar: &bar,
        failures: &failures,
    };
    let mut ended = Ok(());
    for source in sources {
        let copied = match source {
            Operand::Standard => from_standard(&copy, to.as_mut()),
            Operand::Local(path) => from_path(&copy, &local, path, to.as_mut()),
            Operand::Image(index, path) => from_path(&copy, side(*index), path, to.as_mut()),
        };
        ended = copy.go_on(copied);
        if ended.is_err() {
            break;
        }
    }
    bar.finish_and_clear();
    ended?;
    match failures.into_inner() {
        0 => Ok(()),
        _ => Err(Failure::reported()),
    }
}

fn from_standard(copy: &Copy<'_>, to: Option<&mut Destination<'_>>) -> Result<()> {
    let from: Found<'_> = Box::new(LocalSide::standard(false)?);
    let Some(to) = to else {
        return copy.tree(
            from,
            false,
            Place::Content(Box::new(LocalSide::standard(true)?)),
        );
    };
    match to.side.find(to.path, true)? {
        Some(there) if there.meta().kind == FileKind::Directory => Err(Failure::on(
            there.shown(),
            "is a directory, and standard input has no name",
        )),
        _ => copy.tree(from, false, to.place(None, true, false)?),
    }
}

fn from_path<'s>(
    copy: &Copy<'_>,
    side: &'s dyn Side,
    path: &[u8],
    to: Option<&mut Destination<'s>>,
) -> Result<()> {
    // A slash at the end asks for what the link leads to.
    let follow = !copy.rules.archive || path.ends_with(b"/");
    let gone = || Failure::on(side.shown(path), "no such file or directory");
    let from = side.find(path, follow)?.ok_or_else(gone)?;
    let directory = from.meta().kind == FileKind::Directory;
    if path.ends_with(b"/") && !directory {
        return Err(Failure::on(from.shown(), "not a directory"));
    }
    if directory && !copy.recursive {
        return Err(Failure::on(from.shown(), "is a directory; -r copies it"));
    }
    let place = match to {
        None => Place::Content(Box::new(LocalSide::standard(true)?)),
        Some(to) => to.place(last_name(path), copy.by_content(from.meta()), directory)?,
    };
    copy.tree(from, side.is_image(), place)
}

/// The name that a copy gets in a directory. `a/..` has none: joined to the destination it would lead out of it.
fn last_name(path: &[u8]) -> Option<&[u8]> {
    let last = path
        .rsplit(|byte| *byte == b'/')
        .find(|part| !part.is_empty());
    last.filter(|name| *name != b"." && *name != b"..")
}

impl<'d> Destination<'d> {
    /// Where a source goes. `reads`: its content is copied, not the node; `directory`: it is one.
    fn place(&mut self, last: Option<&[u8]>, reads: bool, directory: bool) -> Result<Place<'d>> {
        let (side, path) = (self.side, self.path);
        let as_directory = path.ends_with(b"/") || path.ends_with(b"/.");
        let missing = || Failure::on(side.shown(path), "no such directory");
        match side.find(path, true)? {
            Some(there) if there.meta().kind == FileKind::Directory => {
                let Some(name) = last else {
                    return Ok(Place::Directory(there));
                };
                if !self.made.insert(name.to_vec()) && !directory {
                    let why = format_args!(
                        "would replace {}, which this command has made",
                        output::name(name)
                    );
                    return Err(Failure::on(there.shown(), why));
                }
                return Ok(Place::Name(there, name.to_vec()));
            }
            Some(there) if as_directory => {
                return Err(Failure::on(there.shown(), "not a directory"));
            }
            Some(there) if reads || directory => return Ok(Place::Content(there)),
            Some(_) => {}
            None if as_directory && !directory => return Err(missing()),
            None => {
                if let Some(link) = side.find(path, false)? {
                    return Err(Failure::on(
                        link.shown(),
                        "is a link to nothing, and is not written through",
                    ));
                }
            }
        }
        let (dir, name) = side.find_parent(path)?;
        match last_name(&name) {
            Some(_) => Ok(Place::Name(dir, name)),
            None => Err(missing()),
        }
    }
}

/// Copies all that is in a directory of this machine to the root of a file system. Files that cannot be read are
/// reported and left out; the number of them.
pub(super) fn fill(
    fs: &sapwood::image::Mounted,
    image: &Path,
    source: &Path,
    quiet: bool,
) -> Result<u64> {
    lift_file_limit();
    let from = LocalSide::new(source.to_owned());
    let to = ImageSide::new(image.to_owned(), fs.clone(), 0);
    let (bar, failures) = (bar(quiet), AtomicU64::new(0));
    let copy = Copy {
        recursive: true,
        rules: Rules {
            archive: true,
            owner: None,
            caller: owner::caller(),
        },
        bar: &bar,
        failures: &failures,
    };
    let gone = || Failure::local(source, "no such file or directory");
    let top = from.find(b"", true)?.ok_or_else(gone)?;
    if top.meta().kind != FileKind::Directory {
        return Err(Failure::local(source, "not a directory"));
    }
    let root = to.find(b"", true)?.ok_or_else(gone)?;
    let copied = copy.tree(top, false, Place::Directory(root));
    bar.finish_and_clear();
    copied.map(|()| failures.into_inner())
}
