//! Processes that have an image open.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::target::Target;
use crate::holder::Process;

impl Process {
    pub(super) fn new(id: u32) -> Self {
        let name = fs::read(format!("/proc/{id}/comm")).unwrap_or_default();
        let name = String::from_utf8_lossy(name.trim_ascii_end()).into_owned();
        Self { id, name }
    }
}

/// Processes that have an image open. This process comes first, then the lowest number.
#[derive(Debug, Default)]
pub(super) struct Processes {
    /// Processes with a lock on it.
    pub(super) lockers: Vec<Process>,
    /// Lockers that serve a FUSE mount.
    pub(super) daemons: Vec<Process>,
    /// Processes that opened it as a block device, without a visible lock.
    pub(super) openers: Vec<Process>,
    /// There are processes that this user may not examine.
    pub(super) hidden: bool,
}

impl Processes {
    pub(super) fn with(target: &Target) -> Self {
        let mut found = Self::default();
        for (id, dir) in directories() {
            let files = match fs::read_dir(dir.join("fdinfo")) {
                Ok(files) => files,
                Err(error) => {
                    found.hidden |= error.kind() == ErrorKind::PermissionDenied;
                    continue;
                }
            };
            let names = files.flatten().map(|file| file.file_name());
            let open: Vec<_> = names
                .filter_map(|name| opened(&dir, Path::new(&name), target))
                .collect();
            if open.contains(&Open::Locked) {
                found.lockers.push(Process::new(id));
                if open.contains(&Open::Fuse) {
                    found.daemons.push(Process::new(id));
                }
            } else if open.contains(&Open::Device) {
                found.openers.push(Process::new(id));
            }
        }
        found
    }
}

/// The kind of a descriptor, if it matters here.
#[derive(Debug, PartialEq, Eq)]
enum Open {
    /// The image, with a lock.
    Locked,
    /// A block device of the image.
    Device,
    /// A connection of a FUSE daemon.
    Fuse,
}

fn opened(dir: &Path, name: &Path, target: &Target) -> Option<Open> {
    let file = dir.join("fd").join(name);
    let info = fs::read(dir.join("fdinfo").join(name)).ok()?;
    if info
        .split(|&byte| byte == b'\n')
        .any(|line| line.starts_with(b"lock:"))
    {
        return target.is_at(&file).then_some(Open::Locked);
    }
    let link = fs::read_link(&file).ok()?;
    let link = link.as_os_str().as_bytes();
    if link == b"/dev/fuse" {
        return Some(Open::Fuse);
    }
    (link.starts_with(b"/dev/") && target.is_at(&file)).then_some(Open::Device)
}

/// All processes with their directories in `/proc`: this one, then by number.
pub(super) fn directories() -> Vec<(u32, PathBuf)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_by_key(|&id| (id != std::process::id(), id));
    let dir = |id| (id, PathBuf::from(format!("/proc/{id}")));
    numbers.into_iter().map(dir).collect()
}
