//! The walk over a filled image: it stores files again that need another storage than most, and
//! shares the data of equal files.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{Glob, GlobMatcher};
use sapwood_verity::FileParams;
use sha2::{Digest, Sha256};

use super::{DataFlag, Storage, StorageError};
use crate::changes::covers;
use crate::fs::{FileSystem, verity};
use crate::progress::{OnProgress, Progress};
use crate::tree::{self, HeldInode, Walker};
use crate::vfs::{
    self, Attr, CopyMode, Credentials, FileKind, Ino, InodeFlags, SeekFrom, SetAttr, SetTime,
    SetXattrMode, WriteMode,
};

/// The phase of [`Progress::Done`] in which files are stored anew; its unit is the file.
pub const ARRANGING: &str = "arranging";

/// Least bytes of a file that shares extents. Btrfs stores smaller files in its trees.
const LEAST: u64 = 4096;
/// Bytes that are copied or hashed at a time.
const PIECE: usize = 1 << 20;

/// Stores files again that need another storage than most, then shares the extents of equal files.
pub(super) fn files(
    storage: &Storage,
    fs: &FileSystem,
    progress: &mut OnProgress<'_>,
) -> Result<(), StorageError> {
    let mut walk = Walk::new(storage, fs, progress);
    let of_data = storage.flags.iter().any(super::PathFlags::are_of_data);
    if !storage.patterns.is_empty() || of_data {
        walk.each(false, |this, path, attr| this.store(path, attr))?;
    }
    if storage.dedupe {
        walk.share_equal()?;
    }
    Ok(())
}

/// Gives files their hash trees.
pub(super) fn seal(
    storage: &Storage,
    fs: &FileSystem,
    progress: &mut OnProgress<'_>,
) -> Result<(), StorageError> {
    if storage.sealed.is_empty() {
        return Ok(());
    }
    let patterns = storage.sealed.iter().map(Glob::compile_matcher);
    let patterns: Vec<GlobMatcher> = patterns.collect();
    // A name of a file that matches is enough.
    let mut wanted: HashSet<Ino> = HashSet::new();
    let mut walk = Walk::new(storage, fs, progress);
    let usual = verity::usual_block(walk.fs);
    let params = FileParams {
        block_size: usual.map_err(|source| StorageError::File {
            path: "/".into(),
            source,
        })?,
        ..FileParams::default()
    };
    walk.each(true, |_, path, attr| {
        let matches = |path: &Path| patterns.iter().any(|pattern| pattern.is_match(path));
        if attr.kind == FileKind::Regular && covers(path, matches) {
            wanted.insert(attr.ino);
        }
        Ok(())
    })?;
    walk.each(false, |this, _, attr| {
        if !wanted.contains(&attr.ino) {
            return Ok(());
        }
        verity::enable(this.fs, attr.ino, &params, &[]).map(drop)
    })
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

struct Walk<'a, 'p> {
    storage: &'a Storage,
    /// Compression of files that match a pattern; the last one counts.
    patterns: Vec<(GlobMatcher, &'a str)>,
    fs: &'a dyn vfs::FileSystem,
    buf: Vec<u8>,
    progress: &'a mut OnProgress<'p>,
    /// Files that the walk visited.
    done: u64,
}

/// Storage of a file's data, if different from most files. Data without checksums is not
/// compressed.
#[derive(Clone, Copy)]
enum FileStorage<'a> {
    Flag(DataFlag),
    Compressed(&'a str),
}

impl FileStorage<'_> {
    fn is_flag(self) -> bool {
        matches!(self, Self::Flag(_))
    }

    /// Sets this storage on an empty file or a directory.
    fn set(self, fs: &dyn vfs::FileSystem, file: &Attr) -> vfs::Result<()> {
        match self {
            Self::Flag(DataFlag::Nodatacow) => {
                fs.set_flags(file.ino, file.flags | InodeFlags::NOCOW)
            }
            Self::Flag(DataFlag::Nodatasum) => fs.forgo_checksums(file.ino),
            Self::Compressed(how) => {
                let (name, how) = (b"btrfs.compression", how.as_bytes());
                fs.setxattr(file.ino, name, how, SetXattrMode::Any)
            }
        }
    }

    /// Sets this storage on the file that gets the extents. It needs no property for compressed
    /// ones.
    fn set_on_target(self, fs: &dyn vfs::FileSystem, file: &Attr) -> vfs::Result<()> {
        if self.is_flag() {
            self.set(fs, file)
        } else {
            Ok(())
        }
    }
}

impl<'a, 'p> Walk<'a, 'p> {
    fn new(storage: &'a Storage, fs: &'a FileSystem, progress: &'a mut OnProgress<'p>) -> Self {
        Self {
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
        }
    }

    /// Calls `work` for each file and directory, once for all its names unless `names`.
    fn each(
        &mut self,
        names: bool,
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
            let again = !names && attr.nlink > 1 && !linked.insert(attr.ino);
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
        let path = as_path(walker.path()).to_owned();
        walker.end(fs);
        ended.map_err(|source| StorageError::File { path, source })
    }

    /// The compression of the file at a path, if it differs from most files.
    fn compression(&self, path: &[u8]) -> Option<&'a str> {
        let mut patterns = self.patterns.iter().rev();
        let found = patterns.find(|(pattern, _)| covers(path, |path| pattern.is_match(path)));
        found.map(|(_, how)| *how)
    }

    /// Stores a file again, if it needs another storage than most.
    fn store(&mut self, path: &[u8], attr: &Attr) -> vfs::Result<()> {
        let fs = self.fs;
        let flag = self.storage.data_flag(as_path(path)).map(FileStorage::Flag);
        let compressed = || self.compression(path).map(FileStorage::Compressed);
        let Some(storage) = flag.or_else(compressed) else {
            return Ok(());
        };
        if attr.kind == FileKind::Directory {
            return match storage {
                FileStorage::Flag(DataFlag::Nodatacow) => storage.set(fs, attr),
                FileStorage::Flag(DataFlag::Nodatasum) | FileStorage::Compressed(_) => Ok(()),
            };
        }
        if attr.size == 0 {
            return storage.set_on_target(fs, attr);
        }
        let unnamed = fs.tmpfile(&Credentials::ROOT, fs.root(), 0o600)?;
        let unnamed = HeldInode::new(fs, unnamed);
        storage.set(fs, unnamed.attr())?;
        self.copy(attr.ino, unnamed.ino(), attr.size)?;
        if storage.is_flag() {
            // The flag is refused for a file with content.
            set_size(fs, attr.ino, 0)?;
        }
        storage.set_on_target(fs, attr)?;
        self.share_extents(unnamed.ino(), attr)
    }

    /// Copies the data of a file to an empty one, with its holes.
    fn copy(&mut self, from: Ino, to: Ino, size: u64) -> vfs::Result<()> {
        let fs = self.fs;
        self.read(from, &mut |at, bytes| {
            fs.write(to, at, bytes, WriteMode::default()).map(drop)
        })?;
        set_size(fs, to, size)
    }

    /// Passes the data of a file to `sink` in order, without its holes.
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

    /// Lets a file share the extents of another one with the same content, and keep its times.
    fn share_extents(&self, from: Ino, file: &Attr) -> vfs::Result<()> {
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
    fn can_share(&self, path: &[u8], attr: &Attr) -> bool {
        let flag = || self.storage.data_flag(as_path(path));
        attr.kind == FileKind::Regular && attr.size >= LEAST && flag().is_none()
    }

    /// Finds files with the same content, and lets them share the extents of the first one.
    fn share_equal(&mut self) -> Result<(), StorageError> {
        // Only files of one size can have the same content: the others are not read.
        let mut sizes: HashMap<u64, u64> = HashMap::new();
        self.each(false, |this, path, attr| {
            if this.can_share(path, attr) {
                *sizes.entry(attr.size).or_default() += 1;
            }
            Ok(())
        })?;
        sizes.retain(|_, files| *files > 1);
        let mut first: HashMap<(Option<&str>, [u8; 32]), Vec<u8>> = HashMap::new();
        self.each(false, |this, path, attr| {
            if !this.can_share(path, attr) || !sizes.contains_key(&attr.size) {
                return Ok(());
            }
            // Only files with the same compression share extents.
            let content = (this.compression(path), this.hash(attr)?);
            let Some(earlier) = first.get(&content) else {
                first.insert(content, path.to_vec());
                return Ok(());
            };
            let earlier = tree::resolve(this.fs, earlier, false)?;
            this.share_extents(earlier.ino(), attr)
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

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn set_size(fs: &dyn vfs::FileSystem, ino: Ino, size: u64) -> vfs::Result<()> {
    let size = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(ino, &size).map(drop)
}
