//! Deleting inodes without a name.
//!
//! # How it works
//! The removal of the last name makes an inode an orphan in the same handle. When the last
//! reference is released, [`reap`] frees the content in handles of its own and then, in one handle,
//! frees the inode and takes it from the orphans. A power cut in between leaves an orphan, and the
//! next mount does the same ([`delete`]).
//!
//! An inode without blocks and without references never becomes an orphan: it is deleted in the
//! handle that removes its last name ([`is_bare`], [`condemn`], [`free`]).

use std::sync::Arc;

use sapwood_jbd2::Handle;
use sapwood_vfs::{FileKind, Timestamp};

use crate::engine::Engine;
use crate::inode::Inode;
use crate::{Result, data, inode_alloc, orphan, xattr};

/// Deletes an inode that has neither a name nor references; leaves any other alone.
///
/// # Errors
/// Errors of the device; the image is damaged; the next mount deletes the inode.
pub(crate) fn reap(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
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

/// Frees the blocks of an inode, and the inode. No other thread uses it.
///
/// # Errors
/// Errors of the device; the image is damaged; the next mount deletes the inode.
pub(crate) fn delete(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    data::delete_content(engine, inode)?;
    let mut h =
        engine.start_tracked(inode_alloc::CREDITS + orphan::CREDITS + xattr::DROP_CREDITS)?;
    engine.abort((|| {
        xattr::drop_all(engine, &mut h, inode)?;
        orphan::remove(engine, &h, inode)?;
        free(engine, &h, inode)
    })())?;
    drop(h);
    reap_values(engine)
}

/// Deletes the inodes of attribute values that no inode refers to any more. Hold no handle. Those
/// that a crash leaves are orphans, which the next mount deletes.
///
/// # Errors
/// The image is damaged; errors of the journal.
pub(crate) fn reap_values(engine: &Arc<Engine>) -> Result<()> {
    loop {
        let Some(ino) = engine.xattr_blocks.unused_values.lock().pop() else {
            return Ok(());
        };
        let value = engine.inodes.get(engine, ino)?;
        delete(engine, &value)?;
    }
}

/// Credits of [`free`].
pub(crate) const BARE_CREDITS: u32 = inode_alloc::CREDITS;

/// Frees an inode that has nothing and is no orphan.
///
/// # Errors
/// The image is damaged; errors of the journal.
pub(crate) fn free(engine: &Engine, h: &Handle, inode: &Inode) -> Result<()> {
    {
        let mut state = inode.state.lock();
        state.deleted = true;
        let now = engine.now().sec;
        // Zero would mean: not deleted.
        state
            .raw
            .set_dtime(u32::try_from(now).unwrap_or(u32::MAX).max(1));
        state.raw.set_size(0, &engine.geometry)?;
        state.size = 0;
    }
    inode.store(engine, h)?;
    engine.inodes.remove(inode);
    inode_alloc::free(engine, h, inode.ino, inode.kind)
}

/// Whether the inode has nothing that would have to be freed before it: no block, no attribute,
/// nothing in memory. The caller holds its `io` lock exclusively, so that it stays so.
///
/// # Errors
/// The map is damaged.
pub(crate) fn is_bare(engine: &Engine, inode: &Inode) -> Result<bool> {
    let held = inode.kind == FileKind::Directory || xattr::may_have(inode);
    Ok(!held && !inode.state.lock().orphan && data::is_bare(engine, inode)?)
}

/// Takes the last name of an inode that no caller refers to: from then on no thread gets a
/// reference. False, and nothing changed, if it has another name or references. The caller has a
/// handle and frees the inode in it.
pub(crate) fn condemn(inode: &Inode, now: Timestamp) -> bool {
    let mut state = inode.state.lock();
    // A thread that takes a reference checks afterwards whether the inode is dying.
    if state.nlink() > 1 || inode.residence.references() > 0 {
        return false;
    }
    state.raw.set_links(0);
    state.changed(now);
    state.dying = true;
    true
}

/// Deletes the inode if it has no name left and no caller refers to it.
///
/// # Errors
/// Errors of the device; the image is damaged; the next mount deletes the inode.
pub(crate) fn reap_if_unused(engine: &Arc<Engine>, inode: &Arc<Inode>) -> Result<()> {
    if inode.is_linked() {
        Ok(())
    } else {
        reap(engine, inode)
    }
}
