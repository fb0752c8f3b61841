//! The programs of a run, and what they use.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::{Context, Error, Result};

/// The resources that a program used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    /// Seconds from its start to its end.
    pub(crate) seconds: f64,
    /// Seconds of processor time, in the program and in the kernel.
    pub(crate) cpu_seconds: f64,
    /// Peak memory in MiB.
    pub(crate) peak_mib: f64,
}

/// Runs a program to its end and returns its standard output.
///
/// # Errors
/// It cannot be started, or fails.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().on(&name)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = said.trim().lines().last().unwrap_or("it wrote no message");
    Err(Error::new(format!("{name}: {}: {last}", output.status)))
}

/// Runs a program to its end. Its output is dropped.
///
/// # Errors
/// It cannot be started, or fails.
pub(crate) fn watch(command: &mut Command) -> Result<Used> {
    // Also the longest time for which the peak memory is out of date at the end.
    const SAMPLE: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 2_000_000,
    };
    let name = command.get_program().display().to_string();
    let began = Instant::now();
    let started = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut child = started.on(&name)?;
    let end = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    let mut peak_mib = 0.0;
    while poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&SAMPLE)) != Ok(1) {
        peak_mib = status_mib(child.id(), "VmHWM:").unwrap_or(peak_mib);
    }
    let seconds = began.elapsed().as_secs_f64();
    // The kernel keeps the times until the wait.
    let cpu_seconds = cpu_seconds(child.id()).unwrap_or(0.0);
    let status = child.wait().on(&name)?;
    if !status.success() {
        return Err(Error::new(format!("{name}: {status}")));
    }
    Ok(Used {
        seconds,
        cpu_seconds,
        peak_mib,
    })
}

/// A field in KiB of a process's `status` (`proc_pid_status(5)`), in MiB.
pub(crate) fn status_mib(process: u32, field: &str) -> Option<f64> {
    Some(status(process, field)? as f64 / 1024.0)
}

/// Times that the threads of a process have given up the processor to wait.
pub(crate) fn waits(process: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{process}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    texts
        .filter_map(|text| number(&text, "voluntary_ctxt_switches:"))
        .sum()
}

fn status(process: u32, field: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    number(&text, field)
}

fn number(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Processor time of a process and of its children that have ended (`proc_pid_stat(5)`).
pub(crate) fn cpu_seconds(process: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    Some(ticks(&stat)? as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// The program's name, in parentheses, may contain any character.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let times = rest.split_whitespace().skip(11).take(4);
    times.map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// Makes everything in the file system of `dir` durable, as far as `syncfs(2)` does.
///
/// # Errors
/// Errors of the file system.
pub(crate) fn syncfs(dir: &Path) -> Result<()> {
    let root = fs::File::open(dir).on(dir.display())?;
    rustix::fs::syncfs(&root).on(dir.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_watched_to_its_end() {
        // The memory of this process, which is larger than `sleep`, is not counted.
        let ours = vec![1_u8; 64 << 20];
        assert!(std::hint::black_box(&ours).iter().all(|byte| *byte == 1));
        let small = watch(Command::new("sleep").arg("0.05")).unwrap();
        assert!(small.seconds >= 0.05 && small.peak_mib < 32.0, "{small:?}");
        let script = "a=$(head -c 100000000 /dev/zero | tr '\\0' x); sleep 0.05";
        let large = watch(Command::new("sh").args(["-c", script])).unwrap();
        assert!(
            large.peak_mib > 95.0 && large.cpu_seconds > 0.0,
            "{large:?}"
        );
        assert!(watch(&mut Command::new("false")).is_err());
    }

    #[test]
    fn times_are_found_after_any_name() {
        let stat = "7 (a) b) R 1 2 3 4 5 6 7 8 9 10 30 12 4 1 20 0 1";
        assert_eq!(ticks(stat), Some(47));
        assert_eq!(ticks("7 (a"), None);
        assert_eq!(number("VmRSS:\t  123 kB\n", "VmRSS:"), Some(123));
    }
}
