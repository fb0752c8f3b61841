//! Creates an empty file system.
//!
//! # How it works
//! 1. Features are resolved by name (`features`), then sizes (`sizes`): blocks, groups, inodes,
//!    blocks reserved for growth. They are stored in a superblock.
//!    [`Geometry`] is derived from it, as in every reader of the image.
//! 2. `layout` places bitmaps and inode tables, and keeps the set of blocks in use.
//! 3. `files` creates the inodes that every image has (root, lost+found, journal, the inode with
//!    the blocks reserved for growth, the orphan file) and allocates their blocks.
//! 4. [`write`] builds bitmaps and descriptors from the blocks in use, and writes everything to the
//!    device. It first wipes old contents *and flushes*; the superblock is written last, after a
//!    flush. So no superblock ever refers to missing metadata.
//!
//! Nothing is written before everything is known to fit. Layout and numbers equal Debian's `mke2fs
//! -t ext4`: they are derived from its images, and the test `tests/trials/mkfs_kernel.rs` compares
//! them.
//!
//! Facts: `mke2fs(8)`, `mke2fs.conf(5)`; kernel documentation, `filesystems/ext4`.

mod error;
mod features;
mod files;
mod journal_device;
mod layout;
mod map;
mod options;
mod quota;
mod sizes;
mod write;

use std::time::SystemTime;

use sapwood_block::Device;
use sapwood_ext4_format::{Geometry, SuperBlock};

pub use error::MkfsError;
pub use options::{DirHash, MkfsOptions, OnError};
pub use sizes::{usual_block_size, usual_journal};

/// Result of [`mkfs`].
#[derive(Clone, Debug)]
pub struct MkfsReport {
    /// Identity of the file system.
    pub uuid: [u8; 16],
    /// Label.
    pub label: String,
    /// Size of the file system in bytes.
    pub size: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Bytes of an inode.
    pub inode_size: u16,
    /// Blocks.
    pub blocks: u64,
    /// Inodes.
    pub inodes: u32,
    /// Groups.
    pub groups: u32,
    /// Blocks of the journal; 0 if there is none.
    pub journal_blocks: u64,
    /// Names of the features.
    pub features: Vec<String>,
    /// Contents of the device before.
    pub replaced: Option<&'static str>,
}

/// The content that the device already has. Without force the device must be empty.
fn replaced(device: &dyn Device, options: &MkfsOptions) -> Result<Option<&'static str>, MkfsError> {
    let replaced = sapwood_block::signature::find(device)?;
    if let Some(what) = replaced.filter(|_| !options.force) {
        let device = device.name().to_owned();
        return Err(MkfsError::Occupied { device, what });
    }
    Ok(replaced)
}

/// The log on the device that the options name, which the file system will use.
fn external_journal(
    sb: &SuperBlock,
    geometry: &Geometry,
    options: &MkfsOptions,
) -> Result<Option<sapwood_jbd2::Log>, MkfsError> {
    let Some(journal) = &options.journal else {
        return Ok(None);
    };
    let log = journal.open_unused(geometry.block_size());
    let log = log.map_err(MkfsError::journal_device)?;
    let used = log.users() > 0 && log.user_ids() != [sb.uuid];
    if used && !options.force {
        let device = journal.device().name().to_owned();
        return Err(MkfsError::JournalInUse { device });
    }
    Ok(Some(log))
}

/// Creates an empty file system on `device`. Its contents are lost. Nothing else may use the device
/// meanwhile. The device is flushed on return.
///
/// # Errors
/// Every [`MkfsError`] except a failing device is found before the first write.
pub fn mkfs(device: &dyn Device, options: &MkfsOptions) -> Result<MkfsReport, MkfsError> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs());
    let now = options.time.unwrap_or(now);
    if options.asks_for("journal_dev") {
        return journal_device::make(device, options, now);
    }
    let sizes::MkfsPlan {
        super_block,
        geometry,
        journal,
    } = sizes::plan(device, options, now)?;
    let mut layout = layout::Layout::new(&geometry)?;
    let files = files::make(&mut layout, options, now, journal.as_ref())?;
    let external = external_journal(&super_block, &geometry, options)?;
    let replaced = replaced(device, options)?;
    let journal_blocks = files.journal_blocks;
    if let Some(log) = external {
        // First, so that no file system names a journal that does not list it.
        log.set_user(super_block.uuid)?;
    }
    write::write(device, options, super_block.clone(), &layout, &files)?;
    Ok(MkfsReport {
        uuid: super_block.uuid,
        label: options.label.clone(),
        size: geometry.blocks_count() * u64::from(geometry.block_size()),
        block_size: geometry.block_size(),
        inode_size: geometry.inode_size(),
        blocks: geometry.blocks_count(),
        inodes: geometry.inodes_count(),
        groups: geometry.group_count(),
        journal_blocks,
        features: geometry.features().names(),
        replaced,
    })
}
