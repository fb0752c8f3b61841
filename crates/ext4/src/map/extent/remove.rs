//! Taking blocks out of a tree and freeing them.
//!
//! # How it works
//! A removal goes from the end of the range backwards, leaf by leaf: one replacement takes entries,
//! or parts of them, out of the leaf, then their blocks are freed. One step takes as many extents
//! as the handle has credits for, because each extent may be in another group and so cost a bitmap.
//! It takes at least the end of the last extent, as far as that lies in one group. The rest of the
//! range is returned.
//!
//! The tree is whole after each handle. A power cut between two handles leaves an inode that is
//! longer than its content or, for an orphan, an unfinished removal that continues later.

use std::ops::Range;

use sapwood_ext4_format::Extent;

use super::insert::part;
use super::{Path, Tree};
use crate::Result;
use crate::map::nodes::Changes;

/// The result of one step.
enum Step {
    /// Every block of the file from here on was removed.
    Down(u64),
    /// The handle has no credits for anything.
    Stopped,
}

/// The kind of removal in a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// At least the end of one extent, so that every handle makes progress.
    First,
    /// Until the credits are used up.
    Next,
    /// Without freeing the blocks, and regardless of credits: the credits for inserting the blocks
    /// suffice.
    TakeBack,
}

impl<S: Changes> Tree<'_, S> {
    /// [`remove`](crate::map::remove) for an extent tree.
    pub(crate) fn remove(&mut self, range: Range<u64>) -> Result<Range<u64>> {
        let (start, mut end) = (range.start, range.end.min(1 << 32));
        let mut mode = Mode::First;
        while start < end {
            match self.remove_last(start, end, mode)? {
                Step::Down(to) => end = to,
                Step::Stopped => return Ok(start..end),
            }
            mode = Mode::Next;
        }
        self.shrink()?;
        Ok(start..start)
    }

    /// Removes blocks from the map, but does not free them: the caller keeps them.
    pub(super) fn take_back(&mut self, range: Range<u64>) -> Result<()> {
        let mut end = range.end;
        while range.start < end {
            end = match self.remove_last(range.start, end, Mode::TakeBack)? {
                Step::Down(to) => to,
                Step::Stopped => range.start,
            };
        }
        Ok(())
    }

    /// Removes from the leaf where the last block before `end` is.
    fn remove_last(&mut self, start: u64, end: u64, mode: Mode) -> Result<Step> {
        let Some(last) = end.checked_sub(1).and_then(|last| u32::try_from(last).ok()) else {
            return Ok(Step::Down(start));
        };
        let path = self.descend(last)?;
        let from = u64::from(path.leaf.bounds.first);
        if path.leaf.len == 0 && path.leaf.node.is_some() {
            self.drop_empty(&path)?;
            return Ok(Step::Down(if from < end { from.max(start) } else { start }));
        }
        let Some(at) = path.leaf.at else {
            // The leaf begins after the range: only the first leaf of the tree may.
            return Ok(Step::Down(if from < end { from.max(start) } else { start }));
        };
        let extents = path.leaf.extents(self.store, self.root)?;
        let known = extents.get(..=at).unwrap_or_default();
        let going = self.choose(&path, known, start, end, mode);
        if going.is_empty() {
            let overlaps = known.last().is_some_and(|last| last.end() > start);
            return Ok(if overlaps {
                Step::Stopped
            } else {
                Step::Down(start)
            });
        }
        self.take_out(path, at, &going, end)?;
        if mode != Mode::TakeBack {
            for piece in &going {
                self.store.free(piece.physical, u64::from(piece.len))?;
            }
        }
        Ok(Step::Down(
            going.last().map_or(start, |piece| u64::from(piece.logical)),
        ))
    }

    /// Parts of the last of `extents` that can be removed now, the last one first.
    fn choose(
        &self,
        path: &Path<S::Node>,
        extents: &[Extent],
        start: u64,
        end: u64,
        mode: Mode,
    ) -> Vec<Extent> {
        let mut going = Vec::new();
        let mut credits = super::replace_credits(path.nodes());
        for extent in extents.iter().rev() {
            let Some(piece) = part(extent, start, end) else {
                break;
            };
            credits =
                credits.saturating_add(self.store.free_cost(piece.physical, u64::from(piece.len)));
            if mode == Mode::TakeBack || self.store.affords(credits) {
                going.push(piece);
                continue;
            }
            if mode == Mode::First && going.is_empty() {
                let len = u64::from(piece.len);
                let tail = self.store.tail_in_group(piece.physical, len);
                going.extend(part(&piece, piece.end().saturating_sub(tail), u64::MAX));
            }
            break;
        }
        going
    }

    /// Takes parts of the extents up to entry `at` out, the last one first.
    fn take_out(
        &mut self,
        path: Path<S::Node>,
        at: usize,
        going: &[Extent],
        end: u64,
    ) -> Result<()> {
        let from = (at + 1).saturating_sub(going.len());
        let extents = path.leaf.extents(self.store, self.root)?;
        let lowest_gone = going.last().map_or(end, |piece| u64::from(piece.logical));
        let mut kept = Vec::with_capacity(2);
        if let Some(lowest) = extents.get(from) {
            kept.extend(part(lowest, 0, lowest_gone));
        }
        if let Some(highest) = extents.get(at) {
            kept.extend(part(highest, end, u64::MAX));
        }
        self.replace(path, from, at + 1, &kept)?;
        let gone: u64 = going.iter().map(|piece| u64::from(piece.len)).sum();
        self.store.charge(-(gone as i64));
        Ok(())
    }
}
