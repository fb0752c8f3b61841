//! Does everything with an image that a user could, within bounds. The fuzz targets use this
//! file too.
#![allow(dead_code, unreachable_pub)]

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::MemoryDevice;
use sapwood_btrfs::check::{self, CheckOptions};
use sapwood_btrfs::{Btrfs, Options};
use sapwood_vfs::{
    AllocMode, Credentials, FileSystem, Ino, NewInode, RenameMode, SeekFrom, SetAttr, SetXattrMode,
    SyncKind, WriteMode,
};

/// Most inodes that are looked at in one image.
const INODES: usize = 300;
/// Most names that are read of one directory.
const NAMES: usize = 200;

/// What came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// It was mounted.
    pub mounted: bool,
    /// Inodes that could be looked at.
    pub inodes: usize,
    /// Bytes that could be read.
    pub bytes: u64,
    /// Calls that failed.
    pub errors: usize,
}

/// Options for many short mounts.
pub fn options(read_only: bool) -> Options {
    Options {
        read_only,
        cache_bytes: 4 << 20,
        dirty_bytes: 4 << 20,
        threads: 1,
        background: false,
        ..Options::default()
    }
}

/// Mounts the image, looks at everything, changes a little of everything if it is writable, and
/// unmounts.
pub fn explore(device: &Arc<MemoryDevice>, options: Options) -> Outcome {
    let writable = !options.read_only;
    let Ok(fs) = Btrfs::open(vec![device.clone()], options) else {
        return Outcome::default();
    };
    let mut walk = Walk {
        fs: &fs,
        outcome: Outcome {
            mounted: true,
            ..Outcome::default()
        },
    };
    let found = walk.all();
    if writable {
        walk.change(&found);
        // What was changed is read from memory now, and some of it again from the device.
        walk.all();
    }
    let outcome = walk.outcome;
    let _ = fs.unmount();
    outcome
}

/// Runs our check on the image.
pub fn check_all(device: &Arc<MemoryDevice>) {
    let options = CheckOptions {
        check_data_csum: true,
        max_findings: 100,
    };
    if let Ok(report) = check::check(&[&**device], &options, &mut |_| ()) {
        for finding in &report.findings {
            let _ = finding.to_string();
        }
    }
}

/// An inode that was found, and a name of it.
struct Found {
    dir: Ino,
    name: Vec<u8>,
    ino: Ino,
}

struct Walk<'a> {
    fs: &'a Btrfs,
    outcome: Outcome,
}

impl Walk<'_> {
    fn all(&mut self) -> Vec<Found> {
        let _ = self.fs.statfs();
        let _ = self.fs.stats_json();
        if let Some(subvolumes) = self.fs.subvolumes() {
            self.note(subvolumes.list());
            self.note(subvolumes.default_subvolume());
        }
        let mut seen = HashSet::from([self.fs.root()]);
        let mut open = vec![self.fs.root()];
        let mut found = Vec::new();
        self.look_at(self.fs.root());
        while let Some(dir) = open.pop() {
            for name in self.names(dir).unwrap_or_default() {
                let Some(entry) = self.note(self.fs.lookup(dir, &name)) else {
                    continue;
                };
                let ino = entry.ino();
                if seen.len() < INODES && seen.insert(ino) {
                    open.push(ino);
                    self.look_at(ino);
                }
                found.push(Found { dir, name, ino });
                self.fs.forget(ino, 1);
            }
        }
        found
    }

    fn names(&mut self, dir: Ino) -> Option<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let listed = self.fs.readdir(dir, 0, &mut |entry| {
            names.push(entry.name);
            if names.len() < NAMES {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        match listed {
            Err(sapwood_vfs::Error::NotDirectory) => None,
            other => self.note(other).map(|()| names),
        }
    }

    fn look_at(&mut self, ino: Ino) {
        self.outcome.inodes += 1;
        let size = self.note(self.fs.getattr(ino)).map_or(0, |attr| attr.size);
        let _ = self.fs.fsxattr(ino);
        let _ = self.fs.readlink(ino);
        let _ = self.fs.parent(ino).map(|dir| self.fs.forget(dir.ino(), 1));
        for name in self.note(self.fs.listxattr(ino)).unwrap_or_default() {
            self.note(self.fs.getxattr(ino, &name));
        }
        for at in [0, size / 2] {
            let _ = self.fs.seek(ino, SeekFrom::Data(at));
            let _ = self.fs.seek(ino, SeekFrom::Hole(at));
        }
        let mut buf = vec![0; 40_000];
        for at in [0, 40_000, size.saturating_sub(5000)] {
            if at > 0 && at >= size {
                continue;
            }
            if let Ok(read) = self.fs.read(ino, at, &mut buf) {
                self.outcome.bytes += read as u64;
            }
        }
    }

    fn note<T>(&mut self, result: sapwood_vfs::Result<T>) -> Option<T> {
        if result.is_err() {
            self.outcome.errors += 1;
        }
        result.ok()
    }

    /// One change of each kind, at what was found.
    fn change(&mut self, found: &[Found]) {
        let (fs, root) = (self.fs, Credentials::ROOT);
        for (turn, Found { dir, name, ino }) in found.iter().enumerate() {
            let (dir, ino) = (*dir, *ino);
            let size = fs.getattr(ino).map_or(0, |attr| attr.size);
            match turn % 8 {
                0 => drop(fs.write(ino, size / 2, b"changed", WriteMode::default())),
                1 => drop(fs.unlink(dir, name)),
                2 => {
                    let cut = SetAttr {
                        size: Some(size / 3),
                        ..SetAttr::default()
                    };
                    drop(fs.setattr(ino, &cut));
                }
                3 => drop(fs.rename(dir, name, fs.root(), b"moved", RenameMode::Replace)),
                4 => drop(fs.setxattr(ino, b"user.new", b"value", SetXattrMode::Any)),
                5 => drop(fs.fallocate(ino, 0, 5000, AllocMode::PunchHole)),
                6 => {
                    let linked = fs.link(ino, fs.root(), b"linked");
                    drop(linked.map(|entry| fs.forget(entry.ino(), 1)));
                }
                _ => drop(fs.rmdir(dir, name)),
            }
            if turn == 20 {
                let _ = fs.sync();
            }
        }
        for (name, what) in [
            (b"new".as_slice(), NewInode::Regular),
            (b"dir", NewInode::Directory),
        ] {
            let Ok(new) = fs.create(&root, fs.root(), name, what, 0o755) else {
                continue;
            };
            let _ = fs.write(new.ino(), 3000, &[7; 10_000], WriteMode::default());
            let _ = fs.fsync(new.ino(), SyncKind::All);
            fs.forget(new.ino(), 1);
        }
        if let Some(subvolumes) = fs.subvolumes() {
            let made = subvolumes.snapshot(fs.root(), fs.root(), b"taken", false);
            let _ = made.map(|entry| fs.forget(entry.ino(), 1));
            for name in [b"rosnap".as_slice(), b"snap", b"vol"] {
                let _ = subvolumes.delete_subvolume(fs.root(), name);
            }
        }
        let _ = fs.sync();
    }
}
