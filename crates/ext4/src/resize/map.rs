//! Reads the maps of inodes.

use sapwood_ext4_format::{
    Extent, ExtentBounds, ExtentError, ExtentNode, INDIRECT_DIRECT, Inode, InodeFlags,
    extent_block_verify,
};

use super::Result;
use super::image::Image;
use crate::Error;

/// Whether an inode maps blocks.
pub(super) fn has_map(image: &Image, inode: &Inode) -> bool {
    let inline = inode.flags().contains(InodeFlags::INLINE_DATA);
    let kind = inode.is_regular() || inode.is_dir() || inode.is_symlink();
    kind && !inline && !inode.is_fast_symlink(&image.geometry)
}

/// An extent tree.
pub(super) struct Tree {
    /// Extents in the order of the file.
    pub(super) extents: Vec<Extent>,
    /// Blocks of the tree.
    pub(super) nodes: Vec<u64>,
}

/// Reads and validates an extent tree.
///
/// # Errors
/// The tree is wrong; errors of the device.
pub(super) fn read_tree(image: &Image, ino: u32, inode: &Inode) -> Result<Tree> {
    let geometry = &image.geometry;
    let bad = |reason: ExtentError| Error::BadInode {
        ino,
        reason: reason.to_string(),
    };
    let bounds = ExtentBounds::root(geometry.first_data_block().into(), geometry.blocks_count());
    let mut tree = Tree {
        extents: Vec::new(),
        nodes: Vec::new(),
    };
    let mut waiting = vec![(None, bounds)];
    while let Some((block, bounds)) = waiting.pop() {
        let bytes = match block {
            None => inode.block().to_vec(),
            Some(block) => {
                let bytes = image.block(block)?;
                if geometry.metadata_csum() {
                    let seed = geometry.inode_seed(ino, inode.generation());
                    extent_block_verify(&bytes, seed).map_err(bad)?;
                }
                tree.nodes.push(block);
                bytes
            }
        };
        let node = ExtentNode::parse(&bytes, &bounds).map_err(bad)?;
        if node.is_leaf() {
            tree.extents.extend(node.extents());
            continue;
        }
        for (at, index) in node.indexes().enumerate() {
            if let Some(below) = node.child_bounds(at, &bounds) {
                waiting.push((Some(index.child), below));
            }
        }
    }
    tree.extents.sort_by_key(|extent| extent.logical);
    Ok(tree)
}

/// The blocks of the content of an inode that has a map, as runs of block and length.
///
/// # Errors
/// The map is wrong; errors of the device.
pub(super) fn content(image: &Image, ino: u32, inode: &Inode) -> Result<Vec<(u64, u64)>> {
    if inode.flags().contains(InodeFlags::EXTENTS) {
        let extents = read_tree(image, ino, inode)?.extents;
        let runs = extents.iter().filter(|extent| !extent.unwritten);
        return Ok(runs
            .map(|extent| (extent.physical, u64::from(extent.len)))
            .collect());
    }
    let mut found = Found {
        runs: Vec::new(),
        left: image.geometry.blocks_count(),
    };
    for (index, bytes) in inode.block().chunks_exact(4).enumerate() {
        let depth = (index + 1).saturating_sub(INDIRECT_DIRECT as usize);
        found.pointer(image, ino, number(bytes), depth)?;
    }
    Ok(found.runs)
}

/// Blocks that pointers lead to.
struct Found {
    runs: Vec<(u64, u64)>,
    /// Blocks that pointers may still lead to: as many as the file system has. More pointers form a
    /// cycle.
    left: u64,
}

impl Found {
    /// Adds the target of a pointer, `depth` blocks of pointers above data.
    fn pointer(&mut self, image: &Image, ino: u32, block: u64, depth: usize) -> Result<()> {
        if block == 0 {
            return Ok(());
        }
        image.geometry.check_blocks(block, 1)?;
        let left = self.left.checked_sub(1);
        self.left = left.ok_or_else(|| Error::BadInode {
            ino,
            reason: "more pointers than blocks".into(),
        })?;
        if depth == 0 {
            match self.runs.last_mut() {
                Some((start, len)) if *start + *len == block => *len += 1,
                _ => self.runs.push((block, 1)),
            }
            return Ok(());
        }
        for bytes in image.block(block)?.chunks_exact(4) {
            self.pointer(image, ino, number(bytes), depth - 1)?;
        }
        Ok(())
    }
}

fn number(bytes: &[u8]) -> u64 {
    let bytes = bytes.first_chunk().copied().unwrap_or_default();
    u32::from_le_bytes(bytes).into()
}
