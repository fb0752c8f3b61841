//! The items of hash trees of files (fs-verity), and reads that verify.
//!
//! Facts (btrfs on-disk format, `VERITY_DESC_ITEM` and `VERITY_MERKLE_ITEM`): the flags of the inode
//! have VERITY. The first descriptor item, at offset 0, is a [`VerityHeader`] with the size of the
//! descriptor. Further ones, from offset 1 on, have the bytes of the descriptor: the offset of a key
//! is 1 and the position of its first byte. Items of the tree have the bytes of the tree from
//! position 0 on. Linux stores 2048 bytes in an item, and reads items of any size.
//!
//! A read verifies every block that it returns, from the block up to the root hash. Nothing is kept
//! between two reads.

use std::sync::Arc;

use sapwood_btrfs_format::{Key, VerityHeader, kind};
use sapwood_verity::{DESCRIPTOR_MAX, DESCRIPTOR_SIZE, Descriptor, ReadFailure, read_verified};
use sapwood_vfs as vfs;

use super::files::Files;
use super::read::fill;
use crate::inode::Inode;
use crate::transaction::{Handle, Store};
use crate::{Error, Result};

/// Bytes of an item.
pub(crate) const ITEM: usize = 2048;
/// Items that are removed in one handle.
const STEP: usize = 64;

/// The error for a descriptor that is wrong, or content that does not match.
pub(crate) fn failed(inode: &Inode, source: sapwood_verity::Error) -> Error {
    Error::Verity {
        root: inode.root.id(),
        objectid: inode.objectid,
        source,
    }
}

fn bad(inode: &Inode, reason: &'static str) -> Error {
    Error::VerityItems {
        root: inode.root.id(),
        objectid: inode.objectid,
        reason,
    }
}

/// Fills `buf` from items of `kind`, from key offset `from` on.
fn read_items(store: &Store, inode: &Inode, kind: u8, from: u64, mut buf: &mut [u8]) -> Result<()> {
    let short = || bad(inode, "bytes are missing");
    let mut at = from;
    let mut cursor = inode
        .root
        .seek_back(store, &Key::new(inode.objectid, kind, from))?;
    while !buf.is_empty() {
        let (key, data) = cursor.item().ok_or_else(short)?;
        let before = at.checked_sub(key.offset).map(usize::try_from);
        let (Some(Ok(before)), true) = (before, (key.objectid, key.kind) == (inode.objectid, kind))
        else {
            return Err(short());
        };
        let part = data.get(before..).filter(|part| !part.is_empty());
        let part = part.ok_or_else(short)?;
        let count = part.len().min(buf.len());
        let (front, rest) = buf.split_at_mut(count);
        front.copy_from_slice(part.get(..count).unwrap_or_default());
        buf = rest;
        at = at.saturating_add(count as u64);
        cursor.next()?;
    }
    Ok(())
}

/// The descriptor of a file, with its signature. The caller holds `io`.
///
/// # Errors
/// [`vfs::Error::NoAttribute`]; [`Error::VerityItems`]; unreadable blocks.
pub(crate) fn descriptor(store: &Store, inode: &Inode) -> Result<Vec<u8>> {
    if !inode.is_sealed() {
        return Err(vfs::Error::NoAttribute.into());
    }
    let key = Key::new(inode.objectid, kind::VERITY_DESC_ITEM, 0);
    let item = inode.root.get(store, &key)?;
    let header = item.and_then(|item| VerityHeader::read(&item).ok());
    let header = header.ok_or_else(|| bad(inode, "no size of the descriptor"))?;
    if header.encryption != 0 {
        return Err(vfs::Error::NotSupported.into());
    }
    let size = usize::try_from(header.size.get()).unwrap_or(usize::MAX);
    if !(DESCRIPTOR_SIZE..=DESCRIPTOR_MAX).contains(&size) {
        return Err(bad(inode, "the size of the descriptor is wrong"));
    }
    let mut bytes = vec![0; size];
    read_items(store, inode, kind::VERITY_DESC_ITEM, 1, &mut bytes)?;
    Ok(bytes)
}

/// Reads the tree of a file, without verifying it. The caller holds `io`.
///
/// # Errors
/// [`vfs::Error::NoAttribute`]; [`Error::VerityItems`]; unreadable blocks.
pub(crate) fn read_tree(store: &Store, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
    if !inode.is_sealed() {
        return Err(vfs::Error::NoAttribute.into());
    }
    read_items(store, inode, kind::VERITY_MERKLE_ITEM, offset, buf)
}

/// Fills `buf`, which ends at the end of the file or before, with verified bytes.
///
/// # Errors
/// [`Error::Verity`]: a block differs; [`Error::VerityItems`]; the errors of unverified reads.
pub(super) fn read(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    offset: u64,
    buf: &mut [u8],
) -> Result<()> {
    let parsed = Descriptor::parse(&descriptor(files, inode)?);
    let parsed = parsed.map_err(|source| failed(inode, source))?;
    let fits = parsed.params.block_size <= files.sectorsize;
    if parsed.data_size != inode.state.lock().size || !fits {
        return Err(bad(inode, "the descriptor is of another file"));
    }
    let read = &mut |at, piece: &mut [u8]| fill(files, inode, at, piece);
    let read_tree = &mut |at, piece: &mut [u8]| read_tree(files, inode, at, piece);
    read_verified(&parsed, offset, buf, read, read_tree).map_err(|failure| match failure {
        ReadFailure::Read(error) => error,
        ReadFailure::Verity(source) => failed(inode, source),
    })
}

/// Inserts items with bytes of a file's tree, from position `at` on.
///
/// # Errors
/// [`Error::NoSpace`]; unreadable blocks.
pub(crate) fn insert_tree(h: &mut Handle, inode: &Inode, at: u64, bytes: &[u8]) -> Result<()> {
    insert(h, inode, kind::VERITY_MERKLE_ITEM, at, bytes)
}

/// Inserts the items of a file's descriptor.
///
/// # Errors
/// [`Error::NoSpace`]; unreadable blocks.
pub(crate) fn insert_descriptor(h: &mut Handle, inode: &Inode, bytes: &[u8]) -> Result<()> {
    let header = VerityHeader {
        size: (bytes.len() as u64).into(),
        ..VerityHeader::default()
    };
    insert(h, inode, kind::VERITY_DESC_ITEM, 0, header.bytes())?;
    insert(h, inode, kind::VERITY_DESC_ITEM, 1, bytes)
}

fn insert(h: &mut Handle, inode: &Inode, kind: u8, from: u64, bytes: &[u8]) -> Result<()> {
    let items = (from..).step_by(ITEM).zip(bytes.chunks(ITEM));
    let items = items.map(|(at, part)| (Key::new(inode.objectid, kind, at), part.to_vec()));
    inode.root.insert_batch(h, &items.collect::<Vec<_>>())
}

/// Removes the items of a file's tree and descriptor, some in each handle. The caller holds `io`
/// exclusively.
///
/// # Errors
/// Unreadable blocks; [`Error::ReadOnly`].
pub(crate) fn remove(files: &Arc<Files>, inode: &Inode) -> Result<()> {
    let first = Key::new(inode.objectid, kind::VERITY_DESC_ITEM, 0);
    let last = Key::new(inode.objectid, kind::VERITY_MERKLE_ITEM, u64::MAX);
    loop {
        let mut end = None;
        let mut cursor = inode.root.seek(&**files, &first)?;
        for _ in 0..STEP {
            let Some(key) = cursor.key().filter(|key| *key <= last) else {
                break;
            };
            end = Some(key);
            cursor.next()?;
        }
        let Some(end) = end else {
            return Ok(());
        };
        let mut h = files.start_urgent((STEP / 8) as u64)?;
        let removed = inode.root.delete_range(&mut h, &first, &end);
        h.finish(removed)?;
    }
}
