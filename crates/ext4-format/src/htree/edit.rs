//! In-place changes of hash-tree nodes. They do not update checksums: call [`DirFormat::dx_seal`]
//! at the end.

use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use super::{
    DX_BLOCK_MASK, DX_ENTRY_SIZE, DxCountLimit, DxRootInfo, HtreeError, NODE_ENTRIES_AT,
    ROOT_ENTRIES_AT, ROOT_INFO_AT, dx_count_limit,
};
use crate::dir::{DirFormat, dir_type};

impl DirFormat {
    /// Makes a root without inner levels whose one leaf is `leaf`.
    pub fn dx_init_root(
        &self,
        block: &mut [u8],
        inode: u32,
        parent: u32,
        hash_version: u8,
        leaf: u32,
    ) -> Result<(), HtreeError> {
        self.dx_size(block)?;
        block.fill(0);
        let kind = if self.file_type {
            dir_type::DIRECTORY
        } else {
            0
        };
        self.put_header(block, 0, inode, 12, 1, kind)?;
        self.put_header(block, 12, parent, self.block_size - 12, 2, kind)?;
        block[8] = b'.';
        block[20..22].copy_from_slice(b"..");
        let info = DxRootInfo {
            reserved_zero: U32::ZERO,
            hash_version,
            info_length: size_of::<DxRootInfo>() as u8,
            indirect_levels: 0,
            unused_flags: 0,
        };
        block[ROOT_INFO_AT..ROOT_ENTRIES_AT].copy_from_slice(info.as_bytes());
        put_count(block, ROOT_ENTRIES_AT, self.dx_root_limit(), 1);
        put_block(block, ROOT_ENTRIES_AT, 0, leaf);
        Ok(())
    }

    /// Makes an inner node whose first child is `child`.
    pub fn dx_init_node(&self, block: &mut [u8], child: u32) -> Result<(), HtreeError> {
        self.dx_size(block)?;
        block.fill(0);
        self.put_header(block, 0, 0, self.block_size, 0, 0)?;
        put_count(block, NODE_ENTRIES_AT, self.dx_node_limit(), 1);
        put_block(block, NODE_ENTRIES_AT, 0, child);
        Ok(())
    }

    /// Puts an entry at `index` (1 or more) of a root or inner node.
    pub fn dx_insert(
        &self,
        block: &mut [u8],
        index: usize,
        hash: u32,
        child: u32,
    ) -> Result<(), HtreeError> {
        let (at, limit, count) = self.dx_layout(block)?;
        if index == 0 || index > count {
            return Err(HtreeError::NoEntry { index });
        }
        if count >= limit {
            return Err(HtreeError::Full { limit });
        }
        let from = at + index * DX_ENTRY_SIZE;
        block.copy_within(from..at + count * DX_ENTRY_SIZE, from + DX_ENTRY_SIZE);
        block[from..from + 4].copy_from_slice(&hash.to_le_bytes());
        put_block(block, at, index, child);
        put_count(block, at, limit, count + 1);
        Ok(())
    }

    /// Moves the upper half of a node's entries into the new node `other`. Returns the hash for
    /// `other` in the parent. As in the kernel, the lower half of an odd number is the smaller one.
    pub fn dx_split(&self, block: &mut [u8], other: &mut [u8]) -> Result<u32, HtreeError> {
        let (at, limit, count) = self.dx_layout(block)?;
        let keep = count / 2;
        if keep == 0 {
            return Err(HtreeError::NoSplit { names: count });
        }
        let moved = block[at + keep * DX_ENTRY_SIZE..at + count * DX_ENTRY_SIZE].to_vec();
        let mut hash = [0; 4];
        hash.copy_from_slice(&moved[..4]);
        self.dx_fill_node(other, &moved)?;
        block[at + keep * DX_ENTRY_SIZE..at + count * DX_ENTRY_SIZE].fill(0);
        put_count(block, at, limit, keep);
        Ok(u32::from_le_bytes(hash))
    }

    /// Adds a level below the root: all its entries move to the new node `other`, which is block
    /// `other_block` of the directory.
    pub fn dx_grow(
        &self,
        root: &mut [u8],
        other: &mut [u8],
        other_block: u32,
    ) -> Result<(), HtreeError> {
        let (at, limit, count) = self.dx_layout(root)?;
        if at != ROOT_ENTRIES_AT {
            return Err(HtreeError::NoNode);
        }
        let levels = ROOT_INFO_AT + 6;
        if root[levels] >= self.dx_max_levels() {
            return Err(HtreeError::Levels {
                found: root[levels].saturating_add(1),
                most: self.dx_max_levels(),
            });
        }
        let entries = at..at + count * DX_ENTRY_SIZE;
        let moved = root[entries.clone()].to_vec();
        self.dx_fill_node(other, &moved)?;
        root[entries].fill(0);
        root[levels] += 1;
        put_count(root, at, limit, 1);
        put_block(root, at, 0, other_block);
        Ok(())
    }

    /// Sets the inode of `..` in a root.
    pub fn dx_set_parent(&self, root: &mut [u8], parent: u32) -> Result<(), HtreeError> {
        if self.dx_begin(root)? != ROOT_ENTRIES_AT {
            return Err(HtreeError::NoNode);
        }
        root[12..16].copy_from_slice(&parent.to_le_bytes());
        Ok(())
    }

    /// Initializes `other` as an inner node with these entries. The first one loses its hash.
    fn dx_fill_node(&self, other: &mut [u8], entries: &[u8]) -> Result<(), HtreeError> {
        self.dx_init_node(other, 0)?;
        let limit = self.dx_node_limit();
        let target = other.get_mut(NODE_ENTRIES_AT..NODE_ENTRIES_AT + entries.len());
        let target = target
            .filter(|bytes| bytes.len() <= limit * DX_ENTRY_SIZE)
            .ok_or(HtreeError::Full { limit })?;
        target.copy_from_slice(entries);
        put_count(other, NODE_ENTRIES_AT, limit, entries.len() / DX_ENTRY_SIZE);
        Ok(())
    }

    /// Offset of the entries, limit, count.
    fn dx_layout(&self, block: &[u8]) -> Result<(usize, usize, usize), HtreeError> {
        let at = self.dx_begin(block)?;
        let (limit, count) = dx_count_limit(block, at).ok_or(HtreeError::NoNode)?;
        let expected = if at == ROOT_ENTRIES_AT {
            self.dx_root_limit()
        } else {
            self.dx_node_limit()
        };
        if usize::from(limit) != expected {
            return Err(HtreeError::Limit {
                found: limit,
                expected,
            });
        }
        if count == 0 || count > limit {
            return Err(HtreeError::Count { count, limit });
        }
        Ok((at, usize::from(limit), usize::from(count)))
    }
}

fn put_count(block: &mut [u8], at: usize, limit: usize, count: usize) {
    let head = DxCountLimit {
        limit: (limit as u16).into(),
        count: (count as u16).into(),
    };
    block[at..at + size_of::<DxCountLimit>()].copy_from_slice(head.as_bytes());
}

fn put_block(block: &mut [u8], at: usize, index: usize, child: u32) {
    let at = at + index * DX_ENTRY_SIZE + 4;
    block[at..at + 4].copy_from_slice(&(child & DX_BLOCK_MASK).to_le_bytes());
}
