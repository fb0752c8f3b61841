//! `sapwood-bench`: measures what the mechanisms of the log are worth.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Parser, Subcommand};
use sapwood_bench::contestant::Face;
use sapwood_bench::machine::Machine;
use sapwood_bench::policy::Policy;
use sapwood_bench::report::Report;
use sapwood_bench::runner::Plan;
use sapwood_bench::serve::{self, Setup};
use sapwood_bench::workload::Workload;
use sapwood_bench::{Error, Result};

/// Benchmarks of Sapwood.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Each mechanism of the log on and off, in turn
    Log(Log),
    /// Serves a mount with chosen mechanisms until standard input ends; each line read is
    /// answered by a line of counters
    Serve {
        /// Image file
        image: PathBuf,
        /// Directory to mount it on
        dir: PathBuf,
        /// Mechanisms of the log: on, overlap-off, fast_wait-off, xattrs_when_changed-off,
        /// single_names-off, all-off, no-log
        #[arg(long, default_value = "on")]
        log_policy: Policy,
        /// Seconds from the first change of a transaction to its commit
        #[arg(long, default_value_t = 30)]
        commit: u64,
        /// Request threads; 0: as many as a mount takes by itself
        #[arg(long, default_value_t = 0)]
        fuse_threads: usize,
    },
}

#[derive(Debug, clap::Args)]
struct Log {
    /// Workloads: dbench-N (clients), commits-N (writers), xattr-N (attributes), seq-N and rand-N
    /// (jobs), renames-N and renames-fsync-N (files); all of the standard sizes if none is given
    #[arg(short, long = "workload", value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// Compare `on` with these only: overlap-off, fast_wait-off, xattrs_when_changed-off,
    /// single_names-off, all-off, no-log; else with those that a workload is about
    #[arg(short, long = "policy", value_delimiter = ',')]
    policies: Option<Vec<Policy>>,
    /// How Sapwood is used
    #[arg(long = "face", value_delimiter = ',', default_value = "fuse,library")]
    faces: Vec<Face>,
    /// Directories for images
    #[arg(
        long = "on",
        value_delimiter = ',',
        default_value = "/dev/shm,/var/tmp"
    )]
    media: Vec<PathBuf>,
    /// Rounds
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Seconds of a run
    #[arg(short, long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// The kernel's btrfs as a peer, mounted with -o ssd; needs root
    #[arg(long)]
    kernel: bool,
    /// Leave out the run of `on` that shows the noise
    #[arg(long)]
    no_control: bool,
    /// Seconds from the first change of a transaction to its commit; short ones show what
    /// happens beside a commit
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    commit: u64,
    /// Request threads of a mount; 0: as many as it takes by itself
    #[arg(long, default_value_t = 0)]
    fuse_threads: usize,
    /// Say what it takes, and run nothing
    #[arg(long)]
    dry_run: bool,
    /// Write the report here, with the endings .json and .md; else only show it
    #[arg(short, long)]
    output: Option<PathBuf>,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Log(log) => log.run(),
        Command::Serve {
            image,
            dir,
            log_policy,
            commit,
            fuse_threads,
        } => {
            let setup = Setup {
                policy: log_policy,
                commit,
                fuse_threads,
            };
            serve::serve(&image, &dir, setup)
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

impl Log {
    fn run(self) -> Result<()> {
        let plan = self.plan();
        let (runs, time) = plan.size();
        let minutes = time.as_secs().div_ceil(60);
        let space = sapwood_bench::contestant::IMAGE_SIZE >> 30;
        eprintln!(
            "{runs} runs, about {minutes} minutes; images of up to {space} GiB, one at a time"
        );
        if let Some(program) = missing(&plan).next() {
            let why = format!("{program} is not installed");
            return Err(Error::Refused(why));
        }
        if self.dry_run {
            return Ok(());
        }
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let _watch = sapwood_fuse::signals::on_termination(move |_| {
            eprintln!("ends after this run");
            asked.store(true, Ordering::Relaxed);
        });
        let mut report = Report {
            command: std::env::args().collect::<Vec<_>>().join(" "),
            seconds: self.seconds,
            rounds: plan.rounds,
            machine: Machine::here(),
            rows: Vec::new(),
        };
        let mut written = Ok(());
        let done = plan.run(&stop, |row| {
            report.rows.push(row);
            // After each row, so that an end half-way loses nothing.
            if let Some(output) = &self.output {
                written = save(&report, output);
            }
        });
        println!("{}", report.to_markdown());
        done.and(written)
    }

    fn plan(&self) -> Plan {
        Plan {
            workloads: match self.workloads.is_empty() {
                true => Workload::all(),
                false => self.workloads.clone(),
            },
            policies: self.policies.clone(),
            faces: self.faces.clone(),
            media: self.media.clone(),
            rounds: usize::from(self.rounds),
            seconds: self.seconds,
            kernel: self.kernel,
            control: !self.no_control,
            commit: self.commit,
            fuse_threads: self.fuse_threads,
        }
    }
}

/// Load generators that the plan needs and this machine lacks.
fn missing(plan: &Plan) -> impl Iterator<Item = &'static str> {
    let mounted = plan.faces.contains(&Face::Fuse);
    let needed = plan.workloads.iter().filter_map(Workload::program);
    let mut needed: Vec<_> = needed.filter(|_| mounted).collect();
    needed.sort_unstable();
    needed.dedup();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there =
        move |program: &&str| std::env::split_paths(&path).any(|dir| dir.join(program).exists());
    needed.into_iter().filter(move |program| !there(program))
}

fn save(report: &Report, output: &Path) -> Result<()> {
    let write = |ending: &str, text: String| {
        let path = output.with_extension(ending);
        std::fs::write(&path, text).map_err(|source| Error::Io {
            what: path.display().to_string(),
            source,
        })
    };
    let json = report.to_json();
    let json = json.map_err(|error| Error::Refused(error.to_string()))?;
    write("json", json)?;
    write("md", report.to_markdown())
}
