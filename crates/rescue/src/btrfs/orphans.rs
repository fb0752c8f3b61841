//! Names and inodes of a damaged subvolume that its directories no longer lead to.
//!
//! # How it works
//! btrfs has each name twice: in the directory, and with the inode. Where the directory's entries
//! are lost, the names of the inodes replace them; also where an older leaf, which replaces a lost
//! one, lacks an entry. A directory that is lost itself, and an inode
//! whose name is lost in both places, get a number as their name.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::ControlFlow;

use sapwood_btrfs_format::{Key, dir_items, inode_extrefs, inode_refs, kind};
use sapwood_vfs::FileKind;

use super::items::{item, items};
use super::leaves::Leaves;
use super::nodes::Nodes;

/// First inode number of files.
pub(super) const FIRST: u64 = 256;
/// Most names and inodes that are remembered.
const MOST: usize = 1_000_000;

/// A name that only its inode has.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) name: Vec<u8>,
    pub(super) ino: u64,
    pub(super) kind: FileKindOrd,
}

/// A kind of file, in an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileKindOrd(u32);

impl FileKindOrd {
    pub(super) fn kind(self) -> FileKind {
        FileKind::from_mode(self.0).unwrap_or(FileKind::Regular)
    }
}

/// The names and inodes of a subvolume that its directories lack.
#[derive(Debug, Default)]
pub(super) struct Orphaned {
    /// Names by directory.
    pub(super) names: BTreeMap<u64, Vec<Name>>,
    /// Inodes without a name.
    pub(super) nameless: Vec<Name>,
}

/// The known facts of an inode while its items are read.
struct Passing {
    ino: u64,
    mode: Option<u32>,
    is_directory: bool,
    named: bool,
    links: u32,
}

struct Pass<'p> {
    nodes: &'p Nodes,
    leaves: &'p Leaves,
    found: Orphaned,
    count: usize,
    /// Names of the inode that passes by, with their directories.
    pending: Vec<(u64, Vec<u8>)>,
    current: Option<Passing>,
    /// Inodes that may have no name, with their kinds.
    candidates: BTreeMap<u64, FileKindOrd>,
}

/// Searches a subvolume. Reads all of it.
pub(super) fn find(nodes: &Nodes, leaves: &Leaves) -> Orphaned {
    let mut pass = Pass {
        nodes,
        leaves,
        found: Orphaned::default(),
        count: 0,
        pending: Vec::new(),
        current: None,
        candidates: BTreeMap::new(),
    };
    let (from, to) = (
        Key::new(FIRST, 0, 0),
        Key::new(u64::MAX - 256, u8::MAX, u64::MAX),
    );
    items(nodes, leaves, from, to, &mut |key, data| {
        pass.item(key, data);
        ControlFlow::Continue(())
    });
    pass.end_inode();
    pass.end()
}

impl Pass<'_> {
    fn item(&mut self, key: Key, data: &[u8]) {
        if self
            .current
            .as_ref()
            .is_none_or(|at| at.ino != key.objectid)
        {
            self.end_inode();
            self.current = Some(Passing {
                ino: key.objectid,
                mode: None,
                is_directory: false,
                named: key.objectid == FIRST,
                links: 1,
            });
        }
        let Some(current) = &mut self.current else {
            return;
        };
        match key.kind {
            kind::INODE_ITEM => {
                if let Ok(inode) = sapwood_btrfs_format::InodeItem::read(data) {
                    current.mode = Some(inode.mode.get());
                    current.links = inode.nlink.get();
                }
            }
            kind::INODE_REF => {
                let names = inode_refs(data).flatten();
                let names = names.map(|name| (key.offset, name.index, name.name.to_vec()));
                for (dir, index, name) in names.collect::<Vec<_>>() {
                    self.name(&key, dir, index, name);
                }
            }
            kind::INODE_EXTREF => {
                let names = inode_extrefs(data).flatten();
                let names = names.map(|name| (name.parent, name.index, name.name.to_vec()));
                for (dir, index, name) in names.collect::<Vec<_>>() {
                    self.name(&key, dir, index, name);
                }
            }
            kind::DIR_ITEM | kind::DIR_INDEX => current.is_directory = true,
            _ => {}
        }
    }

    /// The inode has this name in a directory, which may have lost it.
    /// `key`: of the item that has the name.
    fn name(&mut self, key: &Key, dir: u64, index: u64, name: Vec<u8>) {
        if let Some(current) = &mut self.current {
            current.named = true;
        }
        let entry = Key::new(dir, kind::DIR_INDEX, index);
        let newer = || {
            self.leaves.is_older(&entry)
                && !self.leaves.is_older(key)
                && item(self.nodes, self.leaves, entry).is_none()
        };
        if self.leaves.lost_in(&entry, &entry).is_some() || newer() {
            self.pending.push((dir, name));
        }
    }

    /// The names that a directory itself has.
    fn own_names(&self, dir: u64) -> HashSet<Vec<u8>> {
        let key = |index| Key::new(dir, kind::DIR_INDEX, index);
        let mut names = HashSet::new();
        items(
            self.nodes,
            self.leaves,
            key(0),
            key(u64::MAX),
            &mut |_, data| {
                names.extend(dir_items(data).flatten().map(|entry| entry.name.to_vec()));
                if names.len() < MOST {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            },
        );
        names
    }

    fn end_inode(&mut self) {
        let Some(Passing {
            ino,
            mode,
            is_directory,
            named,
            links,
        }) = self.current.take()
        else {
            return;
        };
        let guess = if is_directory { 0o040_000 } else { 0o100_000 };
        let kind = FileKindOrd(mode.unwrap_or(guess));
        for (dir, name) in std::mem::take(&mut self.pending) {
            if self.count >= MOST {
                break;
            }
            self.count += 1;
            let name = Name { name, ino, kind };
            self.found.names.entry(dir).or_default().push(name);
        }
        if !named && links > 0 && self.candidates.len() < MOST {
            self.candidates.insert(ino, kind);
        }
    }

    fn end(mut self) -> Orphaned {
        let lost: Vec<u64> = self.found.names.keys().copied().collect();
        for dir in lost {
            let inode = Key::new(dir, kind::INODE_ITEM, 0);
            if dir != FIRST && item(self.nodes, self.leaves, inode).is_none() {
                let kind = FileKindOrd(FileKind::Directory.mode_bits());
                self.candidates.insert(dir, kind);
            }
        }
        let mut all = std::mem::take(&mut self.found.names);
        for (dir, names) in &mut all {
            // An older leaf may have a name with another inode.
            let own = self.own_names(*dir);
            names.retain(|name| !own.contains(&name.name));
            for name in names.iter() {
                self.candidates.remove(&name.ino);
            }
            names.sort();
            names.dedup_by(|a, b| a.name == b.name);
        }
        self.found.names = all;
        if !self.candidates.is_empty() {
            let named = self.named();
            self.candidates.retain(|ino, _| !named.contains(ino));
        }
        let all = self.candidates.into_iter().map(|(ino, kind)| Name {
            name: format!("#{ino}").into_bytes(),
            ino,
            kind,
        });
        self.found.nameless = all.collect();
        self.found
    }

    /// The candidates that a directory has a name of.
    fn named(&self) -> BTreeSet<u64> {
        let mut named = BTreeSet::new();
        let (from, to) = (Key::new(FIRST, 0, 0), Key::MAX);
        items(self.nodes, self.leaves, from, to, &mut |key, data| {
            if key.kind == kind::DIR_INDEX {
                let targets = dir_items(data).flatten().map(|item| item.location.objectid);
                named.extend(targets.filter(|ino| self.candidates.contains_key(ino)));
            }
            ControlFlow::Continue(())
        });
        named
    }
}
