//! Files with random operations, and their expected content.
#![allow(dead_code, clippy::unwrap_used, unreachable_pub)]

use std::fs;
use std::path::Path;

use sapwood_btrfs::Btrfs;
use sapwood_vfs::{
    AllocMode, CopyMode, Credentials, Error, FileSystem, Ino, InodeFlags, NewInode, SeekFrom,
    SetAttr, SyncKind, WriteMode,
};

/// Files of one set.
pub const FILES: usize = 5;
/// Files stay below this length.
pub const LIMIT: u64 = 3 << 20;

/// A seeded generator: a failure's seed replays it.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// An offset or length: mostly small or near sector boundaries.
    pub fn place(&mut self, limit: u64) -> u64 {
        let at = match self.below(4) {
            0 => self.below(9000),
            1 => self.below(limit) / 4096 * 4096,
            2 => (self.below(limit) / 4096 * 4096 + self.below(5)).saturating_sub(2),
            _ => self.below(limit),
        };
        at.min(limit.saturating_sub(1))
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let noisy = self.below(3) == 0;
        let (step, start) = (self.below(5) as u8, self.next() as u8);
        let byte = |i: u64| start.wrapping_add(((i / 50) as u8).wrapping_mul(step));
        (0..len)
            .map(|i| if noisy { self.next() as u8 } else { byte(i) })
            .collect()
    }
}

/// Some files of a mount and their expected content.
pub struct Files {
    prefix: String,
    pub files: Vec<(Ino, Vec<u8>)>,
    pub log: Vec<String>,
}

/// The remaining action after a step.
#[derive(PartialEq, Eq)]
pub enum After {
    Nothing,
    /// A file was made durable.
    Fsync(usize),
    /// All files were made durable.
    Sync,
    Remount,
}

impl Files {
    pub fn create(fs: &Btrfs, prefix: &str, nocow: bool) -> Self {
        let mut files = Vec::new();
        for i in 0..FILES {
            let name = format!("{prefix}{i}");
            let root = fs.root();
            let who = &Credentials::ROOT;
            let entry = fs.create(who, root, name.as_bytes(), NewInode::Regular, 0o644);
            let ino = entry.unwrap().attr.ino;
            if nocow && i % 2 == 0 {
                fs.set_flags(ino, InodeFlags::NOCOW).unwrap();
            }
            files.push((ino, Vec::new()));
        }
        Self {
            prefix: prefix.to_owned(),
            files,
            log: Vec::new(),
        }
    }

    pub fn name(&self, i: usize) -> String {
        format!("{}{i}", self.prefix)
    }

    pub fn look_up(&mut self, fs: &Btrfs) {
        for i in 0..self.files.len() {
            let name = self.name(i);
            self.files[i].0 = fs.lookup(fs.root(), name.as_bytes()).unwrap().attr.ino;
        }
    }

    pub fn fail(&self, why: &str) -> ! {
        panic!("{why}\n{}", self.log.join("\n"));
    }

    pub fn compare(&self, fs: &Btrfs, i: usize, offset: u64, len: u64) {
        let (ino, model) = &self.files[i];
        let mut buf = vec![0xee; len as usize];
        let got = match fs.read(*ino, offset, &mut buf) {
            Ok(got) => got,
            Err(e) => self.fail(&format!("read of file {i} {offset}+{len}: {e}")),
        };
        let from = (offset as usize).min(model.len());
        let expected = &model[from..(from + len as usize).min(model.len())];
        if got != expected.len() {
            self.fail(&format!("read of file {i} {offset}+{len}: {got} bytes"));
        }
        if let Some(at) = buf.iter().zip(expected).position(|(a, b)| a != b) {
            self.fail(&format!("file {i} differs at {}", offset + at as u64));
        }
    }

    pub fn compare_all(&self, fs: &Btrfs) {
        for (i, (ino, model)) in self.files.iter().enumerate() {
            let size = fs.getattr(*ino).unwrap().size;
            if size != model.len() as u64 {
                self.fail(&format!("size of file {i}: {size}, not {}", model.len()));
            }
            self.compare(fs, i, 0, LIMIT + 10);
        }
    }

    pub fn step(&mut self, fs: &Btrfs, random: &mut Random) -> After {
        let i = random.below(FILES as u64) as usize;
        let offset = random.place(LIMIT);
        let len = (random.place(400_000) + 1).min(LIMIT - offset);
        let ino = self.files[i].0;
        match random.below(100) {
            0..40 => {
                let bytes = random.bytes(len);
                self.log.push(format!("write {i} {offset}+{len}"));
                fs.write(ino, offset, &bytes, WriteMode::default()).unwrap();
                self.put(i, offset, &bytes);
            }
            40..50 => {
                self.log.push(format!("truncate {i} {offset}"));
                let change = SetAttr {
                    size: Some(offset),
                    ..SetAttr::default()
                };
                fs.setattr(ino, &change).unwrap();
                self.files[i].1.resize(offset as usize, 0);
            }
            50..70 => self.fallocate(fs, random, i, offset, len),
            70..78 => self.copy(fs, random, i, offset, len),
            78..83 => {
                self.log.push(format!("fsync {i}"));
                fs.fsync(ino, SyncKind::All).unwrap();
                return After::Fsync(i);
            }
            83..85 => {
                self.log.push("sync".to_owned());
                fs.sync().unwrap();
                return After::Sync;
            }
            85 => {
                self.log.push("remount".to_owned());
                return After::Remount;
            }
            _ => self.compare(fs, i, offset, len),
        }
        After::Nothing
    }

    fn put(&mut self, i: usize, offset: u64, bytes: &[u8]) {
        let model = &mut self.files[i].1;
        let end = offset as usize + bytes.len();
        if !bytes.is_empty() && model.len() < end {
            model.resize(end, 0);
        }
        if !bytes.is_empty() {
            model[offset as usize..end].copy_from_slice(bytes);
        }
    }

    fn fallocate(&mut self, fs: &Btrfs, random: &mut Random, i: usize, offset: u64, len: u64) {
        let keep_size = random.below(2) == 0;
        let mode = match random.below(3) {
            0 => AllocMode::Allocate { keep_size },
            1 => AllocMode::PunchHole,
            _ => AllocMode::ZeroRange { keep_size },
        };
        self.log.push(format!("{mode:?} {i} {offset}+{len}"));
        fs.fallocate(self.files[i].0, offset, len, mode).unwrap();
        let model = &mut self.files[i].1;
        let end = (offset + len) as usize;
        if mode != AllocMode::PunchHole && !keep_size && model.len() < end {
            model.resize(end, 0);
        }
        if !matches!(mode, AllocMode::Allocate { .. }) {
            let (from, to) = ((offset as usize).min(model.len()), end.min(model.len()));
            model[from..to].fill(0);
        }
    }

    fn copy(&mut self, fs: &Btrfs, random: &mut Random, to: usize, to_offset: u64, len: u64) {
        let from = random.below(FILES as u64) as usize;
        let size = self.files[from].1.len() as u64;
        let mut from_offset = random.place(size + 1);
        if random.below(3) > 0 {
            from_offset = from_offset / 4096 * 4096 + to_offset % 4096;
        }
        self.log.push(format!(
            "copy {from} {from_offset}+{len} to {to} {to_offset}"
        ));
        let (source, target) = (self.files[from].0, self.files[to].0);
        let done = fs.copy_range(source, from_offset, target, to_offset, len, CopyMode::Any);
        let n = len.min(size.saturating_sub(from_offset));
        let overlap = from_offset < to_offset + n && to_offset < from_offset + n;
        if from == to && n > 0 && overlap {
            assert_eq!(done, Err(Error::Invalid));
            return;
        }
        if done != Ok(n) {
            self.fail(&format!("copied {done:?}, not {n}"));
        }
        let range = from_offset as usize..(from_offset + n) as usize;
        let bytes = self.files[from].1.get(range).unwrap_or_default().to_vec();
        self.put(to, to_offset, &bytes);
    }

    /// The ranges of each file that have data, as lines of start and end.
    pub fn stretches(&self, fs: &Btrfs) -> String {
        let mut found = String::new();
        for (ino, _) in &self.files {
            let mut at = 0;
            while let Ok(data) = fs.seek(*ino, SeekFrom::Data(at)) {
                at = fs.seek(*ino, SeekFrom::Hole(data)).unwrap();
                found += &format!("{data} {at}\n");
            }
            found += "-\n";
        }
        found
    }

    /// The kernel's view of them.
    pub fn compare_with_kernel(&self, dir: &Path) {
        for (i, (_, model)) in self.files.iter().enumerate() {
            let bytes = fs::read(dir.join(self.name(i))).unwrap();
            let first = bytes.iter().zip(model).position(|(a, b)| a != b);
            if bytes.len() != model.len() || first.is_some() {
                let (len, own) = (bytes.len(), model.len());
                self.fail(&format!(
                    "the kernel's file {i}: {len} of {own} bytes, differs at {first:?}"
                ));
            }
        }
    }
}
