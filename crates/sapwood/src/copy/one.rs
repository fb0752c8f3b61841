//! Copying one node that is no directory: its content, or the node itself.

use crate::damage::Salvage;
use crate::vfs::FileKind;

use super::canonical::{Canonical, has_hole};
use super::error::{CopyCause, CopyError, Result};
use super::report::Item;
use super::side::{Meta, New, Node, Scratch, Shown, SinkNode, SourceNode, Take, Xattrs};
use super::walk::{Copy, Target};

impl<'a> Copy<'_> {
    /// Copies one thing that is no directory.
    pub(super) fn single(&self, from: &dyn SourceNode<'a>, place: Target<'a>) -> Result<()> {
        self.report.check_stop()?;
        let mut scratch = Scratch::default();
        let reads = self.by_content(from.meta());
        let began = |to: &dyn Shown, name: &[u8]| {
            let from = &from;
            self.report.one(&Item { from, to, name });
        };
        let (dir, name) = match place {
            Target::Name(dir, name) => (dir, name),
            Target::Directory(dir) => return Err(CopyError::on(dir.shown(), CopyCause::Directory)),
            Target::Content(to) => {
                if self.keeps(from.meta(), to.meta()) {
                    return Ok(());
                }
                began(&to, b"");
                refuse_same(from, &*to)?;
                if !reads {
                    return Err(CopyError::on(from.shown(), CopyCause::ReplacesNone));
                }
                from.open()?;
                to.truncate(&self.rules)?;
                return self.content(from, &*to, false, &mut scratch);
            }
        };
        let there = dir.existing(&name)?;
        if let Some(there) = &there
            && self.keeps(from.meta(), there.meta())
        {
            return Ok(());
        }
        began(&dir, &name);
        if let Some(there) = there {
            refuse_same(from, &*there)?;
            if there.meta().kind == FileKind::Directory {
                return Err(CopyError::on(there.shown(), CopyCause::Directory));
            }
            if reads {
                from.open()?;
            }
            dir.remove(&name)?;
        }
        if reads {
            self.file(from, &*dir, &name, &mut scratch)
        } else {
            self.special(from, &*dir, &name, &mut scratch)
        }
    }

    /// True if the content is copied, not the node. Without `-r` the content of a fifo, device or
    /// socket is copied, as with cp(1).
    pub(super) fn by_content(&self, meta: &Meta) -> bool {
        match meta.kind {
            FileKind::Regular => true,
            FileKind::Symlink | FileKind::Directory => false,
            _ => !self.recursive,
        }
    }

    pub(super) fn special(
        &self,
        from: &dyn SourceNode<'a>,
        dir: &dyn SinkNode<'a>,
        name: &[u8],
        scratch: &mut Scratch,
    ) -> Result<()> {
        let meta = from.meta();
        let target = match meta.kind {
            FileKind::Symlink => from.read_link()?,
            _ => Vec::new(),
        };
        let made = dir.create(
            name,
            &self.rules,
            &New {
                meta,
                target: &target,
            },
        )?;
        self.finish(from, &*made, true, scratch)
    }

    pub(super) fn file(
        &self,
        from: &dyn SourceNode<'a>,
        dir: &dyn SinkNode<'a>,
        name: &[u8],
        scratch: &mut Scratch,
    ) -> Result<()> {
        from.open()?;
        if self.filled(from, dir, name, scratch)? {
            return Ok(());
        }
        let meta = Meta {
            kind: FileKind::Regular,
            ..from.meta().clone()
        };
        let made = dir.create(
            name,
            &self.rules,
            &New {
                meta: &meta,
                target: b"",
            },
        )?;
        self.content(from, &*made, true, scratch)
    }

    /// Makes a small file together with its content, if that can be done and it has no attributes.
    /// False: it was not made.
    fn filled(
        &self,
        from: &dyn SourceNode<'a>,
        dir: &dyn SinkNode<'a>,
        name: &[u8],
        scratch: &mut Scratch,
    ) -> Result<bool> {
        let mut meta = from.meta().clone();
        let small = (1..=dir.most_filled()).contains(&meta.size);
        if !small || !self.rules.archive || !from.xattrs(scratch)?.is_empty() {
            return Ok(false);
        }
        let Some(data) = from.whole(scratch)? else {
            return Ok(false);
        };
        if self.canonical {
            if has_hole(data) {
                return Ok(false);
            }
            // Reading a source changes its access times.
            meta.atime = meta.mtime;
        }
        self.report.check_stop()?;
        let made = dir.create_filled(name, &self.rules, &meta, data)?;
        if made {
            self.report.bytes(meta.size);
        }
        Ok(made)
    }

    pub(super) fn content(
        &self,
        from: &dyn SourceNode<'a>,
        to: &dyn SinkNode<'a>,
        made: bool,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let meta = from.meta();
        let filled = meta.size > 0 || meta.kind != FileKind::Regular;
        let mut salvage = self.salvage();
        if filled && to.share(from)? {
            self.report.bytes(meta.size);
        } else if filled {
            let mut fill = |to: &mut Take<'_>| {
                let mut take = |at, data: &[u8]| {
                    self.report.check_stop()?;
                    to(at, data)?;
                    self.report.bytes(data.len() as u64);
                    Ok(())
                };
                if !self.canonical {
                    from.read(scratch, &mut salvage, &mut take)?;
                    self.report.check_stop()?;
                    return Ok(salvage.length(meta.size));
                }
                let mut blocks = Canonical::new();
                let mut add = |at, data: &[u8]| blocks.add(at, data, &mut take);
                from.read(scratch, &mut salvage, &mut add)?;
                let length = salvage.length(meta.size);
                blocks.end(length, &mut take)?;
                Ok(length)
            };
            to.write(&mut fill)?;
        }
        self.finish(from, to, made, scratch)?;
        match salvage.found() {
            None => Ok(()),
            Some(damage) => Err(CopyError::on(from.shown(), CopyCause::Damaged(damage))),
        }
    }

    /// A new record of damage, for reading one file.
    pub(super) fn salvage(&self) -> Salvage {
        Salvage::new(self.keep_going, self.report.stop())
    }

    pub(super) fn finish(
        &self,
        from: &dyn SourceNode<'a>,
        to: &dyn SinkNode<'a>,
        made: bool,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let xattrs = if self.rules.archive {
            from.xattrs(scratch)?
        } else {
            Xattrs::new()
        };
        if !self.canonical {
            return to.finish(&self.rules, from.meta(), &xattrs, made);
        }
        // Reading a source changes its access times.
        let meta = Meta {
            atime: from.meta().mtime,
            ..from.meta().clone()
        };
        to.finish(&self.rules, &meta, &xattrs, made)
    }
}

/// Refuses to copy a node onto itself.
pub(super) fn refuse_same(from: &(impl Node + ?Sized), to: &(impl Node + ?Sized)) -> Result<()> {
    if from.meta().id == to.meta().id {
        Err(CopyError::on(to.shown(), CopyCause::SameFile(from.shown())))
    } else {
        Ok(())
    }
}
