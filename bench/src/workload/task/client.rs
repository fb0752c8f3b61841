//! The operations of one client, each timed alone, on files of one directory.
//!
//! A phase does one operation on every file. All earlier changes are durable when it begins. The
//! phases run twice: once the scheduler chooses the client's processor, and once the client is
//! bound to one. Only the client is bound; the process that serves the mount is not.
//!
//! The time covers the system calls of the operation: `open` and `close` for a create, and `pwrite`
//! or `fchmod` alone on an open file. Requests and context switches cover the whole phase,
//! including opening and closing the file.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};

use super::measured::{Part, by_kind};
use crate::Result;
use crate::contestant::Standing;
use crate::error::{io_error, on};
use crate::figures::{Latency, Seen};
use crate::usage::Usage;
use crate::workload::panicked;

/// Bytes of a write.
const WRITE: [u8; 4096] = [b'x'; 4096];

/// What a client does with each file, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    /// The first write of the file. Before it the kernel asks whether the file has capabilities,
    /// because a write removes them.
    Write,
    /// A later write, of the same bytes.
    Rewrite,
    Fchmod,
    Chmod,
    Rename,
    Unlink,
}

impl Operation {
    pub(crate) const ALL: [Self; 7] = [
        Self::Create,
        Self::Write,
        Self::Rewrite,
        Self::Fchmod,
        Self::Chmod,
        Self::Rename,
        Self::Unlink,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Write => "write",
            Self::Rewrite => "rewrite",
            Self::Fchmod => "fchmod",
            Self::Chmod => "chmod",
            Self::Rename => "rename",
            Self::Unlink => "unlink",
        }
    }

    /// Names of its mean times in µs: of a client that is free, and of one that is bound.
    pub(crate) fn figures(self) -> [&'static str; 2] {
        match self {
            Self::Create => ["create_us", "create_bound_us"],
            Self::Write => ["write_us", "write_bound_us"],
            Self::Rewrite => ["rewrite_us", "rewrite_bound_us"],
            Self::Fchmod => ["fchmod_us", "fchmod_bound_us"],
            Self::Chmod => ["chmod_us", "chmod_bound_us"],
            Self::Rename => ["rename_us", "rename_bound_us"],
            Self::Unlink => ["unlink_us", "unlink_bound_us"],
        }
    }

    /// The time that it takes for one file.
    fn once(self, dir: &Path, number: u32) -> io::Result<Duration> {
        let path = |kind: &str| dir.join(format!("{kind}-{number:06}"));
        let (old, new) = (path("file"), path("renamed"));
        let writable = || OpenOptions::new().write(true).open(&old);
        let timed = |work: &dyn Fn() -> io::Result<()>| {
            let began = Instant::now();
            work()?;
            Ok(began.elapsed())
        };
        match self {
            Self::Create => timed(&|| File::create_new(&old).map(drop)),
            Self::Write | Self::Rewrite => {
                let file = writable()?;
                timed(&|| file.write_all_at(&WRITE, 0))
            }
            Self::Fchmod => {
                let file = writable()?;
                timed(&|| file.set_permissions(Permissions::from_mode(0o600)))
            }
            Self::Chmod => timed(&|| fs::set_permissions(&old, Permissions::from_mode(0o640))),
            Self::Rename => timed(&|| fs::rename(&old, &new)),
            Self::Unlink => timed(&|| fs::remove_file(&new)),
        }
    }
}

pub(super) fn run(dir: &Path, standing: &mut Standing, files: u32) -> Result<Seen> {
    let mut measured = Vec::new();
    for bound in [false, true] {
        let dir = dir.join(if bound { "bound" } else { "free" });
        fs::create_dir(&dir).map_err(on(&dir))?;
        for operation in Operation::ALL {
            let phase = Phase {
                operation,
                bound,
                dir: dir.clone(),
                files,
            };
            measured.push(phase.run(standing)?);
        }
    }
    Ok(seen(&measured))
}

/// One operation on every file.
struct Phase {
    operation: Operation,
    bound: bool,
    dir: PathBuf,
    files: u32,
}

/// What a phase measured, for each file.
struct Measured {
    operation: Operation,
    bound: bool,
    mean_us: f64,
    latency: Option<Latency>,
    client_switches: f64,
    /// Context switches and processor time of the process that serves the mount.
    server: Option<(f64, f64)>,
    /// Requests by kind.
    requests: Option<serde_json::Map<String, Value>>,
}

impl Phase {
    fn run(&self, standing: &mut Standing) -> Result<Measured> {
        let part = Part::begin(standing)?;
        let (times, client_switches) = self.client()?;
        let (used, counted) = part.used(standing)?;
        let files = f64::from(self.files);
        let total: Duration = times.iter().sum();
        Ok(Measured {
            operation: self.operation,
            bound: self.bound,
            mean_us: total.as_secs_f64() * 1e6 / files,
            latency: Latency::of(times),
            client_switches: client_switches as f64 / files,
            server: used.map(|used| {
                let switches = used.switches as f64 / files;
                (switches, used.processor_seconds * 1e6 / files)
            }),
            requests: counted.map(|counted| by_kind(&counted, files)),
        })
    }

    /// The time of each operation, and the context switches of the client, which is a thread: so
    /// that its binding ends with it.
    fn client(&self) -> Result<(Vec<Duration>, u64)> {
        let work = || -> Result<_> {
            if self.bound {
                bind().map_err(io_error("sched_setaffinity"))?;
            }
            let before = Usage::switches_of_this_thread()?;
            let each = |number| self.operation.once(&self.dir, number);
            let times = (0..self.files).map(each).collect::<io::Result<Vec<_>>>();
            let times = times.map_err(io_error(self.operation.name()))?;
            let after = Usage::switches_of_this_thread()?;
            Ok((times, after.saturating_sub(before)))
        };
        thread::scope(|scope| scope.spawn(work).join()).map_err(|_| panicked())?
    }
}

/// Binds this thread to the last processor that it may use: the first ones serve most interrupts.
fn bind() -> io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let mut all = (0..CpuSet::MAX_CPU).rev();
    let last = all.find(|cpu| allowed.is_set(*cpu));
    let mut one = CpuSet::new();
    one.set(last.ok_or(io::ErrorKind::NotFound)?);
    Ok(sched_setaffinity(None, &one)?)
}

/// Figures of all phases. The rate counts files through all operations of the client that is free.
fn seen(measured: &[Measured]) -> Seen {
    let sum = |bound: bool| -> f64 {
        let those = measured.iter().filter(|one| one.bound == bound);
        those.map(|one| one.mean_us).sum()
    };
    let [free, bound] = [false, true].map(sum);
    let mut seen = Seen::rate(1e6 / free)
        .with("free_us", free)
        .with("bound_us", bound);
    for one in measured {
        let name = one.operation.figures()[usize::from(one.bound)];
        seen = seen.with(name, one.mean_us);
    }
    let details = measured.iter().map(Measured::details).collect();
    Seen {
        details: Value::Array(details),
        ..seen
    }
}

impl Measured {
    fn details(&self) -> Value {
        let suffix = if self.bound { ", bound" } else { "" };
        let mut details = json!({
            "operation": format!("{}{suffix}", self.operation.name()),
            "bound": self.bound,
            "mean_us": self.mean_us,
            "client_switches": self.client_switches,
        });
        let mut add = |name: &str, value: Value| details[name] = value;
        if let Some(latency) = self.latency {
            add("half_us", json!(latency.p50));
            add("ninety_nine_us", json!(latency.p99));
        }
        if let Some((switches, processor_us)) = self.server {
            add("server_switches", json!(switches));
            add("server_us", json!(processor_us));
        }
        if let Some(requests) = &self.requests {
            add("requests", json!(requests));
        }
        details
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(operation: Operation, dir: &Path) -> Phase {
        Phase {
            operation,
            bound: true,
            dir: dir.to_owned(),
            files: 3,
        }
    }

    #[test]
    fn every_operation_does_what_its_name_says() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let run = |operation| phase(operation, dir.path()).client().unwrap().0;
        let mode = |name: &str| fs::metadata(path(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(run(Operation::Create).len(), 3);
        assert!(phase(Operation::Create, dir.path()).client().is_err());
        run(Operation::Write);
        assert_eq!(fs::read(path("file-000002")).unwrap(), WRITE);
        run(Operation::Rewrite);
        assert_eq!(fs::read(path("file-000002")).unwrap(), WRITE);
        run(Operation::Fchmod);
        assert_eq!(mode("file-000001"), 0o600);
        run(Operation::Chmod);
        assert_eq!(mode("file-000001"), 0o640);
        run(Operation::Rename);
        assert_eq!(mode("renamed-000001"), 0o640);
        assert!(!path("file-000001").exists());
        run(Operation::Unlink);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_bound_client_has_one_processor_and_this_thread_keeps_its_own() {
        let before = sched_getaffinity(None).unwrap();
        let bound = thread::spawn(|| {
            bind().unwrap();
            sched_getaffinity(None).unwrap().count()
        });
        assert_eq!(bound.join().unwrap(), 1);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }

    #[test]
    fn every_operation_has_its_figures() {
        let measured: Vec<Measured> = [false, true]
            .into_iter()
            .flat_map(|bound| Operation::ALL.map(|operation| (operation, bound)))
            .map(|(operation, bound)| Measured {
                operation,
                bound,
                mean_us: if bound { 3.0 } else { 2.0 },
                latency: None,
                client_switches: 1.0,
                server: Some((2.0, 4.0)),
                requests: None,
            })
            .collect();
        let seen = seen(&measured);
        for operation in Operation::ALL {
            let found = operation.figures().map(|name| seen.more[name]);
            assert_eq!(found, [2.0, 3.0], "{operation:?}");
        }
        assert_eq!(seen.more["free_us"], 14.0);
        assert_eq!(seen.details[7]["operation"], "create, bound");
        assert_eq!(seen.details[7]["server_switches"], 2.0);
    }
}
