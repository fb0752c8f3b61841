//! The walk over a filled image that stores files again, and shares the data of equal ones.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::GlobMatcher;
use sha2::{Digest, Sha256};

use super::{Storage, StorageError};
use crate::changes::covers;
use crate::fs::FileSystem;
use crate::progress::{OnProgress, Progress};
use crate::tree::{self, HeldInode, Walker};
use crate::vfs::{
    self, Attr, CopyMode, Credentials, FileKind, Ino, InodeFlags, SeekFrom, SetAttr, SetTime,
    SetXattrMode, WriteMode,
};

/// The phase of [`Progress::Done`] in which files are stored anew; its unit is the file.
pub const ARRANGING: &str = "arranging";

/// Smaller files share nothing: btrfs keeps them in its trees.
const LEAST: u64 = 4096;
/// Bytes that are copied or hashed at a time.
const PIECE: usize = 1 << 20;

/// Stores files with other properties than most again, and then shares the extents of equal files.
pub(super) fn files(
    storage: &Storage,
    fs: &FileSystem,
    progress: &mut OnProgress<'_>,
) -> Result<(), StorageError> {
    let mut arranged = Arranged {
        storage,
        patterns: storage
            .patterns
            .iter()
            .map(|(pattern, how)| (pattern.compile_matcher(), how.as_str()))
            .collect(),
        fs: &**fs.engine(),
        buf: vec![0; PIECE],
        progress,
        done: 0,
    };
    let of_data = storage.flags.iter().any(super::PathFlags::are_of_data);
    if !storage.patterns.is_empty() || of_data {
        arranged.each(|this, path, attr| this.store(path, attr))?;
    }
    if storage.dedupe {
        arranged.share()?;
    }
    Ok(())
}

/// Adds the flags of the storage to the inodes that have them.
pub(super) fn set_flags(storage: &Storage, fs: &FileSystem) -> Result<(), StorageError> {
    let vfs: &dyn vfs::FileSystem = &**fs.engine();
    for one in &storage.flags {
        let set = || {
            let node = tree::resolve(vfs, one.path.as_os_str().as_bytes(), false)?;
            let flags = node.attr().flags | one.flags;
            if flags == node.attr().flags {
                Ok(())
            } else {
                vfs.set_flags(node.ino(), flags)
            }
        };
        set().map_err(|source| StorageError::File {
            path: one.path.clone(),
            source,
        })?;
    }
    Ok(())
}

struct Arranged<'a, 'p> {
    storage: &'a Storage,
    /// Compression of files that match a pattern; the last one counts.
    patterns: Vec<(GlobMatcher, &'a str)>,
    fs: &'a dyn vfs::FileSystem,
    buf: Vec<u8>,
    progress: &'a mut OnProgress<'p>,
    /// Files that the walk visited.
    done: u64,
}

/// Storage of a file's data, if different from most files. Data without copy-on-write has no
/// checksums, and data without checksums is not compressed.
#[derive(Clone, Copy)]
enum Way<'a> {
    Nodatacow,
    Nodatasum,
    Compressed(&'a str),
}

impl Way<'_> {
    fn is_flag(self) -> bool {
        !matches!(self, Self::Compressed(_))
    }

    /// Sets this storage on an empty file or a directory.
    fn set(self, fs: &dyn vfs::FileSystem, file: &Attr) -> vfs::Result<()> {
        match self {
            Self::Nodatacow => fs.set_flags(file.ino, file.flags | InodeFlags::NOCOW),
            Self::Nodatasum => fs.forgo_checksums(file.ino),
            Self::Compressed(how) => {
                let (name, how) = (b"btrfs.compression", how.as_bytes());
                fs.setxattr(file.ino, name, how, SetXattrMode::Any)
            }
        }
    }

    /// Like [`set`](Self::set), for the final file, which has no property for the compression of
    /// its extents.
    fn set_own(self, fs: &dyn vfs::FileSystem, file: &Attr) -> vfs::Result<()> {
        if self.is_flag() {
            self.set(fs, file)
        } else {
            Ok(())
        }
    }
}

impl<'a> Arranged<'a, '_> {
    /// Calls `work` for each file and directory, once for all its names.
    fn each(
        &mut self,
        mut work: impl FnMut(&mut Self, &[u8], &Attr) -> vfs::Result<()>,
    ) -> Result<(), StorageError> {
        (self.progress)(Progress::Total(0));
        self.done = 0;
        let fs = self.fs;
        let mut linked = HashSet::new();
        let mut walker = Walker::new(fs.root());
        let mut step = || {
            let Some((_, attr)) = walker.next(fs)? else {
                return Ok(false);
            };
            let again = attr.nlink > 1 && !linked.insert(attr.ino);
            let stores = matches!(attr.kind, FileKind::Regular | FileKind::Directory);
            if stores && !again {
                self.done += 1;
                (self.progress)(Progress::Done {
                    phase: ARRANGING,
                    done: self.done,
                });
                work(self, walker.path(), &attr)?;
            }
            Ok(true)
        };
        let ended = loop {
            match step() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(source) => break Err(source),
            }
        };
        let path = Path::new(OsStr::from_bytes(walker.path())).to_owned();
        walker.end(fs);
        ended.map_err(|source| StorageError::File { path, source })
    }

    /// The compression of the file at a path, if it differs from most files.
    fn compression(&self, path: &[u8]) -> Option<&'a str> {
        let mut patterns = self.patterns.iter().rev();
        let found = patterns.find(|(pattern, _)| covers(path, |path| pattern.is_match(path)));
        found.map(|(_, how)| *how)
    }

    /// Stores a file again, if it has a storage of its own.
    fn store(&mut self, path: &[u8], attr: &Attr) -> vfs::Result<()> {
        let fs = self.fs;
        let (nodatacow, nodatasum) = self.storage.of_data(Path::new(OsStr::from_bytes(path)));
        let way = match self.compression(path) {
            _ if nodatacow => Way::Nodatacow,
            _ if nodatasum => Way::Nodatasum,
            Some(how) => Way::Compressed(how),
            None => return Ok(()),
        };
        if attr.kind == FileKind::Directory {
            return match way {
                Way::Nodatacow => way.set(fs, attr),
                Way::Nodatasum | Way::Compressed(_) => Ok(()),
            };
        }
        if attr.size == 0 {
            return way.set_own(fs, attr);
        }
        let superuser = Credentials {
            uid: 0,
            gid: 0,
            umask: 0,
            keep_setgid: false,
        };
        let scratch = HeldInode::new(fs, fs.tmpfile(&superuser, fs.root(), 0o600)?);
        way.set(fs, scratch.attr())?;
        self.copy(attr.ino, scratch.ino(), attr.size)?;
        if way.is_flag() {
            // The flag is refused for a file with content.
            set_size(fs, attr.ino, 0)?;
        }
        way.set_own(fs, attr)?;
        self.take(scratch.ino(), attr)
    }

    /// Copies the data of a file to an empty one, with its holes.
    fn copy(&mut self, from: Ino, to: Ino, size: u64) -> vfs::Result<()> {
        let fs = self.fs;
        self.read(from, &mut |at, bytes| {
            fs.write(to, at, bytes, WriteMode::default()).map(drop)
        })?;
        set_size(fs, to, size)
    }

    /// Reads the data of a file in order, without its holes.
    fn read(
        &mut self,
        ino: Ino,
        sink: &mut dyn FnMut(u64, &[u8]) -> vfs::Result<()>,
    ) -> vfs::Result<()> {
        let mut at = 0;
        loop {
            at = match self.fs.seek(ino, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(vfs::Error::NoSuchOffset) => return Ok(()),
                Err(error) => return Err(error),
            };
            let end = self.fs.seek(ino, SeekFrom::Hole(at))?;
            while at < end {
                let want = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
                let buf = self.buf.get_mut(..want).unwrap_or_default();
                let count = self.fs.read(ino, at, buf)?;
                if count == 0 {
                    return Ok(());
                }
                sink(at, buf.get(..count).unwrap_or_default())?;
                at += count as u64;
            }
        }
    }

    /// Lets a file share the extents of another one with the same content.
    fn take(&self, from: Ino, file: &Attr) -> vfs::Result<()> {
        let fs = self.fs;
        // A length of 0 is the whole file.
        fs.copy_range(from, 0, file.ino, 0, 0, CopyMode::ShareOnly)?;
        let times = SetAttr {
            size: Some(file.size),
            atime: Some(SetTime::To(file.atime)),
            mtime: Some(SetTime::To(file.mtime)),
            ..SetAttr::default()
        };
        fs.setattr(file.ino, &times).map(drop)
    }

    /// Whether a file can share extents with any other.
    fn shares(&self, path: &[u8], attr: &Attr) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        let flagged = || self.storage.of_data(path) != (false, false);
        attr.kind == FileKind::Regular && attr.size >= LEAST && !flagged()
    }

    /// Finds files with the same content, and lets them share the extents of the first one.
    fn share(&mut self) -> Result<(), StorageError> {
        let mut sizes: HashMap<u64, bool> = HashMap::new();
        self.each(|this, path, attr| {
            if this.shares(path, attr) {
                let several = sizes.entry(attr.size);
                several.and_modify(|several| *several = true).or_default();
            }
            Ok(())
        })?;
        sizes.retain(|_, several| *several);
        let mut first: HashMap<(Option<&str>, [u8; 32]), Vec<u8>> = HashMap::new();
        self.each(|this, path, attr| {
            if !this.shares(path, attr) || !sizes.contains_key(&attr.size) {
                return Ok(());
            }
            // Only files with the same compression share extents.
            let content = (this.compression(path), this.hash(attr)?);
            let Some(earlier) = first.get(&content) else {
                first.insert(content, path.to_vec());
                return Ok(());
            };
            let earlier = tree::resolve(this.fs, earlier, false)?;
            this.take(earlier.ino(), attr)
        })
    }

    /// A hash of the content of a file, and of the position of its holes.
    fn hash(&mut self, attr: &Attr) -> vfs::Result<[u8; 32]> {
        let mut hash = Sha256::new();
        let mut next = None;
        hash.update(attr.size.to_le_bytes());
        self.read(attr.ino, &mut |at, bytes| {
            if next != Some(at) {
                hash.update(at.to_le_bytes());
            }
            hash.update(bytes);
            next = Some(at + bytes.len() as u64);
            Ok(())
        })?;
        Ok(hash.finalize().into())
    }
}

fn set_size(fs: &dyn vfs::FileSystem, ino: Ino, size: u64) -> vfs::Result<()> {
    let size = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(ino, &size).map(drop)
}
