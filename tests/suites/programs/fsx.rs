//! `fsx`: random reads, writes, maps, truncates, holes and copies of one file against what it
//! should hold.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_tests::volume::Volume;
use sapwood_tests::{Need, Outcome, machine, process, trial};

use super::MOUNT;

const TOOL: &str = "fsx";

/// Every operation there is.
const CONFIG: &str = "
flen = 1048576
[opsize]
max = 131072
[weights]
close_open = 2
read = 10
write = 10
mapread = 5
mapwrite = 5
invalidate = 1
truncate = 5
fsync = 0.3
fdatasync = 0.3
posix_fallocate = 2
punch_hole = 3
sendfile = 2
posix_fadvise = 1
copy_file_range = 4
";

pub(super) fn trials() -> Vec<Trial> {
    let mut needs = MOUNT.to_vec();
    needs.push(Need::Cached(TOOL));
    let (seeds, operations) = if machine::full() {
        (3, 100_000)
    } else {
        (1, 6_000)
    };
    let mut trials = Vec::new();
    for (name, options) in [
        ("plain", "rw"),
        ("zstd", "compress=zstd"),
        ("nodatacow", "nodatacow"),
    ] {
        for seed in 1..=seeds {
            let run = move || run(options, &[seed], operations);
            trials.push(trial(format!("fsx::{name}::seed_{seed}"), &needs, run));
        }
    }
    let eight = [11, 12, 13, 14, 15, 16, 17, 18];
    for (name, options) in [("plain", "rw"), ("zstd", "compress=zstd")] {
        let run = move || run(options, &eight, operations / 4);
        trials.push(trial(format!("fsx::{name}::eight_at_once"), &needs, run));
    }
    trials
}

/// One `fsx` for each seed, all at once, each on a file of its own.
fn run(options: &str, seeds: &[u64], operations: u64) -> Outcome {
    let volume = Volume::new(4 << 30, options)?;
    let config = volume.image().beside("fsx.toml");
    fs::write(&config, CONFIG)?;
    let mut running = Vec::new();
    for seed in seeds {
        running.push(Running::start(&volume, &config, *seed, operations)?);
    }
    let limit = Duration::from_secs(60 + operations * seeds.len() as u64 / 50);
    for one in &mut running {
        one.finish(limit)?;
    }
    let files = running
        .iter()
        .map(|one| fs::read(&one.file))
        .collect::<Result<Vec<_>, _>>()?;
    let paths: Vec<PathBuf> = running.iter().map(|one| one.file.clone()).collect();
    drop(running);
    // What it left is still there after an unmount.
    let mut volume = volume;
    let place = volume.path().to_owned();
    volume.remount()?;
    for (path, before) in paths.iter().zip(files) {
        let name = path.strip_prefix(&place)?;
        if fs::read(volume.join(name))? != before {
            return Err(format!("{} changed over an unmount", name.display()).into());
        }
    }
    volume.finish()?;
    Ok(())
}

/// A running `fsx`, killed if it does not end.
struct Running {
    child: Child,
    file: PathBuf,
    log: PathBuf,
    what: String,
}

impl Running {
    fn start(volume: &Volume, config: &Path, seed: u64, operations: u64) -> Result<Self, String> {
        let file = volume.join(format!("file-{seed}"));
        let log = volume.image().beside(&format!("fsx-{seed}.log"));
        let open = || {
            fs::File::create(&log)
                .map(Stdio::from)
                .map_err(|error| error.to_string())
        };
        let mut command = Command::new(machine::cached(TOOL));
        let (operations, seed) = (operations.to_string(), seed.to_string());
        command.args(["-N", &operations, "-S", &seed, "-P", "/nonexistent", "-f"]);
        command
            .arg(config)
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(open()?);
        command.stderr(
            fs::File::options()
                .append(true)
                .open(&log)
                .map_err(|error| error.to_string())?,
        );
        let what = format!("{command:?}");
        let child = command
            .spawn()
            .map_err(|error| format!("{what}: {error}"))?;
        Ok(Self {
            child,
            file,
            log,
            what,
        })
    }

    fn finish(&mut self, limit: Duration) -> Result<(), String> {
        let ended = process::wait(&mut self.child, limit);
        if ended.is_some_and(|status| status.success()) {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned();
        Err(format!(
            "{}: {ended:?}\n{}",
            self.what,
            process::tail(&said)
        ))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
