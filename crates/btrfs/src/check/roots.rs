//! The root tree: the existing trees and the relations between subvolumes.

use std::collections::BTreeMap;

use sapwood_btrfs_format::{
    CompatRo, DirItemRef, Key, RootItem, dir_items, kind, name_hash, objectid, root_ref,
};

use super::finding::{Finding, shown};
use super::report::Phase;
use super::state::{Check, Pointer};
use super::walk::{Dropped, Walk, entries};

/// A ref or backref between subvolumes.
#[derive(Clone, PartialEq, Eq)]
struct Link {
    dir: u64,
    index: u64,
    name: Vec<u8>,
}

/// Contents of the root tree.
#[derive(Default)]
pub(super) struct RootTree {
    /// Root items, keyed by tree id and key offset.
    items: BTreeMap<(u64, u64), RootItem>,
    /// Root refs, keyed by parent and child.
    refs: BTreeMap<(u64, u64), Link>,
    backrefs: BTreeMap<(u64, u64), Link>,
    orphans: Vec<u64>,
    /// Target of the entry for the default subvolume.
    default: Option<Key>,
    /// It has a hole: missing items may be there.
    incomplete: bool,
    /// Size and used bytes of each device by its item.
    pub(super) devices: BTreeMap<u64, (u64, u64)>,
    /// Entries for subvolumes in the directories of each subvolume.
    pub(super) entries: BTreeMap<u64, u64>,
}

/// Target of a root item.
fn pointer_of(item: &RootItem) -> Pointer {
    Pointer {
        logical: item.bytenr.get(),
        level: item.level,
        generation: item.generation.get(),
        first_key: None,
    }
}

/// Whether there is one such tree, whose root item readers look up with offset zero. Subvolumes are
/// looked up by their id alone.
fn is_single(tree: u64) -> bool {
    tree < objectid::FIRST_FREE && tree != objectid::FS_TREE || tree == objectid::DATA_RELOC_TREE
}

/// Progress of a tree's deletion: key and level.
fn dropped(item: &RootItem) -> Option<Dropped> {
    let key = item.drop_progress.get();
    (item.refs.get() == 0 && key.objectid != 0).then_some((key, item.drop_level))
}

impl RootTree {
    pub(super) fn item(&self, tree: u64) -> Option<&RootItem> {
        let mut of_tree = self.items.range((tree, 0)..=(tree, u64::MAX));
        of_tree.next().map(|(_, item)| item)
    }

    /// Whether a subvolume was created as a snapshot. Old kernels did not record its source.
    fn is_snapshot(&self, tree: u64) -> bool {
        let mut of_tree = self.items.range((tree, 0)..=(tree, u64::MAX));
        let first = of_tree.next();
        first.is_none_or(|((_, transid), item)| *transid != 0 || item.parent_uuid != [0; 16])
    }

    pub(super) fn pointer(&self, tree: u64) -> Option<Pointer> {
        self.item(tree).map(pointer_of)
    }

    /// Whether a tree is being deleted, or blocks are being moved.
    pub(super) fn in_progress(&self, tree: u64) -> bool {
        let moving = (objectid::TREE_RELOC, 0)..=(objectid::TREE_RELOC, u64::MAX);
        let dead = self.item(tree).is_none_or(|item| item.refs.get() == 0);
        dead || self.items.range(moving).next().is_some()
    }

    /// Whether a subvolume is deleted but not cleaned up yet.
    pub(super) fn any_dead(&self) -> bool {
        let mut items = self.items.iter();
        items.any(|((id, _), item)| objectid::is_fs_tree(*id) && item.refs.get() == 0)
    }

    /// Ids of all subvolumes in use.
    pub(super) fn subvolumes(&self) -> Vec<u64> {
        let live = self
            .items
            .iter()
            .filter(|((id, _), item)| objectid::is_fs_tree(*id) && item.refs.get() > 0);
        live.map(|((id, _), _)| *id).collect()
    }
}

impl Check<'_> {
    /// Root of the tree; a missing one is a finding.
    pub(super) fn tree(&mut self, tree: u64) -> Option<Pointer> {
        let root = self.roots.pointer(tree);
        if root.is_none() && !self.roots.incomplete {
            self.found(Finding::TreeMissing { tree });
        }
        if root.is_none() {
            self.hole(tree);
        }
        root
    }

    fn root_tree_root(&self) -> Pointer {
        Pointer {
            logical: self.sb.root.get(),
            level: self.sb.root_level,
            generation: self.sb.generation.get(),
            first_key: None,
        }
    }

    /// All trees except logs, with the progress of their deletion.
    pub(super) fn all_roots(&self) -> Vec<(u64, Pointer, Option<Dropped>)> {
        let chunk_root = Pointer {
            logical: self.sb.chunk_root.get(),
            level: self.sb.chunk_root_level,
            generation: self.sb.chunk_root_generation.get(),
            first_key: None,
        };
        let mut roots = vec![
            (objectid::ROOT_TREE, self.root_tree_root(), None),
            (objectid::CHUNK_TREE, chunk_root, None),
        ];
        let items = self.roots.items.iter();
        roots.extend(items.map(|((id, _), item)| (*id, pointer_of(item), dropped(item))));
        roots
    }

    /// Walks the root tree, then the trees about space.
    pub(super) fn space_trees(&mut self) {
        self.phase(Phase::Space, self.sb.bytes_used.get());
        let before = self.uses_incomplete;
        self.uses_incomplete = false;
        self.root_tree();
        self.roots.incomplete = std::mem::replace(&mut self.uses_incomplete, before);
        self.uses_incomplete |= self.roots.incomplete;
        self.extent_tree();
        self.block_group_tree();
        self.dev_tree();
        self.csum_tree();
        self.free_space_tree();
        for tree in [objectid::FS_TREE, objectid::DATA_RELOC_TREE] {
            self.tree(tree);
        }
        if self.sb.compat_ro().contains(CompatRo::BLOCK_GROUP_TREE) {
            self.tree(objectid::BLOCK_GROUP_TREE);
        }
    }

    /// Walks the root tree.
    pub(super) fn root_tree(&mut self) {
        let tree = objectid::ROOT_TREE;
        let root = self.root_tree_root();
        self.walk(&Walk::own(tree), &root, &mut |check, block| {
            for (key, data) in entries(block) {
                if key.kind == kind::ROOT_ITEM && is_single(key.objectid) && key.offset != 0 {
                    let (tree, offset) = (key.objectid, key.offset);
                    check.found(Finding::RootOffset { tree, offset });
                }
                if !check.root_tree_item(key, data) {
                    check.unexpected(tree, block, key);
                }
            }
        });
    }

    /// Takes an item of the root tree. Returns false if it does not belong there.
    fn root_tree_item(&mut self, key: Key, data: &[u8]) -> bool {
        let link = || {
            let parsed = root_ref(data).ok()?;
            let name = parsed.name.to_vec();
            Some(Link {
                dir: parsed.dirid,
                index: parsed.sequence,
                name,
            })
        };
        let roots = &mut self.roots;
        match key.kind {
            kind::ROOT_ITEM => {
                let item = RootItem::parse(data).map(|r| ((key.objectid, key.offset), r));
                roots.items.extend(item);
            }
            kind::ROOT_REF => {
                roots
                    .refs
                    .extend(link().map(|l| ((key.objectid, key.offset), l)));
            }
            kind::ROOT_BACKREF => {
                roots
                    .backrefs
                    .extend(link().map(|l| ((key.offset, key.objectid), l)));
            }
            kind::ORPHAN_ITEM => roots.orphans.push(key.offset),
            kind::DIR_ITEM if key.objectid == objectid::ROOT_TREE_DIR => {
                let named = |e: &DirItemRef<'_>| e.name == b"default";
                let entry = dir_items(data).filter_map(Result::ok).find(named);
                if u64::from(name_hash(b"default")) == key.offset {
                    roots.default = entry.map(|e| e.location);
                }
            }
            // The v1 space cache has inodes here.
            kind::INODE_ITEM | kind::INODE_REF | kind::EXTENT_DATA | kind::DIR_ITEM => {}
            0 if key.objectid == objectid::FREE_SPACE => {}
            kind::TEMPORARY_ITEM | kind::PERSISTENT_ITEM => {}
            _ => return false,
        }
        true
    }

    /// Walks subvolumes, and all trees that are neither subvolumes nor about space.
    pub(super) fn other_trees(&mut self) {
        self.phase(Phase::Trees, self.sb.bytes_used.get());
        for tree in self.roots.subvolumes() {
            self.subvolume(tree);
        }
        // Data that is being relocated belongs to files of an unnamed subvolume.
        self.subvolume(objectid::DATA_RELOC_TREE);
        for (tree, root, dropped) in self.all_roots() {
            let walk = match tree {
                objectid::ROOT_TREE
                | objectid::CHUNK_TREE
                | objectid::EXTENT_TREE
                | objectid::BLOCK_GROUP_TREE
                | objectid::DEV_TREE
                | objectid::CSUM_TREE
                | objectid::FREE_SPACE_TREE
                | objectid::DATA_RELOC_TREE => continue,
                objectid::QUOTA_TREE => {
                    self.quota_tree(&root);
                    continue;
                }
                objectid::UUID_TREE => {
                    self.uuid_tree(&root);
                    continue;
                }
                id if objectid::is_fs_tree(id) => {
                    if self.roots.item(id).is_some_and(|item| item.refs.get() > 0) {
                        continue;
                    }
                    Walk {
                        tree,
                        shared: true,
                        dropped,
                    }
                }
                objectid::TREE_RELOC => Walk {
                    tree,
                    shared: true,
                    dropped: None,
                },
                _ => Walk::own(tree),
            };
            self.walk(&walk, &root, &mut |_, _| {});
        }
        self.log_trees();
    }

    /// All comparisons that need all trees.
    pub(super) fn compare(&mut self) {
        self.phase(Phase::Compare, 0);
        self.compare_groups();
        self.compare_extents();
        if !self.roots.incomplete {
            self.compare_root_refs();
            self.compare_roots();
        }
    }

    fn compare_root_refs(&mut self) {
        let refs = self.roots.refs.clone();
        let backrefs = std::mem::take(&mut self.roots.backrefs);
        for ((parent, child), link) in &refs {
            let (parent, child) = (*parent, *child);
            if self.roots.item(child).is_none() {
                self.found(Finding::RootRefStray { parent, child });
                continue;
            }
            match backrefs.get(&(parent, child)) {
                None => self.found(Finding::RootBackrefMissing { parent, child }),
                Some(back) if back != link => self.found(Finding::RootRefDiffers { parent, child }),
                Some(_) => {}
            }
            self.subvolume_entry(parent, child, link);
        }
        for &(parent, child) in backrefs.keys().filter(|key| !refs.contains_key(key)) {
            self.found(Finding::RootRefMissing { parent, child });
        }
        for tree in self.roots.subvolumes() {
            let referenced =
                |links: &BTreeMap<(u64, u64), Link>| links.keys().any(|(_, child)| *child == tree);
            let top = tree == objectid::FS_TREE;
            if !top && !referenced(&refs) && !referenced(&backrefs) {
                self.found(Finding::SubvolumeUnreachable { tree });
            }
        }
    }

    /// Checks the directory entry for a ref.
    fn subvolume_entry(&mut self, parent: u64, child: u64, link: &Link) {
        let (dir, index) = (link.dir, link.index);
        let Some(root) = self.roots.pointer(parent) else {
            return self.found(Finding::SubvolumeEntryMissing {
                parent,
                child,
                dir,
                index,
            });
        };
        let item = self.get(parent, &root, &Key::new(dir, kind::DIR_INDEX, index));
        let mut entries = dir_items(item.as_deref().unwrap_or_default()).filter_map(Result::ok);
        let fits = entries.any(|e| {
            let to = (e.location.objectid, e.location.kind);
            e.name == link.name && to == (child, kind::ROOT_ITEM)
        });
        if !fits && !self.uses_incomplete {
            self.found(Finding::SubvolumeEntryMissing {
                parent,
                child,
                dir,
                index,
            });
        }
    }

    fn compare_roots(&mut self) {
        let orphans = std::mem::take(&mut self.roots.orphans);
        let dead: Vec<(u64, bool)> = self
            .roots
            .items
            .iter()
            .filter(|((id, _), _)| objectid::is_fs_tree(*id))
            .map(|((id, _), item)| (*id, item.refs.get() == 0))
            .collect();
        for (tree, dead) in dead {
            match (dead, orphans.contains(&tree)) {
                (true, false) => self.found(Finding::DeadRootForgotten { tree }),
                (false, true) => self.found(Finding::RootOrphanStray { tree }),
                _ => {}
            }
        }
        let default = self.roots.default.map_or(0, |key| key.objectid);
        if self
            .roots
            .item(default)
            .is_none_or(|item| item.refs.get() == 0)
        {
            self.found(Finding::DefaultSubvolume { tree: default });
        }
        for tree in self.roots.subvolumes() {
            let found = self.roots.item(tree).map(|item| item.root_dirid.get());
            if let Some(found) = found.filter(|found| *found != objectid::FIRST_FREE) {
                self.found(Finding::RootDirectory { tree, found });
            }
            self.stray_entries(tree);
        }
    }

    /// There are as many entries for subvolumes as refs, except in a snapshot, where entries remain
    /// and show an empty directory.
    fn stray_entries(&mut self, tree: u64) {
        let snapshot = self.roots.is_snapshot(tree);
        let refs = self.roots.refs.range((tree, 0)..=(tree, u64::MAX)).count() as u64;
        let entries = self.roots.entries.get(&tree).copied().unwrap_or(0);
        let Some(root) = self
            .roots
            .pointer(tree)
            .filter(|_| !snapshot && entries > refs)
        else {
            return;
        };
        let mut odd = Vec::new();
        self.range(tree, &root, &Key::MIN, &Key::MAX, &mut |key, data| {
            if key.kind != kind::DIR_INDEX {
                return;
            }
            for entry in dir_items(data).filter_map(Result::ok) {
                let (child, to) = (entry.location.objectid, entry.location.kind);
                let link = self.roots.refs.get(&(tree, child));
                let fits = link.is_some_and(|l| (l.dir, l.index) == (key.objectid, key.offset));
                if to == kind::ROOT_ITEM && !fits {
                    let (dir, name) = (key.objectid, shown(entry.name));
                    odd.push(Finding::SubvolumeEntryStray {
                        tree,
                        dir,
                        name,
                        child,
                    });
                }
            }
        });
        odd.into_iter().for_each(|f| self.found(f));
    }
}
