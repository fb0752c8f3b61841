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
const SIZE: u64 = 256 << 20;

pub(crate) fn trials() -> Vec<Trial> {
    let kernel = [machine::KERNEL, Need::Program("btrfs")];
    let both = [machine::KERNEL, Need::Program("btrfs"), Need::Fuse];
    vec![
        trial("made_filled_damaged_and_scrubbed", &kernel, scrubbed),
        trial("a_mount_without_a_device", &both, degraded),
        trial("a_scrub_of_ext4_reads_everything", &[], ext4),
    ]
}

fn said(args: &[&str]) -> Result<Said, String> {
    process::finish(Command::new(sapwood()).args(args), process::ORDINARY)
}

fn run(args: &[&str]) -> Result<String, String> {
    process::succeed(Command::new(sapwood()).args(args), process::ORDINARY)
}

/// Images in a directory of their own.
struct Set {
    dir: TempDir,
    names: Vec<String>,
}

impl Set {
    fn made(count: usize, options: &[&str]) -> Result<Self, String> {
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

    fn at(&self, nth: usize) -> &str {
        &self.names[nth]
    }

    /// A command on the first image, with the others as `--device`.
    fn command(&self, command: &[&str], place: &str) -> Result<String, String> {
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

    /// `work` in a mount by the kernel, which scrubs it afterwards without an error.
    fn by_kernel(&self, work: impl FnOnce(&Path)) -> Result<(), String> {
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
fn content(len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(len as u64);
    std::iter::repeat_with(|| random.u8(..)).take(len).collect()
}

/// Overwrites each sector of an image that the file has; their number.
fn spoil(image: &str, file: &[u8]) -> std::io::Result<usize> {
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
