//! Subvolumes: which one is mounted.

mod choose;

pub(crate) use choose::choose;

use std::sync::Arc;

use crate::Result;
use crate::engine::Engine;
use crate::ops::Inode;

/// Deletes the subvolume `name` in `dir`.
pub(crate) fn delete(_engine: &Arc<Engine>, _dir: &Arc<Inode>, _name: &[u8]) -> Result<()> {
    todo!()
}

mod listing;
