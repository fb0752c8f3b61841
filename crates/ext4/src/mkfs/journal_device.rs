//! A journal on a device of its own, for a file system that is made afterwards.

use sapwood_block::{Device, signature};
use sapwood_ext4_format::{
    EXTRA_ISIZE_FULL, Incompat, REV_DYNAMIC, SUPER_MAGIC, SUPER_OFFSET, SuperBlock,
};
use sapwood_jbd2::NewJournal;

use super::error::MkfsError;
use super::options::MkfsOptions;
use super::{MkfsReport, sizes};
use crate::journal_device::superblock_block;

/// Bytes of a block, if none are chosen.
const BLOCK_SIZE: u32 = 4096;
/// Fewest blocks: the kernel requires 1024 blocks of log.
const LEAST_BLOCKS: u64 = 1026;

/// Makes the device a journal without a user.
///
/// # Errors
/// [`MkfsError`]; all but a failing device are found before the first write.
pub(super) fn make(
    device: &dyn Device,
    options: &MkfsOptions,
    now: u64,
) -> Result<MkfsReport, MkfsError> {
    sizes::check_label(options)?;
    let block_size = options.block_size.unwrap_or(BLOCK_SIZE);
    sizes::check_block_size(block_size)?;
    let bytes = sizes::bytes_of(device, options)?;
    let blocks = bytes / u64::from(block_size);
    let count = u32::try_from(blocks).map_err(|_| MkfsError::TooLarge(blocks))?;
    if blocks < LEAST_BLOCKS {
        return Err(MkfsError::TooSmall { blocks, block_size });
    }
    let sb = super_block(options, block_size, count, now);
    let uuid = sb.uuid;
    let journal = NewJournal {
        block_size,
        blocks: count,
        fast_commit_blocks: 0,
        uuid,
        external_at: u32::try_from(superblock_block(block_size)).ok(),
    };
    let journal = journal.superblock()?;
    let replaced = super::replaced(device, options)?;
    if options.discard {
        // If the device cannot discard, nothing needs to be discarded.
        let _ = device.discard(0, bytes);
    }
    signature::wipe(device)?;
    device.flush()?;
    let at = superblock_block(block_size) * u64::from(block_size);
    device.write_at(at, &journal)?;
    // A recovery ends at a block that is no part of a log.
    device.write_at(at + u64::from(block_size), &vec![0; block_size as usize])?;
    device.flush()?;
    device.write_fua(SUPER_OFFSET, sb.bytes())?;
    device.flush()?;
    Ok(MkfsReport {
        uuid,
        label: options.label.clone(),
        size: blocks * u64::from(block_size),
        block_size,
        inode_size: 0,
        blocks,
        inodes: 0,
        groups: 0,
        journal_blocks: blocks,
        features: sb.features().names(),
        replaced,
    })
}

fn super_block(options: &MkfsOptions, block_size: u32, blocks: u32, now: u64) -> SuperBlock {
    let log_block = block_size.trailing_zeros() - 10;
    let mut sb = SuperBlock {
        magic: SUPER_MAGIC.into(),
        rev_level: REV_DYNAMIC.into(),
        blocks_count_lo: blocks.into(),
        first_data_block: u32::from(block_size == 1024).into(),
        log_block_size: log_block.into(),
        log_cluster_size: log_block.into(),
        blocks_per_group: (block_size * 8).into(),
        clusters_per_group: (block_size * 8).into(),
        errors: sapwood_ext4_format::errors_behaviour::CONTINUE.into(),
        first_ino: sapwood_ext4_format::GOOD_OLD_FIRST_INO.into(),
        inode_size: 256.into(),
        feature_incompat: Incompat::JOURNAL_DEV.bits().into(),
        min_extra_isize: EXTRA_ISIZE_FULL.into(),
        want_extra_isize: EXTRA_ISIZE_FULL.into(),
        ..SuperBlock::default()
    };
    sizes::common_identity(&mut sb, options, now);
    sb
}
