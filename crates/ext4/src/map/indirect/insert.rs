//! Putting blocks into a block map.

use sapwood_ext4_format::{INDIRECT_DIRECT, IndirectPath};

use super::{PointerPlace, Pointers, blocks_max, pointer_block};
use crate::map::nodes::too_large;
use crate::map::nodes::{Changes, NodeKind};
use crate::{Error, Result};

impl<S: Changes> Pointers<'_, S> {
    /// [`insert`](crate::map::insert) for a block map. First all blocks of pointers are made, then
    /// the pointers are set: if there is no space, only empty blocks of pointers are added to the
    /// map.
    pub(crate) fn insert(&mut self, logical: u64, physical: u64, len: u64) -> Result<()> {
        let world = *self.store.world();
        let end = logical
            .checked_add(len)
            .filter(|end| *end <= blocks_max(world.block_size));
        let end = end.ok_or_else(too_large)?;
        if physical.checked_add(len).is_none_or(|end| end > 1 << 32) {
            return Err(Error::NoSpace);
        }
        if !world.holds(physical, len) {
            return Err(world.bad_map(format_args!(
                "blocks {physical}+{len} cannot be part of a file"
            )));
        }
        let mut places = Vec::new();
        let mut at = logical;
        while at < end {
            let path = u32::try_from(at).ok().and_then(|at| self.geometry.path(at));
            let path = path.ok_or_else(too_large)?;
            let (place, index) = self.make_way(&path, physical)?;
            let room = if path.depth() == 0 {
                INDIRECT_DIRECT
            } else {
                self.geometry.per_block()
            };
            let count = u64::from(room.saturating_sub(index)).min(end - at).max(1);
            if !self.are_holes(&place, index, count)? {
                let reason = format_args!("logical blocks {at}..{} should be a hole", at + count);
                return Err(world.bad_map(reason));
            }
            places.push((place, index, count));
            at += count;
        }
        let mut from = physical;
        for (place, index, count) in places {
            self.edit(&place, |all| {
                for (pointer, block) in all.iter_mut().skip(index as usize).zip(from..from + count)
                {
                    // Below 2^32, see above.
                    *pointer = (block as u32).into();
                }
            })?;
            from += count;
        }
        self.store.charge(len as i64);
        Ok(())
    }

    /// The place of the pointer to a block, with all blocks of pointers on the path to it.
    fn make_way(&mut self, path: &IndirectPath, goal: u64) -> Result<(PointerPlace<S::Node>, u32)> {
        let mut place = PointerPlace::Root;
        let Some((last, above)) = path.offsets().split_last() else {
            return Err(too_large());
        };
        for index in above {
            let next = match self.pointer(&place, *index)? {
                0 => self.make_block(&place, *index, goal)?,
                block => pointer_block(self.store, block)?,
            };
            place = PointerPlace::Block(next);
        }
        Ok((place, *last))
    }

    fn make_block(
        &mut self,
        place: &PointerPlace<S::Node>,
        index: u32,
        goal: u64,
    ) -> Result<S::Node> {
        let node = self.store.create(NodeKind::Pointers, goal)?;
        let Ok(block) = u32::try_from(self.store.place(&node)) else {
            self.store.discard(&node)?;
            return Err(Error::NoSpace);
        };
        self.set(place, index, block)?;
        Ok(node)
    }

    fn are_holes(&self, place: &PointerPlace<S::Node>, index: u32, count: u64) -> Result<bool> {
        self.pointers(place, |all| {
            let here = all.iter().skip(index as usize).take(count as usize);
            here.clone().count() as u64 == count && here.clone().all(|pointer| pointer.get() == 0)
        })
    }
}
