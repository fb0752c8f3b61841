//! Adds the names, content and attributes of the new tree that the copy lacks.

use std::collections::{HashMap, HashSet};

use super::content::Comparison;
use super::pairs::Pairs;
use super::remove::{Stash, loosen, project, set_project};
use super::{ADAPTING, Result, at, check, child, names, sealed};
use crate::Kind;
use crate::archive::new_inode;
use crate::fs::verity;
use crate::progress::{OnProgress, Progress, Stop};
use crate::tree::{HeldInode, is_of_format, join};
use crate::vfs::{
    self, AllocMode, Attr, Credentials, FileKind, Ino, InodeFlags, SetAttr, SetTime, SetXattrMode,
    Timestamp, WriteMode,
};

/// Prefix of properties that decide how the data of a btrfs file is stored.
const PROPERTY: &[u8] = b"btrfs.";

/// A directory of both trees.
struct Level<'t> {
    new: HeldInode<'t>,
    there: HeldInode<'t>,
    names: std::vec::IntoIter<Vec<u8>>,
    path: Vec<u8>,
    made: bool,
}

struct Making<'t, 'p> {
    there: &'t dyn vfs::FileSystem,
    kind: Kind,
    pairs: &'p Pairs,
    /// Inodes with several names that were made, by their number in the new tree.
    made: HashMap<Ino, Ino>,
    /// Inodes with several names that are complete.
    complete: HashSet<Ino>,
    comparison: Comparison,
}

/// Makes everything, and removes the stash.
pub(super) fn all<'t>(
    (there, kind): (&'t dyn vfs::FileSystem, Kind),
    new: &'t dyn vfs::FileSystem,
    pairs: &Pairs,
    stash: Option<Stash<'t>>,
    stop: &Stop,
    progress: &mut OnProgress<'_>,
) -> Result<()> {
    let mut making = Making {
        there,
        kind,
        pairs,
        made: HashMap::new(),
        complete: HashSet::new(),
        comparison: Comparison::default(),
    };
    let roots = HeldInode::root(new).and_then(|new| Ok((new, HeldInode::root(there)?)));
    let (top, there_top) = roots.map_err(at("read", b""))?;
    let mut open = vec![Level::new(top, there_top, Vec::new(), false)?];
    let mut done = 0;
    let mut stash = stash;
    while let Some(level) = open.last_mut() {
        check(stop)?;
        let Some(name) = level.names.next() else {
            let Some(left) = open.pop() else { break };
            if let Some(stash) = stash.take_if(|_| open.is_empty()) {
                stash.remove().map_err(at("remove", b""))?;
            }
            let attributes = making.attributes(&left.new, &left.there, left.made);
            attributes.map_err(at("set the attributes of", &left.path))?;
            continue;
        };
        let path = join(&level.path, &name);
        let below = making.name(level, &name);
        if let Some((new, there, made)) = below.map_err(at("make", &path))? {
            open.push(Level::new(new, there, path, made)?);
        }
        done += 1;
        progress(Progress::Done {
            phase: ADAPTING,
            done,
        });
    }
    Ok(())
}

impl<'t> Level<'t> {
    fn new(new: HeldInode<'t>, there: HeldInode<'t>, path: Vec<u8>, made: bool) -> Result<Self> {
        let names = names(&new).map_err(at("list", &path))?;
        Ok(Self {
            new,
            there,
            names: names.into_iter(),
            path,
            made,
        })
    }
}

impl<'t> Making<'t, '_> {
    /// Makes a name. An inode that is no directory is complete afterwards. A directory is returned
    /// to be filled, with whether it was made.
    fn name(
        &mut self,
        level: &Level<'t>,
        name: &[u8],
    ) -> vfs::Result<Option<(HeldInode<'t>, HeldInode<'t>, bool)>> {
        let own = |dir: &HeldInode<'t>| is_of_format(self.kind, dir, name);
        if own(&level.new)? && child(&level.there, name)?.is_some() && own(&level.there)? {
            return Ok(None);
        }
        let new = level.new.child(name)?;
        let known = self.pairs.old_of(new.ino());
        let known = known.or_else(|| self.made.get(&new.ino()).copied());
        let (node, made) = match known {
            Some(ino) => (self.named(level, name, ino)?, false),
            None => (self.create(level, name, &new)?, true),
        };
        if new.is_dir() {
            return Ok(Some((new, node, made)));
        }
        if new.attr().nlink > 1 {
            if made {
                self.made.insert(new.ino(), node.ino());
            }
            if !self.complete.insert(new.ino()) {
                return Ok(None);
            }
        }
        let sealed = sealed(&new)?;
        // A file with the same hash tree has the same content.
        let writes = new.attr().kind == FileKind::Regular && (made || sealed.is_none());
        let written = writes && self.content(&new, &node)?;
        if let Some(descriptor) = sealed.filter(|_| made) {
            let from = (new.file_system(), new.ino());
            verity::copy(from, (self.there, node.ino()), &descriptor)?;
        }
        self.attributes(&new, &node, made || written)?;
        Ok(None)
    }

    /// The inode, which gets this name if it does not have it.
    fn named(&self, level: &Level<'t>, name: &[u8], ino: Ino) -> vfs::Result<HeldInode<'t>> {
        if let Some(node) = child(&level.there, name)? {
            // All other names were removed.
            return if node.ino() == ino {
                Ok(node)
            } else {
                Err(vfs::Error::Exists)
            };
        }
        loosen(&level.there)?;
        let node = HeldInode::new(self.there, self.there.reference(ino)?);
        loosen(&node)?;
        let linked = self.there.link(ino, level.there.ino(), name)?;
        Ok(HeldInode::new(self.there, linked))
    }

    fn create(
        &self,
        level: &Level<'t>,
        name: &[u8],
        new: &HeldInode<'t>,
    ) -> vfs::Result<HeldInode<'t>> {
        loosen(&level.there)?;
        let attr = new.attr();
        let target = match attr.kind {
            FileKind::Symlink => new.target()?,
            _ => Vec::new(),
        };
        let what = new_inode(attr.kind, attr.rdev, &target);
        let who = Credentials {
            uid: attr.uid,
            gid: attr.gid,
            ..Credentials::ROOT
        };
        let made = (self.there).create(&who, level.there.ino(), name, what, attr.perm)?;
        let node = HeldInode::new(self.there, made);
        // These decide on the storage of data that is written later.
        let stored =
            attr.flags & (InodeFlags::NOCOW | InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS);
        let now = node.attr().flags;
        if now | stored != now {
            self.there.set_flags(node.ino(), now | stored)?;
        }
        for (property, value) in new.xattrs()? {
            if property.starts_with(PROPERTY) {
                let any = SetXattrMode::Any;
                self.there.setxattr(node.ino(), &property, &value, any)?;
            }
        }
        Ok(node)
    }

    /// Writes the blocks of a file that differ. True if there were any.
    fn content(&mut self, new: &HeldInode<'t>, node: &HeldInode<'t>) -> vfs::Result<bool> {
        let (there, ino, size) = (self.there, node.ino(), new.attr().size);
        let mut written = self.comparison.each(new, node, size, &mut |run| {
            loosen(node)?;
            match run.bytes {
                None => there.fallocate(ino, run.start, run.len, AllocMode::PunchHole),
                Some(bytes) => there
                    .write(ino, run.start, bytes, WriteMode::default())
                    .map(drop),
            }
        })?;
        if there.getattr(ino)?.size != size {
            loosen(node)?;
            let changes = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            there.setattr(ino, &changes)?;
            written = true;
        }
        Ok(written)
    }

    /// Sets the attributes that differ. `changed`: other parts of the inode were changed.
    fn attributes(
        &self,
        new: &HeldInode<'t>,
        node: &HeldInode<'t>,
        changed: bool,
    ) -> vfs::Result<()> {
        let (fs, ino, wanted) = (self.there, node.ino(), new.attr());
        let now = fs.getattr(ino)?;
        let xattrs = new.xattrs()?;
        let of_project = project(new.file_system(), new.ino())?;
        let alike = same(&now, wanted) && project(fs, ino)? == of_project;
        if !changed && alike && node.xattrs()? == xattrs {
            return Ok(());
        }
        loosen(node)?;
        if (now.uid, now.gid) != (wanted.uid, wanted.gid) {
            let owner = SetAttr {
                uid: Some(wanted.uid),
                gid: Some(wanted.gid),
                ..SetAttr::default()
            };
            fs.setattr(ino, &owner)?;
        }
        // A change of the owner removes some.
        let there = node.xattrs()?;
        for (name, _) in &there {
            if !xattrs.iter().any(|(wanted, _)| wanted == name) {
                fs.removexattr(ino, name)?;
            }
        }
        for both in &xattrs {
            if !there.contains(both) {
                let (name, value) = both;
                fs.setxattr(ino, name, value, SetXattrMode::Any)?;
            }
        }
        let last = SetAttr {
            perm: (wanted.kind != FileKind::Symlink).then_some(wanted.perm),
            atime: Some(SetTime::To(wanted.atime)),
            mtime: Some(SetTime::To(wanted.mtime)),
            ..SetAttr::default()
        };
        fs.setattr(ino, &last)?;
        if project(fs, ino)? != of_project {
            set_project(fs, ino, of_project)?;
        }
        let flags = fs.getattr(ino)?.flags;
        if flags != wanted.flags {
            fs.set_flags(ino, wanted.flags)?;
        }
        Ok(())
    }
}

/// Whether all attributes that a source has are the same. The access time is not compared: reading
/// the sources changes it.
fn same(one: &Attr, other: &Attr) -> bool {
    type Compared = (u32, u32, u32, Timestamp, InodeFlags);
    let all = |attr: &Attr| -> Compared { (attr.perm, attr.uid, attr.gid, attr.mtime, attr.flags) };
    all(one) == all(other)
}
