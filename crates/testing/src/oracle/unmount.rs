//! Unmounting a mount of the kernel.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Number of tries, one every twentieth of a second.
const TRIES: u32 = 1200;
const PAUSE: Duration = Duration::from_millis(50);

/// Unmounts the kernel's mount at `at`, and returns when its file system is gone and its image is
/// complete.
///
/// On a busy machine, two things can delay this. First, a child that another test forks has a copy
/// of that test's descriptors until it executes its program: the mount is busy. Second, a process
/// that got a mount namespace of its own in the meantime has a copy of the mount: `umount`
/// succeeds, but the kernel keeps the file system mounted until that namespace ends. A loop device
/// that mount(8) attached stays attached as long.
///
/// # Errors
/// The last output of `umount` with the processes that have the directory open; or that the file
/// system is still mounted in another namespace.
pub fn unmount(at: &Path) -> Result<(), String> {
    let image = backing_file(at);
    let mut left = TRIES;
    loop {
        let output = Command::new("umount").arg(at).output();
        let output = output.map_err(|error| format!("umount: {error}"))?;
        if output.status.success() {
            break;
        }
        left -= 1;
        if left == 0 {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{text}open in: {}", holders(at)));
        }
        thread::sleep(PAUSE);
    }
    let Some((attribute, image)) = image else {
        return Ok(());
    };
    for _ in 0..TRIES {
        let now = fs::read(&attribute).unwrap_or_default();
        if now.trim_ascii_end() != image {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
    let image = String::from_utf8_lossy(&image);
    Err(format!(
        "{image} is unmounted here and still mounted in another namespace"
    ))
}

/// The sysfs attribute with the backing file of the loop device that is mounted at `at`, and that
/// file's name, if mount(8) attached the device and the kernel detaches it with the file system.
fn backing_file(at: &Path) -> Option<(PathBuf, Vec<u8>)> {
    let device = mounted_device(at)?;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let loop_device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/loop"));
    let clears_itself = fs::read(loop_device.join("autoclear")).ok()?;
    let attribute = loop_device.join("backing_file");
    let image = fs::read(&attribute).ok()?;
    (clears_itself.trim_ascii() == b"1").then(|| (attribute, image.trim_ascii_end().to_vec()))
}

/// The block device of the mount at `at`. The device number of a btrfs file is not a block
/// device's, so the name in the mount table decides.
fn mounted_device(at: &Path) -> Option<u64> {
    let table = fs::read("/proc/self/mountinfo").ok()?;
    let at = fs::canonicalize(at).ok()?;
    let line = table
        .split(|byte| *byte == b'\n')
        .rfind(|line| line.split(|byte| *byte == b' ').nth(4) == Some(at.as_os_str().as_bytes()))?;
    let mut words = line.split(|byte| *byte == b' ');
    words.find(|word| *word == b"-")?;
    let source = words.nth(1)?;
    let metadata = fs::metadata(OsStr::from_bytes(source)).ok()?;
    (metadata.mode() & 0o170_000 == 0o060_000).then(|| metadata.rdev())
}

/// Processes that have a file below `at` open, with their names.
fn holders(at: &Path) -> String {
    let Ok(at) = fs::canonicalize(at) else {
        return String::new();
    };
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let links = ["cwd", "root", "exe"].map(|name| process.path().join(name));
        let open = fs::read_dir(process.path().join("fd"));
        let open = open.into_iter().flatten().flatten();
        let mut paths = links.into_iter().chain(open.map(|entry| entry.path()));
        if paths.any(|path| fs::read_link(path).is_ok_and(|target| target.starts_with(&at))) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            let id = process.file_name();
            found.push(format!("{} ({})", id.display(), name.trim_end()));
        }
    }
    found.join(", ")
}
