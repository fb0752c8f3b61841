//! Maps in images, made through the engine and judged by `e2fsck` and the kernel.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_vfs::{Credentials, FileSystem, Ino, NewInode};

use super::*;
use crate::block_alloc::Request;
use crate::engine::Engine;
use crate::oracles::{self, KERNEL, MIB, TOOLS, clean, left_out};
use crate::{Ext4, Options};

/// Blocks of the file that the changes are within.
const SPAN: u64 = 20_000;

/// A file whose map is changed from below, and the expected content of each of its blocks.
struct File {
    device: Arc<MemoryDevice>,
    fs: Ext4,
    ino: Ino,
    /// Tag of each block that is mapped; `None` reads as zeros.
    model: BTreeMap<u64, Option<u64>>,
    tags: u64,
}

fn mounted(device: &Arc<MemoryDevice>) -> Ext4 {
    let options = Options {
        background: false,
        ..Options::default()
    };
    Ext4::open(device.clone(), options).unwrap()
}

impl File {
    fn new(args: &str) -> Self {
        let device = oracles::image(96 * MIB, args);
        let fs = mounted(&device);
        let who = Credentials::ROOT;
        let entry = fs.create(&who, fs.root(), b"file", NewInode::Regular, 0o644);
        let ino = entry.unwrap().ino();
        let file = Self {
            device,
            fs,
            ino,
            model: BTreeMap::new(),
            tags: 0,
        };
        let (engine, inode) = file.parts();
        {
            let mut state = inode.state.lock();
            let size = SPAN * engine.block_size();
            state.raw.set_size(size, &engine.geometry).unwrap();
            state.size = size;
        }
        let h = engine.start(10).unwrap();
        inode.store(&engine, &h).unwrap();
        file
    }

    fn parts(&self) -> (Arc<Engine>, Arc<Inode>) {
        let engine = self.fs.engine.clone();
        let inode = engine.inodes.by_number(&engine, self.ino).unwrap();
        (engine, inode)
    }

    fn fill(&mut self, range: Range<u64>, written: bool) {
        let (engine, inode) = self.parts();
        let mut at = range.start;
        while at < range.end {
            let run = lookup(&engine, &inode, at, range.end - at).unwrap();
            if run.what != Mapped::Hole {
                at += run.len;
                continue;
            }
            let len = run.len as u32;
            let goal = goal(&engine, &inode, at).unwrap();
            let ino = inode.ino;
            let got = block_alloc::allocate(&engine.groups, &Request { goal, len, ino }).unwrap();
            let credits = insert_credits(&engine, &inode, got.len.into()) + 3;
            let h = engine.start(credits).unwrap();
            block_alloc::claim(&engine.groups, &h, got).unwrap();
            insert(&engine, &h, &inode, at, got.start, got.len.into(), written).unwrap();
            inode.store(&engine, &h).unwrap();
            for block in 0..u64::from(got.len) {
                self.tags += 1;
                let bytes = self
                    .tags
                    .to_le_bytes()
                    .repeat(engine.block_size() as usize / 8);
                self.device
                    .write_at((got.start + block) * engine.block_size(), &bytes)
                    .unwrap();
                self.model.insert(at + block, written.then_some(self.tags));
            }
            at += u64::from(got.len);
        }
    }

    /// Goes on with a change in new handles until nothing is left of the range.
    fn finish(
        &self,
        mut left: Range<u64>,
        credits: impl Fn(&Store, &Inode) -> u32,
        step: impl Fn(&Store, &Handle, &Inode, Range<u64>) -> Result<Range<u64>>,
    ) {
        let (engine, inode) = self.parts();
        while !left.is_empty() {
            let h = engine.start(credits(&engine, &inode) + 1).unwrap();
            left = step(&engine, &h, &inode, left).unwrap();
            inode.store(&engine, &h).unwrap();
        }
    }

    fn remove(&mut self, range: Range<u64>) {
        self.finish(range.clone(), remove_credits, remove);
        self.model.retain(|at, _| !range.contains(at));
    }

    fn change(&mut self, rng: &mut fastrand::Rng, extents: bool) {
        let start = rng.u64(..SPAN - 1);
        let len = if rng.u8(..8) == 0 {
            rng.u64(1..2000)
        } else {
            rng.u64(1..6)
        };
        let range = start..(start + len).min(SPAN);
        let by = range.end - range.start;
        match rng.u8(..10) {
            0..=2 => self.fill(range, !extents || rng.bool()),
            3 | 4 => self.remove(range),
            5 | 6 if extents => {
                // An unwritten block has the device's old content; zeros are expected here.
                self.finish(
                    range.clone(),
                    |engine, inode| insert_credits(engine, inode, 1),
                    unwrite,
                );
                self.model.range_mut(range).for_each(|(_, tag)| *tag = None);
            }
            7 if extents && range.end < SPAN => {
                self.remove(range.clone());
                let shift =
                    |e: &Store, h: &Handle, i: &Inode, r| shift(e, h, i, r, Shift::Left(by));
                self.finish(
                    range.end..BLOCKS_MAX,
                    |engine, inode| insert_credits(engine, inode, 1),
                    shift,
                );
                let moved = self.model.split_off(&range.end);
                self.model
                    .extend(moved.into_iter().map(|(at, tag)| (at - by, tag)));
            }
            8 if extents => {
                self.remove(SPAN - by..SPAN);
                let shift =
                    |e: &Store, h: &Handle, i: &Inode, r| shift(e, h, i, r, Shift::Right(by));
                self.finish(
                    start..BLOCKS_MAX,
                    |engine, inode| insert_credits(engine, inode, 1),
                    shift,
                );
                let moved = self.model.split_off(&start);
                self.model
                    .extend(moved.into_iter().map(|(at, tag)| (at + by, tag)));
            }
            _ => self.fill(range, true),
        }
    }

    /// Unmounts, runs `e2fsck`, mounts again.
    fn judge(&mut self, what: &str) {
        let overdrafts = |(name, count): &(String, u64)| name.ends_with("overdrafts") && *count > 0;
        let counters = self.fs.counters();
        assert!(!counters.iter().any(overdrafts), "{what}: {counters:?}");
        self.fs.close().unwrap();
        clean(&self.device, what);
        self.fs = mounted(&self.device);
    }

    /// After a new mount, the map agrees with the model for every block.
    fn compare(&self) {
        let (engine, inode) = self.parts();
        let size = engine.block_size();
        let mut at = 0;
        while at < SPAN {
            let run = lookup(&engine, &inode, at, SPAN - at).unwrap();
            assert!(run.logical == at && run.len > 0);
            for block in at..at + run.len {
                let expected = self.model.get(&block);
                match run.what {
                    Mapped::Hole => assert_eq!(expected, None, "{block}"),
                    Mapped::Unwritten(_) => assert_eq!(expected, Some(&None), "{block}"),
                    Mapped::Written(physical) => {
                        let mut tag = [0; 8];
                        self.device
                            .read_at((physical + block - at) * size, &mut tag)
                            .unwrap();
                        assert_eq!(expected, Some(&Some(u64::from_le_bytes(tag))), "{block}");
                    }
                }
            }
            at += run.len;
        }
    }

    /// The kernel reads the model's content.
    fn compare_kernel(&self) {
        let (engine, _) = self.parts();
        let size = engine.block_size() as usize;
        self.fs.close().unwrap();
        oracles::kernel(&self.device, |at| {
            let file = std::fs::File::open(at.join("file")).unwrap();
            let mut bytes = vec![0; size];
            for block in 0..SPAN {
                file.read_exact_at(&mut bytes, block * size as u64).unwrap();
                let tag = self.model.get(&block).copied().flatten().unwrap_or(0);
                let expected = tag.to_le_bytes();
                assert!(
                    bytes.chunks(8).all(|word| word == expected),
                    "block {block}"
                );
            }
        });
    }
}

/// Many small changes in many extents, in images of all kinds, with and without a journal.
#[test]
fn changes_please_e2fsck_and_the_kernel() {
    if left_out(TOOLS) {
        return;
    }
    for (args, extents) in [
        ("-b 1024", true),
        ("-b 4096 -O ^has_journal", true),
        ("-b 2048 -O ^metadata_csum,^64bit,^huge_file", true),
        ("-b 1024 -g 1024 -G 4", true),
        ("-t ext3 -b 1024", false),
        ("-t ext2 -b 4096", false),
        ("-b 1024 -O ^extents,^64bit", false),
    ] {
        let mut rng = fastrand::Rng::with_seed(9);
        let mut file = File::new(args);
        for at in 0..1500 {
            let at = at * 7 % 1500 * 13;
            file.fill(at..at + 1 + at % 3, true);
        }
        file.judge(args);
        for _ in 0..3 {
            for _ in 0..150 {
                file.change(&mut rng, extents);
            }
            file.judge(args);
            file.compare();
        }
        if !left_out(KERNEL) {
            file.compare_kernel();
            file.fs = mounted(&file.device);
        }
        file.remove(0..1 << 32);
        let (engine, inode) = file.parts();
        assert_eq!(
            inode.state.lock().raw.sectors(&engine.geometry),
            0,
            "{args}"
        );
        drop((engine, inode));
        file.judge(args);
    }
}

/// A file by the kernel has the kernel's mapping: see [`standalone`] too.
#[test]
fn a_map_reads_the_same_before_there_is_an_engine() {
    if left_out(TOOLS) {
        return;
    }
    for args in ["-b 1024", "-t ext3 -b 1024", "-b 4096"] {
        let mut file = File::new(args);
        for at in 0..700 {
            file.fill(11 * at..11 * at + 2, true);
        }
        file.judge(args);
        let (engine, inode) = file.parts();
        let raw = {
            let mut raw = inode.state.lock().raw.clone();
            *raw.block_mut() = *inode.map.read();
            raw
        };
        let runs =
            standalone::runs(&*file.device, &engine.geometry, inode.ino, &raw, SPAN).unwrap();
        assert_eq!(runs.iter().map(|run| run.len).sum::<u64>(), 1400);
        for run in &runs {
            assert_eq!(lookup(&engine, &inode, run.logical, run.len).unwrap(), *run);
        }
        // Pointing into an inode table is refused once the groups are known.
        let table = engine.groups.inode_table(0).unwrap();
        let flags = inode.flags();
        let mut map = empty(flags);
        if flags.contains(InodeFlags::EXTENTS) {
            let extent = sapwood_ext4_format::Extent {
                logical: 0,
                len: 1,
                physical: table,
                unwritten: false,
            };
            let mut node = sapwood_ext4_format::ExtentNodeMut::open(&mut map).unwrap();
            node.insert_extent(0, &extent).unwrap();
        } else {
            map[..4].copy_from_slice(&(table as u32).to_le_bytes());
        }
        *inode.map.write() = map;
        let refused = lookup(&engine, &inode, 0, 1);
        assert!(
            matches!(refused, Err(Error::BadInode { .. })),
            "{refused:?}"
        );
    }
}
