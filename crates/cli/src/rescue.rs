//! `sapwood rescue`: what is left of a damaged image, and copies of it.

mod copy;
mod deleted;
mod survey;

use std::path::{Path, PathBuf};

use sapwood::internal::image::OpenError;
use sapwood::{DeletedFiles, Kind, Options, Rescue};

use super::failure::{Failure, IMAGE, Result, USAGE};
use super::{choice, interrupt, output, progress};

/// For `sapwood help rescue copy`.
pub(super) const COPY_EXAMPLES: &[(&str, &str)] = &[
    (
        "sapwood rescue copy --deleted disk.img found",
        "removed files",
    ),
    (
        "sapwood rescue copy disk.img backup --report lost.json",
        "and a list of what is lost",
    ),
    (
        "sapwood rescue copy disk.img@1234:home home.tar",
        "a directory of an older state of a btrfs, as an archive",
    ),
];

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct Args {
    /// Image; IMAGE@GENERATION checks one state of a btrfs
    #[arg(required = true)]
    image: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// No progress
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    reading: Reading,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Copy everything that can be read to a directory or a tar archive
    Copy(copy::Args),
    /// List deleted files: of older states of a btrfs, and of the journal of an ext4
    Deleted(deleted::Args),
}

/// How a damaged image is read.
#[derive(Debug, Clone, clap::Args)]
struct Reading {
    /// Format of the image, if it no longer shows it: btrfs or ext4
    #[arg(long, value_name = "FORMAT", value_parser = kind)]
    kind: Option<Kind>,
    /// Superblock to use: a copy of btrfs (0, 1 or 2), a block of ext4
    #[arg(long = "super", value_name = "N")]
    super_block: Option<u64>,
    /// Scan the whole devices of a btrfs, also if the chunk tree says where metadata is
    #[arg(long)]
    whole: bool,
    /// State of a btrfs whose tree of roots has its root at this logical address
    #[arg(long, value_name = "ADDRESS")]
    root: Option<u64>,
    /// Read data of a btrfs also if its checksum is wrong
    #[arg(long)]
    ignore_checksums: bool,
    /// Do not replay the journal of an ext4
    #[arg(long)]
    ignore_journal: bool,
}

fn kind(text: &str) -> Result<Kind, String> {
    text.parse()
        .map_err(|error: sapwood::Error| error.to_string())
}

impl Reading {
    /// Options with this generation.
    fn options(&self, generation: Option<u64>) -> Options {
        self.choose(generation, None)
    }

    /// Options with this generation, or for these deleted files.
    fn choose(&self, generation: Option<u64>, deleted: Option<DeletedFiles>) -> Options {
        let mut rescue = Rescue::default();
        rescue.kind = self.kind;
        rescue.generation = generation;
        rescue.root = self.root;
        rescue.super_block = self.super_block;
        rescue.whole = self.whole;
        rescue.ignore_data_checksums = self.ignore_checksums;
        rescue.ignore_journal = self.ignore_journal;
        rescue.deleted = deleted;
        choice::opening(true).rescue(rescue)
    }
}

impl Args {
    /// Restricts the image to a range.
    pub(super) fn apply(&mut self, range: super::range::Range) -> Result<()> {
        match (&mut self.command, &mut self.image) {
            (Some(Command::Copy(args)), _) => args.apply(range),
            (Some(Command::Deleted(args)), _) => range.image(&mut args.image),
            (None, Some(image)) => range.image(image),
            (None, None) => Ok(()),
        }
    }
}

/// The image of an operand, and the generation that it names.
fn with_generation(image: &Path) -> (PathBuf, Option<u64>) {
    match sapwood::internal::image::state_of(image) {
        Some((image, generation)) => (image, Some(generation)),
        None => (image.to_owned(), None),
    }
}

/// Runs a scan with a progress bar, which Ctrl-C ends.
fn scan<T>(
    quiet: bool,
    work: impl FnOnce(&(dyn Fn(u64, u64) -> bool + Sync)) -> Result<T>,
) -> Result<T> {
    let stop = interrupt::stop();
    let bar = progress::scanned(quiet);
    let done = work(&|done, total| {
        bar.set_length(total);
        bar.set_position(done);
        !stop.is_stopped()
    });
    bar.finish_and_clear();
    if interrupt::came() {
        return Err(interrupt::failure("nothing was changed"));
    }
    done
}

/// The failure of opening, with what to try next.
fn failure(error: OpenError) -> Failure {
    use sapwood::internal::rescue::Failed;

    let OpenError::Rescue { source, .. } = &error else {
        return error.into();
    };
    let next = match source {
        Failed::NoGeneration { .. } | Failed::NoRootAt { .. } => {
            "`sapwood rescue IMAGE` lists the states"
        }
        Failed::NoExt4 { .. } => "--kind btrfs searches for a btrfs",
        Failed::NoBtrfs { .. } => "a partition is named as IMAGE with --partition or --offset",
        _ => return Failure::new(IMAGE, error),
    };
    Failure::new(IMAGE, error).advise(next)
}

/// Exit code 0: something can be read; 3: nothing.
pub(super) fn run(args: &Args) -> Result<()> {
    match (&args.command, &args.image) {
        (Some(Command::Copy(args)), _) => copy::run(args),
        (Some(Command::Deleted(args)), _) => deleted::run(args),
        (None, Some(image)) => survey::run(args, image),
        (None, None) => Err(Failure::new(USAGE, "rescue needs an image")),
    }
}

/// A state of a tree as text: `tree 5`.
fn tree_name(id: u64) -> String {
    match id {
        1 => "the tree of roots".to_owned(),
        2 => "the extent tree".to_owned(),
        4 => "the device tree".to_owned(),
        5 => "the top-level subvolume".to_owned(),
        7 => "the checksum tree".to_owned(),
        9 => "the UUID tree".to_owned(),
        10 => "the free-space tree".to_owned(),
        11 => "the block-group tree".to_owned(),
        256..=0xffff_ffff_ffff_ff00 => format!("subvolume {id}"),
        other if other > u64::MAX - 256 => format!("tree -{}", other.wrapping_neg()),
        other => format!("tree {other}"),
    }
}

/// Percent of blocks that are there, rounded down, so that only a whole state has 100.
fn percent(blocks: u64, missing: u64) -> u64 {
    let there = blocks.saturating_sub(missing);
    (u128::from(there) * 100 / u128::from(blocks.max(1))) as u64
}

/// A size for people.
fn size(bytes: u64) -> String {
    output::size(bytes)
}
