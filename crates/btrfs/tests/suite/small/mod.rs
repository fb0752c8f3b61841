//! A small mounted file system whose power is cut: operations by path, and the state afterwards.
#![allow(dead_code, unreachable_pub)]

use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::{Btrfs, Options};
use sapwood_vfs::{
    AllocMode, Attr, Credentials, FileSystem, Ino, InodeFlags, NewInode, RenameMode, SetAttr,
    SetXattrMode, SyncKind, WriteMode,
};

use crate::image::{formatted, judge, try_mount};

/// A file system in memory.
pub struct Small {
    pub fs: Btrfs,
    pub device: Arc<MemoryDevice>,
}

/// The state that a mount finds after a power cut.
pub struct After(Small);

impl std::ops::Deref for After {
    type Target = Small;

    fn deref(&self) -> &Small {
        &self.0
    }
}

impl Small {
    /// An empty one, just committed.
    pub fn new() -> Self {
        let device = formatted(256 << 20);
        let fs = Self::open(device.clone());
        Self { fs, device }
    }

    /// Mounts a device.
    pub fn open(device: Arc<dyn Device>) -> Btrfs {
        let options = Options {
            background: false,
            ..Options::default()
        };
        Btrfs::open(vec![device], options).unwrap()
    }

    /// Cuts the power of a copy; mounts the result, judges it before and after.
    pub fn cut(&self) -> After {
        Self::after(self.device.snapshot())
    }

    /// Mounts an image after a power cut.
    pub fn after(image: MemoryDevice) -> After {
        judge(&image).unwrap();
        let device = Arc::new(image);
        let fs = try_mount(device.clone()).unwrap();
        fs.sync().unwrap();
        judge(&device).unwrap();
        After(Self { fs, device })
    }

    /// Makes more changes in a directory than an fsync of a file in it also logs.
    pub fn crowd(&self, dir: &str) {
        for number in 0..70 {
            let slash = if dir.is_empty() { "" } else { "/" };
            self.write(&format!("{dir}{slash}crowd{number}"), b"");
        }
    }

    /// A counter of the mount.
    pub fn counter(&self, name: &str) -> u64 {
        let all = self.fs.counters();
        all.into_iter().find(|(found, _)| found == name).unwrap().1
    }

    fn split<'a>(&self, path: &'a str) -> (Ino, &'a [u8]) {
        match path.rsplit_once('/') {
            Some((dir, name)) => (self.ino(dir), name.as_bytes()),
            None => (self.fs.root(), path.as_bytes()),
        }
    }

    /// Attributes of the file at a path.
    pub fn attr(&self, path: &str) -> Attr {
        if path.is_empty() {
            return self.fs.getattr(self.fs.root()).unwrap();
        }
        let (dir, name) = self.split(path);
        self.fs.lookup(dir, name).unwrap().attr
    }

    pub fn ino(&self, path: &str) -> Ino {
        self.attr(path).ino
    }

    fn create(&self, path: &str, what: NewInode<'_>) {
        let (dir, name) = self.split(path);
        let made = self
            .fs
            .create(&Credentials::ROOT, dir, name, what, 0o644)
            .unwrap();
        self.fs.forget(made.ino(), 1);
    }

    /// Writes from the beginning; makes the file if need be.
    pub fn write(&self, path: &str, data: &[u8]) {
        let (dir, name) = self.split(path);
        if self.fs.lookup(dir, name).is_err() {
            self.create(path, NewInode::Regular);
        }
        self.write_at(path, 0, data);
    }

    pub fn write_at(&self, path: &str, at: u64, data: &[u8]) {
        let ino = self.ino(path);
        self.fs.write(ino, at, data, WriteMode::default()).unwrap();
    }

    pub fn mkdir(&self, path: &str) {
        self.create(path, NewInode::Directory);
    }

    pub fn symlink(&self, path: &str, target: &[u8]) {
        self.create(path, NewInode::Symlink(target));
    }

    pub fn fifo(&self, path: &str) {
        self.create(path, NewInode::Fifo);
    }

    pub fn rename(&self, from: &str, to: &str, mode: RenameMode) {
        let ((dir, name), (to_dir, to_name)) = (self.split(from), self.split(to));
        self.fs.rename(dir, name, to_dir, to_name, mode).unwrap();
    }

    pub fn link(&self, path: &str, new: &str) {
        let (dir, name) = self.split(new);
        self.fs.link(self.ino(path), dir, name).unwrap();
    }

    pub fn unlink(&self, path: &str) {
        let ino = self.ino(path);
        let (dir, name) = self.split(path);
        self.fs.unlink(dir, name).unwrap();
        self.fs.forget(ino, u64::MAX);
    }

    pub fn rmdir(&self, path: &str) {
        let (dir, name) = self.split(path);
        self.fs.rmdir(dir, name).unwrap();
    }

    pub fn truncate(&self, path: &str, size: u64) {
        let change = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.fs.setattr(self.ino(path), &change).unwrap();
    }

    pub fn punch(&self, path: &str, at: u64, len: u64) {
        let ino = self.ino(path);
        self.fs
            .fallocate(ino, at, len, AllocMode::PunchHole)
            .unwrap();
    }

    /// Preallocates without a change of the length.
    pub fn allocate(&self, path: &str, at: u64, len: u64) {
        let ino = self.ino(path);
        let mode = AllocMode::Allocate { keep_size: true };
        self.fs.fallocate(ino, at, len, mode).unwrap();
    }

    /// Preallocates; the file is at least that long then.
    pub fn allocate_and_grow(&self, path: &str, at: u64, len: u64) {
        let ino = self.ino(path);
        let mode = AllocMode::Allocate { keep_size: false };
        self.fs.fallocate(ino, at, len, mode).unwrap();
    }

    /// Sets flags as `chattr` does.
    pub fn set_flags(&self, path: &str, flags: InodeFlags) {
        self.fs.set_flags(self.ino(path), flags).unwrap();
    }

    pub fn set_xattr(&self, path: &str, name: &str, value: &[u8]) {
        let ino = self.ino(path);
        let mode = SetXattrMode::Any;
        self.fs.setxattr(ino, name.as_bytes(), value, mode).unwrap();
    }

    pub fn remove_xattr(&self, path: &str, name: &str) {
        let ino = self.ino(path);
        self.fs.removexattr(ino, name.as_bytes()).unwrap();
    }

    pub fn xattr(&self, path: &str, name: &str) -> Vec<u8> {
        self.fs.getxattr(self.ino(path), name.as_bytes()).unwrap()
    }

    pub fn xattrs(&self, path: &str) -> Vec<String> {
        let names = self.fs.listxattr(self.ino(path)).unwrap();
        names
            .into_iter()
            .map(|name| String::from_utf8(name).unwrap())
            .collect()
    }

    pub fn fsync(&self, path: &str) {
        self.fs.fsync(self.ino(path), SyncKind::All).unwrap();
    }

    pub fn sync(&self) {
        self.fs.sync().unwrap();
    }

    pub fn content(&self, path: &str) -> Vec<u8> {
        let attr = self.attr(path);
        let mut buf = vec![0; attr.size as usize];
        let read = self.fs.read(attr.ino, 0, &mut buf).unwrap();
        assert_eq!(read, buf.len(), "{path}");
        buf
    }

    pub fn target(&self, path: &str) -> Vec<u8> {
        self.fs.readlink(self.ino(path)).unwrap()
    }

    pub fn links(&self, path: &str) -> u32 {
        self.attr(path).nlink
    }

    pub fn allocated(&self, path: &str) -> u64 {
        self.attr(path).allocated
    }

    /// Names in a directory, sorted; each leads somewhere.
    pub fn names(&self, path: &str) -> Vec<String> {
        let dir = self.ino(path);
        let mut names = Vec::new();
        self.fs
            .readdir(dir, 0, &mut |entry| {
                names.push(entry.name);
                ControlFlow::Continue(())
            })
            .unwrap();
        names.sort();
        for name in &names {
            self.fs.lookup(dir, name).unwrap();
        }
        names
            .into_iter()
            .map(|name| String::from_utf8(name).unwrap())
            .collect()
    }
}
