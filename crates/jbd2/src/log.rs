//! [`Log`]: a journal's blocks on the device.

use std::sync::Arc;

use sapwood_block::Device;

use crate::codec::Codec;
use crate::format::{Compat, Incompat, SUPERBLOCK_SIZE};
use crate::home;
use crate::layout::LayoutMap;
use crate::rank::{Mutex, Rank};
use crate::superblock::{Geometry, Superblock};
use crate::{Error, Result};

/// A journal whose superblock is valid. To be recovered if it needs that, then given to
/// [`Journal::with_log`](crate::Journal::with_log).
#[derive(Debug)]
pub struct Log {
    device: Arc<dyn Device>,
    layout: LayoutMap,
    block_size: u32,
    geometry: Geometry,
    codec: Codec,
    /// What the device has. Held while it is written.
    superblock: Mutex<Superblock>,
}

impl Log {
    /// Reads the superblock of the journal whose blocks, of `block_size` bytes, `layout` names.
    /// Writes nothing.
    ///
    /// # Errors
    /// [`Error::Device`], and what is wrong with the superblock.
    pub fn load(device: Arc<dyn Device>, layout: LayoutMap, block_size: u32) -> Result<Self> {
        if !(1024..=65536).contains(&block_size) || !block_size.is_power_of_two() {
            return Err(Error::SuperblockField {
                name: "blocksize",
                value: block_size,
            });
        }
        let (first, _) = layout.find(0).ok_or(Error::NotAJournal)?;
        let mut block = vec![0; block_size as usize];
        device.read_at(first * u64::from(block_size), &mut block)?;
        let superblock = Superblock::parse(&block, block_size, layout.blocks())?;
        Ok(Self {
            device,
            layout,
            block_size,
            geometry: superblock.geometry(),
            codec: Codec::new(block_size, superblock.incompat(), superblock.uuid()),
            superblock: Mutex::new(Rank::LogSuperblock, superblock),
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

    /// What the superblock of the log holds that its version, or a log with one user, has not; recovery ignores it.
    #[must_use]
    pub fn oddity(&self) -> Option<&'static str> {
        self.superblock().oddity()
    }

    /// Takes the error number out, with the next write of the superblock.
    pub fn clear_errno(&self) {
        self.superblock.lock().set_errno(0);
    }

    /// Its features.
    #[must_use]
    pub fn features(&self) -> Incompat {
        self.superblock().incompat()
    }

    /// File systems that share the journal, as it says.
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

    /// Where its blocks lie.
    #[must_use]
    pub fn layout(&self) -> &LayoutMap {
        &self.layout
    }

    /// Sets the form in which the log is to be written: the checksums and the width of block numbers.
    /// [`Incompat::REVOKE`] comes by itself, checksums of version 1 and
    /// [`Incompat::ASYNC_COMMIT`] go. [`Incompat::FAST_COMMIT`] stays if it is there; if it is asked for, the area is cut off
    /// the end of the log, unless that would leave too little. Written with the first commit.
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

    pub(crate) fn codec(&self) -> &Codec {
        &self.codec
    }

    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
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

    /// Changes the superblock and makes it durable, in this order: if the write fails, what is in
    /// memory is not on the device, and the journal is done for anyway.
    pub(crate) fn update_superblock(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let mut superblock = self.superblock.lock();
        change(&mut superblock);
        let (at, _) = self.layout.find(0).ok_or(Error::NotAJournal)?;
        // The whole block, as a device may have sectors larger than the superblock.
        let mut block = vec![0; self.block_size as usize];
        if let Some(start) = block.get_mut(..SUPERBLOCK_SIZE) {
            start.copy_from_slice(&superblock.to_bytes());
        }
        self.device
            .write_fua(at * u64::from(self.block_size), &block)?;
        Ok(())
    }

    /// Reads blocks of the journal, from `block` on, as many as fit into `buf` and are neighbours on
    /// the device; how many.
    pub(crate) fn read(&self, block: u64, buf: &mut [u8]) -> Result<usize> {
        let size = self.block_size as usize;
        let (physical, run) = self.layout.find(block).ok_or(Error::NotAJournal)?;
        let blocks = (buf.len() / size).min(usize::try_from(run).unwrap_or(usize::MAX));
        let bytes = &mut buf[..blocks * size];
        self.device
            .read_at(physical * u64::from(self.block_size), bytes)?;
        Ok(blocks)
    }

    /// Writes blocks one after another into the ring from `position` on.
    pub(crate) fn write_ring(&self, position: u64, pieces: &[&[u8]]) -> Result<()> {
        let mut blocks = Vec::with_capacity(pieces.len());
        for (index, piece) in (0..).zip(pieces) {
            blocks.push((self.physical(self.block_at(position + index))?, *piece));
        }
        // In runs: a wrap or the end of a run of the layout only ends a write.
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

    /// Blocks of the fast-commit area, which is no part of the log; 0 without the feature.
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

    /// Reads a block of the fast-commit area; `buf` is of a block's size.
    ///
    /// # Errors
    /// [`Error::BlockRange`], [`Error::Device`].
    pub fn read_fast_commit(&self, index: u64, buf: &mut [u8]) -> Result<()> {
        let block = self.fast_commit_block(index)?;
        self.read(block, buf).map(drop)
    }

    /// Writes blocks of the fast-commit area, from `index` on. Flushes nothing.
    ///
    /// # Errors
    /// As [`read_fast_commit`](Self::read_fast_commit).
    pub fn write_fast_commit(&self, index: u64, pieces: &[&[u8]]) -> Result<()> {
        let mut blocks = Vec::with_capacity(pieces.len());
        for (at, piece) in (index..).zip(pieces) {
            blocks.push((self.physical(self.fast_commit_block(at)?)?, *piece));
        }
        home::write_blocks(&*self.device, self.block_size, &blocks)
    }

    /// Makes the begin of the fast-commit area say nothing, and that durable.
    pub(crate) fn erase_fast_commits(&self) -> Result<()> {
        let at = self.physical(self.fast_commit_block(0)?)?;
        let zeros = vec![0; self.block_size as usize];
        self.device
            .write_fua(at * u64::from(self.block_size), &zeros)?;
        Ok(())
    }
}
