//! More names for an inode.

use std::sync::Arc;

use sapwood_vfs::{self as vfs, Timestamp};

use super::names::{self, Target};
use super::{dir, orphan};
use crate::Result;
use crate::inode::Inode;
use crate::transaction::Store;

/// Most names of one inode.
const LINK_MAX: u32 = 65535;

/// Items that a new name can touch.
const ITEMS: u64 = 6;

/// Gives `inode` the name `name` in `dir`. Expects both `io` locks.
///
/// # Errors
/// `TooManyLinks`.
pub(crate) fn add(
    store: &Arc<Store>,
    inode: &Arc<Inode>,
    dir: &Arc<Inode>,
    name: &[u8],
) -> Result<()> {
    let fits = names::ref_fits(store, &dir.root, inode.objectid, dir.objectid, name)?;
    if inode.state.lock().nlink >= LINK_MAX || !fits {
        return Err(vfs::Error::TooManyLinks.into());
    }
    let index = dir::next_index(store, dir)?;
    let mut h = store.start(ITEMS)?;
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
    h.finish(linked)
}
