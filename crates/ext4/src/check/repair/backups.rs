//! The superblock, the group descriptors, and the backups of both.

use std::sync::Arc;

use sapwood_block::Device;
use sapwood_ext4_format::{
    BitmapKind, Compat, Features, FormatError, Geometry, GroupDesc, GroupFlags, Incompat, Inode,
    SUPER_OFFSET, SUPER_SIZE, SuperBlock, SuperState, bitmap, usual_backups, validate_group,
    validate_super,
};

use super::edit::{Editor, write_super};
use super::{Finding, Repaired};
use crate::check::journal;
use crate::check::report::{CheckError, CheckReport};

/// Inodes of a table that are read to verify where it is.
const PROOFS: u32 = 32;

/// A superblock that can be used, and its geometry.
fn usable(device: &dyn Device, offset: u64) -> Result<(SuperBlock, Geometry), FormatError> {
    let mut bytes = vec![0; SUPER_SIZE];
    let read = device.read_at(offset, &mut bytes);
    read.map_err(|_| FormatError::Short {
        what: "superblock",
        need: SUPER_SIZE,
        found: 0,
    })?;
    let sb = SuperBlock::parse(&bytes)?;
    let geometry = Geometry::new(&sb)?;
    geometry.check_device(device.size())?;
    validate_super(&sb, device.size())?;
    Ok((sb, geometry))
}

/// The first backup where one belongs: its group, the backup, its geometry.
fn find_backup(device: &dyn Device) -> Option<(u32, SuperBlock, Geometry)> {
    usual_backups().find_map(|offset| {
        let (sb, geometry) = usable(device, offset).ok()?;
        let group = u32::from(sb.block_group_nr.get());
        let block = geometry.backup_super_block(group).filter(|_| group > 0)?;
        let place = block.checked_mul(geometry.block_size().into());
        (place == Some(offset)).then_some((group, sb, geometry))
    })
}

/// Whether there is a backup of the superblock that a repair can use.
#[must_use]
pub fn has_backup(device: &dyn Device) -> bool {
    find_backup(device).is_some()
}

/// Replaces a superblock that cannot be used by a backup.
pub(super) fn restore_super(
    device: &Arc<dyn Device>,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    let Err(error) = usable(&**device, SUPER_OFFSET) else {
        return Ok(());
    };
    let Some((group, mut sb, geometry)) = find_backup(&**device) else {
        done.left
            .push(format!("superblock: {error}; no backup of it is usable"));
        return Ok(());
    };
    sb.block_group_nr = 0.into();
    sb.set_checksum();
    write_super(&**device, SUPER_OFFSET, &sb)?;
    let text = format!("superblock: {error}; restored from the backup in group {group}");
    done.add("SuperRestored", text);
    // A backup does not record whether the journal has content.
    let editor = Editor::open(device)?;
    let Some(mut editor) = editor.filter(|_| geometry.features().has_compat(Compat::HAS_JOURNAL))
    else {
        return Ok(());
    };
    if journal::has_content(&editor.view) {
        editor.change_super(|sb| {
            let features = sb.features();
            sb.set_features(Features {
                incompat: features.incompat | Incompat::RECOVER,
                ..features
            });
        })?;
        done.add(
            "RecoveryNeeded",
            "superblock: marked as in need of recovery, because the journal is not empty".into(),
        );
    }
    Ok(())
}

/// Whether all locations of a descriptor are possible. Its checksum may be wrong.
fn located(group: u32, desc: &GroupDesc, geometry: &Geometry) -> bool {
    let mut sealed = desc.clone();
    sealed.set_checksum(group, geometry);
    validate_group(group, &sealed, geometry).is_ok()
}

/// Repairs descriptors that the validator refuses.
pub(super) fn restore_descriptors(
    editor: &mut Editor,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    for group in 0..editor.view.geometry.group_count() {
        let geometry = &editor.view.geometry;
        let Ok(found) = editor.view.descriptor(group) else {
            continue;
        };
        let sealed = found.verify_checksum(group, geometry);
        let valid = sealed.and_then(|()| validate_group(group, &found, geometry));
        let Err(error) = valid else {
            continue;
        };
        let (mut desc, from) = if let Some((block, copy)) = backup_of(editor, group) {
            (copy, format!("restored from the backup in block {block}"))
        } else if proven(editor, group, &found) {
            let text = "sealed again, because the tables that it names are intact";
            (found, text.to_owned())
        } else {
            done.left
                .push(format!("{error}; no backup of the descriptor is usable"));
            continue;
        };
        // These flags may be out of date. Without them, every inode of the table counts.
        let stale = GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
        desc.set_flags(desc.flags() - stale);
        let set = desc.set_itable_unused(0);
        if set.is_err() {
            continue;
        }
        editor.put_descriptor(group, desc)?;
        done.add("DescriptorRestored", format!("{error}; {from}"));
    }
    Ok(())
}

/// A backup of a group's descriptor: its block, and the descriptor.
fn backup_of(editor: &Editor, group: u32) -> Option<(u64, GroupDesc)> {
    let geometry = &editor.view.geometry;
    let (_, offset) = geometry.descriptor_block(group).ok()?;
    let index = group / geometry.descs_per_block().max(1);
    geometry
        .desc_table_backups(index)
        .into_iter()
        .find_map(|block| {
            let bytes = editor.view.block(block).ok()?;
            let rest = bytes.get(offset as usize..)?;
            let desc = GroupDesc::read(rest, geometry).ok()?;
            let sealed = desc.verify_checksum(group, geometry).is_ok();
            (sealed && located(group, &desc, geometry)).then_some((block, desc))
        })
}

/// Whether the table that a descriptor names has inodes with right checksums, and its bitmaps have
/// the right ones, too.
fn proven(editor: &Editor, group: u32, desc: &GroupDesc) -> bool {
    let geometry = &editor.view.geometry;
    if !geometry.metadata_csum() || !located(group, desc, geometry) {
        return false;
    }
    let bitmaps = [
        (BitmapKind::Block, desc.block_bitmap()),
        (BitmapKind::Inode, desc.inode_bitmap()),
    ];
    let intact = bitmaps.into_iter().all(|(kind, block)| {
        let bytes = editor.view.block(block).unwrap_or_default();
        bitmap::verify_bitmap(kind, &bytes, group, desc, geometry).is_ok()
    });
    let inodes = (0..geometry.inodes_per_group().min(PROOFS))
        .filter_map(|index| geometry.ino(group, index))
        .filter_map(|ino| Some((ino, editor.view.inode(desc.inode_table(), ino).ok()?)));
    let used = |inode: &Inode| inode.mode() != 0;
    let mut inodes = inodes.filter(|(_, inode)| used(inode)).peekable();
    let any = inodes.peek().is_some();
    intact && any && inodes.all(|(ino, inode)| inode.verify_checksum(ino, geometry).is_ok())
}

/// Writes backups of the superblock and of descriptors that are damaged or differ, where the
/// original has a checksum that matches.
pub(super) fn update(
    editor: &mut Editor,
    report: &CheckReport,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    if !editor.view.geometry.metadata_csum() || editor.view.sb.verify_checksum().is_err() {
        return Ok(());
    }
    let (mut groups, mut copies) = (Vec::new(), Vec::new());
    for finding in &report.findings {
        match finding {
            Finding::SuperBackupBad { group, .. } | Finding::SuperBackupDiffers { group, .. } => {
                groups.push(*group);
            }
            Finding::DescriptorBackupDiffers { block, group, .. } => copies.push((*block, *group)),
            _ => {}
        }
    }
    groups.dedup();
    copies.dedup();
    for group in groups {
        update_super(editor, group)?;
        let text = format!("group {group}: backup of the superblock written again");
        done.add("SuperBackupWritten", text);
    }
    for (block, group) in copies {
        if update_descriptor(editor, block, group)? {
            let text = format!("block {block}: backup of the descriptor of group {group} written");
            done.add("DescriptorBackupWritten", text);
        }
    }
    Ok(())
}

fn update_super(editor: &Editor, group: u32) -> Result<(), CheckError> {
    let geometry = &editor.view.geometry;
    let Some(block) = geometry.backup_super_block(group) else {
        return Ok(());
    };
    let mut copy = editor.view.sb.clone();
    // The field has 16 bits.
    copy.block_group_nr = (group as u16).into();
    copy.set_state(copy.state() | SuperState::VALID);
    copy.set_checksum();
    let offset = block.saturating_mul(geometry.block_size().into());
    Ok(write_super(&*editor.view.device, offset, &copy)?)
}

/// Whether the original's checksum matches, so that the copy was written.
fn update_descriptor(editor: &Editor, block: u64, group: u32) -> Result<bool, CheckError> {
    let geometry = &editor.view.geometry;
    let Some(desc) = editor.descriptor(group) else {
        return Ok(false);
    };
    let place = geometry.descriptor_block(group).ok();
    let (Some((_, offset)), Ok(mut bytes)) = (place, editor.view.block(block)) else {
        return Ok(false);
    };
    let written = bytes
        .get_mut(offset as usize..)
        .map(|rest| desc.write(rest));
    if !matches!(written, Some(Ok(()))) {
        return Ok(false);
    }
    editor.write_block(block, &bytes)?;
    Ok(true)
}

/// Writes the reserved blocks of group 0 that do not name their copies in the other groups.
pub(super) fn name_reserved(
    editor: &Editor,
    report: &CheckReport,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    let geometry = &editor.view.geometry;
    let start = geometry.group_first_block(0).unwrap_or_default();
    let fixed = u64::from(geometry.fixed_blocks(0));
    let reserved = u64::from(geometry.reserved_blocks(0));
    let places = start + fixed.saturating_sub(reserved)..start + fixed;
    for finding in &report.findings {
        let Finding::ResizeBad { block, .. } = finding else {
            continue;
        };
        // The other kind of finding names the two-level block of the inode.
        if !places.contains(block) {
            continue;
        }
        let groups = (1..geometry.group_count()).filter(|group| geometry.has_super(*group));
        let firsts = groups.filter_map(|group| geometry.group_first_block(group).ok());
        let copies = firsts.filter_map(|first| u32::try_from(first + (block - start)).ok());
        let mut bytes = vec![0; geometry.block_size() as usize];
        for (pointer, copy) in bytes.chunks_exact_mut(4).zip(copies) {
            pointer.copy_from_slice(&copy.to_le_bytes());
        }
        editor.write_block(*block, &bytes)?;
        done.add(finding.code(), format!("{finding}: written again"));
    }
    Ok(())
}
