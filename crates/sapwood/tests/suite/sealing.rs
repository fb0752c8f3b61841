//! Files with a hash tree of fs-verity: a power cut at any write leaves a file that is sealed or
//! not, and a sealed file does not change.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use sapwood::internal::mkfs;
use sapwood::verity::{Algorithm, FileParams};
use sapwood::{CheckOptions, Error, ErrorKind, FileSystem, MkfsOptions, OpenOptions, Options};
use sapwood_block::{Device, MemoryDevice};
use sapwood_testing::machine::step;
use sapwood_testing::oracle::Kind;
use sapwood_testing::{CrashPlan, RecordDevice, Replayer};

const NAME: &str = "image";
const SIZE: u64 = 160 << 20;
/// Its tree takes several handles of btrfs.
const FILE: usize = 12_345_678;

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
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(NAME);
    let mut bytes = vec![0; SIZE as usize];
    device.read_at(0, &mut bytes).unwrap();
    std::fs::write(&path, bytes).unwrap();
    Kind::of(&path).check(&path)?;
    let report = sapwood::check(&path, &CheckOptions::default(), &mut |_| {});
    let report = report.map_err(|error| error.to_string())?;
    // A cut between the copies of a superblock leaves one that is a commit behind.
    let mut findings = report.findings.iter();
    match findings.find(|finding| finding.code != "SuperStale") {
        None => Ok(()),
        Some(finding) => Err(format!("{finding:?}")),
    }
}

fn params(fs: &FileSystem) -> FileParams {
    FileParams {
        block_size: fs.verity_block_size().unwrap(),
        ..FileParams::default()
    }
}

/// Whether the file is sealed. If not, it has its content and can be sealed.
fn is_sealed(device: MemoryDevice, digest: &str, content: &[u8]) -> Result<bool, Error> {
    let fs = open(Arc::new(device))?;
    let read = fs.read("file")?;
    let found = fs.measure_verity("file")?;
    assert!(read.starts_with(content));
    if read.len() > content.len() {
        // Ext4 has the tree after the end of the file, which may be longer before it is sealed.
        assert!(found.is_none() && fs.kind() == sapwood::Kind::Ext4);
        let file = fs.open_with("file", OpenOptions::new().write(true))?;
        file.set_len(content.len() as u64)?;
    }
    match &found {
        Some(found) => assert_eq!(found.to_string(), digest),
        None => {
            let made = fs.enable_verity("file", &params(&fs), &[])?;
            assert_eq!(made.to_string(), digest);
        }
    }
    let refused = fs.open_with("file", OpenOptions::new().write(true));
    let refused = refused.and_then(|file| file.write_at(b"x", 0));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
    fs.close()?;
    Ok(found.is_some())
}

#[test]
fn a_cut_of_a_seal_leaves_a_file_that_is_sealed_or_not() {
    let content = noise(FILE);
    for (kind, given) in FORMATS {
        let memory = formatted(kind, given);
        let fs = open(memory.clone()).unwrap();
        fs.write("file", &content).unwrap();
        fs.close().unwrap();
        let base = memory.snapshot();
        let record = Arc::new(RecordDevice::new(Arc::clone(&memory)));
        let fs = open(record.clone()).unwrap();
        let done = AtomicBool::new(false);
        let digest = thread::scope(|scope| {
            // Commits between the handles.
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    fs.sync().unwrap();
                }
            });
            let digest = fs
                .enable_verity("file", &params(&fs), b"signature")
                .unwrap();
            done.store(true, Ordering::Release);
            digest.to_string()
        });
        let returned = record.mark("returned");
        fs.close().unwrap();
        let log = record.log();
        let mut replayer = Replayer::new(&log, &base);
        let mut seen = [0, 0];
        let points = log.crash_points();
        let every = step((points.len() / 24).max(1));
        for &at in points.iter().step_by(every).chain(points.last()) {
            for plan in [CrashPlan::at(at), log.random_plan(at, at as u64)] {
                if kind == "ext4" && plan != CrashPlan::at(at) {
                    // Its only superblock that is read may be torn.
                    continue;
                }
                let image = replayer.image(&plan);
                if kind == "btrfs" && seen[0] % 16 == 8 && seen[1] == 0 {
                    judge(&image).unwrap_or_else(|error| panic!("{plan:?}: {error}"));
                }
                let sealed = is_sealed(image.snapshot(), &digest, &content)
                    .unwrap_or_else(|error| panic!("{kind} {given:?}, {plan:?}: {error}"));
                assert!(sealed || at <= returned, "{kind} {given:?}, {plan:?}");
                seen[usize::from(sealed)] += 1;
            }
        }
        assert!(seen.iter().all(|count| *count > 0), "{kind}: {seen:?}");
        judge(&memory).unwrap_or_else(|error| panic!("{kind} {given:?}: {error}"));
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
