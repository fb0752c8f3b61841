//! What two trees have in common.

use std::collections::{HashMap, HashSet};

use super::{Result, at, is_of_format, sorted_names};
use crate::kind::Kind;
use crate::tree::{self, HeldInode};
use crate::vfs::{self, FileKind, FileSystem, Ino};

/// Bytes that are compared at a time.
const PIECE: usize = 128 * 1024;

/// One of the trees.
pub(super) struct Side<'a> {
    fs: &'a dyn FileSystem,
    kind: Kind,
    /// All paths of each inode with several names, sorted; only with a base.
    links: HashMap<Ino, Vec<Vec<u8>>>,
}

/// The path of a name in a directory.
pub(super) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() {
        name.to_vec()
    } else {
        [dir, b"/", name].concat()
    }
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
    if !attributes || xattrs(new)? != xattrs(old)? {
        return Ok(false);
    }
    match now.kind {
        FileKind::Regular => Ok(now.size == then.size && same_content(new, old)?),
        FileKind::Symlink => Ok(target(new)? == target(old)?),
        _ => Ok(true),
    }
}

fn same_content(new: &HeldInode<'_>, old: &HeldInode<'_>) -> vfs::Result<bool> {
    let (mut one, mut other) = (vec![0; PIECE], vec![0; PIECE]);
    let mut at = 0;
    while at < new.attr().size {
        let count = fill(new, at, &mut one)?;
        if count == 0 || count != fill(old, at, &mut other)? {
            return Ok(false);
        }
        if one.get(..count) != other.get(..count) {
            return Ok(false);
        }
        at += count as u64;
    }
    Ok(true)
}

/// Reads until the buffer is full or the file ends.
pub(super) fn fill(node: &HeldInode<'_>, at: u64, buf: &mut [u8]) -> vfs::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match node
            .file_system()
            .read(node.ino(), at + filled as u64, rest)?
        {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// The target of a symbolic link.
pub(super) fn target(node: &HeldInode<'_>) -> vfs::Result<Vec<u8>> {
    node.file_system().readlink(node.ino())
}

/// All extended attributes, by name.
pub(super) fn xattrs(node: &HeldInode<'_>) -> vfs::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let fs = node.file_system();
    let mut all = Vec::new();
    for name in fs.listxattr(node.ino())? {
        let value = fs.getxattr(node.ino(), &name)?;
        all.push((name, value));
    }
    all.sort();
    Ok(all)
}
