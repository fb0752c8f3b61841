//! The maps of inodes: extent trees and the older block maps behind one interface.
//!
//! # How it works
//! The inode's flags select one of the two. Both use the traits in [`nodes`]; here they get the
//! store's cache and journal.
//!
//! The map lock of the inode guards its 60 bytes and all blocks of the map below them: shared to
//! look, exclusive to change, held while such a block is read from the device. Blocks of a map
//! never move, and a freed one is reused only after a commit, so no other thread changes a block
//! under a reader.
//!
//! A change counts the blocks that it adds to the inode or removes from it, content and map alike,
//! and adds them to `i_blocks` at its end, after an error too. The caller stores the inode.
//!
//! A caller that removes or converts gets the rest of the range when the handle has no credits for
//! more. The map is whole then, and the next handle continues there.

mod extent;
mod indirect;
mod live;
#[cfg(test)]
mod memory;
mod nodes;
mod run;
pub(crate) mod standalone;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use sapwood_ext4_format::{
    EXTENT_MAX_UNWRITTEN_LEN, EXTENT_ROOT_MAX, Incompat, Inode as RawInode, InodeFlags,
};
use sapwood_jbd2::{Buffer, Handle};
use sapwood_vfs::FileKind;

use crate::block_alloc::{self, Extent};
use crate::commit_reason::CommitReason;
use crate::inode::{Inode, MAP_BYTES, STORE_CREDITS};
use crate::store::Store;
use crate::{Error, Result};
use extent::Tree;
use indirect::Pointers;
use live::{Reader, Writer, free_credits};
pub(crate) use nodes::BLOCKS_MAX;
use nodes::Blocks;
pub(crate) use run::{Mapped, Run, run_end};

/// The map of a new inode without a block.
pub(crate) fn empty(flags: InodeFlags) -> [u8; MAP_BYTES] {
    if flags.contains(InodeFlags::EXTENTS) {
        extent::empty_root()
    } else {
        [0; MAP_BYTES]
    }
}

/// Looks up a run in a map whose blocks `store` reads.
fn of_raw<S: Blocks>(
    store: &S,
    root: &[u8; MAP_BYTES],
    flags: InodeFlags,
    logical: u64,
    max: u64,
) -> Result<Run> {
    if flags.contains(InodeFlags::INLINE_DATA) {
        return Err(store
            .world()
            .bad_map("its content is in the inode, it has no blocks"));
    }
    if flags.contains(InodeFlags::EXTENTS) {
        extent::lookup(store, root, logical, max)
    } else {
        indirect::lookup(store, root, logical, max)
    }
}

/// A run that begins at block `logical` of the file, of at most `max` blocks. It may end before the
/// next run is of another kind, where finding out would cost many blocks of the map; it is never
/// empty if `max` is not 0. Takes the map lock shared.
///
/// # Errors
/// The tree is damaged; errors of the device.
pub(crate) fn lookup(store: &Store, inode: &Inode, logical: u64, max: u64) -> Result<Run> {
    let flags = inode.flags();
    let map = inode.map.read();
    of_raw(&Reader::new(store, inode), &map, flags, logical, max)
}

/// Most credits of one [`insert`] of `blocks` blocks, [`append_block`] (`blocks` is 1), or the
/// first step of [`convert`] or [`shift`], without the bitmaps of the content and the inode. Takes
/// the map lock shared.
pub(crate) fn insert_credits(store: &Store, inode: &Inode, blocks: u64) -> u32 {
    let credits = if inode.flags().contains(InodeFlags::EXTENTS) {
        let depth = extent::depth(&inode.map.read());
        let pieces = blocks / u64::from(EXTENT_MAX_UNWRITTEN_LEN);
        // One level more than now: another thread may be first.
        let first = extent::replace_credits(depth + 2);
        u64::from(first).saturating_add(pieces.saturating_mul(4))
    } else {
        indirect::insert_credits(store.geometry.block_size(), blocks)
    };
    u32::try_from(credits).unwrap_or(u32::MAX)
}

/// Most credits of appending a few blocks, one after another, with [`append_block`], without the
/// blocks themselves, their bitmaps, descriptors and the inode. Takes the map lock shared.
pub(crate) fn append_credits(store: &Store, inode: &Inode, blocks: u32) -> u32 {
    let after = inode.size() / store.block_size() + u64::from(blocks);
    if !inode.flags().contains(InodeFlags::EXTENTS) {
        // Up to three new blocks of pointers, bitmaps and descriptors for them, and one that is
        // there.
        return if after <= 12 { 0 } else { 10 };
    }
    let (depth, entries) = {
        let map = inode.map.read();
        let entries = u16::from_le_bytes([map[2], map[3]]);
        (extent::depth(&map).min(5), u32::from(entries))
    };
    if depth == 0 && entries + blocks <= u32::from(EXTENT_ROOT_MAX) {
        return 0;
    }
    extent::replace_credits(depth)
}

/// Least credits for progress of one [`remove`], without the inode's. More credits make it faster.
/// Takes the map lock shared.
pub(crate) fn remove_credits(store: &Store, inode: &Inode) -> u32 {
    let depth = extent::depth(&inode.map.read()).min(5);
    // Bitmap and descriptor of one group for an extent; for a block of pointers, of all groups of
    // its run.
    let run = u64::from(store.geometry.block_size() / 4);
    let bitmaps = free_credits(&store.geometry, 0, run);
    extent::replace_credits(depth + 2)
        .max(indirect::WAY_CREDITS)
        .saturating_add(bitmaps)
}

/// Changes a map, with the map lock held exclusively, and counts blocks. `delayed`: how many of
/// those that the change adds were delayed.
fn change<R>(
    store: &Store,
    h: &Handle,
    inode: &Inode,
    delayed: u64,
    extents: impl FnOnce(Tree<'_, Writer<'_>>) -> Result<R>,
    pointers: impl FnOnce(Pointers<'_, Writer<'_>>) -> Result<R>,
) -> Result<R> {
    let flags = inode.flags();
    let writer = Writer::new(store, h, inode);
    if flags.contains(InodeFlags::INLINE_DATA) {
        return Err(writer
            .world()
            .bad_map("its content is in the inode, it has no blocks"));
    }
    let mut map = inode.map.write();
    let done = if flags.contains(InodeFlags::EXTENTS) {
        extents(Tree::new(&writer, &mut map))
    } else {
        pointers(Pointers::new(&writer, &mut map))
    };
    let settled = writer.settle(inode, if done.is_ok() { delayed } else { 0 });
    let done = done?;
    settled.map(|()| done)
}

/// Puts `len` blocks from `physical` on at `logical`, where a hole must be. Takes the map lock
/// exclusively; tree blocks are allocated as needed; block counts (`i_blocks`) of data and tree
/// blocks are added to the inode. The caller claims the data blocks and stores the inode. After an
/// error none of the blocks is in the map.
///
/// # Errors
/// The tree is damaged; no space for a tree block; `FileTooLarge`, `NotSupported` for unwritten
/// blocks in a block map.
pub(crate) fn insert(
    store: &Store,
    h: &Handle,
    inode: &Inode,
    logical: u64,
    physical: u64,
    len: u64,
    written: bool,
) -> Result<()> {
    insert_untold(store, h, inode, logical, physical, len, written)?;
    store.fast_commits.added(
        h,
        (inode.ino, inode.kind),
        (logical, physical, len),
        written,
    );
    Ok(())
}

/// Like [`insert`], for an inode without a name so far: in a fast commit the name must come first.
/// The caller records the blocks.
///
/// # Errors
/// The tree is damaged; no space for a tree block; `FileTooLarge`.
pub(crate) fn insert_untold(
    store: &Store,
    h: &Handle,
    inode: &Inode,
    logical: u64,
    physical: u64,
    len: u64,
    written: bool,
) -> Result<()> {
    change(
        store,
        h,
        inode,
        0,
        |mut tree| tree.insert(logical, physical, len, written),
        |mut pointers| {
            if written {
                pointers.insert(logical, physical, len)
            } else {
                Err(not_supported())
            }
        },
    )
}

/// Like [`insert`], of written data in flight. `delayed` of the blocks counted as delayed until
/// now; they are added to the inode's block count at the same moment.
///
/// # Errors
/// The tree is damaged; no space for a tree block; `FileTooLarge`.
pub(crate) fn insert_delayed(
    store: &Store,
    h: &Handle,
    inode: &Inode,
    logical: u64,
    extent: Extent,
    delayed: u64,
) -> Result<()> {
    let (physical, len) = (extent.start, u64::from(extent.len));
    change(
        store,
        h,
        inode,
        delayed,
        |mut tree| tree.insert(logical, physical, len, true),
        |mut pointers| pointers.insert(logical, physical, len),
    )?;
    store
        .fast_commits
        .added(h, (inode.ino, inode.kind), (logical, physical, len), true);
    Ok(())
}

fn not_supported() -> Error {
    Error::Vfs(sapwood_vfs::Error::NotSupported)
}

/// Makes unwritten blocks in `range` written. Returns the part that is still to be converted, as
/// [`remove`] does, but from the begin of the range on.
///
/// # Errors
/// The tree is damaged; no space for a tree block; `FileTooLarge`.
pub(crate) fn convert(
    store: &Store,
    h: &Handle,
    inode: &Inode,
    range: Range<u64>,
) -> Result<Range<u64>> {
    let Range { start, end } = range;
    let left = change(
        store,
        h,
        inode,
        0,
        |mut tree| tree.convert(range, true),
        |_| Ok(end..end),
    )?;
    note_written(store, h, inode, start..left.start.min(end))?;
    Ok(left)
}

/// Start of the first blocks in a range, and end of the last ones, if they are recorded.
fn mapped(store: &Store, h: &Handle, inode: &Inode, range: &Range<u64>) -> Result<(u64, u64)> {
    let (mut start, mut end) = (range.end, range.start);
    if !store.fast_commits.wanted(h) || !inode.flags().contains(InodeFlags::EXTENTS) {
        return Ok((start, end));
    }
    let mut at = range.start;
    while at < range.end {
        let run = lookup(store, inode, at, range.end - at)?;
        if run.len == 0 {
            break;
        }
        if run.what != Mapped::Hole {
            start = start.min(at);
            end = at + run.len;
        }
        at += run.len;
    }
    Ok((start, end))
}

/// Records the places of these blocks, which are all written.
fn note_written(store: &Store, h: &Handle, inode: &Inode, blocks: Range<u64>) -> Result<()> {
    if !store.fast_commits.wanted(h) {
        return Ok(());
    }
    let mut at = blocks.start;
    while at < blocks.end {
        let run = lookup(store, inode, at, blocks.end - at)?;
        if run.len == 0 {
            return Ok(());
        }
        if let Mapped::Written(physical) = run.what {
            store
                .fast_commits
                .added(h, (inode.ino, inode.kind), (at, physical, run.len), true);
        }
        at += run.len;
    }
    Ok(())
}

/// Makes written blocks in `range` unwritten, so that they read as zeros. Otherwise like
/// [`convert`].
///
/// # Errors
/// The tree is damaged; no space for a tree block; `FileTooLarge`.
pub(crate) fn unwrite(
    store: &Store,
    h: &Handle,
    inode: &Inode,
    range: Range<u64>,
) -> Result<Range<u64>> {
    inode.dir.places.forget();
    let unsupported = |_: Pointers<'_, Writer<'_>>| Err(not_supported());
    store.fast_commits.whole(h, CommitReason::Moved);
    change(
        store,
        h,
        inode,
        0,
        |mut tree| tree.convert(range, false),
        unsupported,
    )
}

/// Takes blocks out of the map and frees them, from the end of `range` backwards, as far as the
/// handle's credits allow. Returns the part that is still to be removed (empty: done): the caller
/// stores the inode, restarts the handle and continues. See [`remove_credits`].
///
/// # Errors
/// The tree is damaged.
pub(crate) fn remove(
    store: &Store,
    h: &Handle,
    inode: &Inode,
    range: Range<u64>,
) -> Result<Range<u64>> {
    inode.dir.places.forget();
    let same = range.clone();
    let (start, end) = mapped(store, h, inode, &range)?;
    let left = change(
        store,
        h,
        inode,
        0,
        |mut tree| tree.remove(range),
        |mut pointers| pointers.remove(same),
    )?;
    let removed = left.end.max(start)..end;
    // For an inode that is being deleted, the record is the removal of its last name.
    if !removed.is_empty() && inode.is_linked() {
        store
            .fast_commits
            .removed(h, inode.ino, inode.kind, removed);
    }
    if start < end
        && store.fast_commits.wanted(h)
        && extent::is_empty(&inode.map.read())
        && inode.is_linked()
    {
        store.fast_commits.emptied(h);
    }
    Ok(left)
}

/// Direction of a move of extents, and its distance in blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shift {
    /// Towards the front, over the hole of a collapsed range.
    Left(u64),
    /// Towards the back, to make room. An extent across the start of the range is split.
    Right(u64),
}

/// Moves the extents in `range`, which ends at or after the end of the file. Returns the part that
/// is still to be moved.
///
/// # Errors
/// `NotSupported` for block maps, `FileTooLarge`, no space for the map; the image is damaged;
/// errors of the journal.
pub(crate) fn shift(
    store: &Store,
    h: &Handle,
    inode: &Inode,
    range: Range<u64>,
    by: Shift,
) -> Result<Range<u64>> {
    inode.dir.places.forget();
    let unsupported = |_: Pointers<'_, Writer<'_>>| Err(not_supported());
    store.fast_commits.whole(h, CommitReason::Moved);
    let extents = |mut tree: Tree<'_, Writer<'_>>| match by {
        Shift::Left(blocks) => tree.shift_left(range, blocks),
        Shift::Right(blocks) => tree.shift_right(range, blocks),
    };
    change(store, h, inode, 0, extents, unsupported)
}

/// Changes the map in a range, as far in each handle as its credits allow: `change` returns the
/// rest. `step`: credits that it needs for one step.
///
/// # Errors
/// The errors of `change` and of the journal.
pub(crate) fn in_steps(
    store: &Store,
    inode: &Inode,
    blocks: Range<u64>,
    step: u32,
    change: impl Fn(&Store, &Handle, &Inode, Range<u64>) -> Result<Range<u64>>,
) -> Result<()> {
    let step = step.saturating_add(STORE_CREDITS);
    let again = step.saturating_add(store.quota.credits());
    let mut h = store.start_tracked(step)?;
    let mut left = blocks;
    loop {
        left = change(store, &h, inode, left)?;
        inode.store(store, &h)?;
        if left.is_empty() {
            return Ok(());
        }
        h.restart(again)?;
    }
}

/// Flags of a new inode of this kind for its content: a tree of extents, if the file system has
/// them. A file becomes inline with its first bytes.
pub(crate) fn new_flags(store: &Store, kind: FileKind) -> InodeFlags {
    let tree = matches!(kind, FileKind::Regular | FileKind::Directory)
        && store.geometry.features().has_incompat(Incompat::EXTENTS);
    if tree {
        InodeFlags::EXTENTS
    } else {
        InodeFlags::empty()
    }
}

/// Sets up the map of a new inode whose flags are set.
pub(crate) fn init(raw: &mut RawInode, kind: FileKind) {
    if matches!(kind, FileKind::Regular | FileKind::Directory) {
        let map = empty(raw.flags());
        *raw.block_mut() = map;
    }
}

/// Blocks that a file with these flags can have.
pub(crate) fn blocks_max(store: &Store, flags: InodeFlags) -> u64 {
    if flags.contains(InodeFlags::EXTENTS) {
        BLOCKS_MAX
    } else {
        indirect::blocks_max(store.geometry.block_size())
    }
}

/// Whether the inode's 60 bytes are a map: not data, the target of a short link, or a device
/// number.
fn has_map(store: &Store, inode: &Inode) -> bool {
    let state = inode.state.lock();
    let inline = state.raw.flags().contains(InodeFlags::INLINE_DATA);
    match inode.kind {
        FileKind::Regular | FileKind::Directory => !inline,
        FileKind::Symlink => !inline && !state.raw.is_fast_symlink(&store.geometry),
        _ => false,
    }
}

/// Best place of a new block at `logical`: after the block before it, else in the inode's group.
/// Takes the map lock shared.
///
/// # Errors
/// The tree is damaged; errors of the device.
pub(crate) fn goal(store: &Store, inode: &Inode, logical: u64) -> Result<u64> {
    let flags = inode.flags();
    let near = match u32::try_from(logical) {
        Ok(logical) if has_map(store, inode) => {
            let map = inode.map.read();
            let reader = Reader::new(store, inode);
            if flags.contains(InodeFlags::EXTENTS) {
                extent::goal(&reader, &map, logical)?
            } else {
                indirect::goal(&reader, &map, logical)?
            }
        }
        _ => None,
    };
    if let Some(near) = near.filter(|near| store.geometry.group_of_block(*near).is_ok()) {
        return Ok(near);
    }
    let (group, _) = store.geometry.inode_location(inode.ino)?;
    Ok(store.geometry.group_first_block(group)?)
}

/// A metadata block of the inode itself (directory, quota, orphan file), by its place in the file.
///
/// # Errors
/// The tree is damaged, or has a hole there; errors of the device.
pub(crate) fn block_of(store: &Store, inode: &Inode, logical: u64) -> Result<Arc<Buffer>> {
    let run = lookup(store, inode, logical, 1)?;
    match run.what {
        Mapped::Written(physical) => store.block(physical),
        Mapped::Hole | Mapped::Unwritten(_) => Err(Error::BadInode {
            ino: inode.ino,
            reason: format!("no block at logical block {logical}"),
        }),
    }
}

/// Allocates a zeroed metadata block at `logical` (directories grow by it); joined to the handle.
/// The caller sets the size and stores the inode.
///
/// # Errors
/// The tree is damaged; no space for a tree block; `FileTooLarge`.
pub(crate) fn append_block(
    store: &Store,
    h: &Handle,
    inode: &Inode,
    logical: u64,
) -> Result<Arc<Buffer>> {
    let block = block_alloc::allocate_meta(&store.groups, h, goal(store, inode, logical)?)?;
    if let Err(error) = insert(store, h, inode, logical, block, 1, true) {
        let extent = block_alloc::Extent {
            start: block,
            len: 1,
        };
        block_alloc::free(&store.groups, h, extent, true)?;
        return Err(error);
    }
    let buffer = store.cache.get_new(block)?;
    h.write_access(&buffer)?;
    Ok(buffer)
}
