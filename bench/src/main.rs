//! `sapwood-bench`: compares Sapwood with other file systems, and its mechanisms on and off.

mod command;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sapwood::Kind;
use sapwood_allocator as _;
use sapwood_bench::policy::Policy;
use sapwood_bench::serve;
use sapwood_bench::setup::{Search, Setup, parse_transport};
use sapwood_bench::workload::create;
use sapwood_fuse::Choice;

/// Benchmarks of Sapwood.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare each mechanism of the btrfs log, on and off
    Log(command::log::Log),
    /// Create and remove empty files with many workers: engines, policies of ext4's inode
    /// allocator, peers
    Create(command::create::Create),
    /// Compare all workloads with the kernel and other file systems: the command of `make bench`
    Suite(Box<command::suite::Suite>),
    /// Write the HTML and Markdown of an earlier report of `suite` once more, next to its JSON
    Page {
        /// Report, as JSON
        report: PathBuf,
    },
    /// Serve a mount with chosen mechanisms until standard input ends; each input line is answered
    /// by a line of counters
    Serve(Serve),
    /// One of many processes that create and remove files
    #[command(hide = true)]
    Worker {
        /// Directory
        dir: PathBuf,
        /// Files
        files: u32,
        /// Number of the process
        number: u32,
    },
}

#[derive(Debug, clap::Args)]
struct Serve {
    /// Image file
    image: PathBuf,
    /// Directory to mount it on
    dir: PathBuf,
    /// Engine: btrfs or ext4
    #[arg(long, default_value = "btrfs")]
    kind: Kind,
    /// Mechanisms of the log of btrfs: on, overlap-off, fast_wait-off,
    /// xattrs_when_changed-off, single_names-off, groups-off, all-off, no-log
    #[arg(long, default_value = "on")]
    log_policy: Policy,
    /// Policy of ext4's inode search: on, locked_search-off, spread-off, all-off
    #[arg(long, default_value = "on")]
    search: Search,
    /// Seconds from the first change of a transaction to its commit
    #[arg(long)]
    commit: Option<u64>,
    /// Number of request threads; 0: the mount's default
    #[arg(long, default_value_t = 0)]
    fuse_threads: usize,
    /// Let users other than root use the mount
    #[arg(long)]
    others: bool,
    /// Transport of requests over io_uring: auto, on or off
    #[arg(long, default_value = "auto", value_parser = parse_transport)]
    io_uring: Choice,
    /// Mount with no_default_permissions
    #[arg(long)]
    trusted: bool,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Log(log) => log.run(),
        Command::Create(create) => create.run(),
        Command::Suite(suite) => suite.run(),
        Command::Page { report } => command::page(&report),
        Command::Worker { dir, files, number } => create::work(&dir, files, number),
        Command::Serve(serve) => {
            let setup = Setup {
                kind: serve.kind,
                log: serve.log_policy,
                search: serve.search,
                commit: serve.commit,
                fuse_threads: serve.fuse_threads,
                others: serve.others,
                io_uring: serve.io_uring,
                trusted: serve.trusted,
            };
            serve::serve(&serve.image, &serve.dir, setup)
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sapwood-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
