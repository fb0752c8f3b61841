//! Reads the log in large pieces.

use crate::Result;
use crate::log::Log;

/// Bytes read at once.
const WINDOW_BYTES: usize = 256 << 10;

/// Reads blocks of the log and caches the last window.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    log: &'a Log,
    /// First block of the journal in `window`.
    first: u64,
    /// Blocks in `window`.
    blocks: usize,
    window: Vec<u8>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(log: &'a Log) -> Self {
        let size = log.block_size() as usize;
        Self {
            log,
            first: 0,
            blocks: 0,
            window: vec![0; (WINDOW_BYTES / size).max(1) * size],
        }
    }

    /// A block of the journal.
    pub(super) fn block(&mut self, block: u64) -> Result<&[u8]> {
        let size = self.log.block_size() as usize;
        if !(self.first..self.first + self.blocks as u64).contains(&block) {
            self.blocks = 0;
            self.blocks = self.log.read(block, &mut self.window)?;
            self.first = block;
        }
        let at = (block - self.first) as usize * size;
        Ok(&self.window[at..at + size])
    }
}
