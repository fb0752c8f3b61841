//! Removes groups, and makes the last group shorter.

use sapwood_ext4_format::{Compat, Geometry, GroupDesc, GroupFlags, Incompat, SuperBlock, bitmap};

use super::grow::{least_last, resize_inode, set_overhead};
use super::image::{Image, places};
use super::relocate::evacuate;
use super::renumber::renumber;
use super::{OnMoved, ResizeError, Result};

/// Blocks that moving may add to maps: this many, and one of this many blocks that are in use.
const SLACK: u64 = 16;
const SLACK_PART: u64 = 2048;

/// Shrinks the file system to this many blocks, or fewer if the last group would be too short.
///
/// # Errors
/// [`ResizeError::NoRoom`], [`ResizeError::Inodes`], [`ResizeError::Pinned`],
/// [`ResizeError::Metadata`], [`ResizeError::Journal`]; errors of the image and of the device. The
/// file system is consistent then. It has its old size, unless only its backups are not written.
pub(super) fn shrink(image: &mut Image, blocks: u64, moved: &mut OnMoved<'_>) -> Result<()> {
    let old = image.geometry.clone();
    let (_, new) = smaller(image, blocks)?;
    let blocks = new.blocks_count();
    let wanted = blocks << new.block_bits();
    let table = u64::from(old.inode_table_blocks());
    for group in 0..new.group_count() {
        let places = places(image.desc(group)?, table);
        if places.iter().any(|(start, len)| start + len > blocks) {
            return Err(ResizeError::Metadata { group, wanted });
        }
    }
    if mmp_end(image) > blocks {
        return Err(ResizeError::Metadata { group: 0, wanted });
    }
    renumber(image, new.group_count(), wanted)?;
    evacuate(image, blocks, moved)?;
    // Moves change the superblock's fields of the journal and of the orphan file.
    let (sb, new) = smaller(image, blocks)?;
    cut(image, sb, &old, &new)?;
    resize_inode(image)?;
    image.commit(None)?;
    image.write_backups(0)
}

/// The end of the block of multiple mount protection, which does not move; 0 if there is none.
fn mmp_end(image: &Image) -> u64 {
    if image.sb.features().has_incompat(Incompat::MMP) {
        image.sb.mmp_block.get().saturating_add(1)
    } else {
        0
    }
}

/// The superblock with its new numbers.
fn smaller(image: &Image, mut blocks: u64) -> Result<(SuperBlock, Geometry)> {
    let old = &image.geometry;
    loop {
        let mut sb = image.sb.clone();
        let per_group = u64::from(old.blocks_per_group());
        let in_groups = blocks.saturating_sub(u64::from(old.first_data_block()));
        let count = in_groups.div_ceil(per_group);
        let wanted = blocks << old.block_bits();
        if count == 0 {
            return Err(ResizeError::NoRoom { wanted });
        }
        sb.set_blocks_count(blocks)?;
        let inodes = count.saturating_mul(u64::from(old.inodes_per_group()));
        sb.inodes_count = u32::try_from(inodes).unwrap_or(u32::MAX).into();
        let kept = u128::from(image.sb.reserved_blocks_count());
        let share = kept * u128::from(blocks) / u128::from(old.blocks_count().max(1));
        sb.set_reserved_blocks_count(u64::try_from(share).unwrap_or(0))?;
        if sb.features().has_compat(Compat::SPARSE_SUPER2) {
            for backup in &mut sb.backup_bgs {
                if u64::from(backup.get()) >= count {
                    *backup = 0.into();
                }
            }
        }
        // Fewer than before, so it fits.
        let table = count.div_ceil(old.descs_per_block().into()) as u32;
        if sb.features().has_compat(Compat::RESIZE_INODE) {
            let given = old.desc_blocks().saturating_sub(table);
            let names = u64::from(old.block_size()) / 4;
            let reserved = u64::from(old.reserved_gdt_blocks()) + u64::from(given);
            sb.reserved_gdt_blocks = u16::try_from(reserved.min(names)).unwrap_or(0).into();
        }
        sb.first_meta_bg = sb.first_meta_bg.get().min(table).into();
        let new = Geometry::new(&sb)?;
        let last = new.group_count() - 1;
        let short = u64::from(new.group_blocks(last));
        let whole = short == u64::from(new.blocks_per_group());
        if !whole && short < least_last(&new, last) {
            if last == 0 {
                return Err(ResizeError::NoRoom { wanted });
            }
            blocks -= short;
            continue;
        }
        set_overhead(&mut sb, old, &new);
        return Ok((sb, new));
    }
}

/// Removes the groups past the end, which no file uses any more.
fn cut(image: &mut Image, sb: SuperBlock, old: &Geometry, new: &Geometry) -> Result<()> {
    let blocks = new.blocks_count();
    let table = u64::from(old.inode_table_blocks());
    for group in new.group_count()..old.group_count() {
        for (start, len) in places(image.desc(group)?, table) {
            let inside = blocks.saturating_sub(start).min(len);
            clear(image, start, inside)?;
        }
    }
    for group in 0..new.group_count() {
        let first = old.group_first_block(group)?;
        let (had, has) = (old.fixed_blocks(group), new.fixed_blocks(group));
        if has < had {
            clear(image, first + u64::from(has), u64::from(had - has))?;
        }
    }
    let last = new.group_count() - 1;
    let (from, to) = (new.group_blocks(last), old.group_blocks(last));
    if from < to {
        let bytes = image.bitmap(last)?;
        bitmap::set_range(bytes, from, to);
        let free = bitmap::count_zero(bytes, 0, from);
        image.desc_mut(last)?.set_free_clusters(free)?;
    }
    for group in new.group_count()..old.group_count() {
        *image.desc_mut(group)? = removed(old, group)?;
    }
    // A kernel that recovers the journal still uses the old descriptors, also those in blocks that
    // the table loses.
    let tables = if image.has_log() {
        old.desc_blocks()
    } else {
        old.desc_blocks().min(new.desc_blocks())
    };
    for index in new.group_count() / new.descs_per_block()..tables {
        let bytes = image.table_block(index)?;
        image.put(old.desc_table_block(index), bytes)?;
    }
    image.forget_groups(new.group_count());
    image.sb = sb;
    image.geometry = new.clone();
    Ok(())
}

/// The descriptor of a group that is removed, for a kernel that recovers the journal during a
/// mount: it continues with the old groups. It finds nothing free in this one, has no reason to
/// read its bitmaps, and requires places of metadata that overlap nothing.
fn removed(old: &Geometry, group: u32) -> Result<GroupDesc> {
    let mut desc = GroupDesc::new(old);
    let first = old.group_first_block(group)? + u64::from(old.fixed_blocks(group));
    desc.set_block_bitmap(first)?;
    desc.set_inode_bitmap(first + 1)?;
    desc.set_inode_table(first + 2)?;
    let mut flags = GroupFlags::INODE_ZEROED;
    if old.features().group_csum() {
        desc.set_itable_unused(old.inodes_per_group())?;
        flags |= GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
    }
    desc.set_flags(flags);
    desc.set_checksum(group, old);
    Ok(desc)
}

/// Clears the bits of blocks that belonged to groups.
fn clear(image: &mut Image, start: u64, len: u64) -> Result<()> {
    for block in start..start + len {
        let (group, bit) = image.geometry.group_of_block(block)?;
        if bitmap::clear_bit(image.bitmap(group)?, bit) {
            let desc = image.desc_mut(group)?;
            let free = desc.free_clusters() + 1;
            desc.set_free_clusters(free)?;
        }
    }
    Ok(())
}

/// Discards all free blocks: moves leave stale bytes.
///
/// # Errors
/// A bitmap is wrong; errors of the device.
pub(super) fn discard_free(image: &mut Image) -> Result<()> {
    let geometry = image.geometry.clone();
    let bits = geometry.block_bits();
    for group in 0..geometry.group_count() {
        let (first, end) = (
            geometry.group_first_block(group)?,
            geometry.group_blocks(group),
        );
        let bitmap = image.bitmap(group)?.clone();
        let mut at = 0;
        while let Some(from) = bitmap::find_next_zero(&bitmap, at, end) {
            at = bitmap::find_next_set(&bitmap, from, end).unwrap_or(end);
            let (start, len) = (first + u64::from(from), u64::from(at - from));
            image.device.discard(start << bits, len << bits)?;
        }
    }
    Ok(())
}

/// The fewest blocks that hold the used space, if this many inodes are free, and the first `groups`
/// groups stay.
pub(super) fn least(image: &Image, inodes: u64, groups: u32) -> Result<u64> {
    let geometry = &image.geometry;
    let count = geometry.group_count();
    let used = u64::from(geometry.inodes_count() - image.sb.free_inodes_count.get());
    let wanted = used
        .saturating_add(inodes)
        .div_ceil(geometry.inodes_per_group().into());
    let wanted = u32::try_from(wanted).unwrap_or(count);
    let mut groups = groups.max(wanted).clamp(1, count);
    let table = u64::from(geometry.inode_table_blocks());
    let free: u64 = image
        .descs
        .iter()
        .map(|desc| u64::from(desc.free_clusters()))
        .sum();
    let used = geometry.blocks_count() - u64::from(geometry.first_data_block()) - free;
    let files = used.saturating_sub(image.system(count)?.bytes());
    let files = files + SLACK + files / SLACK_PART;
    let per_group = u64::from(geometry.blocks_per_group());
    loop {
        let end = geometry.group_first_block(groups - 1)?;
        // Blocks of removed groups stay in use until the end.
        let mut system = image.system(groups)?;
        let mut kept = end.max(mmp_end(image));
        for group in 0..groups {
            for (start, len) in places(image.desc(group)?, table) {
                kept = kept.max(start + len);
            }
        }
        for group in groups..count {
            for (start, len) in places(image.desc(group)?, table) {
                if start < end + per_group {
                    system.insert(start, start + len);
                }
            }
        }
        let need = u64::from(geometry.first_data_block()) + system.bytes() + files;
        let need = need.max(kept).max(end + least_last(geometry, groups - 1));
        if need <= end + per_group || groups == count {
            return Ok(need);
        }
        groups += 1;
    }
}
