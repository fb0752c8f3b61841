//! `sapwood-bench create`: many workers create and remove empty files.

use std::path::PathBuf;

use sapwood_bench::contestant::Contestant;
use sapwood_bench::report::Report;
use sapwood_bench::runner::{Case, Runner};
use sapwood_bench::workload::Workload;
use sapwood_bench::{Result, markdown};

use super::{announce, json, run, write};

/// The default contestants: all, and for ext4 also each policy of the inode search.
const ALL: &str = "ext4-fuse,ext4-loop,ext4-fuse:all-off,ext4-lib,ext4-lib:locked_search-off,\
ext4-lib:spread-off,ext4-lib:all-off,btrfs-fuse,btrfs-lib,kernel-btrfs,kernel-ext4,kernel-xfs,fuse2fs";

#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    /// Contestants: KIND-fuse, KIND-loop (without io_uring), KIND-trusted
    /// (no_default_permissions) and KIND-lib of btrfs and ext4, with :POLICY and +control;
    /// kernel-btrfs, kernel-ext4, kernel-xfs, fuse2fs
    #[arg(short, long = "contestant", value_delimiter = ',', default_value = ALL)]
    contestants: Vec<Contestant>,
    /// Number of processes (or threads in process), each with a directory of its own
    #[arg(
        short,
        long,
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32,48,64",
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    workers: Vec<u32>,
    /// Number of files of each
    #[arg(short, long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: u32,
    /// Directories for images
    #[arg(long = "on", value_delimiter = ',', default_value = "/var/tmp")]
    media: Vec<PathBuf>,
    /// Rounds
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
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

impl Create {
    pub(crate) fn run(self) -> Result<()> {
        let runner = Runner {
            rounds: usize::from(self.rounds),
            seconds: 1,
            commit: None,
            sparse: self.sparse,
        };
        let cases = self.cases();
        announce(&runner, &cases)?;
        if self.dry_run {
            return Ok(());
        }
        let title = "Empty files, created and removed";
        let mut report = Report::new(title, runner.rounds, runner.seconds);
        let done = run(&runner, &cases, &mut report, |report| {
            let Some(output) = &self.output else {
                return Ok(());
            };
            write(output, "json", &json(report)?)?;
            write(output, "md", &markdown::render(report))
        });
        println!("{}", markdown::render(&report));
        done
    }

    fn cases(&self) -> Vec<Case> {
        let named = |one: &Contestant| (one.to_string(), *one);
        let contestants: Vec<_> = self.contestants.iter().map(named).collect();
        let mut cases = Vec::new();
        for medium in &self.media {
            cases.extend(self.workers.iter().map(|workers| Case {
                workload: Workload::Create {
                    workers: *workers,
                    files: self.files,
                },
                face: "",
                family: None,
                medium: medium.clone(),
                contestants: contestants.clone(),
            }));
        }
        cases
    }
}
