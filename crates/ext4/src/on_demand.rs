//! Features that an operation sets in the superblock when the image first needs them.
//!
//! | feature | set by | without it |
//! |---|---|---|
//! | `ext_attr` | the first attribute that is set or removed (inline data is none) | `e2fsck` takes attribute blocks for garbage |
//! | `large_file` | the first file of 2 GiB and more that is stored | `e2fsck` reports the file |
//! | `verity` | the first hash tree of a file | the kernel refuses the file |
//!
//! The kernel sets the first two, and takes a hash tree only in an image that has `verity`. It sets
//! no other:
//!
//! - Without `dir_index` directories stay linear.
//! - Without `dir_nlink` a directory with [`LINK_MAX`](sapwood_ext4_format::LINK_MAX) links takes no
//!   further subdirectory.
//! - Without `huge_file` and `extent` files have smaller limits.
//! - Without `ea_inode` a large value is refused.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};

use sapwood_ext4_format::{Compat, Features, RoCompat, SuperBlock};

/// Largest file that needs no `large_file`.
const SMALL_FILE_MAX: u64 = 0x7fff_ffff;

/// A feature that [`Store::set_on_demand`](crate::store::Store::set_on_demand) sets.
#[derive(Debug)]
pub(crate) struct OnDemandFeature {
    set: AtomicBool,
    feature: Features,
}

impl OnDemandFeature {
    fn new(sb: &SuperBlock, feature: Features) -> Self {
        let there = sb.features();
        let set = there.has_compat(feature.compat) && there.has_ro_compat(feature.ro_compat);
        Self {
            set: AtomicBool::new(set),
            feature,
        }
    }

    /// Whether the superblock has it.
    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    /// Records that the superblock has the feature now.
    pub(crate) fn note_set(&self) {
        self.set.store(true, Ordering::Release);
    }

    /// The bit of the superblock.
    pub(crate) fn feature(&self) -> Features {
        self.feature
    }
}

/// The features that are set, so that operations need not lock the superblock to know.
pub(crate) struct OnDemand {
    /// An attribute was set or removed.
    pub(crate) ext_attr: OnDemandFeature,
    large_file: OnDemandFeature,
    /// A file got a hash tree.
    pub(crate) verity: OnDemandFeature,
}

impl OnDemand {
    /// The features in the superblock.
    pub(crate) fn new(sb: &SuperBlock) -> Self {
        let ext_attr = Features {
            compat: Compat::EXT_ATTR,
            ..Features::default()
        };
        let large_file = Features {
            ro_compat: RoCompat::LARGE_FILE,
            ..Features::default()
        };
        let verity = Features {
            ro_compat: RoCompat::VERITY,
            ..Features::default()
        };
        Self {
            ext_attr: OnDemandFeature::new(sb, ext_attr),
            large_file: OnDemandFeature::new(sb, large_file),
            verity: OnDemandFeature::new(sb, verity),
        }
    }

    /// Credits that setting `ext_attr` needs.
    pub(crate) fn ext_attr_credits(&self) -> u32 {
        u32::from(!self.ext_attr.is_set())
    }

    /// The feature that a file of this size needs.
    pub(crate) fn of_size(&self, size: u64) -> Option<&OnDemandFeature> {
        (size > SMALL_FILE_MAX).then_some(&self.large_file)
    }
}
