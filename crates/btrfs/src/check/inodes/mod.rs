//! Subvolumes: inodes, names, file extents.
//!
//! # How it works
//! Each leaf gives a [`Summary`]: facts about its inodes that can be added. Summaries of neighbours
//! join. An inode that has all its items inside is complete and is checked; the ones at both ends
//! stay [`Partial`]. The summary of a block that several trees share is kept, so the block is
//! walked once, and its inner inodes are checked once. Rules that involve several inodes (does an
//! entry's inode exist, does it have this name) are a balance of hashes over the subvolume. If it
//! is not zero, `links` finds the cause.

mod hash_tree;
mod judge;
mod leaf;
mod links;
mod partial;
mod summary;

use std::collections::{HashMap, HashSet};

use sapwood_btrfs_format::{Block, Key, kind, objectid};

use super::finding::Finding;
use super::state::{Check, Pointer, children};
pub(super) use leaf::{names, summed_range};
use summary::Summary;

/// Summaries of shared blocks, and the subvolume being checked.
#[derive(Default)]
pub(super) struct Cache {
    summaries: HashMap<u64, (Pointer, Summary)>,
    /// Root of the subvolume being checked.
    root: Option<Pointer>,
    /// Directories of the subvolume that are older than their parent. A loop contains at least one.
    climbers: Vec<u64>,
    /// Data that is allocated but not written, and that has checksums: an error unless another file
    /// extent shows that it was written.
    pub(super) unwritten: Vec<Unwritten>,
}

/// Subvolume, inode and file offset; range of addresses, half-open.
pub(super) type Unwritten = ((u64, u64, u64), u64, u64);

impl Check<'_> {
    /// Checks a subvolume.
    pub(super) fn subvolume(&mut self, tree: u64) {
        let Some(root) = self.roots.pointer(tree) else {
            return;
        };
        self.report.stats.subvolumes += u64::from(objectid::is_fs_tree(tree));
        self.inodes.root = Some(root);
        self.inodes.climbers.clear();
        self.use_root(tree, &root);
        let mut sum = self.subtree(tree, &root);
        for partial in sum.take_ends() {
            self.judge(tree, *partial, &mut sum);
        }
        self.roots.entries.insert(tree, sum.subvolumes);
        if sum.holes {
            return;
        }
        let top = Key::new(objectid::FIRST_FREE, kind::INODE_ITEM, 0);
        if self.get(tree, &root, &top).is_none() {
            self.found(Finding::TopDirectory { tree });
        }
        if sum.links != 0 || sum.types != 0 {
            self.examine_links(tree, &root);
        } else {
            self.loops(tree, &root);
        }
        self.orphans(tree, sum);
    }

    /// Walks a subtree, or takes its summary if it was walked before.
    fn subtree(&mut self, tree: u64, at: &Pointer) -> Summary {
        if let Some((known, sum)) = self.inodes.summaries.get(&at.logical) {
            let (same, sum) = (known == at, sum.clone());
            // Another parent may contradict the block, which is found by reading it.
            if same || self.block(tree, at).is_some() {
                return sum;
            }
            return Summary::hole();
        }
        let (bytes, again) = self.enter(tree, at);
        if again {
            self.found(Finding::BlockTwice {
                tree,
                logical: at.logical,
            });
        }
        let Some(bytes) = bytes else {
            return Summary::hole();
        };
        let Ok(block) = Block::new(&bytes) else {
            return Summary::hole();
        };
        self.charge(&block, 0);
        self.note_owner(tree, &block);
        let sum = if block.is_leaf() {
            self.leaf(tree, &block)
        } else {
            self.node(tree, &block)
        };
        if self.extents.is_shared(at.logical) {
            self.inodes.summaries.insert(at.logical, (*at, sum.clone()));
        }
        sum
    }

    fn node(&mut self, tree: u64, block: &Block<'_>) -> Summary {
        let below = children(block);
        let mut sum = Summary::default();
        for (slot, child) in below.iter().enumerate() {
            let next = self.subtree(tree, child);
            self.check_order(tree, block, slot, next.last_key, &below);
            let mut finished = Vec::new();
            sum = sum.join(next, &mut finished);
            for partial in finished {
                self.judge(tree, partial, &mut sum);
            }
        }
        sum
    }

    /// Climbs to the top from every directory that could be in a loop.
    fn loops(&mut self, tree: u64, root: &Pointer) {
        let top = objectid::FIRST_FREE;
        let mut safe = HashSet::from([top]);
        for inode in std::mem::take(&mut self.inodes.climbers) {
            let (mut at, mut path) = (inode, HashSet::new());
            while !safe.contains(&at) {
                if !path.insert(at) {
                    self.found(Finding::DirectoryLoop { tree, inode });
                    break;
                }
                let Some(parent) = self.parent(tree, root, at) else {
                    break;
                };
                at = parent;
            }
            safe.extend(path);
        }
    }

    /// Directory of an inode's first name.
    fn parent(&self, tree: u64, root: &Pointer, inode: u64) -> Option<u64> {
        let from = Key::new(inode, kind::INODE_REF, 0);
        let to = Key::new(inode, kind::INODE_EXTREF, u64::MAX);
        let mut parent = None;
        self.range(tree, root, &from, &to, &mut |key, data| {
            let first = leaf::names(&key, data).first().map(|name| name.0);
            parent = parent.or(first);
        });
        parent
    }

    /// Checks that exactly the inodes without names, and those with an unfinished hash tree, have
    /// orphan items.
    fn orphans(&mut self, tree: u64, mut sum: Summary) {
        sum.unlinked.sort_unstable();
        sum.orphans.sort_unstable();
        sum.half_sealed.sort_unstable();
        for &inode in &sum.unlinked {
            if sum.orphans.binary_search(&inode).is_err() {
                self.found(Finding::OrphanMissing { tree, inode });
            }
        }
        for &inode in &sum.orphans {
            // A seal that was cut has one too.
            let known = sum.unlinked.binary_search(&inode).is_ok()
                || sum.half_sealed.binary_search(&inode).is_ok();
            if !known {
                self.found(Finding::OrphanStray { tree, inode });
            }
        }
        for &inode in &sum.half_sealed {
            if sum.orphans.binary_search(&inode).is_err() {
                self.found(Finding::HashTreeStray { tree, inode });
            }
        }
    }
}
