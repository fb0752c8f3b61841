//! A walk over a file system that tries every operation, within bounds, and ignores errors. Tests
//! of hostile images use it.

use std::collections::HashSet;
use std::ops::ControlFlow;

use sapwood_vfs::{
    AllocMode, Credentials, Error, FileSystem, Ino, NewInode, RenameMode, Result, SeekFrom,
    SetAttr, SetXattrMode, SyncKind, WriteMode,
};

/// Greatest number of inodes that are visited.
const INODES: usize = 300;
/// Greatest number of names that are read from one directory.
const NAMES: usize = 200;

/// The result of a tour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Number of inodes whose attributes could be read.
    pub inodes: usize,
    /// Number of bytes that could be read.
    pub bytes: u64,
    /// Number of calls that failed.
    pub errors: usize,
}

/// Reads everything. If the file system is `writable`, makes one change of each kind and reads
/// everything again.
pub fn tour(fs: &dyn FileSystem, writable: bool) -> Outcome {
    let mut walk = Walk {
        fs,
        outcome: Outcome::default(),
    };
    let found = walk.all();
    if writable {
        walk.change(&found);
        // The changed parts are in memory now, and some are read again from the device.
        walk.all();
    }
    walk.outcome
}

/// An inode, and one name of it.
struct Found {
    dir: Ino,
    name: Vec<u8>,
    ino: Ino,
}

struct Walk<'a> {
    fs: &'a dyn FileSystem,
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
            Err(Error::NotDirectory) => None,
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

    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        if result.is_err() {
            self.outcome.errors += 1;
        }
        result.ok()
    }

    /// Makes one change of each kind to the inodes that were found.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryFs;

    #[test]
    fn a_tour_sees_changes_and_survives_nothing_being_there() {
        let fs = MemoryFs::new();
        let empty = tour(&fs, false);
        assert_eq!((empty.inodes, empty.errors), (1, 0));
        tour(&fs, true);
        let again = tour(&fs, false);
        assert!(again.inodes >= 2 && again.bytes >= 13_000, "{again:?}");
    }
}
