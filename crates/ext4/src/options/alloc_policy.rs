//! [`AllocPolicy`]: how a free inode is found.
//!
//! A normal build uses all mechanisms. [`AllocPolicy`] has no fields then, every answer is a
//! constant, and the compiler removes what is excluded. With the feature `ablation` each mechanism
//! can be replaced by what file systems did before, so that its worth can be measured.

/// How a free inode is found: with all mechanisms.
#[cfg(not(feature = "ablation"))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllocPolicy;

#[cfg(not(feature = "ablation"))]
impl AllocPolicy {
    /// A thread that lost the race for a bit searches again while it holds the group's lock.
    pub(crate) const fn search_again_locked(self) -> bool {
        true
    }

    /// Directories spread over the groups, and searches begin at different places.
    pub(crate) const fn spread(self) -> bool {
        true
    }
}

/// How a free inode is found.
#[cfg(feature = "ablation")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocPolicy {
    /// A thread that lost the race for a bit searches again while it holds the group's lock; else
    /// it starts over without the lock.
    pub search_again_locked: bool,
    /// Directories spread over the groups, and searches begin at different places; else all begin
    /// at the same one.
    pub spread: bool,
}

#[cfg(feature = "ablation")]
impl Default for AllocPolicy {
    fn default() -> Self {
        Self {
            search_again_locked: true,
            spread: true,
        }
    }
}

#[cfg(feature = "ablation")]
impl AllocPolicy {
    pub(crate) const fn search_again_locked(self) -> bool {
        self.search_again_locked
    }

    pub(crate) const fn spread(self) -> bool {
        self.spread
    }
}
