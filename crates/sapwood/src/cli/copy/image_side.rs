//! A copy's side in an image.

use std::collections::HashMap;
use std::path::PathBuf;

use parking_lot::Mutex;
use sapwood::image::Mounted;
use sapwood::tree::{self, Node};
use sapwood_vfs::{
    Credentials, Error, FileKind, Ino, NewInode, SeekFrom, SetAttr, SetTime, SetXattrMode,
    WriteMode,
};

use super::super::failure::{Failure, Result};
use super::{CHUNK, Fill, Meta, Scratch, Side, Sink, shown_in_image};

pub(super) struct ImageSide {
    image: PathBuf,
    fs: Mounted,
    /// Directories on the way to the last path, so that a long walk does not start at the root each time.
    dirs: Mutex<HashMap<Vec<u8>, Ino>>,
}

/// Directories remembered.
const DIRS_MAX: usize = 1024;

impl ImageSide {
    pub(super) fn new(image: PathBuf, fs: Mounted) -> Self {
        Self {
            image,
            fs,
            dirs: Mutex::new(HashMap::new()),
        }
    }

    pub(super) fn fs(&self) -> &Mounted {
        &self.fs
    }

    fn fail(&self, path: &[u8], error: Error) -> Failure {
        Failure::on(self.shown(path), error)
    }

    /// Directory of `path` and the last name.
    fn parent(&self, path: &[u8]) -> Result<(Ino, Vec<u8>), Error> {
        let (dir, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (
                path.get(..at).unwrap_or_default(),
                path.get(at + 1..).unwrap_or_default(),
            ),
            None => (&b""[..], path),
        };
        if name.is_empty() || name == b"." || name == b".." {
            let (node, name) = tree::resolve_parent(&*self.fs, path)?;
            return Ok((node.ino(), name));
        }
        if let Some(ino) = self.dirs.lock().get(dir) {
            return Ok((*ino, name.to_vec()));
        }
        let node = tree::resolve(&*self.fs, dir, true)?;
        if !node.is_dir() {
            return Err(Error::NotDirectory);
        }
        let ino = node.ino();
        let mut dirs = self.dirs.lock();
        if dirs.len() >= DIRS_MAX {
            dirs.clear();
        }
        dirs.insert(dir.to_vec(), ino);
        Ok((ino, name.to_vec()))
    }

    fn node(&self, path: &[u8]) -> Result<Node<'_>> {
        self.find(path).map_err(|error| self.fail(path, error))
    }

    fn find(&self, path: &[u8]) -> Result<Node<'_>, Error> {
        match path.is_empty() {
            true => Node::root(&*self.fs),
            false => match self.parent(path) {
                Ok((dir, name)) => self
                    .fs
                    .lookup(dir, &name)
                    .map(|entry| Node::new(&*self.fs, entry)),
                Err(Error::Invalid) => tree::resolve(&*self.fs, path, false),
                Err(error) => Err(error),
            },
        }
    }

    fn meta_of(&self, path: &[u8], follow: bool) -> Result<Option<Meta>> {
        let found = match follow {
            true => tree::resolve(&*self.fs, path, true),
            false => self.find(path),
        };
        let attr = match found {
            Ok(node) => *node.attr(),
            Err(Error::NotFound) => return Ok(None),
            Err(error) => return Err(self.fail(path, error)),
        };
        Ok(Some(Meta {
            kind: attr.kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: attr.size,
            nlink: attr.nlink.into(),
            id: (0, attr.ino.0),
            atime: attr.atime,
            mtime: attr.mtime,
        }))
    }
}

impl Side for ImageSide {
    fn meta(&self, path: &[u8]) -> Result<Option<Meta>> {
        self.meta_of(path, false)
    }

    fn meta_followed(&self, path: &[u8]) -> Result<Option<Meta>> {
        self.meta_of(path, true)
    }

    fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let entries = self
            .node(path)?
            .list()
            .map_err(|error| self.fail(path, error))?;
        Ok(entries.into_iter().map(|entry| entry.name).collect())
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        let node = self.node(path)?;
        self.fs
            .readlink(node.ino())
            .map_err(|error| self.fail(path, error))
    }

    fn xattrs(&self, path: &[u8], _: &mut Scratch) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let node = self.node(path)?;
        let fail = |error| self.fail(path, error);
        let mut all = Vec::new();
        for name in self.fs.listxattr(node.ino()).map_err(fail)? {
            let value = self.fs.getxattr(node.ino(), &name).map_err(fail)?;
            all.push((name, value));
        }
        Ok(all)
    }

    fn read(&self, path: &[u8], scratch: &mut Scratch, sink: &mut Sink<'_>) -> Result<()> {
        let node = self.node(path)?;
        let fail = |error| self.fail(path, error);
        let buf = &mut scratch.piece;
        let mut at = 0;
        loop {
            at = match self.fs.seek(node.ino(), SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Error::NoSuchOffset) => return Ok(()),
                Err(error) => return Err(fail(error)),
            };
            let end = self.fs.seek(node.ino(), SeekFrom::Hole(at)).map_err(fail)?;
            while at < end {
                let want = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
                let count = self
                    .fs
                    .read(node.ino(), at, buf.get_mut(..want).unwrap_or_default())
                    .map_err(fail)?;
                if count == 0 {
                    return Ok(());
                }
                sink(at, buf.get(..count).unwrap_or_default())?;
                at += count as u64;
            }
        }
    }

    fn make(&self, path: &[u8], meta: &Meta, target: &[u8]) -> Result<()> {
        if path.is_empty() {
            return Ok(());
        }
        let what = match meta.kind {
            FileKind::Regular => NewInode::Regular,
            FileKind::Directory => NewInode::Directory,
            FileKind::Symlink => NewInode::Symlink(target),
            FileKind::CharDevice => NewInode::CharDevice(meta.rdev),
            FileKind::BlockDevice => NewInode::BlockDevice(meta.rdev),
            FileKind::Fifo => NewInode::Fifo,
            FileKind::Socket => NewInode::Socket,
        };
        let (dir, name) = self.parent(path).map_err(|error| self.fail(path, error))?;
        let entry = self
            .fs
            .create(&Credentials::ROOT, dir, &name, what, meta.perm)
            .map_err(|error| self.fail(path, error))?;
        drop(Node::new(&*self.fs, entry));
        Ok(())
    }

    fn link(&self, old: &[u8], new: &[u8]) -> Result<()> {
        let node = self.node(old)?;
        let (dir, name) = self.parent(new).map_err(|error| self.fail(new, error))?;
        let entry = self
            .fs
            .link(node.ino(), dir, &name)
            .map_err(|error| self.fail(new, error))?;
        drop(Node::new(&*self.fs, entry));
        Ok(())
    }

    fn remove(&self, path: &[u8]) -> Result<()> {
        let (dir, name) = self.parent(path).map_err(|error| self.fail(path, error))?;
        self.fs
            .unlink(dir, &name)
            .map_err(|error| self.fail(path, error))
    }

    fn write(&self, path: &[u8], size: u64, fill: &mut Fill<'_>) -> Result<()> {
        let node = self.node(path)?;
        let mut end = 0;
        fill(&mut |at, data| {
            end = self
                .fs
                .write(node.ino(), at, data, WriteMode::default())
                .map_err(|error| self.fail(path, error))?;
            Ok(())
        })?;
        if end < size {
            let changes = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            self.fs
                .setattr(node.ino(), &changes)
                .map_err(|error| self.fail(path, error))?;
        }
        Ok(())
    }

    fn set_xattrs(&self, path: &[u8], xattrs: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
        let node = self.node(path)?;
        for (name, value) in xattrs {
            match self.fs.setxattr(node.ino(), name, value, SetXattrMode::Any) {
                // An attribute of another kind of file system means nothing here.
                Err(Error::NotSupported) => {}
                other => other.map_err(|error| self.fail(path, error))?,
            }
        }
        Ok(())
    }

    fn set_meta(&self, path: &[u8], meta: &Meta) -> Result<()> {
        let node = self.node(path)?;
        let changes = SetAttr {
            perm: (meta.kind != FileKind::Symlink).then_some(meta.perm),
            uid: Some(meta.uid),
            gid: Some(meta.gid),
            atime: Some(SetTime::To(meta.atime)),
            mtime: Some(SetTime::To(meta.mtime)),
            ..SetAttr::default()
        };
        self.fs
            .setattr(node.ino(), &changes)
            .map(drop)
            .map_err(|error| self.fail(path, error))
    }

    fn shown(&self, path: &[u8]) -> String {
        shown_in_image(&self.image, path)
    }
}
