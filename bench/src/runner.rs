//! Runs every contestant of every row in every round.
//!
//! In each round every contestant runs once, on a fresh file system, so that a disturbance of the
//! machine affects all of them; a ratio is computed from pairs of one round.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::contestant::{Contestant, Way};
use crate::error::{Context, Error, Result};
use crate::image::{self, Images, Room};
use crate::machine::free_cpu;
use crate::make;
use crate::material::Source;
use crate::program::output;
use crate::rows::{Row, SERVING, Work};
use crate::run::{Figures, Run, Size};
use crate::stage::Stage;

/// A row on a medium, with its contestants.
pub(crate) struct Case {
    pub(crate) row: &'static Row,
    pub(crate) size: Size,
    pub(crate) medium: PathBuf,
    pub(crate) contestants: Vec<Contestant>,
}

/// The parameters of all runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Runner {
    pub(crate) rounds: usize,
    /// Length of a run that has no end of its own.
    pub(crate) time: Duration,
    /// All images are sparse, also on a disk.
    pub(crate) sparse: bool,
    /// A run begins when the processors are free, or after this time.
    pub(crate) patience: Duration,
}

/// A row that was measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) row: String,
    /// Rows of one title are in one table.
    pub(crate) title: String,
    /// The difference from the other rows of its title.
    pub(crate) size: String,
    pub(crate) medium: PathBuf,
    /// The most important one is the first.
    pub(crate) figures: Vec<Heading>,
    pub(crate) entries: Vec<Entry>,
}

/// A figure of a row, in a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Heading {
    pub(crate) key: String,
    pub(crate) title: String,
    pub(crate) unit: String,
    /// A lower value is better.
    pub(crate) lower: bool,
}

/// The runs of one contestant.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// One for each round; empty if it failed.
    pub(crate) runs: Vec<Figures>,
    /// Why runs failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) failures: Vec<String>,
}

/// With a smaller share of free processors a run waits.
const FREE: f64 = 0.85;

impl Runner {
    /// Runs all cases. `stop` ends this after the current run. `done` gets each row when it is
    /// complete.
    ///
    /// # Errors
    /// It was stopped; an error of `done`. A failed run is only recorded.
    pub(crate) fn run(
        &self,
        cases: &[Case],
        stop: &AtomicBool,
        mut done: impl FnMut(Measured) -> Result<()>,
    ) -> Result<()> {
        let (images, mut source) = (Images::new(self.sparse), None);
        let runs: usize = cases
            .iter()
            .map(|case| case.contestants.len() * self.rounds)
            .sum();
        let (began, mut count) = (Instant::now(), 0);
        for case in cases {
            let mut entries: Vec<Entry> = case.contestants.iter().map(entry).collect();
            for round in 0..self.rounds {
                for turn in 0..entries.len() {
                    if stop.load(Ordering::Relaxed) {
                        return Err(Error::new("interrupted"));
                    }
                    // Each round begins with another contestant, so that none always follows the
                    // same one.
                    let at = (turn + round) % entries.len();
                    let (contestant, name) = (&case.contestants[at], case.row.name_at(case.size));
                    count += 1;
                    let seconds = began.elapsed().as_secs();
                    eprintln!("{count} of {runs}, {seconds} s: {name} {}", contestant.name);
                    let free = self.wait_for_processors();
                    let run = match case.row.work {
                        Work::Make(kind) => files(&mut source, &case.medium, case.size.count)
                            .and_then(|files| make::run(contestant, kind, files, &case.medium)),
                        _ => self.used(case, contestant, &images),
                    };
                    let run = run.unwrap_or_else(|error| {
                        eprintln!("{name} {}: {error}", contestant.name);
                        entries[at].failures.push(error.to_string());
                        Figures::new()
                    });
                    entries[at].runs.push(run);
                    entries[at].runs[round].insert("free_cpu".to_owned(), free);
                }
            }
            done(case.measured(entries))?;
        }
        Ok(())
    }

    /// Waits until the processors are free, and returns their free share.
    fn wait_for_processors(&self) -> f64 {
        let began = Instant::now();
        loop {
            let free = free_cpu(Duration::from_millis(100));
            if free >= FREE || began.elapsed() >= self.patience {
                return free;
            }
            thread::sleep(Duration::from_millis(500));
        }
    }

    /// A run that uses a file system.
    fn used(&self, case: &Case, contestant: &Contestant, images: &Images) -> Result<Figures> {
        let home = image::home(&case.medium)?;
        let [dir, scratch] = ["mount", "scratch"].map(|name| home.path().join(name));
        std::fs::create_dir(&dir).and_then(|()| std::fs::create_dir(&scratch))?;
        let Size { count, files } = case.size;
        let room = Room {
            // A group that has been full is not used again before its transaction is durable; and
            // the last free inodes take a long search.
            inodes: u64::from(count) * (u64::from(files) + 1) * 5 / 4,
            ..Room::USUAL
        };
        let image = images.get(&case.medium, room, home.path())?;
        if contestant.way != Way::Limit {
            image::format(contestant.format, &image, room)?;
        }
        if contestant.way == Way::Library {
            return self.in_process(case, contestant, &image);
        }
        let stage = Stage::start(contestant, &image, &dir)?;
        Run::new(stage, scratch, case.size, self.time).perform(case.row.work)
    }

    /// The same in a child of its own: switches of mechanisms and memory belong to a process.
    fn in_process(&self, case: &Case, contestant: &Contestant, image: &Path) -> Result<Figures> {
        let mut child = Command::new(std::env::current_exe()?);
        child
            .arg("in-process")
            .arg(case.row.name_at(case.size))
            .arg(&contestant.name)
            .arg(image);
        child.arg(self.time.as_secs().to_string());
        let output = output(child.env("SAPWOOD_WITHOUT", &contestant.without))?;
        Ok(serde_json::from_str(&output)?)
    }
}

/// Runs a row in process; this is the child's side.
///
/// # Errors
/// Errors of the engine.
pub(crate) fn in_process(
    (row, size): (&'static Row, Size),
    contestant: &Contestant,
    image: &Path,
    time: Duration,
) -> Result<Figures> {
    let none = Path::new("");
    let stage = Stage::start(contestant, image, none)?;
    Run::new(stage, none.to_owned(), size, time).perform(row.work)
}

/// The small files of an image, made when they are first needed.
fn files<'s>(
    source: &'s mut Option<(PathBuf, Source)>,
    medium: &Path,
    files: u32,
) -> Result<&'s Source> {
    let fits = |(at, kept): &(PathBuf, Source)| at == medium && kept.files == files;
    if !source.as_ref().is_some_and(fits) {
        *source = Some((
            medium.to_owned(),
            Source::new(medium, files).on(medium.display())?,
        ));
    }
    source
        .as_ref()
        .map(|(_, source)| source)
        .ok_or_else(|| Error::new("no files"))
}

fn entry(contestant: &Contestant) -> Entry {
    Entry {
        name: contestant.name.clone(),
        ..Entry::default()
    }
}

impl Case {
    fn measured(&self, entries: Vec<Entry>) -> Measured {
        let row = self.row;
        let figures = row.figures.iter().chain(&SERVING).map(|figure| Heading {
            key: figure.key.to_owned(),
            title: figure.title.to_owned(),
            unit: figure.unit.to_owned(),
            lower: figure.lower,
        });
        Measured {
            row: row.name_at(self.size),
            title: row.title.to_owned(),
            size: match self.size.count {
                0 => row.name.to_owned(),
                count => count.to_string(),
            },
            medium: self.medium.clone(),
            figures: figures.collect(),
            entries,
        }
    }
}
