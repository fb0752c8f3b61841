//! Random operations on a few files, compared with arrays of bytes; `e2fsck` after each mount.

use std::sync::Arc;

use fastrand::Rng;
use sapwood_block::{Device, MemoryDevice};
use sapwood_vfs::{self as vfs, AllocMode, CopyMode, FileSystem, SeekFrom};

use super::fixture::{FILES, MemoryImage, content, file, is_vfs, open, quiet};
use crate::inode::Inode;
use crate::{DataMode, Ext4, Options, data};

const MOST: u64 = 1 << 20;

struct Run<'a> {
    image: &'a MemoryImage,
    device: Arc<MemoryDevice>,
    options: Options,
    fs: Ext4,
    files: Vec<(Arc<Inode>, Vec<u8>)>,
    rng: Rng,
    tree: bool,
}

impl Run<'_> {
    /// A range within the longest file, mostly short; sometimes of whole blocks.
    fn range(&mut self) -> (u64, u64) {
        let block = self.fs.engine.block_size();
        let most = match self.rng.u8(..4) {
            0 => 200_000,
            1 => 3 * block,
            _ => 700,
        };
        let span = if self.rng.bool() {
            8 * block
        } else {
            MOST - most
        };
        let (offset, len) = (self.rng.u64(..span), self.rng.u64(1..=most));
        match self.rng.u8(..3) {
            0 => (offset / block * block, len.div_ceil(block) * block),
            _ => (offset, len),
        }
    }

    fn step(&mut self) {
        let which = self.rng.usize(..self.files.len());
        let (offset, len) = self.range();
        match self.rng.u8(..32) {
            0..=11 => self.write(which, offset, len),
            12..=14 => self.truncate(which, offset),
            15..=17 => self.punch(which, offset, len),
            18..=19 => self.zero(which, offset, len),
            20..=21 => self.allocate(which, offset, len),
            22..=23 => self.collapse(which, offset, len),
            24..=25 => self.insert(which, offset, len),
            26..=27 => self.copy(which, offset, len),
            28 => data::flush(&self.fs.engine, &self.files[which].0).unwrap(),
            29 => data::flush_all(&self.fs.engine).unwrap(),
            30 => self.fs.engine.journal.commit_and_settle().unwrap(),
            _ => self.remount(),
        }
        self.compare(which);
        self.seek(which, offset);
    }

    fn write(&mut self, which: usize, offset: u64, len: u64) {
        let bytes: Vec<u8> = (0..len).map(|_| self.rng.u8(1..)).collect();
        let (inode, model) = &mut self.files[which];
        super::fixture::write(&self.fs, inode, offset, &bytes).unwrap();
        let end = (offset + len) as usize;
        model.resize(model.len().max(end), 0);
        model[offset as usize..end].copy_from_slice(&bytes);
    }

    fn truncate(&mut self, which: usize, size: u64) {
        let (inode, model) = &mut self.files[which];
        let _io = inode.io.write();
        data::truncate(&self.fs.engine, inode, size).unwrap();
        model.resize(size as usize, 0);
    }

    /// Does what block maps cannot do only where there are extents.
    fn fallocate(&self, which: usize, offset: u64, len: u64, mode: AllocMode) -> bool {
        let inode = &self.files[which].0;
        let _io = inode.io.write();
        let result = data::fallocate(&self.fs.engine, inode, offset, len, mode);
        if self.tree || mode == AllocMode::PunchHole {
            result.unwrap();
            return true;
        }
        assert!(is_vfs(&result, &vfs::Error::NotSupported), "{result:?}");
        false
    }

    fn clear(&mut self, which: usize, offset: u64, len: u64) {
        let model = &mut self.files[which].1;
        let end = (offset + len).min(model.len() as u64);
        if offset < end {
            model[offset as usize..end as usize].fill(0);
        }
    }

    fn grow(&mut self, which: usize, end: u64) {
        let model = &mut self.files[which].1;
        model.resize(model.len().max(end as usize), 0);
    }

    fn punch(&mut self, which: usize, offset: u64, len: u64) {
        assert!(self.fallocate(which, offset, len, AllocMode::PunchHole));
        self.clear(which, offset, len);
    }

    fn zero(&mut self, which: usize, offset: u64, len: u64) {
        let keep_size = self.rng.bool();
        if self.fallocate(which, offset, len, AllocMode::ZeroRange { keep_size }) {
            self.clear(which, offset, len);
            if !keep_size {
                self.grow(which, offset + len);
            }
        }
    }

    fn allocate(&mut self, which: usize, offset: u64, len: u64) {
        let keep_size = self.rng.bool();
        if self.fallocate(which, offset, len, AllocMode::Allocate { keep_size }) && !keep_size {
            self.grow(which, offset + len);
        }
    }

    fn collapse(&mut self, which: usize, offset: u64, len: u64) {
        let block = self.fs.engine.block_size();
        let (inode, model) = &mut self.files[which];
        let aligned = offset.is_multiple_of(block) && len.is_multiple_of(block);
        if self.tree && !(aligned && offset + len < model.len() as u64) {
            let _io = inode.io.write();
            let refused = data::fallocate(
                &self.fs.engine,
                inode,
                offset,
                len,
                AllocMode::CollapseRange,
            );
            assert!(is_vfs(&refused, &vfs::Error::Invalid), "{refused:?}");
        } else if self.fallocate(which, offset, len, AllocMode::CollapseRange) {
            let model = &mut self.files[which].1;
            model.drain(offset as usize..(offset + len) as usize);
        }
    }

    fn insert(&mut self, which: usize, offset: u64, len: u64) {
        let block = self.fs.engine.block_size();
        let (inode, model) = &mut self.files[which];
        let aligned = offset.is_multiple_of(block) && len.is_multiple_of(block);
        if self.tree && !(aligned && offset < model.len() as u64) {
            let _io = inode.io.write();
            let refused =
                data::fallocate(&self.fs.engine, inode, offset, len, AllocMode::InsertRange);
            assert!(is_vfs(&refused, &vfs::Error::Invalid), "{refused:?}");
        } else if self.fallocate(which, offset, len, AllocMode::InsertRange) {
            let model = &mut self.files[which].1;
            let tail = model.split_off(offset as usize);
            model.resize((offset + len) as usize, 0);
            model.extend(tail);
            model.truncate(2 * MOST as usize);
            let size = model.len() as u64;
            self.truncate(which, size);
        }
    }

    fn copy(&mut self, which: usize, offset: u64, len: u64) {
        let from = (which + 1) % self.files.len();
        let from_offset = self.rng.u64(..offset + 1);
        let (source, target) = (&self.files[from].0, &self.files[which].0);
        let mut ordered = [source, target];
        ordered.sort_by_key(|inode| inode.ino);
        let guards = ordered.map(|inode| inode.io.write());
        let (source, target) = ((source, from_offset), (target, offset));
        let copied = data::copy_range(&self.fs.engine, source, target, len, CopyMode::Any);
        let copied = copied.unwrap() as usize;
        drop(guards);
        let from_offset = from_offset as usize;
        let bytes = self.files[from].1.get(from_offset..from_offset + copied);
        let bytes = bytes.unwrap_or_default().to_vec();
        assert_eq!(bytes.len(), copied);
        assert!(copied as u64 == len || from_offset + copied >= self.files[from].1.len());
        if copied > 0 {
            self.grow(which, offset + copied as u64);
            let model = &mut self.files[which].1;
            model[offset as usize..offset as usize + copied].copy_from_slice(&bytes);
        }
    }

    fn compare(&self, which: usize) {
        let (inode, model) = &self.files[which];
        let found = content(&self.fs, inode);
        assert_eq!(found.len(), model.len());
        let differs = found.iter().zip(model).position(|(a, b)| a != b);
        assert_eq!(differs, None, "first byte that differs");
    }

    /// Holes hold nothing, and data and holes follow each other to the end.
    fn seek(&self, which: usize, offset: u64) {
        let (inode, model) = &self.files[which];
        let size = model.len() as u64;
        let mut at = offset;
        loop {
            let data = self.fs.seek(inode.number(), SeekFrom::Data(at));
            let end = match &data {
                Ok(data) => *data,
                _ => {
                    assert_eq!(data, Err(vfs::Error::NoSuchOffset));
                    size
                }
            };
            let hole = model.get(at as usize..end as usize).unwrap_or_default();
            assert!(hole.iter().all(|byte| *byte == 0), "data in a hole at {at}");
            let Ok(data) = data else {
                return;
            };
            at = self.fs.seek(inode.number(), SeekFrom::Hole(data)).unwrap();
            assert!(at > data && at <= size);
        }
    }

    fn remount(&mut self) {
        self.fs.close().unwrap();
        self.image.check(&self.device);
        let device = Arc::clone(&self.device) as Arc<dyn Device>;
        self.fs = open(device, &self.options);
        for ((inode, _), name) in self.files.iter_mut().zip(FILES) {
            *inode = file(&self.fs, name);
        }
        for which in 0..self.files.len() {
            self.compare(which);
        }
    }
}

fn run(arguments: &[&str], tree: bool, options: &Options, seeds: u64) {
    for seed in 0..seeds {
        let Some(image) = MemoryImage::new(arguments, "32M") else {
            return;
        };
        let device = Arc::new(image.device.snapshot());
        let fs = open(Arc::clone(&device) as Arc<dyn Device>, options);
        let files = FILES.iter().map(|name| (file(&fs, name), Vec::new()));
        let files = files.collect();
        let mut run = Run {
            image: &image,
            device,
            options: options.clone(),
            fs,
            files,
            rng: Rng::with_seed(seed),
            tree,
        };
        for _ in 0..300 {
            run.step();
        }
        // All that is free now was free at first, or is in a file.
        for which in 0..run.files.len() {
            run.truncate(which, 0);
        }
        run.remount();
    }
}

#[test]
fn extents() {
    run(&["-t", "ext4"], true, &quiet(), 4);
}

#[test]
fn extents_in_small_blocks() {
    let arguments = ["-t", "ext4", "-b", "1024", "-O", "^has_journal,^64bit"];
    run(&arguments, true, &quiet(), 3);
}

#[test]
fn block_maps() {
    let arguments = ["-t", "ext2", "-b", "1024"];
    run(&arguments, false, &quiet(), 3);
    let arguments = ["-t", "ext3", "-b", "2048"];
    run(&arguments, false, &quiet(), 1);
}

#[test]
fn inline_data() {
    let arguments = ["-t", "ext4", "-I", "512", "-O", "inline_data"];
    run(&arguments, true, &quiet(), 4);
}

#[test]
fn large_blocks() {
    let arguments = ["-t", "ext4", "-b", "65536", "-O", "^has_journal"];
    run(&arguments, true, &quiet(), 1);
}

#[test]
fn data_in_the_journal() {
    let options = Options {
        data: DataMode::Journal,
        ..quiet()
    };
    run(&["-t", "ext4"], true, &options, 3);
    let arguments = ["-t", "ext3", "-b", "1024"];
    run(&arguments, false, &options, 1);
}

#[test]
fn little_memory() {
    let options = Options {
        dirty_bytes: 64 << 10,
        cache_bytes: 64 << 10,
        ..Options::default()
    };
    run(&["-t", "ext4", "-b", "1024"], true, &options, 1);
}
