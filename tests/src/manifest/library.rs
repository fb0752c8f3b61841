//! Listing an image through the `FileSystem` trait, without a mount.

use std::ops::ControlFlow;

use sapwood_vfs::{Attr, DirEntry, Error, FileKind, FileSystem, Ino, SeekFrom};

use super::entry::{Groups, data_map, hash, in_pages};
use super::{Content, Entry, Manifest};

/// Bits of our inode numbers that are those of btrfs; above them is the subvolume.
const OBJECTID: u64 = (1 << 40) - 1;

/// Lists everything in a file system.
///
/// # Errors
/// What could not be read, with its path.
pub fn list(fs: &dyn FileSystem) -> Result<Manifest, String> {
    let mut walk = Walk {
        fs,
        manifest: Manifest::default(),
        groups: Groups::default(),
    };
    let at_root = |error: Error| format!("root: {error}");
    let root = fs.getattr(fs.root()).map_err(at_root)?;
    walk.entry(&root, Vec::new()).map_err(at_root)?;
    let mut open = vec![Level {
        dir: fs.root(),
        held: false,
        path: Vec::new(),
        names: walk.names(fs.root()).map_err(at_root)?,
    }];
    while let Some(level) = open.last_mut() {
        let Some(entry) = level.names.pop() else {
            if level.held {
                fs.forget(level.dir, 1);
            }
            open.pop();
            continue;
        };
        let mut path = level.path.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&entry.name);
        let failed = |error: Error| format!("{}: {error}", Manifest::shown(&path));
        let found = fs.lookup(level.dir, &entry.name).map_err(failed)?;
        if found.attr.kind != entry.kind || found.ino() != entry.ino {
            return Err(format!(
                "{}: listed as {entry:?}, found {found:?}",
                Manifest::shown(&path)
            ));
        }
        walk.entry(&found.attr, path.clone()).map_err(failed)?;
        if found.attr.kind == FileKind::Directory {
            let names = walk.names(found.ino()).map_err(failed)?;
            open.push(Level {
                dir: found.ino(),
                held: true,
                path,
                names,
            });
        } else {
            fs.forget(found.ino(), 1);
        }
    }
    Ok(walk.manifest)
}

/// A directory, and the names in it that are still to be seen.
struct Level {
    dir: Ino,
    held: bool,
    path: Vec<u8>,
    names: Vec<DirEntry>,
}

struct Walk<'a> {
    fs: &'a dyn FileSystem,
    manifest: Manifest,
    groups: Groups,
}

impl Walk<'_> {
    fn names(&self, dir: Ino) -> Result<Vec<DirEntry>, Error> {
        let mut names = Vec::new();
        self.fs.readdir(dir, 0, &mut |entry| {
            names.push(entry);
            ControlFlow::Continue(())
        })?;
        // Popped from the end: in order of names, so that the first of several names of one
        // inode is the same for every lister.
        names.sort_by(|a, b| b.name.cmp(&a.name));
        Ok(names)
    }

    fn entry(&mut self, attr: &Attr, path: Vec<u8>) -> Result<(), Error> {
        let ino = attr.ino;
        let content = match attr.kind {
            FileKind::Regular => self.file(attr)?,
            FileKind::Symlink => Content::Link(self.fs.readlink(ino)?),
            _ => Content::Other,
        };
        let is_dir = attr.kind == FileKind::Directory;
        let shown_flags = is_dir || attr.kind == FileKind::Regular;
        let mut entry = Entry {
            ino: ino.0 & OBJECTID,
            mode: attr.kind.mode_bits() | attr.perm,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            blocks: attr.allocated.div_ceil(512),
            rdev: attr.rdev,
            mtime: attr.mtime,
            ctime: attr.ctime,
            btime: Some(attr.btime),
            flags: shown_flags.then_some(attr.flags.bits() | attr.layout),
            same_as: self
                .groups
                .first(0, ino.0, if is_dir { 1 } else { attr.nlink }, &path),
            content,
            xattrs: std::collections::BTreeMap::new(),
        };
        for name in self.fs.listxattr(ino)? {
            let value = self.fs.getxattr(ino, &name)?;
            entry.xattrs.insert(name, value);
        }
        self.manifest.entries.insert(path, entry);
        Ok(())
    }

    fn file(&self, attr: &Attr) -> Result<Content, Error> {
        let data = data_map(attr.size, |at, data| {
            let from = if data {
                SeekFrom::Data(at)
            } else {
                SeekFrom::Hole(at)
            };
            match self.fs.seek(attr.ino, from) {
                Ok(found) => Ok(Some(found)),
                Err(Error::NoSuchOffset) => Ok(None),
                Err(error) => Err(error),
            }
        })?;
        let sha256 = hash(attr.size, &in_pages(attr.size, &data), |at, buffer| {
            self.fs.read(attr.ino, at, buffer)
        })?;
        Ok(Content::File { sha256, data })
    }
}
