//! Errors of the engine.

use sapwood_ext4_format as format;
use sapwood_vfs as vfs;

/// Errors of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device refused a request.
    #[error(transparent)]
    Device(#[from] sapwood_block::Error),
    /// The journal, or a metadata block that it keeps.
    #[error("journal: {0}")]
    Journal(#[from] sapwood_jbd2::Error),
    /// A structure of the image that contradicts the format.
    #[error(transparent)]
    Format(#[from] format::FormatError),
    /// No superblock with the magic number.
    #[error("{device}: no ext4 file system")]
    NotExt4 {
        /// Device name.
        device: String,
    },
    /// A feature that this version cannot handle, by the name that e2fsprogs give it.
    #[error("unsupported feature {0}")]
    UnsupportedFeature(String),
    /// Features, or the creator OS, that allow only reading.
    #[error("{0} allows only a read-only mount")]
    ReadOnlyFeature(String),
    /// The journal is on another device, which was not named.
    #[error(
        "the journal is on another device: name it with --journal-device, or in a mount with \
         -o journal_path=DEVICE"
    )]
    ExternalJournal,
    /// The journal is on another device, and the operation supports only a journal in the file
    /// system.
    #[error("the journal is on another device, which this operation does not support")]
    NoInternalJournal,
    /// A journal device was named for a file system that has none.
    #[error("{device}: the file system has no journal on another device")]
    NeedlessJournalDevice {
        /// Name of the device.
        device: String,
    },
    /// The named device is not the journal of the file system.
    #[error("{device}: {why}")]
    JournalDevice {
        /// Name of the device.
        device: String,
        /// The reason.
        #[source]
        why: JournalMismatch,
    },
    /// The options forbid a recovery of the journal, but request a writable mount.
    #[error("noload needs ro")]
    NoLoadNeedsReadOnly,
    /// The options ask for quotas that the image does not keep.
    #[error("{}", no_quota(*kind))]
    NoQuota {
        /// Kind of the quotas.
        kind: format::QuotaKind,
    },
    /// The image was made larger than the device that holds it.
    #[error("the file system has {blocks} blocks of {block_size} bytes, but {device} is smaller")]
    DeviceTooSmall {
        /// Device name.
        device: String,
        /// Blocks according to the superblock.
        blocks: u64,
        /// Bytes of a block.
        block_size: u32,
    },
    /// Another machine uses the file system, or is opening it.
    #[error("in use by {node:?} through {device:?} (multiple mount protection)")]
    InUse {
        /// Name of the machine.
        node: String,
        /// Name that the device has there.
        device: String,
    },
    /// Another machine checks the file system, or such a check was interrupted.
    #[error(
        "being checked on {node:?}, or a check was interrupted there (multiple mount protection): \
         `tune2fs -f -E clear_mmp` removes the mark"
    )]
    CheckRunning {
        /// Name of the machine.
        node: String,
    },
    /// The block of multiple mount protection has a sequence without a meaning.
    #[error(
        "unknown sequence {sequence:#x} of multiple mount protection: \
         `tune2fs -f -E clear_mmp` resets it"
    )]
    UnknownMmpSequence {
        /// The sequence.
        sequence: u32,
    },
    /// A group whose bitmap or descriptor is wrong; nothing is allocated in it or freed there.
    #[error("group {group}: {reason}; nothing will be allocated there")]
    BadGroup {
        /// Group.
        group: u32,
        /// The defect.
        reason: String,
    },
    /// An invalid metadata block.
    #[error("inode {ino}, block {block}: {reason}")]
    BadBlock {
        /// Inode that it belongs to.
        ino: u32,
        /// Block.
        block: u64,
        /// The defect.
        reason: String,
    },
    /// A file does not match its hash tree, or the tree's descriptor is damaged.
    #[error("inode {ino}: {source}")]
    Verity {
        /// Inode.
        ino: u32,
        /// The defect.
        source: sapwood_verity::Error,
    },
    /// An inode that contradicts itself.
    #[error("inode {ino}: {reason}")]
    BadInode {
        /// Inode.
        ino: u32,
        /// The defect.
        reason: String,
    },
    /// A complete fast commit with invalid contents.
    #[error("fast commits, block {block}, byte {offset}: {reason}")]
    BadFastCommit {
        /// Block of the area.
        block: u64,
        /// Byte in the block at which the record begins.
        offset: usize,
        /// The defect.
        reason: String,
    },
    /// Data that was written to memory and did not reach the device.
    #[error("inode {0}: writing back failed, data is lost")]
    WriteFailed(u32),
    /// No block or inode is free.
    #[error("no space left")]
    NoSpace,
    /// Changes are refused by option.
    #[error("mounted read-only")]
    ReadOnly,
    /// Changes are refused since an error.
    #[error("read-only since an error: {0}")]
    Aborted(std::sync::Arc<str>),
    /// The file system was unmounted.
    #[error("unmounted")]
    Unmounted,
    /// An error that an operation is to return as it is.
    #[error(transparent)]
    Vfs(#[from] vfs::Error),
}

/// Why a device is not the journal of a file system.
#[derive(Debug, thiserror::Error)]
pub enum JournalMismatch {
    /// It has no superblock of an external journal.
    #[error("no journal of an ext4")]
    NoJournal,
    /// It is the journal of another file system.
    #[error("the journal has the UUID {found}, and the file system needs {wanted}")]
    Other {
        /// UUID of the device.
        found: uuid::Uuid,
        /// UUID in the superblock of the file system.
        wanted: uuid::Uuid,
    },
    /// It has blocks of another size.
    #[error("the journal has blocks of {} bytes, the file system of {wanted}", .found.unwrap_or(0))]
    BlockSize {
        /// Bytes of its blocks, if they have a valid size.
        found: Option<u32>,
        /// Bytes of a block of the file system.
        wanted: u32,
    },
    /// Several file systems share the journal, or none uses it.
    #[error("{0} file systems use the journal, instead of one")]
    Users(u32),
    /// The journal does not list the file system.
    #[error("another file system uses the journal")]
    Foreign,
}

impl Error {
    /// Whether the only error is that the host has no space for a write.
    pub(crate) fn is_host_full(&self) -> bool {
        matches!(self, Self::Device(error) if error.is_host_full())
    }
}

/// Result of an engine operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<sapwood_base::Unhealthy> for Error {
    fn from(why: sapwood_base::Unhealthy) -> Self {
        match why {
            sapwood_base::Unhealthy::ReadOnly => Self::ReadOnly,
            sapwood_base::Unhealthy::Aborted(reason) => Self::Aborted(reason),
            sapwood_base::Unhealthy::Unmounted => Self::Unmounted,
        }
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
            Error::Device(
                sapwood_block::Error::ReadOnly { .. } | sapwood_block::Error::TakenOver { .. },
            ) => Self::ReadOnly,
            Error::Device(sapwood_block::Error::Busy { .. }) => Self::Busy,
            err @ (Error::Device(_)
            | Error::Unmounted
            | Error::WriteFailed(_)
            | Error::Verity { .. }) => Self::io(err),
            Error::Journal(err) => match err {
                sapwood_jbd2::Error::Aborted(_) => Self::ReadOnly,
                sapwood_jbd2::Error::Device(err)
                    if matches!(*err, sapwood_block::Error::TakenOver { .. }) =>
                {
                    Self::ReadOnly
                }
                sapwood_jbd2::Error::Device(err) => Self::io(err),
                err => Self::corrupt(err),
            },
            Error::UnsupportedFeature(_)
            | Error::ReadOnlyFeature(_)
            | Error::ExternalJournal
            | Error::NoInternalJournal => Self::NotSupported,
            Error::NeedlessJournalDevice { .. } | Error::JournalDevice { .. } => Self::Invalid,
            Error::InUse { .. } | Error::CheckRunning { .. } => Self::Busy,
            Error::NoLoadNeedsReadOnly | Error::NoQuota { .. } => Self::Invalid,
            err => Self::corrupt(err),
        }
    }
}

fn no_quota(kind: format::QuotaKind) -> String {
    let add = match kind {
        format::QuotaKind::User => "-O quota",
        format::QuotaKind::Group => "-O quota -Q grpquota",
        format::QuotaKind::Project => "-O quota,project -Q prjquota",
    };
    format!("the image keeps no {kind} quotas: `tune2fs {add} IMAGE` adds them")
}
