//! Taking blocks out of a block map and freeing them.
//!
//! A removal goes from the end of the range backwards. One step removes as many pointers of one
//! block, or of the inode, as the handle has credits for. A block of pointers that becomes empty is
//! freed, and its pointer removed in turn.

use std::ops::Range;

use sapwood_ext4_format::INDIRECT_DIRECT;

use super::{PointerPlace, Pointers, pointer_block};
use crate::Result;
use crate::map::nodes::Changes;

/// Credits for the blocks of pointers on a path, and for the bitmaps and descriptors of the blocks
/// that become empty.
pub(crate) const WAY_CREDITS: u32 = 9;

/// A removal in progress.
struct Removal {
    start: u64,
    /// Every block from here to the end of the range is removed.
    end: u64,
    /// Something was done, so it may stop.
    may_stop: bool,
}

/// Contiguous blocks; the first in the file is at `slot`.
struct Going {
    physical: u64,
    len: u64,
    slot: u64,
}

impl<S: Changes> Pointers<'_, S> {
    /// [`remove`](crate::map::remove) for a block map.
    pub(crate) fn remove(&mut self, range: Range<u64>) -> Result<Range<u64>> {
        let mut removal = Removal {
            start: range.start,
            end: range.end.min(self.geometry.max_blocks()),
            may_stop: false,
        };
        for depth in (1..=3_u8).rev() {
            let base = (1..depth).fold(u64::from(INDIRECT_DIRECT), |sum, below| {
                sum + self.geometry.span(below)
            });
            let index = INDIRECT_DIRECT + u32::from(depth) - 1;
            if !self.prune(&PointerPlace::Root, index, depth, base, &mut removal)? {
                return Ok(removal.start..removal.end);
            }
        }
        if !self.clear(
            &PointerPlace::Root,
            0,
            u64::from(INDIRECT_DIRECT),
            &mut removal,
        )? {
            return Ok(removal.start..removal.end);
        }
        Ok(range.start..range.start)
    }

    /// Removes below one pointer to a block of pointers, which stands for the blocks of the file
    /// from `base` on. `depth` is the number of levels of pointers below, 3 at most. False:
    /// stopped.
    fn prune(
        &mut self,
        parent: &PointerPlace<S::Node>,
        index: u32,
        depth: u8,
        base: u64,
        removal: &mut Removal,
    ) -> Result<bool> {
        let (start, end) = (
            removal.start.max(base),
            removal.end.min(base + self.geometry.span(depth)),
        );
        if start >= end {
            return Ok(true);
        }
        let block = self.pointer(parent, index)?;
        if block == 0 {
            return Ok(true);
        }
        let node = pointer_block(self.store, block)?;
        let place = PointerPlace::Block(node.clone());
        let per_block = u64::from(self.geometry.per_block());
        if depth == 1 {
            if !self.clear(&place, base, per_block, removal)? {
                return Ok(false);
            }
        } else {
            let span = self.geometry.span(depth - 1);
            for slot in ((start - base) / span..=(end - 1 - base) / span).rev() {
                if !self.prune(&place, slot as u32, depth - 1, base + slot * span, removal)? {
                    return Ok(false);
                }
            }
        }
        if !self.pointers(&place, |all| all.iter().all(|pointer| pointer.get() == 0))? {
            return Ok(true);
        }
        if removal.may_stop && !self.store.affords(WAY_CREDITS) {
            // The next handle continues here.
            removal.end = removal.end.max(start + 1);
            return Ok(false);
        }
        removal.may_stop = true;
        self.set(parent, index, 0)?;
        self.store.discard(&node)?;
        Ok(true)
    }

    /// Removes the blocks that `count` pointers name; the first is block `base` of the file. False:
    /// stopped.
    fn clear(
        &mut self,
        place: &PointerPlace<S::Node>,
        base: u64,
        count: u64,
        removal: &mut Removal,
    ) -> Result<bool> {
        let (start, end) = (removal.start.max(base), removal.end.min(base + count));
        if start >= end {
            return Ok(true);
        }
        let (low, high) = (start - base, end - base);
        let mut going = self.going(place, low, high)?;
        let all = going.len();
        let mut credits = WAY_CREDITS;
        let affordable = going.iter().take_while(|one| {
            credits = credits.saturating_add(self.store.free_cost(one.physical, one.len));
            let forced = !removal.may_stop;
            removal.may_stop = true;
            forced || self.store.affords(credits)
        });
        let count = affordable.count();
        going.truncate(count);
        let low = if count == all {
            low
        } else {
            going.last().map_or(high, |last| last.slot)
        };
        if !going.is_empty() {
            self.edit(place, |pointers| {
                let here = pointers.iter_mut().take(high as usize).skip(low as usize);
                here.for_each(|pointer| *pointer = 0.into());
            })?;
        }
        removal.end = base + low;
        for one in going {
            self.store.charge(-(one.len as i64));
            self.store.free(one.physical, one.len)?;
        }
        Ok(count == all)
    }

    /// Runs of blocks that the pointers `low..high` name, the last one first.
    fn going(&self, place: &PointerPlace<S::Node>, low: u64, high: u64) -> Result<Vec<Going>> {
        let mut going: Vec<Going> = Vec::new();
        self.pointers(place, |all| {
            let here = (0..).zip(all).take(high as usize).skip(low as usize);
            let mut used: Vec<(u64, u64)> = here
                .map(|(slot, block)| (slot, u64::from(block.get())))
                .collect();
            used.retain(|(_, block)| *block != 0);
            for (slot, block) in used.into_iter().rev() {
                match going.last_mut() {
                    Some(last) if last.physical == block + 1 => {
                        last.physical = block;
                        last.len += 1;
                        last.slot = slot;
                    }
                    _ => going.push(Going {
                        physical: block,
                        len: 1,
                        slot,
                    }),
                }
            }
        })?;
        Ok(going)
    }
}
