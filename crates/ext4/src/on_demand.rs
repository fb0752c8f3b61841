//! Features that an operation sets in the superblock when the image first needs them.
//!
//! | feature | set by | without it |
//! |---|---|---|
//! | `ext_attr` | the first attribute that is set or removed (inline data is none) | `e2fsck` takes attribute blocks for garbage |
//! | `large_file` | the first file of 2 GiB and more that is stored | `e2fsck` reports the file |
//!
//! These are the two that the kernel sets. It sets no other: without `dir_index` directories stay linear, without
//! `dir_nlink` a directory with [`LINK_MAX`](sapwood_ext4_format::LINK_MAX) links takes no further subdirectory, without
//! `huge_file` and `extent` files have smaller limits, without `ea_inode` a large value is refused.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};

use sapwood_ext4_format::{Compat, Features, RoCompat, SuperBlock};
use sapwood_jbd2::Handle;

use crate::Result;
use crate::commit_reason::Reason;
use crate::engine::Engine;
use crate::fast_commit::note;

/// Largest file that needs no `large_file`.
const SMALL_FILE_MAX: u64 = 0x7fff_ffff;

/// Which of the features are set, so that operations need not lock the superblock to know.
pub(crate) struct OnDemand {
    ext_attr: AtomicBool,
    large_file: AtomicBool,
}

impl OnDemand {
    /// As the superblock has them.
    pub(crate) fn new(sb: &SuperBlock) -> Self {
        let features = sb.features();
        Self {
            ext_attr: AtomicBool::new(features.has_compat(Compat::EXT_ATTR)),
            large_file: AtomicBool::new(features.has_ro_compat(RoCompat::LARGE_FILE)),
        }
    }

    /// Credits that [`ext_attr`] needs.
    pub(crate) fn ext_attr_credits(&self) -> u32 {
        u32::from(!self.ext_attr.load(Ordering::Acquire))
    }
}

/// An attribute is set or removed in this handle.
///
/// # Errors
/// The device, the journal.
pub(crate) fn ext_attr(engine: &Engine, h: &Handle) -> Result<()> {
    let feature = Features {
        compat: Compat::EXT_ATTR,
        ..Features::default()
    };
    set(engine, h, &engine.on_demand.ext_attr, feature)
}

/// An inode of this size is stored in this handle.
///
/// # Errors
/// The device, the journal.
pub(crate) fn size(engine: &Engine, h: &Handle, size: u64) -> Result<()> {
    if size <= SMALL_FILE_MAX {
        return Ok(());
    }
    let feature = Features {
        ro_compat: RoCompat::LARGE_FILE,
        ..Features::default()
    };
    set(engine, h, &engine.on_demand.large_file, feature)
}

fn set(engine: &Engine, h: &Handle, known: &AtomicBool, feature: Features) -> Result<()> {
    if known.load(Ordering::Acquire) {
        return Ok(());
    }
    // No operation reserves a credit for a change that happens once in the life of an image.
    let _ = h.ensure(1);
    note::whole(engine, h, Reason::Operation);
    engine.change_super(h, |sb| sb.add_features(feature))?;
    known.store(true, Ordering::Release);
    Ok(())
}
