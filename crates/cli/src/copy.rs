//! `sapwood cp`: the arguments of [`sapwood::copy`], and the output.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sapwood::internal::{CopyCause, CopyError, Target};
use sapwood::{CopyOptions, ErrorKind, Existing, FileSystem, Place, Progress, vfs};

use super::choice::SubvolumeChoice;
use super::failure::{FULL, Failure, Result, USAGE};
use super::files::{self, close, failed, same_file};
use super::progress::{self, Holes};
use super::{interrupt, mode, output, owner, session};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Sources, then the target; `help` has the text
    #[arg(value_names = ["SOURCE", "DESTINATION"], required = true, num_args = 2.., hide = true)]
    pub(super) places: Vec<OsString>,
    /// Copy directories with everything below them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Copy recursively, and keep owner, mode, times, extended attributes, hard links and special
    /// files
    #[arg(short, long)]
    archive: bool,
    /// Keep owner, mode, times and extended attributes
    #[arg(short, long)]
    preserve: bool,
    /// Keep files that exist at the destination
    #[arg(short, long, conflicts_with = "update")]
    no_clobber: bool,
    /// Keep files at the destination that are not older than the source
    #[arg(short, long)]
    update: bool,
    /// Mode of new files, in octal [default: the source's mode; for - 666 without the umask]
    #[arg(long, value_name = "MODE", value_parser = mode::octal)]
    mode: Option<u32>,
    /// Continue after a part of a file that cannot be read, which becomes a hole
    #[arg(long)]
    keep_going: bool,
    /// Report each copy
    #[arg(short, long)]
    verbose: bool,
    /// Owner of new files in an image [default: the calling user; with -a the source's owner]
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
        let (image, path) = match files::target(place)? {
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
    /// The places that a source means; a path in an image may be a pattern.
    fn expand<'f>(&self, images: &'f [FileSystem]) -> Result<Vec<Place<'f>>> {
        match self {
            Self::Image(index, path) => match images.get(*index) {
                Some(fs) => {
                    let paths = fs.glob(OsStr::from_bytes(path)).map_err(failed)?;
                    Ok(paths
                        .into_iter()
                        .map(|path| Place::image(fs, path))
                        .collect())
                }
                None => Ok(Vec::new()),
            },
            Self::Standard | Self::Local(_) => Ok(vec![self.place(images)]),
        }
    }

    fn place<'f>(&self, images: &'f [FileSystem]) -> Place<'f> {
        match self {
            Self::Standard => Place::Standard,
            Self::Local(path) => Place::host(path),
            Self::Image(index, path) => match images.get(*index) {
                Some(fs) => Place::image(fs, OsStr::from_bytes(path)),
                None => Place::Standard,
            },
        }
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let Some((destination, sources)) = args.places.split_last() else {
        return Ok(());
    };
    // Before an image is opened, so that a signal interrupts no recovery.
    interrupt::stop();
    let mut named = Images::default();
    let sources = sources.iter().map(|place| named.operand(place, false));
    let sources = sources.collect::<Result<Vec<_>>>()?;
    let destination = named.operand(destination, true)?;
    let from_here = |source: &Operand| !matches!(source, Operand::Image(..));
    if session::dir().is_some() && named.0.is_empty() {
        let line = "no place is in the image: a path in it begins with a colon, as :etc or :/etc";
        return Err(Failure::new(USAGE, line));
    }
    if let Operand::Local(path) = &destination
        && sources.iter().all(from_here)
    {
        spare_image(path)?;
    }
    if args.owner.is_some() && !matches!(destination, Operand::Image(..)) {
        return Err(Failure::new(USAGE, "--owner is for copies into an image"));
    }
    lift_file_limit();
    let mut images = Vec::new();
    for (image, written) in &named.0 {
        images.push(files::open(image, &args.choice, !written)?);
    }
    let expanded: Result<Vec<_>> = sources.iter().map(|one| one.expand(&images)).collect();
    let sources = expanded.map(std::iter::IntoIterator::into_iter);
    let result = sources.and_then(|sources| {
        let sources: Vec<_> = sources.flatten().collect();
        copy(args, &sources, &destination.place(&images))
    });
    for fs in images {
        close(fs)?;
    }
    result
}

/// Refuses to overwrite an image: the user probably forgot a colon and means a place in it.
pub(super) fn spare_image(path: &Path) -> Result<()> {
    use std::os::unix::fs::FileTypeExt;

    use sapwood::block::Error;
    use sapwood::internal::image::OpenError;

    // Opening anything else could wait, as a fifo does.
    let kind = path.metadata().map(|found| found.file_type());
    if !kind.is_ok_and(|kind| kind.is_file() || kind.is_block_device()) {
        return Ok(());
    }
    match sapwood::internal::image::open_known(path, true) {
        Ok(_) | Err(OpenError::Device(Error::Busy { .. })) => {}
        Err(_) => return Ok(()),
    }
    let image = path.display();
    let line =
        format!("{image} is an image and is not overwritten; {image}:/ is its root directory");
    Err(Failure::new(USAGE, line))
}

fn copy(args: &Args, sources: &[Place<'_>], destination: &Place<'_>) -> Result<()> {
    let mut options = CopyOptions::default();
    options.recursive = args.recursive;
    options.archive = args.archive;
    options.preserve = args.preserve;
    options.existing = match (args.no_clobber, args.update) {
        (true, _) => Existing::Keep,
        (_, true) => Existing::KeepNewer,
        _ => Existing::Replace,
    };
    options.keep_going = args.keep_going;
    options.owner = args.owner;
    options.mode = args.mode;
    options.umask = owner::umask();
    options.stop = interrupt::stop();
    let mut bar = progress::Files::new(args.quiet || args.verbose, "copied", show);
    bar.measure(sources, Holes::AreLeftOut);
    let copied = sapwood::copy(sources, destination, &options, &mut |step| match step {
        Progress::Item(item) if args.verbose => {
            // An error of standard output ends the command.
            if output::line(item).is_err() {
                options.stop.stop();
            }
        }
        step => bar.show(step),
    });
    let files = bar.done();
    bar.end();
    match copied {
        Ok(report) if report.left_out == 0 => Ok(()),
        Ok(_) => Err(Failure::reported()),
        Err(_) if output::broken() => Err(Failure::reported()),
        Err(error) if error.kind() == ErrorKind::Interrupted => {
            let done = format!("{files} files copied, the last of them perhaps in part");
            Err(interrupt::failure(&done))
        }
        Err(error) => Err(match error.downcast() {
            Ok(error) => failure(error),
            Err(error) => error.into(),
        }),
    }
}

/// A walk holds a descriptor for each level of directories.
pub(super) fn lift_file_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let current = maximum;
    // With the limit as it is all but very deep trees can be copied.
    let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
}

/// Shows a step of a copy; prints files that it leaves out.
pub(super) fn show(bar: &ProgressBar, step: Progress<'_>) {
    match step {
        Progress::Total(total) => progress::expect_items(bar, total),
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
        CopyCause::Image(vfs::Error::NoSpace) => {
            Failure::new(super::failure::FAILED, error).advise(FULL)
        }
        _ => Failure::new(super::failure::FAILED, error),
    }
}
