//! More names for an inode.

use std::sync::Arc;

use sapwood_vfs::rules;
use sapwood_vfs::{self as vfs, FileKind, Timestamp};

use super::inode::Inode;
use super::locks::lock_all;
use super::names::{self, Target};
use super::{create, dir, orphan};
use crate::Result;
use crate::engine::Engine;

/// Most names of one inode.
const LINK_MAX: u32 = 65535;

/// Items that a new name can touch.
const ITEMS: u64 = 6;

/// Gives `inode` the name `name` in `dir`. See [`vfs::FileSystem::link`].
pub(crate) fn link(
    engine: &Arc<Engine>,
    inode: &Arc<Inode>,
    dir: &Arc<Inode>,
    name: &[u8],
) -> Result<()> {
    rules::check_name(name)?;
    dir.require_dir()?;
    dir.require_writable()?;
    let _guards = lock_all(&[inode, dir]);
    check(engine, inode, dir, name)?;
    let index = dir::next_index(engine, dir)?;
    let mut h = engine.start(ITEMS)?;
    names::add_entry(
        &mut h,
        dir,
        name,
        Target::inode(inode.objectid, inode.kind),
        index,
    )?;
    let was_orphan = inode.state.lock().nlink == 0;
    let linked = names::add_ref(&mut h, &dir.root, inode.objectid, dir.objectid, index, name)
        .and_then(|()| {
            let now = Timestamp::now();
            let transid = h.transid();
            inode.change(&h, |state| {
                state.names_changed(transid);
                state.nlink = state
                    .nlink
                    .saturating_add(u32::from(!sapwood_fault::planted(82)));
                state.linkable = false;
                state.inode_changed(now);
            });
            if was_orphan {
                orphan::remove(&mut h, &inode.root, inode.objectid)
            } else {
                Ok(())
            }
        });
    create::finish(h, linked)
}

fn check(engine: &Arc<Engine>, inode: &Inode, dir: &Inode, name: &[u8]) -> Result<()> {
    if !dir.takes_names() {
        return Err(vfs::Error::NotFound.into());
    }
    if names::find(engine, dir, name)?.is_some() {
        return Err(vfs::Error::Exists.into());
    }
    rules::check_add_name(dir.vfs_flags())?;
    if inode.root.id() != dir.root.id() {
        return Err(vfs::Error::CrossDevice.into());
    }
    if inode.kind == FileKind::Directory {
        return Err(vfs::Error::NotPermitted.into());
    }
    let (nlink, linkable, flags) = {
        let state = inode.state.lock();
        (state.nlink, state.linkable, state.vfs_flags())
    };
    if flags.intersects(vfs::InodeFlags::IMMUTABLE | vfs::InodeFlags::APPEND) {
        return Err(vfs::Error::NotPermitted.into());
    }
    if nlink == 0 && !linkable {
        return Err(vfs::Error::NotFound.into());
    }
    let fits = names::ref_fits(engine, &dir.root, inode.objectid, dir.objectid, name)?;
    if nlink >= LINK_MAX || !fits {
        return Err(vfs::Error::TooManyLinks.into());
    }
    Ok(())
}
