//! Directories with an index of hashes.
//!
//! # How it works
//! The root is the directory's first block; it or nodes below it lead from a hash to the leaf with
//! the names of that hash. A leaf is a block of names in no order. A look-up goes down once, and on
//! to the next leaf only if that one continues the hash ([`path`]). Names are removed from their
//! leaf; leaves and nodes are never merged.
//!
//! A leaf without room is compacted if that gives enough room, else split at the middle of its
//! hashes. Its node gets one more entry; a full node is split before, and if all are full up to the
//! root, the index gets one more level, up to the limit of the format. Blocks are built in memory
//! and written to their buffers at the end, so that damage found on the way leaves no half change
//! ([`grow`]). Blocks are allocated before they are written, out of the operation's reservation.
//!
//! Contents are validated when a block is read, and again where blocks meet: a node's hashes lie
//! within its parent's range, a name's hash within its leaf's, and a node has at most as many
//! leaves as the directory has blocks. So no path is a cycle.

mod grow;
mod path;

use sapwood_ext4_format::NewEntry;
use sapwood_jbd2::Handle;

use super::linear::{self, DirEntryPlace};
use super::shape::{Dir, Wanted};
use crate::Result;
pub(super) use grow::{growth, make_indexed};
pub(super) use path::{Path, default_hasher, hash, root};

/// Finds a name. Records room for it only in the leaf where [`insert`] would put it.
///
/// # Errors
/// The index or a leaf is damaged; errors of the device.
pub(super) fn find(
    dir: &Dir<'_>,
    name: &[u8],
    mut gap: Option<&mut linear::Gap>,
) -> Result<Option<DirEntryPlace>> {
    let (root, hasher) = root(dir)?;
    let hash = match &hasher {
        Some(hasher) => Some(hash(dir, hasher, name)?.major),
        None => None,
    };
    let mut path = Path::to(dir, root, hash.unwrap_or(0))?;
    let wanted = Wanted::new(dir, name);
    // Without a hash nothing can be put anywhere.
    gap = gap.filter(|_| hash.is_some());
    loop {
        if let Some(place) = linear::find_in(dir, path.leaf, &wanted, gap.take())? {
            return Ok(Some(place));
        }
        // Without a hash all leaves are looked through.
        if hash.is_some_and(|hash| !path.continues(hash)) || !path.advance(dir)? {
            return Ok(None);
        }
    }
}

/// Puts a name into its leaf.
///
/// # Errors
/// `NoSpace` if the index is full, before anything changed; the image is damaged; errors of the
/// journal.
pub(super) fn insert(dir: &mut Dir<'_>, h: &Handle, entry: &NewEntry<'_>) -> Result<()> {
    let (root, hasher) = root(dir)?;
    let hasher = hasher.ok_or_else(|| dir.bad("names of this directory cannot be hashed"))?;
    let hash = hash(dir, &hasher, entry.name)?;
    let entry = NewEntry {
        hash: (hash.major, hash.minor),
        ..*entry
    };
    let path = Path::to(dir, root, hash.major)?;
    let leaf = dir.leaf(path.leaf)?;
    if linear::insert_in(dir, h, &leaf, &entry)? {
        return Ok(());
    }
    grow::split_and_insert(dir, h, path, &hasher, &entry)
}

/// Whether the directory is empty.
///
/// # Errors
/// The index or a leaf is damaged; errors of the device.
pub(super) fn is_empty(dir: &Dir<'_>) -> Result<bool> {
    let mut path = Path::to(dir, root(dir)?.0, 0)?;
    loop {
        if !linear::is_empty_leaf(dir, path.leaf)? {
            return Ok(false);
        }
        if !path.advance(dir)? {
            return Ok(true);
        }
    }
}

/// All leaves, by their number.
///
/// # Errors
/// The index is damaged; errors of the device.
pub(super) fn leaves(dir: &Dir<'_>) -> Result<Vec<u32>> {
    let mut path = Path::to(dir, root(dir)?.0, 0)?;
    let mut leaves = vec![path.leaf];
    while path.advance(dir)? {
        leaves.push(path.leaf);
    }
    leaves.sort_unstable();
    Ok(leaves)
}

/// Levels of nodes below the root, and whether the root is full.
///
/// # Errors
/// The root is damaged; errors of the device.
pub(super) fn shape(dir: &Dir<'_>) -> Result<(u32, bool)> {
    let (root, _) = root(dir)?;
    let content = root.read();
    let info = dir.format.dx_info(&content);
    let info = info.map_err(|reason| dir.bad_block(root.block(), reason))?;
    let full = path::entries(dir, &root, &content)?.is_full();
    Ok((info.indirect_levels.into(), full))
}

/// Target of `..`.
///
/// # Errors
/// The root is damaged; errors of the device.
pub(super) fn parent(dir: &Dir<'_>) -> Result<u32> {
    let (root, _) = root(dir)?;
    let parent = dir.format.dx_parent(&root.read());
    parent.map_err(|reason| dir.bad_block(root.block(), reason))
}

/// Sets the target of `..`.
///
/// # Errors
/// The root is damaged; errors of the journal.
pub(super) fn set_parent(dir: &Dir<'_>, h: &Handle, parent: u32) -> Result<()> {
    let (root, _) = root(dir)?;
    dir.change(h, &root, |format, content| {
        format.dx_set_parent(content, parent)
    })
}
