//! Making unwritten blocks written, and the other way round.

use std::ops::Range;

use sapwood_ext4_format::Extent;

use super::insert::{longest, part, push};
use super::{Path, Tree};
use crate::Result;
use crate::map::nodes::Changes;

impl<S: Changes> Tree<'_, S> {
    /// Gives all blocks of `range` that are mapped the one state. Returns what is left of the range
    /// when the handle has no credits for more; the first extent always is done. See
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
