//! The engine: everything that is shared by all threads of a mount.

use std::sync::Arc;

use sapwood_btrfs_format::{ChecksumKind, Incompat, SuperBlock};

use crate::health::Health;
use crate::lock::{Rank, RankedMutex};
use crate::transaction::Transactions;
use crate::{Error, Options, Result};

/// A mounted btrfs file system.
pub struct Btrfs {
    pub(crate) engine: Arc<Engine>,
}

/// Shared state of a mount; always behind an `Arc`.
pub(crate) struct Engine {
    pub(crate) options: Options,
    pub(crate) health: Health,
    pub(crate) transactions: Transactions,
    /// The superblock as of the last commit, changed only by whoever holds the
    /// superblock-order lock.
    pub(crate) super_block: RankedMutex<SuperBlock>,
    /// Bytes of the smallest unit of data.
    pub(crate) sectorsize: u32,
    /// Bytes of a tree block.
    pub(crate) nodesize: u32,
    /// Checksum algorithm of tree blocks and data.
    pub(crate) checksum: ChecksumKind,
    /// fsid that users see.
    pub(crate) fsid: [u8; 16],
    /// fsid that tree blocks carry.
    pub(crate) tree_fsid: [u8; 16],
    /// Incompatible features, as at the mount.
    pub(crate) incompat: Incompat,
}

impl Engine {
    /// An engine with nothing in memory yet.
    ///
    /// # Errors
    /// [`Error::UnsupportedFeature`] for an unknown checksum.
    pub(crate) fn new(super_block: SuperBlock, options: Options, read_only: bool) -> Result<Self> {
        let checksum = super_block.checksum_kind().ok_or_else(|| {
            Error::UnsupportedFeature(format!("checksum {}", super_block.csum_type))
        })?;
        Ok(Self {
            health: Health::new(read_only),
            transactions: Transactions::new(super_block.generation.get()),
            sectorsize: super_block.sectorsize.get(),
            nodesize: super_block.nodesize.get(),
            checksum,
            fsid: super_block.fsid,
            tree_fsid: super_block.tree_fsid(),
            incompat: super_block.incompat(),
            super_block: RankedMutex::new(Rank::Leaf, super_block),
            options,
        })
    }
}
