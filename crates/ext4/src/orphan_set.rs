//! The orphans, and the place of each record on disk.
//!
//! The orphan file has blocks of slots, each empty or with the number of an orphan.

use std::sync::Arc;

use sapwood_base::NumberMap;
use sapwood_ext4_format::{OrphanError, orphan_check, orphan_slots, orphan_slots_mut};
use sapwood_jbd2::{Buffer, Handle, Seal};

use crate::Result;
use crate::lock::{Rank, RankedMutex};
use crate::seal::SealKind;

/// The place of an orphan's record on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OrphanPlace {
    /// In the list through the inodes.
    List,
    /// In a slot of the orphan file.
    File(Slot),
}

/// The orphans of a mount.
pub(crate) struct Orphans {
    pub(crate) state: RankedMutex<State>,
}

/// State under the lock of [`Orphans`].
#[derive(Default)]
pub(crate) struct State {
    /// The place of each record, by inode.
    pub(crate) places: NumberMap<u32, OrphanPlace>,
    /// Orphans of the list, the first one last.
    pub(crate) list: Vec<u32>,
    /// The orphan file, if the image has one.
    pub(crate) file: Option<OrphanFile>,
}

impl Orphans {
    /// No known orphan.
    pub(crate) fn new() -> Self {
        Self {
            state: RankedMutex::new(Rank::Orphans, State::default()),
        }
    }

    /// Whether an inode is among them.
    pub(crate) fn knows(&self, ino: u32) -> bool {
        self.state.lock().places.contains_key(&ino)
    }
}

/// Place in the orphan file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    block: usize,
    slot: usize,
}

/// The blocks, held in memory, and their free slots.
pub(crate) struct OrphanFile {
    blocks: Vec<(Arc<Buffer>, Vec<usize>)>,
    /// Block that was used last.
    at: usize,
}

impl OrphanFile {
    /// Without blocks yet.
    pub(crate) fn new() -> Self {
        Self {
            blocks: Vec::new(),
            at: 0,
        }
    }

    /// Adds the next block of the file, whose checksum is right, and returns the orphans in it. The
    /// numbers in its slots are not validated: a wrong number does not spoil the other slots.
    ///
    /// # Errors
    /// The block is damaged.
    pub(crate) fn add_block(
        &mut self,
        buffer: Arc<Buffer>,
        seal: Seal,
    ) -> Result<Vec<(u32, Slot)>, OrphanError> {
        let content = buffer.read();
        let slots = orphan_check(&content, u32::MAX)?;
        let block = self.blocks.len();
        let (mut free, mut found) = (Vec::new(), Vec::new());
        for (slot, ino) in slots.iter().enumerate() {
            match ino.get() {
                0 => free.push(slot),
                ino => found.push((ino, Slot { block, slot })),
            }
        }
        free.reverse();
        debug_assert_eq!(slots.len(), orphan_slots(content.len()));
        drop(content);
        buffer.set_kind(SealKind::Orphan as u8);
        buffer.set_seal(Some(seal));
        self.blocks.push((buffer, free));
        Ok(found)
    }

    /// Puts an orphan into a free slot; `None` if there is none.
    ///
    /// # Errors
    /// Errors of the journal.
    pub(crate) fn take(&mut self, h: &Handle, ino: u32) -> Result<Option<Slot>> {
        let count = self.blocks.len();
        for step in 0..count {
            let block = (self.at + step) % count;
            let Some((buffer, free)) = self.blocks.get_mut(block) else {
                continue;
            };
            let Some(slot) = free.pop() else {
                continue;
            };
            self.at = block;
            put(h, buffer, slot, ino)?;
            return Ok(Some(Slot { block, slot }));
        }
        Ok(None)
    }

    /// Empties a slot.
    ///
    /// # Errors
    /// Errors of the journal.
    pub(crate) fn clear(&mut self, h: &Handle, slot: Slot) -> Result<()> {
        if let Some((buffer, free)) = self.blocks.get_mut(slot.block) {
            put(h, buffer, slot.slot, 0)?;
            free.push(slot.slot);
        }
        Ok(())
    }
}

fn put(h: &Handle, buffer: &Arc<Buffer>, slot: usize, ino: u32) -> Result<()> {
    let mut content = h.modify(buffer)?;
    let place = orphan_slots_mut(&mut content).and_then(|slots| slots.get_mut(slot));
    if let Some(place) = place {
        *place = ino.into();
    }
    Ok(())
}
