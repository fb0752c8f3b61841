//! Names, links and fields of inodes.

use std::collections::{HashMap, HashSet};

use sapwood_ext4_format::{DirError, InodeFlags, special_ino};

use super::edit::{DirBlock, Editor};
use super::{Finding, Repaired};
use crate::check::finding::shown;
use crate::check::report::{CheckError, CheckReport};

/// Flags of inodes whose map does not consist of pointers.
const OTHER_MAPS: InodeFlags = InodeFlags::EXTENTS.union(InodeFlags::INLINE_DATA);

/// Repairs names, then links and fields of inodes.
pub(super) fn repair(
    editor: &mut Editor,
    report: &CheckReport,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    let bad: HashSet<u32> = report.findings.iter().filter_map(damaged_inode).collect();
    let mut named = Named {
        names: HashMap::new(),
        incomplete: report.findings.iter().any(hides_names),
    };
    for finding in &report.findings {
        if let Finding::EntryDangling { dir, name, ino } = finding
            && name != ".."
            && !bad.contains(dir)
        {
            if editor.is_unused(*ino) {
                drop_name(editor, finding, done)?;
            } else {
                *named.names.entry(*ino).or_insert(0_u16) += 1;
            }
        }
        if matches!(finding, Finding::EntryType { .. }) {
            set_type(editor, finding, done)?;
        }
    }
    for finding in &report.findings {
        let ino = match finding {
            Finding::NotDeleted { ino }
            | Finding::DeletedInUse { ino }
            | Finding::LinkCount { ino, .. }
            | Finding::InodeField { ino, .. }
            | Finding::ReservedInode { ino, .. }
            | Finding::InodeSectors { ino, .. } => *ino,
            Finding::OrphanListBad { .. } => {
                drop_orphans(editor, finding, done)?;
                continue;
            }
            _ => continue,
        };
        if !bad.contains(&ino) {
            change_inode(editor, ino, finding, &named, done)?;
        }
    }
    Ok(())
}

/// Inodes without links.
struct Named {
    /// Number of names that lead to each.
    names: HashMap<u32, u16>,
    /// There may be more names, in parts that cannot be read.
    incomplete: bool,
}

/// Whether names may be missing because of the damage.
fn hides_names(finding: &Finding) -> bool {
    matches!(
        finding,
        Finding::Unreadable { .. }
            | Finding::GroupBad { .. }
            | Finding::InodeBad { .. }
            | Finding::InodeChecksum { .. }
            | Finding::ExtentNodeBad { .. }
            | Finding::PointerBad { .. }
            | Finding::DirHole { .. }
            | Finding::DirBlockBad { .. }
            | Finding::DirDots { .. }
            | Finding::HtreeBad { .. }
    )
}

/// An inode that is not changed, because more is wrong with it than can be derived.
fn damaged_inode(finding: &Finding) -> Option<u32> {
    match *finding {
        Finding::InodeChecksum { ino, .. } | Finding::InodeBad { ino, .. } => Some(ino),
        Finding::ResizeBad { .. } => Some(special_ino::RESIZE),
        _ => None,
    }
}

/// Finds the entry of a directory that a finding names.
fn entry_of(editor: &Editor, dir: u32, name: &str, ino: u32) -> Option<(DirBlock, usize)> {
    for block in editor.dir_blocks(dir) {
        let entries = block.format.entries(&block.bytes).map_while(Result::ok);
        let mut entries = entries.filter(|entry| entry.inode == ino);
        let found = entries.find(|entry| shown(entry.name) == name);
        if let Some(offset) = found.map(|entry| entry.offset) {
            return Some((block, offset));
        }
    }
    None
}

/// Changes a directory block, and writes it with its checksum.
fn change_block(
    editor: &Editor,
    block: &mut DirBlock,
    change: impl FnOnce(&mut DirBlock) -> Result<(), DirError>,
) -> Result<bool, CheckError> {
    let seed = block.seed;
    let changed = change(block).and_then(|()| block.format.seal(&mut block.bytes, seed));
    if changed.is_err() {
        return Ok(false);
    }
    editor.write_block(block.block, &block.bytes)?;
    Ok(true)
}

fn drop_name(editor: &Editor, finding: &Finding, done: &mut Repaired) -> Result<(), CheckError> {
    let Finding::EntryDangling { dir, name, ino } = finding else {
        return Ok(());
    };
    let Some((mut block, offset)) = entry_of(editor, *dir, name, *ino) else {
        return Ok(());
    };
    let removed = change_block(editor, &mut block, |block| {
        let format = block.format;
        format.remove(&mut block.bytes, offset)
    })?;
    if removed {
        done.add(finding.code(), format!("{finding}: name removed"));
    }
    Ok(())
}

fn set_type(editor: &Editor, finding: &Finding, done: &mut Repaired) -> Result<(), CheckError> {
    let Finding::EntryType {
        dir,
        name,
        ino,
        expected,
        ..
    } = finding
    else {
        return Ok(());
    };
    let Some((mut block, offset)) = entry_of(editor, *dir, name, *ino) else {
        return Ok(());
    };
    let set = change_block(editor, &mut block, |block| {
        let format = block.format;
        format.set_inode(&mut block.bytes, offset, *ino, *expected)
    })?;
    if set {
        done.add(finding.code(), format!("{finding}: corrected"));
    }
    Ok(())
}

/// Empties the list of orphans, which leads to an invalid inode.
fn drop_orphans(
    editor: &mut Editor,
    finding: &Finding,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    if editor.view.sb.last_orphan.get() == 0 {
        return Ok(());
    }
    editor.change_super(|sb| sb.last_orphan = 0.into())?;
    done.add(finding.code(), format!("{finding}: list emptied"));
    Ok(())
}

/// Changes the field of an inode that a finding names.
fn change_inode(
    editor: &Editor,
    ino: u32,
    finding: &Finding,
    named: &Named,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    let Some(mut inode) = editor.inode(ino) else {
        return Ok(());
    };
    let what = match *finding {
        Finding::NotDeleted { .. } => match named.names.get(&ino) {
            Some(names) if !inode.is_dir() => {
                inode.set_links(*names);
                format!("{names} links set, because a directory has its name")
            }
            Some(_) => return Ok(()),
            None if named.incomplete => return Ok(()),
            // It was never in use, or all of it is cleared.
            None if inode.mode() == 0 => {
                inode.set_dtime(0);
                "time removed".to_owned()
            }
            None => {
                let time = u32::try_from(editor.view.sb.wtime()).unwrap_or(u32::MAX);
                inode.set_dtime(time.max(1));
                "marked deleted".to_owned()
            }
        },
        Finding::DeletedInUse { .. } => {
            inode.set_dtime(0);
            "time removed".to_owned()
        }
        // Its map has pointers in every image.
        Finding::ReservedInode { .. }
            if ino == special_ino::RESIZE && inode.flags().intersects(OTHER_MAPS) =>
        {
            inode.set_flags(inode.flags() - OTHER_MAPS);
            "flag removed".to_owned()
        }
        // Linux has no fragments.
        Finding::InodeField { .. } if inode.base().obso_faddr.get() != 0 => {
            inode.base_mut().obso_faddr = 0.into();
            "address removed".to_owned()
        }
        Finding::LinkCount { expected, .. } => {
            let Ok(links) = u16::try_from(expected) else {
                return Ok(());
            };
            inode.set_links(links);
            "corrected".to_owned()
        }
        Finding::InodeSectors { expected, .. } => {
            if inode.set_sectors(expected, &editor.view.geometry).is_err() {
                return Ok(());
            }
            "corrected".to_owned()
        }
        _ => return Ok(()),
    };
    editor.put_inode(ino, inode)?;
    done.add(finding.code(), format!("{finding}: {what}"));
    Ok(())
}
