//! A file system over several devices against the kernel: each reads the other's files, also
//! without each of the devices that the profile can lack.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libtest_mimic::Trial;
use sapwood_block::{Device, FileDevice};
use sapwood_btrfs::check::{CheckOptions, Finding, check};
use sapwood_btrfs::mkfs::{MkfsOptions, Profile, mkfs_several};
use sapwood_btrfs::{Btrfs, Error, Options};
use sapwood_btrfs_format::{SUPER_OFFSETS, SUPER_SIZE, validate_super};
use sapwood_testing::machine::{Need, trial};
use sapwood_testing::oracle::{KernelMount, Kind, Loop, TempImage, run};
use sapwood_testing::{process, scratch};
use sapwood_vfs::{Credentials, FileSystem, NewInode, SyncKind, WriteMode};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 256 * MIB;

type Files = BTreeMap<String, Vec<u8>>;

/// Image files, with a loop device each while the kernel or its tools use them.
struct Set {
    images: Vec<TempImage>,
    /// Made by `mkfs.btrfs`.
    by_tools: bool,
    /// A chunk of data lies on all devices.
    striped: bool,
}

/// The loop devices, known to the kernel as devices of one file system.
struct Attached(Vec<Loop>);

fn file_device(image: &TempImage) -> FileDevice {
    FileDevice::open(image.path(), Default::default()).unwrap()
}

impl Set {
    fn blank(by_tools: bool, data: &str, sizes: &[u64]) -> Self {
        Self {
            by_tools,
            striped: ["raid0", "raid10"].contains(&data),
            images: sizes.iter().map(|size| TempImage::blank(*size)).collect(),
        }
    }

    /// Opened by Sapwood without the device `missing`, the last device first.
    fn open_without(&self, missing: Option<usize>, read_only: bool) -> Result<Btrfs, Error> {
        self.open_lacking(missing.as_slice(), read_only)
    }

    fn open_lacking(&self, missing: &[usize], read_only: bool) -> Result<Btrfs, Error> {
        let images = self.images.iter().enumerate().rev();
        let there = images.filter(|(nth, _)| !missing.contains(nth));
        let devices = there.map(|(_, image)| Arc::new(file_device(image)) as Arc<dyn Device>);
        let options = Options {
            read_only,
            degraded: !missing.is_empty(),
            ..Options::default()
        };
        Btrfs::open(devices.collect(), options)
    }

    fn open(&self, read_only: bool) -> Btrfs {
        self.open_without(None, read_only).unwrap()
    }

    fn attach_without(&self, missing: Option<usize>) -> Attached {
        let images = self.images.iter().enumerate();
        let there = images.filter(|(nth, _)| Some(*nth) != missing);
        let attach = |image: &TempImage| Loop::new(image.path(), &[]).unwrap();
        let attached = Attached(there.map(|(_, image)| attach(image)).collect());
        let args = ["device", "scan"].into_iter().chain(attached.paths());
        run("btrfs", &args.collect::<Vec<_>>());
        attached
    }

    /// `work` in a mount by the kernel.
    fn mounted<T>(
        &self,
        missing: Option<usize>,
        options: &str,
        work: impl FnOnce(&Path) -> T,
    ) -> T {
        let attached = self.attach_without(missing);
        let dir = scratch::directory();
        let device = attached.0[0].path();
        let mount = KernelMount::of_device(device, "btrfs", options, dir.path()).unwrap();
        let done = work(mount.path());
        mount.unmount().unwrap();
        drop(attached);
        done
    }

    /// `work` in a mount by the kernel, then `btrfs check` and our own.
    fn by_kernel<T>(&self, work: impl FnOnce(&Path) -> T) -> T {
        let done = self.mounted(None, "rw", work);
        self.check();
        done
    }

    fn check(&self) {
        let attached = self.attach_without(None);
        let dir = scratch::directory();
        // A cache of its own: the common one has the old contents of the loop devices.
        let cache = format!("BLKID_FILE={}/blkid", dir.path().display());
        let args = ["btrfs", "check", "--readonly", "--check-data-csum"];
        let args = [&[&*cache], &args[..], &attached.paths()[..1]].concat();
        let said = run("env", &args);
        let bad = ["ERROR", "mismatch"]
            .iter()
            .find(|bad| said.contains(**bad));
        assert_eq!(bad, None, "{said}");
        drop(attached);
        let devices: Vec<FileDevice> = self.images.iter().map(file_device).collect();
        let devices: Vec<&dyn Device> = devices.iter().map(|d| d as &dyn Device).collect();
        let options = CheckOptions {
            check_data_csum: true,
            ..CheckOptions::default()
        };
        let report = check(&devices, &options, &mut |_| ()).unwrap();
        let mut findings = report.findings;
        if self.by_tools {
            // `mkfs.btrfs` leaves items of the block groups that it begins with.
            findings.retain(|finding| !matches!(finding, Finding::FreeSpaceInfoStray { .. }));
        }
        assert_eq!(findings, []);
    }

    /// Bytes in device extents of each device.
    fn used(&self) -> Vec<u64> {
        let used = self.images.iter().map(|image| {
            let device = file_device(image);
            let mut bytes = [0; SUPER_SIZE];
            device.read_at(SUPER_OFFSETS[0], &mut bytes).unwrap();
            let sb = validate_super(&bytes, SUPER_OFFSETS[0]).unwrap();
            sb.dev_item.bytes_used.get()
        });
        used.collect()
    }
}

impl Attached {
    fn paths(&self) -> Vec<&str> {
        let paths = self.0.iter().map(|one| one.path().to_str().unwrap());
        paths.collect()
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

/// The kernel scrubs a mount and finds no error.
fn scrubbed(dir: &Path) {
    let args = [
        "scrub".as_ref(),
        "start".as_ref(),
        "-B".as_ref(),
        dir.as_os_str(),
    ];
    let said = run("btrfs", &args);
    assert!(said.contains("no errors found"), "{said}");
}

fn write(fs: &Btrfs, name: &str, content: &[u8]) {
    let (root, owner) = (fs.root(), Credentials::ROOT);
    let made = fs.create(&owner, root, name.as_bytes(), NewInode::Regular, 0o644);
    let file = made.unwrap().ino();
    fs.write(file, 0, content, WriteMode::default()).unwrap();
    fs.fsync(file, SyncKind::All).unwrap();
}

/// The kernel fills one half, Sapwood the other, the kernel changes Sapwood's files. `lacks`:
/// devices that may be missing.
fn both_write(set: &Set, lacks: usize) {
    let mut files: Files = (0..4u64)
        .map(|n| (format!("kernel-{n}"), noise(n, 9 << 20)))
        .chain([("small".to_owned(), noise(100, 777))])
        .collect();
    let statfs = set.by_kernel(|dir| {
        for (name, content) in &files {
            fs::write(dir.join(name), content).unwrap();
        }
        run("sync", &["-f".as_ref(), dir.as_os_str()]);
        kernel_statfs(dir)
    });
    let fs = set.open(true);
    same_in(&fs, &files);
    let own = fs.statfs().unwrap();
    assert_eq!([own.blocks, own.blocks_free, own.blocks_available], statfs);
    fs.unmount().unwrap();
    drop(fs);
    let before = set.used();
    let fs = set.open(false);
    for n in 0..8u64 {
        let (name, content) = (format!("ours-{n}"), noise(1000 + n, 9 << 20));
        write(&fs, &name, &content);
        files.insert(name, content);
    }
    for n in [1, 3] {
        let name = format!("kernel-{n}");
        fs.unlink(fs.root(), name.as_bytes()).unwrap();
        files.remove(&name);
    }
    same_in(&fs, &files);
    fs.unmount().unwrap();
    drop(fs);
    let after = set.used();
    let bytes = |used: &[u64]| used.iter().sum::<u64>();
    // The first data chunk of a striped file system has room for all files.
    let grown = bytes(&after) > bytes(&before) || set.striped;
    let all = after.iter().all(|used| *used > 0);
    assert!(grown && all, "{before:?} {after:?}");
    set.check();
    set.by_kernel(|dir| {
        assert!(listed(dir) == files);
        fs::remove_file(dir.join("ours-3")).unwrap();
        fs::write(dir.join("ours-4"), noise(5000, 2 << 20)).unwrap();
        scrubbed(dir);
    });
    files.remove("ours-3");
    files.insert("ours-4".to_owned(), noise(5000, 2 << 20));
    let fs = set.open(true);
    same_in(&fs, &files);
    fs.unmount().unwrap();
    drop(fs);
    for missing in 0..set.images.len() {
        without(set, missing, &files, lacks > 0);
    }
}

/// Both read all files without a device, or refuse the mount.
fn without(set: &Set, missing: usize, files: &Files, survives: bool) {
    if !survives {
        let error = set.open_without(Some(missing), false).err().unwrap();
        assert!(matches!(error, Error::TooFewDevices { .. }), "{error}");
        return;
    }
    let opened = set.open_without(Some(missing), true);
    let fs = opened.unwrap_or_else(|error| panic!("without {missing}: {error}"));
    same_in(&fs, files);
    fs.unmount().unwrap();
    drop(fs);
    set.mounted(Some(missing), "ro,degraded", |dir| {
        assert!(listed(dir) == *files, "without {missing}");
    });
}

/// A device is missing while Sapwood writes, then another one while the kernel does. Each sees the
/// other's files, and a scrub by the kernel repairs the devices that missed writes.
fn degraded_writes(metadata: &'static str, data: &'static str, count: usize) {
    let set = made_by_tools(metadata, data, &vec![SIZE; count]);
    let mut files: Files = [("before".to_owned(), noise(1, 3 << 20))].into();
    let fs = set.open(false);
    write(&fs, "before", &files["before"]);
    fs.unmount().unwrap();
    drop(fs);
    let fs = set.open_without(Some(0), false).unwrap();
    same_in(&fs, &files);
    for n in 0..3 {
        let name = format!("degraded-{n}");
        write(&fs, &name, &noise(70 + n, 2 << 20));
        files.insert(name, noise(70 + n, 2 << 20));
    }
    fs.unmount().unwrap();
    drop(fs);
    let stale = set.open_without(None, false).err().unwrap();
    assert!(
        matches!(stale, Error::StaleDevice { devid: 1, .. }),
        "{stale}"
    );
    set.mounted(Some(0), "degraded", |dir| {
        assert!(listed(dir) == files);
        fs::write(dir.join("by-kernel"), noise(80, 2 << 20)).unwrap();
    });
    files.insert("by-kernel".to_owned(), noise(80, 2 << 20));
    let fs = set.open_without(Some(0), true).unwrap();
    same_in(&fs, &files);
    fs.unmount().unwrap();
    drop(fs);
    set.mounted(None, "rw", |dir| {
        assert!(listed(dir) == files);
        let args = [
            "scrub".as_ref(),
            "start".as_ref(),
            "-B".as_ref(),
            dir.as_os_str(),
        ];
        run("btrfs", &args);
    });
    set.mounted(None, "rw", scrubbed);
    set.check();
    let fs = set.open(true);
    same_in(&fs, &files);
    fs.unmount().unwrap();
}

/// Parity is read, also without one or two devices and over bad sectors, and never written.
fn parity_is_read(profile: &'static str, count: usize, lacks: usize) {
    let set = made_by_tools("raid1c3", profile, &vec![SIZE; count]);
    let files: Files = (0..5)
        .map(|n| (format!("file-{n}"), noise(n, (3 << 20) + 777 * n as usize)))
        .collect();
    set.mounted(None, "rw", |dir| {
        for (name, content) in &files {
            fs::write(dir.join(name), content).unwrap();
        }
    });
    let error = set.open_without(None, false).err().unwrap();
    assert!(
        matches!(&error, Error::ReadOnlyFeature(name) if name == profile),
        "{error}"
    );
    let reads = |missing: &[usize]| {
        let fs = set.open_lacking(missing, true).unwrap();
        same_in(&fs, &files);
        fs.unmount().unwrap();
    };
    reads(&[]);
    for first in 0..count {
        reads(&[first]);
        for second in (0..first).filter(|_| lacks > 1) {
            reads(&[first, second]);
        }
    }
    // A quarter of the sectors of one device.
    let file = File::options()
        .write(true)
        .open(set.images[1].path())
        .unwrap();
    let mut rng = fastrand::Rng::with_seed(5);
    for at in (2 * MIB..SIZE).step_by(4096) {
        let keeps = SUPER_OFFSETS
            .iter()
            .any(|sb| (*sb..sb + 4096).contains(&at));
        if !keeps && rng.u8(..4) == 0 {
            file.write_all_at(&[0xa5; 4096], at).unwrap();
        }
    }
    drop(file);
    reads(&[]);
    reads(&[0][..lacks - 1]);
}

fn made_by_tools(metadata: &str, data: &str, sizes: &[u64]) -> Set {
    made_with(metadata, data, sizes, "")
}

fn made_with(metadata: &str, data: &str, sizes: &[u64], options: &str) -> Set {
    let set = Set::blank(true, data, sizes);
    let paths = set
        .images
        .iter()
        .map(|image| image.path().to_str().unwrap());
    let args = ["-q", "-f", "-m", metadata, "-d", data]
        .into_iter()
        .chain(options.split_whitespace())
        .chain(paths);
    run("mkfs.btrfs", &args.collect::<Vec<_>>());
    set
}

fn made_by_us(metadata: Profile, data: Profile, sizes: &[u64]) -> Set {
    let set = Set::blank(false, &data.to_string(), sizes);
    let files: Vec<FileDevice> = set.images.iter().map(file_device).collect();
    let devices: Vec<&dyn Device> = files.iter().map(|d| d as &dyn Device).collect();
    let options = MkfsOptions {
        metadata: Some(metadata),
        data: Some(data),
        ..MkfsOptions::default()
    };
    mkfs_several(&devices, &options).unwrap();
    drop(files);
    set.check();
    set
}

/// The same as [`MADE_BY_TOOLS`], by our own mkfs.
const MADE_BY_US: &[(Profile, Profile, &[u64], usize)] = &[
    (Profile::Dup, Profile::Single, &[256, 256], 0),
    (Profile::Single, Profile::Single, &[256, 256], 0),
    (Profile::Raid1, Profile::Raid1, &[256, 300], 1),
    (Profile::Raid1, Profile::Raid0, &[256, 256, 200], 0),
    (Profile::Raid1c3, Profile::Raid1c3, &[256, 200, 300], 2),
    (Profile::Raid1c4, Profile::Raid10, &[256, 256, 200, 300], 1),
    (Profile::Raid10, Profile::Raid10, &[256, 256, 256, 256], 1),
];

/// Metadata and data profile, sizes of the devices in MiB, number of devices that may be missing,
/// further options of mkfs.
type Made = (
    &'static str,
    &'static str,
    &'static [u64],
    usize,
    &'static str,
);

const MADE_BY_TOOLS: &[Made] = &[
    ("single", "single", &[256, 256], 0, ""),
    ("dup", "single", &[256, 256], 0, ""),
    ("dup", "dup", &[256, 256], 0, ""),
    ("raid1", "single", &[256, 256], 0, ""),
    ("raid1", "raid1", &[256, 256], 1, ""),
    ("raid1", "raid1", &[300, 256, 200], 1, ""),
    ("raid1", "raid0", &[256, 256, 300], 0, ""),
    ("raid0", "raid0", &[256, 256], 0, ""),
    ("raid1c3", "raid1", &[256, 256, 256], 1, ""),
    ("raid1c3", "raid1c3", &[256, 300, 256, 256], 1, ""),
    ("raid1c4", "raid1c4", &[256, 256, 256, 300], 1, ""),
    ("raid1c4", "raid10", &[256, 256, 256, 256], 1, ""),
    ("raid10", "raid10", &[256, 256, 256, 256], 1, ""),
    ("raid10", "raid0", &[256, 256, 256, 256, 256], 0, ""),
    ("raid10", "raid10", &[256, 256], 1, ""),
    ("raid1", "raid1", &[256, 256], 1, "-n 4k"),
    ("raid1", "raid1", &[256, 256], 1, "-n 64k"),
    ("raid1", "raid1", &[256, 256], 1, "--csum xxhash"),
    ("raid1", "raid1", &[256, 256], 1, "--csum sha256 -n 32k"),
    ("raid1", "raid1", &[256, 256], 1, "--csum blake2"),
    ("raid1", "raid1", &[256, 256], 1, "-O ^no-holes"),
    ("raid1", "raid1", &[256, 256], 1, "-M -n 4k"),
    (
        "raid1",
        "raid10",
        &[256, 256, 256, 256],
        1,
        "-n 4k --csum xxhash",
    ),
    ("raid1", "raid0", &[256, 300], 0, "-n 64k"),
    ("raid10", "raid10", &[256, 256, 256, 256], 1, "-n 64k"),
    (
        "raid10",
        "raid10",
        &[256, 300, 256, 256, 256, 256],
        1,
        "-n 8k",
    ),
    ("raid10", "raid1", &[256, 256, 256, 256], 1, "--csum sha256"),
    ("raid0", "raid0", &[256, 256, 256], 0, "-n 4k"),
    ("raid0", "raid1", &[256, 256], 0, ""),
    (
        "raid1c3",
        "raid1c3",
        &[256, 256, 256],
        1,
        "-n 4k --csum blake2",
    ),
    ("raid1c3", "raid10", &[256, 256, 256, 256], 1, "-n 64k"),
    ("raid1c4", "raid1c3", &[256, 256, 256, 256], 1, "-n 32k"),
    (
        "raid1c4",
        "raid1",
        &[256, 256, 256, 256],
        1,
        "--csum xxhash",
    ),
    ("dup", "raid0", &[256, 256], 0, ""),
    (
        "raid1",
        "raid1",
        &[256, 256, 256, 256],
        1,
        "-n 4k --csum sha256",
    ),
    ("raid10", "raid1", &[256, 256], 1, ""),
];

/// The combinations that `make test` tries; `make matrices` tries all. Each profile and
/// checksum is in one of them, and the smallest and the largest nodes.
const ALWAYS: &[&str] = &[
    "dup_and_single_on_2",
    "raid1_and_raid0_on_3",
    "raid0_and_raid0_on_2",
    "raid1_and_raid1_on_2-M-n4k",
    "raid10_and_raid10_on_4-n64k",
    "raid1_and_raid1_on_2--csumsha256-n32k",
    "raid1c3_and_raid1c3_on_3-n4k--csumblake2",
    "raid1c4_and_raid1_on_4--csumxxhash",
    "our_mkfs_raid1_and_raid1_on_2",
    "our_mkfs_raid1c4_and_raid10_on_4",
];

pub(crate) fn trials() -> Vec<Trial> {
    const NEEDS: &[Need] = &[
        Need::Program("mkfs.btrfs"),
        Need::Program("btrfs"),
        Need::Kernel(Kind::Btrfs),
    ];
    let combination = |name: String, run: Box<dyn FnOnce() + Send>| {
        let long = (!ALWAYS.contains(&&*name)).then_some(Need::Full);
        let needs: Vec<_> = NEEDS.iter().copied().chain(long).collect();
        trial(name, &needs, run)
    };
    let each = MADE_BY_TOOLS
        .iter()
        .map(|(metadata, data, sizes, lacks, options)| {
            let name = format!("{metadata}_and_{data}_on_{}{options}", sizes.len());
            let bytes: Vec<u64> = sizes.iter().map(|size| size * MIB).collect();
            let both = move || both_write(&made_with(metadata, data, &bytes, options), *lacks);
            combination(name.replace([' ', '^'], ""), Box::new(both))
        });
    let mut all: Vec<Trial> = each.collect();
    all.extend(MADE_BY_US.iter().map(|(metadata, data, sizes, lacks)| {
        let name = format!("our_mkfs_{metadata}_and_{data}_on_{}", sizes.len());
        let bytes: Vec<u64> = sizes.iter().map(|size| size * MIB).collect();
        let both = move || both_write(&made_by_us(*metadata, *data, &bytes), *lacks);
        combination(name, Box::new(both))
    }));
    let chosen = all.iter().filter(|trial| ALWAYS.contains(&trial.name()));
    assert_eq!(chosen.count(), ALWAYS.len());
    all.extend([
        trial("raid5_is_read", NEEDS, || parity_is_read("raid5", 3, 1)),
        trial("raid6_is_read", NEEDS, || parity_is_read("raid6", 5, 2)),
        trial("degraded_writes_raid1", NEEDS, || {
            degraded_writes("raid1", "raid1", 2);
        }),
        trial("degraded_writes_raid1_on_3", NEEDS, || {
            degraded_writes("raid1", "raid1", 3);
        }),
        trial("degraded_writes_raid10", NEEDS, || {
            degraded_writes("raid1c3", "raid10", 4);
        }),
    ]);
    all
}
