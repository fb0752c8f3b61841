//! `sapwood send`.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use sapwood::internal::{NewFile, SendError, Target, WriteBehind};
use sapwood::{FileSystem, Kind, OnProgress, Sealing, SendOptions, SendReport};

use super::choice::SubvolumeChoice;
use super::failure::{FAILED, Failure, Result, USAGE};
use super::files::{
    close, in_image, open_in_order, open_other, same_file, target, within, within_place,
};
use super::{copy, interrupt, output, progress, session};

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
    (
        "sapwood send /mnt/tuesday -p /mnt/monday -o tuesday.stream",
        "the same while the image is mounted",
    ),
    (
        "sapwood send disk.img:monday --seal -o monday.stream",
        "with checksums in monday.stream.seal, for `receive --verify`",
    ),
    (
        "sapwood send new.img -p old.img -o update.stream",
        "the changes from one ext4 image to another",
    ),
];

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The read-only snapshot of a btrfs, in an image or as a directory in a mount by Sapwood; or an
    /// ext4 image or a directory in one
    #[arg(value_name = "IMAGE[:SNAPSHOT] | DIR")]
    pub(super) place: OsString,
    /// Only the changes since this read-only snapshot of the same image or mount, or since this ext4
    /// image; the receiver has it
    #[arg(short, long, value_name = "[IMAGE:]PATH")]
    pub(super) parent: Option<OsString>,
    /// A read-only snapshot of the same image or mount that the receiver has, to share content with;
    /// can be given several times
    #[arg(short, long, value_name = "[IMAGE:]PATH")]
    pub(super) clone_source: Vec<OsString>,
    /// Name of the sent subvolume; without it the name of the snapshot or, for a whole ext4 image,
    /// of its file
    #[arg(long, value_name = "NAME")]
    name: Option<OsString>,
    /// Compare the bytes of all files of two ext4 images; otherwise a file whose inode did not
    /// change in a copy of the image counts as unchanged
    #[arg(long, requires = "parent")]
    content: bool,
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
    /// Also store checksums of the stream [default: the output's name with .seal]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    #[expect(clippy::option_option, reason = "the option, and its value")]
    seal: Option<Option<PathBuf>>,
    /// No progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mut options = SendOptions::default();
    if session::image().is_some() {
        options.stop = interrupt::stop();
    } else {
        interrupt::abandon_new_files();
    }
    options.version = args.proto;
    options.data = !args.no_data;
    options.compressed = args.compressed_data;
    options.name = args.name.clone();
    options.content = args.content;
    if args.output == Path::new("-") && io::stdout().is_terminal() {
        let why = "a stream is not for a terminal; -o FILE stores it";
        return Err(Failure::new(USAGE, why));
    }
    let seal = args.seal.as_ref();
    let seal = seal.map(|file| seal_of(&args.output, file.as_deref()));
    let seal = seal.transpose()?;
    if seal
        .as_ref()
        .is_some_and(|seal| is_one_file(seal, &args.output))
    {
        let why = "--seal and -o name the same file";
        return Err(Failure::new(USAGE, why));
    }
    if let Target::Local(dir) = Target::parse(&args.place)?
        && session::image().is_none()
        && dir.is_dir()
    {
        options.parent = args.parent.as_ref().map(PathBuf::from);
        options.clone_sources = args.clone_source.iter().map(PathBuf::from).collect();
        let seal = seal.map(|file| NewFile::create(file, args.force));
        return send_to(&Place::Mount(&dir), (&options, args), seal.transpose()?);
    }
    let (image, path) = in_image(&args.place)?;
    let sources = args.clone_source.iter();
    let sources = sources.map(|source| within_place(&image, source, "send"));
    options.clone_sources = sources.collect::<Result<_>>()?;
    within(open_in_order(&image, &args.choice)?, |fs| {
        if let Some(parent) = &args.parent {
            choose_parent(fs, &image, parent, &mut options)?;
        }
        let seal = seal.map(|file| NewFile::create(file, args.force));
        let sent = seal
            .transpose()
            .map_err(Failure::from)
            .and_then(|seal| send_to(&Place::Image(fs, &path), (&options, args), seal));
        match options.parent_image.take() {
            Some(other) => sent.and(close(other)),
            None => sent,
        }
    })
}

/// The place of a snapshot.
enum Place<'a> {
    /// A path in an open image.
    Image(&'a FileSystem, &'a Path),
    /// A directory in a mount.
    Mount(&'a Path),
}

impl Place<'_> {
    fn send(
        &self,
        out: impl Write,
        options: &SendOptions,
        progress: &mut OnProgress<'_>,
    ) -> sapwood::Result<SendReport> {
        match self {
            Self::Image(fs, path) => fs.send(path, out, options, progress),
            Self::Mount(dir) => sapwood::send(dir, out, options, progress),
        }
    }
}

/// The parent: in the same image, or for ext4 in another one.
fn choose_parent(
    fs: &FileSystem,
    image: &Path,
    parent: &OsStr,
    options: &mut SendOptions,
) -> Result<()> {
    let ext4 = fs.kind() == Kind::Ext4;
    let (other, path) = match target(parent)? {
        Target::Image { image: other, path } if ext4 => (other, OsString::from_vec(path).into()),
        Target::Local(path) if ext4 && path.exists() && !path.is_dir() => (path, PathBuf::new()),
        _ => {
            options.parent = Some(within_place(image, parent, "send")?);
            return Ok(());
        }
    };
    options.parent = Some(path);
    if !same_file(&other, image) {
        let opened = open_other(&other)?;
        options.parent_image = Some(opened);
    }
    Ok(())
}

/// Whether two names lead to one file, which need not exist.
fn is_one_file(one: &Path, two: &Path) -> bool {
    let above = |path: &Path| Path::new(".").join(path.parent().unwrap_or(path));
    one == two
        || same_file(one, two)
        || one.file_name() == two.file_name() && same_file(&above(one), &above(two))
}

/// The file of the seal of a stream.
pub(super) fn seal_of(stream: &Path, file: Option<&Path>) -> Result<PathBuf> {
    match file {
        Some(file) => Ok(file.to_owned()),
        None if stream == Path::new("-") => {
            let why = "--seal=FILE names the seal of a stream that is no file";
            Err(Failure::new(USAGE, why))
        }
        None => {
            let mut name = stream.as_os_str().to_owned();
            name.push(".seal");
            Ok(name.into())
        }
    }
}

/// Sends to the output that the options name.
fn send_to(
    place: &Place<'_>,
    (options, args): (&SendOptions, &Args),
    seal: Option<NewFile>,
) -> Result<()> {
    if args.output == Path::new("-") {
        let out = WriteBehind::new(io::stdout()).map_err(output::failed)?;
        return send(place, out, (options, args), seal);
    }
    let file = &args.output;
    let local = |error| Failure::local(file, error);
    if file.metadata().is_ok_and(|found| !found.is_file()) {
        // A pipe or a device is written in place.
        let out = std::fs::File::options().write(true).open(file);
        let out = out.and_then(WriteBehind::new).map_err(local)?;
        return send(place, out, (options, args), seal);
    }
    let new = NewFile::create(file, args.force)?;
    let out = new.file().try_clone().and_then(WriteBehind::new);
    let out = out.map_err(local)?;
    let seal = sent(place, out, (options, args), seal)?;
    // The stream is durable before its seal has a name.
    new.finish()?;
    named(seal)
}

fn send(
    place: &Place<'_>,
    out: impl Write,
    how: (&SendOptions, &Args),
    seal: Option<NewFile>,
) -> Result<()> {
    named(sent(place, out, how, seal)?)
}

/// Gives a written seal its name.
fn named(seal: Option<NewFile>) -> Result<()> {
    Ok(seal.map_or(Ok(()), NewFile::finish)?)
}

/// Writes a stream, and its seal.
fn sent(
    place: &Place<'_>,
    mut out: impl Write,
    (options, args): (&SendOptions, &Args),
    seal: Option<NewFile>,
) -> Result<Option<NewFile>> {
    let quiet = args.quiet || args.output == Path::new("-");
    let mut bar = progress::Files::new(quiet, "sent", copy::show);
    let failed = |error| failed(&args.output, error);
    let Some(seal) = seal else {
        let sent = place.send(&mut out, options, &mut |step| bar.show(step));
        bar.end();
        interrupt::check(|| "the stream is incomplete".to_owned())?;
        sent.map_err(failed)?;
        return flushed(out, args).map(|()| None);
    };
    let mut sealing = Sealing::new(out);
    let sent = place.send(&mut sealing, options, &mut |step| bar.show(step));
    bar.end();
    interrupt::check(|| "the stream is incomplete".to_owned())?;
    sent.map_err(failed)?;
    let (out, checksums) = sealing.finish();
    flushed(out, args)?;
    let written = checksums.write_to(BufWriter::new(seal.file()));
    written.map_err(|error| Failure::local(seal.path(), error))?;
    Ok(Some(seal))
}

fn flushed(mut out: impl Write, args: &Args) -> Result<()> {
    out.flush().map_err(|error| {
        if args.output == Path::new("-") {
            output::failed(error)
        } else {
            Failure::local(&args.output, error)
        }
    })
}

fn failed(file: &Path, error: sapwood::Error) -> Failure {
    match error.downcast() {
        Ok(SendError::Write(error)) if file == Path::new("-") => output::failed(error),
        Ok(SendError::Write(error)) => Failure::local(file, error),
        Ok(error @ SendError::Writable(_)) => Failure::new(FAILED, error)
            .advise("`sapwood subvolume snapshot -r` makes a read-only snapshot"),
        Ok(error @ SendError::OpenForWriting(_)) => Failure::new(FAILED, error)
            .advise("send it outside of the script, or in `sapwood shell --read-only`"),
        Ok(error) => Failure::new(FAILED, error),
        Err(error) => error.into(),
    }
}
