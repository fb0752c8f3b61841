//! Reads files: memory over disk. Finds data and holes.
//!
//! Dirty and in-flight data is copied from memory. The rest is stable while the caller holds `io`,
//! so it is looked up and read without a lock, directly into the caller's buffer.

use std::ops::Range;
use std::sync::Arc;

use sapwood_ext4_format::InodeFlags;
use sapwood_vfs as vfs;

use super::{inline, verity};
use crate::Result;
use crate::inode::Inode;
use crate::map::{self, Mapped};
use crate::store::Store;
use crate::volume::Volume;

/// Reads up to `buf.len()` bytes at `offset`; returns how many (fewer only at the end of the file).
/// The caller holds `io` shared.
///
/// # Errors
/// The map or the inline data is damaged; errors of the device.
pub(crate) fn read(
    volume: &Volume,
    inode: &Arc<Inode>,
    offset: u64,
    buf: &mut [u8],
) -> Result<usize> {
    let (size, flags) = {
        let state = inode.state.lock();
        (state.size, state.raw.flags())
    };
    let len = size.saturating_sub(offset).min(buf.len() as u64) as usize;
    let buf = buf.get_mut(..len).unwrap_or_default();
    if flags.contains(InodeFlags::ENCRYPT) {
        return Err(vfs::Error::NotSupported.into());
    }
    if flags.contains(InodeFlags::INLINE_DATA) {
        inline::read_at(volume, inode, offset, buf)?;
    } else if flags.contains(InodeFlags::VERITY) {
        if !buf.is_empty() {
            verity::read(volume, inode, offset, buf)?;
        }
    } else {
        ask_ahead(volume, inode, offset..offset + len as u64, size);
        fill(volume, inode, offset, buf)?;
    }
    Ok(len)
}

/// For a sequential reader, asks the device to read ahead. The device does the work in the
/// background; there is no cache of data here.
fn ask_ahead(volume: &Volume, inode: &Inode, read: Range<u64>, size: u64) {
    let asked = inode.data.state.lock().ahead.note(&read);
    let Some(range) = asked.map(|range| range.start..range.end.min(size)) else {
        return;
    };
    // The thread that reads there reports errors of the map.
    for piece in pieces(volume, inode, range).unwrap_or_default() {
        if let Some(at) = piece.device {
            volume.device.will_read(at, piece.len);
        }
    }
}

/// Reads `buf.len()` bytes at `offset` of a file in blocks, wherever it ends; bytes without a block
/// are zero.
pub(super) fn fill(volume: &Volume, inode: &Arc<Inode>, offset: u64, buf: &mut [u8]) -> Result<()> {
    if buf.is_empty() {
        return Ok(());
    }
    let end = offset.saturating_add(buf.len() as u64);
    let gaps: Vec<Range<u64>> = {
        let state = inode.data.state.lock();
        if state.bytes() > 0 {
            state.in_flight.read(offset, buf);
            state.dirty.read(offset, buf);
        }
        let gaps = state.dirty.gaps(offset..end);
        gaps.into_iter()
            .flat_map(|gap| state.in_flight.gaps(gap))
            .collect()
    };
    for gap in gaps {
        let target = buf.get_mut((gap.start - offset) as usize..(gap.end - offset) as usize);
        read_disk(volume, inode, gap, target.unwrap_or_default())?;
    }
    Ok(())
}

/// Bytes of the file that are side by side on the device.
struct Piece {
    /// Byte on the device; `None`: zeros.
    device: Option<u64>,
    len: u64,
}

/// Reads a range as the map has it.
fn read_disk(volume: &Volume, inode: &Inode, range: Range<u64>, buf: &mut [u8]) -> Result<()> {
    let journaled = inode.is_journaled(volume);
    let mut rest = buf;
    for piece in pieces(volume, inode, range)? {
        let (front, back) = rest.split_at_mut(piece.len.min(rest.len() as u64) as usize);
        match piece.device {
            None => front.fill(0),
            Some(at) if journaled => read_journaled(volume, at, front)?,
            Some(at) => volume.device.read_at(at, front)?,
        }
        rest = back;
    }
    Ok(())
}

/// Fills `buf` from byte `at` of the device, or with newer content in the cache.
fn read_journaled(store: &Store, at: u64, buf: &mut [u8]) -> Result<()> {
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

/// Cuts a range by the place of its bytes; bytes that are contiguous on the device are one piece.
fn pieces(volume: &Volume, inode: &Inode, range: Range<u64>) -> Result<Vec<Piece>> {
    let block_size = volume.block_size();
    let last = range.end.div_ceil(block_size);
    let mut pieces: Vec<Piece> = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let block = at / block_size;
        let run = map::lookup(volume, inode, block, last - block)?;
        let end = map::run_end(inode.ino, &run, block, last)?;
        let end = end.saturating_mul(block_size).min(range.end);
        let device = match run.what {
            Mapped::Written(physical) => physical
                .checked_mul(block_size)
                .map(|start| start + at % block_size),
            Mapped::Hole | Mapped::Unwritten(_) => None,
        };
        let len = end - at;
        at = end;
        match pieces.last_mut() {
            Some(last) if follows(last, device) => last.len += len,
            _ => pieces.push(Piece { device, len }),
        }
    }
    Ok(pieces)
}

fn follows(piece: &Piece, device: Option<u64>) -> bool {
    match (piece.device, device) {
        (Some(start), Some(next)) => start.checked_add(piece.len) == Some(next),
        (None, None) => true,
        _ => false,
    }
}

/// Whether the byte at `at` is data, and up to where that is known to continue; inline data is
/// data. The caller holds `io`.
///
/// # Errors
/// The map is damaged.
pub(crate) fn stretch(store: &Store, inode: &Inode, at: u64, size: u64) -> Result<(bool, u64)> {
    if inode.flags().contains(InodeFlags::INLINE_DATA) {
        return Ok((true, size));
    }
    let next = {
        let state = inode.data.state.lock();
        let dirty = state.dirty.covered(at..u64::MAX).next();
        let io = state.in_flight.covered(at..u64::MAX).next();
        dirty.into_iter().chain(io).min_by_key(|part| part.start)
    };
    if let Some(part) = next.clone().filter(|part| part.start <= at) {
        return Ok((true, part.end));
    }
    let limit = next.map_or(u64::MAX, |part| part.start);
    let block_size = store.block_size();
    let (block, end) = (at / block_size, size.div_ceil(block_size));
    let run = map::lookup(store, inode, block, end - block)?;
    let run_end = map::run_end(inode.ino, &run, block, end)?;
    let is_data = matches!(run.what, Mapped::Written(_));
    Ok((is_data, run_end.saturating_mul(block_size).min(limit)))
}
