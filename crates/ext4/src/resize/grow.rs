//! Adds groups, and makes the last group longer.

use sapwood_base::RangeSet;
use sapwood_block::Device;
use sapwood_ext4_format::{
    BitmapKind, Compat, Geometry, GroupDesc, GroupFlags, INDIRECT_DIRECT, Incompat, SuperBlock,
    bitmap, special_ino,
};

use super::image::{Image, places};
use super::meta_groups::{self, border, loses_resize_inode, remove_resize_inode, use_meta_groups};
use super::{ResizeError, Result, journal};

/// Fewest blocks for data in the last group.
const LAST_GROUP_ROOM: u64 = 50;
/// Bytes of one request when a table is zeroed.
const STEP: u64 = 1 << 20;

/// Grows the file system to this many blocks, or fewer if the last group would be too short.
pub(super) fn grow(image: &mut Image, blocks: u64) -> Result<()> {
    let old = image.geometry.clone();
    let Some((_, new)) = larger(&image.sb, &old, blocks)? else {
        return Ok(());
    };
    let loses = loses_resize_inode(&old, &new);
    let borrowed = if loses && !image.has_log() {
        match meta_groups::borrow(image, &old)? {
            // The groups up to the border provide room for a journal.
            None => return in_two_steps(image, &old, blocks),
            some => some,
        }
    } else {
        None
    };
    let Some((sb, new)) = larger(&image.sb, &old, blocks)? else {
        return Ok(());
    };
    image.sb = sb;
    extend_last(image, &old, &new)?;
    let placed = place(&old, &new)?;
    image.geometry = new.clone();
    for (group, place) in (old.group_count()..).zip(&placed.groups) {
        add_group(image, group, *place, &placed.used)?;
    }
    if loses {
        remove_resize_inode(image)?
    } else {
        resize_inode(image)?
    }
    image.commit(None)?;
    if let Some(borrowed) = borrowed {
        journal::give_back(image, borrowed)?;
    }
    image.write_backups(0)
}

/// Grows as far as the classic descriptor table reaches, and then to `blocks`.
///
/// # Errors
/// [`ResizeError::NoJournal`] if the file system has that size already, or if no group has room for
/// a journal; the errors of [`grow`].
fn in_two_steps(image: &mut Image, old: &Geometry, blocks: u64) -> Result<()> {
    let border = border(old);
    let small = u64::from(old.blocks_per_group()) < 2 * journal::ROOM;
    if small || border <= old.blocks_count() || border >= blocks {
        return Err(ResizeError::NoJournal);
    }
    grow(image, border)?;
    grow(image, blocks)
}

/// Overhead of a group at the end of the file system.
pub(super) fn least_last(geometry: &Geometry, group: u32) -> u64 {
    let own = 2 + u64::from(geometry.inode_table_blocks());
    u64::from(geometry.fixed_blocks(group)) + own + LAST_GROUP_ROOM
}

/// The superblock with its new numbers. `None` if the file system cannot grow by so little.
///
/// # Errors
/// [`ResizeError::TooLarge`]; numbers that no superblock can have.
pub(super) fn larger(
    before: &SuperBlock,
    old: &Geometry,
    mut blocks: u64,
) -> Result<Option<(SuperBlock, Geometry)>> {
    if !old.features().has_incompat(Incompat::BIT64) && blocks > u64::from(u32::MAX) {
        let wanted = blocks << old.block_bits();
        let why = "it lacks the feature 64bit";
        return Err(ResizeError::TooLarge { wanted, why });
    }
    loop {
        let mut sb = before.clone();
        let wanted = blocks << old.block_bits();
        let in_groups = blocks - u64::from(old.first_data_block());
        let count = in_groups.div_ceil(u64::from(old.blocks_per_group()));
        let inodes = count.saturating_mul(u64::from(old.inodes_per_group()));
        let why = "too many inodes";
        let inodes = u32::try_from(inodes).map_err(|_| ResizeError::TooLarge { wanted, why })?;
        sb.set_blocks_count(blocks)?;
        sb.inodes_count = inodes.into();
        let needed = further_descriptors(old, count);
        match u64::from(old.reserved_gdt_blocks()).checked_sub(needed) {
            Some(left) => sb.reserved_gdt_blocks = (left as u16).into(),
            None => use_meta_groups(&mut sb, old, wanted)?,
        }
        let kept = before.reserved_blocks_count();
        let share = u128::from(kept) * u128::from(blocks) / u128::from(old.blocks_count());
        sb.set_reserved_blocks_count(u64::try_from(share).unwrap_or(kept))?;
        let new = Geometry::new(&sb)?;
        let last = new.group_count() - 1;
        let short = u64::from(new.group_blocks(last));
        if last >= old.group_count() && short < least_last(&new, last) {
            blocks -= short;
            if blocks <= old.blocks_count() {
                return Ok(None);
            }
            continue;
        }
        set_overhead(&mut sb, old, &new);
        return Ok(Some((sb, new)));
    }
}

/// Blocks by which the classic descriptor table of `old` must grow for this many groups.
fn further_descriptors(old: &Geometry, groups: u64) -> u64 {
    if old.features().has_incompat(Incompat::META_BG) {
        return 0;
    }
    let blocks = groups.div_ceil(old.descs_per_block().into());
    blocks.saturating_sub(old.desc_blocks().into())
}

/// Renews the number of blocks that belong to no file, if it is recorded.
pub(super) fn set_overhead(sb: &mut SuperBlock, old: &Geometry, new: &Geometry) {
    let of = |geometry: &Geometry| -> u64 {
        let own = 2 + u64::from(geometry.inode_table_blocks());
        let groups = 0..geometry.group_count();
        groups
            .map(|group| u64::from(geometry.fixed_blocks(group)) + own)
            .sum()
    };
    let recorded = u64::from(sb.overhead_clusters.get());
    if recorded != 0 {
        let renewed = (recorded + of(new)).saturating_sub(of(old));
        sb.overhead_clusters = u32::try_from(renewed).unwrap_or(0).into();
    }
}

/// Extends the last of the old groups by the blocks that follow it.
fn extend_last(image: &mut Image, old: &Geometry, new: &Geometry) -> Result<()> {
    let last = old.group_count() - 1;
    let (from, to) = (old.group_blocks(last), new.group_blocks(last));
    if to > from {
        bitmap::clear_range(image.bitmap(last)?, from, to);
        let desc = image.desc_mut(last)?;
        let free = desc.free_clusters() + (to - from);
        desc.set_free_clusters(free)?;
    }
    Ok(())
}

/// First blocks of a new group's two bitmaps and table.
#[derive(Clone, Copy)]
pub(super) struct GroupMetadata {
    block_bitmap: u64,
    inode_bitmap: u64,
    table: u64,
}

/// Places of all new groups, and the blocks that they use.
pub(super) struct Placed {
    pub(super) groups: Vec<GroupMetadata>,
    pub(super) used: RangeSet,
}

/// Places the metadata of the new groups: contiguously for each flex group.
///
/// # Errors
/// [`ResizeError::NoRoom`].
pub(super) fn place(old: &Geometry, new: &Geometry) -> Result<Placed> {
    let first = old.group_count();
    let mut used = RangeSet::new();
    for group in first..new.group_count() {
        let start = new.group_first_block(group)?;
        used.insert(start, start + u64::from(new.fixed_blocks(group)));
    }
    let mut groups = Vec::new();
    let mut at = first;
    while at < new.group_count() {
        let end = ((new.flex_of_group(at) + 1) * new.flex_size()).min(new.group_count());
        let from = new.group_first_block(at)?;
        let to = new.group_first_block(end - 1)? + u64::from(new.group_blocks(end - 1));
        let mut take = |len: u64| {
            let gaps = used.gaps(from, to);
            let found = gaps.into_iter().find(|(start, end)| end - start >= len);
            let (start, _) = found.ok_or(ResizeError::NoRoom {
                wanted: new.blocks_count() << new.block_bits(),
            })?;
            used.insert(start, start + len);
            Ok::<u64, ResizeError>(start)
        };
        for _ in at..end {
            groups.push(GroupMetadata {
                block_bitmap: take(1)?,
                inode_bitmap: take(1)?,
                table: take(new.inode_table_blocks().into())?,
            });
        }
        at = end;
    }
    Ok(Placed { groups, used })
}

/// Writes the inode bitmap and the table of a new group, which no reader knows yet, and adds its
/// descriptor and block bitmap.
fn add_group(image: &mut Image, group: u32, place: GroupMetadata, used: &RangeSet) -> Result<()> {
    let geometry = image.geometry.clone();
    let (desc, block_bitmap) = new_group(&*image.device, &geometry, group, place, used)?;
    image.descs.push(desc);
    image.set_bitmap(group, block_bitmap);
    Ok(())
}

/// Writes the inode bitmap and the table of a new group. Returns its descriptor, without the
/// checksum of the block bitmap and its own, and its block bitmap.
///
/// # Errors
/// Errors of the device.
pub(super) fn new_group(
    device: &dyn Device,
    geometry: &Geometry,
    group: u32,
    place: GroupMetadata,
    used: &RangeSet,
) -> Result<(GroupDesc, Vec<u8>)> {
    let first = geometry.group_first_block(group)?;
    let blocks = geometry.group_blocks(group);
    let bits = geometry.block_size() * 8;
    let mut block_bitmap = vec![0; geometry.block_size() as usize];
    for (from, to) in used.within(first, first + u64::from(blocks)) {
        // Within a group, so both fit 32 bits.
        bitmap::set_range(
            &mut block_bitmap,
            (from - first) as u32,
            (to - first) as u32,
        );
    }
    let free = bitmap::count_zero(&block_bitmap, 0, blocks);
    bitmap::set_range(&mut block_bitmap, blocks, bits);
    let mut inode_bitmap = vec![0; geometry.block_size() as usize];
    bitmap::set_range(&mut inode_bitmap, geometry.inodes_per_group(), bits);
    let mut desc = GroupDesc::new(geometry);
    desc.set_block_bitmap(place.block_bitmap)?;
    desc.set_inode_bitmap(place.inode_bitmap)?;
    desc.set_inode_table(place.table)?;
    desc.set_free_clusters(free)?;
    desc.set_free_inodes(geometry.inodes_per_group())?;
    let mut flags = GroupFlags::INODE_ZEROED;
    if geometry.features().group_csum() {
        desc.set_itable_unused(geometry.inodes_per_group())?;
        flags |= GroupFlags::INODE_UNINIT;
    }
    desc.set_flags(flags);
    bitmap::set_bitmap_checksum(BitmapKind::Inode, &inode_bitmap, &mut desc, geometry)?;
    device.write_at(place.inode_bitmap << geometry.block_bits(), &inode_bitmap)?;
    for (start, len) in places(&desc, geometry.inode_table_blocks().into())
        .iter()
        .skip(2)
    {
        zero(device, geometry, *start, *len)?;
    }
    Ok((desc, block_bitmap))
}

/// Makes sure that blocks are zero, without writing into holes.
///
/// # Errors
/// Errors of the device.
pub(super) fn zero(device: &dyn Device, geometry: &Geometry, start: u64, len: u64) -> Result<()> {
    let bits = geometry.block_bits();
    let (mut at, end) = (start << bits, (start + len) << bits);
    let mut buf = vec![0; STEP.min(end - at) as usize];
    while at < end {
        let step = STEP.min(end - at);
        if !device.has_no_data(at, step) {
            let part = buf.get_mut(..step as usize).unwrap_or_default();
            device.read_at(at, part)?;
            if part.iter().any(|byte| *byte != 0) {
                part.fill(0);
                device.write_at(at, part)?;
            }
        }
        at += step;
    }
    Ok(())
}

/// Makes the inode of the blocks reserved for descriptors match the new geometry.
///
/// # Errors
/// Errors of the device; the inode is wrong.
pub(super) fn resize_inode(image: &mut Image) -> Result<()> {
    let geometry = image.geometry.clone();
    if !geometry.features().has_compat(Compat::RESIZE_INODE) {
        return Ok(());
    }
    let mut inode = image.inode(special_ino::RESIZE)?;
    let table = u64::from(inode.block_word(INDIRECT_DIRECT as usize + 1));
    if table == 0 {
        return Ok(());
    }
    let reserved = ReservedBlocks::new(&geometry)?;
    for (number, copies) in reserved.copies {
        image.put(number, copies)?;
    }
    image.put(table, reserved.table)?;
    inode.set_sectors(reserved.sectors, &geometry)?;
    image.put_inode(special_ino::RESIZE, inode)
}

/// The content of the resize inode: a block of pointers to the blocks of group 0 that are reserved
/// for descriptors, each of which names its copies.
pub(super) struct ReservedBlocks {
    /// Content of the block of pointers.
    pub(super) table: Vec<u8>,
    /// The reserved blocks, with their contents.
    pub(super) copies: Vec<(u64, Vec<u8>)>,
    /// Sectors of the inode.
    pub(super) sectors: u64,
}

impl ReservedBlocks {
    /// Those of a file system.
    ///
    /// # Errors
    /// Numbers that the geometry does not allow.
    pub(super) fn new(geometry: &Geometry) -> Result<Self> {
        let backups = (1..geometry.group_count()).filter(|group| geometry.has_super(*group));
        let backups: Vec<u32> = backups.collect();
        let size = geometry.block_size() as usize;
        let first = geometry.super_block() + 1 + u64::from(geometry.desc_blocks());
        let mut table = vec![0; size];
        let mut all = Vec::new();
        let count = u64::from(geometry.reserved_gdt_blocks());
        for n in 0..count {
            let number = first + n;
            let slot = (u64::from(geometry.desc_blocks()) + n) as usize % (size / 4);
            set_pointer(&mut table, slot, number);
            let mut copies = vec![0; size];
            for (slot, group) in backups.iter().enumerate() {
                let copy = geometry.group_first_block(*group)? + (number - geometry.super_block());
                set_pointer(&mut copies, slot, copy);
            }
            all.push((number, copies));
        }
        let blocks = 1 + count * (1 + backups.len() as u64);
        Ok(Self {
            table,
            copies: all,
            sectors: blocks * (u64::from(geometry.block_size()) / 512),
        })
    }
}

/// Stores a block number of 32 bits. Slots past the end are ignored.
fn set_pointer(bytes: &mut [u8], slot: usize, number: u64) {
    if let Some(word) = bytes.get_mut(slot * 4..slot * 4 + 4) {
        word.copy_from_slice(&(number as u32).to_le_bytes());
    }
}
