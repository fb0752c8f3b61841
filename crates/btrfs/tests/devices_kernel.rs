//! A file system over two devices against the kernel: each writes what the other reads.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libtest_mimic::Arguments;
use sapwood_block::{Device, FileDevice};
use sapwood_btrfs::check::{CheckOptions, Finding, check};
use sapwood_btrfs::mkfs::{MkfsOptions, Profile, mkfs_several};
use sapwood_btrfs::{Btrfs, Options};
use sapwood_btrfs_format::{SUPER_OFFSETS, SUPER_SIZE, validate_super};
use sapwood_testing::machine::{Need, trial};
use sapwood_testing::oracle::{KernelMount, Kind, Loop, TempImage, run};
use sapwood_testing::{process, scratch};
use sapwood_vfs::{Credentials, FileSystem, NewInode, SyncKind, WriteMode};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 256 * MIB;

type Files = BTreeMap<String, Vec<u8>>;

/// Two image files, with a loop device each while the kernel or its tools use them.
struct Pair {
    images: [TempImage; 2],
    /// Made by `mkfs.btrfs`.
    by_tools: bool,
}

/// The loop devices, known to the kernel as devices of one file system.
struct Attached([Loop; 2]);

impl Pair {
    fn blank(by_tools: bool) -> Self {
        Self {
            by_tools,
            images: [TempImage::blank(SIZE), TempImage::blank(SIZE)],
        }
    }

    /// Opened by Sapwood, the second one first.
    fn open(&self, read_only: bool) -> Btrfs {
        let device = |image: &TempImage| -> Arc<dyn Device> {
            Arc::new(FileDevice::open(image.path(), Default::default()).unwrap())
        };
        let options = Options {
            read_only,
            ..Options::default()
        };
        let devices = vec![device(&self.images[1]), device(&self.images[0])];
        Btrfs::open(devices, options).unwrap()
    }

    fn attach(&self) -> Attached {
        let attach = |image: &TempImage| Loop::new(image.path(), &[]).unwrap();
        let attached = Attached(self.images.each_ref().map(attach));
        let [one, two] = attached.paths();
        run("btrfs", &["device", "scan", one, two]);
        attached
    }

    /// `work` in a mount by the kernel, then `btrfs check` and our own.
    fn by_kernel<T>(&self, work: impl FnOnce(&Path) -> T) -> T {
        let attached = self.attach();
        let dir = scratch::directory();
        let device = attached.0[0].path();
        let mount = KernelMount::of_device(device, "btrfs", "rw", dir.path()).unwrap();
        let done = work(mount.path());
        mount.unmount().unwrap();
        drop(attached);
        self.check();
        done
    }

    fn check(&self) {
        let attached = self.attach();
        let dir = scratch::directory();
        // A cache of its own: the common one has what the loop devices held before.
        let cache = format!("BLKID_FILE={}/blkid", dir.path().display());
        let args = ["btrfs", "check", "--readonly", "--check-data-csum"];
        let args = [&[&*cache], &args[..], &attached.paths()[1..]].concat();
        let said = run("env", &args);
        let bad = ["ERROR", "mismatch"]
            .iter()
            .find(|bad| said.contains(**bad));
        assert_eq!(bad, None, "{said}");
        drop(attached);
        let devices = self
            .images
            .each_ref()
            .map(|image| FileDevice::open(image.path(), Default::default()).unwrap());
        let options = CheckOptions {
            check_data_csum: true,
            ..CheckOptions::default()
        };
        let report = check(&[&devices[0], &devices[1]], &options, &mut |_| ()).unwrap();
        let mut findings = report.findings;
        if self.by_tools {
            // `mkfs.btrfs` leaves items of the block groups that it begins with.
            findings.retain(|finding| !matches!(finding, Finding::FreeSpaceInfoStray { .. }));
        }
        assert_eq!(findings, []);
    }

    /// Bytes in device extents of each device.
    fn used(&self) -> [u64; 2] {
        self.images.each_ref().map(|image| {
            let device = FileDevice::open(image.path(), Default::default()).unwrap();
            let mut bytes = [0; SUPER_SIZE];
            device.read_at(SUPER_OFFSETS[0], &mut bytes).unwrap();
            let sb = validate_super(&bytes, SUPER_OFFSETS[0]).unwrap();
            sb.dev_item.bytes_used.get()
        })
    }
}

impl Attached {
    fn paths(&self) -> [&str; 2] {
        self.0.each_ref().map(|one| one.path().to_str().unwrap())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        for device in self.paths() {
            let _ = process::run("btrfs", &["device", "scan", "--forget", device]);
        }
    }
}

/// Pseudo-random bytes that no file shares with another.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| rng.u8(..)).take(len).collect()
}

fn listed(dir: &Path) -> Files {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let content = |path: PathBuf| fs::read(path).unwrap();
    let named = entries.map(|e| (e.file_name().into_string().unwrap(), content(e.path())));
    named.collect()
}

/// Every expected file has its content in the mount by Sapwood.
fn same_in(fs: &Btrfs, files: &Files) {
    for (name, content) in files {
        let file = fs.lookup(fs.root(), name.as_bytes()).unwrap();
        assert_eq!(file.attr.size, content.len() as u64, "{name}");
        let mut found = vec![0; content.len()];
        fs.read(file.ino(), 0, &mut found).unwrap();
        assert!(found == *content, "{name}");
    }
}

/// Numbers of `stat -f`: blocks, free, available.
fn kernel_statfs(dir: &Path) -> [u64; 3] {
    let args = [
        "-f".as_ref(),
        "-c".as_ref(),
        "%b %f %a".as_ref(),
        dir.as_os_str(),
    ];
    let text = run("stat", &args);
    let mut numbers = text.split_whitespace().map(|n| n.parse().unwrap());
    [(); 3].map(|()| numbers.next().unwrap())
}

/// The kernel fills one half, Sapwood the other, the kernel changes what Sapwood wrote.
fn both_write(pair: &Pair) {
    let mut files: Files = (0..6u64)
        .map(|n| (format!("kernel-{n}"), noise(n, 9 << 20)))
        .chain([("small".to_owned(), noise(100, 777))])
        .collect();
    let statfs = pair.by_kernel(|dir| {
        for (name, content) in &files {
            fs::write(dir.join(name), content).unwrap();
        }
        run("sync", &["-f".as_ref(), dir.as_os_str()]);
        kernel_statfs(dir)
    });
    let fs = pair.open(true);
    same_in(&fs, &files);
    let own = fs.statfs().unwrap();
    assert_eq!([own.blocks, own.blocks_free, own.blocks_available], statfs);
    fs.unmount().unwrap();
    drop(fs);
    let before = pair.used();
    let fs = pair.open(false);
    for n in 0..8u64 {
        let (name, content) = (format!("ours-{n}"), noise(1000 + n, 9 << 20));
        let made = fs.create(
            &Credentials::ROOT,
            fs.root(),
            name.as_bytes(),
            NewInode::Regular,
            0o644,
        );
        let file = made.unwrap().ino();
        fs.write(file, 0, &content, WriteMode::default()).unwrap();
        fs.fsync(file, SyncKind::All).unwrap();
        files.insert(name, content);
    }
    for n in [1, 4] {
        let name = format!("kernel-{n}");
        fs.unlink(fs.root(), name.as_bytes()).unwrap();
        files.remove(&name);
    }
    same_in(&fs, &files);
    fs.unmount().unwrap();
    drop(fs);
    let after = pair.used();
    assert!(
        after.iter().sum::<u64>() > before.iter().sum() && after.iter().all(|used| *used > 0),
        "{before:?} {after:?}"
    );
    pair.check();
    pair.by_kernel(|dir| {
        assert!(listed(dir) == files);
        fs::remove_file(dir.join("ours-3")).unwrap();
        fs::write(dir.join("ours-5"), noise(5000, 2 << 20)).unwrap();
    });
    files.remove("ours-3");
    files.insert("ours-5".to_owned(), noise(5000, 2 << 20));
    let fs = pair.open(true);
    same_in(&fs, &files);
    fs.unmount().unwrap();
}

fn made_by_tools(metadata: &str, data: &str) {
    let pair = Pair::blank(true);
    let paths = pair
        .images
        .each_ref()
        .map(|image| image.path().to_str().unwrap());
    let args = ["-q", "-f", "-m", metadata, "-d", data, paths[0], paths[1]];
    run("mkfs.btrfs", &args);
    both_write(&pair);
}

fn made_by_us(metadata: Profile) {
    let pair = Pair::blank(false);
    let devices = pair
        .images
        .each_ref()
        .map(|image| FileDevice::open(image.path(), Default::default()).unwrap());
    let options = MkfsOptions {
        metadata: Some(metadata),
        ..MkfsOptions::default()
    };
    mkfs_several(&[&devices[0], &devices[1]], &options).unwrap();
    drop(devices);
    pair.check();
    both_write(&pair);
}

fn main() {
    const NEEDS: &[Need] = &[
        Need::Program("mkfs.btrfs"),
        Need::Program("btrfs"),
        Need::Kernel(Kind::Btrfs),
    ];
    let tests = vec![
        trial("single_and_single", NEEDS, || {
            made_by_tools("single", "single")
        }),
        trial("dup_and_single", NEEDS, || made_by_tools("dup", "single")),
        trial("dup_and_dup", NEEDS, || made_by_tools("dup", "dup")),
        trial("our_mkfs_dup", NEEDS, || made_by_us(Profile::Dup)),
        trial("our_mkfs_single", NEEDS, || made_by_us(Profile::Single)),
    ];
    // One at a time: a process that another test starts has the lock of an image until it executes.
    let arguments = Arguments {
        test_threads: Some(1),
        ..Arguments::from_args()
    };
    libtest_mimic::run(&arguments, tests).exit();
}
