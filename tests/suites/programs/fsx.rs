//! `fsx`: random reads, writes, maps, truncates, holes and copies of one file, compared with its
//! expected content.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_tests::form::Form;
use sapwood_tests::volume::Volume;
use sapwood_tests::{Need, Outcome, machine, process};

const TOOL: &str = "fsx";

/// Every operation there is, before which the sizes have to stand.
const WEIGHTS: &str = "
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

/// Bytes of the file, and of the shortest and the longest operation.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    file: u64,
    least: u64,
    most: u64,
}

const ORDINARY: Sizes = Sizes {
    file: 1 << 20,
    least: 0,
    most: 1 << 17,
};

/// Around the size that an inode of 512 bytes holds inline. Lengths of 0 would be frequent;
/// `posix_fallocate` refuses them, which `fsx` takes for a failure.
const TINY: Sizes = Sizes {
    file: 700,
    least: 1,
    most: 150,
};

/// The forms with one `fsx` at a time, and those that run with few operations too.
fn forms() -> Vec<(Form, Sizes, bool)> {
    let plain = |form| (form, ORDINARY, true);
    let long = |form| (form, ORDINARY, false);
    vec![
        plain(Form::btrfs("plain", "", "rw")),
        plain(Form::btrfs("zstd", "", "compress=zstd")),
        plain(Form::btrfs("nodatacow", "", "nodatacow")),
        plain(Form::ext4("plain", "", "rw")),
        plain(Form::ext4("blocks_1k", "-b 1024", "rw")),
        long(Form::ext4("data_journal", "", "data=journal")),
        long(Form::ext4("inline_data", "-O inline_data", "rw")),
        (
            Form::ext4("inline_tiny", "-O inline_data -I 512", "rw"),
            TINY,
            false,
        ),
        long(Form::ext4("block_maps", "-O ^extents,^64bit", "rw")),
    ]
}

pub(super) fn trials() -> Vec<Trial> {
    let full = machine::full();
    let (seeds, operations) = if full { (3, 100_000) } else { (1, 6_000) };
    let needs = [Need::Other(|| machine::no_cached(TOOL))];
    let mut trials = Vec::new();
    for (form, sizes, often) in forms() {
        if !often && !full {
            continue;
        }
        let prefix = format!("fsx::{}", form.name);
        for seed in 1..=seeds {
            let name = format!("{prefix}::seed_{seed}");
            trials.push(form.trial(name, &needs, move |form| {
                run(form, sizes, &[seed], operations)
            }));
        }
        if full || ["plain", "zstd"].contains(&form.name) {
            let name = format!("{prefix}::eight_at_once");
            let eight = [11, 12, 13, 14, 15, 16, 17, 18];
            trials.push(form.trial(name, &needs, move |form| {
                run(form, sizes, &eight, operations / 4)
            }));
        }
    }
    trials
}

/// One `fsx` for each seed, all at once, each on a file of its own.
fn run(form: &Form, sizes: Sizes, seeds: &[u64], operations: u64) -> Outcome {
    let volume = form.volume(4 << 30)?;
    let config = volume.image().beside("fsx.toml");
    let Sizes { file, least, most } = sizes;
    let sizes = format!("flen = {file}\n[opsize]\nmin = {least}\nmax = {most}\n");
    fs::write(&config, sizes + WEIGHTS)?;
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
    // Its files are still there after an unmount.
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
