//! Runs every contestant in every round.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::contestant::{Contestant, Standing};
use crate::figures::Figures;
use crate::images::Images;
use crate::machine;
use crate::metric::Metric;
use crate::workload::{self, Workload};
use crate::{Error, Result};

/// A workload on a medium, and its contestants.
#[derive(Debug, Clone)]
pub struct Case {
    /// The workload.
    pub workload: Workload,
    /// How Sapwood is used, for the head of a table.
    pub face: &'static str,
    /// The table of its row; by default the workload's own.
    pub family: Option<&'static str>,
    /// Directory for the image.
    pub medium: PathBuf,
    /// The contestants, with their names in tables.
    pub contestants: Vec<(String, Contestant)>,
}

/// The parameters of all runs.
#[derive(Debug, Clone, Copy)]
pub struct Runner {
    /// Rounds.
    pub rounds: usize,
    /// Length of a run of a workload that has no length of its own.
    pub seconds: u64,
    /// Seconds from one commit of a peer to the next; by default the peer's own.
    pub commit: Option<u64>,
    /// All images are sparse, also on a disk.
    pub sparse: bool,
}

/// A contestant's runs of one row.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    /// Contestant.
    pub name: String,
    /// One run for each round; `None` if it failed.
    pub runs: Vec<Option<Figures>>,
    /// The reasons why runs failed.
    pub failures: Vec<String>,
}

/// A workload on a medium.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Workload.
    pub workload: String,
    /// Rows of one family stand in one table.
    pub family: &'static str,
    /// What distinguishes it from the other rows of its family.
    pub size: String,
    /// The unit of its rate.
    pub unit: &'static str,
    /// Its figures, the most important first.
    pub metrics: Vec<Metric>,
    /// How Sapwood was used.
    pub face: &'static str,
    /// Directory of the image.
    pub medium: PathBuf,
    /// All contestants; the others are compared with the first.
    pub entries: Vec<Entry>,
}

/// Time of a run besides the workload: image, mount, unmount.
const AROUND: Duration = Duration::from_millis(800);

impl Runner {
    /// Number of runs, and their approximate total time.
    #[must_use]
    pub fn size(&self, cases: &[Case]) -> (usize, Duration) {
        let (mut runs, mut time) = (0, Duration::ZERO);
        for case in cases {
            let count = case.contestants.len() * self.rounds;
            runs += count;
            let one = case.workload.estimate(self.seconds) + AROUND;
            time += one * u32::try_from(count).unwrap_or(u32::MAX);
        }
        (runs, time)
    }

    /// Runs all cases. `stop` ends this after the current run; the rows that are complete by then
    /// are returned. `done` gets each row when it is complete.
    ///
    /// # Errors
    /// An error that concerns all cases; a failed run is noted in its entry.
    pub fn run(&self, cases: &[Case], stop: &AtomicBool, mut done: impl FnMut(Row)) -> Result<()> {
        for (_, contestant) in cases.iter().flat_map(|case| &case.contestants) {
            contestant.check()?;
        }
        let bar = ProgressBar::new(self.size(cases).0 as u64);
        let template = "{bar:30} {pos}/{len} {elapsed}<{eta} {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let images = Images::new(self.sparse);
        for case in cases {
            // Without a progress bar, a line for each row shows the progress.
            if bar.is_hidden() {
                let (at, all) = (bar.position(), bar.length().unwrap_or(0));
                let (medium, seconds) = (case.medium.display(), bar.elapsed().as_secs());
                eprintln!(
                    "{at} of {all} runs, {seconds} s: {} on {medium}",
                    case.workload
                );
            }
            let row = self.row(case, &images, stop, &bar);
            if row.entries.iter().any(|entry| !entry.runs.is_empty()) {
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

    fn row(&self, case: &Case, images: &Images, stop: &AtomicBool, bar: &ProgressBar) -> Row {
        let Case {
            workload,
            contestants,
            ..
        } = case;
        let entry = |(name, _): &(String, Contestant)| Entry {
            name: name.clone(),
            runs: Vec::new(),
            failures: Vec::new(),
        };
        let mut entries: Vec<Entry> = contestants.iter().map(entry).collect();
        for round in 0..self.rounds {
            for turn in 0..contestants.len() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                // Each round begins with another contestant, so that none always follows the same
                // one.
                let at = (turn + round) % contestants.len();
                let (name, contestant) = &contestants[at];
                bar.set_message(format!("{workload}: {name}"));
                let result = self.once(*contestant, images, &case.medium, workload);
                let entry = &mut entries[at];
                match result {
                    Ok(figures) => entry.runs.push(Some(figures)),
                    Err(error) => {
                        bar.suspend(|| eprintln!("{workload}: {name}: {error}"));
                        entry.runs.push(None);
                        entry.failures.push(error.to_string());
                    }
                }
                bar.inc(1);
            }
        }
        Row {
            workload: workload.to_string(),
            family: case.family.unwrap_or(workload.family()),
            size: workload.size(),
            unit: workload.unit(),
            metrics: workload.metrics(),
            face: case.face,
            medium: case.medium.clone(),
            entries,
        }
    }

    fn once(
        &self,
        contestant: Contestant,
        images: &Images,
        medium: &Path,
        workload: &Workload,
    ) -> Result<Figures> {
        let free_cpu = machine::free_cpu(Duration::from_millis(100));
        let image = match workload {
            Workload::Image { tree } => {
                let made = workload::image::run(contestant, images, medium, *tree, self.commit);
                Some(made?)
            }
            Workload::ImageSmall { files } => {
                let made = workload::image_small::run(contestant, images, medium, *files);
                Some(made?)
            }
            _ => None,
        };
        if let Some(seen) = image {
            return Ok(Figures {
                seen,
                counted: None,
                free_cpu,
            });
        }
        let room = workload.room();
        let mut standing = Standing::start(contestant, images, medium, room, self.commit)?;
        let began = Instant::now();
        let seen = workload.run(&mut standing, self.seconds);
        let counted = match &seen {
            Ok(_) => standing.counted()?,
            Err(_) => None,
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

/// Reports a run that took much longer than requested: its rate may belong to a longer time.
fn log_slow(workload: &Workload, seconds: u64, ran: Duration) {
    if workload.is_timed() && ran > Duration::from_secs(seconds * 3 + 10) {
        eprintln!("{workload} took {} s", ran.as_secs());
    }
}
