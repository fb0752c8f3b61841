//! What writes items into a log tree.

use std::sync::Arc;

use sapwood_btrfs_format::Key;

use super::state::SubvolumeLog;
use crate::Result;
use crate::transaction::{Handle, Store};
use crate::tree::Root;

/// Writes one subvolume's log.
pub(super) struct Writer<'a> {
    pub(super) h: &'a mut Handle,
    pub(super) store: Arc<Store>,
    pub(super) log: Arc<SubvolumeLog>,
    /// Number of the log that it fills.
    pub(super) number: u64,
}

impl Writer<'_> {
    /// The log tree.
    pub(super) fn tree(&self) -> Arc<Root> {
        Arc::clone(&self.log.tree)
    }

    /// Puts an item into the log.
    pub(super) fn put(&mut self, key: &Key, data: &[u8]) -> Result<()> {
        self.tree().put(self.h, key, data)
    }
}
