//! Sealing: a file gets a hash tree of fs-verity and never changes again.
//!
//! # How it works
//! The tree of a large file does not fit in one handle. The first handle adds an orphan item, with
//! which later mounts recognize an unfinished seal, and the first items. The last one adds the
//! descriptor, removes the orphan item and sets the flag of the inode. A power cut in between leaves
//! a file without the flag, from which the next mount removes the items; Linux does the same.
//!
//! The log has neither the items nor their feature, so every fsync after the last handle commits
//! its transaction.

use std::sync::Arc;

use sapwood_btrfs_format::{CompatRo, InodeFlags};
use sapwood_verity::{DESCRIPTOR_MAX, Descriptor};
use sapwood_vfs as vfs;

use super::layer::Namespace;
use crate::commit_reason::CommitReason;
use crate::data::{self, Files, Wait, verity};
use crate::inode::{Inode, orphan_item};
use crate::transaction::Handle;
use crate::{Error, Result};

/// Bytes of the tree that one handle adds.
const PIECE: usize = 16 * verity::ITEM;
/// Items that a handle adds at most: a piece, or a descriptor with its header, and an orphan item.
const ITEMS: u64 = 18;

/// Gives a file a hash tree. The caller holds `io` exclusively, and makes the transaction durable.
///
/// # Errors
/// [`vfs::Error::Exists`]; [`vfs::Error::Invalid`] for a descriptor of another file;
/// [`Error::NoSpace`]. The file stays as it was.
pub(crate) fn store(
    namespace: &Arc<Namespace>,
    inode: &Arc<Inode>,
    tree: &[u8],
    descriptor: &[u8],
) -> Result<()> {
    if inode.is_sealed() {
        return Err(vfs::Error::Exists.into());
    }
    inode.require_writable()?;
    let parsed = Descriptor::parse(descriptor).map_err(|source| verity::failed(inode, source))?;
    let fits = parsed.params.block_size <= namespace.sectorsize;
    let size = inode.state.lock().size;
    if parsed.data_size != size || descriptor.len() > DESCRIPTOR_MAX || !fits {
        return Err(vfs::Error::Invalid.into());
    }
    data::flush(namespace, inode, 0..u64::MAX, Wait::Completion)?;
    // An earlier seal may have been cut.
    verity::remove(namespace, inode)?;
    let done =
        store_tree(namespace, inode, tree).and_then(|()| finish(namespace, inode, descriptor));
    if matches!(done, Err(Error::NoSpace)) {
        undo(namespace, inode)?;
    }
    done
}

/// Adds the items of the tree, and the orphan item before the first one.
fn store_tree(files: &Arc<Files>, inode: &Arc<Inode>, tree: &[u8]) -> Result<()> {
    let mut at = 0;
    for piece in tree.chunks(PIECE) {
        let mut h = files.start(ITEMS)?;
        let mut added = Ok(());
        if at == 0 && inode.is_linked() {
            added = orphan_item::add(&mut h, &inode.root, inode.objectid);
        }
        let added = added.and_then(|()| verity::insert_tree(&mut h, inode, at, piece));
        h.finish(added)?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// Adds the descriptor and sets the flag.
fn finish(namespace: &Arc<Namespace>, inode: &Arc<Inode>, descriptor: &[u8]) -> Result<()> {
    let mut h = namespace.start(ITEMS)?;
    namespace.forbid_log(&h, CommitReason::HashTree);
    namespace.add_compat_ro(CompatRo::VERITY);
    let added =
        verity::insert_descriptor(&mut h, inode, descriptor).and_then(|()| unmark(&mut h, inode));
    if added.is_ok() {
        let now = namespace.now();
        inode.change(&h, |state| {
            state.flags |= InodeFlags::VERITY;
            state.inode_changed(now);
        });
    }
    h.finish(added)
}

/// Removes the orphan item of a file that has a name.
fn unmark(h: &mut Handle, inode: &Inode) -> Result<()> {
    if inode.is_linked() {
        orphan_item::remove(h, &inode.root, inode.objectid)
    } else {
        Ok(())
    }
}

/// Removes what an unfinished seal left in a file. The caller holds `io` exclusively.
///
/// # Errors
/// Unreadable blocks; [`Error::ReadOnly`].
pub(crate) fn undo(files: &Arc<Files>, inode: &Arc<Inode>) -> Result<()> {
    if !inode.is_sealed() {
        verity::remove(files, inode)?;
    }
    let mut h = files.start_urgent(1)?;
    let removed = unmark(&mut h, inode);
    h.finish(removed)
}
