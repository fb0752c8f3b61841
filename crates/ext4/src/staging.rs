//! [`Staging`]: many changes that become durable together.
//!
//! # How it works
//! A mount with [`Options::in_place`](crate::Options::in_place) runs over a [`StagedDevice`].
//! Writes to blocks that are free in the bitmaps on the device pass; most of them are new data.
//! Every other block stays in memory. [`Staging::apply`] makes the kept blocks one transaction of
//! the journal, and writes them to their home locations. A recovery, of Sapwood or of the kernel,
//! finds all of them or none.
//!
//! | step of `apply` | after a power cut |
//! |---|---|
//! | 1. Flush. | No bitmap on the device has the new blocks. |
//! | 2. The superblock requires a recovery. | The log is empty. |
//! | 3. The log gets one transaction, its commit block last. | Nothing without the commit block, else everything. |
//! | 4. The blocks are written to their home locations. | Recovery repeats it. |
//! | 5. The log becomes empty, and the superblock clean. | All changes are there. |
//!
//! The kept blocks must fit into the journal. A file system without a journal borrows one, which is
//! small.

use std::sync::{Arc, OnceLock};

use sapwood_block::{Device, OVERLAY_PAGE, StagedDevice};
use sapwood_ext4_format::{
    BitmapKind, Compat, Geometry, Incompat, SUPER_OFFSET, SUPER_SIZE, SuperBlock, bitmap,
};
use sapwood_jbd2::{Cache, Log};
use sapwood_vfs::Timestamp;

use crate::group::Groups;
use crate::mmp::Protection;
use crate::mount::{check_features, open_empty_log, protect, read_super, refuse_external_journal};
use crate::resize::{Borrowed, ResizeError, borrow_journal, give_back_journal};
use crate::{Error, Ext4, Options, Result, recovery};

/// Bytes of bitmaps in memory while the groups are read.
const CACHE: usize = 4 << 20;

/// Errors of a staging. The file system on the device is as before, except after
/// [`Undecided`](Self::Undecided), [`Committed`](Self::Committed) and
/// [`NotGivenBack`](Self::NotGivenBack).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StagingError {
    /// An error of the engine.
    #[error(transparent)]
    Engine(#[from] Error),
    /// A file system without a journal has no room for one.
    #[error("there is no journal, and no room to borrow one")]
    NoJournal,
    /// Making or removing the borrowed journal.
    #[error("the borrowed journal: {0}")]
    Borrow(#[source] ResizeError),
    /// The kept blocks do not fit into the journal.
    #[error("{blocks} blocks change together, and the journal has room for {most}")]
    TooMuch {
        /// Blocks.
        blocks: u64,
        /// Most blocks of one transaction.
        most: u64,
    },
    /// The device failed during the commit.
    #[error("the journal cannot be written: {0}; the next open finds all of the changes or none")]
    Undecided(#[source] sapwood_jbd2::Error),
    /// The device failed after the commit.
    #[error(
        "the changes are in the journal, and cannot be written to their places: {0}; the next open \
         for writing completes them"
    )]
    Committed(#[source] Error),
    /// Removing the borrowed journal after all changes became durable.
    #[error("all changes are made, but the borrowed journal cannot be removed: {0}")]
    NotGivenBack(#[source] ResizeError),
}

impl StagingError {
    /// Whether only the journal may have the changes.
    fn is_in_journal(&self) -> bool {
        matches!(self, Self::Undecided(_) | Self::Committed(_))
    }
}

impl From<sapwood_block::Error> for StagingError {
    fn from(error: sapwood_block::Error) -> Self {
        Self::Engine(error.into())
    }
}

impl From<sapwood_jbd2::Error> for StagingError {
    fn from(error: sapwood_jbd2::Error) -> Self {
        Self::Engine(error.into())
    }
}

/// Changes of a file system that become durable together.
#[derive(Debug)]
pub struct Staging {
    below: Arc<dyn Device>,
    staged: Arc<StagedDevice>,
    geometry: Geometry,
    /// The superblock on the device.
    stored: SuperBlock,
    log: Log,
    borrowed: Option<Borrowed>,
    time: Option<Timestamp>,
    /// Released last.
    _protection: Option<Protection>,
}

impl Staging {
    /// Begins to stage changes of the file system on a device, which is not mounted. Recovers it
    /// first if that is needed. With a `time`, commits record it.
    ///
    /// # Errors
    /// The refusals of a mount for writing; [`StagingError::NoJournal`].
    pub fn begin(device: &Arc<dyn Device>, time: Option<Timestamp>) -> Result<Self, StagingError> {
        refuse_external_journal(&**device)?;
        let (device, protection) = protect(device, time)?;
        let device = &device;
        let mut stored = recovered(device, time)?;
        let mut borrowed = None;
        if !stored.features().has_compat(Compat::HAS_JOURNAL) {
            let lent = borrow_journal(device, time).map_err(StagingError::Borrow)?;
            borrowed = Some(lent.ok_or(StagingError::NoJournal)?);
            stored = read_super(&**device)?;
        }
        let geometry = Geometry::new(&stored).map_err(Error::from)?;
        let log = open_empty_log(device, &stored, &geometry, time)?;
        let log = log.ok_or(StagingError::NoJournal)?;
        let limit = log.most_alone() * u64::from(geometry.block_size());
        let unused = Unused::open(device, &geometry)?;
        let passes = Box::new(move |offset| unused.has_page(offset));
        Ok(Self {
            staged: Arc::new(StagedDevice::new(Arc::clone(device), limit, passes)),
            below: Arc::clone(device),
            geometry,
            stored,
            log,
            borrowed,
            time,
            _protection: protection,
        })
    }

    /// The device to mount.
    #[must_use]
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.staged) as Arc<dyn Device>
    }

    /// Fails if the changes are too large for one transaction.
    ///
    /// # Errors
    /// [`sapwood_block::Error::StagedTooMuch`].
    pub fn check(&self) -> Result<(), StagingError> {
        Ok(self.staged.check()?)
    }

    /// Makes the changes of a mount that was closed durable: all of them, or after an error or a
    /// power cut none.
    ///
    /// # Errors
    /// [`StagingError::TooMuch`]; errors of the device. After [`StagingError::Committed`] the next
    /// mount completes the changes; after [`StagingError::Undecided`] it may.
    pub fn apply(mut self) -> Result<(), StagingError> {
        let applied = self.check().and_then(|()| self.write());
        if let Err(error) = &applied
            && error.is_in_journal()
        {
            // A recovery needs the journal, a borrowed one, too.
            return applied;
        }
        let given_back = self.give_back();
        applied?;
        given_back.map_err(|error| match error {
            StagingError::Borrow(error) => StagingError::NotGivenBack(error),
            error => error,
        })
    }

    /// Leaves the file system on the device as it was.
    ///
    /// # Errors
    /// [`StagingError::Borrow`].
    pub fn abandon(mut self) -> Result<(), StagingError> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<(), StagingError> {
        let Some(borrowed) = self.borrowed.take() else {
            return Ok(());
        };
        give_back_journal(&self.below, self.time, borrowed).map_err(StagingError::Borrow)
    }

    fn write(&self) -> Result<(), StagingError> {
        let mut sb = read_super(&*self.staged)?;
        let mut blocks = self.changed()?;
        let place = self.geometry.super_block();
        // A recovery must find the mark of an unfinished one.
        let mut content = self.staged_block(place)?;
        let at = (SUPER_OFFSET % u64::from(self.geometry.block_size())) as usize;
        if let Some(bytes) = content.get_mut(at..at + SUPER_SIZE) {
            bytes.copy_from_slice(recovering(&sb).bytes());
        }
        match blocks.binary_search_by_key(&place, |(block, _)| *block) {
            Ok(found) => blocks[found].1 = content,
            Err(before) => blocks.insert(before, (place, content)),
        }
        let (count, most) = (blocks.len() as u64, self.log.most_alone());
        let too_much = StagingError::TooMuch {
            blocks: count,
            most,
        };
        if count > most {
            return Err(too_much);
        }
        self.below.flush()?;
        self.write_super(&mut recovering(&self.stored))?;
        let committed = self.log.commit_alone(&blocks);
        if !committed.map_err(StagingError::Undecided)? {
            self.write_super(&mut self.stored.clone())?;
            return Err(too_much);
        }
        let done = self.write_back(&blocks, &mut sb);
        done.map_err(StagingError::Committed)
    }

    /// Writes the blocks of the committed transaction to their home locations.
    fn write_back(&self, blocks: &[(u64, Vec<u8>)], sb: &mut SuperBlock) -> Result<()> {
        for (block, bytes) in blocks {
            self.below
                .write_at(block << self.geometry.block_bits(), bytes)?;
        }
        self.below.flush()?;
        self.log.finish_alone()?;
        self.write_super(sb)
    }

    /// The blocks whose content differs from the device, in rising order.
    fn changed(&self) -> Result<Vec<(u64, Vec<u8>)>, StagingError> {
        let (bits, size) = (self.geometry.block_bits(), self.geometry.block_size());
        let mut numbers = Vec::new();
        for page in self.staged.kept() {
            let end = (page + OVERLAY_PAGE).min(self.geometry.blocks_count() << bits);
            numbers.extend(page >> bits..end.div_ceil(size.into()));
        }
        // Blocks may be larger than pages.
        numbers.dedup();
        let mut changed = Vec::new();
        for number in numbers {
            let new = self.staged_block(number)?;
            let mut old = vec![0; new.len()];
            self.below.read_at(number << bits, &mut old)?;
            if old != new {
                changed.push((number, new));
            }
        }
        Ok(changed)
    }

    fn staged_block(&self, block: u64) -> Result<Vec<u8>, StagingError> {
        let mut bytes = vec![0; self.geometry.block_size() as usize];
        self.staged
            .read_at(block << self.geometry.block_bits(), &mut bytes)?;
        Ok(bytes)
    }

    fn write_super(&self, sb: &mut SuperBlock) -> Result<()> {
        sb.set_checksum();
        Ok(self.below.write_fua(SUPER_OFFSET, sb.bytes())?)
    }
}

/// The superblock, marked as needing a recovery.
fn recovering(sb: &SuperBlock) -> SuperBlock {
    let mut sb = sb.clone();
    let mut features = sb.features();
    features.incompat |= Incompat::RECOVER;
    sb.set_features(features);
    sb.set_checksum();
    sb
}

/// The superblock of the file system on a device, after a recovery.
fn recovered(device: &Arc<dyn Device>, time: Option<Timestamp>) -> Result<SuperBlock> {
    let sb = read_super(&**device)?;
    check_features(&sb, false)?;
    let unclean = sb.features().has_incompat(Incompat::RECOVER) || recovery::may_have_orphans(&sb);
    if !unclean {
        return Ok(sb);
    }
    let mut options = Options {
        background: false,
        unprotected: true,
        ..Options::default()
    };
    if let Some(time) = time {
        options.set_reproducible(time);
    }
    let fs = Ext4::open(Arc::clone(device), options)?;
    fs.close()?;
    drop(fs);
    read_super(&**device)
}

/// The blocks that are free on the device.
struct Unused {
    geometry: Geometry,
    groups: Groups,
    /// Bitmaps of groups, each read at first use; `None` if it is wrong.
    bitmaps: Vec<OnceLock<Option<Box<[u8]>>>>,
}

impl Unused {
    fn open(device: &Arc<dyn Device>, geometry: &Geometry) -> Result<Self> {
        let cache = Arc::new(Cache::new(Arc::clone(device), geometry.block_size(), CACHE));
        let groups = Groups::open(&cache, geometry, false)?;
        let bitmaps = (0..groups.count()).map(|_| OnceLock::new()).collect();
        Ok(Self {
            geometry: geometry.clone(),
            groups,
            bitmaps,
        })
    }

    /// Whether all blocks in the page at `offset` are free.
    fn has_page(&self, offset: u64) -> bool {
        let size = u64::from(self.geometry.block_size());
        let end = offset.saturating_add(OVERLAY_PAGE).div_ceil(size);
        (offset / size..end).all(|block| self.has(block))
    }

    /// Whether a block is free. One that is in no group, or in a group with a wrong bitmap, is not.
    fn has(&self, block: u64) -> bool {
        let Ok((number, bit)) = self.geometry.group_of_block(block) else {
            return false;
        };
        let Some(known) = self.bitmaps.get(number as usize) else {
            return false;
        };
        let bytes = known.get_or_init(|| {
            let group = self.groups.group(number).ok()?;
            let buffer = self.groups.bitmap(group, BitmapKind::Block).ok()?;
            let bytes = if group.is_unwritten(BitmapKind::Block) {
                self.groups.computed(group, BitmapKind::Block)
            } else {
                buffer.read().to_vec()
            };
            Some(bytes.into_boxed_slice())
        });
        bytes
            .as_deref()
            .is_some_and(|bytes| !bitmap::test_bit(bytes, bit))
    }
}
