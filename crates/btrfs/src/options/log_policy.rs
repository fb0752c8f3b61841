//! [`LogPolicy`]: which mechanisms of the log are in use.
//!
//! A normal build uses all of them. [`LogPolicy`] has no fields then, every answer is a constant,
//! and the compiler removes the excluded code. With the feature `ablation` each mechanism can be
//! replaced by its predecessor, so that its worth can be measured.

/// The mechanisms of the log that are in use: all.
#[cfg(not(feature = "ablation"))]
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogPolicy;

#[cfg(not(feature = "ablation"))]
impl LogPolicy {
    /// An fsync logs while the previous transaction is still being written.
    pub(crate) const fn overlap(self) -> bool {
        true
    }

    /// An fsync waits for the I/O of its data only.
    pub(crate) const fn fast_wait(self) -> bool {
        true
    }

    /// Extended attributes are logged again only if one changed.
    pub(crate) const fn xattrs_when_changed(self) -> bool {
        true
    }

    /// A rename or unlink changes single names in the log.
    pub(crate) const fn single_names(self) -> bool {
        true
    }

    /// Pending names record which of them belong together.
    pub(crate) const fn ties_names(self) -> bool {
        true
    }

    /// An fsync logs only the pending names of its inode's group. `busy`: other fsyncs are in
    /// progress.
    pub(crate) const fn only_its_group(self, busy: bool) -> bool {
        busy
    }
}

/// The mechanisms of the log that are in use.
#[cfg(feature = "ablation")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPolicy {
    /// An fsync logs while the previous transaction is still being written, and waits for it only
    /// before the superblock; else it waits before it logs anything.
    pub overlap: bool,
    /// An fsync waits for the I/O of its data only; else until the trees have the data.
    pub fast_wait: bool,
    /// Extended attributes are logged again only if one changed; else always.
    pub xattrs_when_changed: bool,
    /// A rename or unlink changes single names in the log; else all changes of the directory are
    /// logged again.
    pub single_names: bool,
    /// The pending names that an fsync logs. Without `single_names` all of them.
    pub groups: Groups,
}

/// When an fsync logs only those pending names that belong to its inode, and not all of the
/// subvolume, for which it needs the locks of other clients' inodes.
#[cfg(feature = "ablation")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Groups {
    /// Never: as in the kernel, any fsync makes the renames of other clients durable.
    Never,
    /// While other fsyncs are in progress.
    #[default]
    WhenBusy,
    /// Always.
    Always,
}

#[cfg(feature = "ablation")]
impl Default for LogPolicy {
    fn default() -> Self {
        Self {
            overlap: true,
            fast_wait: true,
            xattrs_when_changed: true,
            single_names: true,
            groups: Groups::default(),
        }
    }
}

#[cfg(feature = "ablation")]
impl LogPolicy {
    pub(crate) const fn overlap(self) -> bool {
        self.overlap
    }

    pub(crate) const fn fast_wait(self) -> bool {
        self.fast_wait
    }

    pub(crate) const fn xattrs_when_changed(self) -> bool {
        self.xattrs_when_changed
    }

    pub(crate) const fn single_names(self) -> bool {
        self.single_names
    }

    pub(crate) const fn ties_names(self) -> bool {
        !matches!(self.groups, Groups::Never)
    }

    pub(crate) const fn only_its_group(self, busy: bool) -> bool {
        self.single_names
            && match self.groups {
                Groups::Never => false,
                Groups::WhenBusy => busy,
                Groups::Always => true,
            }
    }
}
