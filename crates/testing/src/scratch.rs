//! Directories for images and mount points, and the removal of leftovers of a killed run.
//!
//! Every directory's name has the id of the process that made it. [`sweep`] finds directories whose
//! process has ended, unmounts file systems in them, detaches loop devices on their images, and
//! deletes them.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

const PREFIX: &str = "sapwood-tests-";

/// A new directory that is removed with its guard.
#[must_use]
pub fn directory() -> TempDir {
    let prefix = format!("{PREFIX}{}-", std::process::id());
    let dir = tempfile::Builder::new().prefix(&prefix).tempdir();
    dir.expect("a temporary directory")
}

/// A file system in memory that becomes full: writes to an image on it fail. Needs root.
#[derive(Debug)]
pub struct SmallHost(TempDir);

impl SmallHost {
    /// A tmpfs of this size.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub fn new(mebibytes: u32) -> std::io::Result<Self> {
        let dir = directory();
        let size = std::ffi::CString::new(format!("size={mebibytes}M"))?;
        rustix::mount::mount(
            "none",
            dir.path(),
            "tmpfs",
            MountFlags::empty(),
            size.as_c_str(),
        )?;
        Ok(Self(dir))
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Enlarges it.
    ///
    /// # Errors
    /// The kernel refuses the remount.
    pub fn grow(&self) -> std::io::Result<()> {
        let path = self.0.path();
        Ok(rustix::mount::mount_remount(
            path,
            MountFlags::empty(),
            "size=1G",
        )?)
    }
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

/// Unmounts, detaches and deletes leftovers of runs that were killed.
pub fn sweep() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let owner = owner.and_then(|rest| rest.split('-').next());
        let Some(owner) = owner.and_then(|id| id.parse::<u32>().ok()) else {
            continue;
        };
        if !Path::new(&format!("/proc/{owner}")).exists() {
            clear(&entry.path());
        }
    }
}

/// Unmounts everything below `dir`, detaches its loop devices and deletes it.
fn clear(dir: &Path) {
    for mounted in mounts_below(dir).iter().rev() {
        let _ = rustix::mount::unmount(mounted, UnmountFlags::DETACH);
    }
    for device in loops_below(dir) {
        let _ = Command::new("losetup").arg("-d").arg(device).status();
    }
    if mounts_below(dir).is_empty() {
        let _ = fs::remove_dir_all(dir);
    }
}

/// Mount points below `dir`, in the order in which they were mounted.
#[must_use]
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let lines = table.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    let points = points.map(|point| PathBuf::from(unescaped(point)));
    points.filter(|point| point.starts_with(dir)).collect()
}

/// A field of the mount table: blanks and backslashes in it are three octal digits.
fn unescaped(field: &[u8]) -> OsString {
    let mut bytes = Vec::new();
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let code =
            digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = code.map_or(after, |_| &after[3..]);
    }
    OsString::from_vec(bytes)
}

fn loops_below(dir: &Path) -> Vec<PathBuf> {
    let args = ["--list", "--noheadings", "--output", "NAME,BACK-FILE"];
    let Ok(listing) = Command::new("losetup").args(args).output() else {
        return Vec::new();
    };
    let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
    let pairs = listing
        .lines()
        .filter_map(|line| line.split_once(char::is_whitespace));
    pairs
        .filter(|(_, file)| Path::new(file.trim()).starts_with(dir))
        .map(|(device, _)| PathBuf::from(device))
        .collect()
}
