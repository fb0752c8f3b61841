//! `sapwood-bench`: measures Sapwood beside others, and what its mechanisms are worth.

mod command;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sapwood::Kind;
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
    /// Each mechanism of the log of btrfs on and off, in turn
    Log(command::log::Log),
    /// Empty files created and removed by many: engines, policies of ext4's inode allocator, peers
    Create(command::create::Create),
    /// Everything that users do, beside the kernel and others: what `make bench` runs
    Suite(Box<command::suite::Suite>),
    /// Serves a mount with chosen mechanisms until standard input ends; each line read is
    /// answered by a line of counters
    Serve(Serve),
    /// One process of many that create and remove files
    #[command(hide = true)]
    Crew {
        /// Directory
        dir: PathBuf,
        /// Files
        files: u32,
        /// Which of the processes
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
    /// How ext4 looks for a free inode: on, locked_search-off, spread-off, all-off
    #[arg(long, default_value = "on")]
    search: Search,
    /// Seconds from the first change of a transaction to its commit
    #[arg(long)]
    commit: Option<u64>,
    /// Request threads; 0: as many as a mount takes by itself
    #[arg(long, default_value_t = 0)]
    fuse_threads: usize,
    /// Users other than root may use the mount
    #[arg(long)]
    others: bool,
    /// Requests come through io_uring: auto, on or off
    #[arg(long, default_value = "auto", value_parser = parse_transport)]
    io_uring: Choice,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Log(log) => log.run(),
        Command::Create(create) => create.run(),
        Command::Suite(suite) => suite.run(),
        Command::Crew { dir, files, number } => create::member(&dir, files, number),
        Command::Serve(serve) => {
            let setup = Setup {
                kind: serve.kind,
                log: serve.log_policy,
                search: serve.search,
                commit: serve.commit,
                fuse_threads: serve.fuse_threads,
                others: serve.others,
                io_uring: serve.io_uring,
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
