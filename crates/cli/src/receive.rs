//! `sapwood receive`.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sapwood::internal::btrfs_format::stream::{Command, attribute as attr, command_name};
use sapwood::internal::{ReceiveError, Target, TransactionError, read_stream};
use sapwood::{OnProgress, ReceiveOptions, ReceiveReport, Seal};
use serde_json::{Value, json};

use super::choice::SubvolumeChoice;
use super::failure::{FAILED, Failure, Result, USAGE};
use super::files::{in_image, open_in_bulk, within};
use super::interrupt::{self, Input};
use super::send::seal_of;
use super::sizes::size;
use super::{copy, output, progress, session};

/// For `sapwood help receive`.
pub(super) const EXAMPLES: &[(&str, &str)] = &[
    (
        "sapwood receive backup.img:snapshots < monday.stream",
        "a stream into a directory of an image",
    ),
    (
        "sapwood receive /srv/backup < monday.stream",
        "into a directory of any file system, as any user",
    ),
    (
        "sapwood receive --in-place machine.img: < update.stream",
        "an ext4 image becomes the state that another one has, or stays as it is",
    ),
    (
        "sapwood receive --resume backup.img: < monday.stream",
        "after an interruption: the rest of the stream",
    ),
    (
        "sapwood receive --verify --seal -f monday.stream",
        "verifies a stored stream, with its checksums in monday.stream.seal",
    ),
    (
        "sapwood receive --dump -f monday.stream",
        "the commands of a stream",
    ),
];

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Directory that gets the subvolume: of an image (IMAGE: is its root) or of this machine, where
    /// the subvolume becomes a directory
    #[arg(value_name = "IMAGE:DIR | DIR", required_unless_present_any = ["dump", "verify"])]
    pub(super) place: Option<OsString>,
    /// File with the stream; - is standard input
    #[arg(short = 'f', long, value_name = "FILE", default_value = "-")]
    input: PathBuf,
    /// Directory of this machine that takes the place of /: no symbolic link in DIR leads out of it
    #[arg(short = 'C', long, value_name = "CHROOT", conflicts_with_all = ["dump", "verify"])]
    chroot: Option<PathBuf>,
    /// Print the commands of the stream, and receive nothing
    #[arg(long, conflicts_with_all = ["place", "resume", "json", "verify", "seal"])]
    dump: bool,
    /// Verify the stream, and receive nothing
    #[arg(long, conflicts_with_all = ["place", "resume", "json"])]
    verify: bool,
    /// Checksums that `send --seal` stored; each part of the stream is verified before it is
    /// received [default: the input's name with .seal]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    #[expect(clippy::option_option, reason = "the option, and its value")]
    seal: Option<Option<PathBuf>>,
    /// Make the changes in DIR itself, which is the stream's parent: all or none of them, and only in
    /// an ext4 image
    #[arg(long, conflicts_with_all = ["dump", "verify", "chroot", "checkpoint"])]
    in_place: bool,
    /// Continue what an earlier receive of the same stream left, however it ended
    #[arg(long)]
    resume: bool,
    /// Bytes of the stream after which the received part becomes durable
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    checkpoint: u64,
    /// Expand compressed extents, and write them as plain data; without it, btrfs stores them as
    /// they come
    #[arg(long, conflicts_with_all = ["dump", "verify"])]
    force_decompress: bool,
    /// Print what was received, and what the directory cannot hold, as JSON
    #[arg(long)]
    json: bool,
    /// No progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

/// Bytes of the stream that are read at once. A longer write is read directly into its own buffer.
const BUFFER: usize = 16 << 10;

pub(super) fn run(args: &Args) -> Result<()> {
    let stop = interrupt::stop();
    let input: Box<dyn Read + Send> = if args.input == Path::new("-") {
        Box::new(Input(io::stdin()))
    } else {
        let file = File::open(&args.input);
        Box::new(Input(
            file.map_err(|error| Failure::local(&args.input, error))?,
        ))
    };
    let input = BufReader::with_capacity(BUFFER, input);
    if args.verify {
        return verify(input, seal(args)?.as_ref());
    }
    let Some(place) = args.place.as_ref().filter(|_| !args.dump) else {
        return dump(input);
    };
    let mut options = ReceiveOptions::default();
    options.stop = stop;
    options.resume = args.resume;
    options.checkpoint = args.checkpoint;
    options.expand = args.force_decompress;
    options.seal = seal(args)?;
    if args.chroot.is_some() {
        options.chroot.clone_from(&args.chroot);
        copy::lift_file_limit();
        return received(args, |progress| {
            sapwood::receive(place, input, &options, progress)
        });
    }
    if args.in_place {
        return in_place(args, place, input, &options);
    }
    if let Target::Local(dir) = Target::parse(place)?
        && session::image().is_none()
        && dir.is_dir()
    {
        copy::lift_file_limit();
        return received(args, |progress| {
            sapwood::receive(&dir, input, &options, progress)
        });
    }
    let (image, dir) = in_image(place)?;
    within(open_in_bulk(&image, &args.choice)?, |fs| {
        received(args, |progress| {
            fs.receive_ahead(&dir, input, &options, progress)
        })
    })
}

/// Makes the changes of a stream in the image itself.
fn in_place(args: &Args, place: &OsStr, input: impl Read, options: &ReceiveOptions) -> Result<()> {
    if session::image().is_some() {
        let line = "--in-place is a transaction of its own, and not part of a script or a shell";
        return Err(Failure::new(USAGE, line));
    }
    let (image, dir) = match Target::parse(place)? {
        Target::Local(path) if path.is_dir() => {
            return Err(Failure::local(&path, "--in-place is for an ext4 image").with_code(USAGE));
        }
        Target::Local(path) => (path, PathBuf::new()),
        Target::Image { .. } => in_image(place)?,
    };
    // Opening for writing recovers an image. The next command would take it for unmounted.
    let reading = super::files::open(&image, &args.choice, true)?;
    let unmounted = reading.was_unmounted();
    super::files::close(reading)?;
    if !unmounted {
        return Err(failed(ReceiveError::NotUnmounted(image).into()));
    }
    let mut fs = super::files::open(&image, &args.choice, false)?;
    let ended = || "nothing was changed".to_owned();
    let done = run_receive(args, ended, |progress| {
        fs.receive_in_place(&dir, input, options, progress)
    });
    let closed = super::files::close(fs);
    done?;
    closed
}

/// Runs a receive and prints its report.
fn received(
    args: &Args,
    receive: impl FnOnce(&mut OnProgress<'_>) -> sapwood::Result<ReceiveReport>,
) -> Result<()> {
    let ended = || "the subvolume is incomplete, and --resume continues it".to_owned();
    run_receive(args, ended, receive)
}

/// Runs a receive and prints its report. `ended` is the state after a signal.
fn run_receive(
    args: &Args,
    ended: impl FnOnce() -> String,
    receive: impl FnOnce(&mut OnProgress<'_>) -> sapwood::Result<ReceiveReport>,
) -> Result<()> {
    let mut bar = progress::Files::new(args.quiet || args.json, "received", copy::show);
    let received = receive(&mut |step| bar.show(step));
    bar.end();
    // The error of a failed commit says which state the image has.
    let applied = |error: &sapwood::Error| {
        let transaction = error.downcast_ref::<TransactionError>();
        transaction.is_some_and(TransactionError::may_be_applied)
    };
    if received.as_ref().is_err_and(|error| !applied(error)) {
        interrupt::check(ended)?;
    }
    let report = received.map_err(|error| {
        let full = error.kind() == sapwood::ErrorKind::StorageFull;
        let full = args.in_place && full && !applied(&error);
        let failure = failed(error);
        if full {
            failure.advise("nothing was changed; new content needs free space next to the old one")
        } else {
            failure
        }
    })?;
    if args.json {
        output::object(&as_json(&report))?;
    }
    if report.left_out.is_empty() {
        return Ok(());
    }
    if !args.json {
        for one in &report.left_out {
            output::report(&Failure::new(FAILED, one));
        }
    }
    Err(Failure::reported())
}

fn as_json(report: &ReceiveReport) -> Value {
    let subvolume = |name: &Vec<u8>| {
        let (name, bytes) = output::json::text(name);
        match bytes {
            None => json!({ "name": name }),
            Some(bytes) => json!({ "name": name, "name_bytes": bytes }),
        }
    };
    let left_out = |one: &sapwood::LeftOut| {
        let (path, bytes) = output::json::text(one.first.as_os_str().as_bytes());
        let mut value = json!({
            "what": one.kind.name(), "count": one.count, "first": path, "why": one.reason,
        });
        if let (Some(bytes), Some(map)) = (bytes, value.as_object_mut()) {
            map.insert("first_bytes".to_owned(), json!(bytes));
        }
        value
    };
    json!({
        "subvolumes": report.subvolumes.iter().map(subvolume).collect::<Vec<_>>(),
        "commands": report.commands,
        "content": report.content,
        "left_out": report.left_out.iter().map(left_out).collect::<Vec<_>>(),
    })
}

fn failed(error: sapwood::Error) -> Failure {
    match error.downcast() {
        Ok(error @ ReceiveError::NoParent(_)) => Failure::new(FAILED, error)
            .advise("receive the parent first; --top-level looks into all subvolumes of an image"),
        Ok(error @ ReceiveError::Cut { .. }) => {
            Failure::new(FAILED, error).advise("--resume continues with the whole stream")
        }
        Ok(error @ ReceiveError::OtherState { .. }) => Failure::new(FAILED, error).advise(
            "nothing was changed; send the difference from this very image, or from a copy of it",
        ),
        Ok(error @ ReceiveError::NotUnmounted(_)) => Failure::new(FAILED, error).advise(
            "nothing was changed; if only a receive in place was interrupted, `e2fsck -p` recovers \
             the image and this command can be repeated; otherwise begin with a new copy",
        ),
        Ok(error @ ReceiveError::LinkedOutside(_)) => Failure::new(FAILED, error)
            .advise("nothing was changed; receive into the root, or remove one of the links"),
        Ok(error @ ReceiveError::AlreadyReceived(_)) => {
            Failure::new(FAILED, error).advise("with --resume, such a stream is skipped")
        }
        Ok(error @ ReceiveError::NoDifference) => {
            Failure::new(FAILED, error).advise("`sapwood send -p OLD NEW` makes a difference")
        }
        Ok(error @ ReceiveError::Part(_)) => {
            Failure::new(FAILED, error).advise("--resume continues it, or remove it first")
        }
        Ok(error @ (ReceiveError::NoPosition(_) | ReceiveError::OtherPart(_))) => {
            Failure::new(FAILED, error).advise("remove it, and receive the stream again")
        }
        Ok(error) => Failure::new(FAILED, error),
        Err(error) => error.into(),
    }
}

/// The seal of the stream, if there is one.
fn seal(args: &Args) -> Result<Option<Seal>> {
    let Some(file) = &args.seal else {
        return Ok(None);
    };
    let file = seal_of(&args.input, file.as_deref())?;
    let opened = File::open(&file).map_err(|error| Failure::local(&file, error))?;
    let seal = Seal::read(opened);
    let seal =
        seal.map_err(|error| Failure::new(FAILED, format!("{}: {error}", file.display())))?;
    Ok(Some(seal))
}

/// Reads a stream, verifies the checksum of each command, and all of its bytes by a seal.
fn verify(mut input: impl Read, seal: Option<&Seal>) -> Result<()> {
    let Some(seal) = seal else {
        let mut commands = 0_u64;
        let read = read_stream(input, |_| {
            commands += 1;
            Ok(())
        });
        check_verified()?;
        return read.map_err(|error: ReceiveError| {
            let error = match error {
                ReceiveError::Cut { .. } => error.to_string(),
                error => format!("after {commands} commands: {error}"),
            };
            Failure::new(FAILED, error)
        });
    };
    let mut report = |error| {
        output::report(&Failure::new(FAILED, error));
    };
    let verified = seal.verify(&mut input, &mut report);
    check_verified()?;
    let damaged = verified?;
    if damaged == 0 {
        Ok(())
    } else {
        Err(Failure::reported())
    }
}

/// Fails after a signal.
fn check_verified() -> Result<()> {
    if !interrupt::came() {
        return Ok(());
    }
    let code = 128_u8.saturating_add(u8::try_from(interrupt::signal()).unwrap_or(0));
    Err(Failure::new(
        code,
        "interrupted: the stream is not verified",
    ))
}

/// Why a dump ended.
enum Ended {
    Stream(ReceiveError),
    Output(Failure),
}

impl From<ReceiveError> for Ended {
    fn from(error: ReceiveError) -> Self {
        Self::Stream(error)
    }
}

fn dump(input: impl Read) -> Result<()> {
    let dumped = read_stream(input, |command| {
        output::line(described(command)).map_err(Ended::Output)
    });
    match dumped {
        Ok(()) => Ok(()),
        Err(Ended::Output(failure)) => Err(failure),
        Err(Ended::Stream(error @ ReceiveError::Read(_))) => Err(Failure::new(USAGE, error)),
        Err(Ended::Stream(error)) => Err(Failure::new(FAILED, error)),
    }
}

/// One line for a command: its name, its path, and its other attributes.
fn described(command: &Command<'_>) -> String {
    let mut line = command_name(command.number);
    if let Some(path) = command.find(attr::PATH) {
        let _ = write!(line, " /{}", output::name(path));
    }
    for (number, value) in command.attributes() {
        let name = attr::name(number).unwrap_or_default().to_ascii_lowercase();
        let _ = match number {
            attr::PATH => Ok(()),
            attr::PATH_TO | attr::PATH_LINK | attr::CLONE_PATH | attr::XATTR_NAME => {
                write!(line, " {name}={}", output::name(value))
            }
            attr::UUID | attr::CLONE_UUID => match value.try_into() {
                Ok(uuid) => write!(line, " {name}={}", output::uuid(uuid)),
                Err(_) => write!(line, " {name}=?"),
            },
            attr::DATA | attr::XATTR_DATA => write!(line, " {name}={} bytes", value.len()),
            attr::MODE => match command.u32(number) {
                Ok(mode) => write!(line, " {name}={mode:o}"),
                Err(_) => write!(line, " {name}=?"),
            },
            attr::CTIME | attr::MTIME | attr::ATIME | attr::OTIME => match command.time(number) {
                Ok((sec, nsec)) => write!(line, " {name}={sec}.{nsec:09}"),
                Err(_) => write!(line, " {name}=?"),
            },
            _ => match (command.u32(number), command.u64(number)) {
                (_, Ok(value)) => write!(line, " {name}={value}"),
                (Ok(value), _) => write!(line, " {name}={value}"),
                _ => write!(line, " {name}=?"),
            },
        };
    }
    line
}
