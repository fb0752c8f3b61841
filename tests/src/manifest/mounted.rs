//! Listing what is mounted on a directory.
//!
//! Every directory is held open and its names are reached through its descriptor
//! (`/proc/self/fd/N/NAME`), so that paths may be longer than one system call takes.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, SeekFrom, StatxFlags};
use rustix::io::Errno;
use sapwood_vfs::Timestamp;

use super::entry::{Groups, data_map, hash, in_pages};
use super::{Content, Entry, Manifest};

/// Bits of our inode numbers that are those of btrfs; above them is the subvolume.
const OBJECTID: u64 = (1 << 40) - 1;

/// Lists everything on a mount point.
///
/// # Errors
/// What could not be read, with its path.
pub fn list(root: &Path) -> Result<Manifest, String> {
    let mut walk = Walk {
        manifest: Manifest::default(),
        groups: Groups::default(),
    };
    let failed = |error: io::Error| format!("{}: {error}", root.display());
    walk.entry(root, Vec::new())
        .map_err(|error| error.to_string())?;
    let mut open = vec![Level::new(File::open(root).map_err(failed)?, Vec::new()).map_err(failed)?];
    while let Some(level) = open.last_mut() {
        let Some(name) = level.names.pop() else {
            open.pop();
            continue;
        };
        let place = level.place(&name);
        let mut path = level.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        let failed = |error: io::Error| format!("{}: {error}", Manifest::shown(&path));
        let is_dir = walk.entry(&place, path.clone()).map_err(failed)?;
        if is_dir {
            let below = File::open(&place).and_then(|dir| Level::new(dir, path.clone()));
            open.push(below.map_err(failed)?);
        }
    }
    Ok(walk.manifest)
}

/// An open directory, and the names in it that are still to be seen.
struct Level {
    dir: File,
    path: Vec<u8>,
    names: Vec<OsString>,
}

impl Level {
    fn new(dir: File, path: Vec<u8>) -> io::Result<Self> {
        let place = format!("/proc/self/fd/{}", dir.as_raw_fd());
        let mut names = Vec::new();
        for entry in fs::read_dir(place)? {
            names.push(entry?.file_name());
        }
        // Popped from the end: in order of names, so that the first of several names of one
        // inode is the same for every lister.
        names.sort_by(|a, b| b.cmp(a));
        Ok(Self { dir, path, names })
    }

    fn place(&self, name: &OsStr) -> PathBuf {
        Path::new(&format!("/proc/self/fd/{}", self.dir.as_raw_fd())).join(name)
    }
}

struct Walk {
    manifest: Manifest,
    groups: Groups,
}

impl Walk {
    /// Lists one name; true if it is a directory.
    fn entry(&mut self, place: &Path, path: Vec<u8>) -> io::Result<bool> {
        let meta = fs::symlink_metadata(place)?;
        let kind = meta.file_type();
        let time = |sec: i64, nsec: i64| Timestamp {
            sec,
            nsec: u32::try_from(nsec).unwrap(),
        };
        let content = if kind.is_file() {
            file(place, meta.size())?
        } else if kind.is_symlink() {
            Content::Link(fs::read_link(place)?.as_os_str().as_bytes().to_vec())
        } else {
            Content::Other
        };
        let is_dir = kind.is_dir();
        let links = if is_dir {
            1
        } else {
            u32::try_from(meta.nlink()).unwrap()
        };
        let entry = Entry {
            ino: meta.ino() & OBJECTID,
            mode: meta.mode(),
            nlink: u32::try_from(meta.nlink()).unwrap(),
            uid: meta.uid(),
            gid: meta.gid(),
            size: meta.size(),
            blocks: meta.blocks(),
            rdev: meta.rdev(),
            mtime: time(meta.mtime(), meta.mtime_nsec()),
            ctime: time(meta.ctime(), meta.ctime_nsec()),
            btime: birth(place)?,
            flags: if kind.is_file() || is_dir {
                flags(place)?
            } else {
                None
            },
            same_as: self.groups.first(meta.dev(), meta.ino(), links, &path),
            content,
            xattrs: xattrs(place)?,
        };
        self.manifest.entries.insert(path, entry);
        Ok(is_dir)
    }
}

fn birth(place: &Path) -> io::Result<Option<Timestamp>> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let stat = rustix::fs::statx(CWD, place, flags, StatxFlags::BTIME)?;
    let known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    let time = stat.stx_btime;
    Ok(known.then_some(Timestamp {
        sec: time.tv_sec,
        nsec: time.tv_nsec,
    }))
}

fn flags(place: &Path) -> io::Result<Option<u32>> {
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(place)?;
    match rustix::fs::ioctl_getflags(&file) {
        Ok(flags) => Ok(Some(flags.bits())),
        Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn file(place: &Path, size: u64) -> io::Result<Content> {
    let file = File::open(place)?;
    let data = data_map(size, |at, data| {
        let from = if data {
            SeekFrom::Data(at)
        } else {
            SeekFrom::Hole(at)
        };
        match rustix::fs::seek(&file, from) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(io::Error::from(error)),
        }
    })?;
    let sha256 = hash(size, &in_pages(size, &data), |at, buffer| {
        file.read_at(buffer, at)
    })?;
    Ok(Content::File { sha256, data })
}

fn xattrs(place: &Path) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 128 << 10];
    let len = rustix::fs::llistxattr(place, &mut names[..])?;
    let mut all = BTreeMap::new();
    for name in names[..len].split_inclusive(|byte| *byte == 0) {
        let name = CStr::from_bytes_with_nul(name).map_err(io::Error::other)?;
        let mut value = vec![0; 64 << 10];
        let len = rustix::fs::lgetxattr(place, name, &mut value[..])?;
        value.truncate(len);
        all.insert(name.to_bytes().to_vec(), value);
    }
    Ok(all)
}
