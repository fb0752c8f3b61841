//! `sapwood receive`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use sapwood::ReceiveOptions;
use sapwood::internal::btrfs_format::stream::{Command, attribute as attr, command_name};
use sapwood::internal::{ReceiveError, read_stream};

use super::choice::SubvolumeChoice;
use super::failure::{FAILED, Failure, Result, USAGE};
use super::files::{in_image, with_image};
use super::interrupt::{self, Input};
use super::{copy, output, progress};

/// For `sapwood help receive`.
pub(super) const EXAMPLES: &[(&str, &str)] = &[
    (
        "sapwood receive backup.img:snapshots < monday.stream",
        "a stream into a directory of an image",
    ),
    (
        "sapwood receive --dump -f monday.stream",
        "the commands of a stream",
    ),
];

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Directory that gets the subvolume; IMAGE: is the root of the image
    #[arg(value_name = "IMAGE:DIR", required_unless_present = "dump")]
    pub(super) place: Option<OsString>,
    /// File with the stream; - is standard input
    #[arg(short = 'f', long, value_name = "FILE", default_value = "-")]
    input: PathBuf,
    /// Print the commands of the stream, and receive nothing
    #[arg(long, conflicts_with = "place")]
    dump: bool,
    /// No progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    choice: SubvolumeChoice,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let stop = interrupt::stop();
    let input: Box<dyn Read> = if args.input == Path::new("-") {
        Box::new(Input(io::stdin()))
    } else {
        let file = File::open(&args.input);
        Box::new(Input(
            file.map_err(|error| Failure::local(&args.input, error))?,
        ))
    };
    let input = BufReader::with_capacity(1 << 20, input);
    let Some(place) = args.place.as_ref().filter(|_| !args.dump) else {
        return dump(input);
    };
    let (image, dir) = in_image(place)?;
    let mut options = ReceiveOptions::default();
    options.stop = stop;
    with_image(&image, &args.choice, false, |fs| {
        let mut bar = progress::Files::new(args.quiet, "received", copy::show);
        let received = fs.receive(&dir, input, &options, &mut |step| bar.show(step));
        bar.end();
        interrupt::check(|| "the subvolume is incomplete".to_owned())?;
        received.map(drop).map_err(failed)
    })
}

fn failed(error: sapwood::Error) -> Failure {
    match error.downcast() {
        Ok(error @ ReceiveError::NoParent(_)) => Failure::new(FAILED, error)
            .advise("receive the parent first; --top-level looks into all subvolumes"),
        Ok(error) => Failure::new(FAILED, error),
        Err(error) => error.into(),
    }
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
