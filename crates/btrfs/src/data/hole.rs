//! Making a range of a file a hole.

use std::ops::Range;
use std::sync::Arc;

use super::files::Files;
use super::flush::discard;
use super::items::{self, Items, changing, raise_disk_size, sector_ceil};
use crate::Result;
use crate::file_data::{Content, ExtentMap};
use crate::inode::Inode;
use crate::transaction::{Handle, Store};

/// Items dropped in one handle.
const STEP: usize = 32;

/// Makes whole sectors a hole.
pub(super) fn clear(files: &Arc<Files>, inode: &Arc<Inode>, range: Range<u64>) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    discard(files, inode, range.clone());
    let mut at = range.start;
    while at < range.end {
        let mut h = files.start_urgent(8)?;
        let end = step_end(files, inode, at..range.end)?;
        let size = sector_ceil(files, inode.state.lock().size);
        let result =
            replace_with_hole(&mut h, inode, at..end, size).and_then(|()| items::free_lost(&mut h));
        if end == range.end {
            // The size on disk may have waited only for the dropped ranges.
            let data = inode.data.state.lock();
            raise_disk_size(&data, &mut inode.state.lock());
        }
        inode.change(&h, |_| {});
        h.finish(result)?;
        at = end;
    }
    Ok(())
}

/// The end of a step that begins at the range's start, so that it drops a bounded number of items.
fn step_end(store: &Store, inode: &Inode, range: Range<u64>) -> Result<u64> {
    let mut items = Items::from(store, inode, range.start)?;
    let mut end = range.start;
    for _ in 0..STEP {
        match items.next()? {
            Some(item) if item.start < range.end => end = item.end,
            _ => return Ok(range.end),
        }
    }
    Ok(end.min(range.end))
}

/// Drops the items of a range, and puts an explicit hole in their place where that is wanted, up
/// to the end of the file at `size`.
pub(super) fn replace_with_hole(
    h: &mut Handle,
    inode: &Inode,
    range: Range<u64>,
    size: u64,
) -> Result<()> {
    let hole = ExtentMap {
        start: range.start,
        end: range.end,
        content: Content::Hole,
    };
    let change = changing(inode);
    let dropped = items::drop_extents(h, inode, range.clone())?;
    items::insert_hole(h, inode, range.start..range.end.min(size).max(range.start))?;
    change.done(range, &[hole]);
    inode.data.note_change(hole, h.transid());
    let mut state = inode.state.lock();
    state.nbytes = state.nbytes.saturating_sub(dropped);
    Ok(())
}
