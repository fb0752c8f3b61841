//! Renames in a directory that was fsynced, as a package manager does them.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use sapwood_vfs::{Credentials, FileSystem, Ino, NewInode, RenameMode, SyncKind};

use super::Place;
use crate::Result;
use crate::error::on;
use crate::figures::{Latency, Seen};

/// A directory of a mount or in process.
trait Directory {
    fn create(&self, name: &str) -> Result<()>;
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    fn fsync(&self) -> Result<()>;
}

struct Mounted {
    path: PathBuf,
    open: File,
}

impl Directory for Mounted {
    fn create(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        File::create(&path).map(drop).map_err(on(&path))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let path = self.path.join(from);
        fs::rename(&path, self.path.join(to)).map_err(on(&path))
    }

    fn fsync(&self) -> Result<()> {
        self.open.sync_all().map_err(on(&self.path))
    }
}

struct InProcess {
    fs: Arc<dyn FileSystem>,
    dir: Ino,
}

impl Directory for InProcess {
    fn create(&self, name: &str) -> Result<()> {
        let (who, what) = (Credentials::ROOT, NewInode::Regular);
        let made = self
            .fs
            .create(&who, self.dir, name.as_bytes(), what, 0o644)?;
        self.fs.forget(made.ino(), 1);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (from.as_bytes(), to.as_bytes());
        Ok(self
            .fs
            .rename(self.dir, from, self.dir, to, RenameMode::Replace)?)
    }

    fn fsync(&self) -> Result<()> {
        Ok(self.fs.fsync(self.dir, SyncKind::All)?)
    }
}

/// Creates `count` files, makes them durable, creates one more, fsyncs the directory, and renames
/// all. The measured part follows that fsync. `every`: number of renames between two fsyncs.
pub(super) fn run(
    place: &Place,
    count: u32,
    every: Option<u32>,
    settle: &mut dyn FnMut() -> Result<()>,
) -> Result<Seen> {
    let dir: Box<dyn Directory> = match place {
        Place::Directory(root) => {
            let path = root.join("renames");
            fs::create_dir(&path).map_err(on(&path))?;
            let open = File::open(&path).map_err(on(&path))?;
            Box::new(Mounted { path, open })
        }
        Place::Library(fs) => {
            let (who, what) = (Credentials::ROOT, NewInode::Directory);
            let made = fs.create(&who, fs.root(), b"renames", what, 0o755)?;
            Box::new(InProcess {
                fs: Arc::clone(fs),
                dir: made.ino(),
            })
        }
    };
    let name = |number: u32| format!("file-{number:06}");
    for number in 0..count {
        dir.create(&name(number))?;
    }
    settle()?;
    dir.create("one-more")?;
    dir.fsync()?;
    let mut fsyncs = Vec::new();
    let began = Instant::now();
    for number in 0..count {
        let from = name(number);
        dir.rename(&from, &format!("{from}-RPMDELETE"))?;
        if every.is_some_and(|every| (number + 1) % every == 0) {
            let began = Instant::now();
            dir.fsync()?;
            fsyncs.push(began.elapsed());
        }
    }
    let took = began.elapsed().as_secs_f64();
    let mut seen = Seen::rate(f64::from(count) / took)
        .with("ms", took * 1e3)
        .with("us_each", took * 1e6 / f64::from(count));
    seen.fsync = Latency::of(fsyncs);
    Ok(seen)
}
