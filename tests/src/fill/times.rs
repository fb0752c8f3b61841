//! Times. A tree's times depend on where it is made, so they are set at the end on everything
//! outside of `now/`: from the path, with nanoseconds, some before 1970 and some far ahead.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, IFlags, Timespec, Timestamps, utimensat};

use super::Limits;

/// Times that are on an edge: (seconds, nanoseconds).
const EDGES: [(i64, i64); 7] = [
    (0, 0),
    (-1, 500_000_000),
    (-86_400 * 365 * 30, 123_456_789),
    (i32::MAX as i64, 999_999_999),
    (i32::MAX as i64 + 1, 1),
    (u32::MAX as i64 + 5, 7),
    (253_402_300_799, 999_999_999),
];

/// `FS_NOCOMP_FL`, which rustix does not name.
const NO_COMPRESS: IFlags = IFlags::from_bits_retain(0x400);

fn set(path: &Path, sec: i64, nsec: i64) -> io::Result<()> {
    let time = Timespec {
        tv_sec: sec,
        tv_nsec: nsec,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

pub(super) fn fill(root: &Path, limits: Limits) -> io::Result<()> {
    let now = root.join("now");
    fs::create_dir(&now)?;
    fs::write(now.join("written"), b"content")?;
    fs::create_dir(now.join("dir"))?;
    fs::File::create(now.join("dir/inside"))?;
    fs::write(now.join("twice"), b"first")?;
    fs::write(now.join("twice"), b"second")?;
    fs::create_dir(root.join("times"))?;
    for (at, _) in EDGES.iter().enumerate() {
        fs::write(root.join(format!("times/edge-{at}")), b"t")?;
    }
    set_all(root, &[])?;
    flags(root, limits)
}

/// Inode flags come last: they forbid more changes.
fn flags(root: &Path, limits: Limits) -> io::Result<()> {
    let dir = root.join("flags");
    fs::create_dir(&dir)?;
    let all = [
        ("nodump", IFlags::NODUMP),
        ("noatime", IFlags::NOATIME),
        ("sync", IFlags::SYNC),
        ("nocompress", NO_COMPRESS),
        ("immutable", IFlags::IMMUTABLE),
        ("append", IFlags::APPEND),
        (
            "several",
            IFlags::NODUMP.union(IFlags::NOATIME).union(IFlags::APPEND),
        ),
    ];
    for (name, flags) in all {
        if flags == NO_COMPRESS && !limits.cow {
            continue;
        }
        let path = dir.join(name);
        fs::write(&path, name)?;
        set(&path, 1_500_000_000, 1)?;
        add_flags(&path, flags)?;
    }
    let below = dir.join("dirsync");
    fs::create_dir(&below)?;
    set(&below, 1_500_000_000, 2)?;
    add_flags(&below, IFlags::DIRSYNC)?;
    set(&dir, 1_500_000_000, 3)
}

/// Adds flags to those that the mount's options gave.
fn add_flags(path: &Path, flags: IFlags) -> io::Result<()> {
    let file = fs::File::open(path)?;
    let given = rustix::fs::ioctl_getflags(&file)?;
    let nothing_to_compress = given.contains(IFlags::NOCOW) && flags == NO_COMPRESS;
    if nothing_to_compress {
        return Ok(());
    }
    Ok(rustix::fs::ioctl_setflags(&file, given | flags)?)
}

/// Sets the times of everything on one file system below `root`, except `now/` and the directories
/// `except`.
///
/// # Errors
/// The first that cannot be set.
pub fn set_all(root: &Path, except: &[&str]) -> io::Result<()> {
    let dir = fs::File::open(root)?;
    below(&dir, 0, &|name, depth| {
        depth == 0 && (name == "now" || except.contains(&name))
    })
}

fn below(dir: &fs::File, depth: usize, skip: &dyn Fn(&str, usize) -> bool) -> io::Result<()> {
    let place = format!("/proc/self/fd/{}", dir.as_raw_fd());
    let mut names = Vec::new();
    for entry in fs::read_dir(&place)? {
        names.push(entry?.file_name());
    }
    // The last name of an inode with several names decides, in whatever order they are listed.
    names.sort();
    for name in names {
        if name.to_str().is_some_and(|name| skip(name, depth)) {
            continue;
        }
        let path = Path::new(&place).join(&name);
        if fs::symlink_metadata(&path)?.is_dir() {
            below(&fs::File::open(&path)?, depth + 1, skip)?;
        }
        let edge = name.to_str().and_then(|name| name.strip_prefix("edge-"));
        let (sec, nsec) = match edge.and_then(|at| at.parse::<usize>().ok()) {
            Some(at) => EDGES[at],
            None => {
                let hash = i64::from(crc32c::crc32c(name.as_bytes()));
                (1_000_000_000 + hash % 700_000_000, hash % 1_000_000_000)
            }
        };
        set(&path, sec, nsec)?;
    }
    Ok(())
}
