//! The search for the user of an image, for the message of a refused open.
//!
//! # How it works
//!
//! - `target.rs` collects all names of the image's bytes: the file, loop devices over it,
//!   partitions, devices on top of these. So a holder of any of them is found.
//! - `process.rs` searches the descriptors of all processes for locks on them (`/proc/PID/fdinfo`,
//!   proc(5)).
//! - Mounts are searched in the mount namespace of this process, then in all others.
//!
//! The search happens after the refusal, so a holder that ends meanwhile is not found. No part of
//! it sends a request to a file system only to learn about an open file: such a request could wait
//! for a dead server.
//!
//! Limits: the kernel does not show which open of a block device claimed it ([`Holder::Opener`]). A
//! process in another PID namespace, or on another host, is not found.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};

use super::mount_table::table_of;
use super::process::{self, Processes};
use super::target::{self, Target};
use crate::holder::{Holder, MountElsewhere, MountEntry, Process, Server, printable};

/// Searches for the user of the file or block device of `stat`.
pub(super) fn holder_of(stat: &Stat) -> Holder {
    let target = Target::of(stat);
    let processes = Processes::with(&target);
    mount(&target, &processes)
        .or_else(|| target.is_swap().then_some(Holder::Swap))
        .or_else(|| target.device_on_top().map(Holder::Device))
        .or_else(|| processes.lockers.first().cloned().map(Holder::Program))
        .or_else(|| {
            let is_block = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
            let opener = processes.openers.first().filter(|_| is_block);
            opener.cloned().map(Holder::Opener)
        })
        .unwrap_or(if processes.hidden {
            Holder::Hidden
        } else {
            Holder::Unknown
        })
}

/// The first mount of the image: by Sapwood, else by the kernel.
fn mount(target: &Target, processes: &Processes) -> Option<Holder> {
    // A mount of Sapwood without a daemon is dead.
    let served = processes.hidden || !processes.daemons.is_empty();
    let mut of_the_kernel = None;
    for (namespace, root) in namespaces() {
        let table = table_of(&root).unwrap_or_default();
        let root = root.join("root");
        for entry in table {
            let mount = |server, entry: MountEntry| Holder::Mount {
                point: entry.point,
                server,
                namespace: namespace.clone(),
            };
            if entry.is_ours() {
                if served && is_source(target, &root, &entry.source) {
                    let daemon = processes.daemons.first().cloned();
                    return Some(mount(Server::Sapwood(daemon), entry));
                }
            } else if of_the_kernel.is_none() && is_on(target, &root, &entry) {
                let kind = printable(&entry.kind.to_string_lossy());
                of_the_kernel = Some(mount(Server::Kernel(kind), entry));
            }
        }
    }
    of_the_kernel
}

/// A process of each mount namespace, with its directory in `/proc`. The first is the namespace of
/// this process, which is not named.
fn namespaces() -> Vec<(Option<Process>, PathBuf)> {
    let namespace = |dir: &Path| std::fs::read_link(dir.join("ns/mnt"));
    let own = PathBuf::from("/proc/self");
    let mut seen: BTreeSet<PathBuf> = namespace(&own).into_iter().collect();
    let mut found = vec![(None, own)];
    for (id, dir) in process::directories() {
        if namespace(&dir).is_ok_and(|other| seen.insert(other)) {
            found.push((Some(Process::new(id)), dir));
        }
    }
    found
}

/// The other mount namespaces that have the file system of `entry` mounted: one mount of each. A
/// namespace without a process is not found, nor one whose processes this one may not examine.
#[must_use]
pub fn mounted_elsewhere(entry: &MountEntry) -> Vec<MountElsewhere> {
    let same = |other: &MountEntry| other.device == entry.device && other.kind == entry.kind;
    let others = namespaces().into_iter();
    others
        .filter_map(|(process, root)| {
            let process = process?;
            let table = table_of(&root).ok()?;
            let point = table.into_iter().find(same)?.point;
            Some(MountElsewhere { process, point })
        })
        .collect()
}

/// Whether the source of a mount of Sapwood, below `root`, is the image. A part of an image may
/// follow its name.
fn is_source(target: &Target, root: &Path, source: &std::ffi::OsStr) -> bool {
    let bytes = source.as_bytes();
    let marks = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'#');
    let ends = std::iter::once(bytes.len()).chain(marks.map(|(at, _)| at));
    ends.filter_map(|end| bytes.get(..end))
        .any(|name| target.is_at(&below(root, name)))
}

/// Whether the kernel has mounted a device of the image. A btrfs mount does not have the device
/// number of its block device.
fn is_on(target: &Target, root: &Path, entry: &MountEntry) -> bool {
    let (major, minor) = entry.device;
    let is_mounted = |device| target.mountable().contains(&device);
    is_mounted(rustix::fs::makedev(major, minor))
        || entry.kind == "btrfs"
            && target::device_at(&below(root, entry.source.as_bytes())).is_some_and(is_mounted)
}

/// The path of an absolute name below a root directory.
fn below(root: &Path, name: &[u8]) -> PathBuf {
    let name = name.strip_prefix(b"/").unwrap_or(name);
    root.join(std::ffi::OsStr::from_bytes(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_an_image_follows_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a#b");
        std::fs::write(&path, "").unwrap();
        let target = Target::of(&rustix::fs::stat(&path).unwrap());
        let is_source = |text: &str| {
            let source = path.as_os_str().to_owned().into_string().unwrap() + text;
            is_source(&target, Path::new("/"), source.as_ref())
        };
        assert!(is_source("") && is_source("#1") && is_source("#x#y,format=raw"));
        assert!(!is_source("c") && !is_source("/c"));
    }
}
