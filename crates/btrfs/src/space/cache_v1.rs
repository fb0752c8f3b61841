//! Drops the v1 space cache, which is valid only while nothing else writes.
//!
//! Facts: the root tree has a header (-11, 0, group) for each group; it names an inode of the
//! root tree whose preallocated extents hold the entries (btrfs documentation, "Free space
//! cache").

use std::sync::Arc;

use sapwood_btrfs_format::{FileExtent, FreeSpaceHeader, Key, kind, objectid};

use super::state::Space;
use super::write::SpaceWrite;
use crate::error::{Error, Result};
use crate::tree::{DataRef, Root};

impl Space {
    /// Whether there is a cache to drop.
    ///
    /// # Errors
    /// Unreadable blocks.
    pub(crate) fn has_v1_cache(&self) -> Result<bool> {
        Ok(self.next_cache_header()?.is_some())
    }

    fn next_cache_header(&self) -> Result<Option<(Key, FreeSpaceHeader)>> {
        let first = Key::new(objectid::FREE_SPACE, 0, 0);
        let cursor = self.trees.root.seek(self, &first)?;
        let Some((key, item)) = cursor.item() else {
            return Ok(None);
        };
        if (key.objectid, key.kind) != (objectid::FREE_SPACE, 0) {
            return Ok(None);
        }
        let root = objectid::ROOT_TREE;
        let header = FreeSpaceHeader::read(item);
        let header = header.map_err(|source| Error::BadItem { root, key, source })?;
        Ok(Some((key, header)))
    }

    /// Drops the cache of at most `limit` groups. Returns whether more are left. The caller sets
    /// the superblock's cache generation to 0.
    ///
    /// # Errors
    /// No space, unreadable blocks; the transaction is aborted then.
    pub(crate) fn drop_v1_cache(&self, h: &mut dyn SpaceWrite, limit: usize) -> Result<bool> {
        for _ in 0..limit {
            let Some((key, header)) = self.next_cache_header()? else {
                return Ok(false);
            };
            if let Err(err) = self.drop_cache_of_group(h, key, &header) {
                h.abort(&err);
                return Err(err);
            }
        }
        Ok(self.next_cache_header()?.is_some())
    }

    fn drop_cache_of_group(
        &self,
        h: &mut dyn SpaceWrite,
        key: Key,
        header: &FreeSpaceHeader,
    ) -> Result<()> {
        let tree: &Arc<Root> = &self.trees.root;
        let inode = header.location.get().objectid;
        let mut cursor = tree.seek(self, &Key::new(inode, kind::EXTENT_DATA, 0))?;
        while let Some((at, item)) = cursor.item() {
            if (at.objectid, at.kind) != (inode, kind::EXTENT_DATA) {
                break;
            }
            let root = objectid::ROOT_TREE;
            let bad = |source| Error::BadItem {
                root,
                key: at,
                source,
            };
            if let FileExtent::Regular(extent) = FileExtent::parse(item).map_err(bad)?
                && extent.disk_bytenr != 0
            {
                let data = DataRef {
                    bytenr: extent.disk_bytenr,
                    len: extent.disk_num_bytes,
                    parent: None,
                    root_id: root,
                    objectid: inode,
                    offset: at.offset.wrapping_sub(extent.offset),
                };
                self.drop_data_ref(h, &data, 1)?;
            }
            cursor.next()?;
        }
        let last = Key::new(inode, u8::MAX, u64::MAX);
        tree.delete_range(h, &Key::new(inode, 0, 0), &last)?;
        tree.delete(h, &key)?;
        Ok(())
    }
}
