//! Inodes without a name.
//!
//! # How it works
//! After the last name of an inode is removed, the next commit adds an orphan item to the tree
//! (`inode/orphan_item.rs`). When the last reference is released, [`reap`] deletes the content in
//! steps of its own, and then, in one handle, the rest of the inode together with the orphan item.
//! A power cut in between leaves the orphan item. A later mount finishes the deletion
//! ([`clean_once`]): in the mounted subvolume when it opens, in any other when a lookup first
//! enters it. The orphan item of an inode that has a name marks an unfinished seal
//! ([`seal`]), or is left over from a truncation of an older kernel; a mount removes it.

use std::sync::Arc;

use sapwood_btrfs_format::Key;
use sapwood_vfs::{self as vfs, FileKind};

use super::seal;
use crate::data::{self, Files, verity};
use crate::inode::{Inode, know_objectids, orphan_item};
use crate::tree::Root;
use crate::{Error, Result};

/// Deletes an inode that has neither a name nor references; leaves any other alone.
pub(crate) fn reap(files: &Arc<Files>, inode: &Arc<Inode>) -> Result<()> {
    let _io = inode.io.write();
    let unwanted = {
        let mut state = inode.state.lock();
        let unwanted = state.nlink == 0 && !state.dying && inode.residence.references() == 0;
        state.dying |= unwanted && !files.read_only();
        unwanted
    };
    if !unwanted || files.read_only() {
        return Ok(());
    }
    let _deletion = files.space.deletions.begin();
    know_objectids(files, &inode.root)?;
    if inode.kind == FileKind::Regular {
        data::delete_content(files, inode)?;
        if inode.is_sealed() {
            verity::remove(files, inode)?;
        }
    }
    let mut h = files.start_urgent(8)?;
    inode.state.lock().deleted = true;
    let first = Key::new(inode.objectid, 0, 0);
    let last = Key::new(inode.objectid, u8::MAX, u64::MAX);
    let gone = inode
        .root
        .delete_range(&mut h, &first, &last)
        .and_then(|_| orphan_item::settle(&mut h, inode));
    files.inodes.remove(inode);
    h.finish(gone)
}

/// Finishes the deletions that a former mount left in a tree, once per mount and tree.
pub(crate) fn clean_once(files: &Arc<Files>, root: &Arc<Root>) -> Result<()> {
    if files.read_only() || root.is_read_only() || !files.inodes.first_visit(root.id()) {
        return Ok(());
    }
    for inode in orphan_item::all(files, root)? {
        match files.inodes.load(files, root, inode) {
            Ok(inode) if inode.is_linked() => {
                let _io = inode.io.write();
                seal::undo(files, &inode)?;
            }
            Ok(inode) => reap(files, &inode)?,
            Err(Error::Vfs(vfs::Error::Stale)) => {
                let mut h = files.start_urgent(1)?;
                orphan_item::remove(&mut h, root, inode)?;
                h.end()?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
