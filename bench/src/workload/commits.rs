//! Fsyncs while the file system commits all the time: the case for the overlap of a log with the
//! previous commit.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sapwood_fuse::control;
use sapwood_vfs::{Credentials, FileSystem, Ino, NewInode, SyncKind, WriteMode};
use serde_json::json;

use super::{Place, panicked};
use crate::error::{on, syncfs};
use crate::figures::{Latency, Seen};
use crate::{Error, Result};

/// Bytes of one write.
const BLOCK: u64 = 4096;
/// Blocks of a writer's file.
const BLOCKS: u64 = 1024;
/// Number of files that are created between two commits, so that each commit has changes to write.
const CREATED: u64 = 200;

/// One writer's file.
enum Target {
    Mounted(File),
    InProcess(Arc<dyn FileSystem>, Ino),
}

impl Target {
    fn create(place: &Place, name: &str) -> Result<Self> {
        Ok(match place {
            Place::Directory(dir) => {
                let path = dir.join(name);
                Self::Mounted(File::create(&path).map_err(on(&path))?)
            }
            Place::Library(fs) => {
                let (who, what) = (Credentials::ROOT, NewInode::Regular);
                let made = fs.create(&who, fs.root(), name.as_bytes(), what, 0o644)?;
                Self::InProcess(Arc::clone(fs), made.ino())
            }
        })
    }

    fn write_and_fsync(&self, turn: u64) -> Result<()> {
        let (data, at) = ([b'x'; BLOCK as usize], turn % BLOCKS * BLOCK);
        match self {
            Self::Mounted(file) => {
                let done = file.write_all_at(&data, at).and_then(|()| file.sync_all());
                done.map_err(on(Path::new("writing")))
            }
            Self::InProcess(fs, ino) => {
                fs.write(*ino, at, &data, WriteMode::default())?;
                Ok(fs.fsync(*ino, SyncKind::All)?)
            }
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Self::InProcess(fs, ino) = self {
            fs.forget(*ino, 1);
        }
    }
}

/// Makes the file system commit until the time is over; returns the number of commits.
fn commit(place: &Place, until: Instant) -> Result<u64> {
    let mut commits = 0;
    while Instant::now() < until {
        for number in 0..CREATED {
            drop(Target::create(place, &format!("new-{commits}-{number}"))?);
        }
        match place {
            Place::Library(fs) => fs.sync()?,
            Place::Directory(dir) => sync(dir)?,
        }
        commits += 1;
    }
    Ok(commits)
}

/// Sapwood does not receive `syncfs`, and the kernel does not know our command.
fn sync(dir: &Path) -> Result<()> {
    if control::sync(dir).is_ok() {
        return Ok(());
    }
    syncfs(dir)
}

pub(super) fn run(
    place: &Place,
    writers: u32,
    time: Duration,
    settle: &mut dyn FnMut() -> Result<()>,
) -> Result<Seen> {
    let names = (0..writers).map(|number| format!("writer-{number}"));
    let targets: Result<Vec<_>> = names.map(|name| Target::create(place, &name)).collect();
    let targets = targets?;
    settle()?;
    let began = Instant::now();
    let until = began + time;
    let write = |target: &Target| -> Result<Vec<Duration>> {
        let mut all = Vec::new();
        while Instant::now() < until {
            let began = Instant::now();
            target.write_and_fsync(all.len() as u64)?;
            all.push(began.elapsed());
        }
        Ok(all)
    };
    let (durations, commits) = thread::scope(|scope| {
        let write = &write;
        let threads: Vec<_> = targets
            .iter()
            .map(|target| scope.spawn(move || write(target)))
            .collect();
        let commits = commit(place, until);
        let mut all = Vec::new();
        for one in threads {
            all.extend(one.join().map_err(|_| panicked())??);
        }
        Ok::<_, Error>((all, commits?))
    })?;
    let mut seen = Seen::rate(durations.len() as f64 / began.elapsed().as_secs_f64());
    seen.fsync = Latency::of(durations);
    seen.details = json!({ "syncs": commits });
    Ok(seen)
}
