//! Files and directories of the measured file system, in a mount or in process.

use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, io};

use rustix::fs::{AtFlags, Mode, OFlags, XattrFlags};
use sapwood_vfs::{
    Credentials, FileSystem, Ino, NewInode, RenameMode, SetAttr, SetXattrMode, SyncKind, WriteMode,
};

use crate::error::Result;

/// A file system that a load uses.
#[derive(Clone)]
pub(crate) enum Place {
    /// The directory that it is mounted on.
    Mount(PathBuf),
    /// In process.
    Library(Arc<dyn FileSystem>),
}

impl Place {
    /// Its root directory.
    pub(crate) fn root(&self) -> Result<Node> {
        Ok(match self {
            Self::Mount(dir) => Node::Mounted(fs::File::open(dir)?),
            Self::Library(fs) => Node::Library(Arc::clone(fs), fs.root()),
        })
    }
}

/// An open file or directory.
pub(crate) enum Node {
    Mounted(fs::File),
    Library(Arc<dyn FileSystem>, Ino),
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Self::Library(fs, ino) = self
            && *ino != fs.root()
        {
            fs.forget(*ino, 1);
        }
    }
}

const WHO: Credentials = Credentials::ROOT;

impl Node {
    /// Makes a directory.
    pub(crate) fn mkdir(&self, name: &str) -> Result<Self> {
        match self {
            Self::Mounted(dir) => {
                rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755))?;
                self.open(name)
            }
            Self::Library(fs, dir) => {
                let made = fs.create(&WHO, *dir, name.as_bytes(), NewInode::Directory, 0o755)?;
                Ok(Self::Library(Arc::clone(fs), made.ino()))
            }
        }
    }

    /// Makes an empty file.
    pub(crate) fn create(&self, name: &str) -> Result<Self> {
        match self {
            Self::Mounted(dir) => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
                let file = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o644))?;
                Ok(Self::Mounted(file.into()))
            }
            Self::Library(fs, dir) => {
                let made = fs.create(&WHO, *dir, name.as_bytes(), NewInode::Regular, 0o644)?;
                Ok(Self::Library(Arc::clone(fs), made.ino()))
            }
        }
    }

    /// Opens a file or directory, for reading.
    pub(crate) fn open(&self, name: &str) -> Result<Self> {
        match self {
            Self::Mounted(dir) => {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                let file = rustix::fs::openat(dir, name, flags, Mode::empty())?;
                Ok(Self::Mounted(file.into()))
            }
            Self::Library(fs, dir) => {
                let found = fs.lookup(*dir, name.as_bytes())?;
                Ok(Self::Library(Arc::clone(fs), found.ino()))
            }
        }
    }

    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<()> {
        match self {
            Self::Mounted(dir) => rustix::fs::renameat(dir, from, dir, to)?,
            Self::Library(fs, dir) => {
                let (from, to) = (from.as_bytes(), to.as_bytes());
                fs.rename(*dir, from, *dir, to, RenameMode::Replace)?;
            }
        }
        Ok(())
    }

    pub(crate) fn unlink(&self, name: &str) -> Result<()> {
        match self {
            Self::Mounted(dir) => rustix::fs::unlinkat(dir, name, AtFlags::empty())?,
            Self::Library(fs, dir) => fs.unlink(*dir, name.as_bytes())?,
        }
        Ok(())
    }

    pub(crate) fn write(&self, at: u64, data: &[u8]) -> Result<()> {
        match self {
            Self::Mounted(file) => file.write_all_at(data, at)?,
            Self::Library(fs, ino) => {
                fs.write(*ino, at, data, WriteMode::default())?;
            }
        }
        Ok(())
    }

    /// Fills `buf`.
    pub(crate) fn read(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        match self {
            Self::Mounted(file) => file.read_exact_at(buf, at)?,
            Self::Library(fs, ino) => {
                if fs.read(*ino, at, buf)? < buf.len() {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
            }
        }
        Ok(())
    }

    pub(crate) fn fsync(&self) -> Result<()> {
        match self {
            Self::Mounted(file) => file.sync_all()?,
            Self::Library(fs, ino) => fs.fsync(*ino, SyncKind::All)?,
        }
        Ok(())
    }

    pub(crate) fn set_len(&self, size: u64) -> Result<()> {
        match self {
            Self::Mounted(file) => file.set_len(size)?,
            Self::Library(fs, ino) => {
                let size = SetAttr {
                    size: Some(size),
                    ..SetAttr::default()
                };
                fs.setattr(*ino, &size)?;
            }
        }
        Ok(())
    }

    pub(crate) fn set_xattr(&self, name: &str, value: &[u8]) -> Result<()> {
        match self {
            Self::Mounted(file) => {
                rustix::fs::fsetxattr(file, name, value, XattrFlags::empty())?;
            }
            Self::Library(fs, ino) => {
                fs.setxattr(*ino, name.as_bytes(), value, SetXattrMode::Any)?;
            }
        }
        Ok(())
    }

    /// Number of files in the directory, after a `stat` of each.
    pub(crate) fn stat_all(&self) -> Result<u64> {
        let mut names = Vec::new();
        match self {
            Self::Mounted(dir) => {
                for entry in rustix::fs::Dir::read_from(dir)? {
                    names.push(entry?.file_name().to_bytes().to_vec());
                }
            }
            Self::Library(fs, dir) => fs.readdir(*dir, 0, &mut |entry| {
                names.push(entry.name.to_vec());
                ControlFlow::Continue(())
            })?,
        }
        names.retain(|name| !name.starts_with(b"."));
        for name in &names {
            match self {
                Self::Mounted(dir) => {
                    rustix::fs::statat(dir.as_fd(), &name[..], AtFlags::SYMLINK_NOFOLLOW)?;
                }
                Self::Library(fs, dir) => {
                    let found = fs.lookup(*dir, name)?;
                    fs.getattr(found.ino())?;
                    fs.forget(found.ino(), 1);
                }
            }
        }
        Ok(names.len() as u64)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use sapwood_block::MemoryDevice;
    use sapwood_btrfs::{Btrfs, Options, mkfs};

    use super::*;

    /// A directory, and a file system in process.
    pub(crate) fn both(work: impl Fn(&Place)) {
        let dir = tempfile::tempdir().unwrap();
        work(&Place::Mount(dir.path().to_owned()));
        let device = Arc::new(MemoryDevice::new(256 << 20));
        mkfs::mkfs(&*device, &mkfs::MkfsOptions::default()).unwrap();
        let fs = Arc::new(Btrfs::open(vec![device], Options::default()).unwrap());
        work(&Place::Library(fs.clone()));
        fs.unmount().unwrap();
    }

    #[test]
    fn a_mount_and_the_library_do_the_same() {
        both(|place| {
            let dir = place.root().unwrap().mkdir("dir").unwrap();
            let file = dir.create("one").unwrap();
            assert!(dir.create("one").is_err());
            file.write(5, b"text").unwrap();
            file.set_len(8).unwrap();
            let mut found = [1; 8];
            file.read(0, &mut found).unwrap();
            assert_eq!(&found, b"\0\0\0\0\0tex");
            assert!(file.read(4, &mut found).is_err());
            file.set_xattr("user.name", b"value").unwrap();
            file.fsync().unwrap();
            dir.rename("one", "two").unwrap();
            assert!(dir.open("one").is_err());
            assert_eq!(dir.stat_all().unwrap(), 1);
            dir.unlink("two").unwrap();
            assert_eq!(dir.stat_all().unwrap(), 0);
        });
    }
}
