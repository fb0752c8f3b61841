//! Moves the chunks of a file system, for a resize, a balance and the removal of a device. If the
//! file system is not mounted, also cuts and splits them.
//!
//! Each step is one commit, which leaves a consistent file system. So the operations that use
//! this module may be interrupted anywhere; running them again continues with the remaining chunks.

mod moving;
pub(crate) mod parts;

use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs_format::{BlockGroupFlags, ChunkItem, Incompat};
use sapwood_vfs::Timestamp;

use crate::devices::stripe;
use crate::options::SubvolumeChoice;
use crate::scrub;
use crate::space::{NewPlace, Prefer, Replaced};
use crate::transaction::{Handle, Store};
use crate::{Btrfs, Error, Options, Result};
use parts::Group;

/// Chunks begin and end at multiples of this.
pub(crate) const STRIPE_LEN: u64 = 64 << 10;
/// Approximate number of items that a step changes. A step that needs more takes it from the
/// reserved free space.
pub(crate) const STEP_ITEMS: u64 = 12;
/// Smallest part of a chunk that is split off to fill a hole.
const LEAST_PART: u64 = 1 << 20;

/// Opens the file system on `devices` without background threads. With a `time` the result is
/// [reproducible](Options::set_reproducible).
///
/// # Errors
/// The errors of a mount.
pub(crate) fn open(
    devices: &[Arc<dyn Device>],
    time: Option<Timestamp>,
    degraded: bool,
) -> Result<Btrfs> {
    let mut options = Options {
        subvolume: SubvolumeChoice::Id(0),
        background: false,
        degraded,
        ..Options::default()
    };
    if let Some(time) = time {
        options.set_reproducible(time);
    }
    Btrfs::open(devices.to_vec(), options)
}

/// Opens the file system on `devices` to look at its trees. Changes nothing.
///
/// # Errors
/// The errors of a mount.
pub(crate) fn open_to_read(devices: &[Arc<dyn Device>], degraded: bool) -> Result<Btrfs> {
    let options = Options {
        subvolume: SubvolumeChoice::Id(0),
        background: false,
        read_only: true,
        no_log_replay: true,
        degraded,
        ..Options::default()
    };
    Btrfs::open(devices.to_vec(), options)
}

/// The result of a relocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relocated {
    /// The chunk lies in such places already.
    Stays,
    /// This many used bytes moved.
    Moved(u64),
    /// The chunk was split, so that the parts fit into free places.
    Split,
    /// No free place fits.
    NoRoom,
}

/// Changes of the chunks of an open file system.
pub(crate) struct Relocation<'s> {
    store: &'s Arc<Store>,
    /// Other threads use the file system, so chunks only move.
    mounted: bool,
}

impl<'s> Relocation<'s> {
    pub(crate) fn new(store: &'s Arc<Store>) -> Self {
        Self {
            store,
            mounted: false,
        }
    }

    /// Changes of a file system that other threads use.
    pub(crate) fn mounted(store: &'s Arc<Store>) -> Self {
        Self {
            store,
            mounted: true,
        }
    }

    /// Commits one transaction with the changes of `work`. The space that it releases is free
    /// afterwards.
    ///
    /// # Errors
    /// An error of `work`, which is not committed; unreadable blocks, no space.
    pub(crate) fn step(&self, work: impl FnOnce(&mut Handle) -> Result<Replaced>) -> Result<()> {
        let store = self.store;
        store.commit_and_unpin(None)?;
        let mut h = store.start_urgent(STEP_ITEMS)?;
        let worked = work(&mut h);
        let replaced = h.finish(worked)?;
        store.commit_and_unpin(None)?;
        store.space.release_replaced(&replaced);
        Ok(())
    }

    /// Writes new superblocks to all devices, although nothing changed.
    ///
    /// # Errors
    /// The error that keeps the commit from becoming durable.
    pub(crate) fn renew_supers(&self) -> Result<()> {
        let h = self.store.join()?;
        let transid = h.transid();
        h.end()?;
        self.store.commit_and_unpin(Some(transid))
    }

    /// The block group at an address, as of the last commit.
    ///
    /// # Errors
    /// Unreadable blocks; [`Error::Unmapped`].
    pub(crate) fn group(&self, logical: u64) -> Result<Group> {
        let space = &self.store.space;
        let (flags, len) = space.group_shape(logical)?;
        let (_, chunk) = self.store.volume.chunk_at(logical)?;
        Ok(Group {
            start: logical,
            len,
            flags,
            row: stripe::row_len(&chunk),
            extents: space.extents_of(logical)?,
        })
    }

    /// All groups, in order of their addresses.
    ///
    /// # Errors
    /// Unreadable blocks.
    pub(crate) fn groups(&self) -> Result<Vec<Group>> {
        let chunks = self.store.volume.chunks();
        let each = chunks.iter().map(|(logical, _)| self.group(*logical));
        // A group may have been removed since.
        let there = each.filter(|group| !matches!(group, Err(Error::Unmapped { .. })));
        there.collect()
    }

    /// Cuts the unused space out of a chunk, where it has gaps of `gap` bytes, or removes it. False
    /// if there is nothing to cut.
    ///
    /// # Errors
    /// Unreadable blocks, no space.
    pub(crate) fn cut(&self, group: &Group, gap: u64) -> Result<bool> {
        // The groups change with each step, and with them the space that must stay free.
        let (group, all) = (self.group(group.start)?, self.groups()?);
        let parts = if group.is_data() {
            parts::of_data(&group, &all, gap)
        } else {
            parts::of_metadata(&group, &all, self.store.nodesize.into())
        };
        if parts.iter().map(|(_, len)| len).sum::<u64>() >= group.len {
            return Ok(false);
        }
        self.split(&group, &parts)?;
        Ok(true)
    }

    /// Replaces a chunk by parts of it, where they are.
    ///
    /// # Errors
    /// Unreadable blocks, no space.
    pub(crate) fn split(&self, group: &Group, parts: &[(u64, u64)]) -> Result<()> {
        let (start, chunk) = self.store.volume.chunk_at(group.start)?;
        let part = |(at, len): &(u64, u64)| (*at, stripe::part(&chunk, at - start, *len));
        let chunks = parts.iter().map(part).collect();
        let space = &self.store.space;
        self.step(|h| space.replace_chunk(h, start, chunks))
    }

    /// Gives a chunk another profile, or other places on the devices that are `allowed`. All copies
    /// are verified first, and bad ones repaired.
    ///
    /// # Errors
    /// [`Error::BadBlockGroup`] if bytes have no good copy; unreadable blocks, no space; a device
    /// that fails.
    pub(crate) fn relocate(
        &self,
        start: u64,
        flags: BlockGroupFlags,
        prefer: Prefer,
        allowed: &dyn Fn(u64) -> bool,
    ) -> Result<Relocated> {
        let store = self.store;
        let (_, old) = store.volume.chunk_at(start)?;
        let group = self.group(start)?;
        let place = |length| {
            let wanted = NewPlace {
                flags,
                length,
                allowed,
                prefer,
            };
            store.space.new_place(&old, &wanted)
        };
        let Some(new) = place(old.length) else {
            if self.mounted {
                return Ok(Relocated::NoRoom);
            }
            return self.split_to_fit(&group, &old, flags, allowed);
        };
        if same_places(&old, &new) {
            return Ok(Relocated::Stays);
        }
        let lost = scrub::verify_group(store, start)?;
        if lost > 0 {
            return Err(damaged(start, lost));
        }
        if flags.intersects(BlockGroupFlags::RAID1C3 | BlockGroupFlags::RAID1C4) {
            store.add_incompat(Incompat::RAID1C34);
        }
        // Another thread may have allocated a chunk in the free places meanwhile.
        while let Some(new) = place(old.length) {
            if same_places(&old, &new) {
                return Ok(Relocated::Stays);
            }
            if let Some(replaced) = store.space.take_new_places(&old, &new) {
                let moved = moving::move_chunk(store, start, new, replaced)?;
                let used = moved.then(|| group.used());
                return Ok(used.map_or(Relocated::Stays, Relocated::Moved));
            }
        }
        Ok(Relocated::NoRoom)
    }

    /// Cuts or splits a data chunk, so that a part of it fits into the free places of the devices.
    fn split_to_fit(
        &self,
        group: &Group,
        old: &ChunkItem,
        flags: BlockGroupFlags,
        allowed: &dyn Fn(u64) -> bool,
    ) -> Result<Relocated> {
        if self.cut(group, parts::LEAST_GAP)? {
            return Ok(Relocated::Split);
        }
        let fits = |length: u64| {
            let wanted = NewPlace {
                flags,
                length,
                allowed,
                prefer: Prefer::Present,
            };
            self.store.space.new_place(old, &wanted).is_some()
        };
        let mut most = group.len / 2;
        while group.is_data() && most >= LEAST_PART {
            let most_rows = most - most % group.row;
            if most_rows > 0
                && fits(most_rows)
                && let Some(parts) = parts::split(group, most_rows)
            {
                self.split(group, &parts)?;
                return Ok(Relocated::Split);
            }
            most /= 2;
        }
        Ok(Relocated::NoRoom)
    }
}

/// Whether two chunks have one profile and lie in the same places; mirrors may have another order.
fn same_places(old: &ChunkItem, new: &ChunkItem) -> bool {
    let sorted = |chunk: &ChunkItem| {
        let places = chunk.stripes.iter().map(|s| (s.devid, s.offset));
        let mut places: Vec<(u64, u64)> = places.collect();
        if stripe::is_whole(chunk) {
            places.sort_unstable();
        }
        places
    };
    old.flags == new.flags && old.length == new.length && sorted(old) == sorted(new)
}

fn damaged(start: u64, lost: u64) -> Error {
    Error::BadBlockGroup {
        group: start,
        reason: format!("{lost} sectors or tree blocks have no good copy"),
    }
}
