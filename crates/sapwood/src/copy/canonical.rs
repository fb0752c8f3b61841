//! Content in the same pieces whatever the host stores: a block of zeros is a hole.
//!
//! File systems of hosts differ in what they report as holes, and in how large a hole is. An image
//! that is reproducible gets a hole wherever a whole block is zero, and the same pieces always.

use super::error::Result;
use super::side::{CHUNK, Take};

/// Bytes of a block.
const BLOCK: usize = 4096;

/// Collects the pieces of a file, which come in rising order, and hands blocks that are not zero to
/// `take`.
pub(super) struct Canonical {
    /// Bytes of the chunk at `at`; zeros where none came.
    chunk: Vec<u8>,
    at: u64,
    /// Bytes of the chunk up to the end of the last piece.
    filled: usize,
}

impl Canonical {
    pub(super) fn new() -> Self {
        let chunk = vec![0; CHUNK];
        Self {
            chunk,
            at: 0,
            filled: 0,
        }
    }

    /// Takes a piece.
    pub(super) fn add(&mut self, mut at: u64, mut data: &[u8], take: &mut Take<'_>) -> Result<()> {
        while !data.is_empty() {
            let within = usize::try_from(at % CHUNK as u64).unwrap_or(0);
            let start = at - within as u64;
            if start != self.at {
                self.end(u64::MAX, take)?;
                self.at = start;
            }
            let (now, later) = data.split_at(data.len().min(CHUNK - within));
            if let Some(place) = self.chunk.get_mut(within..within + now.len()) {
                place.copy_from_slice(now);
            }
            self.filled = self.filled.max(within + now.len());
            at += now.len() as u64;
            data = later;
        }
        Ok(())
    }

    /// Hands over the rest of a file. `size` is the length of the file, if it is known.
    pub(super) fn end(&mut self, size: u64, take: &mut Take<'_>) -> Result<()> {
        let room = usize::try_from(size.saturating_sub(self.at)).unwrap_or(CHUNK);
        // A host may report data up to the end of a block, or of the bytes that were written.
        let whole = self.filled.next_multiple_of(BLOCK).min(CHUNK);
        let end = whole.min(room.max(self.filled));
        let filled = self.chunk.get(..end).unwrap_or_default();
        let mut start = 0;
        let mut run = 0;
        for block in filled.chunks(BLOCK) {
            if !is_zero(block) {
                run += block.len()
            } else {
                self.hand_over(start, run, take)?;
                start += run + block.len();
                run = 0;
            }
        }
        self.hand_over(start, run, take)?;
        if let Some(used) = self.chunk.get_mut(..self.filled) {
            used.fill(0);
        }
        self.filled = 0;
        Ok(())
    }

    fn hand_over(&self, start: usize, len: usize, take: &mut Take<'_>) -> Result<()> {
        match self.chunk.get(start..start + len) {
            Some(run) if len > 0 => take(self.at + start as u64, run),
            _ => Ok(()),
        }
    }
}

/// Whether content that begins a file has a block that becomes a hole.
pub(super) fn has_hole(data: &[u8]) -> bool {
    data.chunks(BLOCK).any(is_zero)
}

fn is_zero(block: &[u8]) -> bool {
    static ZEROS: [u8; BLOCK] = [0; BLOCK];
    ZEROS.get(..block.len()) == Some(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces that a sink gets for these pieces of a file.
    fn pieces(size: u64, given: &[(u64, &[u8])]) -> Vec<(u64, Vec<u8>)> {
        let mut canonical = Canonical::new();
        let mut got = Vec::new();
        let mut sink = |at, data: &[u8]| {
            got.push((at, data.to_vec()));
            Ok(())
        };
        for (at, data) in given {
            canonical.add(*at, data, &mut sink).unwrap();
        }
        canonical.end(size, &mut sink).unwrap();
        got
    }

    #[test]
    fn holes_do_not_depend_on_what_a_host_reports() {
        let (ones, zeros) = (vec![1; BLOCK], vec![0; BLOCK]);
        let all = [ones.as_slice(), &zeros, &ones, &ones, &[1, 2]].concat();
        let size = all.len() as u64;
        let (one, two) = (ones.len() as u64, 2 * ones.len() as u64);
        let expected = [
            (0, ones.clone()),
            (two, [&ones, &ones, [1, 2].as_slice()].concat()),
        ];
        assert_eq!(pieces(size, &[(0, &all)]), expected);
        let apart = [(0, &*ones), (two, &*ones), (two + one, &all[3 * BLOCK..])];
        assert_eq!(pieces(size, &apart), expected);
        // A host with smaller blocks, and one with larger ones.
        assert_eq!(
            pieces(one, &[(0, &[1; 512])]),
            pieces(one, &[(0, &[&[1_u8; 512][..], &[0; 512]].concat())])
        );
        assert_eq!(
            pieces(600, &[(0, &[1; 512])]),
            [(0, [&[1_u8; 512][..], &[0; 88]].concat())]
        );
        assert_eq!(pieces(3, &[(0, &[0; 3])]), []);
        assert_eq!(pieces(0, &[]), []);
    }

    #[test]
    fn pieces_end_with_a_chunk() {
        let size = CHUNK + BLOCK;
        let data = vec![7; size];
        let got = pieces(size as u64, &[(0, &data[..100]), (100, &data[100..])]);
        let sizes: Vec<_> = got.iter().map(|(at, data)| (*at, data.len())).collect();
        assert_eq!(sizes, [(0, CHUNK), (CHUNK as u64, BLOCK)]);
    }
}
