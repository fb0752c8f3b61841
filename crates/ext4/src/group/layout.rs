//! The groups of a file system of one size, and those of every size that it had since it was
//! mounted.
//!
//! # How it works
//! Readers take no lock. A file system that grows gets a new [`Layout`], which shares the groups of
//! the last one. Layouts are never dropped before the mount ends, so a reader may keep a reference.
//! A geometry that is stale describes all groups that it has as the newest one does, apart from the
//! length of the last.
//!
//! The space of new groups is allocated only after [`Groups::open_added`]. The caller has committed
//! a transaction then that ended after the layout was added. So every thread with a handle that
//! finds a block of a new group knows the group.

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use sapwood_ext4_format::{BitmapKind, Geometry, GroupDesc, bitmap};
use sapwood_jbd2::{Buffer, Handle};

use super::{Group, Groups, load};
use crate::{Error, Result};

/// Most times that a file system grows while it is mounted.
const MOST: usize = 1024;

/// The groups of a file system of one size.
pub(super) struct Layout {
    pub(super) geometry: Geometry,
    pub(super) all: Vec<Arc<Group>>,
    /// Blocks of the descriptor table, by index. Held, so that none is read in a commit.
    pub(super) desc_blocks: Vec<Arc<Buffer>>,
    /// Runs of metadata that belong to groups: first block, one past; sorted.
    pub(super) system: Vec<(u64, u64)>,
}

/// The layouts of a mount.
pub(super) struct Layouts {
    first: Layout,
    further: Vec<OnceLock<Box<Layout>>>,
    /// Index of the newest one; 0: the first.
    newest: AtomicUsize,
}

impl Layouts {
    pub(super) fn new(first: Layout) -> Self {
        Self {
            first,
            further: (0..MOST).map(|_| OnceLock::new()).collect(),
            newest: AtomicUsize::new(0),
        }
    }

    /// The newest layout.
    pub(super) fn current(&self) -> &Layout {
        let newest = self.newest.load(Ordering::Acquire);
        let further = newest.checked_sub(1).and_then(|at| self.further.get(at));
        further
            .and_then(OnceLock::get)
            .map_or(&self.first, |layout| layout)
    }

    /// Whether one more can be added.
    fn has_room(&self) -> bool {
        self.newest.load(Ordering::Acquire) < MOST
    }

    /// Adds a layout. One thread adds at a time.
    fn add(&self, layout: Layout) {
        let newest = self.newest.load(Ordering::Acquire);
        if let Some(place) = self.further.get(newest) {
            let _ = place.set(Box::new(layout));
            self.newest.store(newest + 1, Ordering::Release);
        }
    }
}

/// Sizes and places of a mounted file system. Each use sees the newest ones.
pub(crate) struct LiveGeometry(Arc<Layouts>);

impl LiveGeometry {
    pub(super) fn new(layouts: &Arc<Layouts>) -> Self {
        Self(Arc::clone(layouts))
    }
}

impl Deref for LiveGeometry {
    type Target = Geometry;

    fn deref(&self) -> &Geometry {
        &self.0.current().geometry
    }
}

impl Groups {
    /// Whether the file system can grow once more while it is mounted.
    pub(crate) fn may_grow(&self) -> bool {
        self.layouts.has_room()
    }

    /// Checks that the last group can become longer.
    ///
    /// # Errors
    /// The group is out of use.
    pub(crate) fn check_last(&self) -> Result<()> {
        let group = self.group(self.count().saturating_sub(1))?;
        self.lock_blocks(group).map(drop)
    }

    /// The held block of the descriptor table with this index.
    pub(crate) fn desc_block(&self, index: u32) -> Option<&Arc<Buffer>> {
        self.layout().desc_blocks.get(index as usize)
    }

    /// Makes the last group longer, up to `blocks` blocks, on disk only: nothing allocates them
    /// before [`open_added`](Self::open_added).
    ///
    /// # Errors
    /// The group is out of use; errors of the journal.
    pub(crate) fn extend_last(&self, h: &Handle, blocks: u32) -> Result<()> {
        let group = self.group(self.count().saturating_sub(1))?;
        let from = group.blocks();
        if blocks <= from {
            return Ok(());
        }
        // The free blocks in memory are those of the bitmap as it is now.
        drop(self.lock_blocks(group)?);
        let buffer = self.bitmap(group, BitmapKind::Block)?;
        h.write_access(&buffer)?;
        self.join_desc(h, group.number)?;
        let mut state = group.lock();
        state.check(group)?;
        let mut content = self.change_bitmap(h, group, &mut state, BitmapKind::Block, &buffer)?;
        bitmap::clear_range(&mut content, from, blocks);
        drop(content);
        let free = state.desc.free_clusters().saturating_add(blocks - from);
        state.desc.set_free_clusters(free)?;
        self.mark_dirty(group, &mut state, BitmapKind::Block);
        Ok(())
    }

    /// Adds groups at the end, whose space is not allocated yet. `desc_blocks`: blocks of the
    /// descriptor table that the file system did not have.
    ///
    /// # Errors
    /// A group lies outside `geometry`.
    pub(crate) fn add(
        &self,
        geometry: &Geometry,
        added: &[GroupDesc],
        desc_blocks: Vec<Arc<Buffer>>,
    ) -> Result<()> {
        let old = self.layout();
        let first = old.geometry.group_count();
        let new = (first..).zip(added);
        let new = new.map(|(number, desc)| {
            Ok::<_, Error>(Arc::new(load::group(
                geometry,
                number,
                desc.clone(),
                false,
            )?))
        });
        let new = new.collect::<Result<Vec<_>>>()?;
        let runs = load::runs(geometry, first, added);
        self.layouts.add(Layout {
            geometry: geometry.clone(),
            all: old.all.iter().cloned().chain(new).collect(),
            desc_blocks: old.desc_blocks.iter().cloned().chain(desc_blocks).collect(),
            system: old.system.iter().copied().chain(runs).collect(),
        });
        Ok(())
    }

    /// Lets the space of these groups be allocated, and the blocks by which the group before them
    /// became longer.
    ///
    /// # Errors
    /// There are no such groups.
    pub(crate) fn open_added(&self, added: Range<u32>) -> Result<()> {
        let before = self.group(added.start.saturating_sub(1))?;
        let blocks = self.geometry().group_clusters(before.number);
        let mut state = before.lock();
        let from = before.blocks();
        if let Some(buddy) = state.buddy.as_mut().filter(|_| blocks > from) {
            buddy.extend(blocks);
            let given = buddy.give(from, blocks - from);
            debug_assert!(given, "blocks past the end were in use");
            before.blocks.store(blocks, Ordering::Release);
            if !state.is_out_of_use() {
                self.count_blocks(blocks - from, true);
            }
            before.publish(&state);
        }
        drop(state);
        for number in added {
            let group = self.group(number)?;
            let state = group.lock();
            group.open.store(true, Ordering::Release);
            if !state.is_out_of_use() {
                self.count_blocks(state.desc.free_clusters(), true);
            }
            group.publish(&state);
        }
        Ok(())
    }
}
