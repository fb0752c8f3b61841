//! Directories against a model, and against `e2fsck` and the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use fastrand::Rng;
use sapwood_block::{Device, MemoryDevice};
use sapwood_ext4_format::{SUPER_OFFSET, SUPER_SIZE, SuperBlock, SuperFlags};
use sapwood_jbd2::Handle;
use sapwood_vfs::{Credentials, DirEntry, FileKind, FileSystem, Ino, NewInode};

use super::shape::{Dir, Form};
use super::*;
use crate::engine::Engine;
use crate::inode::Inode;
use crate::oracles::{self, KERNEL, MIB, TOOLS, clean, image, left_out};
use crate::{Error, Ext4, Options, Result, map};

mod damage;
mod kernel;
mod model;

/// A mounted file system with a directory in it, and inodes for names to lead to.
struct Bed {
    device: Arc<MemoryDevice>,
    fs: Ext4,
    dir: Arc<Inode>,
    targets: Vec<(Arc<Inode>, FileKind)>,
}

fn options() -> Options {
    Options {
        background: false,
        ..Options::default()
    }
}

fn open(device: &Arc<MemoryDevice>, options: Options) -> Ext4 {
    let device: Arc<dyn Device> = device.clone();
    Ext4::open(device, options).unwrap()
}

fn inode(fs: &Ext4, number: Ino) -> Arc<Inode> {
    fs.engine.inodes.by_number(&fs.engine, number).unwrap()
}

/// Makes a name by the trait.
fn make(fs: &Ext4, dir: Ino, name: &str, what: NewInode<'_>) -> Ino {
    let made = fs.create(&Credentials::ROOT, dir, name.as_bytes(), what, 0o755);
    made.unwrap().attr.ino
}

impl Bed {
    fn new(size: u64, args: &str) -> Self {
        Self::on(image(size, args))
    }

    fn on(device: Arc<MemoryDevice>) -> Self {
        let fs = open(&device, options());
        let dir = make(&fs, fs.root(), "names", NewInode::Directory);
        let mut targets = Vec::new();
        for name in ["first", "second"] {
            let number = make(&fs, fs.root(), name, NewInode::Regular);
            targets.push((inode(&fs, number), FileKind::Regular));
        }
        let number = make(&fs, fs.root(), "pipe", NewInode::Fifo);
        targets.push((inode(&fs, number), FileKind::Fifo));
        let dir = inode(&fs, dir);
        Self {
            device,
            fs,
            dir,
            targets,
        }
    }

    fn engine(&self) -> &Arc<Engine> {
        &self.fs.engine
    }

    /// Does one change in a handle of its own, which must do with the credits it asks for.
    fn change(&self, credits: u32, what: impl FnOnce(&Handle) -> Result<()>) -> Result<()> {
        let engine = self.engine();
        let h = engine.start(credits + 1)?;
        let done = what(&h);
        self.dir.store(engine, &h)?;
        done
    }

    fn insert(&self, name: &[u8], target: usize) -> Result<()> {
        let (inode, kind) = &self.targets[target];
        let _io = self.dir.io.write();
        let room = room(self.engine(), &self.dir, name)?;
        let _reserved = self.engine().space.reserve(room.blocks, true)?;
        let (before, most) = (self.blocks(), credits(self.engine(), &self.dir));
        assert!(room.credits <= most);
        self.change(room.credits, |h| {
            insert(self.engine(), h, &self.dir, name, inode.ino, *kind)
        })?;
        assert!(u64::from(self.blocks() - before) <= room.blocks);
        Ok(())
    }

    fn remove(&self, name: &[u8]) -> Result<()> {
        let _io = self.dir.io.write();
        self.change(CHANGE_CREDITS, |h| {
            remove(self.engine(), h, &self.dir, name)
        })
    }

    fn replace(&self, name: &[u8], target: usize) -> Result<()> {
        let (inode, kind) = &self.targets[target];
        let _io = self.dir.io.write();
        self.change(CHANGE_CREDITS, |h| {
            replace(self.engine(), h, &self.dir, name, inode.ino, *kind)
        })
    }

    fn find(&self, name: &[u8]) -> Option<usize> {
        let _io = self.dir.io.read();
        let found = find(self.engine(), &self.dir, name).unwrap()?;
        self.targets
            .iter()
            .position(|(inode, _)| inode.ino == found.ino)
    }

    /// One page of at most `count` names from a position on.
    fn page(&self, from: u64, count: usize) -> Vec<DirEntry> {
        let _io = self.dir.io.read();
        let mut page = Vec::new();
        readdir(self.engine(), &self.dir, from, &mut |entry| {
            if page.len() == count {
                return ControlFlow::Break(());
            }
            page.push(entry);
            ControlFlow::Continue(())
        })
        .unwrap();
        page
    }

    /// Everything, by pages.
    fn listed(&self, count: usize) -> Vec<DirEntry> {
        let (mut all, mut from) = (Vec::<DirEntry>::new(), 0);
        loop {
            let page = self.page(from, count);
            let Some(last) = page.last() else {
                return all;
            };
            from = last.next;
            all.extend(page);
        }
    }

    /// The directory as it is; only to look at its form.
    fn form(&self) -> Form {
        Dir::open(self.engine(), &self.dir).unwrap().form
    }

    fn blocks(&self) -> u32 {
        Dir::open(self.engine(), &self.dir).unwrap().blocks
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.engine().journal.counters().list();
        let found = counters.iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("no counter {name}")).1
    }

    /// Gives the targets as many links as they have names, and runs `e2fsck`.
    fn check(self, names: &BTreeMap<Vec<u8>, usize>, what: &str) -> Arc<MemoryDevice> {
        for (number, (inode, _)) in self.targets.iter().enumerate() {
            let links = 1 + names.values().filter(|target| **target == number).count();
            inode
                .state
                .lock()
                .raw
                .set_links(u16::try_from(links).unwrap());
            let h = self.engine().start(1).unwrap();
            inode.store(self.engine(), &h).unwrap();
        }
        self.fs.close().unwrap();
        assert_eq!(self.counter("overdrafts"), 0, "{what}");
        clean(&self.device, what);
        self.device
    }
}

/// A name of `len` bytes that begins with a number.
fn numbered(number: usize, len: usize) -> Vec<u8> {
    let mut name = format!("{number:x}-").into_bytes();
    name.resize(len.max(name.len()), b'a' + (number % 26) as u8);
    name
}
