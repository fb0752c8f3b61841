//! Tree blocks on the devices: reading and validating them, copy after copy, and the repair of bad
//! copies.
//!
//! Nothing is repaired before the mount has succeeded, so a refused mount has written nothing.
//! Blocks with a bad copy that are found before then are read again by [`Volume::begin_repairs`].

use std::sync::Arc;

use sapwood_btrfs_format::{BlockError, Expect, Header, Key, validate_block, validate_content};

use super::Volume;
use super::errors::ErrorKind;
use crate::{Error, Result};

/// Most tree blocks with a bad copy that are remembered until repairs begin.
const MOST_BAD: usize = 4096;

/// Expectations about a tree block before it is read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockExpect {
    /// Level.
    pub(crate) level: Option<u8>,
    /// Generation, exactly.
    pub(crate) generation: Option<u64>,
    /// Tree that is read; see [`Expect::owner`].
    pub(crate) owner: Option<u64>,
    /// First key.
    pub(crate) first_key: Option<Key>,
}

impl Volume {
    /// Begins to repair bad copies. Blocks with bad copies that were found before are read again.
    pub(crate) fn begin_repairs(&self) {
        let bad = self.bad.lock().take().unwrap_or_default();
        for (logical, expect) in bad {
            // A thread that needs the block gets the error.
            let _ = self.read_tree_block(logical, &expect);
        }
    }

    fn expect(&self, logical: u64, expect: &BlockExpect) -> Expect {
        Expect {
            logical,
            nodesize: self.geometry.nodesize,
            sectorsize: self.geometry.sectorsize,
            fsid: self.geometry.fsid,
            checksum: self.geometry.checksum,
            level: expect.level,
            owner: expect.owner,
            min_generation: expect.generation,
            max_generation: expect.generation,
            first_key: expect.first_key,
        }
    }

    /// Reads and validates a tree block. Tries one copy after another, and repairs the bad ones
    /// once a good one is found.
    ///
    /// # Errors
    /// [`Error::Unmapped`]; if no copy is good, [`Error::BadBlock`] or [`Error::Device`] of the
    /// first.
    pub(crate) fn read_tree_block(&self, logical: u64, want: &BlockExpect) -> Result<Arc<[u8]>> {
        let nodesize = self.geometry.nodesize as usize;
        // Zeroed in place: one allocation, no copy.
        let mut block: Arc<[u8]> = std::iter::repeat_n(0, nodesize).collect();
        let mut first: Option<Error> = None;
        let mut bad = Vec::new();
        for mirror in self.readable(logical, nodesize as u64)?.iter() {
            let bytes = Arc::make_mut(&mut block);
            match self.read_tree_copy(logical, bytes, mirror, want) {
                Ok(()) => {
                    self.repair_others(logical, &block, (&bad, mirror), want);
                    self.note_chunk_tree_uuid(&block);
                    return Ok(block);
                }
                Err(err) => {
                    log::warn!("copy {} of tree block {logical}: {err}", mirror + 1);
                    first.get_or_insert(err);
                    bad.push(mirror);
                }
            }
        }
        let len = nodesize as u64;
        Err(first.unwrap_or(Error::Unmapped { logical, len }))
    }

    /// Reads and validates one copy of a tree block.
    ///
    /// # Errors
    /// [`Error::Unmapped`], [`Error::BadBlock`], [`Error::Device`].
    pub(crate) fn read_tree_copy(
        &self,
        logical: u64,
        bytes: &mut [u8],
        mirror: usize,
        want: &BlockExpect,
    ) -> Result<()> {
        self.read(logical, bytes, mirror)?;
        let expect = self.expect(logical, want);
        validate_block(bytes, &expect).map_err(|e| self.bad_block(logical, mirror, e))
    }

    /// Whether one copy of a tree block can be read and is valid. Counts no errors.
    pub(crate) fn is_good_copy(
        &self,
        logical: u64,
        bytes: &mut [u8],
        mirror: usize,
        want: &BlockExpect,
    ) -> bool {
        let read = self.read_uncounted(logical, bytes, mirror);
        read.is_ok() && validate_block(bytes, &self.expect(logical, want)).is_ok()
    }

    /// uuid of the chunk tree, as all tree blocks carry it; zeros before the first was read.
    pub(crate) fn chunk_tree_uuid(&self) -> [u8; 16] {
        self.chunk_tree_uuid.get().copied().unwrap_or_default()
    }

    fn note_chunk_tree_uuid(&self, block: &[u8]) {
        if let Ok((header, _)) = Header::split(block) {
            self.chunk_tree_uuid.get_or_init(|| header.chunk_tree_uuid);
        }
    }

    /// Overwrites the copies `bad` with the valid bytes `block` of copy `good`, or records the block
    /// until repairs begin.
    fn repair_others(
        &self,
        logical: u64,
        block: &[u8],
        (bad, good): (&[usize], usize),
        want: &BlockExpect,
    ) {
        if bad.is_empty() || self.read_only {
            return;
        }
        if let Some(later) = &mut *self.bad.lock() {
            if later.len() < MOST_BAD {
                later.push((logical, *want));
            }
            return;
        }
        for &mirror in bad {
            match self.repair_from(logical, block, good, mirror) {
                Ok(true) => log::warn!("tree block {logical}: copy {} repaired", mirror + 1),
                Ok(false) => {}
                Err(err) => log::warn!("tree block {logical}: repair failed: {err}"),
            }
        }
    }

    fn bad_block(&self, logical: u64, mirror: usize, reason: BlockError) -> Error {
        let kind = if matches!(reason, BlockError::Generation { .. }) {
            ErrorKind::Generation
        } else {
            ErrorKind::Corruption
        };
        self.count_corruption(logical, mirror, kind);
        let (device, physical) = self.place(logical, mirror);
        Error::BadBlock {
            device,
            physical,
            reason: Box::new(reason),
        }
    }

    /// Validates a tree block that is about to be written; its checksum may be missing.
    ///
    /// # Errors
    /// [`Error::BadBlockToWrite`].
    pub(crate) fn check_before_write(
        &self,
        logical: u64,
        bytes: &[u8],
        want: &BlockExpect,
    ) -> Result<()> {
        validate_content(bytes, &self.expect(logical, want))
            .map_err(|err| Error::BadBlockToWrite(Box::new(err)))
    }
}
