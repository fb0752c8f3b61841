//! An inode in memory.
//!
//! # How it works
//! There is at most one [`Inode`] object for an inode; the [table](InodeTable) ensures this. Its
//! locks, in rank order:
//!
//! - `io` is the first lock of an operation on the inode: shared to read, exclusive to change
//!   content, length, attributes or, in a directory, names. Several are taken in the order of their
//!   numbers.
//! - `map` guards the 60 bytes that locate the blocks, and all tree blocks below them.
//! - `data` belongs to the data path and has a lock of its own.
//! - `state` guards the native copy of everything else in the inode, for short sections only.
//!
//! A change of the state or the map reaches the inode table with [`Inode::store`], once at the end
//! of the operation, in its handle. Changes without a handle (times) are stored with the next such
//! change; a commit does not store them on its own.

mod table;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use sapwood_base::Residence;
use sapwood_ext4_format::{
    Geometry, Incompat, Inode as RawInode, InodeFlags, Timestamp as DiskTime, XATTR_MAGIC,
    validate_inode,
};
use sapwood_jbd2::{Buffer, Handle, Tid};
use sapwood_vfs::{self as vfs, Attr, FileKind, Ino, Timestamp, device_number};

use crate::file_data::FileData;
use crate::lock::{Rank, RankedMutex, RankedMutexGuard, RankedRwLock};
use crate::options::DataMode;
use crate::quota_table::Charge;
use crate::store::Store;
use crate::{Error, Result};
pub(crate) use table::InodeTable;

/// Bytes in the inode that locate its blocks.
pub(crate) const MAP_BYTES: usize = 60;
/// Credits to store an inode.
pub(crate) const STORE_CREDITS: u32 = 1;

/// An inode in memory.
pub struct Inode {
    /// Number.
    pub(crate) ino: u32,
    /// Type; never changes.
    pub(crate) kind: FileKind,
    /// Distinguishes uses of the same number; part of every checksum of the inode's metadata.
    pub(crate) generation: u32,
    /// Taken first by every operation on the inode.
    pub(crate) io: RankedRwLock<()>,
    /// The map: extent root, block pointers, target of a short link, or inline data.
    pub(crate) map: RankedRwLock<[u8; MAP_BYTES]>,
    /// Dirty and in-flight ranges.
    pub(crate) data: FileData,
    /// Further state of a directory.
    pub(crate) dir: DirState,
    /// Native copy of the rest.
    pub(crate) state: RankedMutex<InodeState>,
    /// References, and other state of the table.
    pub(crate) residence: Residence,
    /// Last transaction that stored it, and the last in which something changed that `fdatasync`
    /// needs.
    sync_tid: AtomicU64,
    datasync_tid: AtomicU64,
}

/// Native copy of an inode without its map, and further state in memory.
#[derive(Debug, Clone)]
pub(crate) struct InodeState {
    /// All fields as on disk. Its size is the one on disk: not beyond data that is not there yet.
    pub(crate) raw: RawInode,
    /// Length in bytes as callers see it.
    pub(crate) size: u64,
    /// The inode was deleted; only references keep the object.
    pub(crate) deleted: bool,
    /// The deletion has begun: no thread gets a reference any more.
    pub(crate) dying: bool,
    /// It was made without a name and may be given one.
    pub(crate) linkable: bool,
    /// It is among the orphans.
    pub(crate) orphan: bool,
    /// State in memory differs from the stored state (times).
    pub(crate) unstored: bool,
    /// Blocks of data in flight that the block count has already.
    pub(crate) charged: u64,
    /// The charge that the quotas have for the inode, if it was ever stored.
    quota: Option<Charge>,
}

impl InodeState {
    /// The state of an inode on disk.
    fn new(raw: RawInode, geometry: &Geometry) -> Self {
        Self {
            size: raw.size(geometry),
            raw,
            deleted: false,
            dying: false,
            linkable: false,
            orphan: false,
            unstored: false,
            charged: 0,
            quota: None,
        }
    }

    /// Replaces the charge of the quotas by the current one. Returns both.
    fn recharge(&mut self, geometry: &Geometry) -> (Option<Charge>, Option<Charge>) {
        let new = (!self.deleted).then(|| Charge::of(&self.raw, geometry));
        (std::mem::replace(&mut self.quota, new), new)
    }

    /// Number of names.
    pub(crate) fn nlink(&self) -> u32 {
        u32::from(self.raw.links())
    }

    /// Whether the block count may include blocks of attributes: a block of its own, or blocks of
    /// values.
    fn may_have_attribute_blocks(&self, geometry: &Geometry) -> bool {
        let values = geometry.features().has_incompat(Incompat::EA_INODE);
        let magic = XATTR_MAGIC.to_le_bytes();
        self.raw.file_acl() != 0 || values && self.raw.attr_area().starts_with(&magic)
    }

    /// Type and permission bits.
    pub(crate) fn mode(&self) -> u32 {
        u32::from(self.raw.mode())
    }

    /// Replaces the permission, set-id and sticky bits.
    pub(crate) fn set_perm(&mut self, perm: u32) {
        let kind = self.raw.mode() & 0o170_000;
        self.raw.set_mode(kind | (perm & 0o7777) as u16);
    }

    /// Sets both times and the version after a change of the content.
    pub(crate) fn content_changed(&mut self, now: Timestamp) {
        self.raw.set_mtime(disk_time(now));
        self.changed(now);
    }

    /// Sets the change time and the version after a change of the inode.
    pub(crate) fn changed(&mut self, now: Timestamp) {
        self.raw.set_ctime(disk_time(now));
        self.raw.set_version(self.raw.version().wrapping_add(1));
        self.unstored = true;
    }
}

impl Inode {
    /// An inode in memory, made of its contents in the table.
    pub(crate) fn new(ino: u32, kind: FileKind, raw: RawInode, geometry: &Geometry) -> Self {
        let key = (u64::from(ino), 0);
        Self {
            ino,
            kind,
            generation: raw.generation(),
            io: RankedRwLock::with_key(Rank::Inode, key, ()),
            map: RankedRwLock::with_key(Rank::Map, key, *raw.block()),
            data: FileData::new(ino),
            dir: DirState::default(),
            state: RankedMutex::with_key(Rank::InodeState, key, InodeState::new(raw, geometry)),
            residence: Residence::default(),
            sync_tid: AtomicU64::new(0),
            datasync_tid: AtomicU64::new(0),
        }
    }

    /// Reads an inode from the table.
    ///
    /// # Errors
    /// `Stale` if it is not in use, [`Error::BadInode`] if it is damaged; errors of the device.
    pub(crate) fn load(store: &Store, ino: u32) -> Result<Self> {
        let (buffer, offset) = table_place(store, ino)?;
        let size = usize::from(store.geometry.inode_size());
        let raw = {
            let content = buffer.read();
            let bytes = content.get(offset..offset + size).unwrap_or_default();
            RawInode::read(bytes, &store.geometry)?
        };
        if raw.mode() == 0 || (raw.links() == 0 && !store.orphans.knows(ino)) {
            return Err(sapwood_vfs::Error::Stale.into());
        }
        let bad = |reason: String| Error::BadInode { ino, reason };
        raw.verify_checksum(ino, &store.geometry)
            .and_then(|()| validate_inode(ino, &raw, &store.geometry))
            .map_err(|error| bad(error.to_string()))?;
        let kind = FileKind::from_mode(raw.mode().into())
            .ok_or_else(|| bad(format!("mode {:o} names no type", raw.mode())))?;
        let inode = Self::new(ino, kind, raw, &store.geometry);
        if store.quota.is_on() {
            let _ = inode.state.lock().recharge(&store.geometry);
        }
        // It may have been in memory before, and its last change not be durable.
        inode.note_tid(buffer.joined(), true);
        Ok(inode)
    }

    /// Writes the inode into the table, in this transaction. Hold neither `map` nor `state`.
    ///
    /// # Errors
    /// Errors of the device and of the journal.
    pub(crate) fn store(&self, store: &Store, h: &Handle) -> Result<()> {
        let (buffer, offset) = table_place(store, self.ino)?;
        h.write_access(&buffer)?;
        let counts = store.quota.is_on() && !store.is_special(self.ino);
        let (flags, size, attribute_blocks, charges) = {
            let map = self.map.read();
            let mut state = self.state.lock();
            *state.raw.block_mut() = *map;
            state.raw.set_checksum(self.ino, &store.geometry);
            state.unstored = false;
            let mut content = h.modify(&buffer)?;
            let end = offset + state.raw.size_on_disk();
            state
                .raw
                .write(content.get_mut(offset..end).unwrap_or_default())?;
            let size = state.raw.size(&store.geometry);
            let attribute_blocks = state.may_have_attribute_blocks(&store.geometry);
            let charges = counts.then(|| state.recharge(&store.geometry));
            (state.raw.flags(), size, attribute_blocks, charges)
        };
        if let Some(charges) = charges {
            let now = store.ambient.seconds();
            store.quota.replace(&store.cache, h, charges, now)?;
        }
        store.set_size_feature(h, size)?;
        store
            .fast_commits
            .stored(h, (self.ino, self.kind), flags, attribute_blocks);
        self.note_tid(h.tid(), true);
        Ok(())
    }

    /// Stores times that changed without a handle. Hold no handle.
    ///
    /// # Errors
    /// Errors of the device and of the journal.
    pub(crate) fn store_late_changes(&self, store: &Store) -> Result<()> {
        if self.state.lock().unstored {
            let h = store.start_tracked(1)?;
            self.store(store, &h)?;
        }
        Ok(())
    }

    /// Records that a change of the inode is in this transaction; `data`: a change that `fdatasync`
    /// needs.
    pub(crate) fn note_tid(&self, tid: Tid, data: bool) {
        self.sync_tid.fetch_max(tid, Ordering::AcqRel);
        if data {
            self.datasync_tid.fetch_max(tid, Ordering::AcqRel);
        }
    }

    /// The last transaction that an fsync of the inode must see durable.
    pub(crate) fn sync_tid(&self) -> u64 {
        self.sync_tid.load(Ordering::Acquire)
    }

    /// The last transaction that an `fdatasync` must see durable.
    pub(crate) fn datasync_tid(&self) -> u64 {
        self.datasync_tid.load(Ordering::Acquire)
    }

    /// Number as callers know it.
    pub(crate) fn number(&self) -> Ino {
        Ino(self.ino.into())
    }

    /// Flags on disk.
    pub(crate) fn flags(&self) -> InodeFlags {
        self.state.lock().raw.flags()
    }

    /// Length in bytes as callers see it.
    pub(crate) fn size(&self) -> u64 {
        self.state.lock().size
    }

    /// Whether its data goes through the journal, by its flag or by the mount's option. Neither
    /// changes while it is mounted. Before the flag could be cleared, all of the file would have to
    /// be checkpointed: no other write may go to a block whose older content the journal still is
    /// to write there.
    pub(crate) fn is_journaled(&self, store: &Store) -> bool {
        self.kind == FileKind::Regular
            && (store.options.data == DataMode::Journal
                || self.flags().contains(InodeFlags::JOURNAL_DATA))
    }

    /// Most bytes that the file may have.
    pub(crate) fn max_size(&self, store: &Store) -> u64 {
        if self.flags().contains(InodeFlags::EXTENTS) {
            store.geometry.max_extent_file_size()
        } else {
            store.geometry.max_indirect_file_size()
        }
    }

    /// Refuses to change content that is encrypted or has a hash tree, because neither is
    /// supported.
    pub(crate) fn check_changeable(&self) -> Result<()> {
        let flags = self.flags();
        if flags.contains(InodeFlags::ENCRYPT) {
            return Err(vfs::Error::NotSupported.into());
        }
        if flags.contains(InodeFlags::VERITY) {
            return Err(vfs::Error::NotPermitted.into());
        }
        Ok(())
    }

    /// Whether it has a name.
    pub(crate) fn is_linked(&self) -> bool {
        self.state.lock().nlink() > 0
    }

    /// Refuses an inode that is not a directory.
    ///
    /// # Errors
    /// `NotDirectory`.
    pub(crate) fn require_dir(&self) -> Result<()> {
        match self.kind {
            FileKind::Directory => Ok(()),
            _ => Err(sapwood_vfs::Error::NotDirectory.into()),
        }
    }

    /// Flags as callers see them.
    pub(crate) fn vfs_flags(&self) -> sapwood_vfs::InodeFlags {
        vfs_flags(self.flags())
    }

    /// Seed of all checksums of this inode's metadata blocks.
    pub(crate) fn seed(&self, store: &Store) -> u32 {
        store.geometry.inode_seed(self.ino, self.generation)
    }

    /// The state, together with the blocks of dirty and in-flight data that will be allocated and
    /// are not in the block count yet: a block that moves from the one to the other is counted once
    /// at any moment.
    pub(crate) fn with_delayed_blocks(&self) -> (RankedMutexGuard<'_, InodeState>, u64) {
        let data = self.data.state.lock();
        let own = self.state.lock();
        let blocks = data.delayed_blocks().saturating_sub(own.charged);
        (own, blocks)
    }

    /// Attributes as callers see them. Dirty data without blocks counts as allocated.
    pub(crate) fn attr(&self, store: &Store) -> Attr {
        let (state, delayed) = self.with_delayed_blocks();
        let delayed = delayed.saturating_mul(store.block_size());
        let raw = &state.raw;
        let rdev = match self.kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                let (major, minor) = raw.device();
                device_number::make(major, minor)
            }
            _ => 0,
        };
        // As the kernel shows it, so that a file with content does not look like a hole.
        let inline =
            if self.kind == FileKind::Regular && raw.flags().contains(InodeFlags::INLINE_DATA) {
                state.size.div_ceil(512)
            } else {
                0
            };
        Attr {
            ino: self.number(),
            kind: self.kind,
            perm: state.mode() & 0o7777,
            nlink: state.nlink(),
            uid: raw.uid(),
            gid: raw.gid(),
            rdev,
            size: state.size,
            allocated: raw
                .sectors(&store.geometry)
                .saturating_add(inline)
                .saturating_mul(512)
                .saturating_add(delayed),
            atime: vfs_time(raw.atime()),
            mtime: vfs_time(raw.mtime()),
            ctime: vfs_time(raw.ctime()),
            btime: vfs_time(raw.crtime().unwrap_or_default()),
            generation: self.generation.into(),
            blksize: store.geometry.block_size(),
            flags: vfs_flags(raw.flags()),
            layout: layout_flags(raw.flags()),
        }
    }
}

impl std::fmt::Debug for Inode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "inode {}", self.ino)
    }
}

/// Place of an inode: the block of the table, and the offset in it.
///
/// # Errors
/// There is no such inode; errors of the device.
pub(crate) fn table_place(store: &Store, ino: u32) -> Result<(Arc<Buffer>, usize)> {
    let (group, index) = store
        .geometry
        .inode_location(ino)
        .map_err(|_| sapwood_vfs::Error::Stale)?;
    let table = store.groups.inode_table(group)?;
    let (block, offset) = store.geometry.inode_in_table(table, index);
    Ok((store.block(block)?, offset as usize))
}

/// Converts a stored time to one for callers.
pub(crate) fn vfs_time(time: DiskTime) -> Timestamp {
    Timestamp {
        sec: time.seconds,
        nsec: time.nanos,
    }
}

/// Converts a time to one that an inode can store.
pub(crate) fn disk_time(time: Timestamp) -> DiskTime {
    // Linux stores no nanoseconds of the first and the last second, nor of times beyond.
    let within = time.sec > DiskTime::MIN.seconds && time.sec < DiskTime::MAX.seconds;
    DiskTime {
        seconds: time.sec,
        nanos: if within { time.nsec } else { 0 },
    }
}

/// Blocks in a part of the table.
const PART: usize = 64;
/// Parts: blocks after the last one are not recorded.
const PARTS: usize = 32;

type Part = OnceLock<Box<[AtomicU64; PART]>>;

/// Further state of a directory in memory: the places of its blocks and of free room. Empty for
/// other inodes.
///
/// The map is searched once for each block of a directory. A directory only grows, so a recorded
/// place stays true. A thread that takes blocks out of a map, or moves them, calls
/// [`Places::forget`].
#[derive(Debug, Default)]
pub(crate) struct DirState {
    /// No block before this one has room, as far as was seen. Only for directories without an
    /// index.
    pub(crate) room: AtomicU32,
    /// Places of the blocks.
    pub(crate) places: Places,
}

/// Places of the blocks. Empty, and small, until the first place is recorded.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Blocks of the device by block of the directory. 0: not known; no directory has block 0.
    parts: OnceLock<Box<[Part; PARTS]>>,
}

impl Places {
    /// Place of block `logical`, if known.
    pub(crate) fn get(&self, logical: u32) -> Option<u64> {
        let (part, index) = place(logical);
        let known = self.parts.get()?.get(part)?.get()?.get(index)?;
        Some(known.load(Ordering::Acquire)).filter(|place| *place != 0)
    }

    /// Records the place of block `logical`. The caller holds `io` of the directory.
    pub(crate) fn note(&self, logical: u32, physical: u64) {
        let (part, index) = place(logical);
        let parts = self.parts.get_or_init(Box::default);
        let part = parts
            .get(part)
            .map(|part| part.get_or_init(|| Box::new([const { AtomicU64::new(0) }; PART])));
        if let Some(known) = part.and_then(|part| part.get(index)) {
            known.store(physical, Ordering::Release);
        }
    }

    /// Bytes that it holds on the heap.
    pub(crate) fn footprint(&self) -> usize {
        let Some(parts) = self.parts.get() else {
            return 0;
        };
        let there = parts.iter().filter(|part| part.get().is_some()).count();
        size_of_val(&**parts) + there * size_of::<[AtomicU64; PART]>()
    }

    /// Forgets all. The caller holds `io` of the directory exclusively.
    pub(crate) fn forget(&self) {
        let parts = self.parts.get().into_iter().flat_map(|parts| parts.iter());
        for known in parts.filter_map(OnceLock::get).flat_map(|part| part.iter()) {
            known.store(0, Ordering::Release);
        }
    }
}

fn place(logical: u32) -> (usize, usize) {
    let logical = logical as usize;
    (logical / PART, logical % PART)
}

/// Flags that callers see and may change. Both sides use the numbers of `FS_IOC_GETFLAGS`.
const COMMON: [(InodeFlags, vfs::InodeFlags); 6] = [
    (InodeFlags::SYNC, vfs::InodeFlags::SYNC),
    (InodeFlags::IMMUTABLE, vfs::InodeFlags::IMMUTABLE),
    (InodeFlags::APPEND, vfs::InodeFlags::APPEND),
    (InodeFlags::NODUMP, vfs::InodeFlags::NODUMP),
    (InodeFlags::NOATIME, vfs::InodeFlags::NOATIME),
    (InodeFlags::DIRSYNC, vfs::InodeFlags::DIRSYNC),
];

/// Flags that callers see, out of those on disk.
pub(crate) fn vfs_flags(flags: InodeFlags) -> vfs::InodeFlags {
    let seen = COMMON.iter().filter(|(disk, _)| flags.contains(*disk));
    seen.fold(vfs::InodeFlags::empty(), |all, (_, flag)| all | *flag)
}

/// Bits of `FS_IOC_GETFLAGS` that callers see and cannot change: the layout of the inode, and flags
/// that only other tools set.
pub(crate) fn layout_flags(flags: InodeFlags) -> u32 {
    let known = InodeFlags::INDEX
        | InodeFlags::ENCRYPT
        | InodeFlags::JOURNAL_DATA
        | InodeFlags::TOPDIR
        | InodeFlags::HUGE_FILE
        | InodeFlags::EXTENTS
        | InodeFlags::VERITY
        | InodeFlags::EA_INODE
        | InodeFlags::INLINE_DATA
        | InodeFlags::PROJINHERIT
        | InodeFlags::CASEFOLD;
    (flags & known).bits()
}

/// Flags on disk after callers set `asked`; those that they cannot see stay.
pub(crate) fn disk_flags(current: InodeFlags, asked: vfs::InodeFlags) -> InodeFlags {
    let mut flags = current;
    for (disk, flag) in COMMON {
        flags.set(disk, asked.contains(flag));
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_known_until_all_is_forgotten() {
        let places = Places::default();
        assert_eq!(places.get(0), None);
        let last = (PART * PARTS) as u32 - 1;
        for logical in [0, 63, 64, last] {
            places.note(logical, 1000 + u64::from(logical));
        }
        places.note(last + 1, 7);
        assert_eq!(places.get(64), Some(1064));
        assert_eq!(places.get(last), Some(1000 + u64::from(last)));
        assert_eq!((places.get(1), places.get(last + 1)), (None, None));
        places.forget();
        assert_eq!((places.get(0), places.get(64)), (None, None));
    }
}
