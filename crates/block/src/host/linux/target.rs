//! [`Target`]: the file and the block devices through which the bytes of an image are reached.
//!
//! Facts about sysfs are from the kernel's documentation (`sysfs-block`, `sysfs-block-loop`,
//! `sysfs-fs-btrfs`).

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dev, FileType, Stat, StatxFlags, major, makedev, minor};

/// An image: a file, or block devices.
#[derive(Debug, Default)]
pub(super) struct Target {
    /// Device and inode number of the file.
    file: Option<(Dev, u64)>,
    /// Block devices whose opens exclude each other: a device, its partitions, its disk, loop
    /// devices over the file.
    devices: BTreeSet<Dev>,
    /// `devices`, the devices on top of them, and the other devices of a btrfs.
    mountable: BTreeSet<Dev>,
}

impl Target {
    /// The image of `stat`.
    pub(super) fn of(stat: &Stat) -> Self {
        let mut target = Self::default();
        if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
            target.add(stat.st_rdev);
            let below = backing_name(&dir(stat.st_rdev)).and_then(|name| identity(&name));
            target.file = below.and_then(Identity::file);
        } else {
            target.file = Some((stat.st_dev, stat.st_ino));
            for (device, file) in loop_devices() {
                if identity(&file).and_then(Identity::file) == target.file {
                    target.add(device);
                }
            }
        }
        target.mountable = target.devices.clone();
        target.add_devices_on_top();
        target.add_devices_of_btrfs();
        target
    }

    /// Adds a block device, and its partitions or its whole disk.
    fn add(&mut self, device: Dev) {
        let dir = dir(device);
        self.devices.insert(device);
        if dir.join("partition").exists() {
            self.devices.extend(
                fs::canonicalize(&dir)
                    .ok()
                    .and_then(|dir| number(dir.parent()?)),
            );
        }
        let parts = entries(&dir)
            .into_iter()
            .filter(|part| part.join("partition").exists());
        self.devices.extend(parts.filter_map(|part| number(&part)));
    }

    fn add_devices_on_top(&mut self) {
        let mut next: Vec<Dev> = self.mountable.iter().copied().collect();
        while let Some(device) = next.pop() {
            let above = entries(&dir(device).join("holders"));
            for device in above.iter().filter_map(|above| number(above)) {
                if self.mountable.insert(device) {
                    next.push(device);
                }
            }
        }
    }

    /// Adds the other devices of a btrfs that the kernel has mounted: the mount table names one.
    fn add_devices_of_btrfs(&mut self) {
        for volume in entries(Path::new("/sys/fs/btrfs")) {
            let devices = entries(&volume.join("devices"));
            let devices: BTreeSet<Dev> = devices.iter().filter_map(|dir| number(dir)).collect();
            if !devices.is_disjoint(&self.mountable) {
                self.mountable.extend(devices);
            }
        }
    }

    /// Devices that a mount of the image could be on.
    pub(super) fn mountable(&self) -> &BTreeSet<Dev> {
        &self.mountable
    }

    /// Whether `path` is the file, or one of the devices.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        identity(path).is_some_and(|found| match found {
            Identity::File(..) => found.file() == self.file,
            Identity::Device(device) => self.devices.contains(&device),
        })
    }

    /// Whether the kernel swaps to one of the devices.
    pub(super) fn is_swap(&self) -> bool {
        let table = fs::read_to_string("/proc/swaps").unwrap_or_default();
        let names = table
            .lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().next());
        names
            .filter_map(|name| device_at(Path::new(name)))
            .any(|device| self.devices.contains(&device))
    }

    /// The name of a block device on top of one of the devices.
    pub(super) fn device_on_top(&self) -> Option<String> {
        let above = self
            .devices
            .iter()
            .flat_map(|device| entries(&dir(*device).join("holders")));
        let above = above.into_iter().next()?;
        let name = above.file_name()?.to_string_lossy().into_owned();
        Some(match fs::read_to_string(above.join("dm/name")) {
            Ok(label) => format!("{name} ({})", label.trim_end()),
            Err(_) => name,
        })
    }
}

/// Identity of the file at a path.
#[derive(Debug, Clone, Copy)]
enum Identity {
    File(Dev, u64),
    Device(Dev),
}

impl Identity {
    fn file(self) -> Option<(Dev, u64)> {
        match self {
            Self::File(device, inode) => Some((device, inode)),
            Self::Device(_) => None,
        }
    }
}

/// Identity of the file at `path`. Sends no request to the server of a file system, which may be
/// stuck.
fn identity(path: &Path) -> Option<Identity> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(CWD, path, flags, StatxFlags::TYPE | StatxFlags::INO).ok()?;
    Some(match FileType::from_raw_mode(found.stx_mode.into()) {
        FileType::BlockDevice => {
            Identity::Device(makedev(found.stx_rdev_major, found.stx_rdev_minor))
        }
        _ => Identity::File(
            makedev(found.stx_dev_major, found.stx_dev_minor),
            found.stx_ino,
        ),
    })
}

/// The block device to which `path` leads.
pub(super) fn device_at(path: &Path) -> Option<Dev> {
    match identity(path)? {
        Identity::Device(device) => Some(device),
        Identity::File(..) => None,
    }
}

/// Path of the file below the loop device of a directory in sysfs; `None` if none is attached.
pub(crate) fn backing_name(sys_dir: &Path) -> Option<PathBuf> {
    let mut name = fs::read(sys_dir.join("loop/backing_file")).ok()?;
    if name.last() == Some(&b'\n') {
        name.pop();
    }
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(&name)))
}

/// All loop devices in use, with the paths of their files.
fn loop_devices() -> impl Iterator<Item = (Dev, PathBuf)> {
    let devices = entries(Path::new("/sys/block")).into_iter();
    devices.filter_map(|dir| Some((number(&dir)?, backing_name(&dir)?)))
}

/// A block device's directory in sysfs.
fn dir(device: Dev) -> PathBuf {
    PathBuf::from(format!(
        "/sys/dev/block/{}:{}",
        major(device),
        minor(device)
    ))
}

/// The device number in a block device's directory in sysfs.
fn number(dir: &Path) -> Option<Dev> {
    let text = fs::read_to_string(dir.join("dev")).ok()?;
    let (major, minor) = text.trim_end().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// The entries of a directory; none if it cannot be read.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}
