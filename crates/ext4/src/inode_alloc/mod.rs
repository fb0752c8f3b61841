//! The choice of an inode for a new file.
//!
//! # How it works
//! [`policy`] chooses the groups to try in order, and the start in each. [`search`] finds a free
//! bit, [`claim`] takes it; neither knows groups, policies or journals. This module joins them to a
//! group: the search reads a copy of the bitmap in memory ([`InodeMap`]), the claim sets the bit in
//! both, and counts, flags and a new table block change under the same lock.

mod claim;
mod policy;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use sapwood_ext4_format::{
    BitmapKind, Compat, Inode as RawInode, InodeFlags, XATTR_MAGIC, bitmap, special_ino,
};
use sapwood_jbd2::{Buffer, Handle};
use sapwood_vfs::FileKind;

use claim::{Bits, Locked, Pool, claim};
use policy::Wish;

use crate::counters::{AllocCounters, count};
use crate::group::{Group, GroupState, Groups, InodeMap};
use crate::inode::{Inode, table_place};
use crate::lock::RankedMutexGuard;
use crate::store::Store;
use crate::{Error, Result};

/// Credits that [`allocate`] or [`free`] needs: bitmap, descriptor, inode table.
pub(crate) const CREDITS: u32 = 3;
/// Without a journal, an inode is not reused for this many seconds after its deletion, if others
/// are free: names of it may still be on disk, and would lead to the new file after a crash. The
/// same holds with fast commits, which cannot express that a number was reused.
const RECENT_SECONDS: u64 = 5;

/// Marks an inode as used and returns its number. The caller writes its slot of the table (the old
/// contents have no meaning, but their generation must not be used again).
///
/// # Errors
/// `NoSpace`: no group that is in use has a free inode; errors of the journal and of the device.
pub(crate) fn allocate(store: &Store, h: &Handle, parent: &Inode, kind: FileKind) -> Result<u32> {
    let (parent_group, _) = store.geometry.inode_location(parent.ino)?;
    let top = parent.ino == special_ino::ROOT || parent.flags().contains(InodeFlags::TOPDIR);
    let wish = Wish {
        parent: parent.ino,
        parent_group,
        directory: kind == FileKind::Directory,
        dense: store.options.dense,
        top,
    };
    let allocator = Allocator {
        groups: &store.groups,
        counters: &store.counters.inode_alloc,
        avoid_recent: avoids_recent(store),
        now: store.ambient.seconds(),
    };
    let ino = allocator.allocate(h, wish)?;
    if store.fast_commits.wanted(h) {
        let old_xattrs = has_old_xattrs(store, ino)?;
        store.fast_commits.created(h, ino, old_xattrs);
    }
    Ok(ino)
}

/// Marks an inode as free. One of a group that is out of use stays used.
///
/// # Errors
/// The bitmap has it free, it is reserved or does not exist; the errors of the journal and the
/// device.
pub(crate) fn free(store: &Store, h: &Handle, ino: u32, kind: FileKind) -> Result<()> {
    let allocator = Allocator {
        groups: &store.groups,
        counters: &store.counters.inode_alloc,
        avoid_recent: avoids_recent(store),
        now: store.ambient.seconds(),
    };
    store.fast_commits.freed(h, ino);
    allocator.free(h, ino, kind == FileKind::Directory)
}

/// Marks an inode as used that no allocation returned: an inode of a fast commit. False: it was
/// used already.
///
/// # Errors
/// The group is out of use; errors of the journal and of the device.
pub(crate) fn mark_used(store: &Store, h: &Handle, ino: u32, directory: bool) -> Result<bool> {
    let allocator = Allocator {
        groups: &store.groups,
        counters: &store.counters.inode_alloc,
        avoid_recent: avoids_recent(store),
        now: store.ambient.seconds(),
    };
    allocator.mark_used(h, ino, directory)
}

/// Whether the bitmap has an inode as used; in a group that is out of use, all are.
///
/// # Errors
/// There is no such inode; errors of the device.
pub(crate) fn is_used(store: &Store, ino: u32) -> Result<bool> {
    let (number, index) = store.geometry.inode_location(ino)?;
    match store.groups.inodes(store.groups.group(number)?) {
        Ok(map) => Ok(map.is_used(index)),
        Err(Error::BadGroup { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Whether the place of a free inode in its table still has attributes.
///
/// # Errors
/// Errors of the device.
pub(crate) fn has_old_xattrs(store: &Store, ino: u32) -> Result<bool> {
    let (buffer, offset) = table_place(store, ino)?;
    let content = buffer.read();
    let size = usize::from(store.geometry.inode_size());
    let bytes = content.get(offset..offset + size).unwrap_or_default();
    let old = RawInode::read(bytes, &store.geometry)?;
    Ok(old.attr_area().starts_with(&XATTR_MAGIC.to_le_bytes()))
}

fn avoids_recent(store: &Store) -> bool {
    let journal = store.geometry.features().has_compat(Compat::HAS_JOURNAL);
    !journal || store.fast_commits.enabled()
}

/// The parts of a mount that allocation and freeing need.
struct Allocator<'e> {
    groups: &'e Groups,
    counters: &'e AllocCounters,
    /// Inodes that were deleted lately are used only if no others are free.
    avoid_recent: bool,
    /// The time in seconds.
    now: u64,
}

impl Allocator<'_> {
    fn allocate(&self, h: &Handle, wish: Wish) -> Result<u32> {
        for number in policy::groups(self.groups, wish) {
            let group = self.groups.group(number)?;
            count(&self.counters.groups_visited);
            match self.allocate_in(h, group, wish) {
                Ok(Some(ino)) => {
                    count(&self.counters.given);
                    return Ok(ino);
                }
                // The last free inode was taken after the write access: the next group needs
                // credits of its own.
                Ok(None) => {
                    let _ = h.ensure(CREDITS);
                }
                Err(Error::BadGroup { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::NoSpace)
    }

    /// Inodes of the group that may be allocated.
    fn span(&self, group: &Group) -> Range<u32> {
        let geometry = self.groups.geometry();
        let inodes = geometry.inodes_per_group();
        let reserved = geometry.first_ino().saturating_sub(1);
        let before = u64::from(group.number) * u64::from(inodes);
        let first = u64::from(reserved)
            .saturating_sub(before)
            .min(inodes.into());
        first as u32..inodes
    }

    fn allocate_in(&self, h: &Handle, group: &Group, wish: Wish) -> Result<Option<u32>> {
        let geometry = self.groups.geometry();
        let pool = GroupPool {
            groups: self.groups,
            h,
            group,
            map: self.groups.inodes(group)?,
            buffer: OnceCell::new(),
            counters: self.counters,
        };
        let start = if wish.dense {
            pool.map.lowest()
        } else {
            policy::start(group, wish, geometry.inodes_per_group())
        };
        let claimed = claim(&pool, &self.span(group), start, self.counters)?;
        let Some((mut locked, index)) = claimed else {
            return Ok(None);
        };
        let table_block = self.account(group, &mut locked.state, index, wish.directory)?;
        drop(locked);
        if let Some(buffer) = table_block {
            // From here on the transaction holds it.
            h.write_access(&buffer)?;
        }
        geometry
            .ino(group.number, index)
            .map(Some)
            .ok_or(Error::NoSpace)
    }

    fn mark_used(&self, h: &Handle, ino: u32, directory: bool) -> Result<bool> {
        let (number, index) = self.groups.geometry().inode_location(ino)?;
        let group = self.groups.group(number)?;
        let pool = GroupPool {
            groups: self.groups,
            h,
            group,
            map: self.groups.inodes(group)?,
            buffer: OnceCell::new(),
            counters: self.counters,
        };
        pool.access()?;
        let mut locked = pool.lock();
        if !locked.test_and_set(index)? {
            return Ok(false);
        }
        let table_block = self.account(group, &mut locked.state, index, directory)?;
        drop(locked);
        if let Some(buffer) = table_block {
            h.write_access(&buffer)?;
        }
        Ok(true)
    }

    /// Counts and flags of an inode that was claimed. Returns its block of the table if nothing in
    /// it was ever used.
    fn account(
        &self,
        group: &Group,
        state: &mut GroupState,
        index: u32,
        directory: bool,
    ) -> Result<Option<Arc<Buffer>>> {
        let geometry = self.groups.geometry();
        let free = state.desc.free_inodes().saturating_sub(1);
        state.desc.set_free_inodes(free)?;
        if directory {
            let dirs = state.desc.used_dirs().saturating_add(1);
            state.desc.set_used_dirs(dirs)?;
        }
        let mut table_block = None;
        let never_used = group.first_never_used(state);
        if index >= never_used {
            let unused = geometry.inodes_per_group().saturating_sub(index + 1);
            state.desc.set_itable_unused(unused)?;
            if index - index % geometry.inodes_per_block().max(1) >= never_used {
                let table = self.groups.inode_table(group.number)?;
                let (block, _) = geometry.inode_in_table(table, index);
                table_block = Some(self.groups.new_table_block(block)?);
            }
        }
        let map = self.groups.inodes_if_known(group);
        if let Some(map) = map {
            map.forget_older(&mut state.recent, self.now, RECENT_SECONDS);
        }
        self.groups.mark_dirty(group, state, BitmapKind::Inode);
        Ok(table_block)
    }

    fn free(&self, h: &Handle, ino: u32, directory: bool) -> Result<()> {
        let geometry = self.groups.geometry();
        let (number, index) = geometry.inode_location(ino)?;
        if ino < geometry.first_ino() {
            return Err(Error::BadInode {
                ino,
                reason: "reserved, and to be freed".into(),
            });
        }
        let group = self.groups.group(number)?;
        let known = self.groups.inodes(group);
        let known = known.and_then(|map| Ok((map, self.groups.bitmap(group, BitmapKind::Inode)?)));
        let (map, buffer) = match known {
            Err(Error::BadGroup { .. }) => return Ok(()),
            other => other?,
        };
        h.write_access(&buffer)?;
        self.groups.join_desc(h, number)?;
        let mut state = group.lock();
        if state.is_out_of_use() {
            return Ok(());
        }
        if !map.is_used(index) {
            let reason = format!("inode {ino} is freed, but free in its bitmap");
            return Err(self.groups.put_out_of_use(group, &mut state, reason));
        }
        let mut content =
            self.groups
                .change_bitmap(h, group, &mut state, BitmapKind::Inode, &buffer)?;
        bitmap::clear_bit(&mut content, index);
        drop(content);
        if self.avoid_recent {
            map.deleted(&mut state.recent, index, self.now);
        }
        map.set(index, false);
        let free = state.desc.free_inodes().saturating_add(1);
        state.desc.set_free_inodes(free)?;
        if directory {
            let dirs = state.desc.used_dirs().saturating_sub(1);
            state.desc.set_used_dirs(dirs)?;
        }
        self.groups.mark_dirty(group, &mut state, BitmapKind::Inode);
        count(&self.counters.freed);
        Ok(())
    }
}

/// A group, for [`claim`].
struct GroupPool<'e> {
    groups: &'e Groups,
    h: &'e Handle,
    group: &'e Group,
    map: &'e InodeMap,
    /// The bitmap's block, once there is write access to it.
    buffer: OnceCell<Arc<Buffer>>,
    counters: &'e AllocCounters,
}

impl Bits for GroupPool<'_> {
    fn used(&self, index: u32) -> u64 {
        self.map.used(index)
    }

    fn recent(&self, index: u32) -> u64 {
        self.map.recent(index)
    }
}

impl Pool for GroupPool<'_> {
    type Error = Error;
    type Guard<'a>
        = LockedGroup<'a>
    where
        Self: 'a;

    fn access(&self) -> Result<()> {
        if self.buffer.get().is_some() {
            return Ok(());
        }
        let buffer = self.groups.bitmap(self.group, BitmapKind::Inode)?;
        self.h.write_access(&buffer)?;
        self.groups.join_desc(self.h, self.group.number)?;
        let _ = self.buffer.set(buffer);
        Ok(())
    }

    fn lock(&self) -> LockedGroup<'_> {
        let state = self.group.try_lock().unwrap_or_else(|| {
            let begin = Instant::now();
            let state = self.group.lock();
            let waited = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            count(&self.counters.lock_waits);
            self.counters
                .lock_wait_ns
                .fetch_add(waited, Ordering::Relaxed);
            state
        });
        LockedGroup { pool: self, state }
    }
}

/// A group whose lock is held, for [`claim`].
struct LockedGroup<'a> {
    pool: &'a GroupPool<'a>,
    state: RankedMutexGuard<'a, GroupState>,
}

impl Bits for LockedGroup<'_> {
    fn used(&self, index: u32) -> u64 {
        self.pool.map.used(index)
    }

    fn recent(&self, index: u32) -> u64 {
        self.pool.map.recent(index)
    }
}

impl Locked for LockedGroup<'_> {
    type Error = Error;

    fn test_and_set(&mut self, bit: u32) -> Result<bool> {
        let pool = self.pool;
        self.state.check(pool.group)?;
        if pool.map.is_used(bit) {
            return Ok(false);
        }
        let Some(buffer) = pool.buffer.get() else {
            return Err(Error::NoSpace);
        };
        let (groups, group, state) = (pool.groups, pool.group, &mut *self.state);
        let mut content = groups.change_bitmap(pool.h, group, state, BitmapKind::Inode, buffer)?;
        let was = bitmap::set_bit(&mut content, bit);
        drop(content);
        if was {
            let reason =
                format!("inode {bit} of the group is free in memory, in use in its bitmap");
            return Err(groups.put_out_of_use(group, state, reason));
        }
        pool.map.set(bit, true);
        Ok(true)
    }
}
