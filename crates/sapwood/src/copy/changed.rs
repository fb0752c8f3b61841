//! A source with changed metadata, without the files that are left out.

use super::error::Result;
use super::side::{Handle, Meta, Node, Scratch, Shown, Source, SourceNode, Take, Xattrs};
use crate::archive::{self, Mark};
use crate::changes::Changes;
use crate::damage::Salvage;
use crate::tree::join;
use crate::vfs::FileKind;

/// A node of the source with the metadata that its copy gets.
pub(super) struct Changed<'s> {
    node: Source<'s>,
    /// Its path from the root of the image.
    path: Vec<u8>,
    meta: Meta,
    /// It is in a layer of overlayfs, which has whiteouts and attributes of its own.
    layer: bool,
    changes: &'s Changes,
}

impl<'s> Changed<'s> {
    pub(super) fn new(node: Source<'s>, path: Vec<u8>, layer: bool, changes: &'s Changes) -> Self {
        let mut meta = node.meta().clone();
        (meta.uid, meta.gid) = changes.owner(&path, (meta.uid, meta.gid));
        meta.mtime = changes.time(meta.mtime);
        meta.atime = changes.time(meta.atime);
        Self {
            node,
            path,
            meta,
            layer,
            changes,
        }
    }

    /// Whether a name in this directory is a whiteout of a layer.
    fn is_whiteout(&self, name: &[u8], scratch: &mut Scratch) -> bool {
        let Ok(Some(node)) = self.node.child(name) else {
            return false;
        };
        let Meta {
            kind, rdev, size, ..
        } = *node.meta();
        let xattrs = match kind {
            FileKind::Regular if size == 0 => node.xattrs(scratch).unwrap_or_default(),
            _ => Xattrs::new(),
        };
        Mark::of(kind, rdev, size, &xattrs) == Ok(Mark::Whiteout)
    }
}

impl Shown for Changed<'_> {
    fn shown(&self) -> String {
        self.node.shown()
    }
}

impl Node for Changed<'_> {
    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn handle(&self) -> Result<Handle<'_>> {
        self.node.handle()
    }
}

impl<'s> SourceNode<'s> for Changed<'s> {
    fn open(&self) -> Result<()> {
        self.node.open()
    }

    fn read(
        &self,
        scratch: &mut Scratch,
        salvage: &mut Salvage,
        take: &mut Take<'_>,
    ) -> Result<()> {
        self.node.read(scratch, salvage, take)
    }

    fn whole<'b>(&self, scratch: &'b mut Scratch) -> Result<Option<&'b [u8]>> {
        self.node.whole(scratch)
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        self.node.read_link()
    }

    fn xattrs(&self, scratch: &mut Scratch) -> Result<Xattrs> {
        let mut xattrs = self.node.xattrs(scratch)?;
        if self.layer {
            archive::strip(&mut xattrs);
        }
        self.changes.label(&self.path, self.meta.kind, &mut xattrs);
        Ok(xattrs)
    }

    fn names(&self, mut from: u64) -> Result<Vec<(Vec<u8>, u64)>> {
        loop {
            let mut names = self.node.names(from)?;
            let Some((_, next)) = names.last() else {
                return Ok(names);
            };
            from = *next;
            names.retain(|(name, _)| !self.changes.excludes(&join(&self.path, name)));
            if self.layer {
                let mut scratch = Scratch::default();
                names.retain(|(name, _)| !self.is_whiteout(name, &mut scratch));
            }
            if !names.is_empty() {
                return Ok(names);
            }
        }
    }

    fn child(&self, name: &[u8]) -> Result<Option<Source<'s>>> {
        let Some(child) = self.node.child(name)? else {
            return Ok(None);
        };
        let path = join(&self.path, name);
        Ok(Some(Box::new(Self::new(
            child,
            path,
            self.layer,
            self.changes,
        ))))
    }
}
