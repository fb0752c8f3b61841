//! [`Path`]: the path from the root of an index to one leaf.

use std::sync::Arc;

use sapwood_ext4_format::{DirHasher, DxNode, HashVersion, InodeFlags, NameHash, casefold};
use sapwood_jbd2::Buffer;

use super::super::shape::Dir;
use crate::Result;

/// A node of a path, and the entry by which the path continues.
pub(super) struct Frame {
    pub(super) buffer: Arc<Buffer>,
    pub(super) index: usize,
    /// Hash of the entry after that one, if the node has one.
    next: Option<u32>,
}

/// The path to one leaf.
pub(in super::super) struct Path {
    /// The root first.
    pub(super) frames: Vec<Frame>,
    /// Block of names that it leads to.
    pub(in super::super) leaf: u32,
    /// Lowest hash of names in the leaf. If it is odd, names of the next lower hash begin in the
    /// previous leaf.
    pub(in super::super) low: u32,
    /// Number of leaves passed. A valid index leads to each leaf once, so there are at most as many
    /// as blocks.
    passed: u32,
}

/// The hash function that an index names.
///
/// # Errors
/// The root is damaged, or names an unknown hash function.
fn hasher(dir: &Dir<'_>, root: &Buffer) -> Result<Option<DirHasher>> {
    let content = root.read();
    let bad = |reason: String| dir.bad_block(root.block(), reason);
    let number = dir
        .format
        .dx_info(&content)
        .map_err(|reason| bad(reason.to_string()))?
        .hash_version;
    let version = HashVersion::from_disk(number, dir.store.geometry.unsigned_hash())
        .ok_or_else(|| bad(format!("htree hash of kind {number}")))?;
    Ok(usable(dir, version))
}

/// A hasher, if names of this directory can be hashed: not with a key.
fn usable(dir: &Dir<'_>, version: HashVersion) -> Option<DirHasher> {
    let keyed = version == HashVersion::SipHash || dir.format.hash_in_entry;
    (!keyed).then(|| DirHasher::new(version, dir.store.geometry.hash_seed()))
}

/// Hash of a name; in a casefolded directory, of its folded form.
pub(in super::super) fn hash(dir: &Dir<'_>, hasher: &DirHasher, name: &[u8]) -> Result<NameHash> {
    let folds = dir.flags.contains(InodeFlags::CASEFOLD);
    let folded = folds.then(|| casefold(name)).flatten();
    hasher
        .hash(folded.as_deref().unwrap_or(name))
        .ok_or_else(|| dir.bad("its names are hashed with a key"))
}

/// The hash of a new index.
pub(in super::super) fn default_hasher(dir: &Dir<'_>) -> Option<DirHasher> {
    let geometry = &dir.store.geometry;
    let number = dir.store.super_block.lock().def_hash_version;
    let version = HashVersion::from_disk(number, geometry.unsigned_hash());
    usable(dir, version.unwrap_or(HashVersion::HalfMd4))
}

/// The validated root, and the hash of names, if they can be hashed.
///
/// # Errors
/// It is damaged; errors of the device.
pub(in super::super) fn root(dir: &Dir<'_>) -> Result<(Arc<Buffer>, Option<DirHasher>)> {
    let root = dir.node(0, |content| {
        dir.format.dx_root(content, dir.blocks).map(|_| ())
    })?;
    let hasher = hasher(dir, &root)?;
    Ok((root, hasher))
}

/// Entries of a node.
///
/// # Errors
/// It is damaged.
pub(super) fn entries<'c>(dir: &Dir<'_>, buffer: &Buffer, content: &'c [u8]) -> Result<DxNode<'c>> {
    dir.format
        .dx_judged(content)
        .map_err(|reason| dir.bad_block(buffer.block(), reason))
}

impl Frame {
    /// A node, and an entry of it.
    pub(super) fn new(buffer: Arc<Buffer>, index: usize) -> Self {
        Self {
            buffer,
            index,
            next: None,
        }
    }
}

impl Path {
    /// The path to the first leaf that may have names with this hash.
    ///
    /// # Errors
    /// The index is damaged; errors of the device.
    pub(in super::super) fn to(dir: &Dir<'_>, root: Arc<Buffer>, hash: u32) -> Result<Self> {
        let levels = {
            let content = root.read();
            let info = dir.format.dx_info(&content);
            let info = info.map_err(|reason| dir.bad_block(root.block(), reason))?;
            usize::from(info.indirect_levels)
        };
        let mut path = Self {
            frames: Vec::with_capacity(levels + 1),
            leaf: 0,
            low: 0,
            passed: 0,
        };
        path.enter(dir, root, hash)?;
        path.descend(dir, levels, hash)?;
        Ok(path)
    }

    /// Continues from the last frame until there are `levels` below the root.
    fn descend(&mut self, dir: &Dir<'_>, levels: usize, hash: u32) -> Result<()> {
        while self.frames.len() <= levels {
            let logical = self.leaf;
            let node = dir.node(logical, |content| {
                dir.format.dx_node(content, dir.blocks).map(|_| ())
            })?;
            self.judge_range(dir, &node)?;
            self.enter(dir, node, hash)?;
        }
        Ok(())
    }

    /// The hashes of a node must lie within its range in the parent, so no two paths lead to a
    /// node.
    fn judge_range(&self, dir: &Dir<'_>, node: &Buffer) -> Result<()> {
        let content = node.read();
        let entries = entries(dir, node, &content)?;
        let high = self.high().unwrap_or(u32::MAX);
        let first = entries.entry(1);
        let last = entries.entry(entries.count().saturating_sub(1).max(1));
        for entry in first.iter().chain(&last) {
            if entry.hash < self.low || entry.hash > high {
                let reason = format!(
                    "htree hash {:#010x} outside of {:#010x} to {high:#010x}",
                    entry.hash, self.low
                );
                return Err(dir.bad_block(node.block(), reason));
            }
        }
        Ok(())
    }

    /// Adds a node, with the entry that leads to a hash.
    fn enter(&mut self, dir: &Dir<'_>, buffer: Arc<Buffer>, hash: u32) -> Result<()> {
        let index = {
            let content = buffer.read();
            entries(dir, &buffer, &content)?.search(hash)
        };
        self.frames.push(Frame::new(buffer, index));
        self.point(dir)
    }

    /// Reads the current entry of the last frame.
    fn point(&mut self, dir: &Dir<'_>) -> Result<()> {
        let Some(frame) = self.frames.last_mut() else {
            return Err(dir.bad("its index has no root"));
        };
        let content = frame.buffer.read();
        let node = entries(dir, &frame.buffer, &content)?;
        let entry = node
            .entry(frame.index)
            .ok_or_else(|| dir.bad_block(frame.buffer.block(), "htree node ends early"))?;
        frame.next = node.entry(frame.index + 1).map(|next| next.hash);
        self.leaf = entry.block;
        if frame.index > 0 {
            self.low = entry.hash;
        }
        Ok(())
    }

    /// Hash with which the next leaf begins, as its entry has it; `None` at the last one.
    pub(in super::super) fn high(&self) -> Option<u32> {
        self.frames.iter().rev().find_map(|frame| frame.next)
    }

    /// Whether the next leaf begins with names of this hash, which is even.
    pub(in super::super) fn continues(&self, hash: u32) -> bool {
        self.high() == Some(hash | 1)
    }

    /// Whether names of this hash may be in the leaf.
    pub(in super::super) fn holds(&self, hash: u32) -> bool {
        (hash | 1) >= self.low && self.high().is_none_or(|high| hash < high)
    }

    /// Continues to the next leaf; false if there is none.
    ///
    /// # Errors
    /// The index is damaged; errors of the device.
    pub(in super::super) fn advance(&mut self, dir: &Dir<'_>) -> Result<bool> {
        let levels = self.frames.len().saturating_sub(1);
        while self.frames.last().is_some_and(|frame| frame.next.is_none()) {
            self.frames.pop();
        }
        let Some(frame) = self.frames.last_mut() else {
            return Ok(false);
        };
        self.passed += 1;
        if self.passed > dir.blocks {
            return Err(dir.bad("its index leads to a block twice"));
        }
        frame.index += 1;
        self.point(dir)?;
        self.descend(dir, levels, 0)?;
        Ok(true)
    }
}
