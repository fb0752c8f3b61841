//! File data against a model: random operations, written back, read from the image again, checked
//! by `btrfs check` and read by the kernel. Without root or the tools those last steps are left out.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use common::{Image, Need, missing};
use libtest_mimic::{Arguments, Trial};
use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::mkfs::{MkfsOptions, mkfs};
use sapwood_btrfs::{Btrfs, Options};
use sapwood_btrfs_format::ChecksumKind;
use sapwood_vfs::{
    AllocMode, CopyMode, Credentials, Error, FileSystem, Ino, NewInode, SetAttr, WriteMode,
};

const SIZE: u64 = 300 << 20;
const FILES: usize = 5;
/// Files stay below this length.
const LIMIT: u64 = 3 << 20;

/// A seeded generator: a failure's seed replays it.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// An offset or length: mostly small or near sector boundaries.
    fn place(&mut self, limit: u64) -> u64 {
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

struct Bench {
    device: Arc<MemoryDevice>,
    options: Options,
    fs: Option<Btrfs>,
    files: Vec<(Ino, Vec<u8>)>,
    log: Vec<String>,
}

impl Bench {
    fn new(make: &MkfsOptions, options: Options, nocow: bool) -> Self {
        let device = Arc::new(MemoryDevice::new(SIZE));
        mkfs(&*device, make).unwrap();
        let mut bench = Self {
            device,
            options,
            fs: None,
            files: Vec::new(),
            log: Vec::new(),
        };
        bench.mount();
        let fs = bench.fs.as_ref().unwrap();
        for i in 0..FILES {
            let name = format!("f{i}");
            let entry = fs.create(
                &Credentials::ROOT,
                fs.root(),
                name.as_bytes(),
                NewInode::Regular,
                0o644,
            );
            let ino = entry.unwrap().attr.ino;
            if nocow && i % 2 == 0 {
                fs.set_flags(ino, sapwood_vfs::InodeFlags::NOCOW).unwrap();
            }
            bench.files.push((ino, Vec::new()));
        }
        bench
    }

    fn mount(&mut self) {
        let device: Arc<dyn Device> = self.device.clone();
        let fs = Btrfs::open(vec![device], self.options.clone()).unwrap();
        for (i, (ino, _)) in self.files.iter_mut().enumerate() {
            *ino = fs
                .lookup(fs.root(), format!("f{i}").as_bytes())
                .unwrap()
                .attr
                .ino;
        }
        self.fs = Some(fs);
    }

    fn unmount(&mut self) {
        self.fs.take().unwrap().unmount().unwrap();
    }

    fn fs(&self) -> &Btrfs {
        self.fs.as_ref().unwrap()
    }

    fn compare(&self, i: usize, offset: u64, len: u64) {
        let (ino, model) = &self.files[i];
        let mut buf = vec![0xee; len as usize];
        let got = self.fs().read(*ino, offset, &mut buf);
        let got = got
            .unwrap_or_else(|e| panic!("read f{i} {offset}+{len}: {e}\n{}", self.log.join("\n")));
        let from = (offset as usize).min(model.len());
        let expected = &model[from..(from + len as usize).min(model.len())];
        assert_eq!(
            got,
            expected.len(),
            "length of a read of f{i} at {offset}\n{}",
            self.log.join("\n")
        );
        if let Some(at) = buf.iter().zip(expected).position(|(a, b)| a != b) {
            panic!(
                "f{i} differs at {}\n{}",
                offset + at as u64,
                self.log.join("\n")
            );
        }
    }

    fn compare_all(&self) {
        for i in 0..self.files.len() {
            let size = self.fs().getattr(self.files[i].0).unwrap().size;
            assert_eq!(
                size,
                self.files[i].1.len() as u64,
                "size of f{i}\n{}",
                self.log.join("\n")
            );
            self.compare(i, 0, LIMIT + 10);
        }
    }

    fn step(&mut self, random: &mut Random) {
        let i = random.below(FILES as u64) as usize;
        let offset = random.place(LIMIT);
        let len = (random.place(400_000) + 1).min(LIMIT - offset);
        let what = random.below(100);
        let fs = self.fs.as_ref().unwrap();
        let (ino, model) = &mut self.files[i];
        let ino = *ino;
        let grow = |model: &mut Vec<u8>, to: u64| {
            if model.len() < to as usize {
                model.resize(to as usize, 0);
            }
        };
        let end = offset + len;
        match what {
            0..40 => {
                let bytes = random.bytes(len);
                self.log.push(format!("write f{i} {offset}+{len}"));
                fs.write(ino, offset, &bytes, WriteMode::default()).unwrap();
                grow(model, end);
                model[offset as usize..end as usize].copy_from_slice(&bytes);
            }
            40..50 => {
                self.log.push(format!("truncate f{i} {offset}"));
                let change = SetAttr {
                    size: Some(offset),
                    ..SetAttr::default()
                };
                fs.setattr(ino, &change).unwrap();
                model.resize(offset as usize, 0);
            }
            50..56 => {
                let keep_size = random.below(2) == 0;
                self.log
                    .push(format!("allocate f{i} {offset}+{len} keep {keep_size}"));
                fs.fallocate(ino, offset, len, AllocMode::Allocate { keep_size })
                    .unwrap();
                if !keep_size {
                    grow(model, end);
                }
            }
            56..64 => {
                self.log.push(format!("punch f{i} {offset}+{len}"));
                fs.fallocate(ino, offset, len, AllocMode::PunchHole)
                    .unwrap();
                let (from, to) = (
                    (offset as usize).min(model.len()),
                    (end as usize).min(model.len()),
                );
                model[from..to].fill(0);
            }
            64..70 => {
                let keep_size = random.below(2) == 0;
                self.log
                    .push(format!("zero f{i} {offset}+{len} keep {keep_size}"));
                fs.fallocate(ino, offset, len, AllocMode::ZeroRange { keep_size })
                    .unwrap();
                if !keep_size {
                    grow(model, end);
                }
                let (from, to) = (
                    (offset as usize).min(model.len()),
                    (end as usize).min(model.len()),
                );
                model[from..to].fill(0);
            }
            70..78 => self.copy(random, i, offset, len),
            78..83 => {
                self.log.push(format!("fsync f{i}"));
                fs.fsync(ino, sapwood_vfs::SyncKind::All).unwrap();
            }
            83..85 => {
                self.log.push("sync".to_owned());
                fs.sync().unwrap();
            }
            85 => {
                self.log.push("remount".to_owned());
                self.unmount();
                self.mount();
                self.compare_all();
            }
            _ => self.compare(i, offset, len),
        }
    }

    fn copy(&mut self, random: &mut Random, to: usize, to_offset: u64, len: u64) {
        let from = random.below(FILES as u64) as usize;
        let mut from_offset = random.place(self.files[from].1.len() as u64 + 1);
        if random.below(3) > 0 {
            from_offset = from_offset / 4096 * 4096 + to_offset % 4096;
        }
        self.log.push(format!(
            "copy f{from} {from_offset}+{len} to f{to} {to_offset}"
        ));
        let (source, target) = (self.files[from].0, self.files[to].0);
        let done = self
            .fs()
            .copy_range(source, from_offset, target, to_offset, len, CopyMode::Any);
        let size = self.files[from].1.len() as u64;
        let n = len.min(size.saturating_sub(from_offset));
        let overlap =
            from == to && from_offset < to_offset + n && to_offset < from_offset + n && n > 0;
        if overlap {
            assert_eq!(done, Err(Error::Invalid));
            return;
        }
        assert_eq!(done, Ok(n), "{}", self.log.join("\n"));
        let bytes = self.files[from]
            .1
            .get(from_offset as usize..(from_offset + n) as usize)
            .unwrap_or_default()
            .to_vec();
        let model = &mut self.files[to].1;
        if n > 0 && model.len() < (to_offset + n) as usize {
            model.resize((to_offset + n) as usize, 0);
        }
        if n > 0 {
            model[to_offset as usize..(to_offset + n) as usize].copy_from_slice(&bytes);
        }
    }

    /// The image, judged by the tools and the kernel.
    fn judge(&self) {
        let image = Image::blank(0);
        self.device.save(image.path()).unwrap();
        if missing(&[Need::Check]).is_none()
            && let Err(why) = image.try_check()
        {
            let keep = format!("/tmp/sapwood-bad-{}", std::process::id());
            fs::copy(image.path(), &keep).unwrap();
            panic!("{why}\nimage kept as {keep}\n{}", self.log.join("\n"));
        }
        if missing(&[Need::Mount]).is_some() {
            return;
        }
        let mount = image.mount_with("ro");
        for (i, (_, model)) in self.files.iter().enumerate() {
            let bytes = fs::read(mount.join(format!("f{i}"))).unwrap();
            let first = bytes.iter().zip(model).position(|(a, b)| a != b);
            assert_eq!(
                (bytes.len(), first),
                (model.len(), None),
                "the kernel's f{i}\n{}",
                self.log.join("\n")
            );
        }
    }
}

fn random_operations(seed: u64, steps: usize, make: &MkfsOptions, options: Options, nocow: bool) {
    let mut random = Random(seed);
    let mut bench = Bench::new(make, options, nocow);
    for _ in 0..steps {
        bench.step(&mut random);
    }
    bench.compare_all();
    bench.unmount();
    bench.mount();
    bench.compare_all();
    bench.unmount();
    bench.judge();
}

fn main() {
    let seed = std::env::var("SAPWOOD_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1);
    let steps = std::env::var("SAPWOOD_STEPS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(300);
    let plain = MkfsOptions::default();
    let holes = MkfsOptions {
        no_holes: false,
        ..plain.clone()
    };
    let sha = MkfsOptions {
        checksum: ChecksumKind::Sha256,
        node_size: Some(4096),
        ..plain.clone()
    };
    let mixed = MkfsOptions {
        mixed: true,
        ..plain.clone()
    };
    let with = |compress: &str, force: bool| Options {
        compress: compress.parse().ok(),
        compress_force: force,
        dirty_bytes: 1 << 20,
        ..Options::default()
    };
    let variants: BTreeMap<&str, (MkfsOptions, Options, bool)> = [
        ("plain", (plain.clone(), Options::default(), false)),
        ("little_memory", (plain.clone(), with("", false), false)),
        ("explicit_holes", (holes.clone(), Options::default(), false)),
        ("nodatacow", (plain.clone(), with("", false), true)),
        ("nodatacow_holes", (holes, Options::default(), true)),
        ("zstd", (plain.clone(), with("zstd", false), false)),
        ("zlib_forced", (plain.clone(), with("zlib", true), false)),
        ("lzo_forced", (plain, with("lzo", true), false)),
        ("sha256_4k", (sha, with("", false), false)),
        ("mixed", (mixed, Options::default(), false)),
    ]
    .into();
    let tests: Vec<Trial> = variants
        .into_iter()
        .map(|(name, (make, options, nocow))| {
            Trial::test(format!("random_operations_{name}"), move || {
                random_operations(seed, steps, &make, options, nocow);
                Ok(())
            })
        })
        .collect();
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}
