//! Restores single damaged bytes, which a checksum identifies.
//!
//! # How it works
//! A CRC of 32 bits tells the changes of single bytes apart: a change that matches a given
//! checksum by chance exists in one of 65,000 inodes of 256 bytes, and in one of 4,000 blocks of
//! 4096 bytes. So if the change of exactly one byte makes a wrong checksum right, and the
//! contents are valid then, that byte was damaged. Without checksums, one field is known: the number
//! of further bytes in an inode, which is the file system's.

use std::collections::{BTreeMap, BTreeSet};

use sapwood_ext4_format::{Inode, crc32c, validate_inode};

use super::edit::Editor;
use super::{Finding, Repaired};
use crate::check::report::{CheckError, CheckReport};

/// Most inodes and blocks that are tried.
const MOST: usize = 1000;
/// Largest content that is tried: one change in 4,000 would match by chance.
const LARGEST: usize = 4096;
/// Bytes of an inode that every form has.
const BASE: usize = 128;
/// Offsets of the halves of an inode's checksum.
const LOW: usize = 124;
const HIGH: usize = 130;
/// Offset of the number of bytes beyond the base that hold fields.
const EXTRA_ISIZE: usize = 128;
/// Start of attributes in an inode.
const MAGIC: [u8; 4] = 0xea02_0000_u32.to_le_bytes();
/// Bytes of the tail of a directory block, of which the last four are the checksum.
const TAIL: usize = 12;

/// A byte, and its right value.
type Change = (usize, u8);

/// Restores bytes of inodes and of directory blocks.
pub(super) fn repair(
    editor: &Editor,
    report: &CheckReport,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    let mut inodes = BTreeSet::new();
    let mut blocks: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for finding in report.findings.iter().take(MOST) {
        match finding {
            Finding::InodeChecksum { ino, .. } | Finding::InodeBad { ino, .. } => {
                inodes.insert(*ino);
            }
            Finding::DirBlockBad { dir, logical, .. } => {
                blocks.entry(*dir).or_default().insert(*logical);
            }
            _ => {}
        }
    }
    let sums = editor.view.geometry.metadata_csum();
    for ino in inodes {
        let Some((block, at, mut bytes)) = editor.raw_inode(ino) else {
            continue;
        };
        let len = usize::from(editor.view.geometry.inode_size());
        let Some(raw) = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..len)) else {
            continue;
        };
        let text = if sums {
            inode_byte(editor, ino, raw)
        } else {
            extra_size(editor, ino, raw)
        };
        if let Some(text) = text {
            editor.write_block(block, &bytes)?;
            done.add("ByteRestored", format!("inode {ino}: {text}"));
        }
    }
    if sums {
        for (dir, logical) in &blocks {
            restore_blocks(editor, *dir, logical, done)?;
        }
    }
    Ok(())
}

/// Restores a byte of an inode with a checksum.
fn inode_byte(editor: &Editor, ino: u32, raw: &mut [u8]) -> Option<String> {
    let geometry = &editor.view.geometry;
    if raw.len() < HIGH + 2 {
        return None;
    }
    let low = u32::from(u16::from_le_bytes(*raw.get(LOW..)?.first_chunk()?));
    let high = u32::from(u16::from_le_bytes(*raw.get(HIGH..)?.first_chunk()?));
    let sum = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        for half in [LOW, HIGH] {
            if let Some(half) = bytes.get_mut(half..half + 2) {
                half.fill(0);
            }
        }
        let generation = bytes.get(100..).and_then(|rest| rest.first_chunk());
        let generation = generation.map_or(0, |bytes| u32::from_le_bytes(*bytes));
        crc32c(geometry.inode_seed(ino, generation), &bytes)
    };
    let (at, byte) = shown(raw, sum, high << 16 | low)?;
    let old = std::mem::replace(raw.get_mut(at)?, byte);
    let good = is_valid(editor, ino, raw);
    good.then(|| format!("byte {at} is {old:#04x}, but {byte:#04x} by the checksum: corrected"))
}

/// Sets the number of further bytes of an inode without checksum, if it is impossible.
fn extra_size(editor: &Editor, ino: u32, raw: &mut [u8]) -> Option<String> {
    let wanted = editor.view.geometry.want_extra_isize();
    let found = u16::from_le_bytes(*raw.get(EXTRA_ISIZE..)?.first_chunk()?);
    let room = raw.len().checked_sub(BASE)?;
    let after = raw.get(BASE + usize::from(wanted)..)?;
    // Attributes begin after the fields. Without them, the rest is empty.
    let agrees = after.starts_with(&MAGIC) || after.iter().all(|byte| *byte == 0);
    let possible = usize::from(found) <= room && found.is_multiple_of(4);
    if possible || !agrees {
        return None;
    }
    raw.get_mut(EXTRA_ISIZE..EXTRA_ISIZE + 2)?
        .copy_from_slice(&wanted.to_le_bytes());
    let good = is_valid(editor, ino, raw);
    good.then(|| format!("extra_isize is {found:#x}, not inside the inode: {wanted:#x} set"))
}

fn is_valid(editor: &Editor, ino: u32, raw: &[u8]) -> bool {
    let geometry = &editor.view.geometry;
    Inode::read(raw, geometry).is_ok_and(|inode| {
        let valid = inode.links() == 0 || validate_inode(ino, &inode, geometry).is_ok();
        valid && inode.verify_checksum(ino, geometry).is_ok()
    })
}

/// Restores a byte of each of these blocks of a directory.
fn restore_blocks(
    editor: &Editor,
    dir: u32,
    blocks: &BTreeSet<u32>,
    done: &mut Repaired,
) -> Result<(), CheckError> {
    let Some(layout) = editor.layout(dir) else {
        return Ok(());
    };
    for logical in blocks {
        let Some(block) = layout.physical(*logical) else {
            continue;
        };
        let Ok(mut bytes) = editor.view.block(block) else {
            continue;
        };
        let Some(end) = bytes.len().checked_sub(TAIL) else {
            continue;
        };
        if end > LARGEST {
            continue;
        }
        let (content, tail) = bytes.split_at(end);
        let stored = tail.last_chunk().map_or(0, |sum| u32::from_le_bytes(*sum));
        let sum = |bytes: &[u8]| crc32c(layout.seed, bytes);
        let Some((at, byte)) = shown(content, sum, stored) else {
            continue;
        };
        let Some(old) = bytes.get_mut(at).map(|old| std::mem::replace(old, byte)) else {
            continue;
        };
        let format = &layout.format;
        let checked = if layout.encrypted {
            format.check_layout(&bytes)
        } else {
            format.check(&bytes)
        };
        if checked.is_ok() && format.verify(&bytes, layout.seed).is_ok() {
            editor.write_block(block, &bytes)?;
            let text = format!(
                "directory {dir} block {logical}: byte {at} is {old:#04x}, but {byte:#04x} by the \
                 checksum: corrected"
            );
            done.add("ByteRestored", text);
        }
    }
    Ok(())
}

/// The only change of one byte that makes the checksum `stored`.
fn shown(bytes: &[u8], sum: impl Fn(&[u8]) -> u32, stored: u32) -> Option<Change> {
    let mut work = bytes.to_vec();
    let computed = sum(&work);
    let wanted = computed ^ stored;
    let mut found = None;
    for (at, old) in bytes.iter().enumerate() {
        // A CRC is linear: the effects of bits add up.
        let mut effects = [0; 8];
        for (bit, effect) in effects.iter_mut().enumerate() {
            *work.get_mut(at)? = old ^ 1 << bit;
            *effect = sum(&work) ^ computed;
        }
        *work.get_mut(at)? = *old;
        for change in 1..=u8::MAX {
            let bits = effects.iter().enumerate();
            let bits = bits.filter(|(bit, _)| change & 1 << bit != 0);
            if bits.fold(0, |all, (_, effect)| all ^ effect) == wanted {
                if found.is_some() {
                    return None;
                }
                found = Some((at, old ^ change));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_shows_one_changed_byte() {
        let good: Vec<u8> = (0..256_u32).map(|n| (n * 7 % 251) as u8).collect();
        let sum = |bytes: &[u8]| crc32c(17, bytes);
        let stored = sum(&good);
        for at in [0, 1, 100, 255] {
            for change in [1, 0x80, 0xff, 0x5a] {
                let mut bad = good.clone();
                bad[at] ^= change;
                assert_eq!(shown(&bad, sum, stored), Some((at, good[at])));
                bad[(at + 9) % 256] ^= 3;
                assert_eq!(shown(&bad, sum, stored), None);
            }
        }
        // Nothing is changed without need.
        assert_eq!(shown(&good, sum, stored), None);
    }
}
