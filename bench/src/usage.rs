//! The resources that a process has used.
//!
//! From `proc_pid_status(5)`: a thread that waits gives up the processor voluntarily, and
//! `voluntary_ctxt_switches` counts that, once for each wake-up. From `proc_pid_stat(5)`: `utime`
//! and `stime` are fields 14 and 15, in clock ticks, for all threads together.

use std::fs;
use std::path::Path;

use crate::error::on;
use crate::{Error, Result};

/// The resources that all threads of a process have used since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Seconds of processor time, in the program and in the kernel.
    pub processor_seconds: f64,
    /// Waits: voluntary context switches.
    pub waits: u64,
    /// All context switches.
    pub switches: u64,
}

impl Usage {
    /// Of a running process.
    ///
    /// # Errors
    /// The process has ended.
    pub fn of(process: u32) -> Result<Self> {
        let path = format!("/proc/{process}/task");
        let tasks = fs::read_dir(&path).map_err(on(Path::new(&path)))?;
        let mut usage = Self::default();
        for task in tasks.flatten() {
            // A thread may have ended in the meantime.
            let Ok(status) = fs::read_to_string(task.path().join("status")) else {
                continue;
            };
            let (waits, taken) = switches(&status);
            usage.waits += waits;
            usage.switches += waits + taken;
        }
        let path = format!("/proc/{process}/stat");
        let stat = fs::read_to_string(&path).map_err(on(Path::new(&path)))?;
        let ticks = ticks(&stat).ok_or(Error::Output {
            program: "/proc/PID/stat",
            what: "times",
        })?;
        usage.processor_seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        Ok(usage)
    }

    /// Context switches of the calling thread since its start.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn switches_of_this_thread() -> Result<u64> {
        let path = Path::new("/proc/thread-self/status");
        let status = fs::read_to_string(path).map_err(on(path))?;
        let (waits, taken) = switches(&status);
        Ok(waits + taken)
    }

    /// The increase since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            processor_seconds: self.processor_seconds - before.processor_seconds,
            waits: self.waits.saturating_sub(before.waits),
            switches: self.switches.saturating_sub(before.switches),
        }
    }
}

/// Voluntary and other context switches in a `status` file.
fn switches(status: &str) -> (u64, u64) {
    let count = |name| field(status, name).unwrap_or(0);
    (
        count("voluntary_ctxt_switches:"),
        count("nonvoluntary_ctxt_switches:"),
    )
}

/// Number in a line of a `status` file.
pub(crate) fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// User and system time in a `stat` file. The program's name, in parentheses, may contain any
/// character.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_process_that_waits_has_switched() {
        let before = Usage::of(std::process::id()).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        let after = Usage::of(std::process::id()).unwrap();
        assert!(after.since(&before).waits > 0);
        assert!(after.switches >= after.waits);
        let before = Usage::switches_of_this_thread().unwrap();
        std::thread::sleep(Duration::from_millis(1));
        assert!(Usage::switches_of_this_thread().unwrap() > before);
        assert_eq!(field("VmRSS:\t  123 kB\n", "VmRSS:"), Some(123));
        assert_eq!(field("nothing", "VmRSS:"), None);
    }

    #[test]
    fn times_are_found_after_any_name() {
        let stat = "7 (a) b) R 1 2 3 4 5 6 7 8 9 10 30 12 0 0 20 0 1";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(ticks("7 (a"), None);
    }
}
