//! Sapwood reads and writes btrfs and ext4 in user space: image files and block devices, without a
//! mount, without root, and with the kernel's promise on `fsync`.
//!
//! ```no_run
//! use std::io::Write;
//!
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
//! - [`fs`]: the files of an image, in the shape of [`std::fs`].
//! - [`Options`]: how an image is opened. [`image`]: which image a path and options name.
//! - [`ImageBuilder`], [`mkfs`](mod@mkfs): new images, empty or with files.
//! - [`Sources`]: what fills an image, with [`Changes`]; [`Storage`]: how btrfs stores it.
//! - [`disk`]: whole disk images with partitions. [`output`]: the formats of new images.
//! - [`copy`](mod@copy): copies between this machine and images.
//! - [`export`]: tar archives and layers of the files of an image.
//! - [`resize()`], [`trim()`]: the size of an image, and its free space.
//! - [`check()`], [`info()`], [`dump()`]: reading an image without opening its file system.
//! - `mount` (feature `fuse`): FUSE mounts, and the control of those of other processes.
//! - [`vfs`]: the interface of the engines below, by inode.
//!
//! A long operation takes a callback ([`OnProgress`]). An error names what was done and the path,
//! and its [`source`](std::error::Error::source) leads to the block, key or inode:
//!
//! ```no_run
//! let fs = sapwood::open("disk.img")?;
//! match fs.create("etc/hostname") {
//!     Ok(_) => {}
//!     Err(error) if error.kind() == std::io::ErrorKind::StorageFull => println!("full"),
//!     Err(error) => println!("{error} (errno {:?})", error.errno()),
//! }
//! match sapwood::open("disk.img") {
//!     Err(sapwood::Error::NoFileSystem(_)) => println!("neither btrfs nor ext4"),
//!     opened => drop(opened?),
//! }
//! # Ok::<(), sapwood::Error>(())
//! ```

mod acls;
mod archive;
pub mod build;
#[cfg(feature = "fuse")]
mod bulk;
mod changes;
mod check;
mod coalesced;
pub mod copy;
mod damage;
pub mod disk;
pub mod export;
pub mod fs;
pub mod image;
pub mod inspect;
pub mod kind;
mod manifest;
pub mod mkfs;
#[cfg(feature = "fuse")]
pub mod mount;
pub mod new_file;
mod oci;
pub mod options;
pub mod output;
mod path_table;
pub mod pattern;
pub mod progress;
pub mod resize;
pub mod shown;
mod sources;
pub mod storage;
pub mod target;
mod tree;
mod trim;
mod unflushed;

pub use archive::ArchiveError;
pub use build::{BuildError, BuiltImage, ImageBuilder};
pub use changes::{ChangeError, Changes, IdRange};
pub use check::{CheckError, CheckFinding, CheckOptions, CheckReport, check};
pub use copy::{CopyError, CopyOptions, CopyReport};
pub use damage::Damage;
pub use export::{ExportError, ExportOptions, ExportReport};
pub use fs::{Error, File, FileSystem, OpenOptions, Result, errno};
pub use inspect::{Info, dump, dump_with_options, info, info_with_options};
pub use kind::Kind;
pub use manifest::ManifestError;
pub use mkfs::MkfsOptions;
pub use new_file::{NewFile, NewFileError};
pub use oci::OciError;
pub use options::Options;
pub use output::OutputFormat;
pub use progress::{OnProgress, Progress, Stop};
pub use resize::{FreeRoom, NewSize, ResizeError, ResizeReport, resize, resize_reproducibly};
#[doc(inline)]
pub use sapwood_block as block;
#[doc(inline)]
pub use sapwood_btrfs as btrfs;
#[doc(inline)]
pub use sapwood_ext4 as ext4;
#[doc(inline)]
pub use sapwood_vfs as vfs;
pub use sources::{Sources, Summary};
pub use storage::Storage;
pub use trim::{TrimError, trim, trim_with_options};

/// Opens an image file or block device for reading and writing. No other process can open it
/// meanwhile, unless both only read. [`Options::open`] takes options.
///
/// # Errors
/// [`Error::NoFileSystem`]: the image is not btrfs or ext4. [`Error::Open`]: it does not exist or
/// is in use; a log or journal cannot be recovered.
pub fn open(path: impl AsRef<std::path::Path>) -> Result<FileSystem> {
    FileSystem::open_with_options(path, &Options::default())
}
