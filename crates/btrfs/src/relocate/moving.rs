//! Moves a chunk while other threads use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sapwood_btrfs_format::ChunkItem;

use super::STEP_ITEMS;
use crate::space::{MovingGroup, Replaced};
use crate::transaction::Store;
use crate::{Error, Result};

/// Bytes that are copied at a time. Writes of other threads wait meanwhile.
const STEP: u64 = 256 << 10;

/// The end of a move.
enum Moved {
    /// The chunk is in its new places.
    Yes,
    /// The group is being removed.
    Gone,
    /// A device refused a write to a new place.
    Refused,
}

/// Moves the chunk at `start` to the places of `new`, which `replaced` has reserved, in one commit.
/// The old places are free afterwards. False if the group is being removed.
///
/// # Errors
/// Errors of the devices; unreadable blocks; no space. The chunk is where it was then, or the mount
/// has failed.
pub(super) fn move_chunk(
    store: &Arc<Store>,
    start: u64,
    new: ChunkItem,
    replaced: Replaced,
) -> Result<bool> {
    let moved = match move_to(store, start, new) {
        // It is not known which places count.
        Err(error) if store.health.failed() => return Err(error),
        other => other,
    };
    if matches!(moved, Ok(Moved::Yes)) {
        store.space.release_replaced(&replaced);
        return Ok(true);
    }
    store.space.release_replaced(&replaced.reversed());
    match moved? {
        Moved::Yes | Moved::Gone => Ok(false),
        Moved::Refused => Err(unmoved(start, "a device refused a write to the new place")),
    }
}

fn move_to(store: &Arc<Store>, start: u64, new: ChunkItem) -> Result<Moved> {
    let volume = &store.volume;
    let Some(group) = store.space.begin_move(start)? else {
        return Ok(Moved::Gone);
    };
    let (_, old) = volume.chunk_at(start)?;
    if !volume.begin_move(start, new) {
        return Err(unmoved(start, "another one moves"));
    }
    let moved = copy(store, &group).and_then(|()| switch(store, group, old));
    volume.end_move();
    Ok(if moved? { Moved::Yes } else { Moved::Refused })
}

fn unmoved(group: u64, why: &str) -> Error {
    let reason = why.to_owned();
    Error::BadBlockGroup { group, reason }
}

fn copy(store: &Store, group: &MovingGroup) -> Result<()> {
    for (from, to) in group.ranges() {
        let mut at = from;
        while at < to {
            let len = STEP.min(to - at);
            store.volume.copy_moving(at, len)?;
            at += len;
        }
    }
    Ok(())
}

/// Makes the new places count, with a commit. False if a write to them failed.
fn switch(store: &Arc<Store>, group: MovingGroup, old: Arc<ChunkItem>) -> Result<bool> {
    let switched = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&switched);
    store.change_in_commit(move |h| {
        let store = h.store().clone();
        if store.volume.switch_move() {
            store.space.record_move(h, &group, &old)?;
            done.store(true, Ordering::Release);
        }
        Ok(())
    })?;
    Ok(switched.load(Ordering::Acquire))
}

impl Store {
    /// Runs `change` in the next commit, when no other handle is open. It changes about
    /// [`STEP_ITEMS`] items. Returns when the commit is durable.
    ///
    /// # Errors
    /// No space; the error that keeps the commit from becoming durable, also one of `change`.
    pub(crate) fn change_in_commit(
        self: &Arc<Self>,
        change: impl FnOnce(&mut crate::transaction::Handle) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let h = self.start_urgent(STEP_ITEMS)?;
        let transid = h.transid();
        let reserved = h.reservation.as_ref().map_or(0, |promise| promise.bytes());
        h.keep(reserved);
        self.queue_change(Box::new(change));
        h.end()?;
        self.commit_and_unpin(Some(transid))
    }
}
