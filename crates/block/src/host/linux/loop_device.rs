//! Conflicts between opens of an image and of loop devices over it, which give access to the same
//! bytes.
//!
//! # How it works
//!
//! - A read-write open of a file searches for loop devices over it that are in use: mounted by the
//!   kernel, opened exclusively, or open in QEMU ([`user_of`]). It finds them in
//!   `/sys/block/loopN/loop` (kernel documentation, `sysfs-block-loop`), and compares device and
//!   inode, so that hard links, other paths and other mount namespaces make no difference.
//! - An open of a loop device locks the file below it, as an open of that file would
//!   ([`backing_file`]). So an open of either excludes the other, in both orders.
//! - A loop device that ends before the first superblock gives no access to the file system and
//!   does not count. Mounts of `sapwood-fuse` have such devices.
//!
//! Limits: the kernel ignores `flock`, so it mounts a loop device that was attached by hand over an
//! image in use here. If a device cannot be examined because this process may not open it, it
//! counts as not in use.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, Stat};
use rustix::io::Errno;

use super::claim::open_exclusive;
use super::target::backing_name;
use super::{calls, qemu_lock};

/// Start of the first superblock (ext4), in bytes.
const FIRST_SUPERBLOCK: u64 = 1024;

/// Major number of loop devices.
const MAJOR: u32 = 7;

/// The kernel's description of a loop device.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoopTarget {
    /// Major and minor number of the device that contains the file below it.
    pub(super) device: (u32, u32),
    /// Inode number of that file.
    pub(super) inode: u64,
    /// Major and minor number of the block device below it; zeros if there is a file.
    pub(super) block_device: (u32, u32),
    /// Start in the file, in bytes.
    pub(super) offset: u64,
    /// Size in bytes; 0 means to the end of the file.
    pub(super) size_limit: u64,
}

/// A loop device over the file or block device of `stat` that is in use, if there is one. Loop
/// device number `except` is ignored.
pub(super) fn user_of(stat: &Stat, except: Option<u32>) -> Option<PathBuf> {
    let entries = fs::read_dir("/sys/block").ok()?;
    entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let number: u32 = name.to_str()?.strip_prefix("loop")?.parse().ok()?;
            (Some(number) != except).then(|| (entry.path(), Path::new("/dev").join(name)))
        })
        .filter(|(sys_dir, device)| leads_to(sys_dir, device, stat))
        .map(|(_, device)| device)
        .find(|device| is_claimed(device))
}

/// The file below the open block device of `stat`, with its path, if the device is a loop device.
pub(super) fn backing_file(device: &File, stat: &Stat) -> Option<(File, PathBuf)> {
    if rustix::fs::major(stat.st_rdev) != MAJOR {
        return None;
    }
    let target = calls::loop_target(device).ok()?;
    let number = rustix::fs::minor(stat.st_rdev);
    let name = backing_name(Path::new(&format!("/sys/block/loop{number}")))?;
    let found = rustix::fs::stat(&name).ok()?;
    // The path may be from another mount namespace, or of a deleted file.
    if !is_same(&target, &found) {
        return None;
    }
    Some((File::open(&name).ok()?, name))
}

/// Whether the loop device `device` gives access to a file system in the file of `stat`.
fn leads_to(sys_dir: &Path, device: &Path, stat: &Stat) -> bool {
    let Some(name) = backing_name(sys_dir) else {
        return false;
    };
    if let Ok(target) = File::open(device).and_then(|device| Ok(calls::loop_target(&device)?)) {
        return reaches(target.offset, target.size_limit) && is_same(&target, stat);
    }
    // If the device cannot be opened, sysfs and the path are used instead.
    let number = |file: &str| -> u64 {
        let text = fs::read_to_string(sys_dir.join("loop").join(file)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    let found = rustix::fs::stat(&name);
    reaches(number("offset"), number("sizelimit"))
        && found.is_ok_and(|found| (found.st_dev, found.st_ino) == (stat.st_dev, stat.st_ino))
}

/// Whether a loop device over `size_limit` bytes (0: all) from `offset` on contains a superblock.
fn reaches(offset: u64, size_limit: u64) -> bool {
    size_limit == 0 || offset.saturating_add(size_limit) > FIRST_SUPERBLOCK
}

/// Whether the file or block device of `stat` is below the loop device.
fn is_same(target: &LoopTarget, stat: &Stat) -> bool {
    use rustix::fs::{FileType, major, minor};

    let number = |device| (major(device), minor(device));
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        return target.block_device == number(stat.st_rdev);
    }
    (target.device, target.inode) == (number(stat.st_dev), stat.st_ino)
}

/// True if the kernel holds the device for a mount (or another exclusive use), or QEMU uses it.
fn is_claimed(device: &Path) -> bool {
    match open_exclusive(device, OFlags::RDONLY) {
        Ok(device) => qemu_lock::is_locked(&File::from(device)),
        Err(Errno::BUSY) => true,
        // If the device cannot be opened, the mount table is used instead.
        Err(_) => is_in_mount_table(device),
    }
}

fn is_in_mount_table(device: &Path) -> bool {
    let Ok(table) = fs::read_to_string("/proc/self/mounts") else {
        return false;
    };
    table
        .lines()
        .filter_map(|line| line.split(' ').next())
        .any(|source| Path::new(source) == device)
}
