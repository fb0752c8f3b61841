//! One run of a row by one contestant.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::contestant::Way;
use crate::error::{Error, Result};
use crate::load;
use crate::place::Place;
use crate::program::{Used, cpu_seconds, status_mib, watch};
use crate::rows::Work;
use crate::stage::Stage;

/// Measurements of a run, by the key of the figure.
pub(crate) type Figures = BTreeMap<String, f64>;

/// The size of a row: the `N` of its name, and for some rows a number of files for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) count: u32,
    pub(crate) files: u32,
}

/// A run, as the row's load sees it.
pub(crate) struct Run {
    stage: Stage,
    /// A directory on the same medium outside of the measured file system.
    pub(crate) scratch: PathBuf,
    pub(crate) size: Size,
    /// Length of a load that does not end by itself.
    pub(crate) time: Duration,
    figures: Figures,
    /// Processor time of the serving process when the measured part began.
    cpu_before: Option<f64>,
}

impl Run {
    pub(crate) fn new(stage: Stage, scratch: PathBuf, size: Size, time: Duration) -> Self {
        Self {
            stage,
            scratch,
            size,
            time,
            figures: Figures::new(),
            cpu_before: None,
        }
    }

    /// Runs the work of a row. The figures include the memory and the processor time of the process
    /// that serves the mount.
    ///
    /// # Errors
    /// The work or the unmount fails.
    pub(crate) fn perform(mut self, work: Work) -> Result<Figures> {
        let done = match work {
            Work::Use(load) => load(&mut self),
            Work::Write(of) => {
                let writes = of(self.size.count);
                load::writes(&mut self, writes)
            }
            Work::Big(big) => load::big(&mut self, big),
            Work::Make(_) => Err(Error::new("an image is made by a program")),
        };
        if let Some(process) = self.stage.process() {
            if let (Some(before), Some(after)) = (self.cpu_before, cpu_seconds(process)) {
                self.set("served_cpu_s", after - before);
            }
            if let Some(peak) = status_mib(process, "VmHWM:") {
                self.set("served_mib", peak);
            }
        }
        let ended = self.stage.end();
        done.and(ended)?;
        Ok(self.figures)
    }

    /// Sets a figure.
    pub(crate) fn set(&mut self, key: &str, value: f64) {
        self.figures.insert(key.to_owned(), value);
    }

    /// The file system.
    pub(crate) fn place(&self) -> Result<Place> {
        self.stage.place()
    }

    /// The directory that it is mounted on.
    pub(crate) fn dir(&self) -> Result<PathBuf> {
        match self.stage.place()? {
            Place::Mount(dir) => Ok(dir),
            Place::Library(_) => Err(Error::new("this row needs a mount")),
        }
    }

    /// Whether it is a mount of Sapwood.
    pub(crate) fn is_sapwood(&self) -> bool {
        self.stage.contestant().way == Way::Sapwood
    }

    /// Whether an unmount loses the files.
    pub(crate) fn is_volatile(&self) -> bool {
        self.stage.contestant().way == Way::Limit
    }

    /// The process that serves the mount.
    pub(crate) fn process(&self) -> Option<u32> {
        self.stage.process()
    }

    /// Starts the measured part: makes all earlier changes durable, so that they are not measured.
    pub(crate) fn begin(&mut self) -> Result<()> {
        self.stage.sync()?;
        self.cpu_before = self.stage.process().and_then(cpu_seconds);
        Ok(())
    }

    /// Makes everything durable.
    pub(crate) fn sync(&self) -> Result<()> {
        self.stage.sync()
    }

    /// Adds to a figure.
    pub(crate) fn add(&mut self, key: &str, value: f64) {
        *self.figures.entry(key.to_owned()).or_default() += value;
    }

    /// Sets a figure to the seconds until everything is durable.
    pub(crate) fn durable(&mut self, key: &str) -> Result<()> {
        let began = Instant::now();
        self.stage.sync()?;
        self.set(key, began.elapsed().as_secs_f64());
        Ok(())
    }

    /// Mounts again, with nothing cached.
    pub(crate) fn cold(&mut self) -> Result<()> {
        self.stage.unmounted(|_| Ok(()))?;
        self.cpu_before = self.stage.process().and_then(cpu_seconds);
        Ok(())
    }

    /// A script of the shell, with `MOUNT`, `SCRATCH`, `SAPWOOD` (the command) and `N` (the size).
    fn script(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-ec", script]);
        // The settings of the user have no effect.
        command
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env_remove("RUSTFLAGS");
        command
            .env("SCRATCH", &self.scratch)
            .env("N", self.size.count.to_string());
        command.env("SAPWOOD", &self.stage.contestant().program);
        if let Ok(dir) = self.dir() {
            command.env("MOUNT", dir);
        }
        command
    }

    /// Runs a script and returns its output.
    pub(crate) fn shell(&self, script: &str) -> Result<String> {
        crate::program::output(&mut self.script(script))
    }

    /// Runs a script and sets a figure to its seconds.
    pub(crate) fn timed(&mut self, key: &str, script: &str) -> Result<Used> {
        let used = watch(&mut self.script(script))?;
        self.set(key, used.seconds);
        Ok(used)
    }

    /// Like [`timed`](Self::timed), while the image, `IMAGE`, is not mounted.
    pub(crate) fn timed_unmounted(&mut self, key: &str, script: &str) -> Result<()> {
        let mut command = self.script(script);
        let run = |image: &Path| watch(command.env("IMAGE", image));
        let used = self.stage.unmounted(run)?;
        self.set(key, used.seconds);
        Ok(())
    }
}
