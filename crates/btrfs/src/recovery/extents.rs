//! File extents of the log, their refs and their checksums.

use std::ops::Range;

use sapwood_btrfs_format::{
    FileExtent, Incompat, InodeItem, Key, RegularExtent, compression, kind, objectid,
};
use sapwood_vfs::{FileKind, Ino};

use super::{LogItem, Replay};
use crate::data;
use crate::inode::{Inode, InodeState};
use crate::tree::DataRef;
use crate::{Error, Result};

impl Replay<'_> {
    /// Takes over one extent of a file.
    pub(super) fn extent(&mut self, item: &LogItem) -> Result<()> {
        let (inode, start) = (item.key.objectid, item.key.offset);
        let Some(owner) = self.inode_item(inode)? else {
            return Err(item.bad("its inode does not exist"));
        };
        let extent = FileExtent::parse(&item.data).map_err(|source| item.malformed(source))?;
        let sector = u64::from(self.store.sectorsize);
        let overflow = || item.bad("it ends beyond the largest offset");
        match extent {
            FileExtent::Inline { ram_bytes, .. } => {
                let end = ram_bytes.max(1).checked_next_multiple_of(sector);
                let end = end.ok_or_else(overflow)?;
                self.drop_range(inode, &owner, start..end)?;
                self.root.put(self.h, &item.key, &item.data)?;
                self.add_bytes(inode, ram_bytes)
            }
            FileExtent::Regular(extent) | FileExtent::Prealloc(extent) => {
                let old = self.root.get(&self.store, &item.key)?;
                if old.is_some_and(|old| *old == *item.data) {
                    return Ok(());
                }
                let end = start.checked_add(extent.num_bytes).ok_or_else(overflow)?;
                self.drop_range(inode, &owner, start..end)?;
                let no_holes = self.store.incompat.contains(Incompat::NO_HOLES);
                if extent.is_hole() && no_holes {
                    return Ok(());
                }
                self.root.put(self.h, &item.key, &item.data)?;
                if extent.is_hole() {
                    return Ok(());
                }
                self.add_bytes(inode, extent.num_bytes)?;
                self.add_ref(inode, start, &extent)?;
                self.checksums(&extent)
            }
        }
    }

    /// Drops all extents behind a file's size.
    pub(super) fn cut_extents(&mut self, inode: u64, size: u64) -> Result<()> {
        let sector = u64::from(self.store.sectorsize);
        let (Some(from), Some(owner)) = (
            size.checked_next_multiple_of(sector),
            self.inode_item(inode)?,
        ) else {
            return Ok(());
        };
        self.drop_range(inode, &owner, from..u64::MAX)
    }

    fn drop_range(&mut self, inode: u64, item: &InodeItem, range: Range<u64>) -> Result<()> {
        let tree = self.root.id();
        let mode = item.mode.get();
        let kind = FileKind::from_mode(mode);
        let kind = kind.filter(|kind| matches!(kind, FileKind::Regular | FileKind::Symlink));
        let kind = kind.ok_or(Error::InodeMode {
            tree,
            objectid: inode,
            mode,
        })?;
        let ino = Ino(inode);
        let state = InodeState::from_item(item);
        let file = Inode::new(self.root.clone(), inode, ino, kind, state);
        let dropped = data::drop_extents(self.h, &file, range)?;
        if dropped == 0 {
            return Ok(());
        }
        self.change_inode(inode, |item| {
            item.nbytes = item.nbytes.get().saturating_sub(dropped).into();
        })
    }

    fn add_bytes(&mut self, inode: u64, bytes: u64) -> Result<()> {
        self.change_inode(inode, |item| {
            item.nbytes = item.nbytes.get().saturating_add(bytes).into();
        })
    }

    fn add_ref(&mut self, inode: u64, start: u64, extent: &RegularExtent) -> Result<()> {
        let data = DataRef {
            bytenr: extent.disk_bytenr,
            len: extent.disk_num_bytes,
            parent: None,
            root_id: self.root.id(),
            objectid: inode,
            offset: start.wrapping_sub(extent.offset),
        };
        let space = &self.store.space;
        if self.extents.take_new(extent.disk_bytenr) {
            space.insert_data_extent(self.h, &data)
        } else {
            space.add_data_ref(self.h, &data, 1)
        }
    }

    /// Takes over the checksums that the log has of an extent. What the checksum tree has of the
    /// same sectors goes: items that log one extent in parts may repeat each other.
    fn checksums(&mut self, extent: &RegularExtent) -> Result<()> {
        let range = match extent.compression {
            compression::NONE => {
                let start = extent.disk_bytenr.saturating_add(extent.offset);
                start..start.saturating_add(extent.num_bytes)
            }
            _ => extent.disk_bytenr..extent.disk_bytenr.saturating_add(extent.disk_num_bytes),
        };
        for (logical, sums) in self.logged_checksums(&range)? {
            let sectors = (sums.len() / self.store.checksum.size()) as u64;
            let len = sectors * u64::from(self.store.sectorsize);
            self.store.checksums.delete(self.h, logical, len)?;
            self.store.checksums.insert(self.h, logical, &sums)?;
        }
        Ok(())
    }

    /// Checksums of the log within a logical range: first sector, sums.
    fn logged_checksums(&self, range: &Range<u64>) -> Result<Vec<(u64, Vec<u8>)>> {
        let size = self.store.checksum.size();
        let sector = u64::from(self.store.sectorsize);
        // The longest item is shorter than a leaf: one that reaches into the range begins here.
        let longest = u64::from(self.store.nodesize) / size as u64 * sector;
        let key = |at| Key::new(objectid::EXTENT_CSUM, kind::EXTENT_CSUM, at);
        let mut items = self.log.seek(&key(range.start.saturating_sub(longest)));
        let mut found = Vec::new();
        while let Some(item) = items.next_of(objectid::EXTENT_CSUM, kind::EXTENT_CSUM)? {
            let start = item.key.offset;
            if start >= range.end {
                break;
            }
            let sums = item.data.chunks_exact(size).zip(0u64..);
            let inside = |at: &u64| range.contains(at);
            let mut part: Option<(u64, Vec<u8>)> = None;
            for (sum, nth) in sums {
                let at = start.saturating_add(nth * sector);
                if inside(&at) {
                    let (_, bytes) = part.get_or_insert_with(|| (at, Vec::new()));
                    bytes.extend_from_slice(sum);
                }
            }
            found.extend(part);
        }
        Ok(found)
    }
}
