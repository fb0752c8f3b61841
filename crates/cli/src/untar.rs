//! `sapwood untar`.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use sapwood::copy::UntarError;
use sapwood::target::Target;
use sapwood::{ArchiveError, FileSystem, Progress};

use super::choice::SubvolumeChoice;
use super::failure::{FAILED, Failure, Result, USAGE};
use super::files::with_image;
use super::interrupt::{self, Input};
use super::{copy, owner, progress};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Archive, plain or compressed with gzip, zstd, xz or bzip2; - for standard input
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
    /// The directory to put it into: of an image, of which IMAGE: is the root, or of this machine.
    /// In a mounted image the daemon makes the files, which is faster than tar
    #[arg(value_name = "IMAGE:DIR | DIR")]
    pub(super) place: OsString,
    /// No progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let (image, path) = match Target::parse(&args.place)? {
        Target::Image { image, path } => (image, path),
        Target::Local(dir) => return here(args, &dir),
    };
    let dir = PathBuf::from(OsString::from_vec(path));
    let archive = open(&args.archive)?;
    interrupt::stop();
    with_image(&image, &args.choice, false, |fs| {
        let (uid, gid, umask) = owner::chosen(None);
        fs.set_creator(uid, gid);
        fs.set_umask(umask);
        extract(fs, &dir, archive, &args.archive, args.quiet)
    })
}

/// Extracts into a directory of this machine, or of a mount.
fn here(args: &Args, dir: &Path) -> Result<()> {
    if args.choice.is_made() {
        let line = "a subvolume is chosen with IMAGE:DIR; a mount has its own";
        return Err(Failure::new(USAGE, line));
    }
    copy::spare_image(dir)?;
    let archive = open(&args.archive)?;
    let stop = interrupt::stop();
    let umask = owner::umask();
    let bar = progress::items(args.quiet, "extracted");
    let mut names = 0;
    let extracted = sapwood::copy::untar(dir, archive, umask, &stop, &mut |step| {
        if let Progress::Done { done, .. } = step {
            names = done;
        }
        copy::show(&bar, step);
    });
    bar.finish_and_clear();
    interrupt::check(|| format!("{names} entries were extracted, the last may be incomplete"))?;
    match extracted {
        Ok(report) if report.left_out == 0 => Ok(()),
        Ok(_) => Err(Failure::reported()),
        Err(UntarError::Copy(error)) => Err(copy::failure(error)),
        Err(error) => Err(Failure::new(
            FAILED,
            format_args!("{}: {error}", args.archive.display()),
        )),
    }
}

/// Opens an archive; `-` is standard input.
pub(super) fn open(archive: &Path) -> Result<Box<dyn Read + Send>> {
    if archive == Path::new("-") {
        return Ok(Box::new(Input(std::io::stdin())));
    }
    match File::open(archive) {
        Ok(file) => Ok(Box::new(Input(file))),
        Err(error) => Err(Failure::local(archive, error)),
    }
}

/// Extracts `reader`, which is called `archive` in errors.
pub(super) fn extract(
    fs: &FileSystem,
    dir: &Path,
    reader: impl Read,
    archive: &Path,
    quiet: bool,
) -> Result<()> {
    let bar = progress::items(quiet, "extracted");
    let mut names = 0;
    let extracted = fs.extract_tar_into(dir, reader, &mut |step| {
        if let Progress::Done { done, .. } = step {
            names = done;
        }
        copy::show(&bar, step);
    });
    bar.finish_and_clear();
    interrupt::check(|| format!("{names} entries were extracted, the last may be incomplete"))?;
    extracted.map_err(|error| match error {
        ArchiveError::FileSystem(error) => Failure::from(error),
        error => Failure::new(FAILED, format_args!("{}: {error}", archive.display())),
    })
}
