//! The nodes of maps in the store: in its cache, changed through its journal.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::Arc;

use sapwood_ext4_format::{Geometry, InodeFlags};
use sapwood_jbd2::{Buffer, Handle, Seal};
use sapwood_vfs::FileKind;

use super::nodes::{Blocks, Changes, NodeKind, World, too_large};
use crate::block_alloc::{self, Extent};
use crate::inode::Inode;
use crate::seal::SealKind;
use crate::store::Store;
use crate::{DataMode, Result};

/// [`Buffer::kind`] of a block of pointers. Nodes of extent trees have the number of their seal.
const POINTERS: u8 = 0x40;

impl World {
    /// The rules for the map of an inode.
    pub(crate) fn new(geometry: &Geometry, ino: u32, generation: u32) -> Self {
        let seed = geometry.inode_seed(ino, generation);
        Self {
            ino,
            block_size: geometry.block_size(),
            first_block: geometry.first_data_block().into(),
            blocks: geometry.blocks_count(),
            seed: geometry.metadata_csum().then_some(seed),
        }
    }
}

/// Reads the map of an inode.
pub(super) struct Reader<'a> {
    store: &'a Store,
    world: World,
    seal: Seal,
}

impl<'a> Reader<'a> {
    pub(super) fn new(store: &'a Store, inode: &Inode) -> Self {
        Self {
            store,
            world: World::new(&store.geometry, inode.ino, inode.generation),
            seal: SealKind::Extent.of(inode.ino, inode.generation),
        }
    }

    /// Records the kind of a buffer, for readers and for the commit.
    fn label(&self, buffer: &Buffer, kind: NodeKind) {
        buffer.set_seal(match kind {
            NodeKind::Extent => Some(self.seal),
            NodeKind::Pointers => None,
        });
        buffer.set_kind(number(kind));
    }
}

fn number(kind: NodeKind) -> u8 {
    match kind {
        NodeKind::Extent => SealKind::Extent as u8,
        NodeKind::Pointers => POINTERS,
    }
}

impl Blocks for Reader<'_> {
    type Node = Arc<Buffer>;

    fn world(&self) -> &World {
        &self.world
    }

    fn node(
        &self,
        block: u64,
        kind: NodeKind,
        judge: &dyn Fn(&[u8]) -> Result<(), String>,
    ) -> Result<Arc<Buffer>> {
        let buffer = self.store.block(block)?;
        if buffer.kind() != number(kind) {
            judge(&buffer.read()).map_err(|reason| self.world.bad_block(block, reason))?;
            self.label(&buffer, kind);
        }
        Ok(buffer)
    }

    fn is_system(&self, physical: u64, len: u64) -> bool {
        self.store.groups.is_system(physical, len)
    }

    fn place(&self, node: &Arc<Buffer>) -> u64 {
        node.block()
    }

    fn bytes(&self, node: &Arc<Buffer>) -> impl Deref<Target = [u8]> {
        node.read()
    }
}

/// Changes the map of an inode in a handle.
pub(super) struct Writer<'a> {
    reader: Reader<'a>,
    h: &'a Handle,
    /// The journal may hold blocks of the content, as it holds names and long link targets.
    journaled: bool,
    /// Blocks that were added to the inode (or, negative, removed) and not yet to its count.
    charged: Cell<i64>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(store: &'a Store, h: &'a Handle, inode: &Inode) -> Self {
        let journaled = inode.kind != FileKind::Regular
            || store.options.data == DataMode::Journal
            || inode
                .flags()
                .intersects(InodeFlags::JOURNAL_DATA | InodeFlags::EA_INODE);
        Self {
            reader: Reader::new(store, inode),
            h,
            journaled,
            charged: Cell::new(0),
        }
    }

    /// Adds the blocks that were added and removed to the inode's count. Also called after errors.
    /// `delayed`: this many of them are blocks of data in flight, which are counted there as well.
    pub(super) fn settle(&self, inode: &Inode, delayed: u64) -> Result<()> {
        let blocks = self.charged.replace(0);
        if blocks == 0 {
            return Ok(());
        }
        let geometry = &self.reader.store.geometry;
        let sectors = blocks.saturating_mul(i64::from(geometry.block_size() / 512));
        let mut state = inode.state.lock();
        let now = state.raw.sectors(geometry).saturating_add_signed(sectors);
        state
            .raw
            .set_sectors(now, geometry)
            .map_err(|_| too_large())?;
        state.charged = state.charged.saturating_add(delayed);
        Ok(())
    }
}

impl Blocks for Writer<'_> {
    type Node = Arc<Buffer>;

    fn world(&self) -> &World {
        self.reader.world()
    }

    fn node(
        &self,
        block: u64,
        kind: NodeKind,
        judge: &dyn Fn(&[u8]) -> Result<(), String>,
    ) -> Result<Arc<Buffer>> {
        self.reader.node(block, kind, judge)
    }

    fn is_system(&self, physical: u64, len: u64) -> bool {
        self.reader.is_system(physical, len)
    }

    fn place(&self, node: &Arc<Buffer>) -> u64 {
        node.block()
    }

    fn bytes(&self, node: &Arc<Buffer>) -> impl Deref<Target = [u8]> {
        node.read()
    }
}

impl Changes for Writer<'_> {
    fn change<R>(&self, node: &Arc<Buffer>, with: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        Ok(with(&mut self.h.modify(node)?))
    }

    fn create(&self, kind: NodeKind, goal: u64) -> Result<Arc<Buffer>> {
        let store = self.reader.store;
        let block = block_alloc::allocate_meta(&store.groups, self.h, goal)?;
        let buffer = store.cache.get_new(block)?;
        self.reader.label(&buffer, kind);
        self.h.write_access(&buffer)?;
        self.charge(1);
        Ok(buffer)
    }

    fn discard(&self, node: &Arc<Buffer>) -> Result<()> {
        let extent = Extent {
            start: node.block(),
            len: 1,
        };
        self.charge(-1);
        block_alloc::free(&self.reader.store.groups, self.h, extent, true)
    }

    fn free(&self, physical: u64, len: u64) -> Result<()> {
        let (mut start, end) = (physical, physical.saturating_add(len));
        while start < end {
            let len = u32::try_from(end - start).unwrap_or(u32::MAX);
            let extent = Extent { start, len };
            block_alloc::free(&self.reader.store.groups, self.h, extent, self.journaled)?;
            start += u64::from(len);
        }
        Ok(())
    }

    fn charge(&self, blocks: i64) {
        self.charged.set(self.charged.get().saturating_add(blocks));
    }

    fn free_cost(&self, physical: u64, len: u64) -> u32 {
        free_credits(&self.reader.store.geometry, physical, len)
    }

    fn tail_in_group(&self, physical: u64, len: u64) -> u64 {
        let last = physical.saturating_add(len.saturating_sub(1));
        let geometry = &self.reader.store.geometry;
        let within = geometry
            .group_of_block(last)
            .map_or(0, |(_, offset)| offset);
        len.min(u64::from(within) + 1)
    }

    fn affords(&self, credits: u32) -> bool {
        self.h.ensure(credits)
    }
}

/// Credits for freeing blocks, wherever they begin if `physical` is 0: bitmap and descriptor of
/// each group.
pub(super) fn free_credits(geometry: &Geometry, physical: u64, len: u64) -> u32 {
    let per_group = u64::from(geometry.blocks_per_group()).max(1);
    let groups = match physical.checked_sub(u64::from(geometry.first_data_block())) {
        Some(from) if physical > 0 => {
            (from.saturating_add(len.saturating_sub(1)) / per_group)
                .saturating_sub(from / per_group)
                + 1
        }
        _ => len / per_group + 2,
    };
    let groups = groups.min(u64::from(geometry.group_count()));
    u32::try_from(groups.saturating_mul(2)).unwrap_or(u32::MAX)
}
