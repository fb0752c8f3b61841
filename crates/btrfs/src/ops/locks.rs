//! Taking the `io` locks of several inodes in their one order.

use std::sync::Arc;

use super::inode::Inode;
use crate::lock::RankedWriteGuard;

/// Most inodes that one operation locks: a rename's two directories and two inodes.
const MOST: usize = 4;

/// Locks the inodes exclusively in the order of [`Inode::lock_key`], each once. The guards are
/// dropped in any order.
pub(crate) fn lock_all<'a>(inodes: &[&'a Arc<Inode>]) -> Vec<RankedWriteGuard<'a, ()>> {
    let mut sorted: Vec<&Arc<Inode>> = inodes.to_vec();
    sorted.sort_by_key(|inode| inode.lock_key());
    sorted.dedup_by_key(|inode| inode.lock_key());
    let mut guards = Vec::with_capacity(MOST);
    for inode in sorted {
        guards.push(inode.io.write());
    }
    guards
}
