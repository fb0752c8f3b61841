//! `sapwood-bench`: compares Sapwood with other file systems.
//!
//! # How it works
//!
//! ```text
//! rows x contestants x media  ->  runner  ->  figures  ->  report, picture
//! ```
//!
//! A *row* is a workload ([`rows`]). A *contestant* is a way to run a file system or to make an
//! image ([`contestant`]): Sapwood through its command or in process, a file system of the kernel,
//! or another program. The [`runner`] gives each contestant a fresh file system in each round, and
//! [`statistics`] compares the figures of the same round.

mod contestant;
mod error;
mod fio;
mod image;
mod limit;
mod load;
mod machine;
mod make;
mod material;
mod oci;
mod picture;
mod place;
mod program;
mod report;
mod rows;
mod run;
mod runner;
mod stage;
mod statistics;
mod tasks;
mod workers;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Parser, Subcommand};
use sapwood_allocator as _;

use contestant::{Contestant, Programs};
use error::{Context, Result};
use report::Report;
use runner::{Case, Runner};

/// Benchmarks of Sapwood.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    part: Option<Part>,
    /// Rows (seq-8, create-48x30000) or groups of rows (fsync, image); by default all
    rows: Vec<String>,
    /// Contestants in place of the ones of the row, separated by spaces: NAME[:MOUNT-OPTION,...]
    /// [~MECHANISM,...][@PROGRAM][+again]
    #[arg(short, long, value_delimiter = ' ')]
    contestants: Vec<String>,
    /// Another sapwood for contestants like btrfs-fuse@old, as old=PATH
    #[arg(long = "program", value_name = "NAME=PATH", value_parser = program)]
    programs: Vec<(String, PathBuf)>,
    /// Directories for images; on the second and later ones, only the usual size of each row runs
    #[arg(long = "on", value_delimiter = ',', default_value = "/var/tmp")]
    media: Vec<PathBuf>,
    /// Rounds
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Seconds of a run whose workload does not end by itself
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Seconds that a run waits at most until the processors are free
    #[arg(long, default_value_t = 60)]
    patience: u64,
    /// Use sparse images, instead of one image that was written out before
    #[arg(long)]
    sparse: bool,
    /// Print rows and contestants, and run nothing
    #[arg(long)]
    list: bool,
    /// Heading of the report
    #[arg(long, default_value = "Sapwood next to the kernel")]
    title: String,
    /// Write the whole report to this path with the extensions .json, .md and .svg
    #[arg(short, long)]
    output: Option<PathBuf>,
}

/// Processes that a run starts.
#[derive(Debug, Subcommand)]
enum Part {
    /// One of many processes that create and remove files
    #[command(hide = true)]
    Worker {
        dir: PathBuf,
        files: u32,
        number: u32,
    },
    /// Serve a file system that does nothing
    #[command(hide = true)]
    Limit {
        dir: PathBuf,
        #[arg(short, default_value = "")]
        options: String,
    },
    /// Run a row in process, and print its figures
    #[command(hide = true)]
    InProcess {
        row: String,
        contestant: String,
        image: PathBuf,
        seconds: u64,
    },
}

/// Parses `NAME=PATH`.
fn program(text: &str) -> std::result::Result<(String, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("this is not NAME=PATH")?;
    Ok((name.to_owned(), path.into()))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.part {
        Some(Part::Worker { dir, files, number }) => load::worker(dir, *files, *number),
        Some(Part::Limit { dir, options }) => limit::serve(dir, options),
        Some(Part::InProcess {
            row,
            contestant,
            image,
            seconds,
        }) => in_process(row, contestant, image, *seconds),
        None => suite(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sapwood-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn in_process(row: &str, contestant: &str, image: &Path, seconds: u64) -> Result<()> {
    let contestant = Contestant::parse(contestant, &Programs(Vec::new()))?;
    let row = rows::choose(row)?[0];
    let figures = runner::in_process(row, &contestant, image, Duration::from_secs(seconds))?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

fn suite(arguments: &Arguments) -> Result<()> {
    let cases = cases(arguments)?;
    if arguments.list {
        for case in cases {
            let names: Vec<_> = case
                .contestants
                .iter()
                .map(|one| one.name.as_str())
                .collect();
            let (row, medium) = (case.row.name_at(case.size), case.medium.display());
            println!("{row} on {medium}: {}", names.join(" "));
        }
        return Ok(());
    }
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    let _watch = sapwood_fuse::signals::on_termination(move |_| {
        eprintln!("ends after this run");
        asked.store(true, Ordering::Relaxed);
    });
    let runner = Runner {
        rounds: usize::from(arguments.rounds),
        time: Duration::from_secs(arguments.seconds),
        sparse: arguments.sparse,
        patience: Duration::from_secs(arguments.patience),
    };
    let mut report = Report {
        title: arguments.title.clone(),
        machine: machine::describe(),
        rounds: runner.rounds,
        seconds: arguments.seconds,
        rows: Vec::new(),
    };
    // The report is saved after each row, so that an interruption loses none.
    let done = runner.run(&cases, &stop, |row| {
        report.rows.push(row);
        arguments
            .output
            .as_deref()
            .map_or(Ok(()), |output| save(&report, output))
    });
    println!("{}", report.summary());
    done
}

fn save(report: &Report, output: &Path) -> Result<()> {
    let json = serde_json::to_string(report)?.replace("{\"row\"", "\n{\"row\"");
    for (extension, text) in [
        ("json", json + "\n"),
        ("md", report.to_markdown()),
        ("svg", picture::svg(report)),
    ] {
        let path = output.with_extension(extension);
        std::fs::write(&path, text).on(path.display())?;
    }
    Ok(())
}

/// All rows on all media, without the contestants that cannot run here.
fn cases(arguments: &Arguments) -> Result<Vec<Case>> {
    let programs = programs(arguments)?;
    let mut rows = Vec::new();
    if arguments.rows.is_empty() {
        rows = rows::choose("all")?;
    }
    for name in &arguments.rows {
        rows.extend(rows::choose(name)?);
    }
    let named: Vec<_> = arguments.contestants.iter().map(String::as_str).collect();
    let mut cases = Vec::new();
    let mut left_out = BTreeSet::new();
    for (number, medium) in arguments.media.iter().enumerate() {
        for (row, size) in &rows {
            let names = match named.as_slice() {
                [] if number > 0 && size.count != row.usual => continue,
                [] => row.contestants(*size, number == 0),
                named => named.to_vec(),
            };
            cases.push(Case {
                row,
                size: *size,
                medium: medium.clone(),
                contestants: contestants(&names, &programs, &mut left_out)?,
            });
        }
    }
    left_out.iter().for_each(|line| eprintln!("{line}"));
    Ok(cases)
}

/// The programs by name. The unnamed one is the `sapwood` next to this program, or `SAPWOOD_BIN`.
fn programs(arguments: &Arguments) -> Result<Programs> {
    let own = match std::env::var_os("SAPWOOD_BIN") {
        Some(own) => PathBuf::from(own),
        None => std::env::current_exe()?.with_file_name("sapwood"),
    };
    let mut programs = vec![(String::new(), own)];
    programs.extend(arguments.programs.iter().cloned());
    Ok(Programs(programs))
}

/// The contestants that can run here. `left_out` gets a line for each of the others.
fn contestants(
    names: &[&str],
    programs: &Programs,
    left_out: &mut BTreeSet<String>,
) -> Result<Vec<Contestant>> {
    let mut contestants = Vec::new();
    for name in names {
        let contestant = Contestant::parse(name, programs)?;
        match contestant.missing() {
            Some(why) => {
                left_out.insert(format!("{name} is left out: {why}"));
            }
            None => contestants.push(contestant),
        }
    }
    Ok(contestants)
}
