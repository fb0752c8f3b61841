//! Checksums of inodes, of nodes of extent trees and of attribute blocks whose contents are good.
//!
//! # How it works
//! A checksum is written only if everything else agrees with the contents, so that the damage is in
//! the checksum or in a field that nothing else repeats (times, owner, permissions):
//! - No other finding is about the inode: its type, size, map, sectors, names and link count fit.
//! - No block is shared, and at the start of the repair the block bitmaps agreed with the maps. So
//!   no map was changed.
//! - The map of the inode has no holes and no unwritten extents, and ends in the block where the
//!   size ends: otherwise nothing shows a changed size, or an extent that is moved or unwritten.
//!   Inline data has no such witness.
//! - For a node of an extent tree, the sectors of the inode are the blocks of its map. An attribute
//!   block has a hash, which fits its values.
//!
//! Other parts are left.

use std::collections::{BTreeMap, BTreeSet};

use sapwood_ext4_format::{
    ExtentError, Inode, InodeFlags, XattrError, XattrSet, XattrSigns, XattrValue,
    extent_block_seal, validate_inode, xattr_block_hash, xattr_block_seal, xattr_entry_hash,
};

use super::edit::Editor;
use super::{Finding, Repaired};
use crate::check::report::{CheckError, CheckReport};
use crate::check::walk::{Piece, has_map, walk};

/// Whether the maps of inodes may have been changed.
pub(super) fn maps_doubtful(report: &CheckReport) -> bool {
    let doubtful = |finding: &Finding| {
        matches!(
            finding,
            Finding::BlocksNotMarked { .. }
                | Finding::BlocksNotUsed { .. }
                | Finding::BlocksShared { .. }
                | Finding::BlocksOfGroups { .. }
        )
    };
    report.suppressed > 0 || report.findings.iter().any(doubtful)
}

/// Checksum of which part does not match.
#[derive(Default)]
struct Unsealed<'r> {
    inode: Option<&'r Finding>,
    nodes: BTreeMap<u64, &'r Finding>,
    attributes: BTreeMap<u64, &'r Finding>,
    /// Something else is wrong, too.
    more: bool,
}

/// Writes checksums of good contents.
pub(super) fn repair(
    editor: &Editor,
    report: &CheckReport,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    let mut inodes: BTreeMap<u32, Unsealed<'_>> = BTreeMap::new();
    let mut hashed = BTreeSet::new();
    for finding in &report.findings {
        match finding {
            Finding::InodeChecksum { ino, .. } => {
                inodes.entry(*ino).or_default().inode = Some(finding);
            }
            Finding::ExtentNodeBad {
                ino,
                block,
                error: ExtentError::Checksum { .. },
            } => {
                let unsealed = inodes.entry(*ino).or_default();
                unsealed.nodes.insert(*block, finding);
            }
            Finding::XattrBlockBad {
                ino,
                block,
                error: XattrError::Checksum { .. },
            } => {
                let unsealed = inodes.entry(*ino).or_default();
                unsealed.attributes.insert(*block, finding);
            }
            Finding::XattrBlockHash { block, .. } | Finding::XattrRefcount { block, .. } => {
                hashed.insert(*block);
            }
            other => {
                for ino in about(other).into_iter().flatten() {
                    inodes.entry(ino).or_default().more = true;
                }
            }
        }
    }
    for (ino, unsealed) in inodes.iter().filter(|(_, unsealed)| !unsealed.more) {
        let Some(inode) = editor.any_inode(*ino) else {
            continue;
        };
        if let Some(finding) = unsealed.inode {
            let nothing_else = unsealed.nodes.is_empty() && unsealed.attributes.is_empty();
            if nothing_else && is_plausible(editor, *ino, &inode) {
                editor.put_inode(*ino, inode)?;
                let text = format!("{finding}: its contents are plausible, checksum written");
                done.add(finding.code(), text);
            }
            continue;
        }
        let whole = || has_all_blocks(editor, *ino, &inode) && is_dense(editor, *ino, &inode);
        if !unsealed.nodes.is_empty() && whole() {
            let seed = editor.view.geometry.inode_seed(*ino, inode.generation());
            for (block, finding) in &unsealed.nodes {
                let seal = |bytes: &mut [u8]| extent_block_seal(bytes, seed).is_ok();
                seal_block(editor, *block, seal, finding, done)?;
            }
        }
        for (block, finding) in unsealed
            .attributes
            .iter()
            .filter(|(at, _)| !hashed.contains(at))
        {
            let seed = editor.view.geometry.csum_seed();
            let inodes = editor.view.geometry.inodes_count();
            let seal = |bytes: &mut [u8]| {
                has_hash(bytes, inodes) && xattr_block_seal(bytes, seed, *block).is_ok()
            };
            seal_block(editor, *block, seal, finding, done)?;
        }
    }
    Ok(())
}

fn seal_block(
    editor: &Editor,
    block: u64,
    seal: impl FnOnce(&mut [u8]) -> bool,
    finding: &Finding,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    let Ok(mut bytes) = editor.view.block(block) else {
        return Ok(());
    };
    if seal(&mut bytes) {
        editor.write_block(block, &bytes)?;
        let text = format!("{finding}: its contents are valid, checksum written");
        done.add(finding.code(), text);
    }
    Ok(())
}

/// Whether an inode is deleted, or has valid fields. The check has compared them with everything
/// else.
fn is_plausible(editor: &Editor, ino: u32, inode: &Inode) -> bool {
    let deleted = inode.links() == 0 && inode.dtime() != 0;
    let valid = || validate_inode(ino, inode, &editor.view.geometry).is_ok();
    deleted || (valid() && is_dense(editor, ino, inode))
}

/// Whether the map is one run of written blocks from the first on, and the size ends in the last
/// one. True for an inode that needs no map.
fn is_dense(editor: &Editor, ino: u32, inode: &Inode) -> bool {
    if !has_map(&editor.view, inode) {
        return !inode.flags().contains(InodeFlags::INLINE_DATA);
    }
    let (mut next, mut gaps) = (0_u64, false);
    let mut seen = BTreeSet::new();
    let walked = walk(&editor.view, ino, inode, &mut |piece| match piece {
        Piece::Node { block } => seen.insert(block),
        Piece::Data {
            logical,
            len,
            unwritten,
            ..
        } => {
            gaps |= unwritten || logical != next;
            next = logical.saturating_add(len);
            true
        }
    });
    let geometry = &editor.view.geometry;
    let blocks = inode.size(geometry).div_ceil(geometry.block_size().into());
    !walked.incomplete && !gaps && blocks == next
}

/// Whether an attribute block has a hash of its entries, and it fits.
fn has_hash(bytes: &[u8], inodes: u32) -> bool {
    let Ok((header, set)) = XattrSet::parse_block(bytes, inodes) else {
        return false;
    };
    let hashes = set.entries.iter().map(|entry| match &entry.value {
        XattrValue::Bytes(value) => xattr_entry_hash(&entry.name, value, XattrSigns::Unsigned),
        XattrValue::Inode { hash, .. } => *hash,
    });
    let found = header.hash.get();
    found != 0 && found == xattr_block_hash(hashes)
}

/// Whether the inode's sectors are the blocks of its map and its attribute block. The check does
/// not compare them if a node is damaged.
fn has_all_blocks(editor: &Editor, ino: u32, inode: &Inode) -> bool {
    let geometry = &editor.view.geometry;
    let per_block = u64::from(geometry.block_size() / 512);
    if geometry.cluster_size() != geometry.block_size() || !has_map(&editor.view, inode) {
        return false;
    }
    let mut blocks = u64::from(inode.file_acl() != 0);
    let mut seen = BTreeSet::new();
    walk(&editor.view, ino, inode, &mut |piece| match piece {
        Piece::Node { block } => {
            blocks += 1;
            seen.insert(block)
        }
        Piece::Data { len, .. } => {
            blocks = blocks.saturating_add(len);
            true
        }
    });
    inode.sectors(geometry) == blocks.saturating_mul(per_block)
}

/// The inodes of which a finding says something.
fn about(finding: &Finding) -> [Option<u32>; 2] {
    let one = |ino: &u32| [Some(*ino), None];
    match finding {
        Finding::InodesNotMarked { ino, .. }
        | Finding::InodesNotUsed { ino, .. }
        | Finding::InodeInUnused { ino, .. }
        | Finding::InodeBad { ino, .. }
        | Finding::InodeField { ino, .. }
        | Finding::DeletedInUse { ino }
        | Finding::NotDeleted { ino }
        | Finding::InodeSectors { ino, .. }
        | Finding::InodeSize { ino, .. }
        | Finding::ExtentNodeBad { ino, .. }
        | Finding::ExtentNodeStart { ino, .. }
        | Finding::ExtentCluster { ino, .. }
        | Finding::PointerBad { ino, .. }
        | Finding::BlocksShared { ino, .. }
        | Finding::BlocksOfGroups { ino, .. }
        | Finding::SymlinkBad { ino, .. }
        | Finding::InlineSize { ino, .. }
        | Finding::ReservedInode { ino, .. }
        | Finding::QuotaBad { ino }
        | Finding::QuotaTree { ino, .. }
        | Finding::XattrBad { ino, .. }
        | Finding::XattrBlockBad { ino, .. }
        | Finding::AclBad { ino, .. }
        | Finding::XattrValueBad { ino, .. }
        | Finding::XattrValueRefcount { ino, .. }
        | Finding::OrphanOnClean { ino }
        | Finding::OrphanListBad { ino, .. }
        | Finding::Unattached { ino }
        | Finding::DirectoryNames { ino, .. }
        | Finding::DirectoryLoop { ino }
        | Finding::LinkCount { ino, .. } => one(ino),
        Finding::DirHole { dir, .. }
        | Finding::DirBlockBad { dir, .. }
        | Finding::DirDots { dir, .. }
        | Finding::NameTwice { dir, .. }
        | Finding::HtreeBad { dir, .. }
        | Finding::HtreeVersion { dir, .. }
        | Finding::HtreeTwice { dir, .. }
        | Finding::HtreeForgotten { dir, .. }
        | Finding::HtreeRange { dir, .. }
        | Finding::HtreeHash { dir, .. } => one(dir),
        Finding::DotDotWrong { dir, .. } => one(dir),
        Finding::EntryDangling { dir, ino, .. }
        | Finding::EntryReserved { dir, ino, .. }
        | Finding::EntryType { dir, ino, .. }
        | Finding::EntryEncryption { dir, ino, .. } => [Some(*dir), Some(*ino)],
        _ => [None, None],
    }
}
