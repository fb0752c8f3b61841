//! The walk over a filled image that stores files anew, and shares what several have.

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
use crate::tree::{self, Node, Walker};
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

/// Stores the files that are not to be stored as most are, and then those that share extents.
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
    let nodatacow = |one: &super::PathFlags| one.flags.contains(InodeFlags::NOCOW);
    if !storage.patterns.is_empty() || storage.flags.iter().any(nodatacow) {
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
            match flags == node.attr().flags {
                true => Ok(()),
                false => vfs.set_flags(node.ino(), flags),
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
    /// What matches a pattern is compressed so; the last one counts.
    patterns: Vec<(GlobMatcher, &'a str)>,
    fs: &'a dyn vfs::FileSystem,
    buf: Vec<u8>,
    progress: &'a mut OnProgress<'p>,
    /// Files that the walk visited.
    done: u64,
}

impl<'a> Arranged<'a, '_> {
    /// Calls `work` for each file with content, once for all its names.
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
            if attr.kind == FileKind::Regular && attr.size > 0 && !again {
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

    /// How the file at a path is compressed, if it is not as most files.
    fn compression(&self, path: &[u8]) -> Option<&'a str> {
        let mut patterns = self.patterns.iter().rev();
        let found = patterns.find(|(pattern, _)| covers(path, |path| pattern.is_match(path)));
        found.map(|(_, how)| *how)
    }

    /// Stores a file in its own way, if it has one.
    fn store(&mut self, path: &[u8], attr: &Attr) -> vfs::Result<()> {
        let nodatacow = self
            .storage
            .is_nodatacow(Path::new(OsStr::from_bytes(path)));
        let compression = self.compression(path);
        if !nodatacow && compression.is_none() {
            return Ok(());
        }
        let fs = self.fs;
        let superuser = Credentials {
            uid: 0,
            gid: 0,
            umask: 0,
            keep_setgid: false,
        };
        let scratch = Node::new(fs, fs.tmpfile(&superuser, fs.root(), 0o600)?);
        // A file with nodatacow cannot be compressed.
        match compression.filter(|_| !nodatacow) {
            Some(how) => {
                let (name, how) = (b"btrfs.compression", how.as_bytes());
                fs.setxattr(scratch.ino(), name, how, SetXattrMode::Any)?;
            }
            None => fs.set_flags(scratch.ino(), scratch.attr().flags | InodeFlags::NOCOW)?,
        }
        self.copy(attr.ino, scratch.ino(), attr.size)?;
        if nodatacow {
            // The flag is refused for a file with content.
            set_size(fs, attr.ino, 0)?;
            fs.set_flags(attr.ino, attr.flags | InodeFlags::NOCOW)?;
        }
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

    /// Has a file use the extents of another one with the same content.
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

    /// Finds files with the same content, and has all use the extents of the first one.
    fn share(&mut self) -> Result<(), StorageError> {
        let mut sizes: HashMap<u64, bool> = HashMap::new();
        self.each(|_, _, attr| {
            if shares(attr) {
                let several = sizes.entry(attr.size);
                several.and_modify(|several| *several = true).or_default();
            }
            Ok(())
        })?;
        sizes.retain(|_, several| *several);
        let mut first: HashMap<(Option<&str>, [u8; 32]), Vec<u8>> = HashMap::new();
        self.each(|this, path, attr| {
            if !shares(attr) || !sizes.contains_key(&attr.size) {
                return Ok(());
            }
            // Each keeps its compression.
            let content = (this.compression(path), this.hash(attr)?);
            let Some(earlier) = first.get(&content) else {
                first.insert(content, path.to_vec());
                return Ok(());
            };
            let earlier = tree::resolve(this.fs, earlier, false)?;
            this.take(earlier.ino(), attr)
        })
    }

    /// A hash of the content of a file, and of where its holes are.
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

/// Whether a file can share extents.
fn shares(attr: &Attr) -> bool {
    attr.size >= LEAST && !attr.flags.contains(InodeFlags::NOCOW)
}

fn set_size(fs: &dyn vfs::FileSystem, ino: Ino, size: u64) -> vfs::Result<()> {
    let size = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(ino, &size).map(drop)
}
