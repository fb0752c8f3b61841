//! Usage and limits of users, groups and projects, in memory and in the blocks of their files.
//!
//! # How it works
//! Each inode in memory knows the [`Charge`] that the quota files have for it. When an inode is
//! stored, the difference from its new charge is added to the entries of its owners, in the same
//! handle: the inode table and the quota files of a transaction always agree. All entries are in
//! memory; each knows its place on the device. [`quota`](crate::quota) loads and adds entries.
//!
//! Limits are checked before an operation changes anything: space when blocks are promised, inodes
//! when one is made. Promised space counts as used.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use sapwood_ext4_format::{Geometry, Inode as RawInode, QuotaEntry, QuotaKind};
use sapwood_jbd2::{Cache, Handle};

use crate::lock::{Rank, RankedMutex};
use crate::{Error, Result};

/// Owners of an inode: one for the quotas of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owners {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) project: u32,
}

impl Owners {
    /// The owners of an inode with these contents.
    pub(crate) fn of(raw: &RawInode) -> Self {
        Self {
            uid: raw.uid(),
            gid: raw.gid(),
            project: raw.projid().unwrap_or(0),
        }
    }

    /// The owner for quotas of a kind.
    pub(crate) fn id(&self, kind: QuotaKind) -> u32 {
        match kind {
            QuotaKind::User => self.uid,
            QuotaKind::Group => self.gid,
            QuotaKind::Project => self.project,
        }
    }
}

/// The part that an inode adds to the usage of its owners: itself, and its space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) owners: Owners,
    /// Bytes of blocks.
    pub(crate) space: u64,
}

impl Charge {
    /// The charge of an inode with these contents.
    pub(crate) fn of(raw: &RawInode, geometry: &Geometry) -> Self {
        Self {
            owners: Owners::of(raw),
            space: raw.sectors(geometry).saturating_mul(512),
        }
    }
}

/// An entry, and its place.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Block of the device.
    pub(crate) block: u64,
    /// Byte in the block.
    pub(crate) offset: usize,
    pub(crate) values: QuotaEntry,
    /// Bytes promised to files of the owner.
    pub(crate) promised: Arc<AtomicU64>,
}

/// The quotas of a kind.
#[derive(Debug)]
pub(crate) struct KindTable {
    pub(crate) kind: QuotaKind,
    /// Inode of the file.
    pub(crate) ino: u32,
    /// Seconds that space and inodes may exceed their soft limits.
    pub(crate) grace: (u32, u32),
    pub(crate) entries: RankedMutex<HashMap<u32, Entry>>,
    /// Held while an entry is added to the file.
    pub(crate) growing: RankedMutex<()>,
}

/// The quotas of a mount: empty without the feature.
#[derive(Debug, Default)]
pub(crate) struct QuotaTable(OnceLock<Loaded>);

#[derive(Debug)]
struct Loaded {
    kinds: Vec<KindTable>,
    /// Whether limits are enforced.
    limits: bool,
}

/// A change of the usage of an owner.
#[derive(Debug, Clone, Copy, Default)]
struct Change {
    space: i64,
    inodes: i64,
}

impl QuotaTable {
    /// Sets the quotas that were loaded; `limits`: limits are enforced.
    pub(crate) fn set(&self, kinds: Vec<KindTable>, limits: bool) {
        let _ = self.0.set(Loaded { kinds, limits });
    }

    /// The kinds whose limits are enforced.
    fn limited(&self) -> &[KindTable] {
        let loaded = self.0.get().filter(|loaded| loaded.limits);
        loaded.map_or(&[], |loaded| &loaded.kinds)
    }

    /// The kinds that the file system keeps.
    pub(crate) fn kinds(&self) -> &[KindTable] {
        self.0.get().map_or(&[], |loaded| &loaded.kinds)
    }

    /// Whether usage is kept.
    pub(crate) fn is_on(&self) -> bool {
        !self.kinds().is_empty()
    }

    /// Credits that a change of one inode may need: the entries of the old and the new owners.
    pub(crate) fn credits(&self) -> u32 {
        2 * self.kinds().len() as u32
    }

    /// Replaces the charge of an inode, in this handle.
    ///
    /// # Errors
    /// Errors of the device and of the journal.
    pub(crate) fn replace(
        &self,
        cache: &Cache,
        h: &Handle,
        (old, new): (Option<Charge>, Option<Charge>),
        now: u64,
    ) -> Result<()> {
        if old == new {
            return Ok(());
        }
        for table in self.kinds() {
            let part = |charge: Charge, sign: i64| {
                let space = i64::try_from(charge.space).unwrap_or(i64::MAX);
                let change = Change {
                    space: sign * space,
                    inodes: sign,
                };
                (charge.owners.id(table.kind), change)
            };
            let parts = [old.map(|old| part(old, -1)), new.map(|new| part(new, 1))];
            match parts {
                [Some((from, less)), Some((to, more))] if from == to => {
                    let change = Change {
                        space: less.space + more.space,
                        inodes: 0,
                    };
                    if change.space != 0 {
                        table.change(cache, h, to, change, now)?;
                    }
                }
                parts => {
                    for (id, change) in parts.into_iter().flatten() {
                        table.change(cache, h, id, change, now)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Refuses a new inode of these owners, if it would exceed a limit. `privileged` owners have
    /// none.
    ///
    /// # Errors
    /// `Quota`.
    pub(crate) fn check_inode(&self, owners: &Owners, privileged: bool, now: u64) -> Result<()> {
        let mut kinds = self.limited().iter().filter(|_| !privileged);
        kinds.try_for_each(|table| {
            let entries = table.entries.lock();
            let Some(entry) = entries.get(&owners.id(table.kind)) else {
                return Ok(());
            };
            let values = &entry.values;
            let limits = Limits {
                hard: values.inode_hard.get(),
                soft: values.inode_soft.get(),
                until: values.inode_time.get(),
            };
            limits.check(values.inodes.get().saturating_add(1), now)
        })
    }

    /// Promises space to an inode with this charge, unless that exceeds a limit. Returns the
    /// counters that the promise was added to.
    ///
    /// # Errors
    /// `Quota`.
    pub(crate) fn promise(
        &self,
        charge: &Charge,
        bytes: u64,
        now: u64,
    ) -> Result<Vec<Arc<AtomicU64>>> {
        let mut counters: Vec<Arc<AtomicU64>> = Vec::new();
        let undo = |counters: &[Arc<AtomicU64>]| {
            for counter in counters {
                counter.fetch_sub(bytes, Ordering::AcqRel);
            }
        };
        for table in self.limited() {
            let entries = table.entries.lock();
            let Some(entry) = entries.get(&charge.owners.id(table.kind)) else {
                continue;
            };
            let before = entry.promised.fetch_add(bytes, Ordering::AcqRel);
            counters.push(Arc::clone(&entry.promised));
            let values = &entry.values;
            let used = values.space.get().saturating_add(before);
            let kib = used.saturating_add(bytes).div_ceil(1024);
            let limits = Limits {
                hard: values.space_hard.get(),
                soft: values.space_soft.get(),
                until: values.space_time.get(),
            };
            drop(entries);
            if let Err(error) = limits.check(kib, now) {
                undo(&counters);
                return Err(error);
            }
        }
        Ok(counters)
    }
}

/// The limits of space or inodes.
struct Limits {
    hard: u64,
    soft: u64,
    /// End of the grace time; 0: it does not run.
    until: u64,
}

impl Limits {
    fn check(&self, wanted: u64, now: u64) -> Result<()> {
        let late = self.until != 0 && now >= self.until;
        let over = self.hard != 0 && wanted > self.hard;
        if over || self.soft != 0 && wanted > self.soft && late {
            return Err(sapwood_vfs::Error::Quota.into());
        }
        Ok(())
    }
}

/// The end of the grace time after a change.
fn grace_end(used: u64, soft: u64, until: u64, grace: u32, now: u64) -> u64 {
    if soft == 0 || used <= soft {
        0
    } else if until == 0 {
        now.saturating_add(grace.into())
    } else {
        until
    }
}

impl KindTable {
    /// Whether an owner has an entry.
    pub(crate) fn has(&self, id: u32) -> bool {
        self.entries.lock().contains_key(&id)
    }

    fn change(&self, cache: &Cache, h: &Handle, id: u32, change: Change, now: u64) -> Result<()> {
        let place = {
            let entries = self.entries.lock();
            entries.get(&id).map(|entry| (entry.block, entry.offset))
        };
        let Some((block, offset)) = place else {
            // The file lacked an owner of an inode before the mount.
            log::warn!("{:?} quota: no entry of {id}; run e2fsck", self.kind);
            return Ok(());
        };
        let buffer = cache.get(block).map_err(Error::from)?;
        // Operations reserve these credits, steps of a long one may not.
        let _ = h.ensure(1);
        h.write_access(&buffer)?;
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(&id) else {
            return Ok(());
        };
        let values = &mut entry.values;
        let space = values.space.get().saturating_add_signed(change.space);
        let inodes = values.inodes.get().saturating_add_signed(change.inodes);
        let (space_grace, inode_grace) = self.grace;
        let soft = values.space_soft.get();
        let until = values.space_time.get();
        let until = grace_end(space.div_ceil(1024), soft, until, space_grace, now);
        values.space_time = until.into();
        let (soft, until) = (values.inode_soft.get(), values.inode_time.get());
        values.inode_time = grace_end(inodes, soft, until, inode_grace, now).into();
        values.space = space.into();
        values.inodes = inodes.into();
        let stored = values.stored();
        let mut content = h.modify(&buffer)?;
        if let Some(to) = content.get_mut(offset..offset + QuotaEntry::SIZE) {
            to.copy_from_slice(stored.bytes());
        }
        Ok(())
    }
}

/// An empty table of entries.
pub(crate) fn no_entries() -> RankedMutex<HashMap<u32, Entry>> {
    RankedMutex::new(Rank::Quota, HashMap::new())
}
