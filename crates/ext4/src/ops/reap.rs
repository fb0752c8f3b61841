//! Deleting inodes without a name.
//!
//! # How it works
//! The removal of the last name makes an inode an orphan in the same handle. When the last reference goes,
//! [`reap`] frees the content in handles of its own and then, in one handle, frees the inode and takes it from the
//! orphans. A power cut in between leaves an orphan, and the next mount does the same ([`delete`]).

use std::sync::Arc;

use sapwood_vfs::Timestamp;

use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Result, data, inode_alloc, orphan, xattr};

/// Deletes an inode that has neither a name nor references; leaves any other alone.
///
/// # Errors
/// The device, damage; the next mount deletes the inode.
pub(super) fn reap(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    let _io = inode.io.write();
    let unwanted = {
        let mut state = inode.state.lock();
        let unwanted = state.nlink() == 0 && !state.dying && inode.residence.references() == 0;
        state.dying |= unwanted && !engine.read_only();
        unwanted
    };
    if !unwanted || engine.read_only() {
        return Ok(());
    }
    delete(engine, inode)
}

/// Frees all that an inode has, and the inode. Nobody else uses it.
///
/// # Errors
/// As [`reap`].
pub(crate) fn delete(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    data::delete_content(engine, inode)?;
    crate::block_alloc::end_stream(engine, inode.ino);
    let mut h = engine.start(inode_alloc::CREDITS + orphan::CREDITS + xattr::DROP_CREDITS)?;
    engine.abort((|| {
        xattr::drop_all(engine, &mut h, inode)?;
        orphan::remove(engine, &h, inode)?;
        {
            let mut state = inode.state.lock();
            state.deleted = true;
            let now = Timestamp::now().sec;
            // Zero would mean: not deleted.
            state
                .raw
                .set_dtime(u32::try_from(now).unwrap_or(u32::MAX).max(1));
            state.raw.set_size(0, &engine.geometry)?;
            state.size = 0;
        }
        inode.store(engine, &h)?;
        engine.inodes.remove(inode);
        inode_alloc::free(engine, &h, inode.ino, inode.kind)
    })())?;
    drop(h);
    xattr::reap(engine)
}

/// Deletes the inode if its last name went and nobody refers to it.
///
/// # Errors
/// As [`reap`].
pub(super) fn reap_if_unused(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    if inode.is_linked() {
        Ok(())
    } else {
        reap(engine, inode)
    }
}
