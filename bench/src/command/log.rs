//! `sapwood-bench log`: compares each mechanism of the log, on and off.

use std::path::PathBuf;

use sapwood_bench::Result;
use sapwood_bench::contestant::Face;
use sapwood_bench::plan::Plan;
use sapwood_bench::policy::Policy;
use sapwood_bench::report::Report;
use sapwood_bench::runner::Runner;
use sapwood_bench::workload::Workload;

use super::{announce, json, run, write};

#[derive(Debug, clap::Args)]
pub(crate) struct Log {
    /// Workloads: dbench-N (clients), commits-N (writers), xattr-N (attributes), seq-N and rand-N
    /// (jobs), renames-N and renames-fsync-N (files); by default all standard sizes
    #[arg(short, long = "workload", value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// Compare `on` only with these: overlap-off, fast_wait-off, xattrs_when_changed-off,
    /// single_names-off, groups-off, all-off, no-log; by default with the policies that a workload
    /// is about
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
    /// Run the kernel's btrfs as a peer, mounted with -o ssd; needs root
    #[arg(long)]
    kernel: bool,
    /// Leave out the second run of `on`, which shows the noise
    #[arg(long)]
    no_control: bool,
    /// Seconds from the first change of a transaction to its commit; a short time shows the cost of
    /// concurrent commits
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    commit: u64,
    /// Number of request threads of a mount; 0: the mount's default
    #[arg(long, default_value_t = 0)]
    fuse_threads: usize,
    /// Use sparse images, instead of one image that was written out before
    #[arg(long)]
    sparse: bool,
    /// Print the needed time and space, and run nothing
    #[arg(long)]
    dry_run: bool,
    /// Write the report to this path with the extensions .json and .md, instead of only printing it
    #[arg(short, long)]
    output: Option<PathBuf>,
}

impl Log {
    pub(crate) fn run(self) -> Result<()> {
        let runner = Runner {
            rounds: usize::from(self.rounds),
            seconds: self.seconds,
            commit: Some(self.commit),
            sparse: self.sparse,
        };
        let cases = self.plan().cases();
        announce(&runner, &cases)?;
        if self.dry_run {
            return Ok(());
        }
        let title = "Mechanisms of the log, on and off";
        let mut report = Report::new(title, runner.rounds, self.seconds);
        let done = run(&runner, &cases, &mut report, |report| {
            let Some(output) = &self.output else {
                return Ok(());
            };
            write(output, "json", &json(report)?)?;
            write(output, "md", &report.to_markdown())
        });
        println!("{}", report.to_markdown());
        done
    }

    fn plan(&self) -> Plan {
        Plan {
            workloads: if self.workloads.is_empty() {
                Workload::all()
            } else {
                self.workloads.clone()
            },
            policies: self.policies.clone(),
            faces: self.faces.clone(),
            media: self.media.clone(),
            kernel: self.kernel,
            control: !self.no_control,
            commit: self.commit,
            fuse_threads: self.fuse_threads,
        }
    }
}
