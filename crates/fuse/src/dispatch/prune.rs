//! Decides when to ask the kernel to forget nodes that it does not use.
//!
//! The engine reports whether the kernel refers to [very many](FileSystem::is_crowded) inodes. If
//! so, the transport sends the kernel a list of the ones that no request used lately. The kernel
//! forgets the ones that it does not use, and keeps the others. So the next list is due only after
//! the kernel has got new nodes: a share of the last list's number.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sapwood_vfs::{FileSystem, Ino};

/// Least number of new nodes between two lists.
const LEAST: usize = 512;

/// State that decides when the next list is due; see the module.
#[derive(Debug, Default)]
pub(super) struct Prune {
    /// The kernel can forget nodes on request.
    possible: AtomicBool,
    /// [`is_due`](Self::is_due) returned true, and the list is not made yet.
    listing: AtomicBool,
    /// New nodes while there were very many.
    new_nodes: AtomicUsize,
    /// Length of the last list.
    last_list: AtomicUsize,
}

impl Prune {
    pub(super) fn set_possible(&self, on: bool) {
        self.possible.store(on, Ordering::Relaxed);
    }

    /// Records that the kernel got a reference to an inode.
    pub(super) fn referenced(&self, fs: &dyn FileSystem, ino: Ino) {
        if self.possible.load(Ordering::Relaxed) && fs.is_crowded(ino) {
            self.new_nodes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a list is due. Returns true to one caller, which makes the list.
    pub(super) fn is_due(&self) -> bool {
        let after = (self.last_list.load(Ordering::Relaxed) / 4).max(LEAST);
        self.new_nodes.load(Ordering::Relaxed) >= after
            && self.possible.load(Ordering::Relaxed)
            && !self.listing.swap(true, Ordering::Relaxed)
    }

    /// Records that a list of `nodes` nodes was made.
    pub(super) fn listed(&self, nodes: usize) {
        self.last_list.store(nodes, Ordering::Relaxed);
        self.new_nodes.store(0, Ordering::Relaxed);
        self.listing.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_due_once_and_again_after_a_share_of_new_nodes() {
        let prune = Prune::default();
        prune.new_nodes.store(LEAST, Ordering::Relaxed);
        assert!(!prune.is_due(), "the kernel cannot forget on request");
        prune.set_possible(true);
        assert!(prune.is_due() && !prune.is_due());
        prune.listed(4 * LEAST + 4);
        prune.new_nodes.store(LEAST, Ordering::Relaxed);
        assert!(!prune.is_due());
        prune.new_nodes.store(LEAST + 1, Ordering::Relaxed);
        assert!(prune.is_due());
    }
}
