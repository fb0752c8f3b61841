//! A copy's side on this machine.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use sapwood_vfs::{FileKind, Timestamp};

use super::super::failure::{Failure, Result};
use super::{CHUNK, Fill, Meta, Scratch, Side, Sink};

pub(super) struct LocalSide {
    top: PathBuf,
}

impl LocalSide {
    /// A side whose paths start at `top`; empty: the current directory.
    pub(super) fn new(top: PathBuf) -> Self {
        Self { top }
    }

    fn path(&self, path: &[u8]) -> PathBuf {
        match (path.is_empty(), self.top.as_os_str().is_empty()) {
            (true, false) => self.top.clone(),
            (true, true) => PathBuf::from("."),
            (false, _) => self.top.join(OsStr::from_bytes(path)),
        }
    }

    fn meta_from(&self, path: &Path, found: io::Result<std::fs::Metadata>) -> Result<Option<Meta>> {
        let meta = match found {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Failure::local(path, error)),
        };
        let kind = FileKind::from_mode(meta.mode())
            .ok_or_else(|| Failure::local(path, "is no known kind of file"))?;
        let nsec = |nsec: i64| u32::try_from(nsec).unwrap_or(0);
        Ok(Some(Meta {
            kind,
            perm: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
            rdev: meta.rdev(),
            size: meta.len(),
            nlink: meta.nlink(),
            id: (meta.dev(), meta.ino()),
            atime: Timestamp {
                sec: meta.atime(),
                nsec: nsec(meta.atime_nsec()),
            },
            mtime: Timestamp {
                sec: meta.mtime(),
                nsec: nsec(meta.mtime_nsec()),
            },
        }))
    }
}

/// The result of a system call with the path that it was about.
fn on<T, E: std::fmt::Display>(path: &Path, result: Result<T, E>) -> Result<T> {
    result.map_err(|error| Failure::local(path, error))
}

impl Side for LocalSide {
    fn meta(&self, path: &[u8]) -> Result<Option<Meta>> {
        let path = self.path(path);
        self.meta_from(&path, path.symlink_metadata())
    }

    fn meta_followed(&self, path: &[u8]) -> Result<Option<Meta>> {
        let path = self.path(path);
        self.meta_from(&path, path.metadata())
    }

    fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let path = self.path(path);
        let mut names = Vec::new();
        for entry in on(&path, std::fs::read_dir(&path))? {
            names.push(on(&path, entry)?.file_name().into_vec());
        }
        names.sort();
        Ok(names)
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        let path = self.path(path);
        Ok(on(&path, std::fs::read_link(&path))?
            .into_os_string()
            .into_vec())
    }

    fn xattrs(&self, path: &[u8], scratch: &mut Scratch) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let path = self.path(path);
        let Scratch { names, value, .. } = scratch;
        let len = match rustix::fs::llistxattr(&path, &mut names[..]) {
            Err(rustix::io::Errno::NOTSUP) => 0,
            other => on(&path, other)?,
        };
        let mut all = Vec::new();
        for name in names
            .get(..len)
            .unwrap_or_default()
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
        {
            let len = on(
                &path,
                rustix::fs::lgetxattr(&path, OsStr::from_bytes(name), &mut value[..]),
            )?;
            all.push((name.to_vec(), value.get(..len).unwrap_or_default().to_vec()));
        }
        Ok(all)
    }

    fn read(&self, path: &[u8], scratch: &mut Scratch, sink: &mut Sink<'_>) -> Result<()> {
        let path = self.path(path);
        let file = on(&path, File::open(&path))?;
        let buf = &mut scratch.piece;
        let mut at = 0;
        loop {
            at = match rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(rustix::io::Errno::NXIO) => return Ok(()),
                Err(error) => return Err(Failure::local(&path, error)),
            };
            let end = on(
                &path,
                rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(at)),
            )?;
            while at < end {
                let want = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
                let count = on(
                    &path,
                    file.read_at(buf.get_mut(..want).unwrap_or_default(), at),
                )?;
                if count == 0 {
                    return Ok(());
                }
                sink(at, buf.get(..count).unwrap_or_default())?;
                at += count as u64;
            }
        }
    }

    fn make(&self, path: &[u8], meta: &Meta, target: &[u8]) -> Result<()> {
        let path = self.path(path);
        let mode = Mode::from_raw_mode(meta.perm);
        let node = |kind| rustix::fs::mknodat(CWD, &path, kind, mode, meta.rdev);
        let made = match meta.kind {
            FileKind::Regular => {
                rustix::fs::open(&path, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, mode)
                    .map(drop)
            }
            FileKind::Directory => rustix::fs::mkdir(&path, mode | Mode::RWXU),
            FileKind::Symlink => rustix::fs::symlink(OsStr::from_bytes(target), &path),
            FileKind::CharDevice => node(FileType::CharacterDevice),
            FileKind::BlockDevice => node(FileType::BlockDevice),
            FileKind::Fifo => node(FileType::Fifo),
            FileKind::Socket => node(FileType::Socket),
        };
        on(&path, made)
    }

    fn link(&self, old: &[u8], new: &[u8]) -> Result<()> {
        let new = self.path(new);
        on(&new, std::fs::hard_link(self.path(old), &new))
    }

    fn remove(&self, path: &[u8]) -> Result<()> {
        let path = self.path(path);
        on(&path, std::fs::remove_file(&path))
    }

    fn write(&self, path: &[u8], size: u64, fill: &mut Fill<'_>) -> Result<()> {
        let path = self.path(path);
        let file = on(&path, File::options().write(true).open(&path))?;
        fill(&mut |at, data| on(&path, file.write_all_at(data, at)))?;
        on(&path, file.set_len(size))
    }

    fn set_xattrs(&self, path: &[u8], xattrs: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
        let path = self.path(path);
        for (name, value) in xattrs {
            let set =
                rustix::fs::lsetxattr(&path, OsStr::from_bytes(name), value, XattrFlags::empty());
            match set {
                // Some namespaces belong to the superuser, some to one kind of file system.
                Err(rustix::io::Errno::PERM | rustix::io::Errno::NOTSUP) => {
                    log::warn!(
                        "{}: attribute {} not kept",
                        path.display(),
                        String::from_utf8_lossy(name)
                    );
                }
                other => on(&path, other)?,
            }
        }
        Ok(())
    }

    fn set_meta(&self, path: &[u8], meta: &Meta) -> Result<()> {
        let path = self.path(path);
        let owner = (Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid)));
        match rustix::fs::chownat(CWD, &path, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW) {
            // Without the right to give files away the copy stays the user's, as with cp.
            Err(rustix::io::Errno::PERM) => {}
            other => on(&path, other)?,
        }
        if meta.kind != FileKind::Symlink {
            on(
                &path,
                rustix::fs::chmod(&path, Mode::from_raw_mode(meta.perm)),
            )?;
        }
        let time = |time: Timestamp| Timespec {
            tv_sec: time.sec,
            tv_nsec: time.nsec.into(),
        };
        let times = Timestamps {
            last_access: time(meta.atime),
            last_modification: time(meta.mtime),
        };
        on(
            &path,
            rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW),
        )
    }

    fn shown(&self, path: &[u8]) -> String {
        self.path(path).display().to_string()
    }
}
