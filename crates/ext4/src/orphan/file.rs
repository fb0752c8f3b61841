//! The orphan file: blocks of slots, each empty or with the number of an orphan.

use std::sync::Arc;

use sapwood_ext4_format::{orphan_check, orphan_slots, orphan_slots_mut, orphan_verify};
use sapwood_jbd2::{Buffer, Handle};

use crate::engine::Engine;
use crate::host::SealKind;
use crate::inode::Inode;
use crate::{Error, Result, map};

/// Place in the orphan file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    block: usize,
    slot: usize,
}

/// Its blocks, held in memory, and what is free in them.
pub(super) struct OrphanFile {
    blocks: Vec<(Arc<Buffer>, Vec<usize>)>,
    /// Block that was used last.
    at: usize,
}

impl OrphanFile {
    /// Reads and validates all blocks. Returns the orphans in them too.
    ///
    /// # Errors
    /// The file is damaged, the device.
    pub(super) fn open(engine: &Engine, inode: &Inode) -> Result<(Self, Vec<(u32, Slot)>)> {
        let count = inode.size() / engine.block_size();
        let mut file = Self {
            blocks: Vec::new(),
            at: 0,
        };
        let mut found = Vec::new();
        for number in 0..count {
            let buffer = map::block_of(engine, inode, number)?;
            let content = buffer.read();
            let bad = |reason: String| Error::BadBlock {
                ino: inode.ino,
                block: buffer.block(),
                reason,
            };
            if engine.geometry.metadata_csum() {
                orphan_verify(&content, inode.seed(engine), buffer.block())
                    .map_err(|reason| bad(reason.to_string()))?;
            }
            // What each slot names is judged later: one that names no inode does not spoil the others.
            let slots =
                orphan_check(&content, u32::MAX).map_err(|reason| bad(reason.to_string()))?;
            let block = file.blocks.len();
            let mut free = Vec::new();
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
            buffer.set_seal(Some(SealKind::Orphan.of(inode.ino, inode.generation)));
            file.blocks.push((buffer, free));
        }
        Ok((file, found))
    }

    /// Puts an orphan into a free slot; `None` if there is none.
    ///
    /// # Errors
    /// The journal.
    pub(super) fn take(&mut self, h: &Handle, ino: u32) -> Result<Option<Slot>> {
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
    /// The journal.
    pub(super) fn clear(&mut self, h: &Handle, slot: Slot) -> Result<()> {
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
