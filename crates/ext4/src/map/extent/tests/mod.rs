//! Trees against a map in memory.

mod damage;
mod model;
mod rules;

use sapwood_ext4_format::{Extent, ExtentBounds, ExtentNode};

use super::insert::merged;
use super::path::descend;
use super::{Root, Tree, depth, empty_root, lookup, replace_credits};
use crate::map::memory::Memory;
use crate::map::nodes::{Blocks, NodeKind};
use crate::map::{Mapped, Run};

/// A file with its tree, in memory.
pub(super) struct File {
    pub(super) store: Memory,
    pub(super) root: Root,
}

/// Credits that let the least step of a removal through.
fn least_credits(root: &Root) -> u32 {
    replace_credits(depth(root) + 2) + 2
}

impl File {
    pub(super) fn new(block_size: u32) -> Self {
        let (store, root) = (Memory::new(block_size), empty_root());
        Self { store, root }
    }

    pub(super) fn tree(&mut self) -> Tree<'_, Memory> {
        Tree::new(&self.store, &mut self.root)
    }

    /// Inserts with no more credits than such an insertion announces.
    pub(super) fn insert(
        &mut self,
        logical: u64,
        physical: u64,
        len: u64,
        written: bool,
    ) -> crate::Result<()> {
        let pieces = (len / 32767) as u32;
        self.store
            .handle(replace_credits(depth(&self.root) + 2) + 4 * pieces);
        self.tree().insert(logical, physical, len, written)
    }

    /// Allocates and inserts.
    pub(super) fn fill(&mut self, logical: u64, len: u64, written: bool, apart: u64) {
        let physical = self.store.allocate(len, apart);
        self.insert(logical, physical, len, written).unwrap();
    }

    /// Removes with the fewest credits that make progress, as often as needed.
    pub(super) fn remove(&mut self, mut range: std::ops::Range<u64>) -> crate::Result<()> {
        while !range.is_empty() {
            self.store.handle(least_credits(&self.root));
            let rest = self.tree().remove(range.clone())?;
            assert!(
                rest.is_empty() || rest.end < range.end,
                "no progress: {range:?}"
            );
            range = rest;
            self.check();
        }
        Ok(())
    }

    pub(super) fn convert(&mut self, mut range: std::ops::Range<u64>, written: bool) {
        while !range.is_empty() {
            self.store.handle(replace_credits(depth(&self.root) + 2));
            let rest = self.tree().convert(range.clone(), written).unwrap();
            assert!(
                rest.is_empty() || rest.start > range.start,
                "no progress: {range:?}"
            );
            range = rest;
        }
    }

    pub(super) fn lookup(&self, logical: u64, max: u64) -> Run {
        lookup(&self.store, &self.root, logical, max).unwrap()
    }

    /// Every run up to block `end`, holes too.
    pub(super) fn runs(&self, end: u64) -> Vec<Run> {
        let (mut runs, mut at) = (Vec::new(), 0);
        while at < end {
            let run = self.lookup(at, end - at);
            assert!(run.logical == at && run.len > 0, "{run:?} at {at}");
            at += run.len;
            runs.push(run);
        }
        runs
    }

    /// Walks the whole tree and checks it: every node by the validator, keys equal to the first
    /// entry below, no node lost or named twice, blocks counted right, no two extents of a leaf
    /// that could be one. Returns all extents.
    pub(super) fn check(&self) -> Vec<Extent> {
        let extents = self.check_nodes();
        let mut split = extents
            .windows(2)
            .filter(|pair| merged(&pair[0], &pair[1]).is_some());
        while let Some([left, right]) = split.next() {
            let leaf = |extent: &Extent| {
                descend(&self.store, &self.root, extent.logical)
                    .unwrap()
                    .leaf
                    .bounds
                    .first
            };
            assert_ne!(leaf(left), leaf(right), "could be one: {left:?} {right:?}");
        }
        extents
    }

    /// Like [`check`](Self::check), during a shift that split an extent.
    pub(super) fn check_nodes(&self) -> Vec<Extent> {
        let world = *self.store.world();
        let bounds = ExtentBounds::root(world.first_block, world.blocks);
        let (mut extents, mut nodes) = (Vec::new(), Vec::new());
        self.walk(&self.root, &bounds, &mut extents, &mut nodes);
        nodes.sort_unstable();
        let known: Vec<u64> = self.store.nodes.borrow().keys().copied().collect();
        assert_eq!(nodes, known, "nodes in the tree and nodes allocated");
        let content: u64 = extents.iter().map(|extent| u64::from(extent.len)).sum();
        assert_eq!(
            self.store.charged.get(),
            (content + nodes.len() as u64) as i64
        );
        extents
    }

    fn walk(
        &self,
        bytes: &[u8],
        bounds: &ExtentBounds,
        extents: &mut Vec<Extent>,
        nodes: &mut Vec<u64>,
    ) {
        let node = ExtentNode::parse(bytes, bounds).unwrap();
        if let (Some(first), true) = (node.logical(0), bounds.depth.is_some()) {
            assert_eq!(first, bounds.first, "key of the parent");
        }
        extents.extend(node.extents());
        for (at, entry) in node.indexes().enumerate() {
            nodes.push(entry.child);
            let below = node.child_bounds(at, bounds).unwrap();
            let child = self
                .store
                .node(entry.child, NodeKind::Extent, &|_| Ok(()))
                .unwrap();
            let bytes = self.store.bytes(&child);
            assert!(
                !ExtentNode::parse_header(&bytes).unwrap().is_empty(),
                "an empty node stayed"
            );
            self.walk(&bytes, &below, extents, nodes);
        }
    }
}

pub(super) fn written(physical: u64) -> Mapped {
    Mapped::Written(physical)
}
