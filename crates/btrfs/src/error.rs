//! Errors of the engine.

use std::sync::Arc;

use sapwood_base::Unhealthy;
use sapwood_btrfs_format::{BlockError, Checksum, ItemError, Key, block};
use sapwood_vfs as vfs;

/// Errors of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device refused a request.
    #[error(transparent)]
    Device(#[from] sapwood_block::Error),
    /// No device was given.
    #[error("no device")]
    NoDevice,
    /// No superblock with the magic number.
    #[error("{device}: no btrfs file system")]
    NotBtrfs {
        /// Device name.
        device: String,
    },
    /// A superblock was found, but no copy of it is usable.
    #[error("{device}: superblock: {reason}")]
    Superblock {
        /// Device name.
        device: String,
        /// The defect of the first copy.
        reason: String,
    },
    /// A feature that this version cannot handle, by the name that `btrfs` tools give it.
    #[error("unsupported feature {0}")]
    UnsupportedFeature(String),
    /// A feature that allows only reading.
    #[error("feature {0} allows only a read-only mount")]
    ReadOnlyFeature(String),
    /// A device of the file system that was not given.
    #[error("device {devid} of the file system (uuid {}) is missing", uuid::Uuid::from_bytes(*uuid))]
    MissingDevice {
        /// Device id.
        devid: u64,
        /// uuid of the device.
        uuid: [u8; 16],
    },
    /// Chunks whose profile needs more devices than there are.
    #[error("profile {profile} needs {needed} of its {of} devices, {present} are there")]
    TooFewDevices {
        /// Name of the profile.
        profile: &'static str,
        /// Number of the chunk's devices that are present.
        present: usize,
        /// Smallest number of devices with which no bytes are lost.
        needed: usize,
        /// Number of the chunk's devices.
        of: usize,
    },
    /// Two devices with one device id: a device that was given twice, or a copy of a device.
    #[error("{second}: device {devid} of the file system was given already, as {first}")]
    DuplicateDevice {
        /// Device id.
        devid: u64,
        /// Name of the device given first.
        first: String,
        /// Name of the other one.
        second: String,
    },
    /// A device of another file system than the first device.
    #[error(
        "{device}: belongs to the file system {}, not to {}",
        uuid::Uuid::from_bytes(*fsid), uuid::Uuid::from_bytes(*expected)
    )]
    ForeignDevice {
        /// Device name.
        device: String,
        /// fsid of its superblock.
        fsid: [u8; 16],
        /// fsid of the first device.
        expected: [u8; 16],
    },
    /// A device that missed commits, so its contents are stale.
    #[error(
        "{device}: device {devid} of the file system is stale: its generation is {generation}, \
         the newest device has {newest}"
    )]
    StaleDevice {
        /// Device name.
        device: String,
        /// Device id.
        devid: u64,
        /// Generation of its superblock.
        generation: u64,
        /// Generation of the newest superblock.
        newest: u64,
    },
    /// More devices than the superblock counts.
    #[error("{given} devices, but the superblock counts {expected}")]
    ExtraDevices {
        /// Devices that were given, or that have an item in the chunk tree.
        given: u64,
        /// Number of devices in the superblock.
        expected: u64,
    },
    /// A device item of the chunk tree that contradicts the device.
    #[error("device {devid} of the file system: {reason}")]
    BadDeviceItem {
        /// Device id.
        devid: u64,
        /// The defect.
        reason: String,
    },
    /// A logical range that no chunk maps.
    #[error("no chunk maps {len} bytes at logical address {logical}")]
    Unmapped {
        /// Logical address.
        logical: u64,
        /// Bytes.
        len: u64,
    },
    /// A chunk that contradicts itself or the neighbouring chunks.
    #[error("chunk at {logical}: {reason}")]
    BadChunk {
        /// Logical address.
        logical: u64,
        /// The defect.
        reason: String,
    },
    /// A tree block without a valid copy.
    #[error("{device} at {physical}: {reason}")]
    BadBlock {
        /// Device of the first copy.
        device: String,
        /// Byte offset there.
        physical: u64,
        /// The defect.
        reason: Box<BlockError>,
    },
    /// A tree block in memory that is not the one its parent points at.
    #[error("tree {root} block {logical}: {reason}")]
    StaleBlock {
        /// Tree id.
        root: u64,
        /// Logical address.
        logical: u64,
        /// The mismatch.
        reason: String,
    },
    /// A tree block that we were about to write is wrong: a bug, caught before it reached disk.
    #[error("refused to write: {0}")]
    BadBlockToWrite(Box<BlockError>),
    /// An operation on a tree block that it does not allow.
    #[error("tree {root}: {source}")]
    Block {
        /// Tree id.
        root: u64,
        /// The defect.
        source: block::Error,
    },
    /// A tree higher than the format allows.
    #[error("tree {root} would get more than 8 levels")]
    TreeTooHigh {
        /// Tree id.
        root: u64,
    },
    /// An item larger than a leaf.
    #[error("tree {root} {key}: item of {size} bytes does not fit in a leaf")]
    ItemTooLarge {
        /// Tree id.
        root: u64,
        /// Key.
        key: Key,
        /// Bytes of data.
        size: usize,
    },
    /// Insertion of a key that is there already.
    #[error("tree {root} {key}: item exists")]
    ItemExists {
        /// Tree id.
        root: u64,
        /// Key.
        key: Key,
    },
    /// Change of a key that is not there.
    #[error("tree {root} {key}: no such item")]
    ItemNotFound {
        /// Tree id.
        root: u64,
        /// Key.
        key: Key,
    },
    /// A change of a key that would break the order of the keys.
    #[error("tree {root} {key}: key would leave its place")]
    KeyOrder {
        /// Tree id.
        root: u64,
        /// New key.
        key: Key,
    },
    /// An item whose bytes do not parse.
    #[error("tree {root} {key}: {source}")]
    BadItem {
        /// Tree id.
        root: u64,
        /// Key.
        key: Key,
        /// The defect.
        source: ItemError,
    },
    /// No tree with that id.
    #[error("no tree {0}")]
    NoSuchRoot(u64),
    /// The file system takes no changes: it was mounted so, or the device is read-only.
    #[error("read-only file system")]
    ReadOnly,
    /// An earlier error made the mount read-only; uncommitted changes are lost.
    #[error("read-only since an error: {0}")]
    Aborted(Arc<str>),
    /// The last fsyncs are in a log, which a mount without changes does not replay.
    #[error(
        "the file system has a log that was not replayed: mount it once read-write, \
         or look at it as of the last commit with ro,nologreplay"
    )]
    LogPresent,
    /// A mount without log replay must be read-only.
    #[error("nologreplay needs a read-only mount")]
    NoReplayNeedsReadOnly,
    /// A commit ended without a result.
    #[error("commit of transaction {0} failed")]
    CommitFailed(u64),
    /// A commit that does not end, because the trees that record space keep changing.
    #[error("commit of transaction {0} does not settle")]
    CommitUnsettled(u64),
    /// More system chunks than the superblock can hold.
    #[error("the system chunks do not fit in the superblock")]
    SystemChunks,
    /// The file system was unmounted.
    #[error("unmounted")]
    Unmounted,
    /// The request does not fit, after every attempt to free space.
    #[error("no space left")]
    NoSpace,
    /// An extent item or a keyed ref that does not parse.
    #[error("extent {bytenr}: {source}")]
    ExtentItem {
        /// Logical address.
        bytenr: u64,
        /// The defect.
        source: ItemError,
    },
    /// An extent in use that has no item in the extent tree.
    #[error("extent {bytenr}: no item in the extent tree")]
    ExtentMissing {
        /// Logical address.
        bytenr: u64,
    },
    /// A backref to drop that is missing, or has a smaller count.
    #[error("extent {bytenr}: no backref {backref}")]
    RefMissing {
        /// Logical address.
        bytenr: u64,
        /// The backref.
        backref: String,
    },
    /// Free space that contradicts itself.
    #[error("block group {group}: free space is wrong at {start}..{end}")]
    FreeSpace {
        /// Logical address of the group.
        group: u64,
        /// Logical address where the range begins.
        start: u64,
        /// First byte after the range.
        end: u64,
    },
    /// A chunk without a block group, or the other way round.
    #[error("block group {group}: {reason}")]
    BadBlockGroup {
        /// Logical address of the group.
        group: u64,
        /// The defect.
        reason: String,
    },
    /// A subvolume whose name does not lead to the top level.
    #[error("subvolume {0}: its name leads nowhere")]
    SubvolumePath(u64),
    /// No subvolume with that id or path.
    #[error("no subvolume {0}")]
    NoSuchSubvolume(String),
    /// An inode whose mode names no type.
    #[error("tree {tree} inode {objectid}: mode {mode:o} has no known type")]
    InodeMode {
        /// Tree id.
        tree: u64,
        /// Inode.
        objectid: u64,
        /// The mode.
        mode: u32,
    },
    /// A tree in which no inode number is left.
    #[error("tree {0}: no inode number left")]
    InodesExhausted(u64),
    /// A directory in which no index is left.
    #[error("tree {tree} directory {objectid}: no index left")]
    DirIndexExhausted {
        /// Tree id.
        tree: u64,
        /// Directory.
        objectid: u64,
    },
    /// A name whose inode has no ref back to it.
    #[error("tree {tree} inode {objectid}: no ref to its name in directory {parent}")]
    MissingRef {
        /// Tree id.
        tree: u64,
        /// Inode, or subvolume.
        objectid: u64,
        /// Directory.
        parent: u64,
    },
    /// A name that leads to nothing.
    #[error("tree {tree} directory {dir}: a name leads to {location}, which does not exist")]
    DanglingName {
        /// Tree id.
        tree: u64,
        /// Directory.
        dir: u64,
        /// The target of the name.
        location: Key,
    },
    /// An ACL that does not parse.
    #[error("tree {tree} inode {objectid}: {reason}")]
    Acl {
        /// Tree id.
        tree: u64,
        /// Inode.
        objectid: u64,
        /// The defect.
        reason: vfs::acl::AclError,
    },
    /// A file extent item that contradicts itself or its neighbours.
    #[error("tree {root} inode {objectid} offset {offset}: {reason}")]
    FileExtent {
        /// Tree id.
        root: u64,
        /// Inode.
        objectid: u64,
        /// File offset.
        offset: u64,
        /// The defect.
        reason: &'static str,
    },
    /// Compressed data that does not expand.
    #[error("tree {root} inode {objectid} offset {offset}: compressed data: {reason}")]
    Compressed {
        /// Tree id.
        root: u64,
        /// Inode.
        objectid: u64,
        /// File offset.
        offset: u64,
        /// The defect.
        reason: String,
    },
    /// A sector of data that differs from its checksum.
    #[error(
        "{device} at {physical}: tree {root} inode {objectid} offset {offset}: checksum {found}, expected {expected}"
    )]
    DataChecksum {
        /// Device of the copy.
        device: String,
        /// Byte offset there.
        physical: u64,
        /// Tree id.
        root: u64,
        /// Inode.
        objectid: u64,
        /// File offset.
        offset: u64,
        /// In the checksum tree.
        expected: Box<Checksum>,
        /// Checksum of the data.
        found: Box<Checksum>,
    },
    /// A sector of data that should have a checksum and has none.
    #[error("{device} at {physical}: tree {root} inode {objectid} offset {offset}: no checksum")]
    NoChecksum {
        /// Device of the copy.
        device: String,
        /// Byte offset there.
        physical: u64,
        /// Tree id.
        root: u64,
        /// Inode.
        objectid: u64,
        /// File offset.
        offset: u64,
    },
    /// A sector of data that no device can read.
    #[error("{device} at {physical}: tree {root} inode {objectid} offset {offset}: cannot be read")]
    DataUnreadable {
        /// Device of the copy.
        device: String,
        /// Byte offset there.
        physical: u64,
        /// Tree id.
        root: u64,
        /// Inode.
        objectid: u64,
        /// File offset.
        offset: u64,
    },
    /// Data that was written to memory and did not reach the device.
    #[error("tree {root} inode {objectid}: writing back failed, data is lost")]
    WriteFailed {
        /// Tree id.
        root: u64,
        /// Inode.
        objectid: u64,
    },
    /// Checksum items that leave no place for a checksum.
    #[error("checksum tree at {logical}: items overlap")]
    Checksums {
        /// Logical address.
        logical: u64,
    },
    /// A log that cannot be replayed. Nothing was changed.
    #[error(
        "the log cannot be replayed: {source} (a read-only mount with nologreplay shows the last commit)"
    )]
    LogReplay {
        /// The error that stopped the replay.
        source: Box<Error>,
    },
    /// A misplaced or wrong block of the log.
    #[error("log block {logical}: {reason}")]
    LogBlock {
        /// Logical address.
        logical: u64,
        /// The defect.
        reason: &'static str,
    },
    /// An item of a log that is wrong or contradicts the subvolume's tree.
    #[error("log of tree {subvolume} block {logical} {key}: {reason}")]
    LogItem {
        /// Subvolume of the log.
        subvolume: u64,
        /// Logical address of the leaf.
        logical: u64,
        /// Key.
        key: Key,
        /// The defect.
        reason: String,
    },
    /// A directory that a log gives several names, or none although it holds a subvolume.
    #[error(
        "log of tree {subvolume}: directory {directory} has several names, or holds a subvolume and has none"
    )]
    LogNames {
        /// Subvolume of the log.
        subvolume: u64,
        /// Directory.
        directory: u64,
    },
    /// A directory that a log puts below itself.
    #[error("log of tree {subvolume}: directory {directory} is below itself")]
    LogRing {
        /// Subvolume of the log.
        subvolume: u64,
        /// Directory.
        directory: u64,
    },
    /// Directories whose parents form a ring, which does not lead to the top.
    #[error("tree {subvolume}: the directories above {directory} form a ring")]
    DirectoryRing {
        /// Subvolume.
        subvolume: u64,
        /// Directory.
        directory: u64,
    },
    /// A file does not match its hash tree, or the tree's descriptor is damaged.
    #[error("tree {root} inode {objectid}: {source}")]
    Verity {
        /// Tree.
        root: u64,
        /// Inode.
        objectid: u64,
        /// The defect.
        source: sapwood_verity::Error,
    },
    /// The items of a file's hash tree contradict each other.
    #[error("tree {root} inode {objectid}: hash tree: {reason}")]
    VerityItems {
        /// Tree.
        root: u64,
        /// Inode.
        objectid: u64,
        /// The defect.
        reason: &'static str,
    },
    /// An item of the quota tree that contradicts others.
    #[error("quota tree {key}: {reason}")]
    Quota {
        /// Key.
        key: Key,
        /// The defect.
        reason: &'static str,
    },
    /// No quota group with that id.
    #[error("no quota group {level}/{id}")]
    NoSuchGroup {
        /// Level.
        level: u64,
        /// Id within the level; of level 0, a subvolume.
        id: u64,
    },
    /// A change of quotas that the groups do not allow.
    #[error("quota group {level}/{id}: {reason}")]
    QuotaGroup {
        /// Level.
        level: u64,
        /// Id within the level; of level 0, a subvolume.
        id: u64,
        /// Why not.
        reason: &'static str,
    },
    /// Simple quotas, whose numbers cannot be counted anew.
    #[error("simple quotas are not counted anew; disable them first for quota groups")]
    SimpleQuotas,
    /// Quota groups are on, where simple quotas were to be enabled.
    #[error("quota groups are on; disable them first for simple quotas")]
    FullQuotas,
    /// Quotas are off.
    #[error("quotas are off")]
    NoQuotas,
    /// An error of the interface, which an operation returns unchanged.
    #[error(transparent)]
    Vfs(#[from] vfs::Error),
}

/// Result of an engine operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<Unhealthy> for Error {
    fn from(reason: Unhealthy) -> Self {
        match reason {
            Unhealthy::ReadOnly => Self::ReadOnly,
            Unhealthy::Aborted(reason) => Self::Aborted(reason),
            Unhealthy::Unmounted => Self::Unmounted,
        }
    }
}

/// The error for an item of tree `root` whose bytes do not parse.
pub(crate) fn bad_item(root: u64, key: Key, source: ItemError) -> Error {
    Error::BadItem { root, key, source }
}

impl Error {
    /// Whether the only error is that the host has no space for a write.
    pub(crate) fn is_host_full(&self) -> bool {
        matches!(self, Self::Device(error) if error.is_host_full())
    }
}

/// The only place where an engine error becomes one that has an errno.
impl From<Error> for vfs::Error {
    fn from(err: Error) -> Self {
        match err {
            Error::Vfs(err) => err,
            Error::ReadOnly | Error::Aborted(_) => Self::ReadOnly,
            Error::NoSpace => Self::NoSpace,
            Error::Device(err) if err.is_host_full() => Self::NoSpace,
            Error::NoSuchSubvolume(_) => Self::NotFound,
            Error::Device(sapwood_block::Error::ReadOnly { .. }) => Self::ReadOnly,
            Error::Device(sapwood_block::Error::Busy { .. }) => Self::Busy,
            err @ (Error::Device(_)
            | Error::BadBlock { .. }
            | Error::TooFewDevices { .. }
            | Error::Unmounted
            | Error::Compressed { .. }
            | Error::DataChecksum { .. }
            | Error::NoChecksum { .. }
            | Error::DataUnreadable { .. }
            | Error::Verity { .. }
            | Error::VerityItems { .. }
            | Error::WriteFailed { .. }) => Self::io(err),
            Error::UnsupportedFeature(_) | Error::ReadOnlyFeature(_) | Error::LogPresent => {
                Self::NotSupported
            }
            Error::MissingDevice { .. }
            | Error::DuplicateDevice { .. }
            | Error::ForeignDevice { .. }
            | Error::StaleDevice { .. }
            | Error::ExtraDevices { .. }
            | Error::NoReplayNeedsReadOnly => Self::Invalid,
            err => Self::corrupt(err),
        }
    }
}
