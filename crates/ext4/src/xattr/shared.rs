//! Blocks of attributes that several inodes share.

use std::collections::HashMap;
use std::sync::Arc;

use sapwood_ext4_format::{XATTR_REFCOUNT_MAX, Xattr, XattrHeader, XattrSet, XattrValue};
use sapwood_jbd2::{Buffer, Handle};

use super::inode_value;
use super::sets::{KIND, block_of, damaged, parse_block};
use crate::block_alloc::{self, Extent};
use crate::inode::Inode;
use crate::seal::SealKind;
use crate::volume::Volume;
use crate::{Error, Result, map};

/// Blocks that are remembered.
const MOST: usize = 4096;

fn header(content: &[u8]) -> Option<XattrHeader> {
    zerocopy::FromBytes::read_from_prefix(content)
        .ok()
        .map(|(header, _)| header)
}

/// Sets how many inodes use a block.
fn set_count(h: &Handle, buffer: &Arc<Buffer>, count: u32) -> Result<()> {
    let mut content = h.modify(buffer)?;
    let at = core::mem::offset_of!(XattrHeader, refcount);
    if let Some(field) = content.get_mut(at..at + 4) {
        field.copy_from_slice(&count.to_le_bytes());
    }
    buffer.set_seal(Some(SealKind::Xattr.of(0, 0)));
    Ok(())
}

/// Replaces the inode's block by one with this set; an empty set needs none. The caller stores the
/// inode.
///
/// # Errors
/// No space; errors of the journal; the image is damaged.
pub(super) fn replace(volume: &Volume, h: &Handle, inode: &Inode, set: &XattrSet) -> Result<()> {
    let mut known = volume.xattr_blocks.known.lock();
    let old = block_of(volume, inode)?;
    if set.entries.is_empty() {
        if let Some(old) = old {
            release(volume, h, inode, &old)?;
        }
        return point_to(volume, inode, 0);
    }
    let mut content = vec![0; volume.geometry.block_size() as usize];
    set.write_block(&mut content, 1)
        .map_err(|reason| damaged(inode, reason))?;
    let hash = header(&content).map_or(0, |header| header.hash.get());
    if let Some(twin) = twin(volume, &known, hash, set)? {
        let block = twin.0.block();
        set_count(h, &twin.0, twin.1 + 1)?;
        if let Some(old) = old {
            release(volume, h, inode, &old)?;
        }
        return point_to(volume, inode, block);
    }
    let buffer = match old {
        Some(old) if parse_block(volume, inode, &old)?.0 == 1 => old,
        old => {
            let goal = map::goal(volume, inode, 0)?;
            let block = block_alloc::allocate_meta(&volume.groups, h, goal)?;
            if let Some(old) = old {
                share_values(volume, h, inode, &old, set)?;
                release(volume, h, inode, &old)?;
            }
            point_to(volume, inode, block)?;
            volume.cache.get_new(block)?
        }
    };
    h.modify(&buffer)?.copy_from_slice(&content);
    buffer.set_kind(KIND);
    buffer.set_seal(Some(SealKind::Xattr.of(0, 0)));
    if hash != 0 {
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(hash, buffer.block());
    }
    Ok(())
}

/// Counts one user more of each value in an inode of its own that the shared block `old` has and
/// `set` keeps.
fn share_values(
    volume: &Volume,
    h: &Handle,
    inode: &Inode,
    old: &Buffer,
    set: &XattrSet,
) -> Result<()> {
    let (_, before) = parse_block(volume, inode, old)?;
    for xattr in &set.entries {
        let kept = before.get(xattr.index, &xattr.name) == Some(xattr);
        if let (XattrValue::Inode { inode: ino, .. }, true) = (&xattr.value, kept) {
            inode_value::refer(volume, h, inode, *ino)?;
        }
    }
    Ok(())
}

/// A block with the same attributes that one more inode may use, and how many use it.
fn twin(
    volume: &Volume,
    known: &HashMap<u32, u64>,
    hash: u32,
    set: &XattrSet,
) -> Result<Option<(Arc<Buffer>, u32)>> {
    let Some(block) = known.get(&hash).filter(|_| hash != 0) else {
        return Ok(None);
    };
    // Values in inodes count their users by block, so a block with such values is not shared.
    let is_plain = |xattr: &Xattr| matches!(xattr.value, XattrValue::Bytes(_));
    if !set.entries.iter().all(is_plain) {
        return Ok(None);
    }
    // Only a block that is still in memory and still has attributes: it may have been freed since.
    let Some(buffer) = volume.cache.peek(*block).filter(|b| b.kind() == KIND) else {
        return Ok(None);
    };
    let parsed = XattrSet::parse_block(&buffer.read(), volume.geometry.inodes_count());
    let Ok((header, there)) = parsed else {
        return Ok(None);
    };
    let mut wanted = set.clone();
    let order = |set: &mut XattrSet| {
        set.entries
            .sort_by(|a, b| (a.index, &a.name).cmp(&(b.index, &b.name)));
    };
    let mut there = there;
    order(&mut there);
    order(&mut wanted);
    let count = header.refcount.get();
    let same = there == wanted && (1..XATTR_REFCOUNT_MAX).contains(&count);
    Ok(same.then_some((buffer, count)))
}

/// Records the block in the inode, and counts it among the inode's blocks.
fn point_to(volume: &Volume, inode: &Inode, block: u64) -> Result<()> {
    let mut state = inode.state.lock();
    let had = state.raw.file_acl() != 0;
    let per_block = volume.block_size() / 512;
    let sectors = state.raw.sectors(&volume.geometry);
    let sectors = match (had, block != 0) {
        (false, true) => sectors.saturating_add(per_block),
        (true, false) => sectors.saturating_sub(per_block),
        _ => sectors,
    };
    state.raw.set_sectors(sectors, &volume.geometry)?;
    Ok(state.raw.set_file_acl(block)?)
}

/// Releases an inode's reference to the block. The last one frees the block.
fn release(volume: &Volume, h: &Handle, inode: &Inode, buffer: &Arc<Buffer>) -> Result<()> {
    let (count, _) = parse_block(volume, inode, buffer)?;
    if count > 1 {
        return set_count(h, buffer, count - 1);
    }
    if count == 0 {
        return Err(Error::BadBlock {
            ino: inode.ino,
            block: buffer.block(),
            reason: "attributes that no inode uses".into(),
        });
    }
    buffer.set_kind(0);
    buffer.set_seal(None);
    let extent = Extent {
        start: buffer.block(),
        len: 1,
    };
    block_alloc::free(&volume.groups, h, extent, true)
}
