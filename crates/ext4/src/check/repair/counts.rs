//! Bitmaps, counts of groups and of the superblock.

use std::collections::{BTreeMap, HashSet};

use sapwood_ext4_format::{BitmapKind, GroupDesc, GroupFlags, bitmap};

use super::edit::Editor;
use super::{Finding, Repaired};
use crate::check::report::{CheckError, CheckReport};

/// The changes of one group.
#[derive(Default)]
struct Changes<'r> {
    blocks: Vec<&'r Finding>,
    inodes: Vec<&'r Finding>,
    counts: Vec<&'r Finding>,
}

/// Repairs bitmaps, then the counts of groups and of the superblock.
pub(super) fn repair(
    editor: &mut Editor,
    report: &CheckReport,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    let doubtful = report.findings.iter().any(is_doubtful);
    let mut groups: BTreeMap<u32, Changes<'_>> = BTreeMap::new();
    for finding in &report.findings {
        if doubtful && frees_blocks(finding) {
            continue;
        }
        let Some((group, part)) = part_of(finding) else {
            continue;
        };
        let changes = groups.entry(group).or_default();
        match part {
            Some(BitmapKind::Block) => changes.blocks.push(finding),
            Some(BitmapKind::Inode) => changes.inodes.push(finding),
            None => changes.counts.push(finding),
        }
    }
    let overlaps: HashSet<u32> = report.findings.iter().filter_map(overlap).collect();
    for (group, changes) in &groups {
        if !overlaps.contains(group) {
            group_of(editor, *group, changes, done)?;
        }
    }
    sums(editor, report, doubtful, done)
}

/// Whether an inode may have blocks that its map does not show.
fn is_doubtful(finding: &Finding) -> bool {
    matches!(finding, Finding::InodeChecksum { .. })
}

/// Whether a repair of this may make the blocks of a doubtful inode free.
fn frees_blocks(finding: &Finding) -> bool {
    matches!(
        finding,
        Finding::BlocksNotUsed { .. }
            | Finding::GroupFreeBlocks { .. }
            | Finding::SuperFreeBlocks { .. }
    )
}

/// The group of a finding, and the bitmap that it is about; else it is about a count.
fn part_of(finding: &Finding) -> Option<(u32, Option<BitmapKind>)> {
    match finding {
        Finding::BlocksNotMarked { group, .. } | Finding::BlocksNotUsed { group, .. } => {
            Some((*group, Some(BitmapKind::Block)))
        }
        Finding::InodesNotMarked { group, .. } | Finding::InodesNotUsed { group, .. } => {
            Some((*group, Some(BitmapKind::Inode)))
        }
        Finding::BitmapChecksum { group, kind, .. } | Finding::BitmapPadding { group, kind } => {
            Some((*group, Some(*kind)))
        }
        Finding::GroupFreeBlocks { group, .. }
        | Finding::GroupFreeInodes { group, .. }
        | Finding::GroupDirectories { group, .. }
        | Finding::InodeInUnused { group, .. } => Some((*group, None)),
        _ => None,
    }
}

/// The group whose bitmaps lie over other metadata, and are not written.
fn overlap(finding: &Finding) -> Option<u32> {
    match finding {
        Finding::GroupOverlap { group, .. } => Some(*group),
        _ => None,
    }
}

fn group_of(
    editor: &Editor,
    group: u32,
    changes: &Changes<'_>,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    let Some(mut desc) = editor.descriptor(group) else {
        return Ok(());
    };
    let kinds = [
        (BitmapKind::Block, &changes.blocks),
        (BitmapKind::Inode, &changes.inodes),
    ];
    let before = done.repairs.len();
    for (kind, findings) in kinds {
        if !findings.is_empty() {
            change_bitmap(editor, (group, kind), &mut desc, findings, done)?;
        }
    }
    for finding in &changes.counts {
        let set = match **finding {
            Finding::GroupFreeBlocks { expected, .. } => desc.set_free_clusters(expected),
            Finding::GroupFreeInodes { expected, .. } => desc.set_free_inodes(expected),
            Finding::GroupDirectories { expected, .. } => desc.set_used_dirs(expected),
            Finding::InodeInUnused { ino, .. } => include_inode(editor, &mut desc, ino),
            _ => continue,
        };
        if set.is_ok() {
            let code = finding.code();
            done.add(code, format!("{finding}: corrected"));
        }
    }
    if done.repairs.len() > before {
        editor.put_descriptor(group, desc)?;
    }
    Ok(())
}

/// Extends the used part of the table to an inode.
fn include_inode(
    editor: &Editor,
    desc: &mut GroupDesc,
    ino: u32,
) -> Result<(), sapwood_ext4_format::FormatError> {
    let geometry = &editor.view.geometry;
    let (_, index) = geometry.inode_location(ino)?;
    let unused = geometry.inodes_per_group().saturating_sub(index + 1);
    desc.set_itable_unused(unused.min(desc.itable_unused()))
}

/// Changes the bits that findings name, sets the padding and the checksum.
fn change_bitmap(
    editor: &Editor,
    (group, kind): (u32, BitmapKind),
    desc: &mut GroupDesc,
    findings: &[&Finding],
    done: &mut Repaired,
) -> Result<(), CheckError> {
    let geometry = &editor.view.geometry;
    let (flag, block, bits) = match kind {
        BitmapKind::Block => (
            GroupFlags::BLOCK_UNINIT,
            desc.block_bitmap(),
            geometry.group_clusters(group),
        ),
        BitmapKind::Inode => (
            GroupFlags::INODE_UNINIT,
            desc.inode_bitmap(),
            geometry.inodes_per_group(),
        ),
    };
    if geometry.features().group_csum() && desc.flags().contains(flag) {
        // The next round compares the bitmap that is on the device.
        desc.set_flags(desc.flags() - flag);
        let text = format!("group {group}: {kind}: marked as initialised, because it is in use");
        done.add("BitmapInitialised", text);
        return Ok(());
    }
    let Ok(mut bytes) = editor.view.block(block) else {
        return Ok(());
    };
    for finding in findings {
        change_bits(editor, group, &mut bytes, finding);
        let code = finding.code();
        done.add(code, format!("{finding}: corrected"));
    }
    bitmap::set_range(&mut bytes, bits, geometry.block_size().saturating_mul(8));
    if bitmap::set_bitmap_checksum(kind, &bytes, desc, geometry).is_ok() {
        editor.write_block(block, &bytes)?;
    }
    Ok(())
}

/// Changes the bits of one finding.
fn change_bits(editor: &Editor, group: u32, bytes: &mut [u8], finding: &Finding) {
    let geometry = &editor.view.geometry;
    let ratio = geometry.cluster_ratio_bits();
    let clusters = |block: u64, count: u64| {
        let start = geometry.group_first_block(group).unwrap_or(u64::MAX);
        let first = block.checked_sub(start)? >> ratio;
        let end = first.saturating_add(count >> ratio);
        let end = end.min(u64::from(geometry.group_clusters(group)));
        Some((u32::try_from(first).ok()?, u32::try_from(end).ok()?))
    };
    let inodes = |ino: u32, count: u32| {
        let (_, first) = geometry.inode_location(ino).ok()?;
        let end = first.saturating_add(count);
        Some((first, end.min(geometry.inodes_per_group())))
    };
    let (range, used) = match *finding {
        Finding::BlocksNotMarked { block, count, .. } => (clusters(block, count), true),
        Finding::BlocksNotUsed { block, count, .. } => (clusters(block, count), false),
        Finding::InodesNotMarked { ino, count, .. } => (inodes(ino, count), true),
        Finding::InodesNotUsed { ino, count, .. } => (inodes(ino, count), false),
        _ => (None, true),
    };
    match range {
        Some((first, end)) if first < end && used => bitmap::set_range(bytes, first, end),
        Some((first, end)) if first < end => bitmap::clear_range(bytes, first, end),
        _ => {}
    }
}

/// Repairs the sums of the superblock.
fn sums(
    editor: &mut Editor,
    report: &CheckReport,
    doubtful: bool,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    for finding in &report.findings {
        if doubtful && frees_blocks(finding) {
            continue;
        }
        match *finding {
            Finding::SuperFreeBlocks { expected, .. } => {
                editor.change_super(|sb| {
                    // The number of blocks has the same width.
                    let _ = sb.set_free_blocks_count(expected);
                })?;
            }
            Finding::SuperFreeInodes { expected, .. } => {
                let expected = u32::try_from(expected).unwrap_or(u32::MAX);
                editor.change_super(|sb| sb.free_inodes_count = expected.into())?;
            }
            _ => continue,
        }
        done.add(finding.code(), format!("{finding}: corrected"));
    }
    Ok(())
}
