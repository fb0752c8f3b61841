//! Reads inline extents: small files, and the targets of symbolic links.

use std::sync::Arc;

use sapwood_btrfs_format::{FileExtent, compression as id};

use super::compress;
use super::items::{damaged, key_of};
use super::writeback::Files;
use crate::inode::Inode;
use crate::transaction::Store;
use crate::{Error, Result};

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
