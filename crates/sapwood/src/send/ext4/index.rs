//! The names of a tree, in both directions.
//!
//! An inode of ext4 does not know its names, so all directories are read once.

use std::collections::HashSet;

use super::super::contradiction;
use super::super::error::{Result, SendError, at};
use crate::kind::Kind;
use crate::progress::Stop;
use crate::tree::{HeldInode, Names, is_of_format, join};
use crate::vfs::{self, FileKind, Ino, LinkName, NamedInode};

/// A name. Its bytes are in the text of the index.
#[derive(Debug, Clone, Copy)]
struct Name {
    number: u64,
    dir: u64,
    at: usize,
    len: u8,
    kind: FileKind,
}

/// All names below a directory.
#[derive(Debug, Default)]
pub(super) struct Index {
    text: Vec<u8>,
    /// Sorted by number, directory and text.
    names: Vec<Name>,
    /// Positions in `names`, sorted by directory and text.
    by_dir: Vec<u32>,
}

/// A directory to read: its number and path.
type Waiting = (u64, Vec<u8>);

impl Index {
    /// Reads all directories from `top` on, without an empty `lost+found` of the root.
    pub(super) fn read(fs: &dyn vfs::FileSystem, top: u64, stop: &Stop) -> Result<Self> {
        let mut index = Self::default();
        let mut entered = HashSet::from([top]);
        let mut waiting: Vec<Waiting> = vec![(top, Vec::new())];
        while let Some((dir, path)) = waiting.pop() {
            if stop.is_stopped() {
                return Err(SendError::Stopped);
            }
            let node = fs.reference(Ino(dir)).map_err(at(&path))?;
            let node = HeldInode::new(fs, node);
            let mut listing = Names::default();
            while let Some(entry) = listing.next(fs, node.ino()).map_err(at(&path))? {
                if is_of_format(Kind::Ext4, &node, &entry.name).map_err(at(&path))? {
                    continue;
                }
                let number = entry.ino.0;
                index.push(number, dir, entry.kind, &entry.name);
                if entry.kind != FileKind::Directory {
                    continue;
                }
                if !entered.insert(number) {
                    return Err(contradiction(number, "a directory with several names"));
                }
                waiting.push((number, join(&path, &entry.name)));
            }
        }
        index.sort();
        Ok(index)
    }

    fn push(&mut self, number: u64, dir: u64, kind: FileKind, name: &[u8]) {
        self.names.push(Name {
            number,
            dir,
            at: self.text.len(),
            len: u8::try_from(name.len()).unwrap_or(u8::MAX),
            kind,
        });
        self.text.extend_from_slice(name);
    }

    fn text(&self, name: &Name) -> &[u8] {
        let end = name.at.saturating_add(name.len.into());
        self.text.get(name.at..end).unwrap_or_default()
    }

    fn sort(&mut self) {
        let mut names = std::mem::take(&mut self.names);
        names.sort_unstable_by(|a, b| {
            let order = (a.number, a.dir).cmp(&(b.number, b.dir));
            order.then_with(|| self.text(a).cmp(self.text(b)))
        });
        let mut by_dir: Vec<u32> = (0..).take(names.len()).collect();
        by_dir.sort_unstable_by_key(|at| {
            let name = names.get(*at as usize);
            name.map(|name| (name.dir, self.text(name)))
        });
        (self.names, self.by_dir) = (names, by_dir);
    }

    /// Gives every inode another number.
    pub(super) fn renumber(&mut self, number: impl Fn(u64) -> u64) {
        for name in &mut self.names {
            name.number = number(name.number);
            name.dir = number(name.dir);
        }
        self.sort();
    }

    /// The names of an inode.
    fn of(&self, number: u64) -> &[Name] {
        let start = self.names.partition_point(|name| name.number < number);
        let rest = self.names.get(start..).unwrap_or_default();
        let len = rest.partition_point(|name| name.number == number);
        rest.get(..len).unwrap_or_default()
    }

    /// Whether an inode has a name.
    pub(super) fn contains(&self, number: u64) -> bool {
        !self.of(number).is_empty()
    }

    /// The names of an inode, sorted.
    pub(super) fn names(&self, number: u64) -> Vec<LinkName> {
        let names = self.of(number).iter();
        let named = names.map(|name| LinkName {
            dir: name.dir,
            name: self.text(name).to_vec(),
        });
        named.collect()
    }

    /// The type of an inode, as its directories have it; `None` if they disagree.
    pub(super) fn kind(&self, number: u64) -> Option<FileKind> {
        let names = self.of(number);
        let kind = names.first()?.kind;
        names.iter().all(|name| name.kind == kind).then_some(kind)
    }

    /// All inodes with a name, in ascending order.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        let groups = self.names.chunk_by(|a, b| a.number == b.number);
        groups.filter_map(|names| names.first().map(|name| name.number))
    }

    fn in_dir(&self, at: u32) -> Option<(&Name, &[u8])> {
        let name = self.names.get(at as usize)?;
        Some((name, self.text(name)))
    }

    /// The inode that a name leads to.
    pub(super) fn find(&self, dir: u64, text: &[u8]) -> Option<u64> {
        let key = |at: &u32| self.in_dir(*at).map(|(name, text)| (name.dir, text));
        let found = self.by_dir.binary_search_by_key(&Some((dir, text)), key);
        let at = self.by_dir.get(found.ok()?)?;
        Some(self.in_dir(*at)?.0.number)
    }

    /// The names in a directory with their texts, sorted by text.
    fn below(&self, dir: u64) -> impl Iterator<Item = (&Name, &[u8])> {
        let dir_of = |at: &u32| self.in_dir(*at).map(|(name, _)| name.dir);
        let start = self.by_dir.partition_point(|at| dir_of(at) < Some(dir));
        let rest = self.by_dir.get(start..).unwrap_or_default();
        let all = rest.iter().map_while(|at| self.in_dir(*at));
        all.take_while(move |(name, _)| name.dir == dir)
    }

    /// The entries of a directory, sorted by name.
    pub(super) fn entries(&self, dir: u64) -> Vec<NamedInode> {
        let entries = self.below(dir).map(|(name, text)| NamedInode {
            number: name.number,
            kind: Some(name.kind),
            name: text.to_vec(),
        });
        entries.collect()
    }

    /// Whether a directory has the same names for the same inodes in another index.
    pub(super) fn has_entries_of(&self, other: &Self, dir: u64) -> bool {
        let key = |(name, text): (&Name, &[u8])| (name.number, text.to_vec());
        self.below(dir).map(key).eq(other.below(dir).map(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_agree_after_renumbering() {
        let mut index = Index::default();
        index.push(11, 2, FileKind::Directory, b"d");
        index.push(12, 11, FileKind::Regular, b"f");
        index.push(12, 2, FileKind::Regular, b"link");
        index.sort();
        assert_eq!(index.find(11, b"f"), Some(12));
        assert_eq!(index.find(2, b"f"), None);
        index.renumber(|number| if number == 12 { 5 } else { number });
        assert_eq!(index.find(11, b"f"), Some(5));
        assert!(!index.contains(12));
        assert_eq!(index.numbers().collect::<Vec<_>>(), [5, 11]);
        let names: Vec<_> = index.names(5).into_iter().map(|name| name.name).collect();
        assert_eq!(names, [&b"link"[..], b"f"]);
        let entries: Vec<_> = index.entries(2).into_iter().map(|one| one.name).collect();
        assert_eq!(entries, [&b"d"[..], b"link"]);
    }
}
