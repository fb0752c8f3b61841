//! Growing an index: splits of leaves and nodes, new levels, and its beginning.

use std::sync::Arc;

use sapwood_ext4_format::{DirHasher, Incoming, InodeFlags, LeafSplit, NewEntry};
use sapwood_jbd2::{Buffer, Handle};

use super::super::linear;
use super::super::shape::{Dir, Growth};
use super::path::{self, Frame, Path, entries};
use crate::seal::SealKind;
use crate::{Error, Result};

/// A leaf split in memory.
struct Halves {
    low: Vec<u8>,
    high: Vec<u8>,
    /// The first hash of the upper half, and what moved there.
    split: LeafSplit,
}

/// Splits the content of a leaf, and puts a name into the half where it belongs.
fn split(
    dir: &Dir<'_>,
    block: u64,
    mut low: Vec<u8>,
    hasher: &DirHasher,
    entry: &NewEntry<'_>,
) -> Result<Halves> {
    let format = &dir.format;
    let mut high = vec![0; format.block_size];
    let incoming = Incoming {
        hash: entry.hash.0,
        size: format.entry_size(entry.name),
    };
    let hash = |name: &[u8]| path::hash(dir, hasher, name).map_or(0, |hash| hash.major);
    let split = format
        .split_leaf_for(&mut low, &mut high, hash, incoming)
        .map_err(|reason| dir.bad_block(block, reason))?;
    let side = if incoming.hash >= split.hash {
        &mut high
    } else {
        &mut low
    };
    format
        .insert(side, entry)
        .map_err(|reason| dir.bad_block(block, reason))?
        .ok_or_else(|| dir.bad_block(block, "no room in half a leaf"))?;
    Ok(Halves { low, high, split })
}

/// Writes a block that was built in memory.
fn write(h: &Handle, buffer: &Arc<Buffer>, content: &[u8]) -> Result<()> {
    h.modify(buffer)?.copy_from_slice(content);
    Ok(())
}

/// Puts a name into a leaf that has no room as it is.
///
/// # Errors
/// `NoSpace` if the index is full, before the first change; the image is damaged; errors of the
/// journal.
pub(super) fn split_and_insert(
    dir: &mut Dir<'_>,
    h: &Handle,
    mut path: Path,
    hasher: &DirHasher,
    entry: &NewEntry<'_>,
) -> Result<()> {
    let leaf = dir.leaf(path.leaf)?;
    if let Some(tidied) = tidy(dir, &leaf, entry)? {
        return write(h, &leaf, &tidied);
    }
    let content = leaf.read().to_vec();
    let halves = split(dir, leaf.block(), content, hasher, entry)?;
    make_room(dir, h, &mut path)?;
    let (logical, new) = dir.append(h, SealKind::DirLeaf)?;
    write(h, &new, &halves.high)?;
    write(h, &leaf, &halves.low)?;
    match path.frames.last() {
        Some(frame) => link(dir, h, frame, halves.split.hash, logical),
        None => Err(dir.bad("its index has no root")),
    }
}

/// The compacted leaf with the name, if a quarter of it stays free: a split would only make two
/// leaves with few names. `None` if it does not.
fn tidy(dir: &Dir<'_>, leaf: &Buffer, entry: &NewEntry<'_>) -> Result<Option<Vec<u8>>> {
    let format = &dir.format;
    let content = leaf.read();
    let bad = |reason| dir.bad_block(leaf.block(), reason);
    let mut used = format.entry_size(entry.name);
    for old in format.entries(&content) {
        let old = old.map_err(bad)?;
        if old.inode != 0 {
            used += format.entry_size(old.name);
        }
    }
    if used > format.usable() / 4 * 3 {
        return Ok(None);
    }
    let mut tidied = content.to_vec();
    format.compact(&mut tidied).map_err(bad)?;
    let put = format.insert(&mut tidied, entry).map_err(bad)?;
    Ok(put.map(|_| tidied))
}

/// Inserts an entry after the current entry of a frame.
fn link(dir: &Dir<'_>, h: &Handle, frame: &Frame, hash: u32, logical: u32) -> Result<()> {
    let index = frame.index + 1;
    dir.change(h, &frame.buffer, |format, content| {
        format.dx_insert(content, index, hash, logical)
    })
}

fn is_full(dir: &Dir<'_>, frame: &Frame) -> Result<bool> {
    let content = frame.buffer.read();
    Ok(entries(dir, &frame.buffer, &content)?.is_full())
}

/// Levels below the root that the index has, and may have.
fn levels(dir: &Dir<'_>, path: &Path) -> (usize, usize) {
    let most = usize::from(dir.format.dx_max_levels());
    (path.frames.len().saturating_sub(1), most)
}

/// Ensures that the node above the leaf has room for one more entry.
///
/// # Errors
/// `NoSpace` if all nodes are full and there may be no further level, before anything changed.
fn make_room(dir: &mut Dir<'_>, h: &Handle, path: &mut Path) -> Result<()> {
    let mut roomy = None;
    for (depth, frame) in path.frames.iter().enumerate().rev() {
        if !is_full(dir, frame)? {
            roomy = Some(depth);
            break;
        }
    }
    let roomy = match roomy {
        Some(depth) => depth,
        None => {
            let (now, most) = levels(dir, path);
            if now >= most {
                return Err(Error::NoSpace);
            }
            add_level(dir, h, path)?;
            // The new node has the root's entries and a bit more room.
            1
        }
    };
    for depth in roomy + 1..path.frames.len() {
        split_node(dir, h, path, depth)?;
    }
    Ok(())
}

/// Moves all entries of the root to a new node below it.
fn add_level(dir: &mut Dir<'_>, h: &Handle, path: &mut Path) -> Result<()> {
    let Some(root) = path.frames.first().map(|frame| Arc::clone(&frame.buffer)) else {
        return Err(dir.bad("its index has no root"));
    };
    let mut upper = root.read().to_vec();
    let mut lower = vec![0; dir.format.block_size];
    let (logical, new) = dir.append(h, SealKind::HashNode)?;
    dir.format
        .dx_grow(&mut upper, &mut lower, logical)
        .map_err(|reason| dir.bad_block(root.block(), reason))?;
    write(h, &new, &lower)?;
    write(h, &root, &upper)?;
    path.insert_below_root(new);
    Ok(())
}

/// Splits the full node at `depth` of a path, whose parent has room, and lets the path continue
/// through the half that it came through.
fn split_node(dir: &mut Dir<'_>, h: &Handle, path: &mut Path, depth: usize) -> Result<()> {
    let no_root = || dir.bad("its index has no root");
    let frame = path.frames.get(depth).ok_or_else(no_root)?;
    let mut low = frame.buffer.read().to_vec();
    let mut high = vec![0; dir.format.block_size];
    let hash = dir
        .format
        .dx_split(&mut low, &mut high)
        .map_err(|reason| dir.bad_block(frame.buffer.block(), reason))?;
    let kept = entries(dir, &frame.buffer, &low)?.count();
    let old = Arc::clone(&frame.buffer);
    let (logical, new) = dir.append(h, SealKind::HashNode)?;
    write(h, &new, &high)?;
    write(h, &old, &low)?;
    let parent = depth.checked_sub(1).and_then(|up| path.frames.get(up));
    let parent = parent.ok_or_else(|| dir.bad("its index has no root"))?;
    link(dir, h, parent, hash, logical)?;
    path.follow_split(depth, kept, new);
    Ok(())
}

impl Path {
    fn insert_below_root(&mut self, node: Arc<Buffer>) {
        let Some(root) = self.frames.first_mut() else {
            return;
        };
        let index = std::mem::take(&mut root.index);
        let frame = Frame::new(node, index);
        self.frames.insert(1, frame);
    }

    /// Updates the path after a split of the node at `depth`: its first `kept` entries stayed, the
    /// others are in `new`.
    fn follow_split(&mut self, depth: usize, kept: usize, new: Arc<Buffer>) {
        let Some(frame) = self.frames.get_mut(depth) else {
            return;
        };
        let Some(index) = frame.index.checked_sub(kept) else {
            return;
        };
        *frame = Frame::new(new, index);
        if let Some(parent) = depth.checked_sub(1).and_then(|up| self.frames.get_mut(up)) {
            parent.index += 1;
        }
    }
}

/// The blocks that adding a name to the index changes and adds.
///
/// # Errors
/// `NoSpace` if all nodes are full and there may be no further level; the image is damaged; errors
/// of the device.
pub(in super::super) fn growth(dir: &Dir<'_>, name: &[u8]) -> Result<Growth> {
    let (root, hasher) = super::root(dir)?;
    let hash = match hasher {
        Some(hasher) => path::hash(dir, &hasher, name)?.major,
        None => return Err(dir.bad("names of this directory cannot be hashed")),
    };
    let path = Path::to(dir, root, hash)?;
    let leaf = dir.leaf(path.leaf)?;
    let room = dir.format.has_room(&leaf.read(), name);
    if room.map_err(|reason| dir.bad_block(leaf.block(), reason))? {
        return Ok(Growth {
            changed: 1,
            added: 0,
        });
    }
    let mut full = 0;
    for frame in path.frames.iter().rev() {
        if !is_full(dir, frame)? {
            // The leaf and the full nodes above it are split, the next one gets an entry.
            return Ok(Growth {
                changed: full + 2,
                added: full + 1,
            });
        }
        full += 1;
    }
    let (now, most) = levels(dir, &path);
    if now >= most {
        return Err(Error::NoSpace);
    }
    // The root is not split: its entries move to a new node.
    Ok(Growth {
        changed: full + 1,
        added: full + 1,
    })
}

/// Turns a directory of one full block into one with an index, and puts a name into it.
///
/// # Errors
/// The block is damaged; no space; errors of the journal.
pub(in super::super) fn make_indexed(
    dir: &mut Dir<'_>,
    h: &Handle,
    hasher: &DirHasher,
    entry: &NewEntry<'_>,
) -> Result<()> {
    let hash = path::hash(dir, hasher, entry.name)?;
    let entry = &NewEntry {
        hash: (hash.major, hash.minor),
        ..*entry
    };
    let (first, up, parent) = linear::dot_dot(dir)?;
    let halves = {
        let mut names = first.read().to_vec();
        let format = &dir.format;
        let emptied = format
            .remove(&mut names, 0)
            .and_then(|()| format.remove(&mut names, up))
            .and_then(|()| format.compact(&mut names));
        emptied.map_err(|reason| dir.bad_block(first.block(), reason))?;
        split(dir, first.block(), names, hasher, entry)?
    };
    let (low, low_buffer) = dir.append(h, SealKind::DirLeaf)?;
    let (high, high_buffer) = dir.append(h, SealKind::DirLeaf)?;
    write(h, &low_buffer, &halves.low)?;
    write(h, &high_buffer, &halves.high)?;
    let (ino, version) = (dir.inode.ino, hasher.version().to_disk());
    dir.change(h, &first, |format, content| {
        format.dx_init_root(content, ino, parent, version, low)?;
        format.dx_insert(content, 1, halves.split.hash, high)
    })?;
    dir.label(&first, SealKind::HashNode);
    dir.set_flags(InodeFlags::INDEX, InodeFlags::empty());
    Ok(())
}
