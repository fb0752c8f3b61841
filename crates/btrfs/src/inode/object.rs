//! An inode in memory.
//!
//! # How it works
//! There is at most one [`Inode`] object for an inode; the [table](super::table) ensures this.
//! Three locks guard it, in rank order:
//!
//! - `io` is the first lock of an operation on the inode: shared to read, exclusive to change
//!   content, length or, in a directory, names. Several are taken in the order of
//!   [`Inode::lock_key`].
//! - `data` belongs to the data path and has locks of its own.
//! - `state` guards the native copy of the inode item, for short sections only.
//!
//! Changes of the state reach the tree when the transaction commits: a thread that changes it in a
//! handle queues the inode with [`Handle::delay`](crate::transaction::Handle::delay).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sapwood_base::Residence;
use sapwood_btrfs_format::{InodeFlags, InodeItem, Timespec, join_device, split_device};
use sapwood_vfs::{self as vfs, FileKind, Ino, Timestamp, device_number};

use super::dir_index::DirState;
use crate::file_data::FileData;
use crate::lock::{Rank, RankedMutex, RankedRwLock};
use crate::tree::Root;
use crate::{Error, Result};

/// Number of the empty directory that a snapshot shows in place of a subvolume of its source.
pub(super) const STUB: u64 = 2;
/// The bit of `FS_IOC_GETFLAGS` of a file with a hash tree.
const FS_VERITY: u32 = 0x10_0000;
/// Replaces the tree in [`Inode::lock_key`] of a stub: no subvolume can have this number.
pub(super) const STUB_TREE: u64 = u64::MAX;

/// The subvolume behind one of these empty directories. A tree can show many; this distinguishes
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Stub {
    /// Tree that shows it.
    pub(crate) tree: u64,
    /// Directory that has its name.
    pub(crate) dir: u64,
    /// Subvolume that the name leads to in the tree that was copied.
    pub(crate) subvolume: u64,
}

/// An inode in memory.
pub struct Inode {
    /// Tree that it is in.
    pub(crate) root: Arc<Root>,
    /// Inode number in that tree.
    pub(crate) objectid: u64,
    /// Type; never changes.
    pub(crate) kind: FileKind,
    /// Identity above the engine.
    pub(crate) ino: Ino,
    /// The subvolume behind a stub, and its index in the table of stubs.
    stub: Option<Box<(Stub, u64)>>,
    /// Taken first by every operation on the inode.
    pub(crate) io: RankedRwLock<()>,
    /// Dirty ranges, ordered extents, extent maps.
    pub(crate) data: FileData,
    /// Further state of a directory; empty for other inodes.
    pub(crate) dir: DirState,
    /// Native copy of the inode item.
    pub(crate) state: RankedMutex<InodeState>,
    /// Value of the compression property, once it was looked up.
    pub(crate) property: RankedMutex<Option<Option<Arc<[u8]>>>>,
    /// It is known that the inode has no file capability.
    pub(crate) lacks_capability: AtomicBool,
    /// References held above the engine, and other state of the table.
    pub(crate) residence: Residence,
}

/// Native copy of the inode item, and further state in memory.
#[derive(Debug, Clone)]
pub(crate) struct InodeState {
    /// Transid in which the inode was made.
    pub(crate) generation: u64,
    /// Transid of its last change.
    pub(crate) transid: u64,
    /// Length in bytes as callers see it; of a directory twice the bytes of its names.
    pub(crate) size: u64,
    /// Length in bytes in the inode item: not beyond data that is not on disk yet.
    pub(crate) disk_size: u64,
    /// Counts how often the length fell since the inode was loaded.
    pub(crate) shrinks: u64,
    /// Bytes of data extents.
    pub(crate) nbytes: u64,
    /// Names.
    pub(crate) nlink: u32,
    /// Owner.
    pub(crate) uid: u32,
    /// Group.
    pub(crate) gid: u32,
    /// Type and permission bits.
    pub(crate) mode: u32,
    /// Device number as btrfs stores it: `major << 20 | minor`.
    pub(crate) rdev: u64,
    pub(crate) flags: InodeFlags,
    /// Counts changes.
    pub(crate) sequence: u64,
    /// Last access.
    pub(crate) atime: Timestamp,
    /// Last change of the inode.
    pub(crate) ctime: Timestamp,
    /// Last change of the content.
    pub(crate) mtime: Timestamp,
    /// Creation.
    pub(crate) otime: Timestamp,
    /// Transaction whose commit will write the inode item; 0 if none will.
    pub(crate) queued_in: u64,
    /// The inode and its items were deleted; only references keep the object.
    pub(crate) deleted: bool,
    /// The deletion has begun: no thread gets a reference any more.
    pub(crate) dying: bool,
    /// It has no name, and the commit will add its orphan item.
    pub(crate) orphan_delayed: bool,
    /// It was made without a name and may be given one.
    pub(crate) linkable: bool,
    /// No transaction after this one changed its names.
    pub(crate) names_in: u64,
    /// Counts changes of names since it was loaded.
    pub(crate) names_version: u64,
    /// Counts changes of attributes since it was loaded.
    pub(crate) xattrs_version: u64,
}

/// Converts a stored time to one for callers.
pub(crate) fn timestamp(time: &Timespec) -> Timestamp {
    Timestamp {
        sec: time.seconds(),
        nsec: time.nanos(),
    }
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec::new(time.sec, time.nsec)
}

impl InodeState {
    /// The state that an inode item describes.
    pub(crate) fn from_item(item: &InodeItem) -> Self {
        Self {
            generation: item.generation.get(),
            transid: item.transid.get(),
            size: item.size.get(),
            disk_size: item.size.get(),
            shrinks: 0,
            nbytes: item.nbytes.get(),
            nlink: item.nlink.get(),
            uid: item.uid.get(),
            gid: item.gid.get(),
            mode: item.mode.get(),
            rdev: item.rdev.get(),
            flags: item.inode_flags(),
            sequence: item.sequence.get(),
            atime: timestamp(&item.atime),
            ctime: timestamp(&item.ctime),
            mtime: timestamp(&item.mtime),
            otime: timestamp(&item.otime),
            queued_in: 0,
            deleted: false,
            dying: false,
            orphan_delayed: false,
            linkable: false,
            names_in: item.transid.get(),
            names_version: 0,
            xattrs_version: 0,
        }
    }

    /// The state of a new, empty inode with one name, owned by the superuser.
    pub(crate) fn new(mode: u32, now: Timestamp) -> Self {
        let time = timespec(now);
        Self::from_item(&InodeItem {
            nlink: 1.into(),
            mode: mode.into(),
            atime: time,
            ctime: time,
            mtime: time,
            otime: time,
            ..InodeItem::default()
        })
    }

    /// The inode item to write.
    pub(crate) fn to_item(&self) -> InodeItem {
        InodeItem {
            generation: self.generation.into(),
            transid: self.transid.into(),
            size: self.disk_size.into(),
            nbytes: self.nbytes.into(),
            nlink: self.nlink.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            mode: self.mode.into(),
            rdev: self.rdev.into(),
            flags: self.flags.bits().into(),
            sequence: self.sequence.into(),
            atime: timespec(self.atime),
            ctime: timespec(self.ctime),
            mtime: timespec(self.mtime),
            otime: timespec(self.otime),
            ..InodeItem::default()
        }
    }

    /// Permission, set-id and sticky bits.
    pub(crate) fn perm(&self) -> u32 {
        self.mode & 0o7777
    }

    /// Replaces the permission, set-id and sticky bits.
    pub(crate) fn set_perm(&mut self, perm: u32) {
        self.mode = (self.mode & !0o7777) | (perm & 0o7777);
    }

    /// Sets the length of an inode without data extents (a directory, a symbolic link).
    pub(crate) fn set_plain_size(&mut self, size: u64) {
        self.size = size;
        self.disk_size = size;
    }

    /// Sets the length of a file to one that is smaller. The size on disk follows.
    pub(crate) fn shrink(&mut self, size: u64) {
        self.size = size;
        self.shrinks = self.shrinks.wrapping_add(1);
    }

    /// Records a change of the content: mtime, ctime and the change counter.
    pub(crate) fn content_changed(&mut self, now: Timestamp) {
        self.mtime = now;
        self.ctime = now;
        self.sequence = self.sequence.wrapping_add(1);
    }

    /// Records a change of the inode: ctime and the change counter.
    pub(crate) fn inode_changed(&mut self, now: Timestamp) {
        self.ctime = now;
        self.sequence = self.sequence.wrapping_add(1);
    }

    /// Records that a name was added or removed in transaction `transid`.
    pub(crate) fn names_changed(&mut self, transid: u64) {
        self.names_in = transid;
        self.names_version = self.names_version.wrapping_add(1);
    }

    /// The flags as callers see them.
    pub(crate) fn vfs_flags(&self) -> vfs::InodeFlags {
        let mut flags = vfs::InodeFlags::empty();
        for (ours, theirs) in FLAG_PAIRS {
            flags.set(theirs, self.flags.contains(ours));
        }
        flags
    }

    /// Takes over the flags that callers can set; the others stay.
    pub(crate) fn set_vfs_flags(&mut self, flags: vfs::InodeFlags) {
        for (ours, theirs) in FLAG_PAIRS {
            self.flags.set(ours, flags.contains(theirs));
        }
    }
}

const FLAG_PAIRS: [(InodeFlags, vfs::InodeFlags); 9] = [
    (InodeFlags::COMPRESS, vfs::InodeFlags::COMPRESS),
    (InodeFlags::SYNC, vfs::InodeFlags::SYNC),
    (InodeFlags::IMMUTABLE, vfs::InodeFlags::IMMUTABLE),
    (InodeFlags::APPEND, vfs::InodeFlags::APPEND),
    (InodeFlags::NODUMP, vfs::InodeFlags::NODUMP),
    (InodeFlags::NOATIME, vfs::InodeFlags::NOATIME),
    (InodeFlags::NOCOMPRESS, vfs::InodeFlags::NOCOMPRESS),
    (InodeFlags::DIRSYNC, vfs::InodeFlags::DIRSYNC),
    (InodeFlags::NODATACOW, vfs::InodeFlags::NOCOW),
];

impl Inode {
    /// An object for an inode with this state. Only the table makes one that others see.
    pub(crate) fn new(
        root: Arc<Root>,
        objectid: u64,
        ino: Ino,
        kind: FileKind,
        state: InodeState,
    ) -> Self {
        let key = (root.id(), objectid);
        Self {
            data: FileData::new(key.0, key.1),
            dir: DirState::new(),
            io: RankedRwLock::with_key(Rank::Inode, key, ()),
            state: RankedMutex::new(Rank::InodeState, state),
            property: RankedMutex::new(Rank::InodeProperty, None),
            lacks_capability: AtomicBool::new(false),
            residence: Residence::default(),
            stub: None,
            root,
            objectid,
            kind,
            ino,
        }
    }

    /// The empty directory that is shown in place of a subvolume. `number` is its place in the
    /// table of stubs.
    pub(super) fn new_stub(root: Arc<Root>, stub: Stub, number: u64, ino: Ino) -> Self {
        let mode = FileKind::Directory.mode_bits() | 0o755;
        let state = InodeState::new(mode, Timestamp::default());
        let mut inode = Self::new(root, STUB, ino, FileKind::Directory, state);
        inode.io = RankedRwLock::with_key(Rank::Inode, (STUB_TREE, number), ());
        inode.stub = Some(Box::new((stub, number)));
        inode
    }

    /// Order in which the `io` locks of several inodes are taken.
    pub(crate) fn lock_key(&self) -> (u64, u64) {
        match &self.stub {
            None => (self.root.id(), self.objectid),
            Some(stub) => (STUB_TREE, stub.1),
        }
    }

    /// Refuses an inode that is not a directory.
    pub(crate) fn require_dir(&self) -> Result<()> {
        match self.kind {
            FileKind::Directory => Ok(()),
            _ => Err(vfs::Error::NotDirectory.into()),
        }
    }

    /// An error if the host refused a write since `refusals` were counted, or if a write failed
    /// that no flush of the file has reported. The failure stays unreported: writing back many
    /// files, for space or a snapshot, must not hide a failure from the fsync of the file.
    pub(crate) fn check_written(&self, refusals: u64) -> Result<()> {
        let state = self.data.state.lock();
        if state.failures > state.failures_told {
            return Err(Error::WriteFailed {
                root: self.root.id(),
                objectid: self.objectid,
            });
        }
        let refused = state.refusals != refusals;
        (!refused).then_some(()).ok_or(Error::NoSpace)
    }

    /// Whether it is the empty directory that a snapshot shows in place of a subvolume.
    pub(crate) fn is_stub(&self) -> bool {
        self.stub.is_some()
    }

    /// The subvolume behind the stub, if it is one.
    pub(crate) fn stub(&self) -> Option<Stub> {
        self.stub.as_ref().map(|stub| stub.0)
    }

    /// Refuses a change in a subvolume that takes none, and of a stub.
    pub(crate) fn require_writable(&self) -> Result<()> {
        if self.is_stub() {
            return Err(vfs::Error::NotPermitted.into());
        }
        if self.root.is_read_only() {
            Err(vfs::Error::ReadOnly.into())
        } else {
            Ok(())
        }
    }

    /// Flags as callers see them.
    pub(crate) fn vfs_flags(&self) -> vfs::InodeFlags {
        let state = self.state.lock();
        state.vfs_flags()
    }

    /// Whether it has a hash tree of fs-verity, so that its content never changes.
    pub(crate) fn is_sealed(&self) -> bool {
        self.state.lock().flags.contains(InodeFlags::VERITY)
    }

    /// True while the inode has a name.
    pub(crate) fn is_linked(&self) -> bool {
        self.state.lock().nlink > 0
    }

    /// True while names can be added to the directory: it has one itself, and its subvolume is
    /// not deleted.
    pub(crate) fn takes_names(&self) -> bool {
        self.is_linked() && !self.root.is_dead()
    }

    /// Makes the next use of the compression property look it up again.
    pub(crate) fn forget_property(&self) {
        *self.property.lock() = None;
    }

    /// The attributes for `stat`.
    pub(crate) fn attr(&self, sectorsize: u32) -> vfs::Attr {
        let pending = self.data.pending_bytes();
        let state = self.state.lock();
        // Overwritten bytes count already: only growth in memory adds to them. Inline content
        // counts as the sectors that it would fill, as in the kernel's `stat`.
        let sector = u64::from(sectorsize);
        let whole = |bytes: u64| bytes.checked_next_multiple_of(sector).unwrap_or(bytes);
        let pending = pending.min(whole(state.size).saturating_sub(whole(state.disk_size)));
        vfs::Attr {
            ino: self.ino,
            kind: self.kind,
            perm: state.perm(),
            nlink: state.nlink,
            uid: state.uid,
            gid: state.gid,
            rdev: to_dev(state.rdev),
            size: state.size,
            allocated: whole(state.nbytes).saturating_add(whole(pending)),
            atime: state.atime,
            mtime: state.mtime,
            ctime: state.ctime,
            btime: state.otime,
            generation: state.generation,
            blksize: sectorsize,
            flags: state.vfs_flags(),
            layout: if state.flags.contains(InodeFlags::VERITY) {
                FS_VERITY
            } else {
                0
            },
        }
    }
}

impl std::fmt::Debug for Inode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "inode {}/{}", self.root.id(), self.objectid)
    }
}

/// The device number that `stat` shows for one that btrfs stores.
pub(crate) fn to_dev(stored: u64) -> u64 {
    let (major, minor) = split_device(stored);
    device_number::make(major, minor)
}

/// The form in which btrfs stores a device number of `stat`.
pub(crate) fn from_dev(dev: u64) -> u64 {
    join_device(device_number::major(dev), device_number::minor(dev))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip() {
        let major_259_minor_70000 = (0x1111_0370, (259 << 20) | 70_000);
        for (dev, stored) in [
            (0x801, (8 << 20) | 1),
            (0x103, (1 << 20) | 3),
            major_259_minor_70000,
        ] {
            assert_eq!(from_dev(dev), stored);
            assert_eq!(to_dev(stored), dev);
        }
    }

    #[test]
    fn item_round_trips() {
        let item = InodeItem {
            generation: 7.into(),
            size: 4096.into(),
            nlink: 2.into(),
            mode: 0o100_644.into(),
            flags: InodeFlags::NODATACOW.bits().into(),
            mtime: Timespec::new(-5, 7),
            ..InodeItem::default()
        };
        assert_eq!(InodeState::from_item(&item).to_item(), item);
    }
}
