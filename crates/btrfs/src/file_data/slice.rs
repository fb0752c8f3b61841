//! Bytes in flight to the device, shared by readers and writers.

use std::ops::Range;
use std::sync::Arc;

use sapwood_base::Piece;

/// Part of the bytes of one dirty piece.
#[derive(Debug, Clone)]
pub(crate) struct Slice {
    bytes: Arc<Piece>,
    range: Range<usize>,
}

impl Slice {
    /// All of a piece.
    pub(crate) fn new(bytes: Piece) -> Self {
        let range = 0..bytes.len();
        Self {
            bytes: Arc::new(bytes),
            range,
        }
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(self.range.clone()).unwrap_or_default()
    }

    fn len(&self) -> usize {
        self.range.len()
    }

    fn part(&self, range: Range<usize>) -> Self {
        let start = self.range.start + range.start.min(self.len());
        let end = self.range.start + range.end.min(self.len());
        Self {
            bytes: Arc::clone(&self.bytes),
            range: start..end,
        }
    }
}

/// Cuts `range` (counted from the first byte) out of slices that follow each other.
pub(crate) fn cut(slices: &[Slice], range: Range<u64>) -> Vec<Slice> {
    let mut out = Vec::new();
    let mut at = 0u64;
    for slice in slices {
        let end = at + slice.len() as u64;
        if end > range.start && at < range.end {
            let from = range.start.saturating_sub(at) as usize;
            let to = (range.end.min(end) - at) as usize;
            out.push(slice.part(from..to));
        }
        at = end;
    }
    out
}
