//! The path from an inode's root to a leaf, validated at each step.
//!
//! # How it works
//! A node is validated as a whole, with its checksum, when it is loaded. That does not prove that
//! it belongs *here*: a broken image may name one block from two places, even from below itself. So
//! each step also checks the node against the path: the depth is one less than the parent's, which
//! bounds every path by the depth of the root, and the first and last entry lie in the node's range
//! in the parent (`a_block_below_itself_ends_in_an_error`, `a_node_outside_its_range_is_refused`).
//! The validator checked the order of the entries between them.

use sapwood_ext4_format::{
    EXTENT_ROOT_SIZE, Extent, ExtentBounds, ExtentError, ExtentNode, extent_block_verify,
};

use crate::Result;
use crate::map::nodes::{Blocks, NodeKind};
use crate::map::run::{Growing, Mapped, Run};

/// A root, as the inode keeps it.
pub(crate) type Root = [u8; EXTENT_ROOT_SIZE];

/// One node of a path.
#[derive(Debug, Clone)]
pub(super) struct Level<N> {
    /// The node; `None` for the root.
    pub(super) node: Option<N>,
    /// Bounds for its entries.
    pub(super) bounds: ExtentBounds,
    /// In an inner node the entry that was followed. In a leaf the last one that begins at or
    /// before the wanted block.
    pub(super) at: Option<usize>,
    /// Entries in use.
    pub(super) len: usize,
    /// Entries for which there is room.
    pub(super) max: usize,
}

/// The nodes from the root to a leaf.
#[derive(Debug, Clone)]
pub(super) struct Path<N> {
    /// All nodes except the leaf, the root first.
    pub(super) above: Vec<Level<N>>,
    /// The leaf.
    pub(super) leaf: Level<N>,
}

impl<N> Path<N> {
    /// Number of nodes.
    pub(super) fn nodes(&self) -> u32 {
        self.above.len() as u32 + 1
    }
}

impl<N> Level<N> {
    /// Calls `look` with the node.
    pub(super) fn view<S: Blocks<Node = N>, R>(
        &self,
        store: &S,
        root: &Root,
        look: impl FnOnce(&ExtentNode<'_>) -> R,
    ) -> Result<R> {
        match &self.node {
            None => {
                let node =
                    ExtentNode::parse_header(root).map_err(|err| store.world().bad_map(err))?;
                Ok(look(&node))
            }
            Some(node) => {
                let bytes = store.bytes(node);
                let view = ExtentNode::parse_header(&bytes)
                    .map_err(|err| store.world().bad_block(store.place(node), err))?;
                Ok(look(&view))
            }
        }
    }

    /// All extents of a leaf.
    pub(super) fn extents<S: Blocks<Node = N>>(
        &self,
        store: &S,
        root: &Root,
    ) -> Result<Vec<Extent>> {
        self.view(store, root, |node| node.extents().collect())
    }
}

/// The defect of a node as a whole, including its checksum.
fn judge<S: Blocks>(store: &S, bytes: &[u8], bounds: &ExtentBounds) -> Result<(), String> {
    let node = ExtentNode::parse(bytes, bounds).map_err(|err| err.to_string())?;
    let sealed = store
        .world()
        .seed
        .map_or(Ok(()), |seed| extent_block_verify(bytes, seed));
    sealed.map_err(|err| err.to_string())?;
    names_no_system(store, &node)
}

/// Checks that a node names no blocks of the groups' metadata.
fn names_no_system<S: Blocks>(store: &S, node: &ExtentNode<'_>) -> Result<(), String> {
    let extents = node
        .extents()
        .map(|extent| (extent.physical, extent.len.into()));
    let children = node.indexes().map(|entry| (entry.child, 1));
    let wrong = extents
        .chain(children)
        .find(|(physical, len)| store.is_system(*physical, *len));
    wrong.map_or(Ok(()), |(physical, len)| {
        Err(format!(
            "names blocks {physical}+{len}, which belong to a group"
        ))
    })
}

/// Whether a validated node belongs at this place.
fn belongs(node: &ExtentNode<'_>, bounds: &ExtentBounds) -> Result<(), ExtentError> {
    let (found, expected) = (node.depth(), bounds.depth.unwrap_or(0));
    if found != expected {
        return Err(ExtentError::Depth { found, expected });
    }
    let Some(last) = node.len().checked_sub(1) else {
        let (entries, max, depth) = (0, node.max(), found);
        let bad = ExtentError::Entries {
            entries,
            max,
            depth,
        };
        return if found == 0 { Ok(()) } else { Err(bad) };
    };
    let end = node.extent(last).map_or_else(
        || {
            node.logical(last)
                .map_or(u64::MAX, |logical| u64::from(logical) + 1)
        },
        |extent| extent.end(),
    );
    for (index, logical) in [(0, node.logical(0)), (last, node.logical(last))] {
        let logical = logical.unwrap_or(u32::MAX);
        if logical < bounds.first || end > bounds.limit {
            let (first, limit) = (bounds.first, bounds.limit);
            return Err(ExtentError::Range {
                index,
                logical,
                end,
                first,
                limit,
            });
        }
    }
    Ok(())
}

/// The path to the leaf where `logical` is or would be.
///
/// # Errors
/// A node of the path is damaged; errors of the device.
pub(super) fn descend<S: Blocks>(store: &S, root: &Root, logical: u32) -> Result<Path<S::Node>> {
    let world = store.world();
    let mut bounds = ExtentBounds::root(world.first_block, world.blocks);
    let node = ExtentNode::parse(root, &bounds).map_err(|err| world.bad_map(err))?;
    names_no_system(store, &node).map_err(|reason| world.bad_map(reason))?;
    let mut above = Vec::with_capacity(usize::from(node.depth()));
    let (mut level, mut child) = step(&node, None, bounds, logical);
    // Each round goes one level down: a child whose depth is not one less is refused.
    while let Some((block, below)) = child {
        bounds = below;
        above.push(level);
        let wrong = |err: ExtentError| world.bad_block(block, err);
        let node = store.node(block, NodeKind::Extent, &|bytes| {
            judge(store, bytes, &bounds)
        })?;
        let bytes = store.bytes(&node);
        let view = ExtentNode::parse_header(&bytes).map_err(wrong)?;
        belongs(&view, &bounds).map_err(wrong)?;
        (level, child) = step(&view, Some(node.clone()), bounds, logical);
    }
    Ok(Path { above, leaf: level })
}

/// Finds the entry to follow in a node, and where it leads.
fn step<N>(
    view: &ExtentNode<'_>,
    node: Option<N>,
    bounds: ExtentBounds,
    logical: u32,
) -> (Level<N>, Option<(u64, ExtentBounds)>) {
    let mut at = view.search(logical);
    let mut child = None;
    if !view.is_leaf() {
        // Blocks before all entries belong to the first child.
        let follow = at.unwrap_or(0);
        at = Some(follow);
        child = view
            .index(follow)
            .map(|entry| entry.child)
            .zip(view.child_bounds(follow, &bounds));
    }
    let level = Level {
        node,
        bounds,
        at,
        len: view.len(),
        max: usize::from(view.max()),
    };
    (level, child)
}

/// Leaves that one lookup reads at most to make its run longer.
const LEAVES: usize = 64;

/// The mapping of block `logical` in `extent`.
fn mapped(extent: &Extent, logical: u64) -> Mapped {
    let physical = extent.physical + logical.saturating_sub(u64::from(extent.logical));
    if extent.unwritten {
        Mapped::Unwritten(physical)
    } else {
        Mapped::Written(physical)
    }
}

/// [`lookup`](crate::map::lookup) in an extent tree.
pub(crate) fn lookup<S: Blocks>(store: &S, root: &Root, logical: u64, max: u64) -> Result<Run> {
    let mut growing = Growing::new(logical, max);
    for _ in 0..LEAVES {
        let Ok(at) = u32::try_from(growing.at()) else {
            return Ok(growing.rest_is_hole());
        };
        let path = descend(store, root, at)?;
        let (first, limit) = (path.leaf.at.unwrap_or(0), path.leaf.bounds.limit);
        let more = path
            .leaf
            .view(store, root, |node| scan(node, first, limit, &mut growing))?;
        if !more {
            break;
        }
    }
    Ok(growing.done())
}

/// Lets the run grow through a leaf, from entry `first` on. True if it may continue after the leaf.
fn scan(node: &ExtentNode<'_>, first: usize, limit: u64, growing: &mut Growing) -> bool {
    for extent in (first..node.len()).map_while(|index| node.extent(index)) {
        let begin = u64::from(extent.logical);
        if growing.at() < begin && !growing.push(Mapped::Hole, begin) {
            return false;
        }
        let at = growing.at();
        if at < extent.end() && !growing.push(mapped(&extent, at), extent.end()) {
            return false;
        }
    }
    growing.at() >= limit || growing.push(Mapped::Hole, limit)
}
