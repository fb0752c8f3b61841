//! The bytes of a regular file: a sparse map of sectors.

use std::collections::BTreeMap;

use sapwood_vfs::{Error, Result};

/// Granularity of holes, in bytes.
pub(super) const SECTOR: u64 = 4096;

/// The bytes of a sector, or `None` if it is allocated but was never written.
type Sector = Option<Box<[u8]>>;

/// Content of a regular file. The bytes after `size` in its last sector are zero.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    pub(super) size: u64,
    sectors: BTreeMap<u64, Sector>,
}

/// The part of a range that lies within one sector.
struct Piece {
    sector: u64,
    /// Start in the sector.
    start: usize,
    /// End in the sector.
    end: usize,
    /// Start in the range.
    at: usize,
}

/// Splits `[offset, end)` at sector boundaries.
fn pieces(offset: u64, end: u64) -> impl Iterator<Item = Piece> {
    let mut position = offset;
    std::iter::from_fn(move || {
        if position >= end {
            return None;
        }
        let sector = position / SECTOR;
        let base = sector * SECTOR;
        let stop = end.min(base + SECTOR);
        let piece = Piece {
            sector,
            start: (position - base) as usize,
            end: (stop - base) as usize,
            at: (position - offset) as usize,
        };
        position = stop;
        Some(piece)
    })
}

fn zeros() -> Box<[u8]> {
    vec![0; SECTOR as usize].into_boxed_slice()
}

impl Content {
    /// Number of allocated sectors.
    pub(super) fn allocated(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// Number of sectors that `[offset, end)` touches and that are not allocated yet.
    pub(super) fn missing(&self, offset: u64, end: u64) -> u64 {
        if offset >= end {
            return 0;
        }
        let (first, last) = (offset / SECTOR, end.div_ceil(SECTOR));
        (last - first) - self.sectors.range(first..last).count() as u64
    }

    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let left = self.size.saturating_sub(offset);
        let len = (buf.len() as u64).min(left) as usize;
        let buf = &mut buf[..len];
        buf.fill(0);
        for piece in pieces(offset, offset.saturating_add(len as u64)) {
            if let Some(Some(bytes)) = self.sectors.get(&piece.sector) {
                let source = &bytes[piece.start..piece.end];
                buf[piece.at..piece.at + source.len()].copy_from_slice(source);
            }
        }
        len
    }

    /// Writes `data`; the end must have been checked against the size limit.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        for piece in pieces(offset, end) {
            let sector = self.sectors.entry(piece.sector).or_default();
            let bytes = sector.get_or_insert_with(zeros);
            let len = piece.end - piece.start;
            bytes[piece.start..piece.end].copy_from_slice(&data[piece.at..piece.at + len]);
        }
        self.size = self.size.max(end);
    }

    pub(super) fn truncate(&mut self, size: u64) {
        if size <= self.size {
            self.sectors.split_off(&size.div_ceil(SECTOR));
            let within = (size % SECTOR) as usize;
            if within != 0
                && let Some(Some(bytes)) = self.sectors.get_mut(&(size / SECTOR))
            {
                bytes[within..].fill(0);
            }
        }
        self.size = size;
    }

    /// Allocates `[offset, end)`.
    pub(super) fn allocate(&mut self, offset: u64, end: u64) {
        for sector in offset / SECTOR..end.div_ceil(SECTOR) {
            self.sectors.entry(sector).or_default();
        }
    }

    /// Makes `[offset, end)` a hole; a sector that is only partly in the range is zeroed there.
    pub(super) fn punch(&mut self, offset: u64, end: u64) {
        self.blank(offset, end, false);
    }

    /// Makes `[offset, end)` allocated and reads of it return zeros.
    pub(super) fn zero(&mut self, offset: u64, end: u64) {
        self.blank(offset, end, true);
        self.allocate(offset, end);
    }

    fn blank(&mut self, offset: u64, end: u64, keep: bool) {
        let (first, last) = (offset / SECTOR, end.div_ceil(SECTOR));
        let touched: Vec<u64> = self
            .sectors
            .range(first..last)
            .map(|(&key, _)| key)
            .collect();
        for sector in touched {
            let base = sector * SECTOR;
            let start = offset.saturating_sub(base).min(SECTOR) as usize;
            let stop = (end - base).min(SECTOR) as usize;
            let whole = start == 0 && stop as u64 == SECTOR;
            if whole && keep {
                self.sectors.insert(sector, None);
            } else if whole {
                self.sectors.remove(&sector);
            } else if let Some(Some(bytes)) = self.sectors.get_mut(&sector) {
                bytes[start..stop].fill(0);
            }
        }
    }

    /// Moves the bytes from `from` on to `to`; holes become data.
    fn rewrite(&mut self, from: u64, to: u64) {
        let mut tail = vec![0; (self.size - from) as usize];
        self.read(from, &mut tail);
        self.truncate(from.min(to));
        self.write(to, &tail);
    }

    /// Removes `[offset, offset + len)`, which ends before the end of the file. Holes stay if both
    /// are multiples of a sector.
    pub(super) fn collapse(&mut self, offset: u64, len: u64) {
        if !(offset | len).is_multiple_of(SECTOR) {
            return self.rewrite(offset + len, offset);
        }
        let (first, count) = (offset / SECTOR, len / SECTOR);
        let mut tail = self.sectors.split_off(&first);
        let moved = tail.split_off(&(first + count));
        self.sectors
            .extend(moved.into_iter().map(|(key, bytes)| (key - count, bytes)));
        self.size -= len;
    }

    /// Inserts a hole of `len` bytes at `offset`. Holes stay if both are multiples of a sector.
    pub(super) fn insert(&mut self, offset: u64, len: u64) {
        if !(offset | len).is_multiple_of(SECTOR) {
            return self.rewrite(offset, offset + len);
        }
        let count = len / SECTOR;
        let tail = self.sectors.split_off(&(offset / SECTOR));
        self.sectors
            .extend(tail.into_iter().map(|(key, bytes)| (key + count, bytes)));
        self.size += len;
    }

    pub(super) fn seek_data(&self, offset: u64) -> Result<u64> {
        if offset >= self.size {
            return Err(Error::NoSuchOffset);
        }
        let mut from_here = self.sectors.range(offset / SECTOR..);
        let found = from_here.find(|(_, sector)| sector.is_some());
        let position = found.map(|(&key, _)| (key * SECTOR).max(offset));
        let within = position.filter(|&position| position < self.size);
        within.ok_or(Error::NoSuchOffset)
    }

    pub(super) fn seek_hole(&self, offset: u64) -> Result<u64> {
        if offset >= self.size {
            return Err(Error::NoSuchOffset);
        }
        let mut sector = offset / SECTOR;
        while let Some(Some(_)) = self.sectors.get(&sector) {
            sector += 1;
        }
        Ok((sector * SECTOR).max(offset).min(self.size))
    }

    /// A copy of the sectors of `[offset, end)`, moved to sector 0; `offset` is a multiple of a
    /// sector. The bytes after `end` in the last sector are zero.
    pub(super) fn cut(&self, offset: u64, end: u64) -> Self {
        let first = offset / SECTOR;
        let range = self.sectors.range(first..end.div_ceil(SECTOR));
        let mut part = Self {
            size: u64::MAX,
            sectors: range
                .map(|(key, bytes)| (key - first, bytes.clone()))
                .collect(),
        };
        part.truncate(end - offset);
        part
    }

    /// Replaces the content at `offset`, a multiple of a sector, with all of `part`.
    pub(super) fn paste(&mut self, offset: u64, part: Self) {
        let end = offset + part.size;
        let whole = part.size / SECTOR;
        let mut part = part;
        let tail = part.sectors.split_off(&whole);
        self.punch(offset, offset + whole * SECTOR);
        let first = offset / SECTOR;
        self.sectors.extend(
            part.sectors
                .into_iter()
                .map(|(key, bytes)| (key + first, bytes)),
        );
        if !part.size.is_multiple_of(SECTOR) {
            let mut bytes = tail
                .into_values()
                .next()
                .flatten()
                .unwrap_or_else(zeros)
                .into_vec();
            bytes.truncate((part.size % SECTOR) as usize);
            self.write(offset + whole * SECTOR, &bytes);
        }
        self.size = self.size.max(end);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn all(content: &Content) -> Vec<u8> {
        let mut buf = vec![0xff; content.size as usize + 10];
        let len = content.read(0, &mut buf);
        buf.truncate(len);
        buf
    }

    /// A deterministic sequence of all operations, compared with a plain byte vector.
    #[test]
    fn agrees_with_a_vector_of_bytes() {
        let (mut content, mut flat) = (Content::default(), Vec::<u8>::new());
        let mut seed = 12345u64;
        let mut next = |below: u64| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for step in 0..3000 {
            let (offset, len) = (next(40_000), next(12_000) + 1);
            let end = offset + len;
            match next(8) {
                0 | 1 => {
                    let data: Vec<u8> = (0..len).map(|_| next(255) as u8 + 1).collect();
                    content.write(offset, &data);
                    flat.resize(flat.len().max(end as usize), 0);
                    flat[offset as usize..end as usize].copy_from_slice(&data);
                }
                2 => {
                    content.truncate(offset);
                    flat.resize(offset as usize, 0);
                }
                3 => {
                    content.punch(offset, end);
                    let stop = flat.len().min(end as usize);
                    flat[stop.min(offset as usize)..stop].fill(0);
                }
                4 => {
                    content.zero(offset, end);
                    let stop = flat.len().min(end as usize);
                    flat[stop.min(offset as usize)..stop].fill(0);
                }
                5 => content.allocate(offset, end),
                6 => {
                    let unit = [SECTOR, 1024, 1][step % 3];
                    let (at, count) = (offset / unit * unit, SECTOR.max(len / unit * unit));
                    if at < content.size {
                        content.insert(at, count);
                        flat.splice(at as usize..at as usize, vec![0; count as usize]);
                    }
                    if at + count < content.size && step % 2 == 0 {
                        content.collapse(at, count);
                        flat.drain(at as usize..(at + count) as usize);
                    }
                    content.truncate(flat.len().min(60_000) as u64);
                    flat.truncate(60_000);
                }
                _ => {
                    let from = offset / SECTOR * SECTOR;
                    let end = end.min(content.size);
                    if from < end {
                        let part = content.cut(from, end);
                        let to = next(10) * SECTOR;
                        let bytes = flat[from as usize..end as usize].to_vec();
                        content.paste(to, part);
                        let stop = to as usize + bytes.len();
                        flat.resize(flat.len().max(stop), 0);
                        flat[to as usize..stop].copy_from_slice(&bytes);
                    }
                }
            }
            assert_eq!(content.size, flat.len() as u64, "step {step}");
            assert!(all(&content) == flat, "step {step}");
        }
    }

    #[test]
    fn seek_sees_written_sectors_only() {
        let mut content = Content::default();
        content.truncate(5 * SECTOR + 100);
        content.allocate(0, SECTOR);
        content.write(2 * SECTOR + 5, b"x");
        assert_eq!(content.seek_data(0), Ok(2 * SECTOR));
        assert_eq!(content.seek_data(2 * SECTOR + 50), Ok(2 * SECTOR + 50));
        assert_eq!(content.seek_hole(2 * SECTOR), Ok(3 * SECTOR));
        assert_eq!(content.seek_data(3 * SECTOR), Err(Error::NoSuchOffset));
        content.write(5 * SECTOR, &[1; 100]);
        assert_eq!(content.seek_hole(5 * SECTOR), Ok(5 * SECTOR + 100));
        assert_eq!(
            content.seek_hole(5 * SECTOR + 100),
            Err(Error::NoSuchOffset)
        );
    }
}
