//! When to ask the kernel to forget nodes that it does not use.
//!
//! The engine says of an inode that the kernel refers to whether there are [very many](FileSystem::is_crowded).
//! Then the transport sends the kernel a list of those that no request needed lately. The kernel forgets
//! what it does not use itself; what it does use would be asked for in vain again and again. So the next
//! list is due only when a share of the last one has come anew.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sapwood_vfs::{FileSystem, Ino};

/// Nodes that come before the kernel is asked again, at least.
const LEAST: usize = 512;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// The kernel does it.
    possible: AtomicBool,
    /// A list was asked for by [`is_due`](Self::is_due) and is not made yet.
    under_way: AtomicBool,
    /// Nodes that came while there were very many.
    came: AtomicUsize,
    /// Length of the last list.
    asked: AtomicUsize,
}

impl Crowd {
    pub(super) fn set_possible(&self, on: bool) {
        self.possible.store(on, Ordering::Relaxed);
    }

    /// The kernel got a reference to an inode.
    pub(super) fn note(&self, fs: &dyn FileSystem, ino: Ino) {
        if self.possible.load(Ordering::Relaxed) && fs.is_crowded(ino) {
            self.came.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a list is due. True for one caller, who makes it.
    pub(super) fn is_due(&self) -> bool {
        let after = (self.asked.load(Ordering::Relaxed) / 4).max(LEAST);
        self.came.load(Ordering::Relaxed) >= after
            && self.possible.load(Ordering::Relaxed)
            && !self.under_way.swap(true, Ordering::Relaxed)
    }

    /// A list of so many nodes was made.
    pub(super) fn asked_for(&self, nodes: usize) {
        self.asked.store(nodes, Ordering::Relaxed);
        self.came.store(0, Ordering::Relaxed);
        self.under_way.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_due_once_and_again_after_a_share_of_it_came() {
        let crowd = Crowd::default();
        crowd.came.store(LEAST, Ordering::Relaxed);
        assert!(!crowd.is_due(), "the kernel does not do it");
        crowd.set_possible(true);
        assert!(crowd.is_due() && !crowd.is_due());
        crowd.asked_for(4 * LEAST + 4);
        crowd.came.store(LEAST, Ordering::Relaxed);
        assert!(!crowd.is_due());
        crowd.came.store(LEAST + 1, Ordering::Relaxed);
        assert!(crowd.is_due());
    }
}
