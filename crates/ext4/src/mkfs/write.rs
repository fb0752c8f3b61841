//! Writes the planned file system to the device.

use sapwood_block::{Device, signature};
use sapwood_ext4_format::{
    BitmapKind, Geometry, GroupDesc, GroupFlags, SUPER_OFFSET, SuperBlock, SuperState, bitmap,
    special_ino,
};

use super::error::MkfsError;
use super::files::Files;
use super::layout::{GroupPlace, Layout, Run};
use super::map::Block;
use super::options::MkfsOptions;

/// Most bytes of one read or write when zeroing.
const STEP: u64 = 1 << 20;

/// Descriptors of all groups, and the bitmaps to write.
struct Groups {
    descs: Vec<GroupDesc>,
    bitmaps: Vec<Block>,
}

/// Builds everything that depends on locations, then writes everything.
pub(super) fn write(
    device: &dyn Device,
    options: &MkfsOptions,
    mut sb: SuperBlock,
    layout: &Layout,
    files: &Files,
) -> Result<(), MkfsError> {
    let geometry = &layout.geometry;
    let groups = groups(options, layout, files)?;
    finish_super(&mut sb, layout, files, &groups)?;
    let tables = tables(layout, files, &groups)?;
    let table_blocks = descriptor_table(geometry, &groups.descs)?;
    if options.discard {
        // If the device cannot discard, nothing needs to be discarded.
        let _ = device.discard(0, geometry.blocks_count() << geometry.block_bits());
    }
    signature::wipe(device)?;
    device.flush()?;
    for run in &files.zeros {
        zero(device, geometry, run)?;
    }
    zero_tables(device, options, layout)?;
    for (number, bytes) in tables.iter().chain(&groups.bitmaps).chain(&files.blocks) {
        device.write_at(geometry.block_offset(*number)?, bytes)?;
    }
    for (index, bytes) in (0..).zip(&table_blocks) {
        let copies = geometry.desc_table_backups(index);
        for number in copies.into_iter().chain([geometry.desc_table_block(index)]) {
            device.write_at(geometry.block_offset(number)?, bytes)?;
        }
    }
    for group in 1..geometry.group_count() {
        if let Some(number) = geometry.backup_super_block(group) {
            let mut copy = sb.clone();
            // Numbers beyond 16 bits do not fit; nothing uses them.
            copy.block_group_nr = (group as u16).into();
            // A copy is never marked valid, because nothing updates it.
            copy.set_state(copy.state() - SuperState::VALID);
            copy.set_checksum();
            device.write_at(geometry.block_offset(number)?, copy.bytes())?;
        }
    }
    device.flush()?;
    sb.set_checksum();
    device.write_fua(SUPER_OFFSET, sb.bytes())?;
    Ok(device.flush()?)
}

/// Whether inode tables are left unchanged: only descriptors with checksums can record this.
fn lazy(options: &MkfsOptions, geometry: &Geometry) -> bool {
    options.lazy_itable_init && geometry.features().group_csum()
}

/// Number of a group's inodes in use, which are its first ones.
fn inodes_used(geometry: &Geometry, group: u32, last: u32) -> u32 {
    let before = group.saturating_mul(geometry.inodes_per_group());
    last.saturating_sub(before).min(geometry.inodes_per_group())
}

fn groups(options: &MkfsOptions, layout: &Layout, files: &Files) -> Result<Groups, MkfsError> {
    let mut all = Groups {
        descs: Vec::new(),
        bitmaps: Vec::new(),
    };
    for (group, place) in (0..).zip(&layout.places) {
        let desc = one_group(options, layout, files, group, place, &mut all.bitmaps)?;
        all.descs.push(desc);
    }
    Ok(all)
}

/// Builds a group's descriptor. Bitmaps to write are added to `bitmaps`.
fn one_group(
    options: &MkfsOptions,
    layout: &Layout,
    files: &Files,
    group: u32,
    place: &GroupPlace,
    bitmaps: &mut Vec<Block>,
) -> Result<GroupDesc, MkfsError> {
    let geometry = &layout.geometry;
    let used = inodes_used(geometry, group, files.last_inode());
    let mut desc = GroupDesc::new(geometry);
    desc.set_block_bitmap(place.block_bitmap)?;
    desc.set_inode_bitmap(place.inode_bitmap)?;
    desc.set_inode_table(place.inode_table)?;
    desc.set_free_clusters(layout.free_in(group)?)?;
    desc.set_free_inodes(geometry.inodes_per_group() - used)?;
    let is_here = |ino: u32| {
        geometry
            .inode_location(ino)
            .is_ok_and(|(at, _)| at == group)
    };
    let dirs = [special_ino::ROOT, special_ino::LOST_FOUND];
    desc.set_used_dirs(dirs.into_iter().filter(|ino| is_here(*ino)).count() as u32)?;
    let mut flags = GroupFlags::empty();
    flags.set(GroupFlags::INODE_ZEROED, !lazy(options, geometry));
    if geometry.features().group_csum() {
        desc.set_itable_unused(geometry.inodes_per_group() - used)?;
        flags.set(GroupFlags::INODE_UNINIT, used == 0);
        // The last group always has a written bitmap, because a reader that reconstructs one does
        // not mark the end of a short group.
        let own = own_blocks(layout, group, place)?;
        let taken = u64::from(geometry.group_blocks(group) - layout.free_in(group)?);
        let last = group + 1 == geometry.group_count();
        flags.set(GroupFlags::BLOCK_UNINIT, taken == own && !last && group > 0);
    }
    desc.set_flags(flags);
    if !flags.contains(GroupFlags::BLOCK_UNINIT) {
        let bytes = block_bitmap(layout, group)?;
        bitmap::set_bitmap_checksum(BitmapKind::Block, &bytes, &mut desc, geometry)?;
        bitmaps.push((place.block_bitmap, bytes));
    }
    if !flags.contains(GroupFlags::INODE_UNINIT) {
        let bytes = inode_bitmap(geometry, used);
        bitmap::set_bitmap_checksum(BitmapKind::Inode, &bytes, &mut desc, geometry)?;
        bitmaps.push((place.inode_bitmap, bytes));
    }
    desc.set_checksum(group, geometry);
    Ok(desc)
}

/// Number of blocks in the group for its own metadata.
fn own_blocks(layout: &Layout, group: u32, place: &GroupPlace) -> Result<u64, MkfsError> {
    let geometry = &layout.geometry;
    let first = geometry.group_first_block(group)?;
    let end = first + u64::from(geometry.group_blocks(group));
    let inside = |from: u64, len: u64| {
        (from.saturating_add(len))
            .min(end)
            .saturating_sub(from.max(first))
    };
    Ok(u64::from(geometry.fixed_blocks(group))
        + inside(place.block_bitmap, 1)
        + inside(place.inode_bitmap, 1)
        + inside(place.inode_table, u64::from(geometry.inode_table_blocks())))
}

fn block_bitmap(layout: &Layout, group: u32) -> Result<Vec<u8>, MkfsError> {
    let geometry = &layout.geometry;
    let first = geometry.group_first_block(group)?;
    let mut bytes = vec![0; geometry.block_size() as usize];
    for (from, to) in layout.used_in(group)? {
        // Within a group, so both fit 32 bits.
        bitmap::set_range(&mut bytes, (from - first) as u32, (to - first) as u32);
    }
    bitmap::set_range(
        &mut bytes,
        geometry.group_blocks(group),
        geometry.block_size() * 8,
    );
    Ok(bytes)
}

fn inode_bitmap(geometry: &Geometry, used: u32) -> Vec<u8> {
    let mut bytes = vec![0; geometry.block_size() as usize];
    bitmap::set_range(&mut bytes, 0, used);
    bitmap::set_range(
        &mut bytes,
        geometry.inodes_per_group(),
        geometry.block_size() * 8,
    );
    bytes
}

/// Sets the fields of the superblock that depend on locations.
fn finish_super(
    sb: &mut SuperBlock,
    layout: &Layout,
    files: &Files,
    groups: &Groups,
) -> Result<(), MkfsError> {
    let sum = |of: fn(&GroupDesc) -> u32| groups.descs.iter().map(|desc| u64::from(of(desc))).sum();
    sb.set_free_blocks_count(sum(GroupDesc::free_clusters))?;
    let free_inodes: u64 = sum(GroupDesc::free_inodes);
    sb.free_inodes_count = (free_inodes as u32).into();
    let overhead = layout.overhead + files.journal_blocks;
    sb.overhead_clusters = u32::try_from(overhead).unwrap_or(0).into();
    let [users, groups, projects] = files.quotas;
    sb.usr_quota_inum = users.into();
    sb.grp_quota_inum = groups.into();
    sb.prj_quota_inum = projects.into();
    sb.mmp_block = files.mmp_block.unwrap_or(0).into();
    sb.orphan_file_inum = files.orphan_file.unwrap_or(0).into();
    if let Some((root, bytes)) = &files.journal_copy {
        sb.journal_inum = special_ino::JOURNAL.into();
        sb.jnl_backup_type = 1;
        let words = root.chunks_exact(4).map(|word| {
            let word = word.first_chunk().copied().unwrap_or_default();
            u32::from_le_bytes(word)
        });
        let sizes = [(bytes >> 32) as u32, *bytes as u32];
        for (to, from) in sb.jnl_blocks.iter_mut().zip(words.chain(sizes)) {
            *to = from.into();
        }
    }
    Ok(())
}

/// The blocks of inode tables that have inodes in use.
fn tables(layout: &Layout, files: &Files, groups: &Groups) -> Result<Vec<Block>, MkfsError> {
    let geometry = &layout.geometry;
    let mut blocks: Vec<Block> = Vec::new();
    for (ino, inode) in &files.inodes {
        let (group, index) = geometry.inode_location(*ino)?;
        let Some(desc) = groups.descs.get(group as usize) else {
            continue;
        };
        let (number, offset) = geometry.inode_in_table(desc.inode_table(), index);
        let at = blocks.iter().position(|(other, _)| *other == number);
        let at = at.unwrap_or_else(|| {
            blocks.push((number, vec![0; geometry.block_size() as usize]));
            blocks.len() - 1
        });
        if let Some(bytes) = blocks[at].1.get_mut(offset as usize..) {
            inode.write(bytes)?;
        }
    }
    Ok(blocks)
}

/// The blocks of the descriptor table.
fn descriptor_table(geometry: &Geometry, descs: &[GroupDesc]) -> Result<Vec<Vec<u8>>, MkfsError> {
    let size = usize::from(geometry.desc_size());
    let chunks = descs.chunks(geometry.descs_per_block() as usize);
    chunks
        .map(|chunk| {
            let mut block = vec![0; geometry.block_size() as usize];
            for (desc, bytes) in chunk.iter().zip(block.chunks_exact_mut(size)) {
                desc.write(bytes)?;
            }
            Ok(block)
        })
        .collect()
}

/// Zeroes the inode tables, or leaves that to a kernel, if requested and groups have checksums.
fn zero_tables(
    device: &dyn Device,
    options: &MkfsOptions,
    layout: &Layout,
) -> Result<(), MkfsError> {
    let geometry = &layout.geometry;
    if lazy(options, geometry) {
        return Ok(());
    }
    let len = u64::from(geometry.inode_table_blocks());
    for place in &layout.places {
        let start = place.inode_table;
        zero(device, geometry, &Run { start, len })?;
    }
    Ok(())
}

/// Makes sure that blocks are zero. Blocks that are zero already, for example after a discard, are
/// not written, so a sparse image stays sparse. Holes of an image are not even read.
fn zero(device: &dyn Device, geometry: &Geometry, run: &Run) -> Result<(), MkfsError> {
    let mut at = geometry.block_offset(run.start)?;
    let end = at + (run.len << geometry.block_bits());
    if device.has_no_data(at, end - at) {
        return Ok(());
    }
    let mut buf = vec![0; STEP.min(end - at) as usize];
    let zeros = buf.clone();
    while at < end {
        let len = STEP.min(end - at);
        let part = buf.get_mut(..len as usize).unwrap_or_default();
        let zeros = zeros.get(..len as usize).unwrap_or_default();
        device.read_at(at, part)?;
        if part != zeros {
            device.write_at(at, zeros)?;
        }
        at += len;
    }
    Ok(())
}
