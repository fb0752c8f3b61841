//! [`Tree`]: everything that is visible of a file system, by inode. It is read through a
//! [`FileSystem`](sapwood_vfs::FileSystem), through a mount, or from a listing in a text file, and
//! compared.
//!
//! A difference is text for people. The caller chooses the compared [`Facts`] for each pair of
//! inodes.

mod compare;
mod read;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sapwood_vfs::{Attr, FileKind, Ino, Timestamp};

pub use self::compare::{Facts, shown};

/// The btrfs bits of Sapwood's inode numbers; above them is the subvolume.
const OBJECTID: u64 = (1 << 40) - 1;
/// btrfs shows a subvolume that is not in a snapshot as an empty directory with this number.
pub const PLACEHOLDER: u64 = 2;

/// The extent of reading an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// The bytes of files, which must be small.
    Bytes,
    /// The SHA-256 of files, where they have data, their allocation, and all flags.
    Sums,
}

/// Owner and mode of an inode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owner {
    /// Permission bits.
    pub perm: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u64,
}

/// Times of an inode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation; not every mount shows it.
    pub btime: Option<Timestamp>,
}

impl Times {
    /// The times of an inode.
    #[must_use]
    pub fn of(attr: &Attr) -> Self {
        Self {
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
            btime: Some(attr.btime),
        }
    }

    /// Each time with its name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, Option<Timestamp>); 4] {
        [
            ("atime", Some(self.atime)),
            ("mtime", Some(self.mtime)),
            ("ctime", Some(self.ctime)),
            ("btime", self.btime),
        ]
    }
}

/// One inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeInode {
    /// Number on disk; in btrfs unique only within its subvolume.
    pub number: u64,
    /// Type.
    pub kind: FileKind,
    /// Owner and mode.
    pub owner: Owner,
    /// Link count.
    pub nlink: u32,
    /// Size in bytes.
    pub size: u64,
    /// Bytes of a file or their SHA-256, target of a symbolic link; empty for other kinds.
    pub content: Arc<[u8]>,
    /// Ranges `from..to` of a file that are not holes, in order, joined where they touch.
    pub data: Option<Arc<[(u64, u64)]>>,
    /// Allocated units of 512 bytes.
    pub blocks: Option<u64>,
    /// Flags, as `lsattr` shows them.
    pub flags: Option<u32>,
    /// Extended attributes, ACLs among them.
    pub xattrs: Arc<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Names in a directory.
    pub entries: Arc<BTreeMap<Vec<u8>, Ino>>,
    /// Its times, if they are known.
    pub times: Option<Times>,
}

impl TreeInode {
    /// An inode of this kind without content, attributes and times.
    #[must_use]
    pub fn new(number: u64, kind: FileKind, owner: Owner) -> Self {
        Self {
            number,
            kind,
            owner,
            nlink: 1,
            size: 0,
            content: Arc::default(),
            data: None,
            blocks: None,
            flags: None,
            xattrs: Arc::default(),
            entries: Arc::default(),
            times: None,
        }
    }

    /// Replaces the bytes of a file.
    pub fn set_content(&mut self, content: Vec<u8>) {
        self.size = content.len() as u64;
        self.content = content.into();
    }

    /// Facts on which all engines agree. btrfs, ext4 and the model count the names in a directory,
    /// and its size, in different ways.
    #[must_use]
    pub fn plain(&self) -> Facts {
        if self.is_dir() {
            Facts::PLAIN - (Facts::LINKS | Facts::SIZE)
        } else {
            Facts::PLAIN
        }
    }

    /// True for a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// The visible state of a file system, from its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Inode of the root.
    pub root: Ino,
    /// All inodes that have a name, and the root. The key of an inode that was read through a
    /// [`FileSystem`](sapwood_vfs::FileSystem) is its identity there.
    pub nodes: BTreeMap<Ino, TreeInode>,
    /// Inodes without a name that are held open.
    pub nameless: BTreeMap<Ino, TreeInode>,
    /// When its recovery began, if it was recovered. The recovery set every later time.
    pub recovered: Option<Timestamp>,
}

/// Directory and name.
pub type TreeName = (Ino, Vec<u8>);

impl Default for Tree {
    /// A tree without a root.
    fn default() -> Self {
        Self::empty(Ino(0))
    }
}

impl Tree {
    fn empty(root: Ino) -> Self {
        Self {
            root,
            nodes: BTreeMap::new(),
            nameless: BTreeMap::new(),
            recovered: None,
        }
    }

    /// Names of all inodes.
    #[must_use]
    pub fn names(&self) -> BTreeMap<Ino, Vec<TreeName>> {
        let mut all: BTreeMap<Ino, Vec<TreeName>> = BTreeMap::new();
        for (dir, node) in &self.nodes {
            for (name, ino) in node.entries.iter() {
                all.entry(*ino).or_default().push((*dir, name.clone()));
            }
        }
        all
    }

    /// The part of the tree below a directory.
    #[must_use]
    pub fn below(&self, root: Ino) -> Self {
        let mut below = Self {
            recovered: self.recovered,
            ..Self::empty(root)
        };
        let mut open = vec![root];
        while let Some(ino) = open.pop() {
            if let Some(node) = self.nodes.get(&ino) {
                open.extend(node.entries.values());
                below.nodes.insert(ino, node.clone());
            }
        }
        below
    }

    /// An inode with a name, or a held one.
    #[must_use]
    pub fn node(&self, ino: Ino) -> Option<&TreeInode> {
        self.nodes.get(&ino).or_else(|| self.nameless.get(&ino))
    }

    /// The inode that a name leads to.
    #[must_use]
    pub fn find(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        self.nodes.get(&dir)?.entries.get(name).copied()
    }

    /// The same tree with other inode numbers, without the inodes that the map lacks.
    #[must_use]
    pub fn renumbered(&self, map: &BTreeMap<Ino, Ino>) -> Self {
        let new = |ino: &Ino| map.get(ino).copied();
        let renumber = |node: &TreeInode| {
            let entries = node.entries.iter();
            let entries = entries.filter_map(|(name, ino)| Some((name.clone(), new(ino)?)));
            TreeInode {
                entries: Arc::new(entries.collect()),
                ..node.clone()
            }
        };
        let all = |nodes: &BTreeMap<Ino, TreeInode>| {
            let nodes = nodes.iter();
            nodes
                .filter_map(|(ino, node)| Some((new(ino)?, renumber(node))))
                .collect()
        };
        Self {
            root: new(&self.root).unwrap_or(self.root),
            nodes: all(&self.nodes),
            nameless: all(&self.nameless),
            recovered: self.recovered,
        }
    }

    /// The same tree with the inode numbers that its paths have in `other`. An inode without such a
    /// path gets a number that `other` does not have; so does the second one for a number.
    #[must_use]
    pub fn numbered_as(&self, other: &Self) -> Self {
        let theirs = other.paths();
        let highest = other.nodes.keys().next_back().map_or(0, |ino| ino.0);
        let mut fresh = (highest + 1..).map(Ino);
        let (mut map, mut given) = (BTreeMap::new(), BTreeSet::new());
        for (path, ino) in self.paths() {
            if !map.contains_key(&ino) {
                let number = theirs.get(&path).copied();
                let number = number.filter(|number| given.insert(*number));
                map.extend(number.or_else(|| fresh.next()).map(|number| (ino, number)));
            }
        }
        self.renumbered(&map)
    }

    /// All paths, sorted, each with its inode; `.` is the root.
    #[must_use]
    pub fn paths(&self) -> BTreeMap<String, Ino> {
        let mut paths = BTreeMap::from([(".".to_owned(), self.root)]);
        let mut open = vec![(String::new(), self.root)];
        while let Some((path, dir)) = open.pop() {
            let Some(node) = self.nodes.get(&dir) else {
                continue;
            };
            for (name, ino) in node.entries.iter() {
                let path = format!("{path}{}", name.escape_ascii());
                if self.nodes.get(ino).is_some_and(TreeInode::is_dir) {
                    open.push((format!("{path}/"), *ino));
                }
                paths.insert(path, *ino);
            }
        }
        paths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(inodes: &[u64], names: &[(&str, u64)]) -> Tree {
        let mut tree = Tree::empty(Ino(1));
        for ino in inodes {
            let node = TreeInode::new(*ino, FileKind::Regular, Owner::default());
            tree.nodes.insert(Ino(*ino), node);
        }
        let mut root = TreeInode::new(1, FileKind::Directory, Owner::default());
        let names = names.iter();
        let names = names.map(|(name, ino)| (name.as_bytes().to_vec(), Ino(*ino)));
        root.entries = Arc::new(names.collect());
        tree.nodes.insert(Ino(1), root);
        tree
    }

    #[test]
    fn a_tree_gets_the_numbers_of_another_by_paths() {
        let before = tree(&[5, 9], &[("a", 5), ("b", 9), ("c", 9)]);
        let after = tree(&[7, 5], &[("a", 7), ("b", 5), ("c", 5)]);
        assert_eq!(after.numbered_as(&before).paths(), before.paths());
        // A separated hard link and a new name get numbers of their own.
        let after = tree(&[7, 5, 3, 9], &[("a", 7), ("b", 5), ("c", 3), ("d", 9)]);
        let paths = after.numbered_as(&before).paths();
        assert_eq!((paths["a"], paths["b"]), (Ino(5), Ino(9)));
        assert!(paths["c"] > Ino(9) && paths["d"] > paths["c"]);
    }
}
