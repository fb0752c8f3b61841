//! Background cleaning: trees of deleted subvolumes, and empty block groups.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sapwood_vfs::FileKind;

use super::dropping::Dropping;
use super::layer::Subvolumes;
use crate::data::{self, Files};
use crate::inode::{Inode, orphan_item};
use crate::transaction::Handle;
use crate::tree::Root;
use crate::{Error, Result};

/// Refs that one handle changes: some tens of leaves.
const BUDGET: usize = 4000;
/// Items that removing an empty block group touches.
const GROUP_ITEMS: u64 = 8;
/// Rounds that [`clean_now`] needs for unused trees.
const TRIES: u32 = 3;
/// Longest time that [`clean_now`] waits for threads that hold objects to which no caller refers.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two rounds.
const PAUSE: Duration = Duration::from_millis(1);

/// The cleaner thread.
pub(crate) fn run(subvolumes: &Arc<Subvolumes>) {
    let mut wait = false;
    while subvolumes.cleaner.wait_work(wait) {
        match round(subvolumes) {
            Ok(waits) => wait = waits,
            Err(err) => {
                if !subvolumes.health.failed() {
                    log::warn!("clean-up: {err}");
                }
                wait = true;
            }
        }
        if subvolumes.health.failed() {
            return;
        }
    }
}

/// Cleans up everything that was deleted before the call; false if that is not possible now.
pub(crate) fn clean_now(subvolumes: &Arc<Subvolumes>) -> bool {
    // No round of the cleaner's thread may run between a commit and this round: it may change a
    // tree, which then has to wait again.
    let _round = subvolumes.cleaner.round.lock();
    let begun = Instant::now();
    // Writing back dirty data in a deleted tree needs one more commit each time.
    for tries in 1.. {
        match subvolumes
            .commit(None)
            .and_then(|()| locked_round(subvolumes))
        {
            Ok(true) => {}
            Ok(false) => return true,
            Err(err) => {
                log::warn!("clean-up: {err}");
                return false;
            }
        }
        // A thread that just completed a write may still hold the file's object.
        let is_used = || {
            subvolumes
                .cleaner
                .dead()
                .iter()
                .any(|root| is_used(subvolumes, root))
        };
        if tries >= TRIES && (begun.elapsed() > PATIENCE || is_used()) {
            break;
        }
        thread::sleep(PAUSE);
    }
    false
}

/// Does all possible work. True if work is left that has to wait.
///
/// # Errors
/// Unreadable blocks; [`Error::NoSpace`](crate::Error::NoSpace) and
/// [`Error::Aborted`](crate::Error::Aborted) from a handle.
pub(crate) fn round(subvolumes: &Arc<Subvolumes>) -> Result<bool> {
    let _round = subvolumes.cleaner.round.lock();
    locked_round(subvolumes)
}

/// Does a [`round`], for a caller that holds the lock of the rounds.
fn locked_round(subvolumes: &Arc<Subvolumes>) -> Result<bool> {
    let mut waiting = VecDeque::new();
    let result = loop {
        if subvolumes.cleaner.stopping() {
            break Ok(());
        }
        let Some(root) = subvolumes.cleaner.work.lock().dead.pop_front() else {
            break Ok(());
        };
        match drop_tree(subvolumes, &root) {
            Ok(true) => {}
            Ok(false) => waiting.push_back(root),
            Err(err) => {
                waiting.push_back(root);
                break Err(err);
            }
        }
    };
    let left = !waiting.is_empty();
    subvolumes.cleaner.work.lock().dead.append(&mut waiting);
    result?;
    while !subvolumes.cleaner.stopping() && subvolumes.space.has_empty_block_groups() {
        let mut h = subvolumes.start_urgent(GROUP_ITEMS)?;
        let done = subvolumes.space.delete_empty_block_groups(&mut h);
        if h.finish(done)? == 0 {
            break;
        }
    }
    Ok(left)
}

/// Queues the trees that were deleted before the mount, and forgets marks of missing trees.
///
/// # Errors
/// An unreadable root tree.
pub(crate) fn find_dead(subvolumes: &Arc<Subvolumes>) -> Result<()> {
    for id in dead_ids(subvolumes)? {
        match subvolumes.roots.get(id) {
            Ok(root) if root.is_dead() => subvolumes.cleaner.add(root),
            // Not dead, or missing: the mark has no meaning. Inodes of the v1 space cache have
            // marks too.
            Err(Error::NoSuchRoot(_)) | Ok(_) => log::debug!("orphan item of tree {id} ignored"),
            Err(err) => log::warn!("deleted subvolume {id} stays on disk: {err}"),
        }
    }
    Ok(())
}

/// Ids in the orphan items of the root tree.
///
/// # Errors
/// An unreadable root tree.
pub(crate) fn dead_ids(subvolumes: &Arc<Subvolumes>) -> Result<Vec<u64>> {
    orphan_item::all(subvolumes, &subvolumes.roots.root_tree)
}

/// Drops a dead tree as far as possible; true if it was dropped completely.
fn drop_tree(subvolumes: &Arc<Subvolumes>, root: &Arc<Root>) -> Result<bool> {
    // The deletion must be durable first: then all blocks are on disk, and no handle that could
    // change the tree is open.
    if root.last_trans() > subvolumes.last_committed() || !evict(subvolumes, root)? {
        return Ok(false);
    }
    let mut dropping = Dropping::new(root.clone());
    loop {
        if subvolumes.cleaner.stopping() {
            return Ok(false);
        }
        let mut h = subvolumes.start_urgent(BUDGET as u64 / 100)?;
        let step = dropping.step(&mut h, BUDGET).and_then(|done| {
            if done {
                forget(&mut h, root)?;
            }
            subvolumes.space.run_delayed_refs(&mut h, Some(BUDGET))?;
            Ok(done)
        });
        if h.finish(step)? {
            return Ok(true);
        }
        if let Some(err) = dropping.stuck() {
            log::error!("deleted subvolume {} stays on disk: {err}", root.id());
            return Ok(true);
        }
    }
}

/// Takes the inodes of a dead tree out of memory; false while a thread uses one, or it has changes
/// that are not durable yet.
fn evict(subvolumes: &Arc<Subvolumes>, root: &Arc<Root>) -> Result<bool> {
    if is_used(subvolumes, root) {
        return Ok(false);
    }
    let inodes = subvolumes.inodes.of_tree(root.id());
    for inode in inodes.iter().filter(|i| i.kind == FileKind::Regular) {
        data::flush_complete(subvolumes, inode)?;
    }
    if root.last_trans() > subvolumes.last_committed() {
        return Ok(false);
    }
    let mut all = true;
    for inode in inodes {
        all &= subvolumes.inodes.evict_unused(&inode);
    }
    Ok(all)
}

/// Whether a caller refers to an inode of a dead tree.
fn is_used(files: &Files, root: &Root) -> bool {
    // The order matters: meanwhile, inodes of this tree may be loaded again, but are not evicted.
    if files.inodes.refers_to_parked(root.id()) {
        return true;
    }
    let inodes = files.inodes.of_tree(root.id());
    let used = |inode: &Arc<Inode>| inode.residence.references() > 0;
    inodes.iter().any(used)
}

/// Deletes the rest of a tree without blocks: its root item and its orphan item.
pub(super) fn forget(h: &mut Handle, root: &Arc<Root>) -> Result<()> {
    let store = h.store().clone();
    let root_tree = &store.roots.root_tree;
    h.trans().dirty_roots.remove(root.id());
    root_tree.delete(h, &root.item_key())?;
    orphan_item::remove(h, root_tree, root.id())?;
    store.quotas.remove_group(root.id());
    store.roots.forget(root.id());
    Ok(())
}
