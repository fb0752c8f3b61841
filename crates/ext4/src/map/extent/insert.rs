//! Puts blocks into a tree, and makes unwritten blocks written, or the other way round.

use std::ops::Range;

use sapwood_ext4_format::{EXTENT_MAX_LEN, EXTENT_MAX_UNWRITTEN_LEN, Extent};

use super::{Path, Tree};
use crate::Result;
use crate::map::nodes::Changes;
use crate::map::nodes::{BLOCKS_MAX, too_large};

/// Blocks of the longest extent of a kind.
pub(super) fn longest(unwritten: bool) -> u32 {
    if unwritten {
        EXTENT_MAX_UNWRITTEN_LEN
    } else {
        EXTENT_MAX_LEN
    }
}

/// The two as one, if they are neighbours of one kind and short enough.
pub(super) fn merged(left: &Extent, right: &Extent) -> Option<Extent> {
    let len = left.len.checked_add(right.len)?;
    let fits = left.unwritten == right.unwritten
        && left.end() == u64::from(right.logical)
        && left.physical.checked_add(u64::from(left.len)) == Some(right.physical)
        && len <= longest(left.unwritten);
    fits.then_some(Extent { len, ..*left })
}

/// Puts `extent` at the end of a list, as part of the last one if that can be.
pub(super) fn push(list: &mut Vec<Extent>, extent: Extent) {
    match list.last_mut() {
        Some(last) if merged(last, &extent).is_some() => last.len += extent.len,
        _ => list.push(extent),
    }
}

/// Part of an extent: its blocks in `from..to`, which must not be empty.
pub(super) fn part(extent: &Extent, from: u64, to: u64) -> Option<Extent> {
    let begin = from.max(u64::from(extent.logical));
    let len = to
        .min(extent.end())
        .checked_sub(begin)
        .filter(|len| *len > 0)?;
    Some(Extent {
        logical: u32::try_from(begin).ok()?,
        len: u32::try_from(len).ok()?,
        physical: extent.physical + (begin - u64::from(extent.logical)),
        ..*extent
    })
}

impl<S: Changes> Tree<'_, S> {
    /// [`insert`](crate::map::insert) for an extent tree. After an error the map is unchanged.
    pub(crate) fn insert(
        &mut self,
        logical: u64,
        physical: u64,
        len: u64,
        written: bool,
    ) -> Result<()> {
        let end = logical.checked_add(len).filter(|end| *end <= BLOCKS_MAX);
        let end = end.ok_or_else(too_large)?;
        let world = self.store.world();
        if !world.holds(physical, len) {
            return Err(world.bad_map(format_args!(
                "blocks {physical}+{len} cannot be part of a file"
            )));
        }
        let (mut at, mut from) = (logical, physical);
        while at < end {
            let len = (end - at).min(u64::from(longest(!written)));
            let inserted = self.insert_one(Extent {
                logical: at as u32,
                len: len as u32,
                physical: from,
                unwritten: !written,
            });
            if let Err(err) = inserted {
                self.take_back(logical..at)?;
                return Err(err);
            }
            self.store.charge(len as i64);
            at += len;
            from += len;
        }
        Ok(())
    }

    fn insert_one(&mut self, extent: Extent) -> Result<()> {
        let path = self.descend(extent.logical)?;
        let next = path.leaf.at.map_or(0, |at| at + 1);
        let (before, after) = path.leaf.view(self.store, self.root, |node| {
            (
                path.leaf.at.and_then(|at| node.extent(at)),
                node.extent(next),
            )
        })?;
        let begin = u64::from(extent.logical);
        let limit = after.map_or(path.leaf.bounds.limit, |after| u64::from(after.logical));
        if before.is_some_and(|before| before.end() > begin) || extent.end() > limit {
            let end = extent.end();
            let reason = format_args!("logical blocks {begin}..{end} should be a hole");
            return Err(self.store.world().bad_map(reason));
        }
        self.replace_merging(path, next, next, &[extent])
    }

    /// Replaces the entries `from..to` of the leaf by `new`, and the neighbours too where they can
    /// be one with it.
    pub(super) fn replace_merging(
        &mut self,
        path: super::Path<S::Node>,
        mut from: usize,
        mut to: usize,
        new: &[Extent],
    ) -> Result<()> {
        let (before, after) = path.leaf.view(self.store, self.root, |node| {
            (
                from.checked_sub(1).and_then(|at| node.extent(at)),
                node.extent(to),
            )
        })?;
        let mut list = Vec::with_capacity(new.len() + 2);
        let mut new = new.iter().copied();
        if let Some(first) = new.next() {
            match before.and_then(|before| merged(&before, &first)) {
                Some(one) => {
                    from -= 1;
                    list.push(one);
                }
                None => list.push(first),
            }
        }
        new.for_each(|extent| push(&mut list, extent));
        if let Some(after) = after {
            let pieces = list.len();
            push(&mut list, after);
            if list.len() == pieces {
                to += 1;
            } else {
                list.pop();
            }
        }
        self.replace(path, from, to, &list)
    }
}

impl<S: Changes> Tree<'_, S> {
    /// Makes all mapped blocks of `range` written or unwritten. Returns the rest of the range when
    /// the handle has no credits for more; the first extent is always done. See
    /// [`convert`](crate::map::convert).
    pub(crate) fn convert(&mut self, range: Range<u64>, written: bool) -> Result<Range<u64>> {
        let end = range.end;
        let (mut at, mut first) = (range.start, true);
        while at < end {
            let Ok(logical) = u32::try_from(at) else {
                break;
            };
            let path = self.descend(logical)?;
            let Some((index, extent)) = self.next_of_state(&path, at, end, !written)? else {
                at = path.leaf.bounds.limit.max(at + 1);
                continue;
            };
            if !first && !self.store.affords(super::replace_credits(path.nodes())) {
                return Ok(at..end);
            }
            first = false;
            at = extent.end();
            let pieces = converted(&extent, range.start, end, written);
            self.replace_merging(path, index, index + 1, &pieces)?;
        }
        Ok(end..end)
    }

    /// The first extent of the leaf that has blocks in `at..end` and the state looked for.
    fn next_of_state(
        &self,
        path: &Path<S::Node>,
        at: u64,
        end: u64,
        written: bool,
    ) -> Result<Option<(usize, Extent)>> {
        path.leaf.view(self.store, self.root, |node| {
            (path.leaf.at.unwrap_or(0)..node.len())
                .map_while(|index| Some((index, node.extent(index)?)))
                .take_while(|(_, extent)| u64::from(extent.logical) < end)
                .find(|(_, extent)| extent.end() > at && extent.unwritten != written)
        })
    }
}

/// The extent with its blocks in `from..to` in the other state.
fn converted(extent: &Extent, from: u64, to: u64, written: bool) -> Vec<Extent> {
    let begin = u64::from(extent.logical);
    let middle = part(extent, from, to).map(|middle| Extent {
        unwritten: !written,
        ..middle
    });
    let mut pieces = Vec::with_capacity(4);
    let longest = u64::from(longest(!written));
    let mut add =
        |piece: Option<Extent>| piece.into_iter().for_each(|piece| push(&mut pieces, piece));
    add(part(extent, begin, from));
    // A written extent may be one block longer than an unwritten one.
    if let Some(middle) = middle {
        let cut = u64::from(middle.logical) + longest;
        add(part(&middle, 0, cut));
        add(part(&middle, cut, u64::MAX));
    }
    add(part(extent, to, u64::MAX));
    pieces
}
