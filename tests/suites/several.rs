//! btrfs over several devices by the commands: made, filled, used without a device, damaged,
//! scrubbed; the kernel reads and scrubs the result.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use sapwood_testing::oracle::{KernelMount, Loop};
use sapwood_tests::mount::{Mounted, SapwoodMount, sapwood};
use sapwood_tests::process::Said;
use sapwood_tests::{Need, Outcome, machine, process, scratch, trial};
use tempfile::TempDir;

const IMAGE: i32 = 3;
const SECTOR: usize = 4096;
/// Before this offset a device has no chunk.
const FIRST_CHUNK: u64 = 1 << 20;
pub(crate) const SIZE: u64 = 256 << 20;

pub(crate) fn trials() -> Vec<Trial> {
    let kernel = [machine::KERNEL, Need::Program("btrfs")];
    let both = [machine::KERNEL, Need::Program("btrfs"), Need::Fuse];
    vec![
        trial("made_filled_damaged_and_scrubbed", &kernel, scrubbed),
        trial("a_mount_without_a_device", &both, degraded),
        trial("moved_to_another_disk_over_mirrors", &kernel, moved),
        trial("a_lost_disk_is_replaced", &kernel, replaced),
        trial("a_disk_is_replaced_in_its_place", &kernel, in_place),
        trial("devices_and_profiles_are_refused_by_name", &[], refused),
        trial("a_scrub_of_ext4_reads_everything", &[], ext4),
    ]
}

pub(crate) fn said(args: &[&str]) -> Result<Said, String> {
    process::finish(Command::new(sapwood()).args(args), process::ORDINARY)
}

pub(crate) fn run(args: &[&str]) -> Result<String, String> {
    process::succeed(Command::new(sapwood()).args(args), process::ORDINARY)
}

/// Images in a directory of their own.
pub(crate) struct Set {
    dir: TempDir,
    pub(crate) names: Vec<String>,
}

impl Set {
    pub(crate) fn made(count: usize, options: &[&str]) -> Result<Self, String> {
        let dir = scratch::directory();
        let name = |nth: usize| dir.path().join(format!("{nth}.img"));
        let names = (0..count).map(|nth| name(nth).to_str().unwrap().to_owned());
        let names: Vec<String> = names.collect();
        let images = names.iter().map(String::as_str);
        let size = SIZE.to_string();
        let args = ["mkfs", "-q", "--size", &size].into_iter();
        let args = args.chain(options.iter().copied()).chain(images);
        run(&args.collect::<Vec<_>>())?;
        Ok(Self { dir, names })
    }

    pub(crate) fn at(&self, nth: usize) -> &str {
        &self.names[nth]
    }

    /// A command on the first image, with the others as `--device`.
    pub(crate) fn command(&self, command: &[&str], place: &str) -> Result<String, String> {
        let others = self.names.iter().skip(1);
        let others = others.flat_map(|name| ["--device", name.as_str()]);
        let args: Vec<&str> = command.iter().copied().chain(others).collect();
        let place = format!("{}{place}", self.at(0));
        run(&[&args[..], &[&place]].concat())
    }

    fn scrub(&self, options: &[&str]) -> Result<Said, String> {
        let names = self.names.iter().map(String::as_str);
        let args = ["scrub"].into_iter().chain(options.iter().copied());
        said(&args.chain(names).collect::<Vec<_>>())
    }

    /// Runs btrfs-progs on the first image, and lets them find the others.
    pub(crate) fn by_progs(&self, args: &[&str]) -> Result<String, String> {
        let attach = |name: &String| Loop::new(Path::new(name), &[]);
        let loops = self.names.iter().map(attach);
        let loops = loops.collect::<Result<Vec<_>, _>>()?;
        let first = loops[0].path().to_str().unwrap();
        process::run("btrfs", &[args, &[first]].concat())
    }

    /// `work` in a mount by the kernel, which scrubs it afterwards without an error.
    pub(crate) fn by_kernel(&self, work: impl FnOnce(&Path)) -> Result<(), String> {
        let attach = |name: &String| Loop::new(Path::new(name), &[]);
        let loops = self
            .names
            .iter()
            .map(attach)
            .collect::<Result<Vec<_>, _>>()?;
        let paths = loops.iter().map(|one| one.path().to_str().unwrap());
        let scan = ["device", "scan"].into_iter().chain(paths.clone());
        process::run("btrfs", &scan.collect::<Vec<_>>())?;
        let dir = scratch::directory();
        let mount = KernelMount::of_device(loops[0].path(), "btrfs", "rw", dir.path())?;
        work(mount.path());
        let place = mount.path().to_str().unwrap();
        let told = process::run("btrfs", &["scrub", "start", "-B", place])?;
        mount.unmount()?;
        for path in paths {
            process::run("btrfs", &["device", "scan", "--forget", path])?;
        }
        if told.contains("no errors found") {
            return Ok(());
        }
        Err(told)
    }
}

/// Bytes that differ in every sector.
pub(crate) fn content(len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(len as u64);
    std::iter::repeat_with(|| random.u8(..)).take(len).collect()
}

/// Overwrites each sector of an image that the file has; their number.
pub(crate) fn spoil(image: &str, file: &[u8]) -> std::io::Result<usize> {
    let sectors: Vec<&[u8]> = file.chunks_exact(SECTOR).collect();
    let image = File::options().read(true).write(true).open(image)?;
    let (mut spoiled, mut buf) = (0, vec![0; SECTOR]);
    for at in (FIRST_CHUNK..SIZE).step_by(SECTOR) {
        image.read_exact_at(&mut buf, at)?;
        if sectors.contains(&&buf[..]) {
            image.write_all_at(&[0x5a; SECTOR], at)?;
            spoiled += 1;
        }
    }
    Ok(spoiled)
}

fn scrubbed() -> Outcome {
    let set = Set::made(3, &["-d", "raid1", "-m", "raid1c3"])?;
    let file = content(40 * SECTOR);
    let source: PathBuf = set.dir.path().join("source");
    fs::write(&source, &file)?;
    let others = ["--device", set.at(1), "--device", set.at(2)];
    let target = format!("{}:/kept", set.at(0));
    run(&[
        &["cp", "-q"],
        &others[..],
        &[source.to_str().unwrap(), &target],
    ]
    .concat())?;
    let clean = set.scrub(&[])?;
    if !clean.status.success() {
        return Err(clean.all().into());
    }
    let spoiled = (0..3).map(|nth| spoil(set.at(nth), &file));
    let spoiled = spoiled.collect::<Result<Vec<_>, _>>()?;
    assert_eq!(spoiled.iter().sum::<usize>(), 2 * 40, "{spoiled:?}");
    // Both copies are gone: nothing repairs them.
    let lost = set.scrub(&["--read-only"])?;
    assert_eq!(lost.status.code(), Some(1), "{}", lost.all());
    assert!(
        lost.stdout.contains("kept: bytes 0 to 163840: LOST"),
        "{}",
        lost.all()
    );
    run(&[
        &["cp", "-q"],
        &others[..],
        &[source.to_str().unwrap(), &target],
    ]
    .concat())?;
    let one = (0..3)
        .find(|nth| spoil(set.at(*nth), &file).unwrap() > 0)
        .unwrap();
    let repaired = set.scrub(&["--json"])?;
    assert!(repaired.status.success(), "{}", repaired.all());
    let report: serde_json::Value = serde_json::from_str(&repaired.stdout)?;
    let device = &report["devices"][one];
    assert_eq!(
        (&device["data"], &device["lost"]),
        (&40.into(), &0.into()),
        "{report}"
    );
    assert_eq!(report["files"][0]["path"], "kept");
    set.by_kernel(|dir| assert!(fs::read(dir.join("kept")).unwrap() == file))?;
    set.command(&["check", "-q", "--check-data-csum"], "")?;
    Ok(())
}

fn degraded() -> Outcome {
    let set = Set::made(2, &["-d", "raid1", "-m", "raid1"])?;
    let first = Path::new(set.at(0));
    let missing = said(&["ls", set.at(0)])?;
    assert_eq!(missing.status.code(), Some(IMAGE), "{}", missing.all());
    let mount = SapwoodMount::new(first, "degraded")?;
    let file = content(3 << 20);
    fs::write(mount.path().join("alone"), &file)?;
    File::open(mount.path().join("alone"))?.sync_all()?;
    Box::new(mount).unmount()?;
    let stale = said(&["ls", "--device", set.at(1), set.at(0)])?;
    assert!(stale.stderr.contains("is stale"), "{}", stale.all());
    let listed = run(&["ls", "--degraded", set.at(0)])?;
    assert!(listed.contains("alone"), "{listed}");
    let scrubbed = set.scrub(&[])?;
    assert!(
        scrubbed.stdout.contains("it was stale"),
        "{}",
        scrubbed.all()
    );
    let listed = set.command(&["ls"], "")?;
    assert!(listed.contains("alone"), "{listed}");
    let other = run(&["cat", "--degraded", &format!("{}:/alone", set.at(1))]);
    assert!(other.is_ok(), "{other:?}");
    set.by_kernel(|dir| assert!(fs::read(dir.join("alone")).unwrap() == file))?;
    let few = Set::made(2, &["-d", "raid0", "-m", "raid1"])?;
    let refused = said(&["mkdir", "--degraded", &format!("{}:/dir", few.at(0))])?;
    let why = "profile raid0 needs 2 of its 2 devices, 1 are there";
    assert!(refused.stderr.contains(why), "{}", refused.all());
    Ok(())
}

/// A file, a clone of it, and a snapshot of both, by the kernel.
fn fill(dir: &Path) {
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    process::run("btrfs", &["subvolume", "create", &path("volume")]).unwrap();
    fs::write(path("volume/file"), content(20 << 20)).unwrap();
    fs::write(path("volume/text"), vec![b't'; 3 << 20]).unwrap();
    for nth in 0..100 {
        fs::write(path(&format!("volume/small{nth}")), content(nth)).unwrap();
    }
    let clone = [
        "--reflink=always",
        &path("volume/file"),
        &path("volume/clone"),
    ];
    process::run("cp", &clone).unwrap();
    let (volume, snapshot) = (path("volume"), path("snapshot"));
    process::run(
        "btrfs",
        &["subvolume", "snapshot", "-r", &volume, &snapshot],
    )
    .unwrap();
}

/// The content is there, and still shared as it was.
fn verify(dir: &Path) {
    for name in ["volume", "snapshot"] {
        let dir = dir.join(name);
        for file in ["file", "clone"] {
            assert!(
                fs::read(dir.join(file)).unwrap() == content(20 << 20),
                "{file}"
            );
        }
        assert!(fs::read(dir.join("text")).unwrap() == vec![b't'; 3 << 20]);
        for nth in 0..100 {
            assert!(fs::read(dir.join(format!("small{nth}"))).unwrap() == content(nth));
        }
    }
    let snapshot = dir.join("snapshot");
    let args = [
        "filesystem",
        "du",
        "-s",
        "--raw",
        snapshot.to_str().unwrap(),
    ];
    let used = process::run("btrfs", &args).unwrap();
    let numbers = used.lines().last().unwrap().split_whitespace();
    let numbers: Vec<u64> = numbers.filter_map(|word| word.parse().ok()).collect();
    let [_, exclusive, shared] = numbers[..] else {
        panic!("{used}");
    };
    assert_eq!((exclusive, shared >= 23 << 20), (0, true), "{used}");
}

/// A new, empty image next to the others.
fn blank(set: &Set, name: &str) -> Result<String, Box<dyn std::error::Error>> {
    let path = set.dir.path().join(name);
    File::create(&path)?.set_len(SIZE)?;
    Ok(path.to_str().unwrap().to_owned())
}

fn moved() -> Outcome {
    let mut set = Set::made(1, &[])?;
    set.by_kernel(fill)?;
    let (old, new) = (set.at(0).to_owned(), blank(&set, "new.img")?);
    run(&["device", "add", "-q", &old, &new])?;
    set.names.push(new.clone());
    set.by_kernel(verify)?;
    let mirrors = ["-d", "convert=raid1", "-m", "convert=raid1"];
    let balanced = run(&[&["balance", "--json"][..], &mirrors, &[&old, &new]].concat())?;
    let report: serde_json::Value = serde_json::from_str(&balanced)?;
    assert_eq!(report["chosen"], report["changed"], "{report}");
    set.command(&["check", "-q", "--check-data-csum"], "")?;
    set.by_kernel(verify)?;
    let usage = run(&["device", "usage", "--json", &old, &new])?;
    let usage: serde_json::Value = serde_json::from_str(&usage)?;
    for device in usage["devices"].as_array().unwrap() {
        let allocated = device["allocated"].as_array().unwrap();
        assert!(
            allocated.iter().all(|part| part["profile"] == "raid1"),
            "{usage}"
        );
    }
    let single = ["-f", "-d", "convert=single", "-m", "convert=dup"];
    run(&[&["balance", "-q"][..], &single, &[&old, &new]].concat())?;
    run(&["device", "remove", "-q", &old, &new, &old])?;
    let gone = said(&["ls", &old])?;
    assert_eq!(gone.status.code(), Some(IMAGE), "{}", gone.all());
    set.names = vec![new.clone()];
    set.by_kernel(verify)?;
    process::run("btrfs", &["check", "--check-data-csum", &new])?;
    Ok(())
}

fn replaced() -> Outcome {
    let mut set = Set::made(2, &["-d", "raid1", "-m", "raid1"])?;
    set.by_kernel(fill)?;
    let (left, new) = (set.at(0).to_owned(), blank(&set, "new.img")?);
    run(&["device", "add", "-q", "--degraded", &left, &new])?;
    run(&["device", "remove", "-q", &left, &new, "missing"])?;
    set.names = vec![left, new.clone()];
    set.command(&["check", "-q", "--check-data-csum"], "")?;
    set.by_kernel(verify)?;
    let other = run(&["ls", "--degraded", &new])?;
    assert!(other.contains("volume"), "{other}");
    Ok(())
}

/// A disk that is there, and one that is missing, are replaced by others of their ids.
fn in_place() -> Outcome {
    let mut set = Set::made(2, &["-d", "raid0", "-m", "raid1"])?;
    set.by_kernel(fill)?;
    let (left, old) = (set.at(0).to_owned(), set.at(1).to_owned());
    let new = blank(&set, "new.img")?;
    let told = run(&["device", "replace", &left, &old, &new])?;
    assert!(told.contains("is device 2 now"), "{told}");
    let gone = said(&["ls", &old])?;
    assert_eq!(gone.status.code(), Some(IMAGE), "{}", gone.all());
    set.names = vec![left.clone(), new.clone()];
    set.command(&["check", "-q", "--check-data-csum"], "")?;
    set.by_kernel(verify)?;
    let mirrors = ["-f", "-d", "convert=raid1", "-m", "convert=raid1"];
    run(&[&["balance", "-q"][..], &mirrors, &[&left, &new]].concat())?;
    let other = blank(&set, "other.img")?;
    run(&[
        "device",
        "replace",
        "-q",
        "--degraded",
        &left,
        "missing",
        &other,
    ])?;
    set.names = vec![left, other];
    set.command(&["check", "-q", "--check-data-csum"], "")?;
    set.by_kernel(verify)?;
    let small = set.dir.path().join("small.img");
    File::create(&small)?.set_len(SIZE / 2)?;
    let small = small.to_str().unwrap();
    let told = said(&["device", "replace", set.at(0), set.at(1), "1", small])?;
    assert_eq!(told.status.code(), Some(1), "{}", told.all());
    assert!(
        told.all().contains("replaces a device of"),
        "{}",
        told.all()
    );
    set.by_kernel(verify)?;
    Ok(())
}

fn refused() -> Outcome {
    let set = Set::made(2, &["-d", "raid1", "-m", "raid1"])?;
    let refused = |args: &[&str], code: i32, why: &str| -> Result<(), String> {
        let told = said(args)?;
        assert_eq!(told.status.code(), Some(code), "{args:?}: {}", told.all());
        assert!(told.stderr.contains(why), "{args:?}: {}", told.all());
        Ok(())
    };
    let (a, b) = (set.at(0), set.at(1));
    let c3 = ["balance", "-d", "convert=raid1c3", a, b];
    refused(
        &c3,
        1,
        "profile raid1c3 needs 3 devices, the file system has 2",
    )?;
    let fewer = ["balance", "-m", "convert=single", a, b];
    refused(&fewer, 1, "fewer copies of metadata")?;
    refused(
        &["balance", "-d", "convert=raid7", a, b],
        2,
        "not a profile",
    )?;
    refused(&["balance", a], IMAGE, "is missing")?;
    let one = ["device", "remove", a, b];
    refused(&one, 1, "profile raid1 needs 2 devices, 1 would be left")?;
    refused(&["device", "remove", a, b, "9"], 1, "has no device 9")?;
    refused(&["device", "add", a, b, b], 1, "in use")?;
    let other = Set::made(1, &[])?;
    refused(
        &["device", "add", a, b, other.at(0)],
        1,
        "contains a btrfs file system",
    )?;
    set.command(&["check", "-q"], "")?;
    other.command(&["check", "-q"], "")?;
    Ok(())
}

fn ext4() -> Outcome {
    let dir = scratch::directory();
    let image = dir.path().join("disk");
    let image = image.to_str().unwrap();
    run(&["mkfs", "-q", "-t", "ext4", "--size", "64M", image])?;
    let clean = said(&["scrub", image])?;
    assert!(clean.status.success(), "{}", clean.all());
    // The group descriptors have checksums.
    let file = File::options().write(true).open(image)?;
    for at in [2048, 4096] {
        file.write_all_at(&[0x77; 256], at)?;
    }
    let bad = said(&["scrub", image])?;
    assert!(!bad.status.success(), "{}", bad.all());
    Ok(())
}
