//! Writers and fsyncs by fio, in a directory.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::Writes;
use crate::error::{io_error, on, run_program};
use crate::figures::{Latency, Seen};
use crate::{Error, Result};

pub(super) fn run(
    dir: &Path,
    writes: &Writes,
    seconds: u64,
    settle: &mut dyn FnMut() -> Result<()>,
) -> Result<Seen> {
    for job in 0..writes.jobs {
        prepare(&dir.join(writes.file(job)), writes)?;
    }
    settle()?;
    let pattern = if writes.random { "randwrite" } else { "write" };
    let mut command = Command::new("fio");
    command.args(["--name=writes", "--output-format=json", "--group_reporting"]);
    command.args(["--ioengine=sync", "--fallocate=none", "--direct=0"]);
    command.args(["--randrepeat=1", "--allow_file_create=0", "--time_based"]);
    command.arg("--filename_format=job.$jobnum");
    command.arg(format!("--directory={}", dir.display()));
    command.arg(format!("--rw={pattern}"));
    command.arg(format!("--bs={}", writes.block));
    command.arg(format!("--size={}", writes.size()));
    command.arg(format!("--numjobs={}", writes.jobs));
    command.arg(format!("--fsync={}", writes.fsync_every));
    command.arg(format!("--runtime={seconds}"));
    read(&run_program(&mut command)?)
}

fn prepare(path: &Path, writes: &Writes) -> Result<()> {
    let file = File::create(path).map_err(on(path))?;
    file.set_len(writes.size()).map_err(on(path))?;
    for (name, value) in writes.attributes() {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::fsetxattr(&file, &name, &value, flags)
            .map_err(|errno| io_error("attribute")(errno.into()))?;
    }
    Ok(())
}

const fn missing(what: &'static str) -> Error {
    Error::Output {
        program: "fio",
        what,
    }
}

/// The report of the only group of jobs.
fn job(text: &str) -> Result<Value> {
    // Messages may precede the report.
    let start = text.find('{').ok_or(missing("report"))?;
    let mut all: Value = serde_json::from_str(&text[start..]).map_err(|_| missing("report"))?;
    let job = all["jobs"][0].take();
    if job["error"] != json!(0) {
        return Err(Error::Program {
            program: "fio".to_owned(),
            why: format!("error {}", job["error"]),
        });
    }
    Ok(job)
}

/// Parses a report of one direction without fsyncs; `fsync` is the duration of an fsync after it.
pub(super) fn read_big(text: &str, write: bool, fsync: Duration) -> Result<Seen> {
    let job = job(text)?;
    let part = &job[if write { "write" } else { "read" }];
    let bytes = part["io_bytes"].as_f64().ok_or(missing("bytes"))?;
    let millis = job["job_runtime"].as_f64().ok_or(missing("time"))?;
    let seconds = millis.max(1.0) / 1000.0 + fsync.as_secs_f64();
    Ok(Seen::rate(bytes / f64::from(1 << 20) / seconds))
}

/// Parses a report of writers.
fn read(text: &str) -> Result<Seen> {
    let job = job(text)?;
    let bytes = job["write"]["bw_bytes"].as_f64();
    let sync = &job["sync"]["lat_ns"];
    let micros = |value: &Value| value.as_f64().map(|ns| ns / 1000.0);
    let latency = || {
        Some(Latency {
            p50: micros(&sync["percentile"]["50.000000"])?,
            p99: micros(&sync["percentile"]["99.000000"])?,
            max: micros(&sync["max"])?,
        })
    };
    let mut seen = Seen::rate(bytes.ok_or(missing("bandwidth"))? / f64::from(1 << 20));
    seen.fsync = latency();
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_behind_notes() {
        let text = r#"note: something
{"jobs":[{"error":0,"write":{"bw_bytes":2097152},
"sync":{"lat_ns":{"max":3000,"percentile":{"50.000000":1000,"99.000000":2000}}}}]}"#;
        let seen = read(text).unwrap();
        assert!((seen.rate - 2.0).abs() < 1e-9);
        let latency = seen.fsync.unwrap();
        assert_eq!((latency.p50, latency.p99, latency.max), (1.0, 2.0, 3.0));
    }

    #[test]
    fn a_big_file_took_until_the_fsync_behind_it() {
        let text = r#"{"jobs":[{"error":0,"job_runtime":2000,"write":{"io_bytes":8388608}}]}"#;
        let at_once = read_big(text, true, Duration::ZERO).unwrap();
        assert!((at_once.rate - 4.0).abs() < 1e-9);
        let later = read_big(text, true, Duration::from_secs(2)).unwrap();
        assert!((later.rate - 2.0).abs() < 1e-9);
        assert!(read_big(text, false, Duration::ZERO).is_err());
    }

    #[test]
    fn no_report_and_a_failed_job_are_errors() {
        assert!(read("fio: broken").is_err());
        assert!(read(r#"{"jobs":[{"error":28}]}"#).is_err());
        assert!(read(r#"{"jobs":[{"error":0}]}"#).is_err());
    }
}
