//! `sapwood untar`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Stdin};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sapwood::internal::{ArchiveError, Target, UntarError};
use sapwood::{FileSystem, OnProgress, Progress};

use super::choice::SubvolumeChoice;
use super::failure::{FAILED, Failure, Result, USAGE};
use super::files::{in_image, with_image};
use super::interrupt::{self, Input};
use super::{copy, owner, progress, session};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Archive, plain or compressed with gzip, zstd, xz or bzip2; - for standard input
    #[arg(value_name = "ARCHIVE")]
    archive: PathBuf,
    /// Directory to extract into: of an image (IMAGE: is its root) or of this machine. In a mounted
    /// image the daemon creates the files, which is faster than tar
    #[arg(value_name = "IMAGE:DIR | DIR")]
    pub(super) place: OsString,
    /// Apply the archive as a layer of a container image: its whiteouts (.wh.NAME) remove files of
    /// the image
    #[arg(long)]
    layer: bool,
    /// No progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let (image, dir) = match session::image() {
        Some(_) => in_image(&args.place)?,
        None => match Target::parse(&args.place)? {
            Target::Local(dir) => return here(args, &dir),
            Target::Image { .. } => in_image(&args.place)?,
        },
    };
    let archive = Archive::open(&args.archive)?;
    interrupt::stop();
    with_image(&image, &args.choice, false, |fs| {
        let (uid, gid, umask) = owner::chosen(None);
        fs.set_creator(uid, gid);
        fs.set_umask(umask);
        let extracted = if args.layer {
            apply(fs, &dir, archive, args)?
        } else {
            with_progress(args.quiet, archive, |reader, progress| {
                fs.extract_tar_into(&dir, reader, progress)
            })?
        };
        extracted.map_err(|error| match error.downcast() {
            Ok(ArchiveError::FileSystem(error)) => Failure::from(error),
            Ok(error) => Failure::new(FAILED, format_args!("{}: {error}", args.archive.display())),
            Err(error) => Failure::from(error),
        })
    })
}

/// Applies a layer, which is read twice: a stream becomes a temporary file.
fn apply(
    fs: &FileSystem,
    dir: &Path,
    mut archive: Archive,
    args: &Args,
) -> Result<sapwood::Result<()>> {
    if archive.size.is_none() {
        let copied = tempfile::tempfile().and_then(|mut file| {
            io::copy(&mut archive, &mut file)?;
            Ok(file)
        });
        interrupt::check(|| "nothing was extracted".to_owned())?;
        let copied = copied.map_err(|error| Failure::local(&args.archive, error))?;
        archive = Archive::of(copied);
    }
    with_progress(args.quiet, archive, |reader, progress| {
        fs.extract_layer_into(dir, reader, progress)
    })
}

/// Extracts into a directory of this machine, or of a mount.
fn here(args: &Args, dir: &Path) -> Result<()> {
    if args.choice.is_made() {
        let line = "a subvolume is chosen with IMAGE:DIR; a mount has its own";
        return Err(Failure::new(USAGE, line));
    }
    if args.layer {
        let line = "--layer is for IMAGE:DIR: a layer is applied without a mount";
        return Err(Failure::new(USAGE, line));
    }
    copy::spare_image(dir)?;
    let archive = Archive::open(&args.archive)?;
    let stop = interrupt::stop();
    let umask = owner::umask();
    let extracted = with_progress(args.quiet, archive, |reader, progress| {
        sapwood::internal::untar(dir, reader, umask, &stop, progress)
    })?;
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

/// Runs an extraction with its progress: the bytes of the archive that are read, of its size.
fn with_progress<T>(
    quiet: bool,
    archive: Archive,
    extract: impl FnOnce(Archive, &mut OnProgress<'_>) -> T,
) -> Result<T> {
    let mut bar = progress::Files::new(quiet, "extracted", copy::show);
    let (size, read) = (archive.size, Arc::clone(&archive.read));
    if let Some(size) = size {
        bar.of_archive(size);
    }
    let extracted = extract(archive, &mut |step| {
        if size.is_some() {
            bar.read(read.load(Ordering::Relaxed));
        }
        match step {
            Progress::Bytes(_) if size.is_some() => {}
            step => bar.show(step),
        }
    });
    let names = bar.done();
    bar.end();
    interrupt::check(|| format!("{names} entries were extracted, the last may be incomplete"))?;
    Ok(extracted)
}

/// An archive that is being read.
struct Archive {
    source: Source,
    /// Size in bytes, if known.
    size: Option<u64>,
    /// Bytes that were read.
    read: Arc<AtomicU64>,
}

enum Source {
    File(Input<File>),
    Stdin(Input<Stdin>),
}

impl Archive {
    /// Opens an archive; `-` is standard input.
    fn open(archive: &Path) -> Result<Self> {
        if archive == Path::new("-") {
            return Ok(Self {
                source: Source::Stdin(Input(io::stdin())),
                size: None,
                read: Arc::default(),
            });
        }
        match File::open(archive) {
            Ok(file) => Ok(Self::of(file)),
            Err(error) => Err(Failure::local(archive, error)),
        }
    }

    fn of(file: File) -> Self {
        let found = file.metadata().ok().filter(std::fs::Metadata::is_file);
        Self {
            source: Source::File(Input(file)),
            size: found.map(|found| found.len()),
            read: Arc::default(),
        }
    }
}

impl Read for Archive {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = match &mut self.source {
            Source::File(input) => input.read(buf)?,
            Source::Stdin(input) => input.read(buf)?,
        };
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// A layer is read a second time from its start.
impl Seek for Archive {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let Source::File(input) = &mut self.source else {
            return Err(io::ErrorKind::NotSeekable.into());
        };
        let at = input.seek(to)?;
        self.read.store(at, Ordering::Relaxed);
        Ok(at)
    }
}
