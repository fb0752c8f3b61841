//! I/O on the copies of a logical range.
//!
//! A range is cut at chunk borders and, in profiles with elements, at element borders. Each part is
//! read from one copy, or written to all of them. A caller that finds a copy bad (it has the
//! checksum) reads the next one, and then [repairs](Volume::repair) the bad one.

use std::ops::Range;
use std::sync::atomic::Ordering;

use sapwood_block::{Device, patiently};
use sapwood_btrfs_format::ChunkItem;

use super::degraded::{Mirrors, Refused};
use super::errors::ErrorKind;
use super::stripe::Role;
use super::{Piece, Volume, parity, stripe};
use crate::{Error, Result};

/// Takes device id, offset and buffers of a request.
type EachRequest<'e> = dyn FnMut(u64, u64, &[&[u8]]) -> Result<()> + 'e;
/// A way to write buffers to a device.
pub(super) type Write<'w> = dyn Fn(&dyn Device, u64, &[&[u8]]) -> sapwood_block::Result<()> + 'w;

/// Most bytes of one request of a copy.
const COPY_STEP: u64 = 4 << 20;

impl Volume {
    /// Number of copies of each byte at a logical address, rebuilds from parity included.
    ///
    /// # Errors
    /// [`Error::Unmapped`].
    pub(crate) fn mirrors(&self, logical: u64, len: u64) -> Result<usize> {
        let (at, chunk) = self.chunk_at(logical)?;
        if logical - at + len > chunk.length {
            let (_, next) = self.chunk_at(at + chunk.length)?;
            return Ok(stripe::ways(&chunk).min(stripe::ways(&next)));
        }
        Ok(stripe::ways(&chunk))
    }

    /// Number of copies of the byte at a logical address that lie on devices.
    ///
    /// # Errors
    /// [`Error::Unmapped`].
    pub(crate) fn copies(&self, logical: u64) -> Result<usize> {
        let (_, chunk) = self.chunk_at(logical)?;
        Ok(stripe::copies(&chunk))
    }

    /// Numbers of the ways to rebuild a byte from parity.
    ///
    /// # Errors
    /// [`Error::Unmapped`].
    pub(crate) fn rebuilds(&self, logical: u64) -> Result<Range<usize>> {
        let (_, chunk) = self.chunk_at(logical)?;
        Ok(stripe::copies(&chunk)..stripe::ways(&chunk))
    }

    /// The place of a logical range: one piece after another for copy `mirror`.
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
            // A chunk with parity has one copy, number 0; the higher numbers rebuild it.
            let rebuilds = mirror < stripe::ways(&chunk) && mirror >= stripe::copies(&chunk);
            let copy = if rebuilds { 0 } else { mirror };
            // A range may go from a chunk with more copies into one with fewer.
            let piece = stripe::piece(&chunk, at - start, end - at, copy).ok_or_else(unmapped)?;
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
        self.read_copy(logical, buf, mirror, &|devid| {
            self.count(devid, ErrorKind::Read);
        })
    }

    /// Like [`read`](Self::read), without counting errors.
    ///
    /// # Errors
    /// [`Error::Unmapped`], [`Error::Device`].
    pub(crate) fn read_uncounted(&self, logical: u64, buf: &mut [u8], mirror: usize) -> Result<()> {
        self.read_copy(logical, buf, mirror, &|_| {})
    }

    fn read_copy(
        &self,
        logical: u64,
        buf: &mut [u8],
        mirror: usize,
        failed: &dyn Fn(u64),
    ) -> Result<()> {
        let len = buf.len() as u64;
        let _reads = self.reads.read();
        self.each_piece(logical, len, mirror, &mut |at, piece| {
            let (from, to) = (at as usize, (at + piece.len) as usize);
            let part = buf.get_mut(from..to).unwrap_or_default();
            if mirror > 0 && self.rebuild(logical + at, part, mirror)? {
                return Ok(());
            }
            let device = self.device(piece.devid)?;
            let read = device.read_at(piece.physical, part);
            if read.is_err() {
                failed(piece.devid);
            }
            Ok(read?)
        })
    }

    /// Fills `buf`, which lies in one element, from the other elements of its row and from parity.
    /// `way` 1 uses P if it can, 2 only Q, and the others assume that one more element is bad.
    /// Returns false without parity.
    fn rebuild(&self, logical: u64, buf: &mut [u8], way: usize) -> Result<bool> {
        let (start, chunk) = self.chunk_at(logical)?;
        let Some((wanted, places)) = stripe::row(&chunk, logical - start, buf.len() as u64) else {
            return Ok(false);
        };
        // The other elements, counted from 3.
        let doubted = way.checked_sub(3);
        let doubted = doubted.map(|nth| nth + usize::from(nth >= wanted));
        let (mut data, mut p, mut q) = (vec![None; places.len()], None, None);
        for (role, piece) in places {
            let unused = match role {
                Role::Data(nth) => nth == wanted || Some(nth) == doubted,
                Role::P => way == 2,
                Role::Q => false,
            };
            let mut bytes = vec![0; buf.len()];
            let device = self.device(piece.devid).ok().filter(|_| !unused);
            let read = device.map(|device| device.read_at(piece.physical, &mut bytes));
            let there = matches!(read, Some(Ok(()))).then_some(bytes);
            match role {
                Role::P => p = there,
                Role::Q => q = there,
                Role::Data(nth) => {
                    if let Some(place) = data.get_mut(nth) {
                        *place = there;
                    }
                }
            }
        }
        data.truncate(stripe::elements_in_row(&chunk));
        let rebuilt = parity::rebuild(wanted, &data, p, q);
        let rebuilt = rebuilt.ok_or_else(|| self.too_few(&chunk))?;
        buf.copy_from_slice(&rebuilt);
        Ok(true)
    }

    /// Counts bytes of copy `mirror` that are not what was written.
    pub(crate) fn count_corruption(&self, logical: u64, mirror: usize, kind: ErrorKind) {
        let pieces = self.map(logical, 1, mirror).unwrap_or_default();
        for piece in pieces {
            self.count(piece.devid, kind);
        }
    }

    /// Advises the devices that a logical range will be read soon, from the copy that is tried
    /// first.
    pub(crate) fn will_read(&self, logical: u64, len: u64) {
        let readable = self.readable(logical, len).ok();
        let mirror = readable.and_then(Mirrors::first).unwrap_or(0);
        self.hint(logical, len, mirror, |device, at, len| {
            device.will_read(at, len)
        });
    }

    /// Advises the devices that a large writeback wrote all copies of a logical range.
    pub(crate) fn write_behind(&self, logical: u64, len: u64) {
        for mirror in 0..self.mirrors(logical, len).unwrap_or(0) {
            self.hint(logical, len, mirror, |device, at, len| {
                device.write_behind(at, len);
            });
        }
    }

    fn hint(&self, logical: u64, len: u64, mirror: usize, tell: impl Fn(&dyn Device, u64, u64)) {
        // The thread that reads or writes the range reports that it is unmapped.
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
    /// [`Error::Unmapped`]; [`Error::Device`] if a byte was written to no device.
    pub(crate) fn write_vectored(&self, logical: u64, bufs: &[&[u8]]) -> Result<()> {
        self.write_copies(logical, bufs, &|device, at, part| {
            device.write_vectored_at(at, part)
        })
    }

    /// Like [`write_vectored`](Self::write_vectored), for metadata: waits for space on the host.
    ///
    /// # Errors
    /// [`Error::Unmapped`]; [`Error::Device`] if a byte was written to no device.
    pub(crate) fn write_metadata(&self, logical: u64, bufs: &[&[u8]]) -> Result<()> {
        self.write_copies(logical, bufs, &|device, at, part| {
            patiently(self.patience(), || device.write_vectored_at(at, part))
        })
    }

    fn write_copies(&self, logical: u64, bufs: &[&[u8]], write: &Write<'_>) -> Result<()> {
        let len = bufs.iter().map(|b| b.len() as u64).sum();
        if len == 0 {
            return Ok(());
        }
        let (mut refused, mut missed) = (Vec::new(), false);
        let _writes = self.writes.read();
        let replacing = self.replacing();
        for mirror in 0..self.mirrors(logical, len)? {
            self.each_request(logical, bufs, mirror, &mut |devid, at, part| {
                if let Some(new) = &replacing {
                    new.send_for(devid, |device| write(device, at, part));
                }
                let Some(member) = self.written(devid) else {
                    missed = true;
                    return Ok(());
                };
                match write(&*member.device, at, part) {
                    // The device may have failed meanwhile. Later flushes skip it, so the write
                    // does not count.
                    Ok(()) => missed |= member.has_failed(),
                    Err(error) if error.is_host_full() => return Err(error.into()),
                    Err(error) => refused.push(Refused { devid, error }),
                }
                Ok(())
            })?;
        }
        self.write_moving(logical, bufs, write)?;
        if missed || !refused.is_empty() {
            return self.after_write(logical, len, refused);
        }
        Ok(())
    }

    /// Calls `each` with device id, offset and buffers of each request that copy `mirror` of
    /// `bufs` needs. Elements that follow each other on a device are one request.
    fn each_request(
        &self,
        logical: u64,
        bufs: &[&[u8]],
        mirror: usize,
        each: &mut EachRequest<'_>,
    ) -> Result<()> {
        let len = bufs.iter().map(|b| b.len() as u64).sum();
        let mut requests: Vec<(Piece, Vec<&[u8]>)> = Vec::new();
        self.each_piece(logical, len, mirror, &mut |at, piece| {
            if piece.len == len {
                return each(piece.devid, piece.physical, bufs);
            }
            let part = cut(bufs, at as usize, piece.len as usize);
            let follows = |(before, _): &&mut (Piece, Vec<&[u8]>)| {
                before.devid == piece.devid && before.physical + before.len == piece.physical
            };
            if let Some((before, parts)) = requests.iter_mut().rev().find(follows) {
                before.len += piece.len;
                parts.extend(part);
            } else {
                requests.push((piece, part));
            }
            Ok(())
        })?;
        let mut requests = requests.iter();
        requests.try_for_each(|(piece, parts)| each(piece.devid, piece.physical, parts))
    }

    /// Writes good bytes over one bad copy of a range that is not reused meanwhile. Does nothing on
    /// a read-only volume, and before [`begin_repairs`](Self::begin_repairs).
    ///
    /// # Errors
    /// [`Error::Unmapped`], [`Error::Device`].
    pub(crate) fn repair(&self, logical: u64, good: &[u8], mirror: usize) -> Result<()> {
        let _writes = self.writes.read();
        self.overwrite_copy(logical, good, mirror)
    }

    /// See [`repair`](Self::repair). The places of the range do not change meanwhile.
    fn overwrite_copy(&self, logical: u64, good: &[u8], mirror: usize) -> Result<()> {
        if self.read_only || self.bad.lock().is_some() {
            return Ok(());
        }
        let replacing = self.replacing();
        self.each_request(logical, &[good], mirror, &mut |devid, at, part| {
            if let Some(new) = &replacing {
                new.send_for(devid, |device| device.write_vectored_at(at, part));
            }
            Ok(self.device(devid)?.write_vectored_at(at, part)?)
        })?;
        self.repaired.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Writes good bytes, which were read from copy `from`, over the bad copy `to`. Returns false,
    /// and writes nothing, if copy `from` has other bytes now: the range was freed and has new
    /// content. No write comes between the comparison and the write.
    ///
    /// # Errors
    /// [`Error::Unmapped`], [`Error::Device`].
    pub(crate) fn repair_from(
        &self,
        logical: u64,
        good: &[u8],
        from: usize,
        to: usize,
    ) -> Result<bool> {
        let mut now = vec![0; good.len()];
        let _alone = self.writes.write();
        self.read_uncounted(logical, &mut now, from)?;
        if now != good {
            return Ok(false);
        }
        self.overwrite_copy(logical, good, to)?;
        Ok(true)
    }

    /// Overwrites copy `to` of a logical range, which has no checksums, by copy `from`. No write
    /// comes between the read and the write.
    ///
    /// # Errors
    /// [`Error::Unmapped`], [`Error::Device`].
    pub(crate) fn copy_over(&self, logical: u64, len: u64, from: usize, to: usize) -> Result<()> {
        let mut bytes = vec![0; len as usize];
        let _alone = self.writes.write();
        self.read(logical, &mut bytes, from)?;
        self.overwrite_copy(logical, &bytes, to)
    }

    /// Copies a logical range to its places in the chunk `new` at `start`, which the map does not
    /// have. Places that hold the bytes already are skipped.
    ///
    /// # Errors
    /// [`Error::Unmapped`], [`Error::Device`], [`Error::MissingDevice`]; [`Error::TooFewDevices`].
    pub(crate) fn copy_to(
        &self,
        (logical, len): (u64, u64),
        (start, new): (u64, &ChunkItem),
    ) -> Result<()> {
        let mut buf = vec![0; COPY_STEP.min(len) as usize];
        let mut done = 0;
        while done < len {
            let step = COPY_STEP.min(len - done);
            let at = logical + done;
            done += step;
            let places = self.new_places(at, step, start, new)?;
            if places.is_empty() {
                continue;
            }
            let part = buf.get_mut(..step as usize).unwrap_or_default();
            self.read_any(at, part)?;
            for (skipped, piece) in places {
                let bytes = part
                    .get(skipped as usize..)
                    .and_then(|rest| rest.get(..piece.len as usize));
                let bytes = bytes.unwrap_or_default();
                let device = self.device(piece.devid)?;
                patiently(self.patience(), || device.write_at(piece.physical, bytes))?;
            }
        }
        Ok(())
    }

    /// Reads the first copy of a range that its devices return.
    pub(super) fn read_any(&self, logical: u64, buf: &mut [u8]) -> Result<()> {
        let len = buf.len() as u64;
        let mut read = Err(Error::Unmapped { logical, len });
        for mirror in self.readable(logical, len)?.iter() {
            read = self.read(logical, buf, mirror);
            if read.is_ok() {
                break;
            }
        }
        read
    }

    /// The pieces of a range in the chunk `new` at `start` that lie elsewhere than now, each with
    /// its offset in the range.
    fn new_places(
        &self,
        logical: u64,
        len: u64,
        start: u64,
        new: &ChunkItem,
    ) -> Result<Vec<(u64, Piece)>> {
        let unmapped = || Error::Unmapped { logical, len };
        let (old_start, old) = self.chunk_at(logical)?;
        let mut places = Vec::new();
        for copy in 0..stripe::copies(new) {
            let mut done = 0;
            while done < len {
                let (at, rest) = (logical + done, len - done);
                let mut piece = stripe::piece(new, at - start, rest, copy).ok_or_else(unmapped)?;
                let mut there = false;
                for mirror in 0..stripe::copies(&old) {
                    let now = stripe::piece(&old, at - old_start, piece.len, mirror);
                    let now = now.ok_or_else(unmapped)?;
                    piece.len = now.len;
                    there |= now == piece;
                }
                if !there {
                    places.push((done, piece));
                }
                done += piece.len;
            }
        }
        Ok(places)
    }

    /// Discards a range of a device. Does nothing if the device is not written any more.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn discard_physical(&self, devid: u64, from: u64, len: u64) -> Result<()> {
        let _writes = self.writes.read();
        match self.written(devid) {
            Some(member) => Ok(member.device.discard(from, len)?),
            None => Ok(()),
        }
    }

    /// Discards all copies of a logical range.
    ///
    /// # Errors
    /// [`Error::Unmapped`], [`Error::Device`].
    pub(crate) fn discard(&self, logical: u64, len: u64) -> Result<()> {
        let _writes = self.writes.read();
        for mirror in 0..self.mirrors(logical, len)? {
            self.each_piece(
                logical,
                len,
                mirror,
                &mut |_, piece| match self.written(piece.devid) {
                    Some(member) => Ok(member.device.discard(piece.physical, piece.len)?),
                    None => Ok(()),
                },
            )?;
        }
        Ok(())
    }
}

/// The parts of consecutive buffers that lie in `at..at + len`.
pub(super) fn cut<'b>(bufs: &[&'b [u8]], at: usize, len: usize) -> Vec<&'b [u8]> {
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
