//! The machine of a measurement, and its load.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// The machine of a measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel's release.
    pub kernel: String,
    /// Name of the processor.
    pub processor: String,
    /// Number of processors.
    pub processors: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// Load averages over 1, 5 and 15 minutes when the run began.
    pub load: String,
    /// Versions of the load generators and of Sapwood.
    pub versions: Vec<String>,
}

impl Machine {
    /// Describes this machine.
    #[must_use]
    pub fn here() -> Self {
        let field = |file: &str, name: &str| -> Option<String> {
            let text = fs::read_to_string(file).ok()?;
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = field("/proc/meminfo", "MemTotal").unwrap_or_default();
        let kib = memory.split(' ').next().and_then(|kib| kib.parse().ok());
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load: Vec<&str> = load.split(' ').take(3).collect();
        let mut versions = vec![format!("sapwood {}", env!("CARGO_PKG_VERSION"))];
        versions.extend(
            PROGRAMS
                .iter()
                .map(|(program, argument)| version(program, argument)),
        );
        Self {
            kernel: field_of("/proc/sys/kernel/osrelease"),
            processor: field("/proc/cpuinfo", "model name").unwrap_or_default(),
            processors: processors(),
            memory: kib.map_or(0, |kib: u64| kib << 10),
            load: load.join(" "),
            versions,
        }
    }
}

/// Load generators and programs of peers, with the option that prints their version.
const PROGRAMS: [(&str, &str); 9] = [
    ("fio", "--version"),
    ("dbench", "--help"),
    ("mkfs.btrfs", "--version"),
    ("mke2fs", "-V"),
    ("fuse2fs", "-V"),
    ("mkfs.xfs", "-V"),
    ("git", "--version"),
    ("sqlite3", "--version"),
    ("cargo", "--version"),
];

/// The first line with a digit, without the text after the number.
fn version(program: &str, argument: &str) -> String {
    let output = Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .output();
    let Ok(output) = output else {
        return format!("no {program}");
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let number = |word: &&str| {
        let word = word.trim_start_matches(['v', 'f', 'i', 'o', '-']);
        word.starts_with(|first: char| first.is_ascii_digit()) && word.contains('.')
    };
    let found = text.split_whitespace().find(number);
    let found = found.map(|word| word.trim_start_matches(['v', 'f', 'i', 'o', '-']));
    format!("{program} {}", found.unwrap_or("of an unknown version"))
}

fn field_of(file: &str) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.trim().to_owned()
}

fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Share of all processors, 0 to 1, that a program with one thread for each of them gets now: each
/// thread spins for `time`. Processes that wait for the disk have no effect on it.
#[must_use]
pub fn free_cpu(time: Duration) -> f64 {
    let threads: Vec<_> = (0..processors())
        .map(|_| thread::spawn(move || spin(time)))
        .collect();
    let count = threads.len().max(1) as f64;
    let shares = threads.into_iter().map(|one| one.join().unwrap_or(0.0));
    (shares.sum::<f64>() / count).min(1.0)
}

fn spin(time: Duration) -> f64 {
    let used = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    let (began, before) = (Instant::now(), used());
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
    (used() - before) / began.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_kernel_and_some_processor_to_spare() {
        let machine = Machine::here();
        assert!(!machine.kernel.is_empty() && machine.processors > 0 && machine.memory > 0);
        let free = free_cpu(Duration::from_millis(5));
        assert!(free > 0.0 && free <= 1.0, "{free}");
    }
}
