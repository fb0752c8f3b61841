//! New trees: empty, or a copy of another's top block.

use std::sync::Arc;

use super::{Root, TreeBlock, TreeWrite};
use crate::Result;

/// Makes a tree with one empty leaf. Its root item is blank but for address, level, generation
/// and one ref; the caller inserts it into the root tree.
///
/// # Errors
/// No space.
#[allow(clippy::todo)]
pub(crate) fn create_root(_h: &mut dyn TreeWrite, _id: u64) -> Result<Arc<Root>> {
    todo!()
}

/// Makes a copy of a tree's top block for tree `new_id`, and adds a ref to each child (or, for a
/// leaf, to each data extent). The caller sets `last_snapshot` of both trees.
///
/// # Errors
/// Unreadable blocks, no space; the transaction is aborted if it happens half-way.
#[allow(clippy::todo)]
pub(crate) fn copy_root(
    _h: &mut dyn TreeWrite,
    _root: &Arc<Root>,
    _new_id: u64,
) -> Result<Arc<TreeBlock>> {
    todo!()
}
