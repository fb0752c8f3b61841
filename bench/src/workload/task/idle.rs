//! An idle mount.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::contestant::Standing;
use crate::error::on;
use crate::figures::Seen;
use crate::usage::{Usage, field};
use crate::{Error, Result};

/// Files that are made before, so that the mount has cached inodes and a commit to write.
const FILES: u32 = 200;
/// After this time, everything that the setup caused is over: reports of the kernel, threads that
/// end, and changes of the files: ext4 checks 5 s after its first commit whether there are more
/// changes.
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
    let before = Usage::of(process)?;
    let time = Duration::from_secs(seconds.max(5));
    thread::sleep(time);
    let woken = Usage::of(process)?.since(&before).waits;
    let path = format!("/proc/{process}/status");
    let status = fs::read_to_string(&path).map_err(on(Path::new(&path)))?;
    let kib = field(&status, "VmRSS:").unwrap_or(0);
    Ok(Seen::rate(woken as f64 / time.as_secs_f64()).with("resident_mib", kib as f64 / 1024.0))
}
