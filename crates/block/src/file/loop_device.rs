//! Is a file mounted by the kernel through a loop device?
//!
//! `/sys/block/loopN/loop/backing_file` names the file behind each loop device (kernel
//! documentation, `sysfs-block-loop`). An attached but unmounted device is no conflict.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

/// True if a mounted loop device has the file of `stat` behind it. What cannot be found
/// out counts as not mounted.
pub(super) fn is_mounted_through_loop(stat: &Stat) -> bool {
    let Ok(entries) = fs::read_dir("/sys/block") else {
        return false;
    };
    entries
        .flatten()
        .filter(|entry| entry.file_name().as_bytes().starts_with(b"loop"))
        .filter(|entry| is_behind(&entry.path(), stat))
        .any(|entry| is_claimed(&Path::new("/dev").join(entry.file_name())))
}

/// Compares by device and inode, so hard links and other paths count too.
fn is_behind(sys_dir: &Path, stat: &Stat) -> bool {
    let Ok(mut name) = fs::read(sys_dir.join("loop/backing_file")) else {
        return false;
    };
    if name.last() == Some(&b'\n') {
        name.pop();
    }
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(&name));
    rustix::fs::stat(&path).is_ok_and(|s| (s.st_dev, s.st_ino) == (stat.st_dev, stat.st_ino))
}

/// True if the kernel holds the device for a mount (or anything else exclusive).
fn is_claimed(device: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    match rustix::fs::open(device, flags, Mode::empty()) {
        Ok(_) => false,
        Err(Errno::BUSY) => true,
        // Without permission to ask the device, the mount table must do.
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
