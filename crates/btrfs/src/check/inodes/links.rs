//! Examines names that do not balance, in one directory or in a subvolume.

use std::collections::{BTreeMap, HashMap, HashSet};

use sapwood_btrfs_format::{InodeItem, Key, dir_items, file_type, kind};

use super::super::finding::{Finding, shown};
use super::super::state::{Check, Pointer};
use super::leaf::{is_own_name, link_hash, listing_hash, names};

/// A name in dir item and index.
#[derive(Default)]
struct Listed {
    item: Option<u128>,
    /// Hash and index.
    index: Option<(u128, u64)>,
}

impl Check<'_> {
    /// Compares dir items and indexes of a directory, name by name. Returns whether a name is
    /// missing on one side, which also makes the directory's size wrong.
    pub(super) fn examine_directory(&mut self, tree: u64, inode: u64) -> bool {
        let Some(root) = self.inodes.root else {
            return false;
        };
        let mut listed: BTreeMap<Vec<u8>, Listed> = BTreeMap::new();
        let from = Key::new(inode, kind::DIR_ITEM, 0);
        let to = Key::new(inode, kind::DIR_INDEX, u64::MAX);
        self.range(tree, &root, &from, &to, &mut |key, data| {
            for entry in dir_items(data).filter_map(Result::ok) {
                let both = listed.entry(entry.name.to_vec()).or_default();
                let hash = listing_hash(&entry);
                match key.kind {
                    kind::DIR_ITEM => both.item = Some(hash),
                    kind::DIR_INDEX => both.index = Some((hash, key.offset)),
                    _ => {}
                }
            }
        });
        let mut missing = false;
        for (name, both) in listed {
            let name = shown(&name);
            match (both.item, both.index) {
                (Some(_), None) => {
                    missing = true;
                    self.found(Finding::DirIndexMissing { tree, inode, name });
                }
                (None, Some((_, index))) => {
                    missing = true;
                    self.found(Finding::DirItemMissing {
                        tree,
                        inode,
                        name,
                        index,
                    });
                }
                (Some(item), Some((index, _))) if item != index => {
                    self.found(Finding::DirItemDiffers { tree, inode, name });
                }
                _ => {}
            }
        }
        missing
    }

    /// Finds entries without a name in their inode, names without an entry, and entries with
    /// another file type than their inode.
    pub(super) fn examine_links(&mut self, tree: u64, root: &Pointer) {
        let mut open: HashMap<u128, i64> = HashMap::new();
        let mut types: HashMap<u64, u8> = HashMap::new();
        let mut dead = HashSet::new();
        self.range(tree, root, &Key::MIN, &Key::MAX, &mut |key, data| {
            if key.kind == kind::INODE_ITEM
                && let Ok(item) = InodeItem::read(data)
            {
                let file_type = file_type::from_mode(item.mode.get());
                types.insert(key.objectid, file_type);
                if file_type == file_type::DIR && item.nlink.get() == 0 {
                    dead.insert(key.objectid);
                }
            }
            for_links(&key, data, &mut |link| {
                if link.is_entry && dead.contains(&link.dir) {
                    return;
                }
                let sum = open.entry(link.hash()).or_default();
                *sum += if link.is_entry { 1 } else { -1 };
                if *sum == 0 {
                    open.remove(&link.hash());
                }
            });
        });
        let mut odd = Vec::new();
        self.range(tree, root, &Key::MIN, &Key::MAX, &mut |key, data| {
            for_links(&key, data, &mut |link| {
                if link.is_entry && dead.contains(&link.dir) {
                    return;
                }
                let alone = open.contains_key(&link.hash());
                odd.extend(link.judge(tree, alone, types.get(&link.inode).copied()));
            });
        });
        odd.into_iter().for_each(|f| self.found(f));
    }
}

/// A directory entry, or the matching name in an inode.
struct Link<'n> {
    dir: u64,
    index: u64,
    name: &'n [u8],
    inode: u64,
    is_entry: bool,
    file_type: u8,
}

fn for_links(key: &Key, data: &[u8], f: &mut dyn FnMut(&Link<'_>)) {
    match key.kind {
        kind::DIR_INDEX => {
            for entry in dir_items(data).filter_map(Result::ok) {
                if entry.location.kind == kind::INODE_ITEM {
                    f(&Link {
                        dir: key.objectid,
                        index: key.offset,
                        name: entry.name,
                        inode: entry.location.objectid,
                        is_entry: true,
                        file_type: entry.kind,
                    });
                }
            }
        }
        kind::INODE_REF | kind::INODE_EXTREF => {
            let inode = key.objectid;
            for named in names(key, data) {
                if !is_own_name(inode, &named) {
                    let (dir, index, name) = named;
                    f(&Link {
                        dir,
                        index,
                        name,
                        inode,
                        is_entry: false,
                        file_type: 0,
                    });
                }
            }
        }
        _ => {}
    }
}

impl Link<'_> {
    fn hash(&self) -> u128 {
        link_hash(self.dir, self.index, self.name, self.inode)
    }

    /// `alone`: nothing matches it. `inode_type`: `None` if the inode does not exist.
    fn judge(&self, tree: u64, alone: bool, inode_type: Option<u8>) -> Option<Finding> {
        let Self {
            dir, index, inode, ..
        } = *self;
        let name = || shown(self.name);
        match (self.is_entry, alone, inode_type) {
            (true, _, None) => Some(Finding::DirEntryDangling {
                tree,
                dir,
                name: name(),
                inode,
            }),
            (true, true, _) => Some(Finding::InodeRefMissing {
                tree,
                dir,
                index,
                name: name(),
                inode,
            }),
            (false, true, _) => Some(Finding::DirEntryMissing {
                tree,
                dir,
                index,
                name: name(),
                inode,
            }),
            (true, false, Some(expected)) if expected != self.file_type => {
                let found = self.file_type;
                Some(Finding::DirEntryType {
                    tree,
                    dir,
                    name: name(),
                    inode,
                    found,
                    expected,
                })
            }
            _ => None,
        }
    }
}
