//! The current place of each inode at the receiver while names change.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::contradiction;
use super::error::Result;
use super::source::{Source, Tree};
use crate::tree::join;
use crate::vfs::{FileKind, LinkName, StoredInode};

/// Most directories above a file.
const DEEPEST: usize = 4096;

/// Most paths of directories that are remembered.
const REMEMBERED: usize = 4096;

/// The progress of an inode that both snapshots have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// At its old names.
    Old,
    /// At this name in the top directory.
    Temporary(Vec<u8>),
    /// At its new names.
    New,
}

/// An inode of both snapshots whose names differ.
#[derive(Debug)]
pub(super) struct Moved {
    pub(super) directory: bool,
    pub(super) place: Place,
    /// Names that only the old snapshot has.
    pub(super) removed: Vec<LinkName>,
    /// Names that only the new snapshot has.
    pub(super) added: Vec<LinkName>,
    /// A name that both have.
    pub(super) kept: Option<LinkName>,
}

/// An inode of one snapshot. There may be very many, so their names stay in the tree.
#[derive(Debug)]
pub(super) struct Single {
    pub(super) directory: bool,
    /// It has more than one name.
    pub(super) linked: bool,
}

/// A snapshot whose tree is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Side {
    Old,
    New,
}

/// The names that differ between two snapshots, and the progress of the receiver.
pub(super) struct Places<T> {
    old: Arc<T>,
    new: Arc<T>,
    pub(super) moved: BTreeMap<u64, Moved>,
    pub(super) created: BTreeMap<u64, Single>,
    pub(super) deleted: BTreeMap<u64, Single>,
    /// Paths of directories.
    paths: RefCell<HashMap<(Side, u64), Vec<u8>>>,
}

/// An inode, if it has a name.
fn named(tree: &impl Tree, number: u64) -> Result<Option<StoredInode>> {
    let Some(inode) = tree.inode(number)? else {
        return Ok(None);
    };
    let has_name = number == tree.top() || !tree.names(number)?.is_empty();
    Ok(has_name.then_some(inode))
}

/// Whether two inodes of one number are the same one.
fn is_same(old: &StoredInode, new: &StoredInode) -> bool {
    old.kind == new.kind && old.generation == new.generation && old.rdev == new.rdev
}

impl<T: Tree> Places<T> {
    /// Collects the changed names.
    pub(super) fn new(source: &impl Source<Tree = T>, old: &Arc<T>) -> Result<Self> {
        let new = source.new_tree();
        let mut places = Self {
            old: Arc::clone(old),
            new: Arc::clone(new),
            moved: BTreeMap::new(),
            created: BTreeMap::new(),
            deleted: BTreeMap::new(),
            paths: RefCell::default(),
        };
        let mut candidates = BTreeSet::new();
        for found in source.changes()? {
            let found = found?;
            if !found.parts.inode && !found.parts.names {
                continue;
            }
            let number = found.number;
            if places.is_top(number) {
                continue;
            }
            let (before, after) = (named(&**old, number)?, named(&**new, number)?);
            if let (Some(before), Some(after)) = (&before, &after)
                && is_same(before, after)
            {
                if found.parts.names {
                    candidates.insert(number);
                }
                continue;
            }
            let single = |tree: &T, inode: &StoredInode| -> Result<Single> {
                Ok(Single {
                    directory: inode.kind == FileKind::Directory,
                    linked: tree.names(number)?.len() > 1,
                })
            };
            if let Some(before) = &before {
                places.deleted.insert(number, single(old, before)?);
            }
            if let Some(after) = &after {
                places.created.insert(number, single(new, after)?);
            }
        }
        places.add_children_of_replaced(&mut candidates)?;
        for number in candidates {
            places.add_moved(number)?;
        }
        Ok(places)
    }

    fn is_top(&self, number: u64) -> bool {
        number == self.old.top() || number == self.new.top()
    }

    /// If the number of a directory belongs to another inode now, the entries of the old directory
    /// count as moved.
    fn add_children_of_replaced(&self, candidates: &mut BTreeSet<u64>) -> Result<()> {
        let replaced = self.created.keys();
        for &dir in replaced.filter(|number| self.deleted.contains_key(number)) {
            for (tree, gone) in [(&self.old, &self.deleted), (&self.new, &self.created)] {
                for entry in tree.entries(dir)? {
                    if !gone.contains_key(&entry.number) {
                        candidates.insert(entry.number);
                    }
                }
            }
        }
        Ok(())
    }

    fn add_moved(&mut self, number: u64) -> Result<()> {
        let (before, after) = (self.old.names(number)?, self.new.names(number)?);
        let inode = self.new.inode(number)?;
        let directory = inode.is_some_and(|inode| inode.kind == FileKind::Directory);
        let is_kept = |name: &LinkName| {
            !self.created.contains_key(&name.dir) && !self.deleted.contains_key(&name.dir)
        };
        let kept = |name: &&LinkName| after.contains(name) && is_kept(name);
        let first_kept = before.iter().find(kept).cloned();
        let removed: Vec<_> = before.iter().filter(|name| !kept(name)).cloned().collect();
        let added = after
            .iter()
            .filter(|name| !(before.contains(name) && is_kept(name)));
        let added: Vec<_> = added.cloned().collect();
        if removed.is_empty() && added.is_empty() {
            return Ok(());
        }
        let moved = Moved {
            directory,
            place: Place::Old,
            removed,
            added,
            kept: first_kept,
        };
        self.moved.insert(number, moved);
        Ok(())
    }

    /// Whether a name of an inode of the old snapshot is gone at the receiver, after the names of
    /// files were removed.
    pub(super) fn is_freed(&self, number: u64, name: &LinkName) -> bool {
        if let Some(deleted) = self.deleted.get(&number) {
            return !deleted.directory;
        }
        let Some(moved) = self.moved.get(&number) else {
            return false;
        };
        let Some(index) = moved.removed.iter().position(|removed| removed == name) else {
            return false;
        };
        // The first name is the one that an inode without a kept name is renamed from.
        let carried = index == 0 && (moved.directory || moved.kept.is_none());
        if carried {
            moved.place != Place::Old
        } else {
            !moved.directory
        }
    }

    /// An inode of the new snapshot.
    pub(super) fn new_inode(&self, number: u64) -> Result<Option<StoredInode>> {
        named(&*self.new, number)
    }

    /// The inode of the old snapshot with this number, if the new snapshot has the same inode.
    pub(super) fn survivor(&self, number: u64) -> Result<Option<StoredInode>> {
        if self.created.contains_key(&number) {
            return Ok(None);
        }
        self.old.inode(number)
    }

    /// The tree of a side.
    pub(super) fn tree(&self, side: Side) -> &T {
        match side {
            Side::Old => &self.old,
            Side::New => &self.new,
        }
    }

    /// The current path of a name.
    pub(super) fn path(&self, side: Side, name: &LinkName) -> Result<Vec<u8>> {
        Ok(join(&self.directory(side, name.dir)?, &name.name))
    }

    /// The path of an inode of the new snapshot, once all names are in place.
    pub(super) fn new_path(&self, number: u64) -> Result<Vec<u8>> {
        if number == self.new.top() {
            return Ok(Vec::new());
        }
        let names = self.new.names(number)?;
        let first = names.first().ok_or(contradiction(number, "no name"))?;
        self.path(Side::New, first)
    }

    /// The current parent directory of a directory on a side, or its name in the top directory.
    fn above(&self, side: Side, number: u64) -> Result<(Side, LinkName)> {
        let mut side = side;
        if let Some(moved) = self.moved.get(&number) {
            match &moved.place {
                Place::Old => side = Side::Old,
                Place::New => side = Side::New,
                Place::Temporary(name) => {
                    let name = LinkName {
                        dir: self.tree(side).top(),
                        name: name.clone(),
                    };
                    return Ok((side, name));
                }
            }
        }
        let names = self.tree(side).names(number)?;
        let first = names.into_iter().next();
        Ok((
            side,
            first.ok_or(contradiction(number, "a directory without a name"))?,
        ))
    }

    /// The current path of a directory.
    fn directory(&self, side: Side, number: u64) -> Result<Vec<u8>> {
        if let Some(path) = self.paths.borrow().get(&(side, number)) {
            return Ok(path.clone());
        }
        let mut names = Vec::new();
        let (mut at, mut dir) = (side, number);
        while dir != self.tree(at).top() {
            let (next, name) = self.above(at, dir)?;
            names.push(name.name);
            (at, dir) = (next, name.dir);
            if names.len() > DEEPEST {
                return Err(contradiction(number, "a directory below itself"));
            }
        }
        names.reverse();
        let path = names.join(&b'/');
        let mut paths = self.paths.borrow_mut();
        if paths.len() >= REMEMBERED {
            paths.clear();
        }
        paths.insert((side, number), path.clone());
        Ok(path)
    }

    /// Whether the directory `dir` of the new snapshot is now `number`, or below it.
    pub(super) fn is_below(&self, dir: u64, number: u64) -> Result<bool> {
        let (mut at, mut dir) = (Side::New, dir);
        for _ in 0..DEEPEST {
            if dir == number {
                return Ok(true);
            }
            if dir == self.tree(at).top() {
                return Ok(false);
            }
            let (next, name) = self.above(at, dir)?;
            (at, dir) = (next, name.dir);
        }
        Err(contradiction(number, "a directory below itself"))
    }

    /// Number of directories above a name.
    pub(super) fn depth(&self, side: Side, number: u64) -> Result<usize> {
        let tree = self.tree(side);
        let (mut dir, mut depth) = (number, 0);
        while dir != tree.top() {
            let names = tree.names(dir)?;
            let first = names.first();
            dir = first
                .ok_or(contradiction(dir, "a directory without a name"))?
                .dir;
            depth += 1;
            if depth > DEEPEST {
                return Err(contradiction(number, "a directory below itself"));
            }
        }
        Ok(depth)
    }

    /// Records where a moved inode is now.
    pub(super) fn set_place(&mut self, number: u64, place: Place) {
        if let Some(moved) = self.moved.get_mut(&number) {
            moved.place = place;
            if moved.directory {
                self.paths.borrow_mut().clear();
            }
        }
    }
}
