//! Truncation.
//!
//! # How it works
//! Growing changes the size (and, without the no-holes feature, adds explicit holes). Shrinking
//! first settles memory: it discards dirty data after the new end, waits for data in flight, and
//! zeroes the rest of the sector that the new end cuts, in memory. Then it drops items from the end
//! of the file, some in each handle, and the size on disk falls with them: a power cut in between
//! leaves a file that is longer than requested but whole. An inline extent is cut in the tree at
//! once.

use std::sync::Arc;

use sapwood_btrfs_format::{FileExtent, compression as id};

use super::files::Files;
use super::flush::discard;
use super::items::{self, Item, changing, key_of, raise_disk_size, sector_ceil, sector_floor};
use super::{read, write};
use crate::Result;
use crate::file_data::{Content, ExtentMap};
use crate::inode::Inode;
use crate::transaction::{Handle, Store};

/// Items dropped in one handle.
const STEP: usize = 32;
/// Items for which a step reserves space: few, because the dropped items are adjacent.
const ITEMS: u64 = 8;

/// Sets the length of a file. The caller holds `io` exclusively, and sets the times.
///
/// # Errors
/// [`NoSpace`](crate::Error::NoSpace); unreadable or damaged items.
pub(crate) fn truncate(files: &Arc<Files>, inode: &Arc<Inode>, size: u64) -> Result<()> {
    files.health.check()?;
    let old = inode.state.lock().size;
    if size >= old {
        write::prepare_growth(files, inode, size, size)?;
        return write::set_size(files, inode, size);
    }
    let sector = u64::from(files.sectorsize);
    let cut = sector_floor(files, size);
    if cut < size {
        if old <= sector && inline_on_disk(files, inode)? {
            return cut_inline(files, inode, size);
        }
        write::zero_part(files, inode, size..old.min(cut + sector))?;
    }
    discard(files, inode, sector_ceil(files, size)..u64::MAX);
    inode.state.lock().shrink(size);
    shrink(files, inode, size)
}

/// Drops everything that a file without a name has. The caller holds `io` exclusively.
///
/// # Errors
/// Unreadable or damaged items.
pub(crate) fn delete_content(files: &Arc<Files>, inode: &Arc<Inode>) -> Result<()> {
    files.health.check()?;
    discard(files, inode, 0..u64::MAX);
    inode.state.lock().shrink(0);
    shrink(files, inode, 0)
}

/// Whether the tree has the file as an inline extent, and memory has nothing newer.
fn inline_on_disk(store: &Store, inode: &Inode) -> Result<bool> {
    let in_memory = inode.data.state.lock().bytes() > 0;
    Ok(!in_memory && items::find(store, inode, 0)?.content == Content::Inline)
}

/// Writes an inline extent again, shorter.
fn cut_inline(files: &Arc<Files>, inode: &Arc<Inode>, size: u64) -> Result<()> {
    let mut bytes = read::read_inline(files, inode)?.unwrap_or_default();
    let had = bytes.len() as u64;
    let len = size.min(had);
    bytes.truncate(len as usize);
    let mut h = files.start_urgent(2)?;
    let change = changing(inode);
    let item = FileExtent::Inline {
        generation: h.transid(),
        ram_bytes: len,
        compression: id::NONE,
        data: &bytes,
    };
    let result = inode.root.put(&mut h, &key_of(inode, 0), &item.encode());
    change.done(0..sector_ceil(files, had.max(1)), &[]);
    inode.change(&h, |state| {
        state.nbytes = state.nbytes.saturating_sub(had) + len;
        state.shrink(size);
        state.disk_size = size;
    });
    h.finish(result)
}

/// Drops all items after `size`, step by step.
fn shrink(files: &Arc<Files>, inode: &Arc<Inode>, size: u64) -> Result<()> {
    let end = sector_ceil(files, size);
    loop {
        let mut h = files.start_urgent(ITEMS)?;
        let step = drop_last(&mut h, files, inode, end);
        let (dropped, reached) = match step {
            Ok(step) => step,
            Err(error) => return h.finish(Err(error)),
        };
        {
            let mut data = inode.data.state.lock();
            data.in_tree.remove(size, u64::MAX);
            let mut state = inode.state.lock();
            state.nbytes = state.nbytes.saturating_sub(dropped);
            state.disk_size = state.disk_size.min(size.max(reached.unwrap_or(0)));
            if reached.is_none() {
                raise_disk_size(&data, &mut state);
            }
        }
        inode.change(&h, |_| {});
        let freed = items::free_lost(&mut h);
        h.finish(freed)?;
        if reached.is_none() {
            return Ok(());
        }
    }
}

/// Drops the last items of a file, but nothing before `end`. Returns the bytes dropped and
/// where the file ends now, or `None` if no item is left after `end`.
fn drop_last(
    h: &mut Handle,
    files: &Arc<Files>,
    inode: &Inode,
    end: u64,
) -> Result<(u64, Option<u64>)> {
    let change = changing(inode);
    let last = items::last(files, inode, end, STEP)?;
    let Some(first) = last.last().map(|item: &Item| item.start.max(end)) else {
        change.done(0..0, &[]);
        return Ok((0, None));
    };
    let hole = ExtentMap {
        start: first,
        end: u64::MAX,
        content: Content::Hole,
    };
    let dropped = items::drop_extents(h, inode, first..u64::MAX)?;
    change.done(first..u64::MAX, &[hole]);
    inode.data.note_change(hole, h.transid());
    let more = last.len() == STEP && first > end;
    Ok((dropped, more.then_some(first)))
}
