//! Checks of chunks, devices, block groups and free space.

use super::item::{Check, Checked, ItemProblem, at_most};
use crate::{
    BlockGroupFlags, BlockGroupItem, ChunkItem, DevExtent, DevItem, FreeSpaceInfo, kind, objectid,
};

/// Bytes of a stripe element; all images so far have this value.
const STRIPE_LEN: u64 = 64 << 10;

fn check_flags(flags: BlockGroupFlags) -> Checked {
    let known = BlockGroupFlags::TYPE_MASK | BlockGroupFlags::PROFILE_MASK;
    let content = flags.content();
    let mixed = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
    let one_profile = flags.profile().bits().count_ones() <= 1;
    let good_content = content.bits().count_ones() == 1 || content == mixed;
    if known.contains(flags) && one_profile && good_content {
        return Ok(());
    }
    Err(ItemProblem::Flags {
        field: "block group flags",
        flags: flags.bits(),
    })
}

fn check_stripes(chunk: &ChunkItem) -> Checked {
    let count = chunk.stripes.len();
    let good = match chunk.flags.profile() {
        BlockGroupFlags::RAID0 => count >= 1,
        BlockGroupFlags::RAID1 | BlockGroupFlags::DUP => count == 2,
        BlockGroupFlags::RAID1C3 => count == 3,
        BlockGroupFlags::RAID1C4 => count == 4,
        BlockGroupFlags::RAID10 => count >= 2 && count.is_multiple_of(2) && chunk.sub_stripes == 2,
        BlockGroupFlags::RAID5 => count >= 2,
        BlockGroupFlags::RAID6 => count >= 3,
        _ => count == 1,
    };
    if good {
        return Ok(());
    }
    let (sub_stripes, flags) = (chunk.sub_stripes, chunk.flags.bits());
    Err(ItemProblem::Stripes {
        stripes: count,
        sub_stripes,
        flags,
    })
}

/// Checks a chunk at a logical address, from the chunk tree or the superblock.
pub(super) fn check_chunk(logical: u64, chunk: &ChunkItem, sectorsize: u32) -> Checked {
    let unit = u64::from(sectorsize);
    let aligned = |field, value| {
        if super::item::aligned(value, unit) {
            Ok(())
        } else {
            Err(ItemProblem::Misaligned { field, value, unit })
        }
    };
    aligned("chunk address", logical)?;
    aligned("chunk length", chunk.length)?;
    if chunk.length == 0 {
        return Err(ItemProblem::Field {
            field: "chunk length",
            value: 0,
        });
    }
    let (start, length) = (logical, chunk.length);
    if start.checked_add(length).is_none() {
        return Err(ItemProblem::Overflow {
            field: "chunk",
            start,
            length,
        });
    }
    if chunk.stripe_len != STRIPE_LEN {
        return Err(ItemProblem::Field {
            field: "stripe_len",
            value: chunk.stripe_len,
        });
    }
    if chunk.sector_size != sectorsize {
        let value = chunk.sector_size.into();
        return Err(ItemProblem::Field {
            field: "sector_size",
            value,
        });
    }
    check_flags(chunk.flags)?;
    check_stripes(chunk)?;
    for stripe in &chunk.stripes {
        aligned("stripe offset", stripe.offset)?;
        let (start, length) = (stripe.offset, chunk.length);
        if start.checked_add(length).is_none() {
            return Err(ItemProblem::Overflow {
                field: "stripe",
                start,
                length,
            });
        }
    }
    Ok(())
}

impl Check<'_> {
    pub(super) fn chunk_item(&self) -> Checked {
        self.objectid(objectid::FIRST_CHUNK_TREE)?;
        let chunk = ChunkItem::parse(self.data)?;
        check_chunk(self.key.offset, &chunk, self.expect.sectorsize)?;
        match self.previous {
            Some((key, data)) if key.kind == kind::CHUNK_ITEM => {
                let end = key.offset.saturating_add(ChunkItem::parse(data)?.length);
                self.after(self.key.offset, end)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn dev_item(&self) -> Checked {
        self.objectid(objectid::DEV_ITEMS)?;
        self.size(DevItem::SIZE)?;
        let dev = DevItem::read(self.data)?;
        if dev.devid.get() != self.key.offset {
            return Err(ItemProblem::Field {
                field: "devid",
                value: dev.devid.get(),
            });
        }
        at_most("bytes_used", dev.bytes_used.get(), dev.total_bytes.get())
    }

    pub(super) fn dev_extent(&self) -> Checked {
        self.size(DevExtent::SIZE)?;
        let extent = DevExtent::read(self.data)?;
        self.range("device extent", self.key.offset, extent.length.get())?;
        self.sector_aligned("chunk_offset", extent.chunk_offset.get())?;
        for (field, value, expected) in [
            ("chunk_tree", extent.chunk_tree.get(), objectid::CHUNK_TREE),
            (
                "chunk_objectid",
                extent.chunk_objectid.get(),
                objectid::FIRST_CHUNK_TREE,
            ),
        ] {
            if value != expected {
                return Err(ItemProblem::Field { field, value });
            }
        }
        match self.previous {
            Some((key, data))
                if key.kind == kind::DEV_EXTENT && key.objectid == self.key.objectid =>
            {
                let length = DevExtent::read(data)?.length.get();
                self.after(self.key.offset, key.offset.saturating_add(length))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn block_group(&self) -> Checked {
        self.size(BlockGroupItem::SIZE)?;
        self.range("block group", self.key.objectid, self.key.offset)?;
        let group = BlockGroupItem::read(self.data)?;
        at_most("used", group.used.get(), self.key.offset)?;
        if group.chunk_objectid.get() != objectid::FIRST_CHUNK_TREE {
            let value = group.chunk_objectid.get();
            return Err(ItemProblem::Field {
                field: "chunk_objectid",
                value,
            });
        }
        check_flags(BlockGroupFlags::from_bits_retain(group.flags.get()))
    }

    pub(super) fn free_space_info(&self) -> Checked {
        self.size(FreeSpaceInfo::SIZE)?;
        self.range("block group", self.key.objectid, self.key.offset)?;
        let info = FreeSpaceInfo::read(self.data)?;
        if !info.info_flags().unknown().is_empty() {
            let flags = info.flags.get().into();
            return Err(ItemProblem::Flags {
                field: "free space flags",
                flags,
            });
        }
        Ok(())
    }

    pub(super) fn free_space(&self) -> Checked {
        self.range("free space", self.key.objectid, self.key.offset)?;
        let bits = self.key.offset / u64::from(self.expect.sectorsize).max(1);
        if self.key.kind == kind::FREE_SPACE_EXTENT {
            self.size(0)?;
        } else {
            self.size(usize::try_from(bits.div_ceil(8)).unwrap_or(usize::MAX))?;
        }
        match self.previous {
            Some((key, _))
                if matches!(key.kind, kind::FREE_SPACE_EXTENT | kind::FREE_SPACE_BITMAP) =>
            {
                self.after(self.key.objectid, key.objectid.saturating_add(key.offset))
            }
            _ => Ok(()),
        }
    }
}
