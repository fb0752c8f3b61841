//! Facts about an image, and its structures, for readers who know the format.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs::inspect::{self as btrfs, TreeChoice};
use sapwood_btrfs_format::{DumpBlock, DumpSuper};
use sapwood_ext4::inspect::{Image, What};
use sapwood_ext4_format::{Compat, FormatError, Incompat, SUPER_OFFSET, SUPER_SIZE, SuperBlock};

use crate::Kind;
use crate::image::{self, OpenError, named};
use crate::vfs;
use crate::{Options, shown};

/// Why an image could not be inspected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// There is no such part of this format.
    #[error("{}", unknown(*kind, name))]
    Unknown {
        /// The format.
        kind: Kind,
        /// The requested name.
        name: String,
    },
    /// The superblock of an ext4 is damaged.
    #[error("{}", named(path, source))]
    Super {
        /// The image.
        path: PathBuf,
        /// The defect.
        source: FormatError,
    },
    /// A btrfs is damaged.
    #[error("{}", named(path, source))]
    Btrfs {
        /// The image.
        path: PathBuf,
        /// The defect.
        source: Box<sapwood_btrfs::Error>,
    },
    /// An ext4 is damaged.
    #[error("{}", named(path, source))]
    Ext4 {
        /// The image.
        path: PathBuf,
        /// The defect.
        source: Box<sapwood_ext4::inspect::InspectError>,
    },
    /// The file system could not be read.
    #[error("{}", named(path, source))]
    FileSystem {
        /// The image.
        path: PathBuf,
        /// Why.
        source: vfs::Error,
    },
}

fn unknown(kind: Kind, name: &str) -> String {
    match kind {
        Kind::Btrfs => format!("no tree is called {name}"),
        Kind::Ext4 => format!("there is no {name} to be shown"),
    }
}

/// Facts about an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// Label, as text for people.
    pub label: String,
    /// UUID of the file system.
    pub uuid: [u8; 16],
    /// Bytes of the file system.
    pub size: u64,
    /// Bytes that are in use.
    pub used: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Names of the features, as the format's tools call them.
    pub features: Vec<String>,
    /// Facts of its format.
    pub details: Details,
}

/// Facts of one format.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Details {
    /// btrfs.
    Btrfs {
        /// Number of devices.
        devices: u64,
        /// Number of the last commit.
        generation: u64,
        /// Bytes of a sector.
        sector_size: u32,
        /// Bytes of a tree block.
        node_size: u32,
        /// Checksum algorithm.
        checksum: String,
        /// Number of subvolumes below the top level.
        subvolumes: usize,
        /// Whether there is a log to replay.
        log: bool,
    },
    /// ext4, ext3 or ext2.
    Ext4 {
        /// Bytes of a block.
        block_size: u64,
        /// Bytes of an inode.
        inode_size: u16,
        /// Number of inodes.
        inodes: u32,
        /// Number of free inodes.
        free_inodes: u32,
        /// Whether the journal has to be replayed; `None` without a journal.
        journal: Option<bool>,
    },
}

/// Reads facts about an image. Changes nothing.
///
/// # Errors
/// The image cannot be opened ([`open`](crate::open)); its superblock is damaged.
pub fn info(path: impl AsRef<Path>) -> crate::Result<Info> {
    info_with_options(path, &Options::new())
}

/// Like [`info`], with options. Only the [devices](Options::add_device) of a btrfs have an effect.
///
/// # Errors
/// The errors of [`info`]; an option is of the other format.
pub fn info_with_options(path: impl AsRef<Path>, options: &Options) -> crate::Result<Info> {
    let path = path.as_ref();
    let (devices, kind) = image::open_all(path, options)?;
    match devices.first().filter(|_| kind == Kind::Ext4) {
        Some(device) => ext4_info(path, &**device),
        None => btrfs_info(path, devices, options),
    }
}

fn btrfs_info(
    path: &Path,
    devices: Vec<Arc<dyn Device>>,
    options: &Options,
) -> crate::Result<Info> {
    let super_block = btrfs::super_block(&devices).map_err(|source| InspectError::Btrfs {
        path: path.to_owned(),
        source: Box::new(source),
    })?;
    drop(devices);
    let mut options = options.clone().read_only(true).top_level();
    options.set_no_recovery();
    let fs = image::open_btrfs(path, &options, "this")?.0;
    let failed = |source| InspectError::FileSystem {
        path: path.to_owned(),
        source,
    };
    let stat = fs.statfs().map_err(failed)?;
    let subvolumes = fs.subvolumes().ok_or(vfs::Error::NotSupported);
    let subvolumes = subvolumes.and_then(vfs::Subvolumes::list);
    let subvolumes = subvolumes.map_err(failed)?.len();
    fs.unmount().map_err(failed)?;
    let features = super_block.incompat().to_string();
    let compatible = super_block.compat_ro().to_string();
    let features = features.split('|').chain(compatible.split('|'));
    let checksum = super_block.checksum_kind();
    Ok(Info {
        label: shown::name(super_block.label_bytes()),
        uuid: super_block.fsid,
        size: super_block.total_bytes.get(),
        used: super_block.bytes_used.get(),
        free: stat.blocks_available.saturating_mul(stat.block_size.into()),
        features: features
            .filter(|name| *name != "none")
            .map(str::to_owned)
            .collect(),
        details: Details::Btrfs {
            devices: super_block.num_devices.get(),
            generation: super_block.generation.get(),
            sector_size: super_block.sectorsize.get(),
            node_size: super_block.nodesize.get(),
            checksum: checksum.map_or_else(|| "unknown".to_owned(), |kind| kind.to_string()),
            subvolumes,
            log: super_block.log_root.get() != 0,
        },
    })
}

fn ext4_info(path: &Path, device: &dyn Device) -> crate::Result<Info> {
    let mut bytes = [0; SUPER_SIZE];
    let read = device.read_at(SUPER_OFFSET, &mut bytes);
    read.map_err(OpenError::from)?;
    let super_block = SuperBlock::parse(&bytes).map_err(|source| InspectError::Super {
        path: path.to_owned(),
        source,
    })?;
    let unit = 1024_u64.checked_shl(super_block.log_block_size.get());
    let unit = unit.unwrap_or_default();
    let blocks = super_block.blocks_count();
    let free = super_block.free_blocks_count();
    let features = super_block.features();
    let has_journal = features.compat.contains(Compat::HAS_JOURNAL);
    Ok(Info {
        label: super_block.label(),
        uuid: super_block.uuid,
        size: blocks.saturating_mul(unit),
        used: blocks.saturating_sub(free).saturating_mul(unit),
        free: free.saturating_mul(unit),
        features: features.names(),
        details: Details::Ext4 {
            block_size: unit,
            inode_size: super_block.inode_size.get(),
            inodes: super_block.inodes_count.get(),
            free_inodes: super_block.free_inodes_count.get(),
            journal: has_journal.then(|| features.incompat.contains(Incompat::RECOVER)),
        },
    })
}

/// Shows part of an image, with one call of `line` for each line or block. Changes nothing.
///
/// For btrfs `part` is `super`, `log`, a tree by name or number, or nothing for all trees. For ext4
/// it is `super`, `groups`, `group:N`, `journal`, `inode:X`, `map:X`, `dir:X`, `attrs:X` with the
/// number or path of an inode, or nothing for `super` and `groups`.
///
/// # Errors
/// The image cannot be opened ([`open`](crate::open)).
/// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): the format has no such part.
pub fn dump(
    path: impl AsRef<Path>,
    part: Option<&str>,
    line: &mut dyn FnMut(&dyn Display),
) -> crate::Result<()> {
    dump_with_options(path, &Options::new(), part, line)
}

/// Like [`dump`], with options. Only the [devices](Options::add_device) of a btrfs have an effect.
///
/// # Errors
/// The errors of [`dump`]; an option is of the other format.
pub fn dump_with_options(
    path: impl AsRef<Path>,
    options: &Options,
    part: Option<&str>,
    line: &mut dyn FnMut(&dyn Display),
) -> crate::Result<()> {
    let path = path.as_ref();
    let (devices, kind) = image::open_all(path, options)?;
    let part = part.filter(|part| *part != "all");
    let unknown = |name: &str| InspectError::Unknown {
        kind,
        name: name.to_owned(),
    };
    match kind {
        Kind::Btrfs => {
            let fail = |source| InspectError::Btrfs {
                path: path.to_owned(),
                source: Box::new(source),
            };
            if part == Some("super") {
                line(&DumpSuper(&btrfs::super_block(&devices).map_err(fail)?));
                return Ok(());
            }
            let choice = match part {
                None => TreeChoice::All,
                Some(name) => TreeChoice::named(name).ok_or_else(|| unknown(name))?,
            };
            let mut block = |block: &[u8]| line(&DumpBlock(block));
            btrfs::walk(&devices, choice, &mut block).map_err(fail)?;
        }
        Kind::Ext4 => {
            for device in devices {
                dump_ext4(path, device, part, line)?;
            }
        }
    }
    Ok(())
}

fn dump_ext4(
    path: &Path,
    device: Arc<dyn Device>,
    part: Option<&str>,
    line: &mut dyn FnMut(&dyn Display),
) -> Result<(), InspectError> {
    let unknown = |name: &str| InspectError::Unknown {
        kind: Kind::Ext4,
        name: name.to_owned(),
    };
    let what = match part {
        None => vec![What::Super, What::Groups],
        Some(words) => vec![What::named(words).ok_or_else(|| unknown(words))?],
    };
    let fail = |source| InspectError::Ext4 {
        path: path.to_owned(),
        source: Box::new(source),
    };
    let image = Image::open(device).map_err(fail)?;
    what.iter().try_for_each(|what| {
        let shown = image.show(what, &mut |text: String| {
            text.trim_end().lines().for_each(|text| line(&text));
        });
        shown.map_err(fail)
    })
}
