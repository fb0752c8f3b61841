//! Extent trees.
//!
//! # How it works
//! A tree is changed in one way only: some neighbouring entries of one leaf are [replaced](splice)
//! by others. Inserting, converting and removing compute the new contents of the leaf. The
//! replacement then splits nodes, adds a level, keeps the keys of the parents equal to the first
//! entry below them, and drops empty nodes. Each of those steps leaves a whole tree with the same
//! content, so a block that cannot be allocated in the middle (`no_room_leaves_the_tree_as_it_was`)
//! or a damaged node stops a change without harm.
//!
//! Shifting moves the entries of whole leaves, from the side to which they move, so that ranges
//! never cross meanwhile.
//!
//! The property tests in `tests` compare all of it with a map in memory, on blocks of 1024 bytes,
//! down to depth 3.
mod insert;
mod path;
mod remove;
mod shift;
mod splice;

#[cfg(test)]
mod tests;

use sapwood_ext4_format::{Extent, ExtentError, ExtentNode, ExtentNodeMut};

pub(crate) use path::Root;
pub(crate) use path::lookup;
use path::{Level, Path, descend};

use super::nodes::{Blocks, Changes};
use crate::Result;

/// The tree of an inode whose map lock is held exclusively.
pub(crate) struct Tree<'a, S> {
    store: &'a S,
    root: &'a mut Root,
}

impl<'a, S: Changes> Tree<'a, S> {
    /// The tree below `root`.
    pub(crate) fn new(store: &'a S, root: &'a mut Root) -> Self {
        Self { store, root }
    }

    fn descend(&self, logical: u32) -> Result<Path<S::Node>> {
        descend(self.store, self.root, logical)
    }

    /// Changes one node.
    fn edit(
        &mut self,
        level: &Level<S::Node>,
        with: impl FnOnce(&mut ExtentNodeMut<'_>) -> Result<(), ExtentError>,
    ) -> Result<()> {
        let world = self.store.world();
        let change =
            |bytes: &mut [u8]| ExtentNodeMut::open(bytes).and_then(|mut node| with(&mut node));
        match &level.node {
            None => change(self.root).map_err(|err| world.bad_map(err)),
            Some(node) => {
                let place = self.store.place(node);
                let done = self.store.change(node, change)?;
                done.map_err(|err| world.bad_block(place, err))
            }
        }
    }
}

/// Levels below the root of a tree; 0 if the root is damaged.
pub(crate) fn depth(root: &Root) -> u32 {
    ExtentNode::parse_header(root).map_or(0, |node| u32::from(node.depth()))
}

/// Whether a tree has no extent at all.
pub(crate) fn is_empty(root: &Root) -> bool {
    ExtentNode::parse_header(root).is_ok_and(|node| node.is_empty())
}

/// A root without an extent.
pub(crate) fn empty_root() -> Root {
    let mut root = [0; size_of::<Root>()];
    // Cannot fail: the bytes have room for a header.
    let _ = ExtentNodeMut::init(&mut root, 0);
    root
}

/// Best place of a new block at `logical`: as far from its neighbour in the file as on the device.
/// `None` in an empty tree.
pub(crate) fn goal<S: Blocks>(store: &S, root: &Root, logical: u32) -> Result<Option<u64>> {
    let path = descend(store, root, logical)?;
    let near = path
        .leaf
        .view(store, root, |node| node.extent(path.leaf.at.unwrap_or(0)))?;
    let Some(Extent {
        logical: begin,
        physical,
        ..
    }) = near
    else {
        return Ok(path.leaf.node.map(|node| store.place(&node)));
    };
    let goal = match logical.checked_sub(begin) {
        Some(behind) => physical.saturating_add(u64::from(behind)),
        None => physical.saturating_sub(u64::from(begin - logical)),
    };
    Ok(Some(goal))
}

/// Most credits of one replacement in a leaf, on a path of this many nodes: each of them and a new
/// neighbour, the bitmap and the descriptor of each new node; and a new level.
pub(crate) fn replace_credits(nodes: u32) -> u32 {
    nodes.saturating_mul(4).saturating_add(3)
}
