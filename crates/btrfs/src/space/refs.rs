//! Records changes of refs by trees and files as delayed refs.

use std::sync::atomic::Ordering;

use sapwood_btrfs_format::{ExtentFlags, InlineRef, objectid};

use super::delayed::{Extent, Outcome, RefKey};
use super::extent_refs::{ExtentState, backrefs, described, state};
use super::state::Space;
use super::store::{CommittedReader, TreeReader};
use super::write::{SpaceChanges, SpaceWrite};
use crate::error::{Error, Result};
use crate::tree::{BlockRef, DataRef, Root, TreeBlock};

/// Cost of a head's changes in the extent and free-space trees, as a fraction of a node: a head
/// adds a few items of some hundred bytes.
const HEAD_COST_DIVISOR: u64 = 4;

/// Identity of a ref of a data extent.
pub(super) fn data_key(data: &DataRef) -> RefKey {
    match data.parent {
        Some(parent) => RefKey::SharedData { parent },
        None => RefKey::Data {
            root: data.root_id,
            objectid: data.objectid,
            offset: data.offset,
        },
    }
}

fn data_extent(data: &DataRef) -> Extent {
    Extent {
        bytenr: data.bytenr,
        len: data.len,
        level: None,
    }
}

impl Space {
    /// Begins or ends the recording of extents whose refs change.
    pub(crate) fn set_tracing(&self, on: bool) {
        self.tracing.store(on, Ordering::Release);
    }

    /// Begins to record the bytes of extents by owner, from this transaction on; `None` ends it.
    pub(crate) fn set_owned_since(&self, transid: Option<u64>) {
        self.owned_since
            .store(transid.unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Whether extents whose refs change are recorded.
    pub(crate) fn is_tracing(&self) -> bool {
        self.tracing.load(Ordering::Acquire)
    }

    /// Records that the trees that reach an extent may change, if that is recorded at all.
    pub(crate) fn trace(&self, h: &dyn SpaceWrite, extent: Extent) {
        if self.is_tracing() {
            h.changes().traced.add(extent);
        }
    }

    /// State and backrefs of an extent, as of the last commit or now, without pending changes.
    /// `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error::ExtentItem`]; unreadable blocks.
    pub(crate) fn extent_refs(
        &self,
        extent: &Extent,
        committed: bool,
    ) -> Result<Option<(ExtentState, Vec<InlineRef>)>> {
        if committed {
            let mut reader = CommittedReader {
                root: &self.trees.extent,
                blocks: &self.blocks,
            };
            return described(&mut reader, &self.rules, extent);
        }
        described(&mut self.extent_reader(), &self.rules, extent)
    }

    /// A tree block as an extent.
    pub(crate) fn block(&self, bytenr: u64, level: u8) -> Extent {
        Extent {
            bytenr,
            len: self.nodesize,
            level: Some(level),
        }
    }

    /// Bytes reserved for a head that waits to be run.
    pub(super) fn head_cost(&self) -> u64 {
        self.nodesize / HEAD_COST_DIVISOR
    }

    /// Moves the cost of a new head from the handle's reservation to the reservation of all heads,
    /// or reserves it additionally.
    fn charge_head(&self, h: &dyn SpaceWrite) {
        let cost = self.head_cost();
        let promise = h.reservation().filter(|p| p.is_of(&self.metadata));
        let part = promise.map(|p| p.split(cost));
        let missing = cost - part.as_ref().map_or(0, |part| part.bytes());
        if let Some(part) = part {
            self.delayed.merge(part);
        }
        if missing > 0 {
            self.delayed.merge(self.metadata.promise(missing));
        }
    }

    fn settle(&self, h: &dyn SpaceWrite, outcome: Outcome) {
        match outcome {
            Outcome::NewHead => self.charge_head(h),
            Outcome::Cancelled | Outcome::NeverExisted => {
                self.delayed.give_back(self.head_cost());
            }
            Outcome::Merged => {}
        }
    }

    /// Changes the refs of a tree block. `parent`: the block that points at it, if the ref is by
    /// parent instead of by tree. Blocks of log trees have no refs.
    ///
    /// # Errors
    /// [`Error::FreeSpace`] if its space is accounted wrongly.
    pub(crate) fn tree_block_ref(
        &self,
        h: &mut dyn SpaceWrite,
        (bytenr, level): (u64, u8),
        root_id: u64,
        parent: Option<u64>,
        change: BlockRef,
    ) -> Result<()> {
        self.note_level(level);
        if root_id == objectid::TREE_LOG {
            return Ok(());
        }
        let extent = self.block(bytenr, level);
        let key = match parent {
            Some(parent) => RefKey::SharedTree { parent },
            None => RefKey::Tree { root: root_id },
        };
        if parent.is_some() || objectid::is_fs_tree(root_id) {
            self.trace(h, extent);
        }
        let delayed = &h.changes().delayed;
        let outcome = match change {
            BlockRef::New => {
                let mut flags = ExtentFlags::TREE_BLOCK;
                if parent.is_some() {
                    flags |= ExtentFlags::FULL_BACKREF;
                }
                delayed.insert(extent, key, 1, flags)
            }
            BlockRef::Add => delayed.change(extent, key, 1),
            BlockRef::Drop => delayed.change(extent, key, -1),
        };
        self.settle(h, outcome);
        if outcome == Outcome::NeverExisted {
            self.pin_unused(h, bytenr, self.nodesize)?;
        }
        Ok(())
    }

    /// Drops the ref of `root` on a tree block. `last`: it is the only one. A block that this
    /// transaction created, and that never reached the disk, can be reused at once.
    ///
    /// # Errors
    /// [`Error::FreeSpace`] if its space is accounted wrongly.
    pub(crate) fn free_tree_block(
        &self,
        h: &mut dyn SpaceWrite,
        root: &Root,
        block: &TreeBlock,
        last: bool,
    ) -> Result<()> {
        let bytenr = block.bytenr();
        let mut unseen = root.id() == objectid::TREE_LOG;
        if !unseen {
            let extent = self.block(bytenr, block.level());
            let key = RefKey::Tree { root: root.id() };
            if objectid::is_fs_tree(root.id()) {
                self.trace(h, extent);
            }
            let outcome = h.changes().delayed.change(extent, key, -1);
            self.settle(h, outcome);
            unseen = outcome == Outcome::NeverExisted;
        }
        if unseen {
            let fresh = last && block.generation() == h.transid() && !block.is_written();
            if fresh {
                self.group_at(bytenr)?.untake(bytenr, self.nodesize)?;
            } else {
                self.pin_unused(h, bytenr, self.nodesize)?;
            }
        }
        let mut item = root.item();
        item.bytes_used = item.bytes_used.get().wrapping_sub(self.nodesize).into();
        Ok(())
    }

    /// Pins space that was allocated and never reached the extent tree, but may be on disk.
    pub(super) fn pin_unused(&self, h: &dyn SpaceWrite, bytenr: u64, len: u64) -> Result<()> {
        self.group_at(bytenr)?.pin_reserved(bytenr, len)?;
        h.changes().pinned.add(bytenr, len);
        Ok(())
    }

    /// Sets the flag that all refs from a tree block are by parent.
    ///
    /// # Errors
    /// None now.
    pub(crate) fn set_full_backref(
        &self,
        h: &mut dyn SpaceWrite,
        bytenr: u64,
        level: u8,
    ) -> Result<()> {
        let extent = self.block(bytenr, level);
        let outcome = h
            .changes()
            .delayed
            .set_flags(extent, ExtentFlags::FULL_BACKREF);
        self.settle(h, outcome);
        Ok(())
    }

    /// Number of refs and flags of a tree block, including pending changes. Waits for a thread that
    /// writes changes of this block. The caller may hold blocks of trees that precede the extent
    /// tree in the lock order.
    ///
    /// # Errors
    /// [`Error::ExtentMissing`], [`Error::ExtentItem`]; unreadable blocks.
    pub(crate) fn tree_block_info(
        &self,
        changes: &SpaceChanges,
        bytenr: u64,
        level: u8,
    ) -> Result<(u64, u64)> {
        let extent = self.block(bytenr, level);
        let hold = changes.delayed.hold(bytenr);
        let pending = hold.pending();
        let (mut refs, mut flags) = (0, ExtentFlags::empty());
        if !pending.as_ref().is_some_and(|head| head.insert) {
            let stored = state(&mut self.extent_reader(), &self.rules, &extent)?;
            let stored = stored.ok_or(Error::ExtentMissing { bytenr })?;
            (refs, flags) = (stored.refs, stored.flags);
        }
        if let Some(head) = pending {
            flags |= head.set_flags;
            refs = refs
                .checked_add_signed(head.total())
                .ok_or(Error::ExtentMissing { bytenr })?;
        }
        Ok((refs, flags.bits()))
    }

    pub(super) fn extent_reader(&self) -> TreeReader<'_> {
        TreeReader {
            root: &self.trees.extent,
            blocks: &self.blocks,
        }
    }

    /// Records a new data extent with its first ref, by the file that it was allocated for.
    ///
    /// # Errors
    /// None now.
    pub(crate) fn insert_data_extent(&self, h: &mut dyn SpaceWrite, data: &DataRef) -> Result<()> {
        let extent = data_extent(data);
        self.trace(h, extent);
        let delayed = &h.changes().delayed;
        let outcome = delayed.insert(extent, data_key(data), 1, ExtentFlags::DATA);
        self.settle(h, outcome);
        Ok(())
    }

    /// Adds refs of a data extent.
    ///
    /// # Errors
    /// None now.
    pub(crate) fn add_data_ref(
        &self,
        h: &mut dyn SpaceWrite,
        data: &DataRef,
        count: u32,
    ) -> Result<()> {
        self.change_data_ref(h, data, count.into());
        Ok(())
    }

    /// Drops refs of a data extent. With the last one its space and its checksums are freed.
    ///
    /// # Errors
    /// None now. A missing ref is detected when the changes are written.
    pub(crate) fn drop_data_ref(
        &self,
        h: &mut dyn SpaceWrite,
        data: &DataRef,
        count: u32,
    ) -> Result<()> {
        self.change_data_ref(h, data, -i64::from(count));
        Ok(())
    }

    fn change_data_ref(&self, h: &mut dyn SpaceWrite, data: &DataRef, count: i64) {
        self.trace(h, data_extent(data));
        let delayed = &h.changes().delayed;
        let outcome = delayed.change(data_extent(data), data_key(data), count);
        self.settle(h, outcome);
    }

    /// Whether a data extent has other refs than this one of a file of `root`, or may have after a
    /// snapshot. It must not be overwritten in place then.
    ///
    /// # Errors
    /// [`Error::ExtentMissing`], [`Error::ExtentItem`]; unreadable blocks.
    pub(crate) fn is_shared(
        &self,
        changes: &SpaceChanges,
        root: &Root,
        own: &DataRef,
    ) -> Result<bool> {
        let own_key = data_key(own);
        let hold = changes.delayed.hold(own.bytenr);
        let pending = hold.pending();
        if let Some(head) = &pending
            && head.refs.iter().any(|(key, n)| *key != own_key && *n > 0)
        {
            return Ok(true);
        }
        if pending.is_some_and(|head| head.insert) {
            return Ok(false);
        }
        let mut reader = self.extent_reader();
        let extent = data_extent(own);
        let stored = state(&mut reader, &self.rules, &extent)?;
        let bytenr = own.bytenr;
        let stored = stored.ok_or(Error::ExtentMissing { bytenr })?;
        // A snapshot shares leaves: its refs are visible only after such a leaf is copied.
        if stored.generation <= root.last_snapshot() {
            return Ok(true);
        }
        let refs = backrefs(&mut reader, &self.rules, &extent)?;
        let foreign = |r: &_| RefKey::of(r).is_some_and(|key| key != own_key);
        Ok(refs.iter().any(foreign))
    }
}
