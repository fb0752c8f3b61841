//! Where a block of a file is.

use sapwood_ext4_format::{Extent, ExtentNode};

use super::path::{Root, descend};
use crate::Result;
use crate::map::nodes::Blocks;
use crate::map::run::{Growing, Mapped, Run};

/// Leaves that one lookup reads at most to make its run longer.
const LEAVES: usize = 64;

/// What `extent` says of block `logical` in it.
fn mapped(extent: &Extent, logical: u64) -> Mapped {
    let physical = extent.physical + logical.saturating_sub(u64::from(extent.logical));
    if extent.unwritten {
        Mapped::Unwritten(physical)
    } else {
        Mapped::Written(physical)
    }
}

/// See [`lookup`](crate::map::lookup).
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

/// Lets the run grow through a leaf, from entry `first` on. True if it may go on behind the leaf.
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
