//! What the rest of the engine asks of space.

use sapwood_btrfs_format::SuperBlock;

use super::info::{DataReservation, MetadataReservation};
use crate::Result;
use crate::engine::Engine;
use crate::transaction::{Handle, Transaction};
use crate::tree::{BlockRef, DataRef, Root, TreeBlock};

/// Block groups, free space, reservations.
#[derive(Debug, Default)]
pub(crate) struct Space;

#[allow(clippy::todo, unused_variables)]
impl Space {
    /// Space of a file system that is being opened; block groups are read by
    /// [`load`](Self::load).
    pub(crate) fn new(sb: &SuperBlock) -> Self {
        Self
    }

    /// Reads the block groups. The engine is complete otherwise.
    pub(crate) fn load(&self, engine: &Engine) -> Result<()> {
        Ok(())
    }

    /// Reserves metadata for `items` items in the worst case. `urgent`: for freeing space.
    pub(crate) fn reserve_metadata(
        &self,
        engine: &std::sync::Arc<Engine>,
        items: u64,
        urgent: bool,
    ) -> Result<Option<MetadataReservation>> {
        Ok(None)
    }

    /// Reserves data space.
    pub(crate) fn reserve_data(
        &self,
        engine: &std::sync::Arc<Engine>,
        bytes: u64,
    ) -> Result<DataReservation> {
        todo!()
    }

    /// Takes an address for a new tree block.
    pub(crate) fn alloc_tree_block(&self, h: &mut Handle, root: &Root, hint: u64) -> Result<u64> {
        todo!()
    }

    /// Drops the ref that `root` has on a block.
    pub(crate) fn free_tree_block(
        &self,
        h: &mut Handle,
        root: &Root,
        block: &TreeBlock,
        last_ref: bool,
    ) -> Result<()> {
        todo!()
    }

    /// Changes the refs of a tree block.
    pub(crate) fn tree_block_ref(
        &self,
        h: &mut Handle,
        (bytenr, level): (u64, u8),
        root_id: u64,
        parent: Option<u64>,
        change: BlockRef,
    ) -> Result<()> {
        todo!()
    }

    /// Refs and flags of a tree block, delayed refs included.
    pub(crate) fn tree_block_info(
        &self,
        engine: &Engine,
        trans: &Transaction,
        bytenr: u64,
        level: u8,
    ) -> Result<(u64, u64)> {
        todo!()
    }

    /// Sets FULL_BACKREF on a tree block.
    pub(crate) fn set_full_backref(&self, h: &mut Handle, bytenr: u64, level: u8) -> Result<()> {
        todo!()
    }

    /// Takes space for data.
    pub(crate) fn reserve_data_extent(
        &self,
        engine: &std::sync::Arc<Engine>,
        from: &DataReservation,
        min: u64,
        want: u64,
        hint: u64,
    ) -> Result<(u64, u64)> {
        todo!()
    }

    /// Gives back what was never inserted.
    pub(crate) fn release_data_extent(&self, bytenr: u64, len: u64) {
        todo!()
    }

    /// Inserts a new data extent with its first ref.
    pub(crate) fn insert_data_extent(&self, h: &mut Handle, data: &DataRef) -> Result<()> {
        todo!()
    }

    /// Adds refs of a data extent.
    pub(crate) fn add_data_ref(&self, h: &mut Handle, data: &DataRef, count: u32) -> Result<()> {
        todo!()
    }

    /// Drops refs of a data extent.
    pub(crate) fn drop_data_ref(&self, h: &mut Handle, data: &DataRef, count: u32) -> Result<()> {
        todo!()
    }

    /// Whether anything but this ref uses a data extent.
    pub(crate) fn is_data_shared(
        &self,
        h: &mut Handle,
        root: &Root,
        own: &DataRef,
    ) -> Result<bool> {
        Ok(true)
    }

    /// Runs delayed refs, all or about `limit` of them.
    pub(crate) fn run_delayed_refs(&self, h: &mut Handle, limit: Option<usize>) -> Result<()> {
        todo!()
    }

    /// Writes the items of chunks made in this transaction. True if there were any.
    pub(crate) fn finish_pending_chunks(&self, h: &mut Handle) -> Result<bool> {
        todo!()
    }

    /// Writes items of block groups and free space that changed. True if there were any.
    pub(crate) fn write_dirty_block_groups(&self, h: &mut Handle) -> Result<bool> {
        todo!()
    }

    /// Frees what a durable transaction pinned.
    pub(crate) fn unpin(&self, engine: &Engine, trans: &Transaction) -> Result<()> {
        todo!()
    }

    /// Removes empty block groups. True if there may be more.
    pub(crate) fn delete_empty_block_groups(
        &self,
        engine: &std::sync::Arc<Engine>,
    ) -> Result<bool> {
        Ok(false)
    }

    /// Bytes of the device in chunks, as its item says them.
    pub(crate) fn device_bytes_used(&self) -> u64 {
        todo!()
    }

    /// Sizes and counts as the kernel shows them.
    pub(crate) fn statfs(&self, engine: &Engine) -> Result<sapwood_vfs::FsStat> {
        todo!()
    }

    /// Bytes in extents, as the superblock says them.
    pub(crate) fn bytes_used(&self) -> u64 {
        todo!()
    }
}
