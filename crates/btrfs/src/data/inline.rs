//! Small files that stand in the tree, and the targets of symbolic links.

use std::ops::Range;
use std::sync::Arc;

use sapwood_btrfs_format::{FileExtent, Header, InodeFlags, compression as id};

use super::items::key_of;
use super::writeback::Files;
use super::{compress, damaged, flush};
use crate::file_data::Slice;
use crate::file_data::Target;
use crate::inode::Inode;
use crate::transaction::Store;
use crate::{Error, Result};

/// Bytes of an item's head and of a file extent's in a leaf.
const HEADS: usize = 25 + 21;

/// What a leaf can hold as inline data at most.
fn leaf_limit(store: &Store) -> u64 {
    (store.nodesize as usize - Header::SIZE - HEADS) as u64
}

/// Where a file that is to be written goes if it can stand in the tree: all of it is in this
/// range, it is short enough, and it has no other extents.
pub(super) fn target(
    files: &Arc<Files>,
    inode: &Arc<Inode>,
    range: &Range<u64>,
    data: &[Slice],
) -> Result<Option<Target>> {
    let sector = u64::from(files.sectorsize);
    let (size, flags) = {
        let state = inode.state.lock();
        (state.size, state.flags)
    };
    let limit = u64::from(files.options.max_inline).min(leaf_limit(files));
    if range.start != 0 || range.end > sector || size == 0 || size > sector || limit == 0 {
        return Ok(None);
    }
    // What was preallocated stays so that a later write finds its space.
    if flags.intersects(InodeFlags::NODATACOW | InodeFlags::PREALLOC) {
        return Ok(None);
    }
    if super::items::find(files, inode, sector)?.end != u64::MAX {
        return Ok(None);
    }
    let mut bytes = flush::gather(data);
    bytes.truncate(size as usize);
    if let Some(wanted) = flush::compression(files, inode)? {
        let most = limit.min(size - 1) as usize;
        if let Some(packed) = compress::compress(wanted.how, &bytes, most, sector as usize) {
            flush::use_feature(files, wanted.how);
            return Ok(Some(Target::Inline {
                ram_len: size,
                compression: wanted.how.id(),
                data: packed,
            }));
        }
    }
    // A whole sector gains nothing by standing in the tree.
    if size > limit || size >= sector {
        return Ok(None);
    }
    Ok(Some(Target::Inline {
        ram_len: size,
        compression: id::NONE,
        data: bytes,
    }))
}

/// Bytes of the inline extent of a file, expanded; `None` if it has none.
///
/// # Errors
/// Unreadable blocks, a damaged item.
pub(super) fn read(store: &Store, inode: &Inode) -> Result<Option<Vec<u8>>> {
    let key = key_of(inode, 0);
    let Some(item) = inode.root.get(store, &key)? else {
        return Ok(None);
    };
    let bad = |source| Error::BadItem {
        root: inode.root.id(),
        key,
        source,
    };
    let FileExtent::Inline {
        ram_bytes,
        compression,
        data,
        ..
    } = FileExtent::parse(&item).map_err(bad)?
    else {
        return Ok(None);
    };
    if compression == id::NONE {
        return Ok(Some(data.to_vec()));
    }
    let len = usize::try_from(ram_bytes)
        .ok()
        .filter(|len| *len <= compress::MAX_PIECE);
    let len = len.ok_or_else(|| damaged(inode, 0, "inline data expands to too much"))?;
    let sector = store.sectorsize as usize;
    match compress::decompress(compression, data, len, sector) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(reason) => Err(Error::Compressed {
            root: inode.root.id(),
            objectid: inode.objectid,
            offset: 0,
            reason: reason.to_string(),
        }),
    }
}

/// Target of a symbolic link.
///
/// # Errors
/// Unreadable blocks, a damaged item.
pub(crate) fn read_symlink(files: &Arc<Files>, inode: &Inode) -> Result<Vec<u8>> {
    let mut target =
        read(files, inode)?.ok_or_else(|| damaged(inode, 0, "symbolic link without target"))?;
    let size = inode.state.lock().size;
    target.truncate(usize::try_from(size).unwrap_or(usize::MAX));
    Ok(target)
}
