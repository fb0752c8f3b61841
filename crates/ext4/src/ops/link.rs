//! More names for an inode, and how many there may be.

use std::sync::Arc;

use sapwood_ext4_format::{Compat, InodeFlags, LINK_MAX, RoCompat};
use sapwood_vfs::{self as vfs, Timestamp};

use crate::Result;
use crate::engine::Engine;
use crate::inode::Inode;
use crate::{dir, orphan};

/// Gives `inode` the name `name` in `dir`. Expects both `io` locks.
///
/// # Errors
/// `TooManyLinks`.
pub(crate) fn add(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    dir: &Arc<Inode>,
    name: &[u8],
) -> Result<()> {
    if inode.state.lock().raw.links() >= LINK_MAX {
        return Err(vfs::Error::TooManyLinks.into());
    }
    let room = dir::room(engine, dir, name)?;
    let _blocks = engine.space.reserve(room.blocks, true)?;
    let h = engine.start_tracked(room.credits + orphan::CREDITS + 2)?;
    engine.abort((|| {
        dir::insert(engine, &h, dir, name, inode.ino, inode.kind)?;
        let now = Timestamp::now();
        let was_orphan = {
            let mut state = inode.state.lock();
            let links = state.raw.links();
            state.raw.set_links(links.saturating_add(1));
            state.linkable = false;
            state.changed(now);
            links == 0
        };
        if was_orphan {
            orphan::remove(engine, &h, inode)?;
        }
        inode.store(engine, &h)?;
        dir.state.lock().content_changed(now);
        dir.store(engine, &h)
    })())
}

/// Links of a directory after `change` subdirectories came (1) or went (-1). One link stands for
/// "more than the field can count", where the image has that feature (`dir_nlink`) and the
/// directory a hash tree.
///
/// # Errors
/// `TooManyLinks`.
pub(crate) fn links_of_dir(engine: &Engine, dir: &Inode, change: i32) -> Result<u16> {
    let (links, tree) = {
        let state = dir.state.lock();
        let tree = state.raw.flags().contains(InodeFlags::INDEX);
        (state.raw.links(), tree)
    };
    if links == 1 {
        return Ok(1);
    }
    let counted = i64::from(links) + i64::from(change);
    if counted <= i64::from(LINK_MAX) {
        return Ok(u16::try_from(counted).unwrap_or(2).max(2));
    }
    let features = engine.geometry.features();
    let uncounted = features.has_ro_compat(RoCompat::DIR_NLINK)
        && features.has_compat(Compat::DIR_INDEX)
        && tree;
    match uncounted {
        true => Ok(1),
        false => Err(vfs::Error::TooManyLinks.into()),
    }
}
