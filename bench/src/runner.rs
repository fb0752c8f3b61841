//! Runs every contestant in every round.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::contestant::{Contestant, Face, Standing};
use crate::figures::Figures;
use crate::machine;
use crate::policy::Policy;
use crate::workload::Workload;
use crate::{Error, Result};

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Workloads.
    pub workloads: Vec<Workload>,
    /// Policies beside `on`; `None`: those that the workload is about.
    pub policies: Option<Vec<Policy>>,
    /// How Sapwood is used.
    pub faces: Vec<Face>,
    /// Directories for images.
    pub media: Vec<PathBuf>,
    /// Rounds.
    pub rounds: usize,
    /// Length of one run of a workload that has none of its own.
    pub seconds: u64,
    /// The kernel's btrfs too.
    pub kernel: bool,
    /// `on` a second time, to see the noise.
    pub control: bool,
    /// Seconds from the first change of a transaction to its commit.
    pub commit: u64,
    /// Request threads of a mount; 0: as many as it takes by itself.
    pub fuse_threads: usize,
}

/// A contestant's runs of one row.
#[derive(Debug, Clone, Serialize)]
pub struct Entry {
    /// Contestant.
    pub name: String,
    /// One of each round; `None` where it failed.
    pub runs: Vec<Option<Figures>>,
    /// Why runs failed.
    pub failures: Vec<String>,
}

/// A workload on a medium.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Workload.
    pub workload: String,
    /// What its rate counts.
    pub unit: &'static str,
    /// How Sapwood was used.
    pub face: &'static str,
    /// Directory of the image.
    pub medium: PathBuf,
    /// All contestants; the first is the one that others are compared with.
    pub entries: Vec<Entry>,
}

/// What a run takes besides the workload: image, mount, unmount.
const AROUND: Duration = Duration::from_millis(1500);

impl Plan {
    /// All rows: face, medium and workload.
    fn rows(&self) -> Vec<(Face, &Path, Workload)> {
        let mut rows = Vec::new();
        for face in &self.faces {
            for medium in &self.media {
                let of = |workload: &Workload| (*face, medium.as_path(), *workload);
                rows.extend(self.workloads.iter().map(of));
            }
        }
        rows
    }

    /// Who runs in a row; the first is the one that others are compared with.
    fn contestants(&self, face: Face, workload: &Workload) -> Vec<Contestant> {
        let mut policies = self.policies.clone().unwrap_or(workload.policies());
        policies.retain(|policy| *policy != Policy::On);
        policies.insert(0, Policy::On);
        let ours = |policy, control| Contestant::Sapwood {
            face,
            policy,
            control,
        };
        let mut all: Vec<_> = policies.iter().map(|policy| ours(*policy, false)).collect();
        if self.control {
            all.push(ours(Policy::On, true));
        }
        // Nothing of the kernel's runs in process.
        if self.kernel && face == Face::Fuse {
            all.push(Contestant::Kernel);
        }
        all
    }

    /// Number of runs, and about how long they take together.
    #[must_use]
    pub fn size(&self) -> (usize, Duration) {
        let (mut runs, mut time) = (0, Duration::ZERO);
        for (face, _, workload) in self.rows() {
            let count = self.contestants(face, &workload).len() * self.rounds;
            let seconds = if workload.is_timed() { self.seconds } else { 2 };
            runs += count;
            let one = Duration::from_secs(seconds) + AROUND;
            time += one * u32::try_from(count).unwrap_or(u32::MAX);
        }
        (runs, time)
    }

    /// Runs all of it. `stop` ends it after the run that is under way; what is complete by then is
    /// handed over all the same. `done` gets each row when it is complete.
    ///
    /// # Errors
    /// What makes the whole plan senseless; a run that fails is noted in its entry.
    pub fn run(&self, stop: &AtomicBool, mut done: impl FnMut(Row)) -> Result<()> {
        for (face, _, workload) in self.rows() {
            for contestant in self.contestants(face, &workload) {
                contestant.check()?;
            }
        }
        let bar = ProgressBar::new(self.size().0 as u64);
        let template = "{bar:30} {pos}/{len} {elapsed}<{eta} {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        for (face, medium, workload) in self.rows() {
            let row = self.row(face, medium, workload, stop, &bar);
            let measured = row.entries.iter().any(|entry| !entry.runs.is_empty());
            if measured {
                done(row);
            }
            if stop.load(Ordering::Relaxed) {
                bar.abandon();
                return Err(Error::Interrupted);
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn row(
        &self,
        face: Face,
        medium: &Path,
        workload: Workload,
        stop: &AtomicBool,
        bar: &ProgressBar,
    ) -> Row {
        let contestants = self.contestants(face, &workload);
        let entry = |contestant: &Contestant| Entry {
            name: contestant.to_string(),
            runs: Vec::new(),
            failures: Vec::new(),
        };
        let mut entries: Vec<Entry> = contestants.iter().map(entry).collect();
        for round in 0..self.rounds {
            for turn in 0..contestants.len() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                // Each round begins with another, so that nobody always follows the same.
                let at = (turn + round) % contestants.len();
                bar.set_message(format!("{workload}: {}", contestants[at]));
                let result = self.once(contestants[at], medium, &workload);
                let entry = &mut entries[at];
                match result {
                    Ok(figures) => entry.runs.push(Some(figures)),
                    Err(error) => {
                        bar.println(format!("{workload}: {}: {error}", entry.name));
                        entry.runs.push(None);
                        entry.failures.push(error.to_string());
                    }
                }
                bar.inc(1);
            }
        }
        Row {
            workload: workload.to_string(),
            unit: workload.unit(),
            face: match face {
                Face::Fuse => "FUSE",
                Face::Library => "library",
            },
            medium: medium.to_owned(),
            entries,
        }
    }

    fn once(&self, contestant: Contestant, medium: &Path, workload: &Workload) -> Result<Figures> {
        let free_cpu = machine::free_cpu(Duration::from_millis(100));
        let mut standing = Standing::start(contestant, medium, self.commit, self.fuse_threads)?;
        let place = standing.place();
        let mut before = None;
        let mut settle = || {
            standing.settle()?;
            before = standing.counted()?;
            Ok(())
        };
        let began = Instant::now();
        let seen = workload.run(&place, self.seconds, &mut settle);
        drop(place);
        let counted = match (seen.as_ref(), before) {
            (Ok(_), Some(before)) => standing.counted()?.map(|now| now.since(&before)),
            _ => None,
        };
        let ran = began.elapsed();
        let stopped = standing.stop();
        let seen = seen?;
        stopped?;
        log_slow(workload, self.seconds, ran);
        Ok(Figures {
            seen,
            counted,
            free_cpu,
        })
    }
}

/// A run that took far longer than asked says so: its rate may be of a longer time.
fn log_slow(workload: &Workload, seconds: u64, ran: Duration) {
    if workload.is_timed() && ran > Duration::from_secs(seconds * 3 + 10) {
        eprintln!("{workload} took {} s", ran.as_secs());
    }
}
