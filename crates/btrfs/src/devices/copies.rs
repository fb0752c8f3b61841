//! I/O on the copies of a logical range.
//!
//! A range is cut at chunk borders and, in profiles with elements, at element borders. Each part is
//! read from one copy, or written to all of them. A caller that finds a copy bad (it has the
//! checksum) reads the next one, and then [repairs](Volume::repair) the bad one.

use std::sync::atomic::Ordering;

use sapwood_block::{Device, patiently};

use super::{Piece, Volume, stripe};
use crate::{Error, Result};

/// Most bytes of one request of a copy.
const COPY_STEP: u64 = 4 << 20;

impl Volume {
    /// Number of copies of each byte at a logical address.
    ///
    /// # Errors
    /// [`Error::Unmapped`].
    pub(crate) fn mirrors(&self, logical: u64, len: u64) -> Result<usize> {
        let (at, chunk) = self.chunk_at(logical)?;
        if logical - at + len > chunk.length {
            let (_, next) = self.chunk_at(at + chunk.length)?;
            return Ok(stripe::copies(&chunk).min(stripe::copies(&next)));
        }
        Ok(stripe::copies(&chunk))
    }

    /// Where a logical range lies: one piece after another for copy `mirror`.
    ///
    /// # Errors
    /// [`Error::Unmapped`], also if there is no such copy.
    pub(crate) fn map(&self, logical: u64, len: u64, mirror: usize) -> Result<Vec<Piece>> {
        let mut pieces = Vec::with_capacity(1);
        self.each_piece(logical, len, mirror, &mut |_, piece| {
            pieces.push(piece);
            Ok(())
        })?;
        Ok(pieces)
    }

    /// Name of the device, and offset there, of a byte of copy `mirror`; `?` and the logical
    /// address if there is none. For errors.
    pub(crate) fn place(&self, logical: u64, mirror: usize) -> (String, u64) {
        let pieces = self.map(logical, 1, mirror).unwrap_or_default();
        let place = pieces.first().and_then(|piece| {
            let device = self.device(piece.devid).ok()?;
            Some((device.name().to_owned(), piece.physical))
        });
        place.unwrap_or_else(|| ("?".to_owned(), logical))
    }

    /// Calls `each` with the offset within the range and the piece.
    fn each_piece(
        &self,
        logical: u64,
        len: u64,
        mirror: usize,
        each: &mut dyn FnMut(u64, Piece) -> Result<()>,
    ) -> Result<()> {
        let unmapped = || Error::Unmapped { logical, len };
        let end = logical.checked_add(len).ok_or_else(unmapped)?;
        let mut at = logical;
        while at < end {
            let (start, chunk) = self.chunk_at(at)?;
            // A range may go from a chunk with more copies into one with fewer.
            let piece = stripe::piece(&chunk, at - start, end - at, mirror).ok_or_else(unmapped)?;
            each(at - logical, piece)?;
            at += piece.len;
        }
        Ok(())
    }

    /// Reads copy `mirror` (from 0) of a logical range.
    ///
    /// # Errors
    /// [`Error::Unmapped`], [`Error::Device`].
    pub(crate) fn read(&self, logical: u64, buf: &mut [u8], mirror: usize) -> Result<()> {
        let len = buf.len() as u64;
        self.each_piece(logical, len, mirror, &mut |at, piece| {
            let (from, to) = (at as usize, (at + piece.len) as usize);
            let device = self.device(piece.devid)?;
            let part = buf.get_mut(from..to).unwrap_or_default();
            Ok(device.read_at(piece.physical, part)?)
        })
    }

    /// Tells the devices that the first copy of a logical range will be read soon.
    pub(crate) fn will_read(&self, logical: u64, len: u64) {
        self.hint(logical, len, 0, |device, at, len| device.will_read(at, len));
    }

    /// Tells the devices that a big writeback wrote all copies of a logical range.
    pub(crate) fn write_behind(&self, logical: u64, len: u64) {
        for mirror in 0..self.mirrors(logical, len).unwrap_or(0) {
            self.hint(logical, len, mirror, |device, at, len| {
                device.write_behind(at, len);
            });
        }
    }

    fn hint(&self, logical: u64, len: u64, mirror: usize, tell: impl Fn(&dyn Device, u64, u64)) {
        // A range that is not mapped is found out by the thread that reads or writes it.
        let _ = self.each_piece(logical, len, mirror, &mut |_, piece| {
            let device = self.device(piece.devid)?;
            tell(device, piece.physical, piece.len);
            Ok(())
        });
    }

    /// Writes buffers one after another from `logical` on, to all copies, each with as few
    /// requests as the map allows.
    ///
    /// # Errors
    /// [`Error::Unmapped`], [`Error::Device`].
    pub(crate) fn write_vectored(&self, logical: u64, bufs: &[&[u8]]) -> Result<()> {
        let len = bufs.iter().map(|b| b.len() as u64).sum();
        if len == 0 {
            return Ok(());
        }
        for mirror in 0..self.mirrors(logical, len)? {
            self.write_mirror(logical, bufs, len, mirror)?;
        }
        Ok(())
    }

    /// As [`write_vectored`](Self::write_vectored), for metadata: waits for space on the host.
    ///
    /// # Errors
    /// As [`write_vectored`](Self::write_vectored).
    pub(crate) fn write_metadata(&self, logical: u64, bufs: &[&[u8]]) -> Result<()> {
        let len = bufs.iter().map(|b| b.len() as u64).sum();
        if len == 0 {
            return Ok(());
        }
        for mirror in 0..self.mirrors(logical, len)? {
            self.each_piece(logical, len, mirror, &mut |at, piece| {
                let device = self.device(piece.devid)?;
                let part = cut(bufs, at as usize, piece.len as usize);
                let write = || device.write_vectored_at(piece.physical, &part);
                Ok(patiently(self.patience(), write)?)
            })?;
        }
        Ok(())
    }

    fn write_mirror(&self, logical: u64, bufs: &[&[u8]], len: u64, mirror: usize) -> Result<()> {
        self.each_piece(logical, len, mirror, &mut |at, piece| {
            let device = self.device(piece.devid)?;
            if at == 0 && piece.len == len {
                return Ok(device.write_vectored_at(piece.physical, bufs)?);
            }
            let part = cut(bufs, at as usize, piece.len as usize);
            Ok(device.write_vectored_at(piece.physical, &part)?)
        })
    }

    /// Writes good bytes over one bad copy. Does nothing on a read-only volume, and before
    /// [`begin_repairs`](Self::begin_repairs).
    ///
    /// # Errors
    /// [`Error::Unmapped`], [`Error::Device`].
    pub(crate) fn repair(&self, logical: u64, good: &[u8], mirror: usize) -> Result<()> {
        if self.read_only || self.bad.lock().is_some() {
            return Ok(());
        }
        self.write_mirror(logical, &[good], good.len() as u64, mirror)?;
        self.repaired.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Copies bytes from one place of a device to another one that does not overlap it.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::MissingDevice`].
    pub(crate) fn copy_within(&self, devid: u64, from: u64, to: u64, len: u64) -> Result<()> {
        let device = self.device(devid)?;
        let mut buf = vec![0; COPY_STEP.min(len) as usize];
        let mut done = 0;
        while done < len {
            let step = COPY_STEP.min(len - done);
            let part = buf.get_mut(..step as usize).unwrap_or_default();
            device.read_at(from + done, part)?;
            patiently(self.patience(), || device.write_at(to + done, part))?;
            done += step;
        }
        Ok(())
    }

    /// Discards a range of a device.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::MissingDevice`].
    pub(crate) fn discard_physical(&self, devid: u64, from: u64, len: u64) -> Result<()> {
        Ok(self.device(devid)?.discard(from, len)?)
    }

    /// Discards all copies of a logical range.
    ///
    /// # Errors
    /// [`Error::Unmapped`], [`Error::Device`].
    pub(crate) fn discard(&self, logical: u64, len: u64) -> Result<()> {
        for mirror in 0..self.mirrors(logical, len)? {
            self.each_piece(logical, len, mirror, &mut |_, piece| {
                let device = self.device(piece.devid)?;
                Ok(device.discard(piece.physical, piece.len)?)
            })?;
        }
        Ok(())
    }
}

/// The parts of consecutive buffers that lie in `at..at + len`.
fn cut<'b>(bufs: &[&'b [u8]], at: usize, len: usize) -> Vec<&'b [u8]> {
    let (mut start, end) = (0, at + len);
    let mut parts = Vec::new();
    for buf in bufs {
        let (from, to) = (at.max(start), end.min(start + buf.len()));
        if from < to {
            parts.push(buf.get(from - start..to - start).unwrap_or_default());
        }
        start += buf.len();
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn cut_takes_parts_across_buffers() {
        let bufs: [&[u8]; 3] = [b"abc", b"defg", b"h"];
        assert_eq!(cut(&bufs, 2, 5).concat(), b"cdefg");
        assert_eq!(cut(&bufs, 3, 5).concat(), b"defgh");
        assert_eq!(cut(&bufs, 0, 3), [b"abc"]);
    }
}
