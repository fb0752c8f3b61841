//! Sapwood reads and writes btrfs and ext4 in user space: image files and block devices, without a
//! mount, without root, and with the kernel's promise on `fsync`.
//!
//! ```standalone_crate
//! use std::io::Write;
//!
//! # let dir = tempfile::tempdir()?;
//! # std::env::set_current_dir(&dir)?;
//! # for name in ["tree/etc/os-release", "tree/var/log/syslog", "tree/snapshots/a"] {
//! #     std::fs::create_dir_all(std::path::Path::new(name).parent().unwrap())?;
//! #     std::fs::write(name, "x")?;
//! # }
//! # sapwood::ImageBuilder::btrfs().size(128 << 20).from_dir("tree")?.write_to("disk.img")?;
//! let fs = sapwood::open("disk.img")?;
//! for entry in fs.read_dir("etc")? {
//!     println!("{}", entry?.file_name().display());
//! }
//! let release = fs.read_to_string("etc/os-release")?;
//! let mut log = fs.open("var/log/syslog")?; // a File for reading
//! let mut file = fs.create("etc/hostname")?; // for writing
//! file.write_all(b"box\n")?;
//! file.sync_all()?;
//! # drop((release, log));
//! drop(file);
//! fs.snapshot("/", "/snapshots/monday")?; // btrfs
//! fs.close()?; // Drop closes too, and logs an error that close would return
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`FileSystem`], [`File`]: the files of an image, in the shape of [`std::fs`].
//! - [`Options`]: how an image is opened.
//! - [`ImageBuilder`], [`MkfsOptions`]: new images, empty or with files.
//! - [`Sources`]: the contents of a new image, with [`Changes`]; [`Storage`]: their storage on
//!   btrfs.
//! - [`DiskBuilder`]: whole disk images with partitions. [`OutputFormat`]: formats of new images.
//! - [`copy()`]: copies between this machine and images.
//! - [`FileSystem::export_tar`]: tar archives and layers of the files of an image.
//! - [`diff()`]: the differences between two directories, snapshots or images.
//! - [`FileSystem::send`], [`FileSystem::receive`], [`receive()`]: snapshots as streams.
//! - [`resize()`], [`trim()`]: the size of an image, and its free space.
//! - [`Rescue`]: reading damaged images.
//! - [`check()`], [`info`], [`dump`]: reading an image without opening its file system.
//! - [`luks`]: encrypted volumes.
//! - [`verity`]: hash trees of dm-verity.
//! - `mount` (feature `fuse`): FUSE mounts. `doctor` examines what they need of this machine.
//! - [`vfs`], [`block`]: the crates below, with types of this interface.
//!
//! A long operation takes a callback ([`OnProgress`]). Every operation has the same [`Error`],
//! which names what was done and the path, and whose [`source`](std::error::Error::source) leads to
//! the block, key or inode:
//!
//! ```no_run
//! use sapwood::ErrorKind;
//!
//! let fs = sapwood::open("disk.img")?;
//! match fs.create("etc/hostname") {
//!     Ok(_) => {}
//!     Err(error) if error.kind() == ErrorKind::StorageFull => println!("full"),
//!     Err(error) => println!("{error} (errno {})", error.errno()),
//! }
//! match sapwood::open("disk.img") {
//!     Err(error) if error.kind() == ErrorKind::NoFileSystem => println!("neither btrfs nor ext4"),
//!     opened => drop(opened?),
//! }
//! # Ok::<(), sapwood::Error>(())
//! ```

#[cfg(all(feature = "fuse", not(all(target_os = "linux", not(sapwood_portable)))))]
compile_error!("mounts are for Linux alone: leave the feature `fuse` out");

mod acls;
mod archive;
mod build;
#[cfg(feature = "fuse")]
mod bulk;
mod causes;
mod changes;
mod check;
mod coalesced;
mod copy;
mod daemon;
mod damage;
mod devices;
mod diff;
mod disk;
#[cfg(feature = "fuse")]
mod doctor;
mod error;
mod export;
mod fat;
mod fs;
mod host;
mod image;
mod inspect;
mod kind;
mod like;
pub mod luks;
mod manifest;
mod mkfs;
#[cfg(feature = "fuse")]
mod mount;
mod new_file;
mod oci;
mod options;
mod output;
mod path_table;
mod pattern;
mod progress;
mod quota;
#[cfg_attr(
    not(all(target_os = "linux", not(sapwood_portable))),
    allow(dead_code, reason = "parts of receiving into a directory")
)]
mod receive;
mod repair;
mod repartition;
mod rescue;
mod resize;
mod scrub;
mod seal;
mod send;
mod shown;
mod sources;
mod storage;
mod target;
mod tree;
mod trim;
mod unflushed;
mod unused;
pub mod verity;
mod write_behind;

pub use build::{BuiltImage, ImageBuilder};
pub use changes::{Changes, IdRange};
pub use check::{CheckFinding, CheckOptions, CheckReport, check};
pub use copy::{CopyOptions, CopyReport, Existing, Place, copy};
pub use damage::Damage;
pub use devices::{
    AllocatedSpace, BadFilter, BalanceFilter, BalanceOptions, BalanceReport, BalanceState,
    DeviceChoice, DeviceSpace, ReplaceReport, add_device, balance, balance_state, cancel_balance,
    change_quotas, device_usage, pause_balance, quotas, remove_device, replace_device,
    resume_balance,
};
pub use diff::{DiffEntry, DiffKind, DiffOptions, DiffParts, diff};
pub use disk::{
    BuiltDisk, BuiltPartition, DiskBuilder, NewHashes, NewPartition, PartitionContent,
    PartitionSize, RootSignature,
};
#[cfg(feature = "fuse")]
pub use doctor::{DoctorOptions, DoctorReport, HostFinding, HostState, doctor};
pub use error::{Error, ErrorKind, Result, errno};
pub use export::{ExportCompression, ExportOptions, ExportReport};
pub use fat::{FatImage, FatWidth};
pub use fs::{
    DirEntry, File, FileSystem, FileType, Metadata, OpenOptions, ReadDir, Step, Times, Walk,
    WalkEntry,
};
pub use inspect::{Details, Info, dump, dump_with_options, info, info_with_options};
pub use kind::Kind;
pub use mkfs::MkfsOptions;
#[cfg(feature = "fuse")]
pub use mount::{Mount, mount};
pub use options::{DeletedFiles, Options, Rescue};
pub use output::OutputFormat;
pub use progress::{OnProgress, Progress, Stop};
pub use quota::{BadQuotaGroupId, LimitChange, QuotaChange, QuotaGroup, QuotaGroupId, Quotas};
pub use receive::{LeftOut, LeftOutKind, ReceiveOptions, ReceiveReport, receive};
pub use repair::{ImageRepair, RepairOptions, RepairReport, UndoOptions, UndoReport, repair, undo};
pub use resize::{FreeRoom, NewSize, ResizeReport, resize, resize_device, resize_reproducibly};
#[doc(no_inline)]
pub use sapwood_block as block;
#[doc(no_inline)]
pub use sapwood_btrfs::Compression;
#[doc(no_inline)]
pub use sapwood_vfs as vfs;
pub use scrub::{ScrubOptions, ScrubReport, ScrubSource, ScrubbedDevice, ScrubbedFile, scrub};
pub use seal::{Seal, SealError, Sealing};
pub use send::{SendOptions, SendReport, send};
pub use sources::Sources;
pub use storage::{NewSubvolume, PathFlags, Storage};
pub use trim::{trim, trim_with_options};

/// Items that the command, the C library and the tests use beyond the library's interface. They
/// change without notice.
#[doc(hidden)]
pub mod internal {
    pub use sapwood_btrfs as btrfs;
    pub use sapwood_btrfs_format as btrfs_format;
    pub use sapwood_ext4 as ext4;

    pub use crate::archive::ArchiveError;
    pub use crate::build::{BuildError, fill, make_reproducible};
    pub use crate::check::CheckError;
    pub use crate::copy::{CopyCause, CopyError, UntarError, untar};
    pub use crate::daemon::DaemonError;
    pub use crate::devices::DevicesError;
    pub use crate::diff::DiffError;
    pub use crate::disk::{DiskError, partition_type, type_names};
    pub use crate::error::{Cause, errno_in};
    pub use crate::export::ExportError;
    pub use crate::fat::FatError;
    pub use crate::fs::{OperationError, TransactionError};
    pub use crate::inspect::InspectError;
    pub use crate::kind::{DetectError, detect};
    pub use crate::like::{ADAPTING, LikeError};
    pub use crate::luks::{ENCRYPTING, LuksError};
    pub use crate::mkfs::{MkfsError, MkfsReport, mkfs, mkfs_several};
    pub use crate::new_file::{NewFile, NewFileError};
    pub use crate::output::CONVERTING;
    pub use crate::pattern::Pattern;
    pub use crate::receive::{ReceiveError, read_stream};
    pub use crate::repair::RepairError;
    pub use crate::resize::{MOVING, ResizeError};
    pub use crate::scrub::ScrubError;
    pub use crate::send::SendError;
    pub use crate::storage::{ARRANGING, StorageError};
    pub use crate::target::{NoImage, Target};
    pub use crate::verity::{HASHING, VerityError};
    pub use crate::write_behind::WriteBehind;

    /// Reading damaged images.
    pub mod rescue {
        pub use crate::rescue::*;
    }
    /// Opening images by their operands.
    pub mod image {
        pub use crate::image::*;
    }
    /// Tables of the options of mkfs.
    pub mod mkfs_table {
        pub use crate::mkfs::table::*;
    }
    /// FUSE mounts, their daemons, and the control of daemons.
    #[cfg(feature = "fuse")]
    pub mod mount {
        pub use crate::mount::*;
    }
    /// New files that appear under their names when they are complete.
    pub mod new_file {
        pub use crate::new_file::*;
    }
    /// Mount options.
    pub mod options {
        pub use crate::options::*;
    }
    /// Names and kinds of files as text for people.
    pub mod shown {
        pub use crate::shown::*;
    }
}

/// Opens an image file or block device for reading and writing. No other process can open it
/// meanwhile, unless both only read. [`Options::open`] takes options.
///
/// # Errors
/// [`ErrorKind::NoFileSystem`]: the image is not btrfs or ext4. [`ErrorKind::NotFound`],
/// [`ErrorKind::ResourceBusy`]: it does not exist or is in use. [`ErrorKind::Corrupt`]: a log or
/// journal cannot be recovered.
pub fn open(path: impl AsRef<std::path::Path>) -> Result<FileSystem> {
    FileSystem::open_with_options(path, &Options::default())
}
