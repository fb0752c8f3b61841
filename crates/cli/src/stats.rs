//! `sapwood stats`.

mod counters;
mod prometheus;

use std::path::{Path, PathBuf};
use std::time::Duration;

use counters::{Counters, Table};
use serde::Serialize;

use super::failure::{Failure, Result};
use super::output;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Mount point, or anything below
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Print again each second, with the changes of that second
    #[arg(short, long)]
    watch: bool,
    /// End after this many seconds
    #[arg(long, value_name = "SECONDS", requires = "watch")]
    seconds: Option<u64>,
    /// Print JSON; with --watch an object in each line, with "total" and "change"
    #[arg(long)]
    json: bool,
    /// Print the text format of Prometheus, with the labels mount and engine
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    prometheus: bool,
}

/// A line of `--watch --json`.
#[derive(Serialize)]
struct Step<'s> {
    total: &'s Counters,
    change: &'s Counters,
}

/// Shows the counters of a mount since its start, and repeats that with `--watch`.
pub(super) fn run(args: &Args) -> Result<()> {
    let mut total = read(&args.dir)?;
    if args.prometheus {
        let page = prometheus::page(&total, &mount_point(&args.dir));
        return output::bytes(page.as_bytes());
    }
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
        if args.json {
            step(&now, &change)?
        } else {
            output::line(format_args!("\n{}", Table::of(&now).with_change(&change)))?
        }
        total = now;
    }
    Ok(())
}

/// The mount point above `dir`.
fn mount_point(dir: &Path) -> PathBuf {
    let real = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let table = crate::host::mount::mount_table().unwrap_or_default();
    let above = table
        .into_iter()
        .filter(|entry| real.starts_with(&entry.point));
    let nearest = above.max_by_key(|entry| entry.point.as_os_str().len());
    nearest.map_or(real, |entry| entry.point)
}

fn step(total: &Counters, change: &Counters) -> Result<()> {
    output::json_line(&Step { total, change })
}

fn read(dir: &Path) -> Result<Counters> {
    let json = crate::host::mount::control::stats(dir).map_err(|error| {
        let foreign = error.raw_os_error() == Some(libc::ENOTTY);
        if foreign {
            Failure::local(dir, "not in a Sapwood mount")
        } else {
            Failure::local(dir, error)
        }
    })?;
    Counters::parse(&json).map_err(|error| Failure::local(dir, error))
}
