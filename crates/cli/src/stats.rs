//! `sapwood stats`.

mod counters;

use std::path::{Path, PathBuf};
use std::time::Duration;

use counters::{Counters, Table};
use serde::Serialize;

use super::failure::{Failure, Result};
use super::output;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Directory that an image is mounted on, or anything below
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Print again each second, with what changed meanwhile
    #[arg(short, long)]
    watch: bool,
    /// End after so many seconds
    #[arg(long, value_name = "SECONDS", requires = "watch")]
    seconds: Option<u64>,
    /// Print JSON; with --watch an object in each line, with "total" and "change"
    #[arg(long)]
    json: bool,
}

/// A line of `--watch --json`.
#[derive(Serialize)]
struct Step<'s> {
    total: &'s Counters,
    change: &'s Counters,
}

/// Shows what the mount counted since it began, and goes on with what it counts.
pub(super) fn run(args: &Args) -> Result<()> {
    let mut total = read(&args.dir)?;
    match (args.watch, args.json) {
        (false, true) => output::object(&total)?,
        (true, true) => step(&total, &total)?,
        (_, false) => output::line(Table::of(&total))?,
    }
    let mut left = if args.watch { args.seconds } else { Some(0) };
    while left != Some(0) {
        left = left.map(|seconds| seconds - 1);
        std::thread::sleep(Duration::from_secs(1));
        let now = read(&args.dir)?;
        let change = now.since(&total);
        match args.json {
            true => step(&now, &change)?,
            false => output::line(format_args!("\n{}", Table::of(&now).with_change(&change)))?,
        }
        total = now;
    }
    Ok(())
}

fn step(total: &Counters, change: &Counters) -> Result<()> {
    output::json_line(&Step { total, change })
}

fn read(dir: &Path) -> Result<Counters> {
    let json = sapwood::mount::control::stats(dir).map_err(|error| {
        let foreign = error.raw_os_error() == Some(libc::ENOTTY);
        match foreign {
            true => Failure::local(dir, "not in a mount of ours"),
            false => Failure::local(dir, error),
        }
    })?;
    Counters::parse(&json).map_err(|error| Failure::local(dir, error))
}
