//! `data=journal`: data that goes through the journal like metadata.
//!
//! No I/O of its own is submitted for a range of such a file. Completion puts its blocks into the
//! handle as buffers, with the map and the size in the same transaction. The newest content of a
//! block is in the cache until the journal has written it back to its home location, so reads look
//! there first. Freed blocks are revoked, as the log may hold them.
//!
//! A file is journaled by its flag or by the mount's option; neither changes while it is mounted.
//! Before the flag could be cleared, all of the file would have to be checkpointed: no other write
//! may go to a block whose older content the journal still is to write there.

use std::sync::Arc;

use sapwood_ext4_format::InodeFlags;
use sapwood_jbd2::{Buffer, Handle};
use sapwood_vfs::FileKind;

use super::steps::{convert, insert, raise_disk_size, step_credits};
use crate::Result;
use crate::block_alloc::{self, Extent};
use crate::file_data::{Change, InFlight, Segment};
use crate::inode::Inode;
use crate::options::DataMode;
use crate::store::Store;

/// Blocks that go into one handle at once, at most.
const CHUNK: u32 = 256;

/// Whether the data of a file goes through the journal.
pub(super) fn applies(store: &Store, inode: &Inode) -> bool {
    inode.kind == FileKind::Regular
        && (store.options.data == DataMode::Journal
            || inode.flags().contains(InodeFlags::JOURNAL_DATA))
}

/// Fills `buf` from byte `at` of the device, or with what is newer in the cache.
pub(super) fn read(store: &Store, at: u64, buf: &mut [u8]) -> Result<()> {
    let block_size = store.block_size();
    let mut at = at;
    let mut rest = buf;
    while !rest.is_empty() {
        let within = at % block_size;
        let len = (block_size - within).min(rest.len() as u64) as usize;
        let (front, back) = rest.split_at_mut(len);
        match store.cache.peek(at / block_size) {
            Some(buffer) => {
                let content = buffer.read();
                let part = content.get(within as usize..within as usize + len);
                front.copy_from_slice(part.unwrap_or_default());
            }
            None => store.device.read_at(at, front)?,
        }
        at = at.saturating_add(len as u64);
        rest = back;
    }
    Ok(())
}

/// The buffer of a block that will be overwritten as a whole.
fn buffer(store: &Store, block: u64) -> Result<Arc<Buffer>> {
    match store.cache.peek(block) {
        Some(buffer) => Ok(buffer),
        None => Ok(store.cache.get_new(block)?),
    }
}

/// Puts a segment of a range into the journal and into the map, in as many handles as it takes.
pub(super) fn bring(
    store: &Store,
    inode: &Arc<Inode>,
    h: &mut Handle,
    io: &InFlight,
    segment: &Segment,
) -> Result<()> {
    let step = step_credits(store, inode, CHUNK.into());
    let chunk = (store.journal.most_credits() / 2).saturating_sub(step);
    let chunk = chunk.clamp(1, CHUNK);
    let blocks = segment.blocks.clone();
    for at in blocks.clone().step_by(chunk as usize) {
        let len = (blocks.end - at).min(chunk.into()) as u32;
        if !h.ensure(step + len) {
            inode.store(store, h)?;
            h.restart(step + len)?;
        }
        let start = segment.physical + (at - blocks.start);
        let end = at + u64::from(len);
        match segment.change {
            Change::None => {}
            Change::Convert => {
                convert(store, inode, h, at..end)?;
                if !h.ensure(step + len) {
                    inode.store(store, h)?;
                    h.restart(step + len)?;
                }
            }
            Change::Insert => {
                block_alloc::claim(&store.groups, h, Extent { start, len })?;
                insert(store, h, inode, io, at, Extent { start, len })?;
            }
        }
        for block in at..end {
            let buffer = buffer(store, start + (block - at))?;
            let block_size = store.block_size();
            let slices = io.slices(block * block_size..(block + 1) * block_size);
            let mut content = h.modify(&buffer)?;
            let mut rest: &mut [u8] = &mut content;
            for slice in slices {
                let (front, back) = rest.split_at_mut(slice.len().min(rest.len()));
                front.copy_from_slice(slice.get(..front.len()).unwrap_or_default());
                rest = back;
            }
        }
        raise_disk_size(store, inode, end)?;
    }
    Ok(())
}
