//! A chunk that moves while it is in use.
//!
//! # How it works
//! 1. [`begin_move`](Volume::begin_move): from now on each write to the chunk also goes to its new
//!    places. Writes that began before have ended.
//! 2. [`copy_moving`](Volume::copy_moving) copies the bytes in use, a step at a time. No write
//!    comes between the read and the write of a step, so a copied byte never replaces a newer one.
//! 3. [`switch_move`](Volume::switch_move), in the commit that records the new places: reads use
//!    them, and writes still go to both. A crash before the superblock is durable leads to the old
//!    places, which have everything.
//! 4. [`end_move`](Volume::end_move), when the superblock is durable. Reads of the old places have
//!    ended when it returns, so they can be used again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sapwood_btrfs_format::ChunkItem;

use super::copies::{Write, cut};
use super::degraded::Refused;
use super::{Volume, stripe};
use crate::{Error, Result};

/// A chunk in motion.
#[derive(Debug)]
pub(super) struct Moving {
    /// Logical address.
    start: u64,
    /// The chunk in the places that the map does not have: first the new ones, then the old ones.
    other: ChunkItem,
    /// The map has the new places.
    switched: bool,
    /// A write to a new place failed, so the chunk stays where it is.
    failed: AtomicBool,
}

impl Volume {
    /// Sends each further write to the chunk at `start` also to its new places. False if a chunk
    /// moves already, or a device is replaced: only one does at a time.
    pub(crate) fn begin_move(&self, start: u64, new: ChunkItem) -> bool {
        let mut current = self.moving.lock();
        if current.is_some() || self.replacing().is_some() {
            return false;
        }
        *current = Some(Arc::new(Moving {
            start,
            other: new,
            switched: false,
            failed: AtomicBool::new(false),
        }));
        drop(current);
        // Waits for writes that go to the old places only.
        drop(self.writes.write());
        true
    }

    /// Copies a range of the chunk that moves to its new places.
    ///
    /// # Errors
    /// [`Error::Unmapped`], [`Error::Device`], [`Error::MissingDevice`]; [`Error::TooFewDevices`].
    pub(crate) fn copy_moving(&self, logical: u64, len: u64) -> Result<()> {
        let Some(moving) = self.moving.lock().clone() else {
            return Err(Error::Unmapped { logical, len });
        };
        let _alone = self.writes.write();
        self.copy_to((logical, len), (moving.start, &moving.other))
    }

    /// Makes the map lead to the new places, unless a write to them failed. Returns whether it
    /// does.
    pub(crate) fn switch_move(&self) -> bool {
        let _alone = self.writes.write();
        let mut current = self.moving.lock();
        let Some(moving) = current.take() else {
            return false;
        };
        let old = self.chunk_at(moving.start);
        let (false, Ok((start, old))) = (moving.failed.load(Ordering::Acquire), old) else {
            *current = Some(moving);
            return false;
        };
        let new = moving.other.clone();
        *current = Some(Arc::new(Moving {
            start,
            other: (*old).clone(),
            switched: true,
            failed: AtomicBool::new(false),
        }));
        drop(current);
        self.replace_chunk(start, vec![(start, new)]);
        true
    }

    /// Writes to the chunk go only to the places in the map again. When this returns, no other
    /// place is read or written.
    pub(crate) fn end_move(&self) {
        *self.moving.lock() = None;
        drop(self.writes.write());
        drop(self.reads.write());
    }

    /// Writes the part of buffers at `logical` that lies in the chunk that moves to its other
    /// places.
    pub(super) fn write_moving(
        &self,
        logical: u64,
        bufs: &[&[u8]],
        write: &Write<'_>,
    ) -> Result<()> {
        let Some(moving) = self.moving.lock().clone() else {
            return Ok(());
        };
        let (start, chunk) = (moving.start, &moving.other);
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        let from = logical.max(start);
        let to = logical
            .saturating_add(len)
            .min(start.saturating_add(chunk.length));
        if from >= to {
            return Ok(());
        }
        let part = cut(bufs, (from - logical) as usize, (to - from) as usize);
        for copy in 0..stripe::copies(chunk) {
            let mut at = from;
            while at < to {
                let piece = stripe::piece(chunk, at - start, to - at, copy);
                let piece = piece.ok_or(Error::Unmapped {
                    logical: at,
                    len: to - at,
                })?;
                let bytes = cut(&part, (at - from) as usize, piece.len as usize);
                at += piece.len;
                let Some(member) = self.written(piece.devid) else {
                    moving.failed.store(true, Ordering::Release);
                    continue;
                };
                let Err(error) = write(&*member.device, piece.physical, &bytes) else {
                    continue;
                };
                if moving.switched {
                    let devid = piece.devid;
                    self.lose(Refused { devid, error })?;
                } else {
                    log::warn!("a block group does not move: {error}");
                    moving.failed.store(true, Ordering::Release);
                }
            }
        }
        Ok(())
    }
}
