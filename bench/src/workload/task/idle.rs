//! A mount that nobody uses.
//!
//! Facts: `proc_pid_status(5)`: a thread that waits for something gives up the processor by itself,
//! which `voluntary_ctxt_switches` counts each time that it does so: once for each wake-up.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::contestant::Standing;
use crate::error::on;
use crate::figures::Seen;
use crate::{Error, Result};

/// Files that are made before, so that there is something to be held in memory and written.
const FILES: u32 = 200;
/// What is over in any case when this has passed: reports of the kernel's, threads that end, and what
/// the files set going: ext4 looks once more, 5 s after the first, whether anything is to be committed.
const QUIET: Duration = Duration::from_secs(6);

pub(super) fn run(dir: &Path, standing: &mut Standing, seconds: u64) -> Result<Seen> {
    for number in 0..FILES {
        let path = dir.join(format!("file-{number}"));
        fs::write(&path, [0; 5000]).map_err(on(&path))?;
    }
    standing.begin()?;
    let why = || Error::Refused("no process serves this one".to_owned());
    let process = standing.process().ok_or_else(why)?;
    thread::sleep(QUIET);
    let before = switches(process)?;
    let time = Duration::from_secs(seconds.max(5));
    thread::sleep(time);
    let woken = switches(process)?.saturating_sub(before);
    let path = format!("/proc/{process}/status");
    let status = fs::read_to_string(&path).map_err(on(Path::new(&path)))?;
    let kib = field(&status, "VmRSS:").unwrap_or(0);
    Ok(Seen::rate(woken as f64 / time.as_secs_f64()).with("resident_mib", kib as f64 / 1024.0))
}

/// Of all threads of a process together.
fn switches(process: u32) -> Result<u64> {
    let path = format!("/proc/{process}/task");
    let tasks = fs::read_dir(&path).map_err(on(Path::new(&path)))?;
    // A thread that ends meanwhile is not there any more.
    let of = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        field(&status, "voluntary_ctxt_switches:")
    };
    Ok(tasks.flatten().filter_map(of).sum())
}

fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_switched() {
        thread::sleep(Duration::from_millis(1));
        assert!(switches(std::process::id()).unwrap() > 0);
        assert_eq!(field("VmRSS:\t  123 kB\n", "VmRSS:"), Some(123));
        assert_eq!(field("nothing", "VmRSS:"), None);
    }
}
