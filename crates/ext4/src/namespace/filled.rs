//! Content of small files that is written before they are created.
//!
//! # How it works
//! A file that is written after its creation reserves blocks, copies its bytes into dirty ranges,
//! and takes part in writeback and completion. Creation and completion each store the inode. Small
//! content that is known at creation skips these steps: the caller allocates blocks in memory and
//! writes them. One handle then claims the blocks and creates the inode, with its extent, size and
//! times, and the name ([`create_filled`](super::create::create_filled)). A power cut before its
//! commit leaves blocks that nothing names.
//!
//! If this is not possible (no contiguous space, the device refuses), the file is created empty and
//! written like others, which also reports the errors.

use std::sync::Arc;

use sapwood_ext4_format::Incompat;
use sapwood_jbd2::Handle;
use sapwood_vfs::{Content, FileKind};

use crate::block_alloc::{self, Extent};
use crate::engine::Engine;
use crate::inode::{Inode, disk_time};
use crate::options::DataMode;
use crate::{Error, Result, map};

/// Blocks of the largest content. The allocator keeps small files side by side up to this size.
const MOST_BLOCKS: u64 = 16;
/// Bytes whose write to the medium begins at once.
const STRETCH: u64 = 4 << 20;
/// Credits for content: a bitmap and a descriptor. Its extent is in the inode.
pub(super) const CREDITS: u32 = block_alloc::CREDITS;

/// Bytes of the largest content that is written before its file is created; 0 if none is.
pub(crate) fn most(engine: &Engine) -> u64 {
    let features = engine.geometry.features();
    let tree = features.has_incompat(Incompat::EXTENTS);
    // Content that fits into the inode itself is left to a write.
    let inline = features.has_incompat(Incompat::INLINE_DATA);
    let own = tree && !inline && engine.options.data != DataMode::Journal;
    // On other devices, writeback joins many files into few requests.
    if own && engine.device.writes_to_memory() {
        MOST_BLOCKS * engine.block_size()
    } else {
        0
    }
}

/// Content that is on the device, in blocks that nothing names yet.
pub(super) struct Written<'a> {
    blocks: Taken<'a>,
    content: &'a Content<'a>,
}

/// Blocks that are allocated in memory: given back if they are not claimed.
struct Taken<'a> {
    engine: &'a Arc<Engine>,
    extent: Extent,
    is_claimed: bool,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.is_claimed {
            block_alloc::cancel(&self.engine.groups, self.extent);
        }
    }
}

/// Writes content after the last file of this kind of the directory's group. `None`: not possible,
/// and nothing has changed. Hold no handle.
///
/// # Errors
/// A bitmap is damaged.
pub(super) fn write<'a>(
    engine: &'a Arc<Engine>,
    dir: &Inode,
    content: &'a Content<'a>,
) -> Result<Option<Written<'a>>> {
    let block_size = engine.block_size();
    let len = content.data.len() as u64;
    // The ordinary path checks limits.
    if len == 0 || len > most(engine) || engine.quota.is_on() {
        return Ok(None);
    }
    let want = len.div_ceil(block_size) as u32;
    let promised = match engine.space.reserve(want.into(), false) {
        Err(Error::NoSpace) => return Ok(None),
        other => other?,
    };
    let home = if engine.options.dense {
        0
    } else {
        engine.geometry.inode_location(dir.ino)?.0
    };
    let group = engine.groups.group(home)?;
    let goal = group.small_goal();
    let extent = match block_alloc::allocate_stretch(&engine.groups, goal, want) {
        Err(Error::NoSpace) => return Ok(None),
        other => other?,
    };
    // The promise is used.
    drop(promised);
    let blocks = Taken {
        engine,
        extent,
        is_claimed: false,
    };
    if extent.len != want {
        return Ok(None);
    }
    let end = extent.start + u64::from(want);
    group.set_small_goal(end);
    let rest = vec![0; (u64::from(want) * block_size - len) as usize];
    let at = extent.start << engine.geometry.block_bits();
    let slices = [content.data, &rest];
    let slices = &slices[..if rest.is_empty() { 1 } else { 2 }];
    if let Err(error) = engine.device.write_vectored_at(at, slices) {
        log::debug!("content of a new file is written after its creation: {error}");
        return Ok(None);
    }
    behind(engine, extent.start, end);
    Ok(Some(Written { blocks, content }))
}

/// Makes the device begin to write the stretch that blocks from `start` to `end` complete.
fn behind(engine: &Engine, start: u64, end: u64) {
    let stretch = STRETCH >> engine.geometry.block_bits();
    let complete = start / stretch;
    if complete != end / stretch {
        let at = complete.saturating_mul(STRETCH);
        engine.device.write_behind(at, STRETCH);
    }
}

impl Written<'_> {
    /// Gives the content to a new inode, which the caller stores.
    ///
    /// # Errors
    /// The bitmap has the blocks in use; the errors of the journal.
    pub(super) fn put(&mut self, h: &Handle, inode: &Inode) -> Result<()> {
        let Self { blocks, content } = self;
        let (engine, extent) = (blocks.engine, blocks.extent);
        block_alloc::claim(&engine.groups, h, extent)?;
        blocks.is_claimed = true;
        map::insert_untold(engine, h, inode, 0, extent.start, extent.len.into(), true)?;
        let size = content.data.len() as u64;
        let mut state = inode.state.lock();
        state.size = size;
        state.raw.set_size(size, &engine.geometry)?;
        state.raw.set_atime(disk_time(content.atime));
        state.raw.set_mtime(disk_time(content.mtime));
        Ok(())
    }

    /// Records that the inode has its name.
    pub(super) fn named(self, h: &Handle, ino: u32) {
        let Extent { start, len } = self.blocks.extent;
        let file = (ino, FileKind::Regular);
        let fast_commits = &self.blocks.engine.fast_commits;
        fast_commits.added(h, file, (0, start, len.into()), true);
    }
}
