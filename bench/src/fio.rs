//! fio and dbench, in a mount.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::load::{Big, Cache, Writes};
use crate::program::output;
use crate::run::Run;

/// The part of fio's report that is read, of the only group of jobs.
#[derive(Debug, Deserialize)]
struct Report {
    jobs: [Job; 1],
}

#[derive(Debug, Deserialize)]
struct Job {
    error: i64,
    #[serde(default)]
    job_runtime: f64,
    write: Direction,
    #[serde(default)]
    sync: Sync,
}

#[derive(Debug, Deserialize)]
struct Direction {
    bw_bytes: f64,
}

#[derive(Debug, Default, Deserialize)]
struct Sync {
    #[serde(default)]
    lat_ns: Latency,
}

#[derive(Debug, Default, Deserialize)]
struct Latency {
    #[serde(default)]
    max: f64,
    percentile: Option<Percentiles>,
}

#[derive(Debug, Deserialize)]
struct Percentiles {
    #[serde(rename = "50.000000")]
    p50: f64,
    #[serde(rename = "99.000000")]
    p99: f64,
}

fn run_fio(command: &mut Command) -> Result<Job> {
    parse(&output(command.arg("--output-format=json"))?)
}

fn parse(text: &str) -> Result<Job> {
    // Messages may precede the report.
    let report = text.find('{').map_or("", |start| &text[start..]);
    let Report { jobs: [job] } = serde_json::from_str(report)?;
    match job.error {
        0 => Ok(job),
        error => Err(Error::new(format!("fio: error {error}"))),
    }
}

/// Runs writers on the files `job.N` of a directory.
pub(crate) fn writes(run: &mut Run, dir: &Path, writes: &Writes) -> Result<()> {
    let mut fio = Command::new("fio");
    fio.args([
        "--name=writes",
        "--group_reporting",
        "--ioengine=sync",
        "--fallocate=none",
    ]);
    fio.args([
        "--direct=0",
        "--randrepeat=1",
        "--allow_file_create=0",
        "--time_based",
    ]);
    fio.arg("--filename_format=job.$jobnum");
    fio.arg(format!("--directory={}", dir.display()));
    fio.arg(if writes.random {
        "--rw=randwrite"
    } else {
        "--rw=write"
    });
    fio.arg(format!("--bs={}", writes.block));
    fio.arg(format!("--size={}", writes.size()));
    fio.arg(format!("--numjobs={}", writes.jobs));
    fio.arg(format!("--fsync={}", writes.fsync_every));
    fio.arg(format!("--runtime={}", run.time.as_secs()));
    let job = run_fio(&mut fio)?;
    run.set("rate", job.write.bw_bytes / 1048576.0);
    let latency = job.sync.lat_ns;
    if let Some(Percentiles { p50, p99 }) = latency.percentile {
        for (key, ns) in [
            ("fsync_p50", p50),
            ("fsync_p99", p99),
            ("fsync_max", latency.max),
        ] {
            run.set(key, ns / 1e6);
        }
    }
    Ok(())
}

/// Seconds of an access to the file `big`. A written one is durable in the end.
pub(crate) fn big(dir: &Path, big: Big) -> Result<f64> {
    let (random, what) = (
        if big.random { "rand" } else { "" },
        if big.write { "write" } else { "read" },
    );
    let path = dir.join("big");
    let mut fio = Command::new("fio");
    fio.args([
        "--name=big",
        "--ioengine=psync",
        "--fallocate=none",
        "--randrepeat=1",
        "--invalidate=0",
    ]);
    fio.arg(format!("--filename={}", path.display()));
    fio.arg(format!("--rw={random}{what}"));
    fio.arg(format!("--bs={}", big.block()));
    fio.arg(format!("--size={}", Big::FILE));
    fio.arg(format!("--io_size={}", big.moved()));
    fio.arg(format!("--direct={}", u8::from(big.cache == Cache::Direct)));
    let job = run_fio(&mut fio)?;
    // fio's report does not show whether its time includes the last fsync.
    let began = Instant::now();
    if big.write {
        File::open(&path)?.sync_all()?;
    }
    Ok(job.job_runtime.max(1.0) / 1e3 + began.elapsed().as_secs_f64())
}

/// dbench, with the load of the Debian package.
pub(crate) fn dbench(run: &mut Run) -> Result<()> {
    /// In less time, many clients have not even made their directories.
    const LEAST: u64 = 5;
    run.begin()?;
    let mut dbench = Command::new("dbench");
    dbench.args([
        "--loadfile",
        "/usr/share/dbench/client.txt",
        "--skip-cleanup",
    ]);
    dbench.args(["--timelimit", &run.time.as_secs().max(LEAST).to_string()]);
    dbench
        .arg("--directory")
        .arg(run.dir()?)
        .arg(run.size.count.to_string());
    let [rate, slowest] = parse_dbench(&output(&mut dbench)?)?;
    run.set("rate", rate);
    run.set("slowest_ms", slowest);
    Ok(())
}

/// Throughput and longest operation in the last line.
fn parse_dbench(text: &str) -> Result<[f64; 2]> {
    let find = || {
        let line = text.lines().find(|line| line.starts_with("Throughput "))?;
        let rate: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
        let slowest = line
            .split("max_latency=")
            .nth(1)?
            .split_whitespace()
            .next()?;
        (rate > 0.0).then_some([rate, slowest.parse().ok()?])
    };
    find().ok_or_else(|| Error::new("dbench reports no throughput"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_fio_is_read_after_messages() {
        let text = r#"note: something
{"jobs":[{"error":0,"job_runtime":2000,"write":{"bw_bytes":2097152,"more":1},
"sync":{"lat_ns":{"max":3000,"percentile":{"50.000000":1000,"99.000000":2000}}}}]}"#;
        let job = parse(text).unwrap();
        assert_eq!((job.write.bw_bytes, job.job_runtime), (2097152.0, 2000.0));
        let latency = job.sync.lat_ns;
        assert_eq!(
            (latency.max, latency.percentile.unwrap().p99),
            (3000.0, 2000.0)
        );
        let reads = r#"{"jobs":[{"error":0,"write":{"bw_bytes":0},"sync":{"lat_ns":{"max":0}}}]}"#;
        assert!(parse(reads).unwrap().sync.lat_ns.percentile.is_none());
        assert!(parse("fio: broken").is_err());
        assert!(parse(r#"{"jobs":[{"error":28,"write":{"bw_bytes":0}}]}"#).is_err());
    }

    #[test]
    fn the_summary_of_dbench_is_read() {
        let text = "
 Operation      Count    AvgLat    MaxLat
 Flush           4158     0.811    18.126

Throughput 311.042 MB/sec  16 clients  16 procs  max_latency=18.130 ms
";
        assert_eq!(parse_dbench(text).unwrap(), [311.042, 18.130]);
        assert!(parse_dbench("failed").is_err());
        let nothing = text.replace("311.042", "0");
        assert!(parse_dbench(&nothing).is_err(), "nothing was done");
    }
}
