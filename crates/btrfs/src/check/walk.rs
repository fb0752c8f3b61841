//! Walks trees block by block and records the uses of each block. Subvolumes have their own walk in
//! [`inodes`](super::inodes), which enters blocks in the same way.

use std::collections::HashSet;

use sapwood_btrfs_format::{Block, FileExtent, InlineRef, Key, RegularExtent, kind, objectid};

use super::finding::Finding;
use super::refs::uses;
use super::state::{Check, Pointer, children};

/// Key and level up to which a tree is deleted.
pub(super) type Dropped = (Key, u8);

/// Parameters of a walk.
#[derive(Clone, Copy)]
pub(super) struct Walk {
    pub(super) tree: u64,
    /// Blocks may be shared with other trees: blocks that were seen already are skipped.
    pub(super) shared: bool,
    /// A tree that is being deleted.
    pub(super) dropped: Option<Dropped>,
}

impl Walk {
    /// A tree that shares no block.
    pub(super) fn own(tree: u64) -> Self {
        Self {
            tree,
            shared: false,
            dropped: None,
        }
    }
}

/// Called for each leaf.
pub(super) type OnLeaf<'f, 'a> = &'f mut dyn FnMut(&mut Check<'a>, &Block<'_>);

impl<'a> Check<'a> {
    /// Charges a tree with its root block.
    pub(super) fn use_root(&mut self, tree: u64, root: &Pointer) {
        let reference = if tree == objectid::TREE_RELOC {
            InlineRef::SharedBlock {
                parent: root.logical,
            }
        } else {
            InlineRef::TreeBlock { root: tree }
        };
        self.use_block(root, &reference);
    }

    fn use_block(&mut self, at: &Pointer, reference: &InlineRef) {
        let nodesize = self.nodesize();
        self.extents.use_block(at, nodesize, reference);
    }

    /// Reads a block and charges its uses, from slot `from` on, unless it was entered before. The
    /// flag is true if it was.
    pub(super) fn enter(&mut self, tree: u64, at: &Pointer) -> (Option<Vec<u8>>, bool) {
        if tree == objectid::TREE_LOG {
            if !self.log_blocks.insert(at.logical) {
                return (None, true);
            }
            return (self.block(tree, at), false);
        }
        if !self.extents.enter(at.logical) {
            return (None, true);
        }
        let bytes = self.block(tree, at);
        if bytes.is_some() {
            self.report.stats.tree_blocks += 1;
        }
        (bytes, false)
    }

    /// Charges a block's uses.
    pub(super) fn charge(&mut self, block: &Block<'_>, from: usize) {
        let full = self.extents.is_full_backref(block.bytenr());
        let nodesize = self.nodesize();
        let mut odd = Vec::new();
        uses(block, full, from, &mut |what, reference| {
            odd.extend(self.extents.use_by(&what, nodesize, reference));
        });
        odd.into_iter().for_each(|finding| self.found(finding));
    }

    /// Walks a tree from its root block, leaves in the order of their keys.
    pub(super) fn walk(&mut self, walk: &Walk, root: &Pointer, on_leaf: OnLeaf<'_, 'a>) {
        if walk.tree != objectid::TREE_LOG {
            self.use_root(walk.tree, root);
        }
        self.walk_block(walk, root, walk.dropped, on_leaf);
    }

    /// Returns the last key below the block.
    fn walk_block(
        &mut self,
        walk: &Walk,
        at: &Pointer,
        dropped: Option<Dropped>,
        on_leaf: OnLeaf<'_, 'a>,
    ) -> Option<Key> {
        let (bytes, again) = self.enter(walk.tree, at);
        if again && !walk.shared {
            self.found(Finding::BlockTwice {
                tree: walk.tree,
                logical: at.logical,
            });
        }
        let bytes = bytes?;
        let block = Block::new(&bytes).ok()?;
        let dropped = dropped.filter(|(_, level)| block.level() >= (*level).max(1));
        let from = dropped.map_or(0, |(key, _)| block.child_slot(&key).unwrap_or(0));
        if walk.tree != objectid::TREE_LOG {
            self.charge(&block, from);
            self.note_owner(walk.tree, &block);
        }
        if block.is_leaf() {
            on_leaf(self, &block);
            return block.last_key();
        }
        let mut last = None;
        let below = children(&block);
        for (slot, child) in below.iter().enumerate().skip(from) {
            let dropped = dropped.filter(|(_, level)| slot == from && block.level() > *level);
            last = self.walk_block(walk, child, dropped, &mut *on_leaf);
            self.check_order(walk.tree, &block, slot, last, &below);
        }
        last
    }

    /// Checks that the keys below a slot are all smaller than the next slot's key.
    pub(super) fn check_order(
        &mut self,
        tree: u64,
        block: &Block<'_>,
        slot: usize,
        last: Option<Key>,
        below: &[Pointer],
    ) {
        let next = below.get(slot + 1).and_then(|next| next.first_key);
        if let (Some(last), Some(next)) = (last, next)
            && last >= next
        {
            let logical = block.bytenr();
            self.found(Finding::KeyOrder {
                tree,
                logical,
                slot,
                last,
                next,
            });
        }
    }

    /// Looks up one item without reporting anything.
    pub(super) fn get(&self, tree: u64, root: &Pointer, key: &Key) -> Option<Vec<u8>> {
        let mut found = None;
        self.range(tree, root, key, key, &mut |_, data| {
            found = Some(data.to_vec())
        });
        found
    }

    /// Calls `f` for the items `from..=to`, without reporting anything. A block that is reached
    /// twice is visited once.
    pub(super) fn range(
        &self,
        tree: u64,
        root: &Pointer,
        from: &Key,
        to: &Key,
        on_item: &mut dyn FnMut(Key, &[u8]),
    ) {
        let mut leaves = Leaves::new(tree, *root);
        leaves.bounds = (*from, *to);
        while let Some(bytes) = leaves.next(self) {
            let Ok(block) = Block::new(&bytes) else {
                continue;
            };
            for (key, data) in entries(&block) {
                if (from..=to).contains(&&key) {
                    on_item(key, data);
                }
            }
        }
    }
}

/// Iterates over the leaves of a tree that may have keys within bounds, in order, for second
/// examinations. Reports nothing. A block that is reached twice is visited once.
pub(super) struct Leaves {
    tree: u64,
    bounds: (Key, Key),
    stack: Vec<Pointer>,
    seen: HashSet<u64>,
}

impl Leaves {
    pub(super) fn new(tree: u64, root: Pointer) -> Self {
        Self {
            tree,
            bounds: (Key::MIN, Key::MAX),
            stack: vec![root],
            seen: HashSet::new(),
        }
    }

    /// Skips these blocks, as if they had been visited.
    pub(super) fn pass_over(&mut self, seen: HashSet<u64>) {
        self.seen = seen;
    }

    /// Blocks that were visited or skipped.
    pub(super) fn seen(self) -> HashSet<u64> {
        self.seen
    }

    pub(super) fn next(&mut self, check: &Check<'_>) -> Option<Vec<u8>> {
        let (from, to) = self.bounds;
        while let Some(at) = self.stack.pop() {
            if !self.seen.insert(at.logical) {
                continue;
            }
            let Some(bytes) = check.quiet_block(self.tree, &at) else {
                continue;
            };
            let Ok(block) = Block::new(&bytes) else {
                continue;
            };
            if block.is_leaf() {
                return Some(bytes);
            }
            let first = block.child_slot(&from).unwrap_or(0);
            let below = children(&block).into_iter().skip(first);
            let below = below.take_while(|child| child.first_key.is_none_or(|key| key <= to));
            let below: Vec<Pointer> = below.collect();
            self.stack.extend(below.into_iter().rev());
        }
        None
    }
}

/// Items of a leaf.
pub(super) fn entries<'b>(block: &Block<'b>) -> impl Iterator<Item = (Key, &'b [u8])> {
    let block = *block;
    (0..block.items().len()).filter_map(move |slot| block.entry(slot).ok())
}

/// File extents of a leaf that have an extent on disk, with their keys.
pub(super) fn disk_extents(block: &Block<'_>) -> impl Iterator<Item = (Key, RegularExtent)> {
    let items = entries(block).filter(|(key, _)| key.kind == kind::EXTENT_DATA);
    items.filter_map(|(key, data)| match FileExtent::parse(data) {
        Ok(FileExtent::Regular(extent) | FileExtent::Prealloc(extent)) if !extent.is_hole() => {
            Some((key, extent))
        }
        _ => None,
    })
}
