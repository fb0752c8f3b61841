//! Scenarios: a file system, changes of it, and the expected kind of each fsync.
#![allow(dead_code, unreachable_pub)]

mod told;

use std::cell::RefCell;
use std::sync::Arc;

use libtest_mimic::Failed;
use sapwood_block::MemoryDevice;
use sapwood_ext4::{Ext4, FastCommits, Options};
use sapwood_testing::tree::{Detail, Tree};
use sapwood_vfs::{
    AllocMode, Credentials, FileSystem, Ino, NewInode, RenameMode, SetAttr, SetXattrMode, SyncKind,
    WriteMode,
};

use crate::image;
pub use told::STORIES;

/// Reasons why only a careful mount commits.
const CAREFUL: [&str; 2] = ["deleted", "emptied"];

/// A mount in which a scenario runs.
pub struct Story {
    pub fs: Ext4,
    pub device: Arc<MemoryDevice>,
    pub mode: FastCommits,
    /// Inodes have no room for attributes.
    pub small_inodes: bool,
    /// The tree at the last fsync.
    pub durable: RefCell<Tree>,
}

impl Story {
    /// A file system with a few files, all of which are durable.
    pub fn begin(form: &[&str], mode: FastCommits) -> Result<Self, Failed> {
        let mut options = vec!["-J", "size=8", "-N", "2048"];
        let mut features = String::from("fast_commit");
        let mut rest = form.iter();
        while let Some(option) = rest.next() {
            match *option {
                "-O" => {
                    features = format!("{features},{}", rest.next().copied().unwrap_or_default())
                }
                other => options.push(other),
            }
        }
        options.extend(["-O", &features]);
        let device = image::formatted(64 << 20, &options);
        let story = Self {
            fs: mount(&device, false, mode)?,
            device,
            mode,
            small_inodes: form.contains(&"128"),
            durable: RefCell::default(),
        };
        story.mkdir("d");
        story.mkdir("e");
        for (name, size) in [("a", 20_000), ("b", 300), ("d/a", 9000), ("d/b", 50_000)] {
            story.create(name);
            story.write(name, 0, size, 1);
        }
        story.fs.sync()?;
        *story.durable.borrow_mut() = Tree::of(&story.fs, Detail::Sums)?;
        Ok(story)
    }

    fn find(&self, path: &str) -> Ino {
        let parts = path.split('/').filter(|part| !part.is_empty());
        parts.fold(self.fs.root(), |dir, name| {
            let entry = self.fs.lookup(dir, name.as_bytes()).unwrap();
            self.fs.forget(entry.ino(), 1);
            entry.ino()
        })
    }

    fn place<'p>(&self, path: &'p str) -> (Ino, &'p [u8]) {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        (self.find(dir), name.as_bytes())
    }

    fn make(&self, path: &str, what: NewInode<'_>) {
        let (dir, name) = self.place(path);
        let made = self.fs.create(&Credentials::ROOT, dir, name, what, 0o644);
        self.fs.forget(made.unwrap().ino(), 1);
    }

    fn create(&self, path: &str) {
        self.make(path, NewInode::Regular);
    }

    fn mkdir(&self, path: &str) {
        self.make(path, NewInode::Directory);
    }

    fn write(&self, path: &str, at: u64, len: usize, seed: u64) {
        let mut bytes = vec![0; len];
        fastrand::Rng::with_seed(seed).fill(&mut bytes);
        let ino = self.find(path);
        self.fs
            .write(ino, at, &bytes, WriteMode::default())
            .unwrap();
    }

    fn size(&self, path: &str) -> u64 {
        self.fs.getattr(self.find(path)).unwrap().size
    }

    fn append(&self, path: &str, len: usize, seed: u64) {
        self.write(path, self.size(path), len, seed);
    }

    fn truncate(&self, path: &str, size: u64) {
        let changes = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.fs.setattr(self.find(path), &changes).unwrap();
    }

    fn chmod(&self, path: &str, perm: u32) {
        let changes = SetAttr {
            perm: Some(perm),
            ..SetAttr::default()
        };
        self.fs.setattr(self.find(path), &changes).unwrap();
    }

    fn allocate(&self, path: &str, at: u64, len: u64, mode: AllocMode) {
        self.fs.fallocate(self.find(path), at, len, mode).unwrap();
    }

    fn link(&self, from: &str, to: &str) {
        let (dir, name) = self.place(to);
        let entry = self.fs.link(self.find(from), dir, name).unwrap();
        self.fs.forget(entry.ino(), 1);
    }

    fn unlink(&self, path: &str) {
        let (dir, name) = self.place(path);
        self.fs.unlink(dir, name).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        let ((from_dir, from_name), (to_dir, to_name)) = (self.place(from), self.place(to));
        let mode = RenameMode::Replace;
        self.fs
            .rename(from_dir, from_name, to_dir, to_name, mode)
            .unwrap();
    }

    fn set_attribute(&self, path: &str, len: usize) {
        let (ino, value) = (self.find(path), vec![b'v'; len]);
        self.fs
            .setxattr(ino, b"user.x", &value, SetXattrMode::Any)
            .unwrap();
    }

    /// Makes the file at `path` durable.
    fn sync(&self, path: &str) {
        self.fs.fsync(self.find(path), SyncKind::All).unwrap();
        *self.durable.borrow_mut() = Tree::of(&self.fs, Detail::Sums).unwrap();
    }

    fn counter(&self, name: &str) -> u64 {
        let all = self.fs.counters();
        all.iter().find(|(one, _)| one == name).unwrap().1
    }

    /// Fast commits, and commits for any of these reasons.
    fn count(&self, reasons: &[&str]) -> (u64, u64) {
        let whole = reasons
            .iter()
            .map(|reason| self.counter(&format!("fast_commit_whole_{reason}")));
        (self.counter("fast_commit_commits"), whole.sum())
    }

    /// Makes the file at `path` durable by a fast commit, if that is allowed.
    pub fn fast(&self, path: &str) {
        let before = self.count(&CAREFUL);
        self.sync(path);
        let after = self.count(&CAREFUL);
        let said = after == (before.0 + 1, before.1);
        let unsaid = self.mode == FastCommits::Careful && after == (before.0, before.1 + 1);
        assert!(said || unsaid, "fsync of {path}: {:?}", self.fs.counters());
    }

    /// Makes the file at `path` durable by a commit, for this reason.
    pub fn whole(&self, path: &str, reason: &str) {
        let reasons = [&[reason], &CAREFUL[..]].concat();
        let reasons = match self.mode {
            FastCommits::Careful => &reasons[..],
            _ => &reasons[..1],
        };
        let before = self.count(reasons);
        self.sync(path);
        let wanted = (before.0, before.1 + 1);
        assert_eq!(
            self.count(reasons),
            wanted,
            "fsync of {path}: {:?}",
            self.fs.counters()
        );
    }

    /// Asserts that the file at `path` is durable already.
    fn nothing(&self, path: &str) {
        let count = || ["fast_commit_commits", "fsyncs_committed"].map(|name| self.counter(name));
        let before = count();
        self.sync(path);
        assert_eq!(count(), before, "fsync of {path}");
    }
}

/// A mount that commits only on request.
pub fn mount(
    device: &Arc<MemoryDevice>,
    read_only: bool,
    mode: FastCommits,
) -> Result<Ext4, Failed> {
    let options = Options {
        read_only,
        noatime: true,
        background: false,
        fast_commit: mode,
        ..Options::default()
    };
    Ok(Ext4::open(device.clone(), options)?)
}
