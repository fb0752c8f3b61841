//! The error of a refused open names the user of the image.
//!
//! The tests are a program of their own, because a process that another test has just forked would
//! also be a holder until it executes its program.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::{Mode, OFlags};
use sapwood_block::{Error, FileDevice, Holder, OpenOptions, Process, Server};
use sapwood_testing::machine::{HOLDERS, Need, left_out};
use sapwood_testing::oracle::{KernelMount, Kind, Loop};
use sapwood_testing::process;
use tempfile::TempDir;

const SIZE: u64 = 128 << 20;

/// A directory with an image in it.
struct TempImage(TempDir);

impl TempImage {
    fn new() -> Self {
        let image = Self(tempfile::tempdir().unwrap());
        drop(FileDevice::create(image.path(), SIZE).unwrap());
        image
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("image")
    }

    fn attached(&self, args: &[&str]) -> Loop {
        Loop::new(&self.path(), args).unwrap()
    }
}

/// The holder of an image that cannot be opened for writing, and the message.
fn refusal(path: &Path) -> (Holder, String) {
    match FileDevice::open(path, OpenOptions::default()) {
        Err(Error::Busy {
            holder,
            device,
            through,
        }) => {
            let message = Error::Busy {
                holder: holder.clone(),
                device,
                through,
            }
            .to_string();
            (*holder, message)
        }
        other => panic!("not busy: {other:?}"),
    }
}

/// A process that has a file open until it is dropped, with the name of its program.
struct Other(Child, &'static str);

impl Other {
    /// A program that writes a line once it has the file open.
    fn start(command: &mut Command, name: &'static str) -> Self {
        use std::io::BufRead;

        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        let mut line = String::new();
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "open\n");
        Self(child, name)
    }

    /// A shell that has locked the file with `flock`.
    fn locking(path: &Path) -> Self {
        let script = "exec 9<>\"$1\"; flock 9; echo open; read end";
        Self::start(
            Command::new("sh").args(["-c", script, "sh"]).arg(path),
            "sh",
        )
    }

    fn process(&self) -> Process {
        Process {
            id: self.0.id(),
            name: self.1.to_owned(),
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn own() -> u32 {
    std::process::id()
}

fn claim(device: &Path) -> OwnedFd {
    rustix::fs::open(
        device,
        OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .unwrap()
}

#[test]
fn a_process_that_locked_the_file_is_named() {
    if left_out(&[HOLDERS, Need::Program("flock")]) {
        return;
    }
    let image = TempImage::new();
    let other = Other::locking(&image.path());
    // The image has other names too.
    let link = image.0.path().join("link");
    std::fs::hard_link(image.path(), &link).unwrap();
    let (holder, message) = refusal(&link);
    assert_eq!(holder, Holder::Program(other.process()));
    let wanted = format!(
        "{}: in use by sh (process {})",
        link.display(),
        other.0.id()
    );
    assert_eq!(message, wanted);
    drop(other);
    FileDevice::open(&link, OpenOptions::default()).unwrap();
}

#[test]
fn this_process_is_named() {
    if left_out(&[HOLDERS]) {
        return;
    }
    let image = TempImage::new();
    // An open without a lock is not in the way, and is not named.
    let _open = File::open(image.path()).unwrap();
    let _device = FileDevice::open(image.path(), OpenOptions::read_only()).unwrap();
    let (holder, message) = refusal(&image.path());
    assert!(matches!(holder, Holder::Program(Process { id, .. }) if id == own()));
    assert!(message.ends_with(": in use by this process"), "{message}");
}

#[test]
fn a_mount_of_the_kernel_is_named() {
    if left_out(&[HOLDERS, Need::Kernel(Kind::Btrfs), Need::Kernel(Kind::Ext4)]) {
        return;
    }
    for kind in [Kind::Ext4, Kind::Btrfs] {
        let image = TempImage::new();
        kind.format(&image.path(), &[]).unwrap();
        let attached = image.attached(&[]);
        let dir = tempfile::tempdir().unwrap();
        let device = attached.path();
        let mount = KernelMount::of_device(device, kind.name(), "rw", dir.path()).unwrap();
        let wanted = Holder::Mount {
            point: dir.path().to_owned(),
            server: Server::Kernel(kind.name().to_owned()),
            namespace: None,
        };
        for path in [device, &image.path()] {
            let (holder, message) = refusal(path);
            assert_eq!(holder, wanted);
            let end = format!(
                " by the mount on {} ({} of the kernel)",
                dir.path().display(),
                kind.name()
            );
            assert!(message.ends_with(&end), "{message}");
        }
        mount.unmount().unwrap();
    }
}

#[test]
fn every_device_of_a_mounted_btrfs_leads_to_its_mount() {
    if left_out(&[HOLDERS, Need::Kernel(Kind::Btrfs)]) {
        return;
    }
    let images = [TempImage::new(), TempImage::new()];
    let attached = images.each_ref().map(|image| image.attached(&[]));
    let [first, second] = attached
        .each_ref()
        .map(|attached| attached.path().to_str().unwrap());
    process::run("mkfs.btrfs", &["-q", first, second]).unwrap();
    process::run("btrfs", &["device", "scan", first, second]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mount = KernelMount::of_device(first.as_ref(), "btrfs", "rw", dir.path()).unwrap();
    for device in [first, second] {
        let (holder, _) = refusal(device.as_ref());
        assert!(matches!(holder, Holder::Mount { point, .. } if point == dir.path()));
    }
    mount.unmount().unwrap();
    process::run("btrfs", &["device", "scan", "--forget", first, second]).unwrap();
}

#[test]
fn a_mount_of_a_partition_is_named() {
    if left_out(&[HOLDERS, Need::Kernel(Kind::Ext4), Need::Program("sfdisk")]) {
        return;
    }
    let image = TempImage::new();
    let table = "label: gpt\nsize=64MiB\n";
    let script = "printf '%s' \"$1\" | sfdisk --quiet --no-reread --no-tell-kernel \"$2\"";
    let path = image.path();
    process::run("sh", &["-c", script, "sh", table, path.to_str().unwrap()]).unwrap();
    let attached = image.attached(&["--partscan"]);
    let part = format!("{}p1", attached.path().display());
    if !Path::new(&part).exists() {
        sapwood_testing::machine::note(None, "no device nodes of partitions");
        return;
    }
    process::run("mke2fs", &["-q", "-t", "ext4", &part]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mount = KernelMount::of_device(part.as_ref(), "ext4", "rw", dir.path()).unwrap();
    for path in [Path::new(&part), attached.path(), &image.path()] {
        let (holder, _) = refusal(path);
        assert!(matches!(holder, Holder::Mount { point, .. } if point == dir.path()));
    }
    mount.unmount().unwrap();
}

/// Swap space on a device, until it is dropped.
struct Swap<'a>(&'a str);

impl Drop for Swap<'_> {
    fn drop(&mut self) {
        let done = process::run("swapoff", &[self.0]);
        assert!(done.is_ok() || std::thread::panicking(), "{done:?}");
    }
}

#[test]
fn swap_space_is_named() {
    if left_out(&[
        HOLDERS,
        Need::Loop,
        Need::Program("mkswap"),
        Need::Program("swapon"),
    ]) {
        return;
    }
    let image = TempImage::new();
    let attached = image.attached(&[]);
    let device = attached.path().to_str().unwrap();
    process::run("mkswap", &[device]).unwrap();
    if let Err(why) = process::run("swapon", &["--priority", "0", device]) {
        sapwood_testing::machine::note(None, &why);
        return;
    }
    let swap = Swap(device);
    let (holder, message) = refusal(device.as_ref());
    drop(swap);
    assert_eq!(holder, Holder::Swap);
    assert_eq!(message, format!("{device}: in use as swap space"));
}

#[test]
fn a_program_that_has_the_claimed_device_open_is_named() {
    if left_out(&[HOLDERS, Need::Loop]) {
        return;
    }
    let image = TempImage::new();
    let attached = image.attached(&[]);
    let claimed = claim(attached.path());
    let (holder, message) = refusal(attached.path());
    assert!(
        matches!(holder, Holder::Opener(Process { id, .. }) if id == own()),
        "{holder:?}"
    );
    assert!(
        message.ends_with(": in use; this process has it open"),
        "{message}"
    );
    drop(claimed);
    // An open by Sapwood counts as a lock, which is visible.
    let device = FileDevice::open(attached.path(), OpenOptions::default()).unwrap();
    for path in [attached.path(), &image.path()] {
        let (holder, _) = refusal(path);
        assert!(matches!(holder, Holder::Program(Process { id, .. }) if id == own()));
    }
    drop(device);
}
