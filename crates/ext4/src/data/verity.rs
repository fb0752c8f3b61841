//! Hash trees of files (fs-verity).
//!
//! Facts (kernel documentation, `filesystems/ext4/verity.rst`): the tree begins at the first boundary
//! of 64 KiB after the end of the file, in blocks past the file's size. The descriptor begins at the
//! next block. The last 4 bytes of the last block have the size of the descriptor.
//!
//! [`store`] makes the inode an orphan, writes both after the end of the file, whose size stays, and
//! sets the flag in the handle that removes the orphan. After a power cut before that, recovery cuts
//! the file to its size, as for a truncation. Without a journal, a commit is not atomic: a power cut
//! in it can leave an unsealed file with blocks after its end. [`read`] verifies each block that it
//! returns, from the block up to the root hash; it keeps nothing between two reads.

use std::borrow::Cow;
use std::sync::Arc;

use sapwood_ext4_format::InodeFlags;
use sapwood_verity::{DESCRIPTOR_MAX, DESCRIPTOR_SIZE, Descriptor, ReadFailure, read_verified};
use sapwood_vfs as vfs;

use super::read::fill;
use super::truncate::{cut_orphan, truncate};
use super::{flush, inline, write};
use crate::engine::Engine;
use crate::inode::{Inode, STORE_CREDITS};
use crate::map::{self, Mapped};
use crate::volume::Volume;
use crate::{Error, Result, orphan};

/// The tree begins at a multiple of this many bytes.
const BOUNDARY: u64 = 65_536;
/// Bytes of the size of a descriptor.
const SIZE_BYTES: u64 = 4;
/// Bytes that are written at a time.
const PIECE: usize = 1 << 20;

/// Whether the file has a hash tree.
pub(crate) fn is_sealed(inode: &Inode) -> bool {
    inode.flags().contains(InodeFlags::VERITY)
}

fn failed(inode: &Inode) -> impl FnOnce(sapwood_verity::Error) -> Error {
    let ino = inode.ino;
    move |source| Error::Verity { ino, source }
}

fn bad(inode: &Inode, reason: &str) -> Error {
    Error::BadInode {
        ino: inode.ino,
        reason: format!("its hash tree: {reason}"),
    }
}

/// Gives a file a hash tree. The caller holds `io` exclusively, and makes the file durable.
///
/// # Errors
/// [`vfs::Error::Exists`]; [`vfs::Error::NotSupported`] for a file without an extent tree;
/// [`vfs::Error::Invalid`] for a descriptor of another file; [`Error::NoSpace`].
pub(crate) fn store(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    tree: &[u8],
    descriptor: &[u8],
) -> Result<()> {
    if is_sealed(inode) {
        return Err(vfs::Error::Exists.into());
    }
    inode.check_changeable()?;
    let extents = engine.geometry.features();
    let extents = extents.has_incompat(sapwood_ext4_format::Incompat::EXTENTS);
    let plain = InodeFlags::EXTENTS | InodeFlags::INLINE_DATA;
    if !extents || !inode.flags().intersects(plain) {
        return Err(vfs::Error::NotSupported.into());
    }
    let size = inode.size();
    let parsed = Descriptor::parse(descriptor).map_err(failed(inode))?;
    let fits = u64::from(parsed.params.block_size) <= engine.block_size();
    if parsed.data_size != size || descriptor.len() > DESCRIPTOR_MAX || !fits {
        return Err(vfs::Error::Invalid.into());
    }
    begin(engine, inode)?;
    let done = write_all(engine, inode, tree, descriptor)
        .and_then(|()| flush(engine, inode))
        .and_then(|()| seal(engine, inode));
    if done.is_err() && !is_sealed(inode) {
        cut_orphan(engine, inode)?;
    }
    done
}

/// Makes an inode an orphan that has its data on disk, and nothing after the end of the file.
fn begin(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    let size = inode.size();
    if inode.flags().contains(InodeFlags::INLINE_DATA) {
        inline::convert(engine, inode)?;
    }
    write::zero_tail(engine, inode, size)?;
    flush(engine, inode)?;
    // Blocks after the end would follow the descriptor.
    truncate(engine, inode, size)?;
    let h = engine.start(orphan::CREDITS + STORE_CREDITS)?;
    let added = orphan::add(engine, &h, inode).and_then(|()| inode.store(engine, &h));
    engine.abort(added)
}

/// Writes the tree and the descriptor after the end of the file.
fn write_all(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    tree: &[u8],
    descriptor: &[u8],
) -> Result<()> {
    let block = engine.block_size();
    let mut at = inode.size().next_multiple_of(BOUNDARY);
    for piece in tree.chunks(PIECE) {
        let mut piece = Cow::Borrowed(piece);
        if !(piece.len() as u64).is_multiple_of(block) {
            let whole = (piece.len() as u64).next_multiple_of(block);
            piece.to_mut().resize(whole as usize, 0);
        }
        write::write_after_end(engine, inode, at, &piece)?;
        at += piece.len() as u64;
    }
    let end = (at + descriptor.len() as u64 + SIZE_BYTES).next_multiple_of(block);
    let mut last = descriptor.to_vec();
    last.resize(
        usize::try_from(end - at - SIZE_BYTES).unwrap_or_default(),
        0,
    );
    let len = u32::try_from(descriptor.len()).unwrap_or_default();
    last.extend_from_slice(&len.to_le_bytes());
    write::write_after_end(engine, inode, at, &last)
}

/// Sets the flag, and removes the orphan.
fn seal(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    let h = engine.start(orphan::CREDITS + STORE_CREDITS + 1)?;
    let stored = engine
        .set_on_demand(&h, &engine.on_demand.verity)
        .and_then(|()| {
            // One without a name stays an orphan.
            if inode.is_linked() {
                orphan::remove(engine, &h, inode)?;
            }
            {
                let mut state = inode.state.lock();
                let flags = state.raw.flags() | InodeFlags::VERITY;
                state.raw.set_flags(flags);
                state.changed(engine.now());
            }
            inode.store(engine, &h)
        });
    engine.abort(stored)
}

/// The byte after the last block of the file.
fn end(volume: &Volume, inode: &Inode) -> Result<u64> {
    let block = volume.block_size();
    let mut at = inode.size().next_multiple_of(BOUNDARY) / block;
    let mut end = None;
    while at < map::BLOCKS_MAX {
        let run = map::lookup(volume, inode, at, map::BLOCKS_MAX - at)?;
        let next = map::run_end(inode.ino, &run, at, map::BLOCKS_MAX)?;
        if run.what != Mapped::Hole {
            end = Some(next);
        }
        at = next;
    }
    let end = end.ok_or_else(|| bad(inode, "no blocks after the end"))?;
    Ok(end.saturating_mul(block))
}

/// The descriptor of a file, with its signature. The caller holds `io`.
///
/// # Errors
/// [`vfs::Error::NoAttribute`]; [`Error::BadInode`]; errors of the device.
pub(crate) fn descriptor(volume: &Volume, inode: &Arc<Inode>) -> Result<Vec<u8>> {
    if !is_sealed(inode) {
        return Err(vfs::Error::NoAttribute.into());
    }
    let first = inode.size().next_multiple_of(BOUNDARY);
    let place = end(volume, inode)?.saturating_sub(SIZE_BYTES);
    let mut size = [0; SIZE_BYTES as usize];
    fill(volume, inode, place, &mut size)?;
    let size = u32::from_le_bytes(size) as usize;
    if !(DESCRIPTOR_SIZE..=DESCRIPTOR_MAX).contains(&size) {
        return Err(bad(inode, "the size of the descriptor is wrong"));
    }
    let start = place.saturating_sub(size as u64);
    let start = start - start % volume.block_size();
    if start < first {
        return Err(bad(inode, "the descriptor overlaps the file"));
    }
    let mut bytes = vec![0; size];
    fill(volume, inode, start, &mut bytes)?;
    Ok(bytes)
}

/// Reads the tree of a file, without verifying it. The caller holds `io`.
///
/// # Errors
/// [`vfs::Error::NoAttribute`]; errors of the device.
pub(crate) fn read_tree(
    volume: &Volume,
    inode: &Arc<Inode>,
    offset: u64,
    buf: &mut [u8],
) -> Result<()> {
    if !is_sealed(inode) {
        return Err(vfs::Error::NoAttribute.into());
    }
    let first = inode.size().next_multiple_of(BOUNDARY);
    fill(volume, inode, first.saturating_add(offset), buf)
}

/// Fills `buf`, which ends at the end of the file or before, with verified bytes.
///
/// # Errors
/// [`Error::Verity`]: a block differs; [`Error::BadInode`]; errors of the device.
pub(super) fn read(volume: &Volume, inode: &Arc<Inode>, offset: u64, buf: &mut [u8]) -> Result<()> {
    let parsed = Descriptor::parse(&descriptor(volume, inode)?).map_err(failed(inode))?;
    let size = inode.size();
    let block = u64::from(parsed.params.block_size);
    if parsed.data_size != size || block > volume.block_size() {
        return Err(bad(inode, "the descriptor is of another file"));
    }
    let read = &mut |at, piece: &mut [u8]| fill(volume, inode, at, piece);
    let read_tree = &mut |at, piece: &mut [u8]| read_tree(volume, inode, at, piece);
    read_verified(&parsed, offset, buf, read, read_tree).map_err(|failure| match failure {
        ReadFailure::Read(error) => error,
        ReadFailure::Verity(source) => failed(inode)(source),
    })
}
