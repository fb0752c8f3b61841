//! Replacing entries of a leaf, and the resulting changes of the nodes above.
//!
//! # How it works
//! - There is room in the leaf: its entries are replaced. If the first one changed, the key in the
//!   parent changes with it, and so on upwards for as long as the node is the first of its parent.
//! - There is none: the leaf is full, and so may be the nodes directly above it. The topmost full
//!   node is split, because its parent has room for one more key. If that node is the root, its
//!   entries move to a new block and the root gets a level. Then the path is searched again: each
//!   such step allocates one block and leaves a whole tree, and after at most two per level there
//!   is room (`splits_reach_every_depth`).
//! - The leaf becomes empty: its key is taken out of the parent, which may become empty too. A tree
//!   without an extent is an empty root of depth 0 (`removing_all_leaves_an_empty_root`).
//!
//! A last node is split before its last entry, so that a growing file leaves full nodes. All other
//! nodes are halved.

use sapwood_ext4_format::{EXTENT_MAX_DEPTH, Extent, ExtentIndex, ExtentNodeMut};

use super::Tree;
use super::path::{Level, Path};
use crate::map::nodes::{Changes, NodeKind};
use crate::{Error, Result};

/// Splits that one replacement may need: each level can be split once and the root can grow at each
/// depth.
const SPLITS_MAX: usize = 2 * (EXTENT_MAX_DEPTH as usize + 2);
/// A node with less room than this is no valid node; splitting it might leave nothing
/// on a side.
const ROOM_MIN: usize = 8;

/// Entries of a leaf or of an inner node.
enum Entries {
    Leaf(Vec<Extent>),
    Inner(Vec<ExtentIndex>),
}

impl<S: Changes> Tree<'_, S> {
    /// Replaces the entries `from..to` of the leaf by `new`, all in order and within the gap.
    ///
    /// # Errors
    /// No space for a node: the tree has the content that it had. `FileTooLarge`: the tree cannot
    /// become deeper.
    pub(super) fn replace(
        &mut self,
        mut path: Path<S::Node>,
        mut from: usize,
        to: usize,
        new: &[Extent],
    ) -> Result<()> {
        let old = to.saturating_sub(from);
        let first = path
            .leaf
            .view(self.store, self.root, |node| node.logical(from))?;
        let anchor = first
            .filter(|_| old > 0)
            .or(new.first().map(|extent| extent.logical));
        let Some(anchor) = anchor else {
            return Ok(());
        };
        for _ in 0..SPLITS_MAX {
            if path.leaf.len.saturating_sub(old) + new.len() <= path.leaf.max {
                return self.replace_within(&path, from, old, new);
            }
            self.make_room(&path, from, from + old)?;
            path = self.descend(anchor)?;
            from = match path.leaf.at {
                Some(at) if old > 0 => at,
                Some(at) => at + 1,
                None => 0,
            };
        }
        Err(self
            .store
            .world()
            .bad_map("no room in the extent tree after splitting it"))
    }

    /// Replaces entries of a leaf that has room for the new ones.
    fn replace_within(
        &mut self,
        path: &Path<S::Node>,
        from: usize,
        old: usize,
        new: &[Extent],
    ) -> Result<()> {
        self.edit(&path.leaf, |node| {
            let kept = old.min(new.len());
            for (at, extent) in (from..).zip(&new[..kept]) {
                node.set_extent(at, extent)?;
            }
            for (at, extent) in (from + kept..).zip(&new[kept..]) {
                node.insert_extent(at, extent)?;
            }
            if old > kept {
                node.remove(from + kept, old - kept)
            } else {
                Ok(())
            }
        })?;
        if path.leaf.len + new.len() == old {
            return self.drop_empty(path);
        }
        if from > 0 {
            return Ok(());
        }
        let first = path
            .leaf
            .view(self.store, self.root, |node| node.logical(0))?;
        first.map_or(Ok(()), |first| self.set_key(&path.above, first))
    }

    /// Gives the node below the last of `above` the key `first`, and the nodes above it if it is
    /// the first of them.
    pub(super) fn set_key(&mut self, above: &[Level<S::Node>], first: u32) -> Result<()> {
        for level in above.iter().rev() {
            let at = level.at.unwrap_or(0);
            let entry = level.view(self.store, self.root, |node| node.index(at))?;
            let Some(entry) = entry.filter(|entry| entry.logical != first) else {
                return Ok(());
            };
            let logical = first;
            self.edit(level, |node| {
                node.set_index(at, &ExtentIndex { logical, ..entry })
            })?;
            if at > 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Frees an empty leaf, and all nodes above that have nothing else below.
    pub(super) fn drop_empty(&mut self, path: &Path<S::Node>) -> Result<()> {
        let mut gone = &path.leaf;
        for (depth, level) in path.above.iter().enumerate().rev() {
            let at = level.at.unwrap_or(0);
            self.edit(level, |node| node.remove(at, 1))?;
            if let Some(node) = &gone.node {
                self.store.discard(node)?;
            }
            if level.len > 1 {
                if at == 0 {
                    let first = level.view(self.store, self.root, |node| node.logical(0))?;
                    let above = &path.above[..depth];
                    return first.map_or(Ok(()), |first| self.set_key(above, first));
                }
                return Ok(());
            }
            gone = level;
        }
        self.edit(
            &Level {
                node: None,
                ..path.leaf.clone()
            },
            |node| node.set_depth(0),
        )
    }

    /// One step towards room in the leaf, whose entries `from..to` stay together.
    fn make_room(&mut self, path: &Path<S::Node>, from: usize, to: usize) -> Result<()> {
        let full = path
            .above
            .iter()
            .rev()
            .take_while(|level| level.len >= level.max)
            .count();
        let Some(parent) = path.above.len().checked_sub(full + 1) else {
            return self.grow(path);
        };
        let last = path.above[..=parent]
            .iter()
            .all(|level| level.at.is_some_and(|at| at + 1 == level.len));
        let parent = &path.above[parent];
        if full == 0 {
            let middle = split_point(path.leaf.len, from, to, last);
            return self.split(parent, &path.leaf, middle);
        }
        let level = &path.above[path.above.len() - full];
        let at = level.at.unwrap_or(0);
        let middle = split_point(level.len, at, at + 1, last);
        self.split(parent, level, middle)
    }

    /// Moves the entries of the root to a new block, and the root one level up.
    fn grow(&mut self, path: &Path<S::Node>) -> Result<()> {
        let root = path.above.first().unwrap_or(&path.leaf);
        let depth = path.above.len() as u16;
        if depth >= EXTENT_MAX_DEPTH {
            return Err(Error::Vfs(sapwood_vfs::Error::FileTooLarge));
        }
        let goal = self.node_goal(path)?;
        let entries = self.entries(root, 0)?;
        let child = self.fill(goal, depth, &entries)?;
        let logical = root
            .view(self.store, self.root, |node| node.logical(0))?
            .unwrap_or(0);
        let entry = ExtentIndex { logical, child };
        let count = root.len;
        self.edit(root, |node| {
            node.remove(0, count)?;
            node.set_depth(depth + 1)?;
            node.insert_index(0, &entry)
        })
    }

    /// Moves the entries of `level` from `middle` on to a new node after it.
    fn split(
        &mut self,
        parent: &Level<S::Node>,
        level: &Level<S::Node>,
        middle: usize,
    ) -> Result<()> {
        let place = level.node.as_ref().map_or(0, |node| self.store.place(node));
        let world = self.store.world();
        if level.max < ROOM_MIN || middle == 0 || middle >= level.len {
            return Err(world.bad_block(place, "an extent node that cannot be split"));
        }
        let Some(depth) = level.bounds.depth else {
            return Err(world.bad_map("a root cannot be split"));
        };
        let first = level.view(self.store, self.root, |node| node.logical(middle))?;
        let Some(logical) = first else {
            return Err(world.bad_block(place, "an extent node lost entries"));
        };
        let entries = self.entries(level, middle)?;
        let child = self.fill(place + 1, depth, &entries)?;
        let (at, entry) = (parent.at.unwrap_or(0) + 1, ExtentIndex { logical, child });
        self.edit(parent, |node| node.insert_index(at, &entry))?;
        self.edit(level, |node| node.remove(middle, level.len - middle))
    }

    /// Best place of a first node below the root: close to the content.
    fn node_goal(&self, path: &Path<S::Node>) -> Result<u64> {
        if let Some(node) = &path.leaf.node {
            return Ok(self.store.place(node));
        }
        let first = path
            .leaf
            .view(self.store, self.root, |node| node.extent(0))?;
        Ok(first.map_or(self.store.world().first_block, |extent| extent.physical))
    }

    /// The entries of a node from `from` on.
    fn entries(&self, level: &Level<S::Node>, from: usize) -> Result<Entries> {
        level.view(self.store, self.root, |node| {
            if node.is_leaf() {
                Entries::Leaf(node.extents().skip(from).collect())
            } else {
                Entries::Inner(node.indexes().skip(from).collect())
            }
        })
    }

    /// Allocates a node with these entries. Returns its block.
    fn fill(&mut self, goal: u64, depth: u16, entries: &Entries) -> Result<u64> {
        let node = self.store.create(NodeKind::Extent, goal)?;
        let place = self.store.place(&node);
        let filled = self.store.change(&node, |bytes| {
            let mut made = ExtentNodeMut::init(bytes, depth)?;
            match entries {
                Entries::Leaf(extents) => made.push_extents(extents),
                Entries::Inner(indexes) => made.push_indexes(indexes),
            }
        })?;
        filled.map_err(|err| self.store.world().bad_block(place, err))?;
        Ok(place)
    }

    /// Removes levels with only one node whose entries fit into the root.
    pub(super) fn shrink(&mut self) -> Result<()> {
        for _ in 0..EXTENT_MAX_DEPTH {
            let path = self.descend(0)?;
            let Some(root) = path.above.first().filter(|root| root.len == 1) else {
                return Ok(());
            };
            let child = path.above.get(1).unwrap_or(&path.leaf);
            if child.len > root.max {
                return Ok(());
            }
            let entries = self.entries(child, 0)?;
            let depth = path.above.len() as u16 - 1;
            self.edit(root, |node| {
                node.remove(0, 1)?;
                node.set_depth(depth)?;
                match &entries {
                    Entries::Leaf(extents) => node.push_extents(extents),
                    Entries::Inner(indexes) => node.push_indexes(indexes),
                }
            })?;
            if let Some(node) = &child.node {
                self.store.discard(node)?;
            }
        }
        Ok(())
    }
}

/// Split point of a node of `len` entries that keeps `from..to` together.
fn split_point(len: usize, from: usize, to: usize, last: bool) -> usize {
    let middle = if last && to >= len {
        len.saturating_sub(1)
    } else {
        len / 2
    };
    if from < middle && middle < to {
        if from > 0 { from } else { to }
    } else {
        middle
    }
}
