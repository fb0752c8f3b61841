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

/// Numbers of ext4 have 32 bits. An inode that only the old state has gets this bit in addition.
pub(super) const ONLY_OLD: u64 = 1 << 32;

/// The number of an inode in few bytes: [`ONLY_OLD`] is apart from the other bits.
fn split(number: u64) -> (u32, bool) {
    let low = u32::try_from(number & 0xffff_ffff).unwrap_or(u32::MAX);
    (low, number & ONLY_OLD != 0)
}

fn joined(number: u32, only_old: bool) -> u64 {
    u64::from(number) | if only_old { ONLY_OLD } else { 0 }
}

/// A name. Its bytes are in the text of the index.
///
/// An image may have very many, so it has few bytes.
#[derive(Debug, Clone, Copy)]
struct Name {
    number: u32,
    dir: u32,
    /// The low and the high bits of the place of the text.
    at: (u32, u8),
    len: u8,
    /// The number, and the number of the directory, have [`ONLY_OLD`].
    only_old: (bool, bool),
    kind: FileKind,
}

const _: () = assert!(size_of::<Name>() <= 20);

impl Name {
    fn number(&self) -> u64 {
        joined(self.number, self.only_old.0)
    }

    fn dir(&self) -> u64 {
        joined(self.dir, self.only_old.1)
    }

    fn set(&mut self, number: u64, dir: u64) {
        (self.number, self.only_old.0) = split(number);
        (self.dir, self.only_old.1) = split(dir);
    }

    fn at(&self) -> usize {
        let at = u64::from(self.at.0) | u64::from(self.at.1) << 32;
        usize::try_from(at).unwrap_or(usize::MAX)
    }
}

/// Most directories above a file.
const DEEPEST: usize = 4096;

/// All names below a directory.
#[derive(Debug, Default)]
pub(super) struct Index {
    text: Vec<u8>,
    /// Sorted by number, directory and text.
    names: Vec<Name>,
    /// Positions in `names`, sorted by directory and text.
    by_dir: Vec<u32>,
}

impl Index {
    /// Reads all directories from `top` on, without an empty `lost+found` of the root.
    pub(super) fn read(fs: &dyn vfs::FileSystem, top: u64, stop: &Stop) -> Result<Self> {
        let mut index = Self::default();
        let mut entered = HashSet::from([top]);
        let mut waiting = vec![top];
        while let Some(dir) = waiting.pop() {
            if stop.is_stopped() {
                return Err(SendError::Stopped);
            }
            let read = index.read_one(fs, dir, |number| {
                waiting.push(number);
                entered.insert(number)
            });
            match read {
                Ok(None) => {}
                Ok(Some(twice)) => {
                    return Err(contradiction(twice, "a directory with several names"));
                }
                Err(error) => return Err(at(&index.path_to(dir, top))(error)),
            }
        }
        index.finish();
        Ok(index)
    }

    /// Ends the addition of names.
    fn finish(&mut self) {
        self.names.shrink_to_fit();
        self.text.shrink_to_fit();
        self.sort();
    }

    /// Reads a directory. Calls `enter` for each directory in it; returns the first for which that
    /// is false.
    fn read_one(
        &mut self,
        fs: &dyn vfs::FileSystem,
        dir: u64,
        mut enter: impl FnMut(u64) -> bool,
    ) -> vfs::Result<Option<u64>> {
        let node = HeldInode::new(fs, fs.reference(Ino(dir))?);
        let mut listing = Names::default();
        while let Some(entry) = listing.next(fs, node.ino())? {
            if is_of_format(Kind::Ext4, &node, &entry.name)? {
                continue;
            }
            let number = entry.ino.0;
            self.push(number, dir, entry.kind, &entry.name);
            if entry.kind == FileKind::Directory && !enter(number) {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// The path of a directory, for a message, while the names are not sorted.
    fn path_to(&self, dir: u64, top: u64) -> Vec<u8> {
        let (mut path, mut at, mut depth) = (Vec::new(), dir, 0);
        while at != top && depth < DEEPEST {
            let found = self.names.iter().find(|name| name.number() == at);
            let Some(name) = found else { break };
            path = match &path[..] {
                b"" => self.text(name).to_vec(),
                below => join(self.text(name), below),
            };
            (at, depth) = (name.dir(), depth + 1);
        }
        path
    }

    fn push(&mut self, number: u64, dir: u64, kind: FileKind, name: &[u8]) {
        let at = self.text.len() as u64;
        let mut one = Name {
            number: 0,
            dir: 0,
            at: (split(at).0, u8::try_from(at >> 32).unwrap_or(u8::MAX)),
            len: u8::try_from(name.len()).unwrap_or(u8::MAX),
            only_old: (false, false),
            kind,
        };
        one.set(number, dir);
        self.names.push(one);
        self.text.extend_from_slice(name);
    }

    fn text(&self, name: &Name) -> &[u8] {
        let end = name.at().saturating_add(name.len.into());
        self.text.get(name.at()..end).unwrap_or_default()
    }

    fn sort(&mut self) {
        let mut names = std::mem::take(&mut self.names);
        names.sort_unstable_by(|a, b| {
            let order = (a.number(), a.dir()).cmp(&(b.number(), b.dir()));
            order.then_with(|| self.text(a).cmp(self.text(b)))
        });
        let mut by_dir: Vec<u32> = (0..).take(names.len()).collect();
        by_dir.sort_unstable_by_key(|at| {
            let name = names.get(*at as usize);
            name.map(|name| (name.dir(), self.text(name)))
        });
        (self.names, self.by_dir) = (names, by_dir);
    }

    /// Gives every inode another number.
    pub(super) fn renumber(&mut self, number: impl Fn(u64) -> u64) {
        for name in &mut self.names {
            name.set(number(name.number()), number(name.dir()));
        }
        self.sort();
    }

    /// The names of an inode.
    fn of(&self, number: u64) -> &[Name] {
        let start = self.names.partition_point(|name| name.number() < number);
        let rest = self.names.get(start..).unwrap_or_default();
        let len = rest.partition_point(|name| name.number() == number);
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
            dir: name.dir(),
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
        let groups = self.names.chunk_by(|a, b| a.number() == b.number());
        groups.filter_map(|names| names.first().map(Name::number))
    }

    fn in_dir(&self, at: u32) -> Option<(&Name, &[u8])> {
        let name = self.names.get(at as usize)?;
        Some((name, self.text(name)))
    }

    /// The inode that a name leads to.
    pub(super) fn find(&self, dir: u64, text: &[u8]) -> Option<u64> {
        let key = |at: &u32| self.in_dir(*at).map(|(name, text)| (name.dir(), text));
        let found = self.by_dir.binary_search_by_key(&Some((dir, text)), key);
        let at = self.by_dir.get(found.ok()?)?;
        Some(self.in_dir(*at)?.0.number())
    }

    /// The names in a directory with their texts, sorted by text.
    fn below(&self, dir: u64) -> impl Iterator<Item = (&Name, &[u8])> {
        let dir_of = |at: &u32| self.in_dir(*at).map(|(name, _)| name.dir());
        let start = self.by_dir.partition_point(|at| dir_of(at) < Some(dir));
        let rest = self.by_dir.get(start..).unwrap_or_default();
        let all = rest.iter().map_while(|at| self.in_dir(*at));
        all.take_while(move |(name, _)| name.dir() == dir)
    }

    /// The entries of a directory, sorted by name.
    pub(super) fn entries(&self, dir: u64) -> Vec<NamedInode> {
        let entries = self.below(dir).map(|(name, text)| NamedInode {
            number: name.number(),
            kind: Some(name.kind),
            name: text.to_vec(),
        });
        entries.collect()
    }

    /// Whether a directory has the same names for the same inodes in another index.
    pub(super) fn has_entries_of(&self, other: &Self, dir: u64) -> bool {
        let key = |(name, text): (&Name, &[u8])| (name.number(), text.to_vec());
        self.below(dir).map(key).eq(other.below(dir).map(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_takes_few_bytes_in_addition_to_its_text() {
        let count = 10_000;
        let mut index = Index::default();
        for number in 0..count {
            let name = format!("file-{number:06}");
            index.push(100 + number, 2, FileKind::Regular, name.as_bytes());
        }
        index.finish();
        assert_eq!(index.find(2, b"file-004711"), Some(4811));
        let names = index.names.capacity() * size_of::<Name>();
        let all = names + index.by_dir.capacity() * size_of::<u32>() + index.text.capacity();
        assert!(all <= usize::try_from(count).unwrap() * (11 + 24), "{all}");
    }

    #[test]
    fn numbers_and_places_above_32_bits_are_kept() {
        let (number, dir) = (7 | ONLY_OLD, u64::from(u32::MAX) | ONLY_OLD);
        let mut name = Name {
            number: 0,
            dir: 0,
            at: (5, 3),
            len: 0,
            only_old: (false, false),
            kind: FileKind::Regular,
        };
        name.set(number, dir);
        assert_eq!((name.number(), name.dir()), (number, dir));
        assert_eq!(name.at(), 5 + (3 << 32));
        name.set(9, 8);
        assert_eq!((name.number(), name.dir()), (9, 8));
    }

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
