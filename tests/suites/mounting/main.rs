//! `sapwood mount` and `sapwood umount` as commands: remounts, second mounts, waiting, the end of
//! a daemon.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use sapwood::Kind;
use sapwood_testing::oracle::Loop;
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::machine::{self, Need};
use sapwood_tests::mount::{Mounted, SapwoodMount, sapwood};
use sapwood_tests::process::Said;
use sapwood_tests::{Outcome, process, scratch};
use tempfile::TempDir;

mod ends;
mod remounts;
mod second;
mod service;
mod trims;

fn trials() -> Vec<Trial> {
    let kernel = [machine::KERNEL, Need::Fuse];
    let block = [machine::KERNEL, machine::FUSE_BLK];
    let mut trials = vec![
        machine::trial("remount_ro_commits", &kernel, remount_ro),
        machine::trial("a_remount_keeps_other_flags", &kernel, remount_flags),
        machine::trial("auto_unmount_clears_a_dead_mount", &kernel, auto_unmount),
        machine::trial("umount_gives_up_in_time_and_says_why", &kernel, timeout),
        machine::trial("umount_waits_for_a_block_device", &kernel, block_device),
        machine::trial("a_second_mount_is_a_bind_mount", &kernel, second_mount),
        machine::trial("mount_says_what_does_not_wait", &block, words),
        machine::trial(
            "a_daemon_finds_what_relative_paths_name",
            &[Need::Fuse],
            relative_paths,
        ),
    ];
    for kind in [Kind::Btrfs, Kind::Ext4] {
        let name = format!("{}_a_listing_continues_at_any_offset", kind.name());
        let needs = [Need::Fuse];
        trials.push(machine::trial(name, &needs, move || any_offset(kind)));
    }
    trials.extend(service::trials());
    trials.extend(remounts::trials());
    trials.extend(second::trials());
    trials.extend(trims::trials());
    trials.extend(ends::trials());
    trials
}

/// A program may seek a directory to offsets that no listing returned: the listing continues with
/// the entry that follows, and never ends before the last one.
fn any_offset(kind: Kind) -> Outcome {
    let how = match kind {
        Kind::Btrfs => Mkfs::ours(""),
        Kind::Ext4 => Mkfs::ext4("").by_us(),
    };
    let image = TempImage::new(&how.sized(160 << 20))?;
    let mount = SapwoodMount::new(image.path(), "")?;
    let dir = mount.path().join("dir");
    fs::create_dir(&dir)?;
    for number in 0..300 {
        fs::write(dir.join(format!("entry-{number}")), "")?;
    }
    let open = fs::File::open(&dir)?;
    // The last offset is the directory's end; entries follow all others.
    let mut offsets = listed(&open)?;
    let last = offsets.pop().ok_or("an empty directory")?;
    let end = *offsets.last().ok_or("one entry")?;
    let mut random = fastrand::Rng::with_seed(24);
    for round in 0..2000_usize {
        let near = offsets[round % offsets.len()];
        let offset = match round % 3 {
            0 => random.u64(0..end),
            1 => near.saturating_sub(random.u64(1..100)),
            _ => (near + random.u64(1..100)).min(last - 1),
        };
        rustix::fs::seek(&open, rustix::fs::SeekFrom::Start(offset))?;
        let follow = listed(&open)?;
        let first = offsets.iter().chain([&last]).find(|next| **next > offset);
        // An offset that was returned stands for the entry after it.
        if follow.first() != first && !offsets.contains(&offset) {
            let text = format!(
                "at {offset:#x}: {:x?} follows, not {first:x?}",
                follow.first()
            );
            return Err(text.into());
        }
    }
    drop(open);
    Box::new(mount).unmount()?;
    Ok(())
}

/// The offsets after the entries of an open directory, from its current position.
fn listed(dir: &fs::File) -> Result<Vec<u64>, Errno> {
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut entries = rustix::fs::RawDir::new(dir, buffer.spare_capacity_mut());
    let mut offsets = Vec::new();
    while let Some(entry) = entries.next() {
        offsets.push(entry?.next_entry_cookie());
    }
    Ok(offsets)
}

/// The daemon changes its directory before it opens the devices.
fn relative_paths() -> Outcome {
    use sapwood_block::{FileDevice, OpenOptions};
    use sapwood_btrfs::mkfs::{MkfsOptions, mkfs_several};

    let (dir, point) = (scratch::directory(), scratch::directory());
    let device = |name: &str| {
        let path = dir.path().join(name);
        fs::File::create(&path)?.set_len(256 << 20)?;
        FileDevice::open(&path, OpenOptions::default()).map_err(std::io::Error::other)
    };
    let (first, second) = (device("a.img")?, device("b.img")?);
    mkfs_several(&[&first, &second], &MkfsOptions::default()).map_err(|e| e.to_string())?;
    drop((first, second));
    let run = |args: &[&std::ffi::OsStr]| {
        let mut command = Command::new(sapwood());
        command.current_dir(dir.path()).args(args);
        process::succeed(&mut command, process::ORDINARY)
    };
    let point = point.path().as_os_str();
    let mount = ["mount", "-q", "-o", "device=b.img", "a.img"];
    let mount: Vec<_> = mount.iter().map(std::ffi::OsStr::new).collect();
    run(&[&mount[..], &[point]].concat())?;
    let written = fs::write(Path::new(point).join("file"), "x");
    umount(Path::new(point))?;
    Ok(written?)
}

fn image() -> Result<TempImage, String> {
    TempImage::new(&Mkfs::default().sized(160 << 20))
}

/// Runs `sapwood` with these arguments to its end.
fn run<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Result<Said, String> {
    process::finish(Command::new(sapwood()).args(args), process::ORDINARY)
}

fn succeeds<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Result<Said, String> {
    let said = run(args)?;
    if said.status.success() {
        Ok(said)
    } else {
        Err(format!("{}: {}", said.status, said.stderr))
    }
}

/// A directory on which commands mount; detached in the end.
struct Point(TempDir);

impl Point {
    fn new() -> Self {
        Self(scratch::directory())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn is_mounted(&self) -> bool {
        !scratch::mounts_below(self.path()).is_empty()
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        while self.is_mounted() {
            if rustix::mount::unmount(self.path(), UnmountFlags::DETACH).is_err() {
                break;
            }
        }
    }
}

/// Mounts in the background.
fn mount(image: &Path, point: &Point, options: &str) -> Result<Said, String> {
    let args: [&std::ffi::OsStr; 5] = [
        "mount".as_ref(),
        "-o".as_ref(),
        options.as_ref(),
        image.as_os_str(),
        point.path().as_os_str(),
    ];
    succeeds(&args)
}

fn remount(point: &Path, options: &str) -> Result<Said, String> {
    let options = format!("remount,{options}");
    let args: [&std::ffi::OsStr; 4] = [
        "mount".as_ref(),
        "-o".as_ref(),
        options.as_ref(),
        point.as_os_str(),
    ];
    run(&args)
}

/// Seconds that `sapwood umount` waits: the mount namespaces of other tests have copies of the mount.
const PATIENT: &str = "--timeout=300";

fn umount(point: &Path) -> Result<Said, String> {
    succeeds(&["umount".as_ref(), PATIENT.as_ref(), point.as_os_str()])
}

fn remount_ro() -> Outcome {
    for options in ["commit=300", "commit=300,fuseblk=off"] {
        let image = image()?;
        let running = SapwoodMount::new(image.path(), options)?;
        let file = running.path().join("file");
        fs::write(&file, vec![7; 300_000])?;
        let said = remount(running.path(), "ro")?;
        if !said.status.success() {
            return Err(said.stderr.into());
        }
        if fs::write(&file, b"more").map_err(|error| error.raw_os_error()) != Err(Some(libc::EROFS))
        {
            return Err("still writable".into());
        }
        if !remount(running.path(), "rw")?.status.success() {
            return Err("not writable again".into());
        }
        fs::write(running.path().join("after"), b"later")?;
        running.kill();
        let again = SapwoodMount::new(image.path(), "rw")?;
        let kept = fs::read(again.path().join("file"))?;
        Box::new(again).unmount()?;
        if kept != vec![7; 300_000] {
            return Err(format!("{} bytes are left", kept.len()).into());
        }
    }
    Ok(())
}

fn remount_flags() -> Outcome {
    let image = image()?;
    let running = SapwoodMount::new(image.path(), "noexec,noatime")?;
    let said = remount(running.path(), "nodev,commit=9")?;
    let flags = process::run(
        "findmnt",
        &[
            "-no".as_ref(),
            "OPTIONS".as_ref(),
            running.path().as_os_str(),
        ],
    )?;
    Box::new(running).unmount()?;
    for flag in ["noexec", "noatime", "nodev"] {
        if !flags.contains(flag) {
            return Err(format!("{flag} is missing: {flags}").into());
        }
    }
    if said.status.success() && said.stderr.contains("commit=9") {
        Ok(())
    } else {
        Err(format!("{}: {}", said.status, said.stderr).into())
    }
}

fn auto_unmount() -> Outcome {
    for options in ["auto_unmount", "auto_unmount,fuseblk=off"] {
        let image = image()?;
        let mut running = SapwoodMount::new(image.path(), options)?;
        let point = running.path().to_owned();
        running.kill_daemon();
        let end = Instant::now() + Duration::from_secs(60);
        while !scratch::mounts_below(&point).is_empty() {
            if Instant::now() > end {
                return Err("the dead mount stays".into());
            }
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// Stops a process until dropped.
struct Stopped(String);

impl Stopped {
    fn new(process: u32) -> Result<Self, String> {
        let stopped = Self(process.to_string());
        process::run("kill", &["-STOP", &stopped.0])?;
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = process::run("kill", &["-CONT", &self.0]);
    }
}

fn timeout() -> Outcome {
    let image = image()?;
    let running = SapwoodMount::new(image.path(), "rw")?;
    let stopped = Stopped::new(running.daemon().ok_or("no daemon")?)?;
    let args = [
        "umount".as_ref(),
        "--timeout=1".as_ref(),
        running.path().as_os_str(),
    ];
    let said = run(&args)?;
    drop(stopped);
    Box::new(running).unmount()?;
    match (
        said.status.code(),
        said.stderr.contains("gave up waiting for the daemon"),
    ) {
        (Some(1), true) => Ok(()),
        (status, _) => Err(format!("{status:?}: {}", said.stderr).into()),
    }
}

/// A device is free, and complete, as soon as `sapwood umount` has returned.
fn block_device() -> Outcome {
    let image = image()?;
    let device = Loop::new(image.path(), &[])?;
    for round in 0..5_u8 {
        let point = Point::new();
        mount(device.path(), &point, "commit=300,fuseblk=off")?;
        fs::write(point.path().join("file"), vec![round; 3 << 20])?;
        umount(point.path())?;
        let flags = OFlags::RDONLY | OFlags::EXCL;
        let claimed = rustix::fs::open(device.path(), flags, Mode::empty());
        if claimed.map(drop) == Err(Errno::BUSY) {
            return Err(format!("round {round}: the device is in use").into());
        }
        let image = TempImage::copy(&image)?;
        image.check()?;
    }
    Ok(())
}

fn second_mount() -> Outcome {
    let image = image()?;
    for options in ["rw", "fuseblk=off"] {
        let (first, second) = (Point::new(), Point::new());
        mount(image.path(), &first, options)?;
        fs::write(first.path().join("file"), b"one")?;
        mount(image.path(), &second, "ro")?;
        if fs::read(second.path().join("file"))? != b"one" {
            return Err("another file system".into());
        }
        let written = fs::write(second.path().join("file"), b"two");
        if written.map_err(|error| error.raw_os_error()) != Err(Some(libc::EROFS)) {
            return Err("the second mount is not read-only".into());
        }
        fs::write(first.path().join("file"), b"two")?;
        umount(second.path())?;
        let other = Point::new();
        let Err(why) = mount(image.path(), &other, "commit=7") else {
            return Err("mounted with another option".into());
        };
        let there = first.path().display().to_string();
        if !why.contains(&there) || !why.contains("commit=7") {
            return Err(why.into());
        }
        umount(first.path())?;
        image.check()?;
    }
    Ok(())
}

fn words() -> Outcome {
    let image = image()?;
    for (options, quiet, line) in [
        ("fuseblk=off", false, true),
        ("fuseblk=off", true, false),
        ("rw", false, false),
        ("ro,fuseblk=off", false, false),
    ] {
        let point = Point::new();
        let mut command = Command::new(sapwood());
        command
            .args(["mount", "-o", options])
            .args(quiet.then_some("--quiet"));
        command.args([image.path(), point.path()]);
        let said = process::finish(&mut command, process::ORDINARY)?;
        umount(point.path())?;
        if said.stderr.contains("sapwood umount") != line {
            return Err(format!("-o {options}: {}", said.stderr).into());
        }
    }
    Ok(())
}

fn main() {
    machine::run(2, trials);
}
