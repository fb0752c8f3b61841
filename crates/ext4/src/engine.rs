//! The engine: everything that the threads of a mount share.

use std::ops::Deref;

use sapwood_base::writeback::Writeback;

use crate::volume::Volume;

/// The highest layer of a mount; always in an `Arc`.
pub(crate) struct Engine {
    /// The layer below.
    pub(crate) volume: Volume,
    /// Writeback of file data.
    pub(crate) writeback: Writeback<Self>,
}

impl Deref for Engine {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        &self.volume
    }
}
