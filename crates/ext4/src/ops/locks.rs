//! Taking the `io` locks of several inodes in their one order.

use std::sync::Arc;

use crate::inode::Inode;
use crate::lock::RankedWriteGuard;

/// Most inodes that one operation locks: a rename's two directories and two inodes.
const MOST: usize = 4;

/// Locks the inodes exclusively in the order of their numbers, each once. The guards are dropped in any
/// order.
pub(super) fn lock_all<'a>(inodes: &[&'a Arc<Inode>]) -> Vec<RankedWriteGuard<'a, ()>> {
    let mut sorted: Vec<&Arc<Inode>> = inodes.to_vec();
    sorted.sort_by_key(|inode| inode.ino);
    sorted.dedup_by_key(|inode| inode.ino);
    let mut guards = Vec::with_capacity(MOST);
    for inode in sorted {
        guards.push(inode.io.write());
    }
    guards
}
