//! Transactions: after a power cut at any write all changes exist or none, for Sapwood and for the
//! kernel.

use std::path::Path;
use std::sync::Arc;

use sapwood::internal::mkfs;
use sapwood::{Error, ErrorKind, FileSystem, MkfsOptions, OpenOptions, Options};
use sapwood_block::{Device, MemoryDevice};
use sapwood_testing::machine::{Need, left_out, step};
use sapwood_testing::oracle::{KernelMount, Kind};
use sapwood_testing::tree::{Detail, Tree};
use sapwood_testing::{CrashPlan, RecordDevice, RecordLog, Replayer};

const MIB: u64 = 1 << 20;
const NAME: &str = "image";
const SIZE: u64 = 160 * MIB;

/// Formats, each with features of mkfs.
const FORMATS: [(&str, &[(&str, &str)]); 5] = [
    ("btrfs", &[]),
    ("ext4", &[]),
    (
        "ext4",
        &[("features", "^64bit,^metadata_csum,^extent"), ("b", "1024")],
    ),
    ("ext4", &[("features", "^has_journal")]),
    ("ext4", &[("features", "fast_commit")]),
];

fn formatted(kind: &str, given: &[(&str, &str)]) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let mut options = MkfsOptions::new(kind.parse().unwrap());
    for (name, value) in given {
        options.set(name, Some(value)).unwrap();
    }
    mkfs(&*device, Path::new(NAME), &options, true).unwrap();
    device
}

fn open(device: &Arc<dyn Device>) -> Result<FileSystem, Error> {
    // Reading a tree changes nothing.
    let options = Options::new().option("noatime", None)?;
    FileSystem::open_on(Arc::clone(device), NAME, &options)
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.u8(..)).collect()
}

/// Files of the old state.
fn fill(fs: &FileSystem) {
    fs.create_dir("etc").unwrap();
    fs.create_dir_all("usr/lib").unwrap();
    for number in 0..40 {
        fs.write(format!("etc/{number}"), noise(number, 500))
            .unwrap();
        fs.write(format!("usr/lib/{number}"), noise(number, 30_000))
            .unwrap();
    }
    fs.write("large", noise(99, 3 << 20)).unwrap();
}

/// A file system with the old state.
fn filled(kind: &str, given: &[(&str, &str)]) -> Arc<MemoryDevice> {
    let memory = formatted(kind, given);
    let device: Arc<dyn Device> = memory.clone();
    let fs = open(&device).unwrap();
    fill(&fs);
    fs.close().unwrap();
    let mut options = Options::new();
    if kind == "btrfs" {
        // The file is overwritten in place.
        options.set("nodatacow", None).unwrap();
    }
    let fs = FileSystem::open_on(device, NAME, &options).unwrap();
    fs.write("plain", noise(98, 200_000)).unwrap();
    fs.close().unwrap();
    memory
}

/// Changes of everything: in place, by replacement, by removal; with commits of the engine between
/// them, after which it could use freed space again.
fn change(fs: &FileSystem) -> Result<(), Error> {
    let overwrite = |path: &str, at: u64| {
        let file = fs.open_with(path, OpenOptions::new().write(true))?;
        file.write_at(&noise(at, 100_000), at)
    };
    for number in 0..20 {
        fs.remove_file(format!("usr/lib/{number}"))?;
        fs.write(format!("etc/{number}"), noise(1000 + number, 700))?;
    }
    overwrite("large", 1 << 20)?;
    overwrite("plain", 50_000)?;
    fs.sync()?;
    for number in 0..60 {
        fs.write(format!("new{number}"), noise(2000 + number, 40_000))?;
    }
    fs.rename("usr/lib", "lib")?;
    fs.symlink("/lib", "usr/lib")?;
    fs.sync()?;
    for number in 0..30 {
        fs.remove_file(format!("new{number}"))?;
    }
    overwrite("large", 2 << 20)?;
    overwrite("plain", 60_000)?;
    fs.set_xattr("large", "user.note", b"changed")?;
    fs.sync()?;
    fs.write("last", noise(3000, 1 << 20))
}

fn tree(device: &Arc<dyn Device>) -> Result<Tree, String> {
    let fs = open(device).map_err(|error| error.to_string())?;
    let tree = Tree::of(&**fs.engine(), Detail::Sums).map_err(|error| error.to_string())?;
    fs.close().map_err(|error| error.to_string())?;
    Ok(tree)
}

/// A transaction that was recorded.
struct Recorded {
    base: MemoryDevice,
    after: Arc<MemoryDevice>,
    log: RecordLog,
    returned: usize,
}

fn record(kind: &str, options: &[(&str, &str)]) -> Recorded {
    let memory = filled(kind, options);
    let base = memory.snapshot();
    let record = Arc::new(RecordDevice::new(Arc::clone(&memory)));
    let mut fs = open(&(record.clone() as Arc<dyn Device>)).unwrap();
    fs.transaction(change).unwrap();
    let returned = record.mark("returned");
    fs.close().unwrap();
    Recorded {
        base,
        after: memory,
        log: record.log(),
        returned,
    }
}

/// ext4 has one copy of its superblock that is read: it is written whole or not at all.
fn random_plan(log: &RecordLog, at: usize) -> CrashPlan {
    let mut plan = log.random_plan(at, at as u64);
    plan.torn.retain(|entry, _| {
        let entry = log.entries().get(*entry);
        let range = entry.and_then(|entry| entry.action.range());
        range.is_none_or(|(offset, _)| offset > 64 << 10)
    });
    plan
}

/// A cut leaves the old or the new state, and the new one after the transaction returned.
fn cut_everywhere(kind: &str, options: &[(&str, &str)]) {
    let recorded = record(kind, options);
    let (base, log) = (&recorded.base, &recorded.log);
    let old = tree(&(Arc::new(base.snapshot()) as Arc<dyn Device>)).unwrap();
    let new = tree(&(recorded.after.clone() as Arc<dyn Device>)).unwrap();
    assert!(old.difference(&new).is_some());
    let mut replayer = Replayer::new(log, base);
    let mut seen = [0, 0];
    let points = log.crash_points();
    // The switch is near the end.
    let (first, last) = points.split_at(points.len().saturating_sub(12));
    for &at in first.iter().step_by(step(3)).chain(last) {
        for plan in [CrashPlan::at(at), random_plan(log, at)] {
            let image: Arc<dyn Device> = Arc::new(replayer.image(&plan));
            let found = tree(&image).unwrap_or_else(|error| panic!("{kind}, {plan:?}: {error}"));
            let is_new = found.difference(&new).is_none();
            let is_old = found.difference(&old).is_none();
            assert!(
                is_new || is_old && at <= recorded.returned,
                "{kind} {options:?}, {plan:?}: {:?}",
                found.difference(&new)
            );
            seen[usize::from(is_new)] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 2), "{seen:?}");
}

#[test]
fn a_cut_of_a_transaction_leaves_all_or_nothing() {
    for (kind, options) in FORMATS {
        cut_everywhere(kind, options);
    }
}

/// The names and sums of all files, as the kernel shows them.
fn seen_by_the_kernel(device: &MemoryDevice, check: bool) -> Result<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(NAME);
    let mut bytes = vec![0; SIZE as usize];
    device.read_at(0, &mut bytes).unwrap();
    std::fs::write(&path, bytes).unwrap();
    let mount = KernelMount::new(&path, "")?;
    let seen = mount.shell("find . -printf '%p %y %m %s %l\\n' | sort; find . -type f -print0 | sort -z | xargs -0 sha256sum");
    mount.unmount()?;
    if check {
        Kind::of(&path).check(&path)?;
    }
    Ok(seen)
}

#[test]
fn the_kernel_finds_all_or_nothing_after_a_cut() {
    if left_out(&[Need::Loop]) {
        return;
    }
    for (kind, options) in FORMATS {
        let recorded = record(kind, options);
        // A cut may leave a borrowed journal, which the check wants to clear.
        let check = !options.contains(&("features", "^has_journal"));
        let old = seen_by_the_kernel(&recorded.base, true).unwrap();
        let new = seen_by_the_kernel(&recorded.after, true).unwrap();
        assert_ne!(old, new);
        let points = recorded.log.crash_points();
        // The switch is near the end.
        let last = points.len().saturating_sub(24);
        let few = points[..last].iter().step_by(step(last.div_ceil(4).max(1)));
        for at in few.chain(points[last..].iter().step_by(step(4))) {
            let plan = random_plan(&recorded.log, *at);
            let image = recorded.log.image(&recorded.base, &plan);
            let seen = seen_by_the_kernel(&image, check);
            let seen = seen.unwrap_or_else(|error| panic!("{kind} {options:?}, {plan:?}: {error}"));
            assert!(
                seen == new || seen == old && *at <= recorded.returned,
                "{kind} {options:?}, {plan:?}"
            );
        }
    }
}

#[test]
fn an_error_leaves_nothing() {
    for (kind, options) in FORMATS {
        let device: Arc<dyn Device> = filled(kind, options);
        let mut fs = open(&device).unwrap();
        let before = Tree::of(&**fs.engine(), Detail::Sums).unwrap();
        let failed = fs.transaction(|tx| {
            change(tx)?;
            assert!(tx.exists("last")?);
            tx.remove_file("no such file")
        });
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::NotFound);
        let after = Tree::of(&**fs.engine(), Detail::Sums).unwrap();
        assert_eq!(before.difference(&after), None, "{kind} {options:?}");
        // It is as usable as before.
        let value = fs.transaction(|tx| change(tx).map(|()| 7)).unwrap();
        assert_eq!(value, 7);
        assert!(fs.exists("last").unwrap());
        fs.close().unwrap();
    }
}

#[test]
fn a_transaction_needs_the_file_system_alone_and_writable() {
    let device: Arc<dyn Device> = formatted("ext4", &[]);
    let mut fs = open(&device).unwrap();
    fs.write("file", b"x").unwrap();
    let file = fs.open("file").unwrap();
    let busy = fs.transaction(|_| Ok::<_, Error>(())).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::ResourceBusy);
    drop(file);
    fs.transaction(|tx| tx.remove_file("file")).unwrap();
    fs.close().unwrap();
    let mut fs = FileSystem::open_on(device, NAME, &Options::new().read_only(true)).unwrap();
    let refused = fs.transaction(|_| Ok::<_, Error>(())).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
}

#[test]
fn more_than_the_journal_holds_is_refused_as_a_whole() {
    let device: Arc<dyn Device> = formatted("ext4", &[]);
    let mut fs = open(&device).unwrap();
    fs.write("large", noise(1, 64 << 20)).unwrap();
    let before = Tree::of(&**fs.engine(), Detail::Sums).unwrap();
    let refused = fs.transaction(|tx| {
        let file = tx.open_with("large", OpenOptions::new().write(true))?;
        file.write_at(&noise(2, 64 << 20), 0)?;
        tx.sync()
    });
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::StorageFull, "{refused}");
    let after = Tree::of(&**fs.engine(), Detail::Sums).unwrap();
    assert_eq!(before.difference(&after), None);
    // New files of the same size are not limited by it.
    fs.transaction(|tx| tx.write("new", noise(2, 64 << 20)))
        .unwrap();
    fs.close().unwrap();
}
