//! `sapwood-bench suite`: all workloads, compared with other file systems.

use std::path::PathBuf;

use sapwood_bench::contestant::Contestant;
use sapwood_bench::report::Report;
use sapwood_bench::runner::Runner;
use sapwood_bench::suite::{Group, Suite as Cases};
use sapwood_bench::workload::Workload;
use sapwood_bench::workload::image::Tree;
use sapwood_bench::{Result, html, markdown};

use super::{announce, json, run, write};

#[derive(Debug, clap::Args)]
pub(crate) struct Suite {
    /// Groups of workloads; by default all
    #[arg(short, long = "group", value_delimiter = ',')]
    groups: Vec<Group>,
    /// Single workloads: dbench-N, commits-N, xattr-N, seq-N, rand-N, renames-N, renames-fsync-N,
    /// create-N, create-NxFILES, stat-N, small-N, image-small-N, client-N, git-clone-N,
    /// node-modules-N, write-seq and so on, image-share, git-clone, untar, rust-build, sqlite,
    /// postgres, idle
    #[arg(short, long = "workload", value_delimiter = ',')]
    workloads: Vec<Workload>,
    /// Only these contestants: KIND-fuse, KIND-loop (without io_uring), KIND-trusted
    /// (no_default_permissions) and KIND-lib of btrfs and ext4, with :POLICY and +control;
    /// kernel-btrfs, kernel-ext4, kernel-xfs, fuse2fs; programs that make images:
    /// sapwood-mkfs-btrfs, sapwood-mkfs-ext4, mkfs.btrfs, mke2fs, of small files also
    /// sapwood-mkfs-KIND-tar, sapwood-mkfs-btrfs-zstd, mkfs.btrfs-zstd, source-read
    #[arg(short, long = "contestant", value_delimiter = ',')]
    contestants: Vec<Contestant>,
    /// Directories for images; targets are evaluated on the first
    #[arg(
        long = "on",
        value_delimiter = ',',
        default_value = "/var/tmp,/dev/shm"
    )]
    media: Vec<PathBuf>,
    /// Rounds
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Seconds of a run that has no end of its own
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Every contestant runs every size on every medium
    #[arg(long)]
    thorough: bool,
    /// Number of files of each worker that creates
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: u32,
    /// Number of files for stat
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    stat: u32,
    /// Number of small files of an archive, and of images of small files
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    small: u32,
    /// Directory for images of a directory: include, share or usr
    #[arg(long, default_value = "share", value_parser = tree)]
    tree: Tree,
    /// Use sparse images, instead of one image that was written out before
    #[arg(long)]
    sparse: bool,
    /// Print the needed time and space, and run nothing
    #[arg(long)]
    dry_run: bool,
    /// Write the report to this path with the extensions .json, .md and .html, instead of only
    /// printing it
    #[arg(short, long)]
    output: Option<PathBuf>,
}

fn tree(text: &str) -> std::result::Result<Tree, String> {
    let found = Tree::ALL.into_iter().find(|tree| tree.name() == text);
    found.ok_or_else(|| "it is include, share or usr".to_owned())
}

impl Suite {
    pub(crate) fn run(self) -> Result<()> {
        let runner = Runner {
            rounds: usize::from(self.rounds),
            seconds: self.seconds,
            commit: None,
            sparse: self.sparse,
        };
        let suite = self.cases();
        let cases = suite.cases();
        for (what, why) in suite.left_out() {
            eprintln!("{what} is left out: {why}");
        }
        if !suite.root {
            eprintln!("not root: peers of the kernel and fuse2fs are left out");
        }
        announce(&runner, &cases)?;
        if self.dry_run {
            for case in cases {
                let names: Vec<_> = case
                    .contestants
                    .iter()
                    .map(|(name, _)| name.as_str())
                    .collect();
                println!(
                    "{} on {}: {}",
                    case.workload,
                    case.medium.display(),
                    names.join(", ")
                );
            }
            return Ok(());
        }
        let mut report = Report::new(
            "Sapwood side by side with the kernel",
            runner.rounds,
            self.seconds,
        );
        report.judged = true;
        let done = run(&runner, &cases, &mut report, |report| {
            let Some(output) = &self.output else {
                return Ok(());
            };
            write(output, "json", &json(report)?)?;
            write(output, "md", &markdown::render(report))?;
            write(output, "html", &html::render(report))
        });
        println!("{}", markdown::render(&report));
        done
    }

    fn cases(&self) -> Cases {
        Cases {
            groups: self.groups.clone(),
            workloads: self.workloads.clone(),
            contestants: self.contestants.clone(),
            media: self.media.clone(),
            thorough: self.thorough,
            root: rustix::process::geteuid().is_root(),
            files: self.files,
            stat: self.stat,
            small: self.small,
            tree: self.tree,
        }
    }
}
