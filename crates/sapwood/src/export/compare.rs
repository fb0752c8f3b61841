//! Comparison of two trees.

use std::collections::{HashMap, HashSet};

use super::{Result, at, sorted_names};
use crate::kind::Kind;
use crate::tree::{self, HeldInode, is_of_format, join};
use crate::vfs::{self, FileKind, FileSystem, Ino};

/// One of the trees.
pub(super) struct Side<'a> {
    fs: &'a dyn FileSystem,
    kind: Kind,
    /// All paths of each inode with several names, sorted; only with a base.
    links: HashMap<Ino, Vec<Vec<u8>>>,
}

/// A name in a directory, if it exists.
pub(super) fn child<'a>(dir: &HeldInode<'a>, name: &[u8]) -> vfs::Result<Option<HeldInode<'a>>> {
    match dir.child(name) {
        Ok(found) => Ok(Some(found)),
        Err(vfs::Error::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

impl<'a> Side<'a> {
    pub(super) fn new(fs: &'a dyn FileSystem, kind: Kind) -> Self {
        Self {
            fs,
            kind,
            links: HashMap::new(),
        }
    }

    /// The names of a directory, sorted.
    pub(super) fn names(&self, dir: &HeldInode<'_>, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut names = sorted_names(dir, path)?;
        if dir.ino() == self.fs.root() {
            let of_format = |name: &Vec<u8>| is_of_format(self.kind, dir, name);
            let kept: vfs::Result<Vec<bool>> = names.iter().map(of_format).collect();
            let mut drops = kept.map_err(at(path))?.into_iter();
            names.retain(|_| !drops.next().unwrap_or(false));
        }
        Ok(names)
    }

    /// Finds all inodes below `top` with several names.
    pub(super) fn collect_links(&mut self, top: &HeldInode<'_>) -> Result<()> {
        let mut waiting = vec![(top.ino(), Vec::new())];
        let mut held = Vec::new();
        let mut entered = HashSet::from([top.ino()]);
        while let Some((dir, path)) = waiting.pop() {
            let mut names = tree::Names::default();
            while let Some(entry) = names.next(self.fs, dir).map_err(at(&path))? {
                let path = join(&path, &entry.name);
                let found = self.fs.lookup(dir, &entry.name).map_err(at(&path))?;
                let node = HeldInode::new(self.fs, found);
                if node.is_dir() {
                    if !entered.insert(node.ino()) {
                        return Err(at(&path)(tree::directory_loop(&entry.name)));
                    }
                    waiting.push((node.ino(), path));
                    held.push(node);
                } else if node.attr().nlink > 1 {
                    self.links.entry(node.ino()).or_default().push(path);
                }
            }
        }
        for paths in self.links.values_mut() {
            paths.sort();
        }
        Ok(())
    }

    /// Whether an inode has the same names as one of the base.
    pub(super) fn same_names(
        &self,
        node: &HeldInode<'_>,
        base: &Side<'_>,
        old: &HeldInode<'_>,
    ) -> bool {
        if node.is_dir() {
            return true;
        }
        let same = self.links.get(&node.ino()) == base.links.get(&old.ino());
        same && node.attr().nlink == old.attr().nlink
    }
}

/// Whether two inodes are equal in all that an archive keeps, but for their names.
pub(super) fn same(new: &HeldInode<'_>, old: &HeldInode<'_>) -> vfs::Result<bool> {
    let (now, then) = (new.attr(), old.attr());
    let attributes = now.kind == then.kind
        && now.perm == then.perm
        && (now.uid, now.gid) == (then.uid, then.gid)
        && now.mtime == then.mtime
        && now.rdev == then.rdev;
    if !attributes || new.xattrs()? != old.xattrs()? {
        return Ok(false);
    }
    match now.kind {
        FileKind::Regular => Ok(now.size == then.size && new.has_content_of(old)?),
        FileKind::Symlink => Ok(new.target()? == old.target()?),
        _ => Ok(true),
    }
}
