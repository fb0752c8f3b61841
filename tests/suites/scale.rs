//! Very many of everything: a directory of a million names, a file of 100,000 extents, 10,000
//! snapshots. Prints time and the daemon's peak memory for each step.
//!
//! Only with `SAPWOOD_FULL=1` (`make scale`). `SAPWOOD_SCALE` divides the numbers, for a try.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::fs::SeekFrom;
use sapwood::Kind;
use sapwood_tests::form::Form;
use sapwood_tests::mount::peak_memory;
use sapwood_tests::random::Random;
use sapwood_tests::volume::{Volume, ours};
use sapwood_tests::{Need, Outcome, machine, subvolumes, trial};

/// Most memory that a daemon may need for any of this.
const MEMORY: u64 = 1536 << 20;

pub(crate) fn trials() -> Vec<Trial> {
    let needs = [machine::KERNEL, Need::Fuse, Need::Full];
    vec![
        trial("a_million_names", &needs, names),
        trial("a_hundred_thousand_extents", &needs, extents),
        trial("ten_thousand_snapshots", &needs, snapshots),
    ]
}

fn scaled(number: u64) -> u64 {
    let by = std::env::var("SAPWOOD_SCALE")
        .ok()
        .and_then(|by| by.parse().ok())
        .unwrap_or(1);
    (number / by).max(1)
}

/// Steps with their times, as rows of a table.
struct Table {
    test: &'static str,
    volume: Volume,
}

impl Table {
    fn new(test: &'static str, size: u64) -> Result<Self, String> {
        println!("| what | step | seconds | peak MiB |\n|---|---|---|---|");
        Ok(Self {
            test,
            volume: Form::plain(Kind::Btrfs).volume(size)?,
        })
    }

    fn step<T>(
        &mut self,
        what: &str,
        work: impl FnOnce(&Path) -> Result<T, String>,
    ) -> Result<T, String> {
        let start = Instant::now();
        let result = work(self.volume.path()).map_err(|why| format!("{what}: {why}"))?;
        self.row(what, start.elapsed())?;
        Ok(result)
    }

    fn row(&self, what: &str, time: Duration) -> Result<(), String> {
        let peak = self.volume.daemon().map_or(0, peak_memory);
        println!(
            "| {} | {what} | {:.2} | {} |",
            self.test,
            time.as_secs_f64(),
            peak >> 20
        );
        (peak <= MEMORY)
            .then_some(())
            .ok_or(format!("{what}: the daemon took {peak} bytes"))
    }

    fn remount(&mut self) -> Result<(), String> {
        let start = Instant::now();
        self.volume.remount()?;
        self.row("unmount and mount", start.elapsed())
    }

    fn finish(self) -> Outcome {
        let (test, start) = (self.test, Instant::now());
        self.volume.finish()?;
        println!(
            "| {test} | unmount and both checks | {:.2} | |",
            start.elapsed().as_secs_f64()
        );
        Ok(())
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn list(dir: &Path) -> Result<HashSet<String>, String> {
    let mut names = HashSet::new();
    for entry in fs::read_dir(dir).map_err(text)? {
        let name = entry.map_err(text)?.file_name();
        if !names.insert(name.to_string_lossy().into_owned()) {
            return Err(format!("{} is listed twice", name.display()));
        }
    }
    Ok(names)
}

fn names() -> Outcome {
    let count = scaled(1_000_000);
    let name = |at: u64| format!("name-{at:07}");
    let mut table = Table::new("a million names", 16 << 30)?;
    table.step("create", |root| {
        let dir = root.join("dir");
        fs::create_dir(&dir).map_err(text)?;
        for at in 0..count {
            File::create_new(dir.join(name(at))).map_err(text)?;
        }
        subvolumes::sync(ours(), root)
    })?;
    table.remount()?;
    let complete = |found: HashSet<String>, expected: u64| {
        let all = found.len() as u64 == expected;
        all.then_some(())
            .ok_or(format!("{} names of {expected}", found.len()))
    };
    table.step("list", |root| complete(list(&root.join("dir"))?, count))?;
    table.step("stat 100,000 at random", |root| {
        let mut random = Random::new(1);
        for _ in 0..scaled(100_000) {
            fs::symlink_metadata(root.join("dir").join(name(random.below(count)))).map_err(text)?;
        }
        Ok(())
    })?;
    table.step("rename 10,000", |root| {
        for at in 0..scaled(10_000) {
            let dir = root.join("dir");
            fs::rename(dir.join(name(at)), dir.join(format!("moved-{at}"))).map_err(text)?;
        }
        Ok(())
    })?;
    table.step("delete every other", |root| {
        for at in (scaled(10_000)..count).step_by(2) {
            fs::remove_file(root.join("dir").join(name(at))).map_err(text)?;
        }
        subvolumes::sync(ours(), root)
    })?;
    table.remount()?;
    let left = count - (count - scaled(10_000)).div_ceil(2);
    table.step("list", |root| complete(list(&root.join("dir"))?, left))?;
    table.finish()
}

fn extents() -> Outcome {
    const STRIDE: u64 = 1 << 20;
    let count = scaled(100_000);
    let content = |at: u64| Random::new(at).bytes(4096);
    let mut table = Table::new("100,000 extents", 8 << 30)?;
    table.step("write 4 KiB in each MiB", |root| {
        let file = File::create(root.join("file")).map_err(text)?;
        for at in 0..count {
            file.write_all_at(&content(at), at * STRIDE).map_err(text)?;
        }
        file.set_len(count * STRIDE).map_err(text)?;
        file.sync_all().map_err(text)
    })?;
    table.remount()?;
    table.step("walk data and holes", |root| {
        let file = File::open(root.join("file")).map_err(text)?;
        for at in 0..count {
            let data = rustix::fs::seek(&file, SeekFrom::Data(at * STRIDE)).map_err(text)?;
            let hole = rustix::fs::seek(&file, SeekFrom::Hole(at * STRIDE)).map_err(text)?;
            if data != at * STRIDE || hole != at * STRIDE + 4096 {
                return Err(format!("extent {at}: data at {data}, hole at {hole}"));
            }
        }
        Ok(())
    })?;
    table.step("read all", |root| {
        let file = File::open(root.join("file")).map_err(text)?;
        let mut buffer = vec![0; 8192];
        for at in 0..count {
            file.read_exact_at(&mut buffer, at * STRIDE).map_err(text)?;
            if buffer[..4096] != content(at) || buffer[4096..].iter().any(|byte| *byte != 0) {
                return Err(format!("extent {at} reads wrong"));
            }
        }
        Ok(())
    })?;
    table.step("copy by reflink", |root| {
        let from = File::open(root.join("file")).map_err(text)?;
        let to = File::create(root.join("copy")).map_err(text)?;
        let (mut at, mut to_at) = (0, 0);
        while at < count * STRIDE {
            let left = usize::try_from(count * STRIDE - at).map_err(text)?;
            let done =
                rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut to_at), left);
            if done.map_err(text)? == 0 {
                return Err("nothing copied".to_owned());
            }
        }
        to.sync_all().map_err(text)
    })?;
    table.step("overwrite every third", |root| {
        let file = File::options()
            .write(true)
            .open(root.join("file"))
            .map_err(text)?;
        for at in (0..count).step_by(3) {
            file.write_all_at(&content(at + 1), at * STRIDE)
                .map_err(text)?;
        }
        file.sync_all().map_err(text)
    })?;
    table.step("delete", |root| {
        fs::remove_file(root.join("file")).map_err(text)?;
        subvolumes::sync(ours(), root)
    })?;
    table.remount()?;
    table.finish()
}

fn snapshots() -> Outcome {
    let count = scaled(10_000);
    let mut table = Table::new("10,000 snapshots", 16 << 30)?;
    table.step("make a subvolume of 1,000 files", |root| {
        subvolumes::create(ours(), &root.join("base"))?;
        for at in 0..1000 {
            fs::write(
                root.join(format!("base/file-{at}")),
                Random::new(at).bytes(2000),
            )
            .map_err(text)?;
        }
        fs::create_dir(root.join("snapshots")).map_err(text)
    })?;
    table.step("snapshot, one change each", |root| {
        for at in 0..count {
            let place = root.join(format!("snapshots/{at}"));
            subvolumes::snapshot(ours(), &root.join("base"), &place)?;
            fs::write(
                root.join(format!("base/file-{}", at % 1000)),
                at.to_string(),
            )
            .map_err(text)?;
        }
        subvolumes::sync(ours(), root)
    })?;
    table.remount()?;
    table.step("read in 1,000 of them", |root| {
        let mut random = Random::new(7);
        for _ in 0..scaled(1000) {
            let at = random.below(count);
            // The change before this snapshot was its number less one.
            let Some(before) = at.checked_sub(1) else {
                continue;
            };
            let path = root.join(format!("snapshots/{at}/file-{}", before % 1000));
            let found = fs::read_to_string(path).map_err(text)?;
            if found != before.to_string() {
                return Err(format!("snapshot {at} holds {found}"));
            }
        }
        Ok(())
    })?;
    table.step("delete every other", |root| {
        for at in (0..count).step_by(2) {
            subvolumes::delete(ours(), &root.join(format!("snapshots/{at}")))?;
        }
        subvolumes::sync(ours(), root)
    })?;
    table.remount()?;
    table.finish()
}
