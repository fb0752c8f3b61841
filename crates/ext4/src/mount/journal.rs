//! The journal of a file system: its place, its form, its bounds.

use std::sync::Arc;

use sapwood_block::Device;
use sapwood_ext4_format::{Compat, Geometry, Incompat, Inode as RawInode, SuperBlock};
use sapwood_jbd2::{LayoutMap, LayoutRun};
use sapwood_vfs::Timestamp;

use crate::journal_device::{self, JournalDevice};
use crate::{Error, FastCommits, Options, Result, map};

/// The log: in the journal's inode, or on the device that is given for it.
pub(super) fn open_log(
    device: &Arc<dyn Device>,
    sb: &SuperBlock,
    geometry: &Geometry,
    journal: Option<&JournalDevice>,
) -> Result<sapwood_jbd2::Log> {
    let log = if journal_device::is_external(sb) {
        let journal = journal.ok_or(Error::ExternalJournal)?;
        journal.open_log(device, sb, geometry)?
    } else {
        let runs = journal_layout(&**device, sb, geometry)?;
        let layout = LayoutMap::new(runs, geometry.blocks_count())?;
        sapwood_jbd2::Log::load(Arc::clone(device), layout, geometry.block_size())?
    };
    if log.errno() != 0 {
        log::warn!("{}: an earlier mount met an error", device.name());
    }
    Ok(log)
}

/// Refuses a file system whose journal is on another device.
///
/// # Errors
/// [`Error::NoInternalJournal`]; there is no valid superblock.
pub fn refuse_external_journal(device: &dyn Device) -> Result<()> {
    if journal_device::is_external(&super::read_super(device)?) {
        return Err(Error::NoInternalJournal);
    }
    Ok(())
}

/// The empty log of a file system that was closed, in the form in which a mount writes it. `None`:
/// it has no journal.
///
/// # Errors
/// [`Error::ExternalJournal`]; the journal is damaged, or must be recovered.
pub(crate) fn open_empty_log(
    device: &Arc<dyn Device>,
    sb: &SuperBlock,
    geometry: &Geometry,
    time: Option<Timestamp>,
) -> Result<Option<sapwood_jbd2::Log>> {
    if !sb.features().has_compat(Compat::HAS_JOURNAL) {
        return Ok(None);
    }
    let mut log = open_log(device, sb, geometry, None)?;
    log.set_form(log_form(sb, &Options::default()))?;
    log.set_time(time.map(Timestamp::since_epoch));
    Ok(Some(log))
}

/// Places of the journal's blocks.
///
/// # Errors
/// [`Error::ExternalJournal`]; the journal's inode is damaged.
pub(crate) fn journal_layout(
    device: &dyn Device,
    sb: &SuperBlock,
    geometry: &Geometry,
) -> Result<Vec<LayoutRun>> {
    let ino = sb.journal_inum.get();
    if ino == 0 {
        return Err(Error::ExternalJournal);
    }
    let bad = |reason: String| Error::BadInode { ino, reason };
    let raw = read_inode(device, geometry, ino)?;
    let block_size = u64::from(geometry.block_size());
    if raw.links() == 0 || !raw.is_regular() {
        return Err(bad("not a journal".into()));
    }
    let blocks = raw.size(geometry) / block_size;
    let runs = map::standalone::runs(device, geometry, ino, &raw, blocks)?;
    let mut layout = Vec::new();
    let mut next = 0;
    for run in runs {
        let map::Mapped::Written(physical) = run.what else {
            return Err(bad("the journal has holes".into()));
        };
        if run.logical != next {
            return Err(bad("the journal has holes".into()));
        }
        next += run.len;
        layout.push(LayoutRun {
            logical: run.logical,
            physical,
            len: run.len,
        });
    }
    if next < blocks {
        return Err(bad("the journal has holes".into()));
    }
    Ok(layout)
}

/// Reads an inode straight from the device.
fn read_inode(device: &dyn Device, geometry: &Geometry, ino: u32) -> Result<RawInode> {
    let raw = read_inode_unverified(device, geometry, ino)?;
    raw.verify_checksum(ino, geometry)?;
    Ok(raw)
}

/// Reads an inode directly from the device, even if its checksum is wrong.
pub(crate) fn read_inode_unverified(
    device: &dyn Device,
    geometry: &Geometry,
    ino: u32,
) -> Result<RawInode> {
    let (group, index) = geometry.inode_location(ino)?;
    let (block, offset) = geometry.descriptor_block(group)?;
    let mut bytes = vec![0; usize::from(geometry.desc_size())];
    device.read_at(
        geometry.block_offset(block)? + u64::from(offset),
        &mut bytes,
    )?;
    let desc = sapwood_ext4_format::GroupDesc::read(&bytes, geometry)?;
    let (block, offset) = geometry.inode_in_table(desc.inode_table(), index);
    let mut bytes = vec![0; usize::from(geometry.inode_size())];
    device.read_at(
        geometry.block_offset(block)? + u64::from(offset),
        &mut bytes,
    )?;
    Ok(RawInode::read(&bytes, geometry)?)
}

/// Least blocks of a transaction, regardless of the cache: more than any operation needs.
const LEAST_TRANSACTION: u32 = 1024;

/// Bounds of the journal, so that its blocks fit into `cache` bytes: committed blocks that are not
/// written back, and the running and committing transactions.
pub(super) fn journal_memory(cache: usize, block_size: u32) -> sapwood_jbd2::Options {
    let usual = sapwood_jbd2::Options::default();
    let quarter = (cache / 4) as u64;
    let blocks = u32::try_from(quarter / u64::from(block_size)).unwrap_or(u32::MAX);
    sapwood_jbd2::Options {
        checkpoint_bytes: usual.checkpoint_bytes.min(quarter),
        max_transaction: usual.max_transaction.min(blocks.max(LEAST_TRANSACTION)),
        ..usual
    }
}

/// The form of a new log of this file system, as the kernel writes it.
pub(crate) fn log_form(sb: &SuperBlock, options: &Options) -> sapwood_jbd2::Incompat {
    let features = sb.features();
    let mut form = sapwood_jbd2::Incompat::empty();
    form.set(sapwood_jbd2::Incompat::CSUM_V3, features.metadata_csum());
    form.set(
        sapwood_jbd2::Incompat::WIDE,
        features.has_incompat(Incompat::BIT64),
    );
    form.set(
        sapwood_jbd2::Incompat::FAST_COMMIT,
        options.fast_commit != FastCommits::Off && features.has_compat(Compat::FAST_COMMIT),
    );
    form
}
