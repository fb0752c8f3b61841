//! Blocks of directories: `.` and `..`, lengths of entries, checksums, hash trees.
//!
//! # How it works
//! A block is written again only if every entry of the result leads to an inode in use of the
//! entry's type, or is free. The names are taken as they are.
//! - A length that does not lead to the next entry is set to the one length that does.
//! - The first block of a directory begins with `.` and `..`. Their inodes are the directory and
//!   the directory with its name.
//! - Entries within the length of another one, in a damaged block, return if their inodes lack a
//!   name.
//! - An entry with an impossible inode number becomes free.
//! - A directory with a damaged hash tree becomes a linear one. Its leaves stay as they are.

use std::collections::{BTreeMap, BTreeSet};

use sapwood_ext4_format::{
    DirEntry, DirError, DirFormat, InodeFlags, dir_type, rec_len_decode, rec_len_encode,
    special_ino,
};

use super::edit::{DirLayout, Editor};
use super::{Directories, Finding, Repaired};
use crate::check::report::{CheckError, CheckReport};

/// Offset of `..` in the first block.
const DOTDOT: usize = 12;
/// Bytes of an entry before its name.
const HEADER: usize = 8;
/// Corrections of one block at most. A block with more errors is left.
const MOST_CORRECTIONS: usize = 64;

/// The findings about a directory that are repaired here.
#[derive(Default)]
struct Damage<'r> {
    /// Findings by block.
    blocks: BTreeMap<u32, Vec<&'r Finding>>,
    tree: Vec<&'r Finding>,
}

/// Repairs the blocks of all directories.
pub(super) fn repair(
    editor: &Editor,
    report: &CheckReport,
    parents: &Directories,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    let mut dirs: BTreeMap<u32, Damage<'_>> = BTreeMap::new();
    let (mut looped, mut lost) = (BTreeSet::new(), BTreeSet::new());
    for finding in &report.findings {
        match finding {
            Finding::DirBlockBad { dir, logical, .. } | Finding::DirDots { dir, logical, .. } => {
                let damage = dirs.entry(*dir).or_default();
                damage.blocks.entry(*logical).or_default().push(finding);
            }
            Finding::DotDotWrong { dir, .. } => {
                let damage = dirs.entry(*dir).or_default();
                damage.blocks.entry(0).or_default().push(finding);
            }
            Finding::EntryDangling { dir, name, .. } if name == ".." => {
                let damage = dirs.entry(*dir).or_default();
                damage.blocks.entry(0).or_default().push(finding);
            }
            Finding::HtreeBad { dir, .. }
            | Finding::HtreeVersion { dir, .. }
            | Finding::HtreeTwice { dir, .. }
            | Finding::HtreeForgotten { dir, .. }
            | Finding::HtreeRange { dir, .. }
            | Finding::HtreeHash { dir, .. } => dirs.entry(*dir).or_default().tree.push(finding),
            Finding::DirectoryLoop { ino } => _ = looped.insert(*ino),
            Finding::Unattached { ino } => _ = lost.insert(*ino),
            Finding::LinkCount {
                ino,
                found,
                expected,
            } if u64::from(*found) > *expected => _ = lost.insert(*ino),
            _ => {}
        }
    }
    for (dir, damage) in &dirs {
        let Some(layout) = editor.layout(*dir) else {
            continue;
        };
        let known = parents.get(dir).filter(|known| known.names == 1);
        let known = known.map(|known| known.named_in).filter(|ino| *ino != 0);
        let parent = match *dir {
            special_ino::ROOT => Some(special_ino::ROOT),
            _ => known.filter(|_| !looped.contains(dir)),
        };
        let whole = Whole {
            editor,
            dir: *dir,
            parent,
            lost: &lost,
            layout,
        };
        whole.repair(damage, done)?;
    }
    Ok(())
}

/// A directory with blocks.
struct Whole<'e> {
    editor: &'e Editor,
    dir: u32,
    /// The directory with its name, if there is exactly one.
    parent: Option<u32>,
    /// Inodes that lack a name.
    lost: &'e BTreeSet<u32>,
    layout: DirLayout,
}

impl Whole<'_> {
    fn repair(&self, damage: &Damage<'_>, done: &mut Repaired) -> Result<(), CheckError> {
        if let Some(finding) = damage.tree.first() {
            if self.remove_tree()? {
                let text = format!("{finding}: hash tree removed, the directory is linear now");
                done.add(finding.code(), text);
            }
            return Ok(());
        }
        for (logical, findings) in &damage.blocks {
            let Some(block) = self.layout.physical(*logical) else {
                continue;
            };
            let Ok(old) = self.editor.view.block(block) else {
                continue;
            };
            let new = if self.layout.indexed && *logical == 0 {
                self.root(&old)
            } else {
                self.linear(&old, *logical)
            };
            if let Some(new) = new.filter(|new| *new != old) {
                self.editor.write_block(block, &new)?;
                for finding in findings {
                    done.add(finding.code(), format!("{finding}: corrected"));
                }
            }
        }
        Ok(())
    }

    /// The root of an intact hash tree with the right `.` and `..`.
    fn root(&self, old: &[u8]) -> Option<Vec<u8>> {
        let format = &self.layout.format;
        let mut new = old.to_vec();
        self.dots(&mut new, format.block_size - DOTDOT)?;
        let blocks = u32::try_from(self.layout.blocks.len()).ok()?;
        format.dx_root(&new, blocks).ok()?;
        format.dx_seal(&mut new, self.layout.seed).ok()?;
        Some(new)
    }

    /// A block of entries without its damage.
    fn linear(&self, old: &[u8], logical: u32) -> Option<Vec<u8>> {
        let format = &self.layout.format;
        let mut new = old.to_vec();
        if logical == 0 {
            let len = rec_len_decode(half(old, DOTDOT + 4)?, format.block_size);
            self.dots(&mut new, len)?;
        }
        // Each step ends at an entry, which is never moved again.
        for _ in 0..MOST_CORRECTIONS {
            let Some((before, error)) = first_error(format, &new) else {
                break;
            };
            // The previous entry may be too long, and these bytes no entry at all.
            let shorter = before.and_then(|before| self.with_least(&new, before));
            if let Some(shorter) = shorter.filter(|shorter| *shorter != new) {
                new = shorter;
                continue;
            }
            match error {
                DirError::Inode { offset, .. } => new.get_mut(offset..offset + 4)?.fill(0),
                DirError::RecLen { offset, .. }
                | DirError::NameLen { offset, .. }
                | DirError::Cut { offset } => {
                    let fixed = self.with_length(&new, offset);
                    new = fixed.or_else(|| self.with_length(&new, before?))?;
                }
                _ => return None,
            }
        }
        for _ in 0..MOST_CORRECTIONS {
            match self.with_lost(&new) {
                Some(shorter) => new = shorter,
                None => break,
            }
        }
        format.seal(&mut new, self.layout.seed).ok()?;
        let checked = if self.layout.encrypted {
            format.check_layout(&new)
        } else {
            format.check(&new)
        };
        checked.ok()?;
        let skip = if logical == 0 { 2 } else { 0 };
        let mut entries = format.entries(&new).map_while(Result::ok).skip(skip);
        entries.all(|entry| self.is_good(&entry)).then_some(new)
    }

    /// Whether an entry is free or leads to an inode in use of its type.
    fn is_good(&self, entry: &DirEntry<'_>) -> bool {
        if entry.inode == 0 {
            return true;
        }
        let Some(inode) = self.editor.inode(entry.inode) else {
            return false;
        };
        let kind = dir_type::from_mode(inode.mode());
        let typed = !self.layout.format.file_type || entry.file_type == kind;
        inode.links() > 0 && typed && !entry.is_dots()
    }

    /// Writes `.` and `..`, the latter with a length. At least one of them must be recognizable,
    /// and the inode of `..` must be known.
    fn dots(&self, block: &mut [u8], len: usize) -> Option<()> {
        let format = &self.layout.format;
        let dot = block.get(8..10)? == b".\0" && half(block, 4)? == DOTDOT as u16;
        let dotdot = block.get(DOTDOT + HEADER..DOTDOT + HEADER + 3)? == b"..\0";
        if !dot && !dotdot {
            return None;
        }
        let found = block.get(DOTDOT..DOTDOT + 4)?.first_chunk()?;
        let found = u32::from_le_bytes(*found);
        let is_dir = |ino: &u32| {
            let inode = self.editor.inode(*ino);
            inode.is_some_and(|inode| inode.is_dir() && inode.links() > 0)
        };
        let parent = self.parent.or(Some(found).filter(is_dir))?;
        let kind = if format.file_type {
            dir_type::DIRECTORY
        } else {
            0
        };
        let mut header = |at: usize, ino: u32, len: usize, name: &[u8; 4], name_len: u8| {
            let entry = block.get_mut(at..at + DOTDOT)?;
            entry[..4].copy_from_slice(&ino.to_le_bytes());
            let len = rec_len_encode(len, format.block_size)?;
            entry[4..6].copy_from_slice(&len.to_le_bytes());
            entry[6..8].copy_from_slice(&[name_len, kind]);
            entry[8..12].copy_from_slice(name);
            Some(())
        };
        header(0, self.dir, DOTDOT, b".\0\0\0", 1)?;
        header(DOTDOT, parent, len, b"..\0\0", 2)
    }

    /// The first byte after an entry of the smallest length that its name needs.
    fn least(&self, block: &[u8], offset: usize) -> Option<usize> {
        let name_len = usize::from(*block.get(offset + 6)?);
        let name = block.get(offset + HEADER..offset + HEADER + name_len)?;
        Some(offset + self.layout.format.entry_size(name))
    }

    /// The block in which the entry at `offset` ends at `end`, if it is good then. The caller knows
    /// that good entries follow.
    fn with_end(&self, block: &[u8], offset: usize, end: usize) -> Option<Vec<u8>> {
        let format = &self.layout.format;
        let len = rec_len_encode(end.checked_sub(offset)?, format.block_size)?;
        let mut new = block.to_vec();
        let field = new.get_mut(offset + 4..offset + 6)?;
        field.copy_from_slice(&len.to_le_bytes());
        let own = format.entry_at(&new, offset).ok()?;
        let own = own.is_dots() && offset <= DOTDOT || self.is_good(&own);
        own.then_some(new)
    }

    /// Whether good entries follow up to the end, for each fourth byte of a block.
    fn good_ends(&self, block: &[u8]) -> Vec<bool> {
        let format = &self.layout.format;
        let count = format.usable() / 4;
        let mut good = vec![false; count + 1];
        good[count] = true;
        for at in (0..count).rev() {
            let entry = format.entry_at(block, at * 4);
            good[at] = entry.is_ok_and(|entry| {
                let follows = good.get(entry.end() / 4).is_some_and(|good| *good);
                follows && self.is_good(&entry)
            });
        }
        good
    }

    /// The block in which the entry at `offset` has its smallest length, if good entries follow it.
    fn with_least(&self, block: &[u8], offset: usize) -> Option<Vec<u8>> {
        let least = self.least(block, offset)?;
        let mut rest = self.layout.format.entries_from(block, least);
        if rest.all(|entry| entry.is_ok_and(|entry| self.is_good(&entry))) {
            self.with_end(block, offset, least)
        } else {
            None
        }
    }

    /// The block with the length of the entry at `offset` that leads to good entries: the smallest
    /// one, or else the only one.
    fn with_length(&self, block: &[u8], offset: usize) -> Option<Vec<u8>> {
        if let Some(new) = self.with_least(block, offset) {
            return Some(new);
        }
        let least = self.least(block, offset)?;
        let good = self.good_ends(block);
        let ends = (least..=self.layout.format.usable()).step_by(4);
        let mut ends = ends.filter(|end| good.get(*end / 4).is_some_and(|good| *good));
        let only = ends.next()?;
        if ends.next().is_some() {
            return None;
        }
        self.with_end(block, offset, only)
    }

    /// The block with one entry shortened, such that entries of inodes that lack a name follow it.
    fn with_lost(&self, block: &[u8]) -> Option<Vec<u8>> {
        let format = &self.layout.format;
        for long in format.entries(block).map_while(Result::ok) {
            let mut misled = BTreeSet::new();
            let first = long.offset + format.entry_size(long.name);
            let mut ends = (first..long.end()).step_by(4);
            let end = ends.find(|end| self.leads_to_lost(block, *end, long.end(), &mut misled));
            if let Some(end) = end {
                let len = rec_len_encode(end - long.offset, format.block_size)?;
                let mut new = block.to_vec();
                let field = new.get_mut(long.offset + 4..long.offset + 6)?;
                field.copy_from_slice(&len.to_le_bytes());
                return Some(new);
            }
        }
        None
    }

    /// Whether only entries of inodes that lack a name lie from `at` to `end`, or to the end of the
    /// block. `misled` has the offsets of which it is known that they lie elsewhere.
    fn leads_to_lost(
        &self,
        block: &[u8],
        mut at: usize,
        end: usize,
        misled: &mut BTreeSet<usize>,
    ) -> bool {
        let format = &self.layout.format;
        let mut passed = Vec::new();
        while at < end && !misled.contains(&at) {
            passed.push(at);
            match format.entry_at(block, at) {
                Ok(entry) if self.lost.contains(&entry.inode) && self.is_good(&entry) => {
                    at = entry.end();
                }
                _ => break,
            }
        }
        let leads = at == end || at == format.usable();
        if !leads {
            misled.extend(passed);
        }
        leads
    }

    /// Turns an indexed directory into a linear one. Returns false, and changes nothing, if one of
    /// its blocks is damaged.
    fn remove_tree(&self) -> Result<bool, CheckError> {
        let Some(blocks) = self.without_tree() else {
            return Ok(false);
        };
        for (block, bytes) in blocks {
            self.editor.write_block(block, &bytes)?;
        }
        let mut inode = self.layout.inode.clone();
        inode.set_flags(inode.flags() - InodeFlags::INDEX);
        self.editor.put_inode(self.dir, inode)?;
        Ok(true)
    }

    /// The blocks that change if the tree is removed: the root and all other nodes.
    fn without_tree(&self) -> Option<Vec<(u64, Vec<u8>)>> {
        let format = &self.layout.format;
        let mut changed = Vec::new();
        for (logical, block) in &self.layout.blocks {
            let mut bytes = self.editor.view.block(*block).ok()?;
            if *logical == 0 {
                self.dots(&mut bytes, format.usable() - DOTDOT)?;
                let parent = bytes.get(DOTDOT..DOTDOT + 4)?.first_chunk()?;
                let parent = u32::from_le_bytes(*parent);
                format.init_dots(&mut bytes, self.dir, parent).ok()?;
            } else if is_node(format, &bytes) {
                format.init_block(&mut bytes).ok()?;
            } else {
                bytes = self.linear(&bytes, u32::MAX)?;
            }
            format.seal(&mut bytes, self.layout.seed).ok()?;
            changed.push((*block, bytes));
        }
        Some(changed)
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let half = bytes.get(at..at + 2)?.first_chunk()?;
    Some(u16::from_le_bytes(*half))
}

/// Whether a block begins as an inner node of a hash tree: with a free entry that fills it.
fn is_node(format: &DirFormat, bytes: &[u8]) -> bool {
    let len = half(bytes, 4).map(|len| rec_len_decode(len, format.block_size));
    bytes.starts_with(&[0; 4]) && len == Some(format.block_size)
}

/// The first error of a block, with the offset of the entry before it.
fn first_error(format: &DirFormat, block: &[u8]) -> Option<(Option<usize>, DirError)> {
    let mut before = None;
    for entry in format.entries(block) {
        match entry {
            Ok(entry) => before = Some(entry.offset),
            Err(error) => return Some((before, error)),
        }
    }
    None
}
