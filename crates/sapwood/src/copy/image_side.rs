//! A copy's side in an image.
//!
//! A node holds a reference to its inode; every step below an operand looks up one name in a
//! directory.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::archive::{Final, Gate, new_inode};
use crate::damage::{Content, InImage, Salvage, read_data};
use crate::fs::FileSystem;
use crate::tree::{self, HeldInode as Inode, join};
use crate::vfs::acl::DEFAULT;
use crate::vfs::{self, Cause, CopyMode, Error, FileKind, SetAttr, WriteMode};

use super::error::{CopyCause, CopyError, Result};
use super::side::{
    Fill, Handle, Meta, New, Node, Rules, SET_ID, Scratch, Shown, Side, Sink, SinkNode, Source,
    SourceNode, Take, Xattrs, single_name,
};
use crate::shown;

/// File capabilities, which do not outlive a change of the owner.
const CAPABILITY: &[u8] = b"security.capability";
/// Names read from a directory at once.
const NAMES: usize = 1024;

pub(super) struct ImageSide {
    /// Name of the image in errors.
    shown: PathBuf,
    fs: FileSystem,
    /// Distinguishes images, in [`Meta::id`].
    number: u64,
}

impl ImageSide {
    /// `number`: a different one for each image of the command.
    pub(super) fn new(shown: PathBuf, fs: FileSystem, number: u64) -> Self {
        // Device numbers of this machine are far smaller.
        let number = u64::MAX - number;
        Self { shown, fs, number }
    }

    pub(super) fn fs(&self) -> &FileSystem {
        &self.fs
    }

    fn vfs(&self) -> &dyn vfs::FileSystem {
        &**self.fs.engine()
    }

    fn fail(&self, path: &[u8], error: Error) -> CopyError {
        let ends = matches!(error, Error::NoSpace | Error::Quota | Error::ReadOnly);
        let failure = CopyError::on(self.shown(path), error);
        if ends { failure.that_ends() } else { failure }
    }

    fn wrap<'s>(&'s self, inode: Inode<'s>, path: Vec<u8>, acls: bool) -> ImageNode<'s> {
        let attr = inode.attr();
        let meta = Meta {
            kind: attr.kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: attr.size,
            nlink: attr.nlink.into(),
            id: (self.number, attr.ino.0),
            atime: attr.atime,
            mtime: attr.mtime,
        };
        ImageNode {
            side: self,
            inode,
            path,
            meta,
            may_have_acls: acls,
            gives_acls: OnceLock::new(),
        }
    }
}

impl ImageSide {
    fn find(&self, path: &[u8], follow: bool) -> Result<Option<ImageNode<'_>>> {
        match tree::resolve(self.vfs(), path, follow) {
            Ok(inode) => Ok(Some(self.wrap(inode, path.to_vec(), true))),
            Err(Error::NotFound) => Ok(None),
            Err(error) => Err(self.fail(path, error)),
        }
    }
}

impl Side for ImageSide {
    fn source(&self, path: &[u8], follow: bool) -> Result<Option<Source<'_>>> {
        let found = self.find(path, follow)?;
        Ok(found.map(|node| Box::new(node) as Source<'_>))
    }

    fn sink(&self, path: &[u8], follow: bool) -> Result<Option<Sink<'_>>> {
        let found = self.find(path, follow)?;
        Ok(found.map(|node| Box::new(node) as Sink<'_>))
    }

    fn sink_parent(&self, path: &[u8]) -> Result<(Sink<'_>, Vec<u8>)> {
        let (dir, name) =
            tree::resolve_parent(self.vfs(), path).map_err(|error| self.fail(path, error))?;
        let parts: Vec<&[u8]> = path
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty())
            .collect();
        let above = parts.split_last().map(|(_, above)| above.join(&b'/'));
        Ok((
            Box::new(self.wrap(dir, above.unwrap_or_default(), true)),
            name,
        ))
    }

    fn shown(&self, path: &[u8]) -> String {
        format!("{}:/{}", self.shown.display(), shown::name(path))
    }

    fn is_image(&self) -> bool {
        true
    }
}

struct ImageNode<'s> {
    side: &'s ImageSide,
    inode: Inode<'s>,
    path: Vec<u8>,
    meta: Meta,
    may_have_acls: bool,
    /// Cached result of `gives_acls`.
    gives_acls: OnceLock<bool>,
}

impl<'s> ImageNode<'s> {
    fn find_child(&self, name: &[u8]) -> Result<Option<Self>> {
        single_name(self, name)?;
        match self.side.vfs().lookup(self.inode.ino(), name) {
            Ok(entry) => {
                let inode = Inode::new(self.side.vfs(), entry);
                let path = join(&self.path, name);
                Ok(Some(self.side.wrap(inode, path, true)))
            }
            Err(Error::NotFound) => Ok(None),
            Err(error) => self.on_child(name, Err(error)),
        }
    }

    fn gate(&self) -> Gate<'s> {
        Gate::new(self.side.vfs(), None)
    }

    /// Whether new inodes in this directory may inherit ACLs. A directory gets its own ACLs when
    /// everything in it is made.
    fn gives_acls(&self) -> bool {
        *self.gives_acls.get_or_init(|| {
            let default = self.side.vfs().getxattr(self.inode.ino(), DEFAULT);
            !matches!(default, Err(Error::NoAttribute | Error::NotSupported))
        })
    }

    fn on<T>(&self, result: Result<T, Error>) -> Result<T> {
        result.map_err(|error| self.side.fail(&self.path, error))
    }

    fn on_child<T>(&self, name: &[u8], result: Result<T, Error>) -> Result<T> {
        result.map_err(|error| self.side.fail(&join(&self.path, name), error))
    }

    fn set(&self, changes: &SetAttr) -> Result<()> {
        self.on(self.side.vfs().setattr(self.inode.ino(), changes))
            .map(drop)
    }
}

impl Shown for ImageNode<'_> {
    fn shown(&self) -> String {
        self.side.shown(&self.path)
    }
}

impl ImageNode<'_> {
    fn content(&self) -> InImage<'_> {
        InImage(self.side.vfs(), self.inode.ino())
    }
}

impl Content for ImageNode<'_> {
    type Error = CopyError;

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        self.on(self.content().read(at, buf))
    }

    fn data(&self, at: u64) -> Result<Option<u64>> {
        self.on(self.content().data(at))
    }

    fn hole(&self, at: u64) -> Result<u64> {
        self.on(self.content().hole(at))
    }

    fn damage(error: CopyError) -> Result<Cause> {
        error.into_damage()
    }
}

impl Node for ImageNode<'_> {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn handle(&self) -> Result<Handle<'_>> {
        Ok(Handle::Ino(self.inode.ino()))
    }
}

impl<'s> SourceNode<'s> for ImageNode<'s> {
    fn open(&self) -> Result<()> {
        match self.meta.kind {
            FileKind::Regular => Ok(()),
            kind => Err(CopyError::on(self.shown(), CopyCause::NoContent(kind))),
        }
    }

    fn read(
        &self,
        scratch: &mut Scratch,
        salvage: &mut Salvage,
        take: &mut Take<'_>,
    ) -> Result<()> {
        self.open()?;
        read_data(self, self.meta.size, &mut scratch.piece, salvage, take)
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        self.on(self.side.vfs().readlink(self.inode.ino()))
    }

    fn xattrs(&self, _: &mut Scratch) -> Result<Xattrs> {
        let (fs, ino) = (self.side.vfs(), self.inode.ino());
        let mut all = Vec::new();
        for name in self.on(fs.listxattr(ino))? {
            let value = self.on(fs.getxattr(ino, &name))?;
            all.push((name, value));
        }
        Ok(all)
    }

    fn names(&self, from: u64) -> Result<Vec<(Vec<u8>, u64)>> {
        let mut names = Vec::new();
        let read = self
            .side
            .vfs()
            .readdir(self.inode.ino(), from, &mut |entry| {
                names.push((entry.name, entry.next));
                if names.len() < NAMES {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            });
        self.on(read).map(|()| names)
    }

    fn child(&self, name: &[u8]) -> Result<Option<Source<'s>>> {
        let found = self.find_child(name)?;
        Ok(found.map(|node| Box::new(node) as Source<'s>))
    }
}

impl<'s> SinkNode<'s> for ImageNode<'s> {
    fn existing(&self, name: &[u8]) -> Result<Option<Sink<'s>>> {
        let found = self.find_child(name)?;
        Ok(found.map(|node| Box::new(node) as Sink<'s>))
    }

    fn create(&self, name: &[u8], rules: &Rules, like: &New<'_>) -> Result<Sink<'s>> {
        single_name(self, name)?;
        let meta = like.meta;
        let what = new_inode(meta.kind, meta.rdev, like.target);
        let who = rules.credentials(meta);
        // With its owner from the start nothing has to be given away later. Set-id bits come last.
        let perm = meta.perm & !SET_ID;
        let created = self.gate().create(&who, &self.inode, name, what, perm);
        let inode = self.on_child(name, created)?;
        let path = join(&self.path, name);
        Ok(Box::new(self.side.wrap(inode, path, self.gives_acls())))
    }

    fn most_filled(&self) -> u64 {
        self.side.vfs().most_filled()
    }

    fn create_filled(&self, name: &[u8], rules: &Rules, meta: &Meta, data: &[u8]) -> Result<bool> {
        single_name(self, name)?;
        let who = rules.credentials(meta);
        let perm = rules
            .mode
            .unwrap_or_else(|| rules.perm(meta, (who.uid, who.gid)));
        if perm & SET_ID != 0 || self.gives_acls() {
            return Ok(false);
        }
        let content = vfs::Content {
            data,
            atime: meta.atime,
            mtime: meta.mtime,
        };
        let gate = self.gate();
        let made = gate.create_filled(&who, &self.inode, name, perm, &content);
        let Some(inode) = self.on_child(name, made)? else {
            return Ok(false);
        };
        let attr = inode.attr();
        // A directory with set-group-id gives what is made in it its own group.
        if (attr.uid, attr.gid, attr.perm) != (who.uid, who.gid, perm) {
            let changes = SetAttr {
                uid: Some(who.uid),
                gid: Some(who.gid),
                perm: Some(perm),
                ..SetAttr::default()
            };
            self.on_child(name, gate.set(inode.ino(), &changes))?;
        }
        Ok(true)
    }

    fn link(&self, name: &[u8], old_dir: &dyn SinkNode<'s>, old: &[u8]) -> Result<()> {
        single_name(self, name)?;
        let Handle::Ino(from) = old_dir.handle()? else {
            return Err(CopyError::on(self.shown(), CopyCause::LinkLeaves));
        };
        let fs = self.side.vfs();
        let old = self.on_child(name, fs.lookup(from, old))?;
        let old = Inode::new(fs, old);
        let linked = self.on_child(name, fs.link(old.ino(), self.inode.ino(), name))?;
        drop(Inode::new(fs, linked));
        Ok(())
    }

    fn remove(&self, name: &[u8]) -> Result<()> {
        single_name(self, name)?;
        self.on_child(name, self.side.vfs().unlink(self.inode.ino(), name))
    }

    fn truncate(&self, rules: &Rules) -> Result<()> {
        if self.meta.kind != FileKind::Regular {
            return Err(CopyError::on(
                self.shown(),
                CopyCause::NotWritten(self.meta.kind),
            ));
        }
        let keep = rules.archive || self.meta.perm & SET_ID == 0;
        self.set(&SetAttr {
            size: Some(0),
            perm: (!keep).then_some(self.meta.perm & !SET_ID),
            ..SetAttr::default()
        })
    }

    fn share(&self, from: &dyn SourceNode<'s>) -> Result<bool> {
        if from.meta().id.0 != self.meta.id.0 {
            return Ok(false);
        }
        let Handle::Ino(source) = from.handle()? else {
            return Ok(false);
        };
        let (fs, ino) = (self.side.vfs(), self.inode.ino());
        // A length of 0 is the whole file.
        match fs.copy_range(source, 0, ino, 0, 0, CopyMode::ShareOnly) {
            Ok(_) => Ok(true),
            Err(Error::NotSupported | Error::Invalid) => Ok(false),
            Err(error) => self.on(Err(error)),
        }
    }

    fn write(&self, fill: &mut Fill<'_>) -> Result<()> {
        let (fs, ino) = (self.side.vfs(), self.inode.ino());
        let mut end = 0;
        let size = fill(&mut |at, data| {
            end = self.on(fs.write(ino, at, data, WriteMode::default()))?;
            Ok(())
        })?;
        if end < size {
            self.set(&SetAttr {
                size: Some(size),
                ..SetAttr::default()
            })
        } else {
            Ok(())
        }
    }

    fn finish(&self, rules: &Rules, meta: &Meta, xattrs: &Xattrs, made: bool) -> Result<()> {
        let who = rules.credentials(meta);
        let owner = (who.uid, who.gid);
        // A directory with set-group-id gives what is made in it its own group.
        let keeps = made && owner == (self.meta.uid, self.meta.gid);
        let gives = (!keeps).then_some(owner).unzip();
        let mode = rules.mode.filter(|_| self.meta.kind == FileKind::Regular);
        if !rules.archive {
            let (uid, gid) = if made && rules.owner.is_some() {
                gives
            } else {
                (None, None)
            };
            if uid.is_some() {
                let owner = SetAttr {
                    uid,
                    gid,
                    ..SetAttr::default()
                };
                self.set(&owner)?;
            }
            let changes = SetAttr {
                perm: mode,
                ..SetAttr::default()
            };
            return mode.map_or(Ok(()), |_| self.set(&changes));
        }
        let mut xattrs = Cow::Borrowed(xattrs);
        if owner != (meta.uid, meta.gid) && xattrs.iter().any(|(name, _)| name == CAPABILITY) {
            xattrs.to_mut().retain(|(name, _)| name != CAPABILITY);
        }
        let last = Final {
            owner: gives,
            perm: mode.or((meta.kind != FileKind::Symlink).then_some(rules.perm(meta, owner))),
            atime: Some(meta.atime),
            mtime: Some(meta.mtime),
            xattrs: &xattrs,
        };
        if self.may_have_acls {
            self.on(self.gate().remove_other_acls(&self.inode, &xattrs))?;
        }
        let finished = self
            .gate()
            .finish(self.inode.ino(), &last, &mut |_, error| match error {
                // An attribute of another kind of file system means nothing here.
                Error::NotSupported => Ok(()),
                error => Err(error),
            });
        self.on(finished)
    }
}
