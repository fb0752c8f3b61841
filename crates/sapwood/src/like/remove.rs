//! Removes the names of the older tree that do not stay.
//!
//! An inode that gets another name moves to the *stash*, a directory with an unused name in the
//! root. It is removed when all new names exist.

use std::collections::HashSet;

use sapwood_btrfs::Btrfs;

use super::content::Comparison;
use super::pairs::Pairs;
use super::{Result, at, check, child, names};
use crate::progress::Stop;
use crate::tree::{HeldInode, directory_loop, join};
use crate::vfs::{
    self, AllocMode, Credentials, FileKind, Fsxattr, Ino, InodeFlags, NewInode, RenameMode, SetAttr,
};

/// Flag of [`Fsxattr`]: new inodes of the directory get its project (`FS_XFLAG_PROJINHERIT`).
const PROJINHERIT: u32 = 0x200;

/// Name of the stash, before a number that makes it unused.
const STASH: &str = ".sapwood-like-";

/// Smaller files may be stored in a tree of btrfs.
const INLINE: u64 = 4096;

/// Inodes on the way from a removed name to a new one.
pub(super) struct Stash<'t> {
    dir: HeldInode<'t>,
    name: Vec<u8>,
    inside: HashSet<Ino>,
}

/// A directory of the older tree.
struct Level<'t> {
    dir: HeldInode<'t>,
    /// Its counterpart; `None` if it is removed.
    new: Option<Ino>,
    names: std::vec::IntoIter<Vec<u8>>,
    path: Vec<u8>,
}

struct Removal<'t, 'p> {
    there: &'t dyn vfs::FileSystem,
    new: &'t dyn vfs::FileSystem,
    pairs: &'p Pairs,
    stash: Option<Stash<'t>>,
    /// The file system, if it is one whose blocks cannot always be written in their places.
    btrfs: Option<&'t Btrfs>,
    comparison: Comparison,
}

/// Removes every name that does not lead to the counterpart of what the new tree has there, and cuts
/// files that become shorter. Returns the stash, if it is in use.
pub(super) fn others<'t>(
    there: &'t dyn vfs::FileSystem,
    btrfs: Option<&'t Btrfs>,
    new: &'t dyn vfs::FileSystem,
    pairs: &Pairs,
    stop: &Stop,
) -> Result<Option<Stash<'t>>> {
    let mut removal = Removal {
        there,
        new,
        pairs,
        stash: None,
        btrfs,
        comparison: Comparison::default(),
    };
    let root = HeldInode::root(there).map_err(at("read", b""))?;
    let mut open = vec![Level::new(root, Some(new.root()), Vec::new())?];
    let mut entered = HashSet::new();
    while let Some(level) = open.last_mut() {
        check(stop)?;
        let Some(name) = level.names.next() else {
            let left = open.pop();
            if let (Some(left), Some(above)) = (left, open.last()) {
                removal.leave(left, above)?;
            }
            continue;
        };
        let path = join(&level.path, &name);
        let below = removal.name(level, &name, &path);
        if let Some((dir, new)) = below.map_err(at("remove", &path))? {
            if !entered.insert(dir.ino()) {
                return Err(at("list", &path)(directory_loop(&name)));
            }
            open.push(Level::new(dir, new, path)?);
        }
    }
    Ok(removal.stash)
}

impl<'t> Level<'t> {
    fn new(dir: HeldInode<'t>, new: Option<Ino>, path: Vec<u8>) -> Result<Self> {
        let names = names(&dir).map_err(at("list", &path))?;
        Ok(Self {
            dir,
            new,
            names: names.into_iter(),
            path,
        })
    }
}

impl<'t> Removal<'t, '_> {
    /// Keeps or removes a name. Returns a directory that is to be walked, with its counterpart.
    fn name(
        &mut self,
        level: &Level<'t>,
        name: &[u8],
        path: &[u8],
    ) -> vfs::Result<Option<(HeldInode<'t>, Option<Ino>)>> {
        let Some(node) = child(&level.dir, name)? else {
            return Ok(None);
        };
        if let Some(new) = self.counterpart(level.new, name, node.ino())? {
            if node.is_dir() {
                return Ok(Some((node, Some(new.ino()))));
            }
            self.cut(&node, &new)?;
            return Ok(None);
        }
        if node.is_dir() {
            // A directory keeps its path, or is removed.
            return if !self.pairs.keeps(node.ino()) {
                Ok(Some((node, None)))
            } else {
                Err(directory_loop(path))
            };
        }
        loosen(&level.dir)?;
        loosen(&node)?;
        if self.pairs.keeps(node.ino()) && self.stash(&level.dir, name, node.ino())? {
            return Ok(None);
        }
        self.there.unlink(level.dir.ino(), name)?;
        Ok(None)
    }

    /// The node of the new tree at a name, if `old` becomes it.
    fn counterpart(
        &self,
        dir: Option<Ino>,
        name: &[u8],
        old: Ino,
    ) -> vfs::Result<Option<HeldInode<'t>>> {
        let Some(dir) = dir else {
            return Ok(None);
        };
        let dir = if dir == self.new.root() {
            HeldInode::root(self.new)?
        } else {
            HeldInode::new(self.new, self.new.reference(dir)?)
        };
        let found = child(&dir, name)?;
        Ok(found.filter(|found| self.pairs.old_of(found.ino()) == Some(old)))
    }

    /// Removes a directory that is empty now, unless it stays.
    fn leave(&self, level: Level<'t>, above: &Level<'t>) -> Result<()> {
        let Level { dir, new, path, .. } = level;
        if new.is_some() {
            return Ok(());
        }
        let name = crate::tree::split_last(&path).1;
        let removed = loosen(&above.dir).and_then(|()| {
            loosen(&dir)?;
            self.there.rmdir(above.dir.ino(), name)
        });
        removed.map_err(at("remove", &path))
    }

    /// Cuts a file to the size that it becomes. Also gives back blocks that differ and cannot be
    /// written in their places, so that new blocks take these places.
    fn cut(&mut self, node: &HeldInode<'t>, new: &HeldInode<'t>) -> vfs::Result<()> {
        let (there, ino, size) = (self.there, node.ino(), new.attr().size);
        if node.attr().kind != FileKind::Regular {
            return Ok(());
        }
        if size < node.attr().size {
            loosen(node)?;
            let changes = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            there.setattr(ino, &changes)?;
        }
        let Some(btrfs) = self.btrfs.filter(|_| size >= INLINE) else {
            return Ok(());
        };
        let least = size.min(node.attr().size);
        self.comparison.each(new, node, least, &mut |run| {
            if btrfs.is_overwritable(ino, &(run.start..run.start + run.len))? {
                return Ok(());
            }
            loosen(node)?;
            there.fallocate(ino, run.start, run.len, AllocMode::PunchHole)
        })?;
        Ok(())
    }

    /// Moves an inode to the stash. False if the stash has it already.
    fn stash(&mut self, dir: &HeldInode<'t>, name: &[u8], ino: Ino) -> vfs::Result<bool> {
        let there = self.there;
        let stash = match &mut self.stash {
            Some(stash) => stash,
            None => self.stash.insert(Stash::make(there, self.new)?),
        };
        if !stash.inside.insert(ino) {
            return Ok(false);
        }
        let to = ino.to_string();
        let (from, into) = (dir.ino(), stash.dir.ino());
        there.rename(from, name, into, to.as_bytes(), RenameMode::NoReplace)?;
        Ok(true)
    }
}

/// The project of an inode, and whether new inodes of a directory get it.
pub(super) fn project(fs: &dyn vfs::FileSystem, ino: Ino) -> vfs::Result<(u32, bool)> {
    let found = fs.fsxattr(ino)?;
    Ok((found.projid, found.xflags & PROJINHERIT != 0))
}

/// Sets the project of an inode, and whether new inodes of a directory get it.
pub(super) fn set_project(
    fs: &dyn vfs::FileSystem,
    ino: Ino,
    (projid, inherit): (u32, bool),
) -> vfs::Result<()> {
    let found = fs.fsxattr(ino)?;
    let inherit = if inherit { PROJINHERIT } else { 0 };
    let wanted = Fsxattr {
        projid,
        xflags: (found.xflags & !PROJINHERIT) | inherit,
        ..found
    };
    fs.set_fsxattr(ino, &wanted)
}

/// Makes an inode and its names changeable.
pub(super) fn loosen(node: &HeldInode<'_>) -> vfs::Result<()> {
    let fixed = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
    let fs = node.file_system();
    if node.attr().flags.intersects(fixed) {
        let flags = fs.getattr(node.ino())?.flags;
        if flags.intersects(fixed) {
            fs.set_flags(node.ino(), flags - fixed)?;
        }
    }
    match project(fs, node.ino())? {
        // A directory takes only names of inodes with its project.
        (projid, true) => set_project(fs, node.ino(), (projid, false)),
        _ => Ok(()),
    }
}

impl<'t> Stash<'t> {
    fn make(there: &'t dyn vfs::FileSystem, new: &dyn vfs::FileSystem) -> vfs::Result<Self> {
        let root = HeldInode::root(there)?;
        let wanted = HeldInode::root(new)?;
        loosen(&root)?;
        let mut number = 0_u64;
        let name = loop {
            let name = format!("{STASH}{number}").into_bytes();
            if child(&root, &name)?.is_none() && child(&wanted, &name)?.is_none() {
                break name;
            }
            number += 1;
        };
        let made = there.create(
            &Credentials::ROOT,
            root.ino(),
            &name,
            NewInode::Directory,
            0o700,
        )?;
        Ok(Self {
            dir: HeldInode::new(there, made),
            name,
            inside: HashSet::new(),
        })
    }

    /// Removes the stash, with the names that its inodes have there.
    pub(super) fn remove(self) -> vfs::Result<()> {
        let fs = self.dir.file_system();
        for name in names(&self.dir)? {
            fs.unlink(self.dir.ino(), &name)?;
        }
        fs.rmdir(fs.root(), &self.name)
    }
}
