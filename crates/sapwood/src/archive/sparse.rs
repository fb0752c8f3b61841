//! Maps of sparse files: the offset and length of each piece that the archive has.

use super::entry::whole_blocks;
use super::error::{ArchiveError, Result, path};
use super::pax::{Records, number};

/// Most pieces of a file. A map takes 16 bytes of memory for each.
const PIECES: usize = 4 << 20;

/// The pieces of a file that are in the archive, in ascending order without overlaps.
#[derive(Debug, Clone)]
pub(super) struct Map {
    pieces: std::vec::IntoIter<(u64, u64)>,
    /// Offset and bytes left of the piece that is being read.
    now: (u64, u64),
    /// Length of the file.
    pub(super) size: u64,
}

impl Map {
    /// A file that is in the archive as a whole.
    pub(super) fn whole(size: u64) -> Self {
        Self {
            pieces: Vec::new().into_iter(),
            now: (0, size),
            size,
        }
    }

    /// Validates a map. `stored`: the bytes that the archive has of the file.
    ///
    /// # Errors
    /// [`ArchiveError::Sparse`].
    pub(super) fn new(
        pieces: Vec<(u64, u64)>,
        size: u64,
        stored: u64,
        named: &[u8],
    ) -> Result<Self> {
        let (mut end, mut sum) = (0_u64, 0_u64);
        for (at, length) in &pieces {
            if *at < end {
                return Err(wrong(named, "is not in order"));
            }
            end = at
                .checked_add(*length)
                .ok_or_else(|| wrong(named, "has numbers that are too large"))?;
            sum = sum.saturating_add(*length);
        }
        if end > size {
            return Err(wrong(named, "reaches beyond its end"));
        }
        if sum != stored {
            return Err(wrong(named, "has another length than the content"));
        }
        Ok(Self {
            pieces: pieces.into_iter(),
            now: (0, 0),
            size,
        })
    }

    /// The position of the next bytes of the archive in the file, and their number.
    pub(super) fn next(&mut self) -> (u64, u64) {
        while self.now.1 == 0 {
            match self.pieces.next() {
                Some(piece) => self.now = piece,
                None => break,
            }
        }
        self.now
    }

    /// Bytes of the blocks that the pieces touch. Pieces in one block count it more than once.
    pub(super) fn allocated(&self, block: u64) -> u64 {
        let pieces = self.pieces.as_slice().iter().chain([&self.now]);
        pieces
            .map(|(at, length)| whole_blocks(*at, *length, block))
            .fold(0, u64::saturating_add)
    }

    /// Counts bytes of the piece as read.
    pub(super) fn advance(&mut self, count: u64) {
        self.now.0 = self.now.0.saturating_add(count);
        self.now.1 = self.now.1.saturating_sub(count);
    }
}

/// A map that grows while it is read.
#[derive(Debug)]
pub(super) struct Pieces<'n> {
    pieces: Vec<(u64, u64)>,
    named: &'n [u8],
}

impl<'n> Pieces<'n> {
    pub(super) fn new(named: &'n [u8]) -> Self {
        let pieces = Vec::new();
        Self { pieces, named }
    }

    /// Adds a piece; empty ones only mark the end of the file.
    pub(super) fn add(&mut self, at: u64, length: u64) -> Result<()> {
        if length > 0 {
            self.pieces.push((at, length));
        }
        if self.pieces.len() > PIECES {
            Err(wrong(self.named, "has too many pieces"))
        } else {
            Ok(())
        }
    }

    pub(super) fn end(self) -> Vec<(u64, u64)> {
        self.pieces
    }
}

/// The map that records have: formats 0.0 and 0.1 of GNU tar. `None` if they have none.
///
/// # Errors
/// [`ArchiveError::Sparse`].
pub(super) fn of_records(records: &Records<'_>, named: &[u8]) -> Result<Option<Vec<(u64, u64)>>> {
    let mut pieces = Pieces::new(named);
    let no_number = || wrong(named, "has what is no number");
    if let Some(map) = records.get("GNU.sparse.map") {
        let mut numbers = map.split(|byte| *byte == b',').map(number);
        while let Some(at) = numbers.next() {
            let length = numbers.next().flatten();
            pieces.add(at.ok_or_else(no_number)?, length.ok_or_else(no_number)?)?;
        }
        return Ok(Some(pieces.end()));
    }
    for (at, length) in records.pieces() {
        let (at, length) = (number(at), number(length));
        pieces.add(at.ok_or_else(no_number)?, length.ok_or_else(no_number)?)?;
    }
    let any = records.get("GNU.sparse.numblocks").is_some();
    Ok(any.then(|| pieces.end()))
}

pub(super) fn wrong(named: &[u8], what: &'static str) -> ArchiveError {
    ArchiveError::Sparse {
        path: path(named),
        what,
    }
}
