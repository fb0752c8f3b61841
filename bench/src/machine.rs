//! The machine of a measurement, and its load.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

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

/// Describes this machine in a line.
pub(crate) fn describe() -> String {
    let field = |file: &str, name: &str| -> Option<String> {
        let text = fs::read_to_string(file).ok()?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let memory = field("/proc/meminfo", "MemTotal").unwrap_or_default();
    let kib = memory
        .split(' ')
        .next()
        .and_then(|kib| kib.parse::<u64>().ok());
    let mut all = vec![
        format!("Linux {}", kernel.trim()),
        format!("{} processors", processors()),
        field("/proc/cpuinfo", "model name").unwrap_or_default(),
        format!("{} GiB of memory", kib.unwrap_or(0) >> 20),
        format!("sapwood {}", env!("CARGO_PKG_VERSION")),
    ];
    all.extend(
        PROGRAMS
            .iter()
            .map(|(program, argument)| version(program, argument)),
    );
    all.join(", ")
}

/// The first word that is a version.
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
    let words = text
        .split_whitespace()
        .map(|word| word.trim_start_matches(|c: char| !c.is_ascii_digit()));
    let found = words.into_iter().find(|word| word.contains('.'));
    format!("{program} {}", found.unwrap_or("of an unknown version"))
}

fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Share of all processors, 0 to 1, that a program with one thread for each of them gets now: each
/// thread spins for `time`. Processes that wait for the disk have no effect on it.
pub(crate) fn free_cpu(time: Duration) -> f64 {
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
        assert!(describe().starts_with("Linux "));
        let free = free_cpu(Duration::from_millis(5));
        assert!(free > 0.0 && free <= 1.0, "{free}");
    }
}
