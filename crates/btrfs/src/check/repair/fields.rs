//! Repairs counts and sums in items, each of which has one right value that the check reports. Adds
//! and deletes orphan items.

use std::collections::HashSet;

use sapwood_btrfs_format::{
    BlockGroupItem, DevItem, ExtentItem, FreeSpaceInfo, InodeItem, Key, QgroupInfo, kind, objectid,
};
use zerocopy::FromBytes;

use super::super::error::CheckError;
use super::super::finding::Finding;
use super::super::report::CheckReport;
use super::super::state::Check;
use super::Repaired;
use super::edit::Editor;

/// Repairs the findings of one check that are about one field each.
pub(super) fn repair(
    check: &Check<'_>,
    editor: &Editor<'_, '_>,
    report: &CheckReport,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    let mut counted = HashSet::new();
    for finding in &report.findings {
        if let Finding::LinkCount { tree, inode, .. } = finding {
            counted.insert((*tree, *inode));
        }
    }
    let extents_lost = report.findings.iter().any(super::extents::lost);
    for finding in &report.findings {
        let repaired = match *finding {
            // A wrong sum may show that a file extent is lost, whose data must not be freed.
            Finding::InodeBytes { .. } if extents_lost => false,
            // Without a link, the next mount deletes the inode once it has its orphan item.
            Finding::OrphanMissing { tree, inode } if !counted.contains(&(tree, inode)) => {
                editor.put(tree, &orphan(inode), &[])?
            }
            Finding::OrphanStray { tree, inode } if !counted.contains(&(tree, inode)) => {
                editor.remove(tree, &orphan(inode))?
            }
            _ => inode(editor, finding)? || space(check, editor, finding)?,
        };
        if repaired {
            done.add(finding.code(), format!("{finding}: corrected"));
        }
    }
    Ok(())
}

fn orphan(inode: u64) -> Key {
    Key::new(objectid::ORPHAN, kind::ORPHAN_ITEM, inode)
}

/// Changes a struct at the start of an item.
fn field<T: FromBytes + zerocopy::IntoBytes + zerocopy::KnownLayout>(
    editor: &Editor<'_, '_>,
    tree: u64,
    key: &Key,
    change: impl FnOnce(&mut T),
) -> Result<bool, CheckError> {
    editor.edit(tree, key, |data| {
        let (item, _) = T::mut_from_prefix(data).ok()?;
        change(item);
        Some(())
    })
}

/// A field of an inode.
fn inode(editor: &Editor<'_, '_>, finding: &Finding) -> Result<bool, CheckError> {
    let of = |inode| Key::new(inode, kind::INODE_ITEM, 0);
    match *finding {
        Finding::LinkCount {
            tree,
            inode,
            expected,
            ..
        } if expected > 0 => {
            let Ok(links) = u32::try_from(expected) else {
                return Ok(false);
            };
            field(editor, tree, &of(inode), |item: &mut InodeItem| {
                item.nlink = links.into();
            })
        }
        Finding::InodeBytes {
            tree,
            inode,
            expected,
            ..
        } => field(editor, tree, &of(inode), |item: &mut InodeItem| {
            item.nbytes = expected.into();
        }),
        Finding::DirectorySize {
            tree,
            inode,
            expected,
            ..
        } => field(editor, tree, &of(inode), |item: &mut InodeItem| {
            item.size = expected.into();
        }),
        _ => Ok(false),
    }
}

/// A sum of the trees about space.
fn space(
    check: &Check<'_>,
    editor: &Editor<'_, '_>,
    finding: &Finding,
) -> Result<bool, CheckError> {
    match *finding {
        Finding::BlockGroupUsed {
            logical, expected, ..
        } => group(check, editor, logical, |item| item.used = expected.into()),
        Finding::BlockGroupKind {
            logical, expected, ..
        } => group(check, editor, logical, |item| {
            item.flags = expected.bits().into();
        }),
        Finding::FreeSpaceCount {
            group, expected, ..
        } => {
            let (Some(length), Ok(count)) = (length(check, group), u32::try_from(expected)) else {
                return Ok(false);
            };
            let key = Key::new(group, kind::FREE_SPACE_INFO, length);
            let set = |item: &mut FreeSpaceInfo| item.extent_count = count.into();
            field(editor, objectid::FREE_SPACE_TREE, &key, set)
        }
        Finding::DeviceBytesUsed {
            devid, expected, ..
        } => {
            let key = Key::new(objectid::DEV_ITEMS, kind::DEV_ITEM, devid);
            let set = |item: &mut DevItem| item.bytes_used = expected.into();
            field(editor, objectid::CHUNK_TREE, &key, set)
        }
        Finding::RefCount {
            bytenr, expected, ..
        } => {
            let set = |item: &mut ExtentItem| item.refs = expected.into();
            extent(editor, bytenr, set)
        }
        Finding::ExtentGeneration {
            bytenr, expected, ..
        } => {
            let set = |item: &mut ExtentItem| item.generation = expected.into();
            extent(editor, bytenr, set)
        }
        Finding::QuotaGroup {
            level,
            id,
            field: name,
            expected,
            ..
        } => {
            let key = Key::new(0, kind::QGROUP_INFO, level << 48 | id);
            let set = |item: &mut QgroupInfo| {
                if name == "referenced" {
                    (item.referenced, item.referenced_compressed) =
                        (expected.into(), expected.into());
                } else {
                    (item.exclusive, item.exclusive_compressed) =
                        (expected.into(), expected.into());
                }
            };
            field(editor, objectid::QUOTA_TREE, &key, set)
        }
        _ => Ok(false),
    }
}

/// Length of a chunk, and of its block group.
fn length(check: &Check<'_>, logical: u64) -> Option<u64> {
    check.source.chunks.get(&logical).map(|chunk| chunk.length)
}

/// Changes the item of a block group.
fn group(
    check: &Check<'_>,
    editor: &Editor<'_, '_>,
    logical: u64,
    change: impl FnOnce(&mut BlockGroupItem),
) -> Result<bool, CheckError> {
    let Some(length) = length(check, logical) else {
        return Ok(false);
    };
    let key = Key::new(logical, kind::BLOCK_GROUP_ITEM, length);
    field(editor, check.group_tree(), &key, change)
}

/// Changes the head of an extent item.
fn extent(
    editor: &Editor<'_, '_>,
    bytenr: u64,
    change: impl FnOnce(&mut ExtentItem),
) -> Result<bool, CheckError> {
    let from = Key::new(bytenr, kind::EXTENT_ITEM, 0);
    let to = Key::new(bytenr, kind::METADATA_ITEM, u64::MAX);
    let mut keys = Vec::new();
    let tree = objectid::EXTENT_TREE;
    editor.range(tree, &from, &to, &mut |key, _| keys.push(key));
    let [key] = &*keys else {
        return Ok(false);
    };
    field(editor, tree, key, change)
}
