//! Creates an empty file system.
//!
//! # How it works
//! 1. All trees are built in memory, in one transaction with transid 1. The contents of the trees
//!    depend on the addresses of their blocks, and the number of blocks depends on the contents. So
//!    the number of blocks is guessed, items are built, and blocks are counted, until the guess is
//!    right.
//! 2. The devices are discarded. Old superblocks are wiped *and flushed*.
//! 3. Tree blocks are written and flushed.
//! 4. The superblocks are written last.
//!
//! So no superblock ever refers to missing blocks. Each block is validated before it is written.
//!
//! Facts: the "On-disk format" and "mkfs.btrfs" pages of the btrfs documentation.

mod error;
mod layout;
mod options;
mod trees;
mod write;

use std::time::SystemTime;

use sapwood_block::Device;
use sapwood_btrfs_format::{BlockGroupFlags, ChecksumKind, CompatRo, Incompat};

pub use error::MkfsError;
pub(crate) use options::SECTOR_SIZE;
pub use options::{MkfsOptions, Profile};

/// One block group of the new file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MkfsGroup {
    /// Content and profile.
    pub flags: BlockGroupFlags,
    /// Logical bytes.
    pub length: u64,
}

/// Result of [`mkfs`].
#[derive(Clone, Debug)]
pub struct MkfsReport {
    /// Identity of the file system.
    pub uuid: [u8; 16],
    /// Label.
    pub label: String,
    /// Bytes of all devices that are used.
    pub size: u64,
    /// Bytes of a tree block.
    pub node_size: u32,
    /// Bytes of a sector.
    pub sector_size: u32,
    /// Checksum algorithm.
    pub checksum: ChecksumKind,
    /// Incompatible features.
    pub incompat: Incompat,
    /// Read-only-compatible features.
    pub compat_ro: CompatRo,
    /// First block groups.
    pub groups: Vec<MkfsGroup>,
    /// Contents of the first device that was not empty before.
    pub replaced: Option<&'static str>,
}

/// Creates an empty file system on `device`. Its contents are lost. Nothing else may use the device
/// meanwhile. The device is flushed on return.
///
/// # Errors
/// Every [`MkfsError`] except a failing device is found before the first write.
pub fn mkfs(device: &dyn Device, options: &MkfsOptions) -> Result<MkfsReport, MkfsError> {
    mkfs_several(&[device], options)
}

/// Makes a file system like [`mkfs`], on several devices, which get the ids 1, 2, ... in this
/// order. [`MkfsOptions::size`] is the size of each of them.
///
/// # Errors
/// The errors of [`mkfs`]; [`MkfsError::NoDevice`], [`MkfsError::TooFewDevices`].
pub fn mkfs_several(
    devices: &[&dyn Device],
    options: &MkfsOptions,
) -> Result<MkfsReport, MkfsError> {
    let options = &options.on(devices.len());
    options.verify()?;
    let first = devices.first().ok_or(MkfsError::NoDevice)?;
    layout::check_devices(options, devices.len())?;
    let sizes = devices.iter().map(|device| usable(*device, options));
    let sizes = sizes.collect::<Result<Vec<u64>, _>>()?;
    let chunks = layout::plan(first.name(), &sizes, options)?;
    let mut replaced = None;
    for device in devices {
        let found = sapwood_block::signature::find(*device)?;
        if let Some(what) = found.filter(|_| !options.force) {
            let device = device.name().to_owned();
            return Err(MkfsError::Occupied { device, what });
        }
        replaced = replaced.or(found);
    }
    let ids = write::new_ids(options, devices.len());
    let now = options.time.unwrap_or_else(SystemTime::now);
    write::write(devices, options, &ids, &chunks, &sizes, now)?;
    let group = |c: &layout::PlannedChunk| MkfsGroup {
        flags: c.flags,
        length: c.length,
    };
    Ok(MkfsReport {
        uuid: ids.fsid,
        label: options.label.clone(),
        size: sizes.iter().sum(),
        node_size: options.node_size(),
        sector_size: SECTOR_SIZE,
        checksum: options.checksum,
        incompat: options.incompat(),
        compat_ro: options.compat_ro(),
        groups: chunks.iter().map(group).collect(),
        replaced,
    })
}

/// Bytes of a device that are used: whole sectors.
fn usable(device: &dyn Device, options: &MkfsOptions) -> Result<u64, MkfsError> {
    let size = device.size();
    let wanted = options.size.unwrap_or(size);
    if wanted > size {
        let device = device.name().to_owned();
        return Err(MkfsError::PastEnd {
            device,
            size,
            wanted,
        });
    }
    Ok(wanted / u64::from(SECTOR_SIZE) * u64::from(SECTOR_SIZE))
}
