//! Files with a hash tree of fs-verity: a power cut at any write leaves a file that is sealed or
//! not, and a sealed file does not change.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use sapwood::internal::btrfs::Btrfs;
use sapwood::internal::ext4::Ext4;
use sapwood::internal::mkfs;
use sapwood::verity::{Algorithm, FileParams};
use sapwood::vfs::{self, AllocMode, Ino};
use sapwood::{CheckOptions, Error, ErrorKind, FileSystem, MkfsOptions, OpenOptions, Options};
use sapwood_block::{Device, MemoryDevice};
use sapwood_testing::machine::step;
use sapwood_testing::oracle::Kind;
use sapwood_testing::{
    CrashPlan, GateDevice, RecordDevice, RecordLog, Replayer, RequestKind, process,
};

const NAME: &str = "image";
const SIZE: u64 = 160 << 20;
/// Its tree takes several handles of btrfs.
const FILE: usize = 12_345_678;
/// The superblock of ext4. A mount reads no other copy, so a device must not tear it.
const SUPER: Range<u64> = 1024..2048;

const FORMATS: [(&str, &[(&str, &str)]); 4] = [
    ("btrfs", &[]),
    ("btrfs", &[("nodesize", "4096"), ("mixed", "")]),
    ("ext4", &[]),
    ("ext4", &[("b", "1024"), ("features", "^has_journal")]),
];

fn formatted(kind: &str, given: &[(&str, &str)]) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let mut options = MkfsOptions::new(kind.parse().unwrap());
    for (name, value) in given {
        let value = (!value.is_empty()).then_some(*value);
        options.set(name, value).unwrap();
    }
    mkfs(&*device, Path::new(NAME), &options, true).unwrap();
    device
}

fn open(device: Arc<dyn Device>) -> Result<FileSystem, Error> {
    let options = Options::new().option("noatime", None)?;
    FileSystem::open_on(device, NAME, &options)
}

fn noise(len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(len as u64);
    (0..len).map(|_| random.u8(..)).collect()
}

/// The finding of the format's own tool, and of the check of Sapwood.
fn judge(device: &MemoryDevice) -> Result<(), String> {
    let image = saved(device);
    Kind::of(&image.1).check(&image.1)?;
    let report = sapwood::check(&image.1, &CheckOptions::default(), &mut |_| {});
    let report = report.map_err(|error| error.to_string())?;
    // A cut between the copies of a superblock leaves one that is a commit behind.
    let mut findings = report.findings.iter();
    match findings.find(|finding| finding.code != "SuperStale") {
        None => Ok(()),
        Some(finding) => Err(format!("{finding:?}")),
    }
}

/// The image in a file.
fn saved(device: &MemoryDevice) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(NAME);
    device.save(&path).unwrap();
    (dir, path)
}

fn params(fs: &FileSystem) -> FileParams {
    FileParams {
        block_size: fs.verity_block_size().unwrap(),
        ..FileParams::default()
    }
}

/// The state of a file in which a cut may leave it.
struct Before {
    content: Vec<u8>,
    /// Bytes of its blocks. `None`: a commit is not atomic and may leave more.
    allocated: Option<u64>,
    /// Its digest once it is sealed.
    digest: String,
}

impl Before {
    /// Whether the file is sealed. If not, it has its content and its blocks as before, and can be
    /// sealed.
    fn is_sealed(&self, device: &Arc<MemoryDevice>) -> Result<bool, Error> {
        let fs = open(device.clone())?;
        assert!(fs.read("file")? == self.content);
        let found = fs.measure_verity("file")?;
        if let Some(found) = &found {
            assert_eq!(found.to_string(), self.digest);
        } else {
            let allocated = fs.metadata("file")?.allocated();
            assert_eq!(allocated, self.allocated.unwrap_or(allocated));
            let made = fs.enable_verity("file", &params(&fs), &[])?;
            assert_eq!(made.to_string(), self.digest);
        }
        let refused = fs.open_with("file", OpenOptions::new().write(true));
        let refused = refused.and_then(|file| file.write_at(b"x", 0));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
        fs.close()?;
        Ok(found.is_some())
    }

    /// The same after `e2fsck` recovered the image. Returns whether it cut the file to its size.
    fn recovered_by_e2fsck(&self, device: &MemoryDevice) -> bool {
        let (_dir, path) = saved(device);
        let mut e2fsck = process::command("e2fsck", &["-f", "-p"]);
        let out = process::finish(e2fsck.arg(&path), process::ORDINARY).unwrap();
        // 1: errors were corrected, as every recovery does.
        assert!(matches!(out.status.code(), Some(0 | 1)), "{out:?}");
        Kind::Ext4
            .check(&path)
            .unwrap_or_else(|error| panic!("{error}"));
        let device = Arc::new(MemoryDevice::load(&path).unwrap());
        self.is_sealed(&device).unwrap();
        out.stdout.contains("Truncating orphaned inode")
    }
}

/// A seal of a file of this content, while another thread commits.
fn record_seal(memory: &Arc<MemoryDevice>, content: Vec<u8>) -> (Before, RecordLog, usize) {
    let fs = open(memory.clone()).unwrap();
    let allocated = Some(fs.metadata("file").unwrap().allocated());
    fs.close().unwrap();
    let record = Arc::new(RecordDevice::new(Arc::clone(memory)));
    let gate = Arc::new(GateDevice::new(Arc::clone(&record)));
    let fs = open(gate.clone()).unwrap();
    let done = AtomicBool::new(false);
    let commit_until_done = || {
        while !done.load(Ordering::Acquire) {
            fs.sync().unwrap();
        }
    };
    // The first write of a seal of ext4 is the tree, between its first handle and the others.
    let commit_between = || {
        gate.wait_held(1);
        let mut options = OpenOptions::new();
        let other = fs.open_with("other", options.write(true).create(true));
        let other = other.unwrap();
        other.write_at(b"other", 0).unwrap();
        other.sync_all().unwrap();
        gate.open();
    };
    let is_ext4 = fs.kind() == sapwood::Kind::Ext4;
    if is_ext4 {
        let held = AtomicBool::new(false);
        gate.hold_if(move |request| {
            request.kind == RequestKind::Write && !held.swap(true, Ordering::AcqRel)
        });
    }
    let digest = thread::scope(|scope| {
        if is_ext4 {
            scope.spawn(commit_between);
        } else {
            scope.spawn(commit_until_done);
        }
        let digest = fs.enable_verity("file", &params(&fs), b"signature");
        done.store(true, Ordering::Release);
        digest.unwrap().to_string()
    });
    let returned = record.mark("returned");
    fs.close().unwrap();
    let before = Before {
        content,
        allocated,
        digest,
    };
    (before, record.log(), returned)
}

#[test]
fn a_cut_of_a_seal_leaves_a_file_that_is_sealed_or_not() {
    for (kind, given) in FORMATS {
        let memory = formatted(kind, given);
        let fs = open(memory.clone()).unwrap();
        let content = noise(FILE);
        fs.write("file", &content).unwrap();
        fs.close().unwrap();
        let base = memory.snapshot();
        let (mut before, log, returned) = record_seal(&memory, content);
        let is_atomic = !given.contains(&("features", "^has_journal"));
        before.allocated = before.allocated.filter(|_| is_atomic);
        let mut replayer = Replayer::new(&log, &base);
        let (mut seen, mut number, mut cut) = ([0, 0], 0, 0);
        let entries = log.entries().iter();
        let writes = entries
            .filter(|entry| entry.action.range().is_some())
            .count();
        let every = step((writes / 12).max(1));
        for count in (0..writes).step_by(every).chain([writes]) {
            let at = log.after_writes(count);
            let lossy = log.random_plan(at, at as u64);
            let lossy = lossy.tearing_outside(&log, &SUPER);
            for plan in [CrashPlan::at(at), lossy] {
                if !is_atomic && plan != CrashPlan::at(at) {
                    // A part of a commit leaves any of its blocks.
                    continue;
                }
                let what = format!("{kind} {given:?}, {plan:?}");
                let image = Arc::new(replayer.image(&plan));
                number += 1;
                let is_checked = is_atomic && number % 4 == 3;
                if is_checked && kind == "ext4" {
                    cut += usize::from(before.recovered_by_e2fsck(&image));
                }
                let sealed = before.is_sealed(&image);
                let sealed = sealed.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(sealed || at <= returned, "{what}");
                if is_checked {
                    judge(&image).unwrap_or_else(|error| panic!("{what}: {error}"));
                }
                seen[usize::from(sealed)] += 1;
            }
        }
        assert!(seen.iter().all(|count| *count > 0), "{kind}: {seen:?}");
        let has_orphans = kind == "ext4" && is_atomic;
        assert!(cut > 0 || !has_orphans, "no cut left an orphan");
        judge(&memory).unwrap_or_else(|error| panic!("{kind} {given:?}: {error}"));
    }
}

#[test]
fn blocks_after_the_end_do_not_displace_the_hash_tree() {
    for (kind, given) in FORMATS {
        let memory = formatted(kind, given);
        let fs = open(memory.clone()).unwrap();
        let content = noise(100_001);
        fs.write("file", &content).unwrap();
        let ino = Ino(fs.metadata("file").unwrap().ino());
        fs.close().unwrap();
        let device: Arc<dyn Device> = memory.clone();
        let engine: Box<dyn vfs::FileSystem> = if kind == "ext4" {
            Box::new(Ext4::open(device, Default::default()).unwrap())
        } else {
            Box::new(Btrfs::open(vec![device], Default::default()).unwrap())
        };
        let mode = AllocMode::Allocate { keep_size: true };
        engine.fallocate(ino, 0, 8 << 20, mode).unwrap();
        engine.unmount().unwrap();
        let fs = open(memory.clone()).unwrap();
        assert!(fs.metadata("file").unwrap().allocated() >= 8 << 20);
        let digest = fs.enable_verity("file", &params(&fs), &[]).unwrap();
        fs.close().unwrap();
        judge(&memory).unwrap_or_else(|error| panic!("{kind} {given:?}: {error}"));
        let fs = open(memory.clone()).unwrap();
        assert_eq!(fs.read("file").unwrap(), content);
        assert_eq!(fs.measure_verity("file").unwrap(), Some(digest));
        fs.close().unwrap();
    }
}

#[test]
fn a_refused_change_of_a_sealed_file_changes_nothing() {
    for (kind, given) in FORMATS {
        let memory = formatted(kind, given);
        let fs = open(memory.clone()).unwrap();
        for (name, len) in [("empty", 0), ("inline", 100), ("large", 300_000)] {
            let content = noise(len);
            fs.write(name, &content).unwrap();
            fs.set_permissions(name, 0o4755).unwrap();
            let wide = FileParams {
                algorithm: Algorithm::Sha512,
                salt: vec![7; 32],
                ..params(&fs)
            };
            let digest = fs.enable_verity(name, &wide, &[5; 3000]).unwrap();
            let again = fs.enable_verity(name, &wide, &[]).unwrap_err();
            assert_eq!(again.kind(), ErrorKind::AlreadyExists);
            let before = fs.metadata(name).unwrap();
            let file = fs.open_with(name, OpenOptions::new().write(true)).unwrap();
            let refused = [
                file.write_at(b"x", 0),
                file.write_at(b"x", 1 << 20),
                file.set_len(0),
                file.set_len(1 << 20),
                file.set_len(len as u64),
            ];
            for refused in refused {
                let error = refused.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{kind} {name}");
            }
            drop(file);
            let after = fs.metadata(name).unwrap();
            assert_eq!(after.modified(), before.modified(), "{kind} {name}");
            assert_eq!(after.mode(), 0o4755, "{kind} {name}");
            assert_eq!(fs.read(name).unwrap(), content);
            assert_eq!(fs.measure_verity(name).unwrap(), Some(digest));
        }
        fs.close().unwrap();
        judge(&memory).unwrap_or_else(|error| panic!("{kind} {given:?}: {error}"));
        let fs = open(memory.clone()).unwrap();
        for name in ["empty", "inline", "large"] {
            fs.rename(name, format!("{name}.moved")).unwrap();
            fs.remove_file(format!("{name}.moved")).unwrap();
        }
        fs.close().unwrap();
        judge(&memory).unwrap_or_else(|error| panic!("{kind} {given:?}: {error}"));
    }
}
