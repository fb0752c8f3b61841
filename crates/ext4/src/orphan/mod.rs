//! Orphans: inodes that must be deleted or truncated, by the next mount if this one does not
//! finish.
//!
//! # How it works
//! Older images have one list: the superblock names its first inode, and each inode the next one,
//! in the field that is otherwise the time of its deletion. Images with an orphan file have slots
//! in its blocks, so that threads that delete do not contend for the superblock. The list is used
//! when all slots are taken. [`orphan_set`](crate::orphan_set) keeps the place of each orphan.
//!
//! A thread adds or removes an orphan in the handle of the change that makes it one. A mount that
//! may write finishes the orphans that it finds ([`recovery`](crate::recovery)): an inode without a
//! name is deleted, one with a name is cut to its size.
//!
//! Trouble cases: a list that is a cycle or names an inode that cannot be an orphan ends there
//! (`a_damaged_list_ends_where_it_is`), an orphan in the middle of the list that is removed first
//! (`orphans_leave_the_list_in_any_order`), a full orphan file
//! (`what_the_file_cannot_hold_goes_to_the_list`).

#[cfg(test)]
mod tests;

use sapwood_jbd2::Handle;

use crate::inode::Inode;
use crate::orphan_set::OrphanPlace;
use crate::volume::Volume;
use crate::{Error, Result};

/// Credits that [`add`] or [`remove`] needs: the superblock, the inode before, a block of the
/// orphan file.
pub(crate) const CREDITS: u32 = 3;

/// Records that an inode must be deleted (no name) or cut to its size (a truncation has begun).
/// Does nothing if it is recorded. The caller stores the inode afterwards.
///
/// # Errors
/// Errors of the device; the image is damaged.
pub(crate) fn add(volume: &Volume, h: &Handle, inode: &Inode) -> Result<()> {
    let mut state = volume.orphans.state.lock();
    if state.places.contains_key(&inode.ino) {
        return Ok(());
    }
    let slot = match &mut state.file {
        Some(file) => file.take(h, inode.ino)?,
        None => None,
    };
    let place = match slot {
        Some(slot) => OrphanPlace::File(slot),
        None => {
            let first = state.list.last().copied().unwrap_or(0);
            inode.state.lock().raw.set_dtime(first);
            volume.change_super(h, |sb| sb.last_orphan = inode.ino.into())?;
            state.list.push(inode.ino);
            OrphanPlace::List
        }
    };
    state.places.insert(inode.ino, place);
    inode.state.lock().orphan = true;
    volume.fast_commits.orphan_added(h, inode.ino);
    Ok(())
}

/// Removes the record of an orphan. The caller stores the inode.
///
/// # Errors
/// Errors of the device; the image is damaged.
pub(crate) fn remove(volume: &Volume, h: &Handle, inode: &Inode) -> Result<()> {
    let mut state = volume.orphans.state.lock();
    match state.places.remove(&inode.ino) {
        None => return Ok(()),
        Some(OrphanPlace::File(slot)) => {
            if let Some(file) = &mut state.file {
                file.clear(h, slot)?;
            }
        }
        Some(OrphanPlace::List) => leave_list(volume, h, &mut state.list, inode.ino)?,
    }
    volume
        .fast_commits
        .orphan_removed(h, inode.ino, inode.is_linked());
    let mut own = inode.state.lock();
    own.raw.set_dtime(0);
    own.orphan = false;
    Ok(())
}

/// Removes an orphan from the list: the one before it gets its successor.
fn leave_list(volume: &Volume, h: &Handle, list: &mut Vec<u32>, ino: u32) -> Result<()> {
    let Some(at) = list.iter().rposition(|other| *other == ino) else {
        return Ok(());
    };
    let next = match at {
        0 => 0,
        at => list.get(at - 1).copied().unwrap_or(0),
    };
    match list.get(at + 1).copied() {
        None => volume.change_super(h, |sb| sb.last_orphan = next.into())?,
        Some(before) => {
            // Orphans stay in memory, so this loads nothing.
            let before = volume.inodes.peek(before).ok_or_else(|| Error::BadInode {
                ino: before,
                reason: "an orphan that is not in memory".into(),
            })?;
            before.state.lock().raw.set_dtime(next);
            before.store(volume, h)?;
        }
    }
    list.remove(at);
    Ok(())
}
