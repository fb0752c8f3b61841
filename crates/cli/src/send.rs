//! `sapwood send`.

use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use sapwood::internal::{NewFile, SendError};
use sapwood::{FileSystem, SendOptions};

use super::choice::SubvolumeChoice;
use super::failure::{FAILED, Failure, Result, USAGE};
use super::files::{in_image, with_image, within_place};
use super::{copy, interrupt, output, progress};

/// For `sapwood help send`.
pub(super) const EXAMPLES: &[(&str, &str)] = &[
    (
        "sapwood send disk.img:monday -o monday.stream",
        "a read-only snapshot as a stream",
    ),
    (
        "sapwood send disk.img:tuesday -p monday -o tuesday.stream",
        "the changes since monday",
    ),
];

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The read-only snapshot
    #[arg(value_name = "IMAGE:SNAPSHOT")]
    pub(super) place: OsString,
    /// Only the changes since this read-only snapshot of the same image, which the receiver has
    #[arg(short, long, value_name = "[IMAGE:]PATH")]
    pub(super) parent: Option<OsString>,
    /// A read-only snapshot of the same image that the receiver has, to share content with; can be
    /// given several times
    #[arg(short, long, value_name = "[IMAGE:]PATH")]
    pub(super) clone_source: Vec<OsString>,
    /// Version of the stream: 1 for every receiver, 2 for holes, preallocation and large writes
    #[arg(long, value_name = "VERSION", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=2))]
    proto: u32,
    /// Send compressed extents as they are stored; needs --proto 2
    #[arg(long, requires = "proto")]
    compressed_data: bool,
    /// Only the ranges that changed, without their content; such a stream cannot be received
    #[arg(long)]
    no_data: bool,
    /// File for the stream; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// Replace a file of that name, if it is not in use
    #[arg(short, long)]
    force: bool,
    /// No progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

pub(super) fn run(args: &Args) -> Result<()> {
    interrupt::abandon_new_files();
    let (image, path) = in_image(&args.place)?;
    let mut options = SendOptions::default();
    options.version = args.proto;
    options.data = !args.no_data;
    options.compressed = args.compressed_data;
    let parent = args.parent.as_ref();
    let parent = parent.map(|parent| within_place(&image, parent, "send"));
    options.parent = parent.transpose()?;
    let sources = args.clone_source.iter();
    let sources = sources.map(|source| within_place(&image, source, "send"));
    options.clone_sources = sources.collect::<Result<_>>()?;
    let standard = args.output == Path::new("-");
    if standard && io::stdout().is_terminal() {
        let why = "a stream is not for a terminal; -o FILE stores it";
        return Err(Failure::new(USAGE, why));
    }
    with_image(&image, &args.choice, true, |fs| {
        if standard {
            let mut out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
            return send(fs, &path, &mut out, &options, args);
        }
        let file = &args.output;
        let local = |error| Failure::local(file, error);
        if file.metadata().is_ok_and(|found| !found.is_file()) {
            // A pipe or a device is written in place.
            let mut out = std::fs::File::options()
                .write(true)
                .open(file)
                .map_err(local)?;
            return send(fs, &path, &mut out, &options, args);
        }
        let new = NewFile::create(file, args.force)?;
        let mut out = BufWriter::with_capacity(1 << 20, new.file());
        send(fs, &path, &mut out, &options, args)?;
        out.flush().map_err(local)?;
        drop(out);
        Ok(new.finish()?)
    })
}

fn send(
    fs: &FileSystem,
    path: &Path,
    out: &mut dyn Write,
    options: &SendOptions,
    args: &Args,
) -> Result<()> {
    let quiet = args.quiet || args.output == Path::new("-");
    let mut bar = progress::Files::new(quiet, "sent", copy::show);
    let sent = fs.send(path, out, options, &mut |step| bar.show(step));
    bar.end();
    sent.map(drop).map_err(|error| failed(&args.output, error))
}

fn failed(file: &Path, error: sapwood::Error) -> Failure {
    match error.downcast() {
        Ok(SendError::Write(error)) if file == Path::new("-") => output::failed(error),
        Ok(SendError::Write(error)) => Failure::local(file, error),
        Ok(error @ SendError::Writable(_)) => Failure::new(FAILED, error)
            .advise("`sapwood subvolume snapshot -r` makes a read-only snapshot"),
        Ok(error) => Failure::new(FAILED, error),
        Err(error) => error.into(),
    }
}
