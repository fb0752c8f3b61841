//! Creates small files together with their content.
//!
//! # How it works
//! A file that is written after its creation needs a promise of blocks, a copy of its bytes among
//! the dirty ranges, a part in writeback and a completion, and each step stores the inode. If the
//! content is known when the file is created, and small, blocks are allocated in memory and written
//! first. One handle then claims them and makes the inode, with its extent, size and times, and the
//! name. A power cut before its commit leaves blocks that nothing names.
//!
//! Whatever cannot be done so (no space side by side, the device refuses) is left to the usual way,
//! which reports what is wrong.

use std::sync::Arc;

use sapwood_ext4_format::{Incompat, InodeFlags as DiskFlags};
use sapwood_jbd2::Handle;
use sapwood_vfs::{Content, Credentials, FileKind, NewInode};

use super::create::{self, Place};
use crate::block_alloc::{self, Extent};
use crate::engine::Engine;
use crate::inode::{Inode, disk_time};
use crate::options::DataMode;
use crate::{Error, Result, dir, map};

/// Blocks of the largest content. The allocator keeps small files side by side up to this size.
const MOST_BLOCKS: u64 = 16;
/// Credits for content: a bitmap and a descriptor. Its extent stands in the inode.
pub(super) const CREDITS: u32 = block_alloc::CREDITS;

/// Bytes of the largest content that [`create`] may take; 0 where it takes none.
pub(crate) fn most(engine: &Engine) -> u64 {
    let features = engine.geometry.features();
    let tree = features.has_incompat(Incompat::EXTENTS);
    // Content that may stand in the inode itself is the business of a write.
    let inline = features.has_incompat(Incompat::INLINE_DATA);
    match tree && !inline && engine.options.data != DataMode::Journal {
        true => MOST_BLOCKS * engine.block_size(),
        false => 0,
    }
}

/// Makes a regular file with its content, and its name. `None`: the usual way has to. Expects the
/// `io` lock of the directory exclusively. Hold no handle.
///
/// # Errors
/// As [`create::create`].
pub(crate) fn create(
    engine: &Arc<Engine>,
    who: &Credentials,
    place: Place<'_>,
    vacancy: &dir::Absent,
    perm: u32,
    content: &Content<'_>,
) -> Result<Option<Arc<Inode>>> {
    let len = content.data.len() as u64;
    let plan = create::plan(engine, who, place.dir, NewInode::Regular, perm)?;
    let own = DiskFlags::JOURNAL_DATA | DiskFlags::SYNC;
    if len == 0 || len > most(engine) || plan.flags.intersects(own) {
        return Ok(None);
    }
    let promised = match engine
        .space
        .reserve(len.div_ceil(engine.block_size()), false)
    {
        Err(Error::NoSpace) => return Ok(None),
        other => other?,
    };
    let Some(written) = write(engine, place.dir, content)? else {
        return Ok(None);
    };
    // What was promised is taken.
    drop(promised);
    create::named(engine, place, vacancy, plan, Some(written)).map(Some)
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

/// Writes content behind that of the last file of this kind of the directory's group.
fn write<'a>(
    engine: &'a Arc<Engine>,
    dir: &Inode,
    content: &'a Content<'a>,
) -> Result<Option<Written<'a>>> {
    let block_size = engine.block_size();
    let len = content.data.len() as u64;
    let want = u32::try_from(len.div_ceil(block_size)).map_err(|_| Error::NoSpace)?;
    let home = match engine.options.dense {
        true => 0,
        false => engine.geometry.inode_location(dir.ino)?.0,
    };
    let group = engine.groups.group(home)?;
    let goal = group.small_goal();
    let extent = match block_alloc::allocate_stretch(&engine.groups, goal, want) {
        Err(Error::NoSpace) => return Ok(None),
        other => other?,
    };
    let blocks = Taken {
        engine,
        extent,
        is_claimed: false,
    };
    if extent.len != want {
        return Ok(None);
    }
    group.set_small_goal(extent.start + u64::from(want));
    let rest = vec![0; (u64::from(want) * block_size - len) as usize];
    let at = extent.start << engine.geometry.block_bits();
    let slices = [content.data, &rest];
    let slices = &slices[..if rest.is_empty() { 1 } else { 2 }];
    if !sapwood_fault::planted(175)
        && let Err(error) = engine.device.write_vectored_at(at, slices)
    {
        log::debug!("content of a new file is written after its creation: {error}");
        return Ok(None);
    }
    Ok(Some(Written { blocks, content }))
}

impl Written<'_> {
    /// Gives the content to a new inode, which the caller stores.
    ///
    /// # Errors
    /// The bitmap says that the blocks are in use; the journal.
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

    /// The inode has its name.
    pub(super) fn named(self, h: &Handle, ino: u32) {
        let Extent { start, len } = self.blocks.extent;
        let file = (ino, FileKind::Regular);
        let fast_commits = &self.blocks.engine.fast_commits;
        fast_commits.added(h, file, (0, start, len.into()), true);
    }
}
