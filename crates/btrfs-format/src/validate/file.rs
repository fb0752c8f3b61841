//! Checks of items in subvolume and log trees, and of root items.

use super::item::{Check, Checked, ItemProblem, at_most};
use crate::{
    DirItemRef, DirLogItem, FileExtent, FileExtentHeader, InodeItem, Key, NAME_MAX, RegularExtent,
    RootItem, compression, dir_items, extref_hash, file_type, inode_extrefs, inode_refs, kind,
    name_hash, objectid, root_ref,
};

/// Most bytes of a compressed extent, in memory or on disk.
const MAX_COMPRESSED: u64 = 128 << 10;

fn is_inode(id: u64) -> bool {
    (objectid::FIRST_FREE..=objectid::LAST_FREE).contains(&id)
        || id == objectid::ROOT_TREE_DIR
        || id == objectid::FREE_INO
}

/// Checks a name that a path can contain (or `..`, which the top directory's ref has).
fn check_name(name: &[u8]) -> Checked {
    let len = name.len();
    if len == 0 || len > NAME_MAX || name.contains(&b'/') || name.contains(&0) {
        return Err(ItemProblem::Name { len });
    }
    Ok(())
}

impl Check<'_> {
    /// Checks that an item of an inode follows its inode item or another item of that inode. Log
    /// trees have items of directories without their inode.
    fn follows_inode(&self) -> Checked {
        let owner = self.header.owner.get();
        match self.previous {
            Some((key, _)) if objectid::is_fs_tree(owner) && key.objectid != self.key.objectid => {
                Err(ItemProblem::NoInode)
            }
            _ => Ok(()),
        }
    }

    fn inode_objectid(&self) -> Checked {
        let found = self.key.objectid;
        if is_inode(found) {
            Ok(())
        } else {
            Err(ItemProblem::KeyObjectid { found })
        }
    }

    pub(super) fn inode_item(&self) -> Checked {
        self.size(InodeItem::SIZE)?;
        self.inode_objectid()?;
        if self.key.offset != 0 {
            return Err(ItemProblem::KeyOffset {
                found: self.key.offset,
            });
        }
        let inode = InodeItem::read(self.data)?;
        self.generation("generation", inode.generation.get())?;
        self.generation("transid", inode.transid.get())?;
        let mode = inode.mode.get();
        let kind = file_type::from_mode(mode);
        if mode & !0o177_777 != 0 || kind == file_type::UNKNOWN {
            return Err(ItemProblem::Mode { mode });
        }
        if kind == file_type::DIR && inode.nlink.get() > 1 {
            return Err(ItemProblem::Field {
                field: "nlink",
                value: inode.nlink.get().into(),
            });
        }
        if !inode.inode_flags().unknown().is_empty() {
            return Err(ItemProblem::Flags {
                field: "inode flags",
                flags: inode.flags.get(),
            });
        }
        // Offsets are signed 64-bit numbers in every interface.
        at_most("size", inode.size.get(), i64::MAX as u64)
    }

    pub(super) fn inode_ref(&self) -> Checked {
        self.follows_inode()?;
        self.size_unit(1)?;
        inode_refs(self.data).try_for_each(|entry| check_name(entry?.name))
    }

    pub(super) fn inode_extref(&self) -> Checked {
        self.follows_inode()?;
        self.size_unit(1)?;
        inode_extrefs(self.data).try_for_each(|entry| {
            let entry = entry?;
            check_name(entry.name)?;
            self.hash(extref_hash(entry.parent, entry.name))
        })
    }

    fn hash(&self, expected: u64) -> Checked {
        let found = self.key.offset;
        if found == expected {
            Ok(())
        } else {
            Err(ItemProblem::NameHash { expected, found })
        }
    }

    pub(super) fn dir_item(&self) -> Checked {
        self.follows_inode()?;
        self.size_unit(1)?;
        let mut count = 0;
        for entry in dir_items(self.data) {
            let entry = entry?;
            if self.key.kind == kind::XATTR_ITEM {
                check_xattr(&entry)?;
            } else {
                check_dir_entry(&entry)?;
            }
            if self.key.kind != kind::DIR_INDEX {
                self.hash(name_hash(entry.name).into())?;
            }
            self.generation("transid", entry.transid)?;
            count += 1;
        }
        if self.key.kind == kind::DIR_INDEX && count != 1 {
            return Err(ItemProblem::Field {
                field: "entries of an index",
                value: count,
            });
        }
        Ok(())
    }

    pub(super) fn orphan_item(&self) -> Checked {
        self.objectid(objectid::ORPHAN)?;
        self.size(0)
    }

    pub(super) fn dir_log(&self) -> Checked {
        self.size(DirLogItem::SIZE)?;
        let end = DirLogItem::read(self.data)?.end.get();
        if end >= self.key.offset {
            return Ok(());
        }
        Err(ItemProblem::Field {
            field: "end of range",
            value: end,
        })
    }

    pub(super) fn extent_data(&self) -> Checked {
        self.follows_inode()?;
        self.inode_objectid()?;
        self.sector_aligned("file offset", self.key.offset)?;
        let extent = FileExtent::parse(self.data)?;
        let head = FileExtentHeader::read(self.data)?;
        if compression::name(head.compression).is_none() {
            let value = head.compression.into();
            return Err(ItemProblem::Field {
                field: "compression",
                value,
            });
        }
        if head.encryption != 0 {
            let value = head.encryption.into();
            return Err(ItemProblem::Field {
                field: "encryption",
                value,
            });
        }
        self.generation("generation", head.generation.get())?;
        match extent {
            FileExtent::Inline {
                ram_bytes,
                compression,
                data,
                ..
            } => {
                self.inline_extent(ram_bytes, compression, data)?;
            }
            FileExtent::Regular(extent) | FileExtent::Prealloc(extent) => {
                self.regular_extent(&extent)?;
            }
        }
        match self.previous {
            Some((key, data))
                if key.kind == kind::EXTENT_DATA && key.objectid == self.key.objectid =>
            {
                self.after(self.key.offset, self.extent_end(&key, data)?)
            }
            _ => Ok(()),
        }
    }

    fn inline_extent(&self, ram_bytes: u64, compression: u8, data: &[u8]) -> Checked {
        if self.key.offset != 0 {
            return Err(ItemProblem::KeyOffset {
                found: self.key.offset,
            });
        }
        if compression != compression::NONE {
            return at_most("ram_bytes", ram_bytes, MAX_COMPRESSED);
        }
        if ram_bytes == data.len() as u64 {
            return Ok(());
        }
        Err(ItemProblem::Field {
            field: "ram_bytes",
            value: ram_bytes,
        })
    }

    fn regular_extent(&self, extent: &RegularExtent) -> Checked {
        self.range("num_bytes", self.key.offset, extent.num_bytes)?;
        self.sector_aligned("ram_bytes", extent.ram_bytes)?;
        self.sector_aligned("offset", extent.offset)?;
        self.sector_aligned("disk_bytenr", extent.disk_bytenr)?;
        self.sector_aligned("disk_num_bytes", extent.disk_num_bytes)?;
        if extent.is_hole() {
            return Ok(());
        }
        self.range("disk_bytenr", extent.disk_bytenr, extent.disk_num_bytes)?;
        let (start, length) = (extent.offset, extent.num_bytes);
        let field = "offset";
        let end = start.checked_add(length).ok_or(ItemProblem::Overflow {
            field,
            start,
            length,
        })?;
        if extent.compression == compression::NONE {
            // ram_bytes is not always correct in uncompressed extents.
            return at_most("offset + num_bytes", end, extent.disk_num_bytes);
        }
        at_most("ram_bytes", extent.ram_bytes, MAX_COMPRESSED)?;
        at_most("disk_num_bytes", extent.disk_num_bytes, MAX_COMPRESSED)?;
        at_most("offset + num_bytes", end, extent.ram_bytes)
    }

    /// Offset in the file at which an extent ends. An inline extent fills its sector.
    fn extent_end(&self, key: &Key, data: &[u8]) -> Result<u64, ItemProblem> {
        let extent = FileExtent::parse(data)?;
        let mut length = extent.len();
        if matches!(extent, FileExtent::Inline { .. }) {
            let unit = u64::from(self.expect.sectorsize).max(1);
            length = length.div_ceil(unit).saturating_mul(unit);
        }
        Ok(key.offset.saturating_add(length))
    }

    pub(super) fn csum_item(&self) -> Checked {
        self.objectid(objectid::EXTENT_CSUM)?;
        self.sector_aligned("key offset", self.key.offset)?;
        self.size_unit(self.expect.checksum.size())?;
        let end = self.csum_end(&self.key, self.data);
        if end.is_none() {
            return Err(ItemProblem::KeyOffset {
                found: self.key.offset,
            });
        }
        match self.previous {
            Some((key, data)) if key.kind == kind::EXTENT_CSUM => self.after(
                self.key.offset,
                self.csum_end(&key, data).unwrap_or(u64::MAX),
            ),
            _ => Ok(()),
        }
    }

    fn csum_end(&self, key: &Key, data: &[u8]) -> Option<u64> {
        let sectors = (data.len() / self.expect.checksum.size()) as u64;
        key.offset
            .checked_add(sectors.checked_mul(self.expect.sectorsize.into())?)
    }

    pub(super) fn root_item(&self) -> Checked {
        let root = RootItem::parse(self.data)?;
        if self.key.objectid == 0 {
            return Err(ItemProblem::KeyObjectid { found: 0 });
        }
        self.generation("generation", root.generation.get())?;
        self.generation("generation_v2", root.generation_v2.get())?;
        self.generation("last_snapshot", root.last_snapshot.get())?;
        self.sector_aligned("bytenr", root.bytenr.get())?;
        let max = crate::block::MAX_LEVEL.into();
        at_most("level", root.level.into(), max)?;
        at_most("drop_level", root.drop_level.into(), max)?;
        if !root.root_flags().unknown().is_empty() {
            return Err(ItemProblem::Flags {
                field: "root flags",
                flags: root.flags.get(),
            });
        }
        Ok(())
    }

    pub(super) fn root_ref(&self) -> Checked {
        check_name(root_ref(self.data)?.name)
    }
}

fn check_xattr(entry: &DirItemRef<'_>) -> Checked {
    if entry.kind != file_type::XATTR {
        return Err(ItemProblem::FileType { found: entry.kind });
    }
    if entry.location != Key::MIN {
        return Err(ItemProblem::Location {
            location: entry.location,
        });
    }
    let len = entry.name.len();
    if len == 0 || len > NAME_MAX || entry.name.contains(&0) {
        return Err(ItemProblem::Name { len });
    }
    Ok(())
}

fn check_dir_entry(entry: &DirItemRef<'_>) -> Checked {
    if entry.kind >= file_type::XATTR {
        return Err(ItemProblem::FileType { found: entry.kind });
    }
    let location = entry.location;
    let inode = location.kind == kind::INODE_ITEM && location.offset == 0;
    let tree = location.kind == kind::ROOT_ITEM;
    if !(inode && is_inode(location.objectid) || tree && location.objectid != 0) {
        return Err(ItemProblem::Location { location });
    }
    if !entry.data.is_empty() {
        return Err(ItemProblem::Field {
            field: "data_len",
            value: entry.data.len() as u64,
        });
    }
    if matches!(entry.name, b"." | b"..") {
        return Err(ItemProblem::Name {
            len: entry.name.len(),
        });
    }
    check_name(entry.name)
}
