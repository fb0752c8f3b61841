//! Moving a part of a file within it: collapsing and inserting ranges.
//!
//! # How it works
//! `range` names the extents that are still to be moved, by their first blocks. To the left they
//! are moved from the first leaf on, to the right from the last one backwards, so that each leaf
//! moves into room that is already free and all keys stay in order. After each leaf the tree is
//! whole, and the rest of the range is known: a handle without credits for one more returns it
//! (`a_shift_goes_on_with_the_next_handle`).

use std::ops::Range;

use sapwood_ext4_format::Extent;

use super::insert::part;
use super::{Path, Tree};
use crate::Result;
use crate::map::Mapped;
use crate::map::nodes::{BLOCKS_MAX, Changes, too_large};

impl<S: Changes> Tree<'_, S> {
    /// Moves the extents in `range` by `by` blocks to the front, over a hole. Returns the rest of
    /// the range.
    pub(crate) fn shift_left(&mut self, range: Range<u64>, by: u64) -> Result<Range<u64>> {
        let end = range.end.min(1 << 32);
        let (mut at, mut first) = (range.start, true);
        let target = at.checked_sub(by).filter(|_| by > 0);
        let target = target.ok_or_else(|| {
            self.store
                .world()
                .bad_map("shift before the begin of the file")
        })?;
        while at < end {
            let Ok(logical) = u32::try_from(at) else {
                break;
            };
            let path = self.descend(logical)?;
            if !first && !self.store.affords(path.nodes()) {
                return Ok(at..end);
            }
            let from = self.border(&path, at)?;
            if first && !self.is_free(target, by)? {
                return Err(self
                    .store
                    .world()
                    .bad_map("shift over blocks that are in use"));
            }
            let limit = path.leaf.bounds.limit;
            self.move_entries(&path, from, |logical| logical.checked_sub(by))?;
            if first {
                self.merge_at(target)?;
            }
            first = false;
            at = limit.max(at + 1);
        }
        Ok(end..end)
    }

    /// Moves the extents in `range` by `by` blocks to the back, splitting one that reaches across
    /// the start of the range. Returns the rest of the range.
    pub(crate) fn shift_right(&mut self, range: Range<u64>, by: u64) -> Result<Range<u64>> {
        let (start, mut end) = (range.start, range.end.min(1 << 32));
        self.split_at(start)?;
        let mut first = true;
        while start < end {
            let Some(last) = end.checked_sub(1).and_then(|last| u32::try_from(last).ok()) else {
                break;
            };
            let path = self.descend(last)?;
            let from = u64::from(path.leaf.bounds.first);
            let Some(at) = path.leaf.at else {
                // Nothing of this leaf is in the range; only the first of all leaves may begin
                // after it.
                end = if from < end { from.max(start) } else { start };
                continue;
            };
            if !first && !self.store.affords(path.nodes()) {
                return Ok(start..end);
            }
            first = false;
            let begin = self.border(&path, start)?;
            let reach = path
                .leaf
                .view(self.store, self.root, |node| node.extent(at))?;
            let fits = |reach: Extent| {
                reach
                    .end()
                    .checked_add(by)
                    .is_some_and(|end| end <= BLOCKS_MAX)
            };
            if begin <= at && !reach.is_some_and(fits) {
                return Err(too_large());
            }
            end = if begin > 0 { start } else { from.max(start) };
            self.move_entries(&path, begin, |logical| logical.checked_add(by))?;
        }
        Ok(start..start)
    }

    /// First entry of the leaf that begins at or after `at`; no extent may reach across it.
    fn border(&self, path: &Path<S::Node>, at: u64) -> Result<usize> {
        let extents = path.leaf.extents(self.store, self.root)?;
        let index = extents.partition_point(|extent| u64::from(extent.logical) < at);
        let before = index.checked_sub(1).and_then(|before| extents.get(before));
        if before.is_some_and(|before| before.end() > at) {
            return Err(self
                .store
                .world()
                .bad_map("shift through the middle of an extent"));
        }
        Ok(index)
    }

    /// Whether `len` blocks from `logical` on are a hole.
    fn is_free(&self, logical: u64, len: u64) -> Result<bool> {
        let run = super::lookup(self.store, self.root, logical, len)?;
        Ok(run.what == Mapped::Hole && run.len == len)
    }

    /// Moves the entries of a leaf from `from` on.
    fn move_entries(
        &mut self,
        path: &Path<S::Node>,
        from: usize,
        to: impl Fn(u64) -> Option<u64>,
    ) -> Result<()> {
        let extents = path.leaf.extents(self.store, self.root)?;
        let world = self.store.world();
        let mut moved = Vec::with_capacity(extents.len());
        for extent in extents.iter().skip(from) {
            let logical = to(u64::from(extent.logical)).and_then(|to| u32::try_from(to).ok());
            let logical = logical.ok_or_else(|| world.bad_map("shift out of the file"))?;
            moved.push(Extent { logical, ..*extent });
        }
        self.edit(&path.leaf, |node| {
            (from..)
                .zip(&moved)
                .try_for_each(|(at, extent)| node.set_extent(at, extent))
        })?;
        match moved.first() {
            Some(first) if from == 0 => self.set_key(&path.above, first.logical),
            _ => Ok(()),
        }
    }

    /// Merges the extents that meet at `at`, if one extent can have the blocks of both.
    fn merge_at(&mut self, at: u64) -> Result<()> {
        let Ok(logical) = u32::try_from(at) else {
            return Ok(());
        };
        let path = self.descend(logical)?;
        let Some(index) = path.leaf.at.filter(|index| *index > 0) else {
            return Ok(());
        };
        let here = path
            .leaf
            .view(self.store, self.root, |node| node.extent(index))?;
        match here.filter(|here| here.logical == logical) {
            Some(here) => self.replace_merging(path, index, index + 1, &[here]),
            None => Ok(()),
        }
    }

    /// Splits an extent that reaches across `at`.
    fn split_at(&mut self, at: u64) -> Result<()> {
        let Ok(logical) = u32::try_from(at) else {
            return Ok(());
        };
        let path = self.descend(logical)?;
        let Some(index) = path.leaf.at else {
            return Ok(());
        };
        let here = path
            .leaf
            .view(self.store, self.root, |node| node.extent(index))?;
        let halves = here.and_then(|here| part(&here, 0, at).zip(part(&here, at, u64::MAX)));
        match halves {
            Some((left, right)) => self.replace(path, index, index + 1, &[left, right]),
            None => Ok(()),
        }
    }
}
