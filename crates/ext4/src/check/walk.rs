//! Walks the map of an inode: extents or pointers, read from the device and validated on the way.

use sapwood_ext4_format::{
    ExtentBounds, ExtentNode, INDIRECT_DIRECT, IndirectError, IndirectGeometry, Inode, InodeFlags,
    extent_block_verify, indirect_pointers,
};

use super::finding::Finding;
use super::state::View;

/// Most findings for one map.
const MOST_FINDINGS: usize = 1000;

/// A piece of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A block of the map itself. It is entered if the visitor returns true.
    Node { block: u64 },
    Data {
        logical: u64,
        physical: u64,
        len: u64,
        unwritten: bool,
    },
}

/// Result of a walk, apart from the pieces.
#[derive(Debug, Default)]
pub(super) struct Walked {
    pub(super) findings: Vec<Finding>,
    /// Part of the map could not be entered.
    pub(super) incomplete: bool,
}

struct Walk<'a> {
    view: &'a View,
    ino: u32,
    seed: u32,
    visit: &'a mut dyn FnMut(Piece) -> bool,
    walked: Walked,
}

/// Whether an inode has a map. Some use their 60 bytes for something else.
pub(super) fn has_map(view: &View, inode: &Inode) -> bool {
    let kind = inode.is_dir() || inode.is_regular() || inode.is_symlink();
    kind && !inode.flags().contains(InodeFlags::INLINE_DATA) && !is_fast(view, inode)
}

/// Whether a symbolic link has its target in the inode. All readers decide by its size: from 60
/// bytes on it has a map.
pub(super) fn is_fast(view: &View, inode: &Inode) -> bool {
    inode.is_symlink()
        && !inode
            .flags()
            .intersects(InodeFlags::INLINE_DATA | InodeFlags::EXTENTS)
        && inode.is_fast_symlink(&view.geometry)
}

/// Walks the map of an inode that has one. `visit` decides for each node whether to enter it, and
/// sees all data.
pub(super) fn walk(
    view: &View,
    ino: u32,
    inode: &Inode,
    visit: &mut dyn FnMut(Piece) -> bool,
) -> Walked {
    let mut walk = Walk {
        view,
        ino,
        seed: view.geometry.inode_seed(ino, inode.generation()),
        visit,
        walked: Walked::default(),
    };
    if inode.flags().contains(InodeFlags::EXTENTS) {
        let first = u64::from(view.geometry.first_data_block());
        let bounds = ExtentBounds::root(first, view.geometry.blocks_count());
        walk.extents(inode.block(), &bounds, 0);
    } else {
        walk.pointers(inode.block());
    }
    walk.walked
}

impl Walk<'_> {
    fn found(&mut self, finding: Finding) {
        self.walked.incomplete = true;
        if self.walked.findings.len() < MOST_FINDINGS {
            self.walked.findings.push(finding);
        }
    }

    /// A node and everything below it; `block` is 0 for the root.
    fn extents(&mut self, bytes: &[u8], bounds: &ExtentBounds, block: u64) {
        let ino = self.ino;
        let node = match ExtentNode::parse(bytes, bounds) {
            Ok(node) => node,
            Err(error) => return self.found(Finding::ExtentNodeBad { ino, block, error }),
        };
        if node.is_leaf() {
            for extent in node.extents() {
                (self.visit)(Piece::Data {
                    logical: extent.logical.into(),
                    physical: extent.physical,
                    len: extent.len.into(),
                    unwritten: extent.unwritten,
                });
            }
            return;
        }
        for (index, entry) in node.indexes().enumerate() {
            let Some(below) = node.child_bounds(index, bounds) else {
                continue;
            };
            if !(self.visit)(Piece::Node { block: entry.child }) {
                continue;
            }
            match self.view.block(entry.child) {
                Ok(bytes) => self.extent_child(&bytes, &below, entry.child, entry.logical),
                Err(finding) => self.found(finding),
            }
        }
    }

    fn extent_child(&mut self, bytes: &[u8], bounds: &ExtentBounds, block: u64, expected: u32) {
        let ino = self.ino;
        if self.view.geometry.metadata_csum()
            && let Err(error) = extent_block_verify(bytes, self.seed)
        {
            self.found(Finding::ExtentNodeBad { ino, block, error });
        }
        let first = ExtentNode::parse_header(bytes).ok();
        let found = first.and_then(|node| node.logical(0));
        if let Some(found) = found.filter(|found| *found > expected) {
            self.found(Finding::ExtentNodeStart {
                ino,
                block,
                found,
                expected,
            });
        }
        self.extents(bytes, bounds, block);
    }

    fn valid(&self, pointer: u32) -> bool {
        let first = u64::from(self.view.geometry.first_data_block());
        u64::from(pointer) > first && u64::from(pointer) < self.view.geometry.blocks_count()
    }

    /// The pointers in an inode.
    fn pointers(&mut self, root: &[u8]) {
        let Ok(roots) = indirect_pointers(root) else {
            return;
        };
        let geometry = IndirectGeometry::new(self.view.geometry.block_size());
        let mut logical = 0;
        for (index, pointer) in (0_u32..).zip(roots) {
            let depth = index.saturating_sub(INDIRECT_DIRECT - 1).min(3) as u8;
            self.pointer(0, index as usize, pointer.get(), depth, logical);
            logical += geometry.span(depth);
        }
    }

    /// A pointer with `depth` blocks of pointers below, the `index`th of the block at `at`.
    fn pointer(&mut self, at: u64, index: usize, pointer: u32, depth: u8, logical: u64) {
        if pointer == 0 {
            return;
        }
        let block = u64::from(pointer);
        if !self.valid(pointer) {
            let first = u64::from(self.view.geometry.first_data_block());
            let error = IndirectError::Pointer {
                index,
                block: pointer,
                first,
                limit: self.view.geometry.blocks_count(),
            };
            let ino = self.ino;
            return self.found(Finding::PointerBad {
                ino,
                block: at,
                error,
            });
        }
        if depth == 0 {
            (self.visit)(Piece::Data {
                logical,
                physical: block,
                len: 1,
                unwritten: false,
            });
            return;
        }
        if !(self.visit)(Piece::Node { block }) {
            return;
        }
        let bytes = match self.view.block(block) {
            Ok(bytes) => bytes,
            Err(finding) => return self.found(finding),
        };
        let below = IndirectGeometry::new(self.view.geometry.block_size()).span(depth - 1);
        let pointers = indirect_pointers(&bytes).unwrap_or_default();
        for (index, pointer) in pointers.iter().enumerate() {
            let logical = logical.saturating_add(below.saturating_mul(index as u64));
            self.pointer(block, index, pointer.get(), depth - 1, logical);
        }
    }
}
