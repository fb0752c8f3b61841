//! `sapwood cp`: the arguments of [`sapwood::copy`], and what it prints.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sapwood::copy::{CopyCause, CopyError, CopyOptions, Place};
use sapwood::target::Target;
use sapwood::{FileSystem, Progress};

use super::choice::SubvolumeChoice;
use super::failure::{Failure, Result, USAGE};
use super::files::close;
use super::{output, owner, progress};

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
    Local(PathBuf),
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
            Target::Local(path) => return Ok(Operand::Local(path)),
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

impl Operand {
    fn place<'f>(&self, images: &'f [FileSystem]) -> Place<'f> {
        match self {
            Self::Standard => Place::Standard,
            Self::Local(path) => Place::host(path),
            Self::Image(index, path) => match images.get(*index) {
                Some(fs) => Place::image(fs, std::ffi::OsStr::from_bytes(path)),
                None => Place::Standard,
            },
        }
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
    let mut named = Images::default();
    let sources = sources.iter().map(|place| named.operand(place, false));
    let sources = sources.collect::<Result<Vec<_>>>()?;
    let destination = named.operand(destination, true)?;
    if args.owner.is_some() && !matches!(destination, Operand::Image(..)) {
        return Err(Failure::new(USAGE, "--owner is for copies into an image"));
    }
    lift_file_limit();
    let mut images = Vec::new();
    for (image, written) in &named.0 {
        let options = args.choice.options(!written)?;
        images.push(FileSystem::open_with_options(image, &options)?);
    }
    let sources: Vec<_> = sources.iter().map(|source| source.place(&images)).collect();
    let result = copy(args, &sources, &destination.place(&images));
    drop(sources);
    for fs in images {
        close(fs)?;
    }
    result
}

fn copy(args: &Args, sources: &[Place<'_>], destination: &Place<'_>) -> Result<()> {
    let mut options = CopyOptions::default();
    options.recursive = args.recursive;
    options.archive = args.archive;
    options.owner = args.owner;
    options.umask = owner::umask();
    let bar = progress::items(args.quiet, "copied");
    let copied = sapwood::copy::copy(sources, destination, &options, &mut |step| show(&bar, step));
    bar.finish_and_clear();
    match copied.map_err(failure)?.left_out {
        0 => Ok(()),
        _ => Err(Failure::reported()),
    }
}

/// A walk holds a descriptor for each level of directories.
pub(super) fn lift_file_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = maximum;
    // With the limit as it is all but very deep trees can be copied.
    let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
}

/// Shows a step of a copy; prints what it leaves out.
pub(super) fn show(bar: &ProgressBar, step: Progress<'_>) {
    match step {
        Progress::Done { done, .. } => bar.set_position(done),
        Progress::Failed(error) => bar.suspend(|| {
            output::report(&match error.downcast_ref::<CopyError>() {
                Some(error) => said(error),
                None => Failure::new(super::failure::FAILED, error),
            });
        }),
        _ => {}
    }
}

/// The failure that ended a copy.
pub(super) fn failure(error: CopyError) -> Failure {
    match error.cause() {
        CopyCause::Closed(cause) => output::failed(cause.kind().into()),
        _ => said(&error),
    }
}

/// The line of a failed copy, with the options that the command has.
fn said(error: &CopyError) -> Failure {
    match error.cause() {
        CopyCause::NeedsRecursive => Failure::on(error.place(), "is a directory; -r copies it"),
        CopyCause::NoContent(kind) => Failure::on(
            error.place(),
            format_args!(
                "is a {}, which has no content in an image; -r copies it",
                output::kind(*kind)
            ),
        ),
        _ => Failure::new(super::failure::FAILED, error),
    }
}
