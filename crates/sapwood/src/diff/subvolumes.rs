//! Two subvolumes of one btrfs, compared by their trees.

use std::collections::HashMap;

use sapwood_btrfs::compare::{Difference, FileTree};

use super::{DiffEntry, DiffError, DiffKind, DiffOptions, DiffParts, Result, Top, at, path};
use crate::tree::{HeldInode, join};
use crate::vfs::{self, ChangedInode, FileKind, FileSystem, LinkName, StoredInode};

/// Most paths of directories that are remembered.
const REMEMBERED: usize = 4096;

/// Paths in a subvolume.
struct Paths<'t> {
    tree: &'t FileTree,
    known: HashMap<u64, Vec<u8>>,
}

impl<'t> Paths<'t> {
    fn new(tree: &'t FileTree) -> Self {
        Self {
            tree,
            known: HashMap::new(),
        }
    }

    fn directory(&mut self, number: u64) -> Result<Vec<u8>> {
        if let Some(path) = self.known.get(&number) {
            return Ok(path.clone());
        }
        let path = self.tree.path(number)?.ok_or(DiffError::Names(number))?;
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        self.known.insert(number, path.clone());
        Ok(path)
    }

    fn of(&mut self, name: &LinkName) -> Result<Vec<u8>> {
        Ok(join(&self.directory(name.dir)?, &name.name))
    }

    fn first(&mut self, number: u64, names: &[LinkName]) -> Result<Vec<u8>> {
        match names.first() {
            Some(name) => self.of(name),
            None if number == self.tree.top() => Ok(Vec::new()),
            None => Err(DiffError::Names(number)),
        }
    }
}

struct Comparison<'c, 't> {
    old: (&'c Top<'c>, Paths<'t>),
    new: (&'c Top<'c>, Paths<'t>),
    options: &'c DiffOptions,
    each: &'c mut dyn FnMut(DiffEntry),
}

pub(super) fn diff(
    old: (&Top<'_>, &FileTree),
    new: (&Top<'_>, &FileTree),
    options: &DiffOptions,
    each: &mut dyn FnMut(DiffEntry),
) -> Result<()> {
    let mut difference = Difference::new(old.1, new.1);
    let mut comparison = Comparison {
        old: (old.0, Paths::new(old.1)),
        new: (new.0, Paths::new(new.1)),
        options,
        each,
    };
    while let Some(found) = difference.next_inode()? {
        if options.stop.is_stopped() {
            return Err(DiffError::Stopped);
        }
        comparison.inode(found)?;
    }
    Ok(())
}

/// An inode of a side, with its names.
type Side = Option<(StoredInode, Vec<LinkName>)>;

fn side(tree: &FileTree, number: u64) -> Result<Side> {
    let Some(inode) = tree.inode(number)? else {
        return Ok(None);
    };
    let names = tree.names(number)?;
    let exists = number == tree.top() || !names.is_empty();
    Ok(exists.then_some((inode, names)))
}

impl Comparison<'_, '_> {
    fn inode(&mut self, found: ChangedInode) -> Result<()> {
        let number = found.number;
        let before = side(self.old.1.tree, number)?;
        let after = side(self.new.1.tree, number)?;
        let same = match (&before, &after) {
            (Some((then, _)), Some((now, _))) => {
                let top = number == self.new.1.tree.top();
                then.kind == now.kind && (top || then.generation == now.generation)
            }
            _ => false,
        };
        if let (true, Some(before), Some(after)) = (same, &before, &after) {
            return self.both(found, before, after);
        }
        if let Some((inode, names)) = before {
            for name in &names {
                let path = self.old.1.of(name)?;
                self.report(DiffKind::Removed, &path, None, inode.kind);
            }
        }
        if let Some((inode, names)) = after {
            for name in &names {
                let path = self.new.1.of(name)?;
                self.report(DiffKind::Added, &path, None, inode.kind);
            }
        }
        Ok(())
    }

    fn both(
        &mut self,
        found: ChangedInode,
        (then, old_names): &(StoredInode, Vec<LinkName>),
        (now, new_names): &(StoredInode, Vec<LinkName>),
    ) -> Result<()> {
        let mut removed = old_names.iter().filter(|name| !new_names.contains(name));
        let mut added = new_names.iter().filter(|name| !old_names.contains(name));
        loop {
            match (removed.next(), added.next()) {
                (None, None) => break,
                (Some(from), Some(to)) => {
                    let (from, to) = (self.old.1.of(from)?, self.new.1.of(to)?);
                    self.report(DiffKind::Renamed, &to, Some(&from), now.kind);
                }
                (Some(from), None) => {
                    let path = self.old.1.of(from)?;
                    self.report(DiffKind::Removed, &path, None, now.kind);
                }
                (None, Some(to)) => {
                    let path = self.new.1.of(to)?;
                    self.report(DiffKind::Added, &path, None, now.kind);
                }
            }
        }
        let regular = now.kind == FileKind::Regular;
        let mut parts = DiffParts {
            content: regular && (found.parts.data || now.size != then.size),
            size: regular && now.size != then.size,
            mtime: now.mtime != then.mtime,
            mode: now.perm != then.perm,
            uid: now.uid != then.uid,
            gid: now.gid != then.gid,
            xattrs: found.parts.xattrs,
        };
        let path_now = self.new.1.first(found.number, new_names)?;
        if parts.content && !parts.size && self.options.content {
            parts.content = !self.same_bytes(found.number, &path_now)?;
        }
        if parts.any() {
            (self.each)(DiffEntry {
                kind: DiffKind::Changed,
                path: path(&path_now),
                from: None,
                file: now.kind,
                parts,
            });
        }
        Ok(())
    }

    fn same_bytes(&self, number: u64, name: &[u8]) -> Result<bool> {
        let compared = || -> vfs::Result<bool> {
            let old_fs: &dyn FileSystem = &**self.old.0.fs.engine();
            let new_fs: &dyn FileSystem = &**self.new.0.fs.engine();
            let old = old_fs.reference(self.old.1.tree.ino(number))?;
            let old = HeldInode::new(old_fs, old);
            let new = new_fs.reference(self.new.1.tree.ino(number))?;
            HeldInode::new(new_fs, new).has_content_of(&old)
        };
        compared().map_err(at("compare", name))
    }

    fn report(&mut self, kind: DiffKind, to: &[u8], from: Option<&[u8]>, file: FileKind) {
        (self.each)(DiffEntry {
            kind,
            path: path(to),
            from: from.map(path),
            file,
            parts: DiffParts::default(),
        });
    }
}
