//! [`Log`]: a journal's blocks on the device.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sapwood_block::Device;

use crate::codec::Codec;
use crate::format::{Compat, Incompat, LayoutRun, SUPERBLOCK_SIZE};
use crate::home;
use crate::layout::LayoutMap;
use crate::rank::{Mutex, Rank};
use crate::superblock::{Geometry, Superblock};
use crate::{Error, Result};

/// A journal whose superblock is valid. If [`needs_recovery`](Self::needs_recovery), it must be
/// recovered before [`Journal::with_log`](crate::Journal::with_log) takes it.
#[derive(Debug)]
pub struct Log {
    device: Arc<dyn Device>,
    /// The device of the file system, if the journal has a device of its own.
    home: Option<Arc<dyn Device>>,
    layout: LayoutMap,
    /// Block of the journal that has the superblock.
    superblock_block: u64,
    block_size: u32,
    geometry: Geometry,
    codec: Codec,
    /// The superblock as it is on the device. Locked while it is written.
    superblock: Mutex<Superblock>,
    /// The time that all commits record, if it is fixed.
    time: Option<Duration>,
}

impl Log {
    /// Reads the superblock of the journal. `layout` has its blocks, of `block_size` bytes each.
    /// Writes nothing.
    ///
    /// # Errors
    /// [`Error::NotAJournal`]; [`Error::SuperblockField`], [`Error::SuperblockChecksum`] and
    /// [`Error::UnknownFeatures`] for a superblock that cannot be used; [`Error::Device`].
    pub fn load(device: Arc<dyn Device>, layout: LayoutMap, block_size: u32) -> Result<Self> {
        Self::load_at(device, None, layout, block_size, 0)
    }

    /// Reads the superblock of a journal that has a device of its own, of `blocks` blocks. Block
    /// numbers of the journal are the ones of the device; `superblock_block` has the superblock.
    /// `home` is the device of the file system. Writes nothing.
    ///
    /// # Errors
    /// The errors of [`load`](Self::load); [`Error::Layout`]: the device has fewer blocks.
    pub fn load_external(
        device: Arc<dyn Device>,
        home: Arc<dyn Device>,
        block_size: u32,
        blocks: u64,
        superblock_block: u64,
    ) -> Result<Self> {
        let whole = LayoutRun {
            logical: 0,
            physical: 0,
            len: blocks,
        };
        let on_device = device.size() / u64::from(block_size.max(1));
        let layout = LayoutMap::new(vec![whole], on_device)?;
        Self::load_at(device, Some(home), layout, block_size, superblock_block)
    }

    fn load_at(
        device: Arc<dyn Device>,
        home: Option<Arc<dyn Device>>,
        layout: LayoutMap,
        block_size: u32,
        superblock_block: u64,
    ) -> Result<Self> {
        if !(1024..=65536).contains(&block_size) || !block_size.is_power_of_two() {
            return Err(Error::SuperblockField {
                name: "blocksize",
                value: block_size,
            });
        }
        let (first, _) = layout.find(superblock_block).ok_or(Error::NotAJournal)?;
        let mut block = vec![0; block_size as usize];
        device.read_at(first * u64::from(block_size), &mut block)?;
        let superblock = Superblock::parse(&block, block_size, layout.blocks())?;
        if superblock.geometry().first <= superblock_block {
            return Err(Error::SuperblockField {
                name: "first",
                value: u32::try_from(superblock.geometry().first).unwrap_or(u32::MAX),
            });
        }
        Ok(Self {
            device,
            home,
            superblock_block,
            layout,
            block_size,
            geometry: superblock.geometry(),
            codec: Codec::new(block_size, superblock.incompat(), superblock.uuid()),
            superblock: Mutex::new(Rank::LogSuperblock, superblock),
            time: None,
        })
    }

    /// Whether there is something to recover: the journal was not closed.
    #[must_use]
    pub fn needs_recovery(&self) -> bool {
        self.superblock().start() != 0
    }

    /// The error number that the last user of the journal left in it; 0 for none.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.superblock().errno()
    }

    /// A deviation of the superblock that recovery ignores: fields that its version, or a log with
    /// one user, does not have.
    #[must_use]
    pub fn oddity(&self) -> Option<&'static str> {
        self.superblock().oddity()
    }

    /// Features of the journal.
    #[must_use]
    pub fn features(&self) -> Incompat {
        self.superblock().incompat()
    }

    /// Number of file systems that share the journal, from its superblock.
    #[must_use]
    pub fn users(&self) -> u32 {
        self.superblock().users()
    }

    /// Blocks of the log, without the superblock and the fast-commit area.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.geometry.size
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Places of its blocks on the device.
    #[must_use]
    pub fn layout(&self) -> &LayoutMap {
        &self.layout
    }

    /// Sets the form in which the log will be written: the checksums and the width of block
    /// numbers. It is written with the first commit.
    ///
    /// - [`Incompat::REVOKE`] is always set.
    /// - Checksums of version 1 and [`Incompat::ASYNC_COMMIT`] are removed.
    /// - [`Incompat::FAST_COMMIT`] stays if it is set. If only `form` has it, the end of the log
    ///   becomes the area, unless that would leave too small a log.
    ///
    /// # Errors
    /// [`Error::NeedsRecovery`] if the log is not empty, [`Error::OldSuperblock`].
    pub fn set_form(&mut self, form: Incompat) -> Result<()> {
        if self.needs_recovery() {
            return Err(Error::NeedsRecovery);
        }
        let mut superblock = self.superblock();
        if !superblock.has_features() {
            return Err(Error::OldSuperblock);
        }
        let mut features = form & (Incompat::CSUM_V2 | Incompat::CSUM_V3 | Incompat::WIDE);
        if features.contains(Incompat::CSUM_V3) {
            features.remove(Incompat::CSUM_V2);
        }
        features |= superblock.incompat() & Incompat::FAST_COMMIT;
        superblock.set_features(Compat::empty(), features | Incompat::REVOKE);
        if form.contains(Incompat::FAST_COMMIT) && !features.contains(Incompat::FAST_COMMIT) {
            features |= superblock.add_fast_commit_area();
            self.geometry = superblock.geometry();
        }
        self.codec = Codec::new(self.block_size, features, superblock.uuid());
        *self.superblock.lock() = superblock;
        Ok(())
    }

    /// Fixes the time since 1970 that commits record.
    pub fn set_time(&mut self, time: Option<Duration>) {
        self.time = time;
    }

    /// The time since 1970 that a commit records.
    pub(crate) fn time(&self) -> Duration {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH);
        self.time.unwrap_or_else(|| now().unwrap_or_default())
    }

    pub(crate) fn codec(&self) -> &Codec {
        &self.codec
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The device of the file system.
    pub(crate) fn home(&self) -> &Arc<dyn Device> {
        self.home.as_ref().unwrap_or(&self.device)
    }

    /// Whether the journal has a device of its own.
    #[must_use]
    pub fn is_external(&self) -> bool {
        self.home.is_some()
    }

    /// File systems that share the journal: the UUIDs in its superblock, at most as many as it
    /// counts.
    #[must_use]
    pub fn user_ids(&self) -> Vec<[u8; 16]> {
        self.superblock().user_ids()
    }

    /// Empties the log, and makes this file system its only user, durably. Sequence numbers go on
    /// after all that the log may contain: a recovery never takes an older transaction for one of
    /// the new user.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn set_user(&self, uuid: [u8; 16]) -> Result<()> {
        // Each transaction takes a block at least.
        let most = u32::try_from(self.layout.blocks()).unwrap_or(u32::MAX >> 2);
        self.update_superblock(|superblock| {
            let next = superblock.sequence().wrapping_add(most).wrapping_add(1);
            superblock.set_tail(0, next);
            superblock.set_user(uuid);
        })
    }

    /// Makes everything that was written to the file system, and to the journal, durable.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn flush(&self) -> Result<()> {
        if let Some(home) = &self.home {
            home.flush()?;
        }
        Ok(self.device.flush()?)
    }

    /// A copy of the superblock.
    pub(crate) fn superblock(&self) -> Superblock {
        *self.superblock.lock()
    }

    /// Block of the journal at a position of the ring.
    pub(crate) fn block_at(&self, position: u64) -> u64 {
        self.geometry.first + position % self.geometry.size.max(1)
    }

    /// Position in the ring of a block of the journal.
    pub(crate) fn position_of(&self, block: u64) -> u64 {
        block.saturating_sub(self.geometry.first)
    }

    /// Changes the superblock and makes it durable, in this order. If the write fails, memory
    /// differs from the device, and the journal is aborted anyway.
    pub(crate) fn update_superblock(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let mut superblock = self.superblock.lock();
        change(&mut superblock);
        let (at, _) = self
            .layout
            .find(self.superblock_block)
            .ok_or(Error::NotAJournal)?;
        // The whole block, because the sectors of the device may be larger than the superblock.
        let mut block = vec![0; self.block_size as usize];
        if let Some(start) = block.get_mut(..SUPERBLOCK_SIZE) {
            start.copy_from_slice(&superblock.to_bytes());
        }
        self.device
            .write_fua(at * u64::from(self.block_size), &block)?;
        Ok(())
    }

    /// Reads contiguous blocks of the journal from `block` on, as many as fit into `buf`. Returns
    /// their number.
    pub(crate) fn read(&self, block: u64, buf: &mut [u8]) -> Result<usize> {
        let size = self.block_size as usize;
        let (physical, run) = self.layout.find(block).ok_or(Error::NotAJournal)?;
        let blocks = (buf.len() / size).min(usize::try_from(run).unwrap_or(usize::MAX));
        let bytes = &mut buf[..blocks * size];
        self.device
            .read_at(physical * u64::from(self.block_size), bytes)?;
        Ok(blocks)
    }

    /// Writes consecutive blocks of the ring from `position` on.
    pub(crate) fn write_ring(&self, position: u64, pieces: &[&[u8]]) -> Result<()> {
        let mut blocks = Vec::with_capacity(pieces.len());
        for (index, piece) in (0..).zip(pieces) {
            blocks.push((self.physical(self.block_at(position + index))?, *piece));
        }
        // The end of the ring, or of a run of the layout, only splits the write.
        home::write_blocks(&*self.device, self.block_size, &blocks)
    }

    /// Makes one block at `position` of the ring durable.
    pub(crate) fn write_ring_fua(&self, position: u64, block: &[u8]) -> Result<()> {
        let at = self.physical(self.block_at(position))?;
        self.device
            .write_fua(at * u64::from(self.block_size), block)?;
        Ok(())
    }

    /// Block of the device that has a block of the journal.
    pub(crate) fn physical(&self, block: u64) -> Result<u64> {
        let found = self.layout.find(block);
        found
            .map(|(physical, _)| physical)
            .ok_or(Error::NotAJournal)
    }

    /// Blocks of the fast-commit area, which is not part of the log; 0 without the feature.
    #[must_use]
    pub fn fast_commit_blocks(&self) -> u64 {
        self.geometry.fast_commit
    }

    fn fast_commit_block(&self, index: u64) -> Result<u64> {
        let blocks = self.geometry.fast_commit;
        if index >= blocks {
            let block = index;
            return Err(Error::BlockRange { block, blocks });
        }
        Ok(self.geometry.fast_first + index)
    }

    /// Reads a block of the fast-commit area. `buf` has the size of a block.
    ///
    /// # Errors
    /// [`Error::BlockRange`], [`Error::Device`].
    pub fn read_fast_commit(&self, index: u64, buf: &mut [u8]) -> Result<()> {
        let block = self.fast_commit_block(index)?;
        self.read(block, buf).map(drop)
    }

    /// Writes blocks of the fast-commit area, from `index` on, without a flush.
    ///
    /// # Errors
    /// [`Error::BlockRange`], [`Error::Device`].
    pub fn write_fast_commit(&self, index: u64, pieces: &[&[u8]]) -> Result<()> {
        let mut blocks = Vec::with_capacity(pieces.len());
        for (at, piece) in (index..).zip(pieces) {
            blocks.push((self.physical(self.fast_commit_block(at)?)?, *piece));
        }
        home::write_blocks(&*self.device, self.block_size, &blocks)
    }

    /// Erases the first block of the fast-commit area, durably.
    ///
    /// # Errors
    /// [`Error::BlockRange`], [`Error::Device`].
    pub fn erase_fast_commits(&self) -> Result<()> {
        let at = self.physical(self.fast_commit_block(0)?)?;
        let zeros = vec![0; self.block_size as usize];
        self.device
            .write_fua(at * u64::from(self.block_size), &zeros)?;
        Ok(())
    }
}
