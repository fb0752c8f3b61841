//! Reads files around unreadable parts.
//!
//! # How it works
//! A read that fails is halved, until only ranges of at most [`UNIT`] bytes fail. Those are the
//! damage. Reading ends after the first ones, unless the caller asks to continue. Where the map of
//! a file is damaged, so that no data can be searched for, the search continues at the next offset
//! from which it succeeds.

use std::fmt;
use std::io;
use std::ops::ControlFlow::{self, Break, Continue};
use std::ops::Range;

use crate::progress::Stop;
use crate::vfs::{self, Cause, Ino, SeekFrom};

/// Bytes of a range that is not halved: the smallest block of a file system.
const UNIT: usize = 1024;
/// Most ranges that are named.
const NAMED: usize = 16;

/// The byte ranges of a file that cannot be read, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    ranges: Vec<Range<u64>>,
    /// Further ranges, which are only counted.
    more: u64,
    /// The end of the last range.
    end: u64,
    bytes: u64,
    cause: Cause,
}

impl Damage {
    fn new(range: Range<u64>, cause: Cause) -> Self {
        Self {
            end: range.end,
            bytes: range.end.saturating_sub(range.start),
            ranges: vec![range],
            more: 0,
            cause,
        }
    }

    /// Adds a range after the others.
    fn add(&mut self, range: &Range<u64>) {
        if range.start == self.end {
            if let Some(last) = self.ranges.last_mut().filter(|_| self.more == 0) {
                last.end = range.end;
            }
        } else if self.ranges.len() < NAMED {
            self.ranges.push(range.clone());
        } else {
            self.more = self.more.saturating_add(1);
        }
        self.end = range.end;
        let bytes = range.end.saturating_sub(range.start);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// The first ranges, in ascending order. If reading ended at the damage, the only one begins
    /// where it ended.
    #[must_use]
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Bytes of all ranges.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Why the first range cannot be read.
    #[must_use]
    pub fn cause(&self) -> &Cause {
        &self.cause
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes ")?;
        for (number, Range { start, end }) in self.ranges.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{start}-{}", end.saturating_sub(1))?;
        }
        match self.more {
            0 => {}
            1 => f.write_str(" and another range")?,
            more => write!(f, " and {more} more ranges")?,
        }
        if self.ranges.len() > 1 {
            write!(f, " ({} bytes in all)", self.bytes)?;
        }
        write!(f, " cannot be read: {}", self.cause)
    }
}

impl std::error::Error for Damage {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Some(error) = self.cause.downcast_ref::<vfs::Error>() {
            return Some(error);
        }
        let error = self.cause.downcast_ref::<io::Error>();
        error.map(|error| error as &(dyn std::error::Error + 'static))
    }
}

/// The unreadable parts of a file, and whether reading continues after one.
#[derive(Debug, Default)]
pub(crate) struct Salvage {
    keep_going: bool,
    stop: Stop,
    found: Option<Damage>,
}

impl Salvage {
    /// Reads up to the first damage, or around all damage if `keep_going` and until `stop` is set.
    pub(crate) fn new(keep_going: bool, stop: Stop) -> Self {
        Self {
            keep_going,
            stop,
            found: None,
        }
    }

    /// Adds a range. Breaks if reading ends there.
    fn add(&mut self, range: Range<u64>, cause: Cause) -> ControlFlow<()> {
        match &mut self.found {
            Some(found) => found.add(&range),
            None => self.found = Some(Damage::new(range, cause)),
        }
        if self.has_ended() {
            Break(())
        } else {
            Continue(())
        }
    }

    /// Length of the part that was read of a file of `size` bytes.
    pub(crate) fn length(&self, size: u64) -> u64 {
        let first = self.found.as_ref().and_then(|found| found.ranges.first());
        match first {
            Some(first) if !self.keep_going => first.start.min(size),
            _ => size,
        }
    }

    /// Whether reading has ended at damage.
    pub(crate) fn has_ended(&self) -> bool {
        self.found.is_some() && (!self.keep_going || self.stop.is_stopped())
    }

    /// Whether there is damage.
    pub(crate) fn has_found(&self) -> bool {
        self.found.is_some()
    }

    /// The unreadable parts.
    pub(crate) fn found(self) -> Option<Damage> {
        self.found
    }
}

/// The content of a file, which may be damaged.
pub(crate) trait Content {
    type Error;

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize, Self::Error>;
    /// The first data from an offset on. `None`: a hole up to the end.
    fn data(&self, at: u64) -> Result<Option<u64>, Self::Error>;
    /// The first hole from an offset on.
    fn hole(&self, at: u64) -> Result<u64, Self::Error>;
    /// Returns the cause if a part of the file cannot be read, and any other error unchanged.
    fn damage(error: Self::Error) -> Result<Cause, Self::Error>;
}

/// The content of a file of an image.
pub(crate) struct InImage<'a>(pub(crate) &'a dyn vfs::FileSystem, pub(crate) Ino);

impl Content for InImage<'_> {
    type Error = vfs::Error;

    fn read(&self, at: u64, buf: &mut [u8]) -> vfs::Result<usize> {
        self.0.read(self.1, at, buf)
    }

    fn data(&self, at: u64) -> vfs::Result<Option<u64>> {
        match self.0.seek(self.1, SeekFrom::Data(at)) {
            Err(vfs::Error::NoSuchOffset) => Ok(None),
            found => found.map(Some),
        }
    }

    fn hole(&self, at: u64) -> vfs::Result<u64> {
        self.0.seek(self.1, SeekFrom::Hole(at))
    }

    fn damage(error: vfs::Error) -> vfs::Result<Cause> {
        match error {
            vfs::Error::Io(_) | vfs::Error::Corrupt(_) => Ok(Cause::new(error)),
            other => Err(other),
        }
    }
}

/// Takes a piece of a file: its offset and bytes.
pub(crate) type Sink<'s, E> = dyn FnMut(u64, &[u8]) -> Result<(), E> + 's;

/// A file that is being read.
struct Reading<'r, C: Content> {
    content: &'r C,
    buf: &'r mut [u8],
    salvage: &'r mut Salvage,
    sink: &'r mut Sink<'r, C::Error>,
    /// The end of the data that is being read.
    end: u64,
}

/// Hands all data of a file of `size` bytes to `sink`; between the pieces are holes, or damage that
/// `salvage` gets. `buf` bounds a piece.
///
/// # Errors
/// An error of the file that is no damage; the first error of `sink`.
pub(crate) fn read_data<'r, C: Content>(
    content: &'r C,
    size: u64,
    buf: &'r mut [u8],
    salvage: &'r mut Salvage,
    sink: &'r mut Sink<'r, C::Error>,
) -> Result<(), C::Error> {
    let mut reading = Reading {
        content,
        buf,
        salvage,
        sink,
        end: size,
    };
    let mut at = 0;
    loop {
        let start = match content.data(at) {
            Ok(Some(data)) => data,
            Ok(None) => return Ok(()),
            Err(error) => {
                let cause = C::damage(error)?;
                let end = resumes(content, at, size);
                if end <= at || reading.salvage.add(at..end, cause).is_break() || end >= size {
                    return Ok(());
                }
                at = end;
                continue;
            }
        };
        at = match content.hole(start) {
            Ok(hole) => hole,
            Err(error) => {
                C::damage(error)?;
                let piece = start.saturating_add(reading.buf.len() as u64);
                piece.min(size.max(start.saturating_add(1)))
            }
        };
        reading.end = at;
        if reading.range(start, at)?.is_break() {
            return Ok(());
        }
    }
}

/// Like [`read_data`], for a range of a file and without a search for data.
///
/// # Errors
/// The errors of [`read_data`].
pub(crate) fn read_range<'r, C: Content>(
    content: &'r C,
    range: Range<u64>,
    buf: &'r mut [u8],
    salvage: &'r mut Salvage,
    sink: &'r mut Sink<'r, C::Error>,
) -> Result<(), C::Error> {
    let mut reading = Reading {
        content,
        buf,
        salvage,
        sink,
        end: range.end,
    };
    reading.range(range.start, range.end).map(drop)
}

/// An offset after `at` from which data can be searched for, at most [`UNIT`] bytes after the first
/// such offset; `size` if there is none.
fn resumes<C: Content>(content: &C, at: u64, size: u64) -> u64 {
    let (mut bad, mut step) = (at, UNIT as u64);
    let mut good = loop {
        let next = at.saturating_add(step);
        if next >= size {
            break size;
        }
        if content.data(next).is_ok() {
            break next;
        }
        bad = next;
        step = step.saturating_mul(2);
    };
    while good.saturating_sub(bad) > UNIT as u64 {
        let middle = bad + (good - bad) / 2;
        match content.data(middle) {
            Ok(_) => good = middle,
            Err(_) => bad = middle,
        }
    }
    good
}

impl<C: Content> Reading<'_, C> {
    /// Reads a range. Breaks if reading ends in it.
    fn range(&mut self, mut at: u64, end: u64) -> Result<ControlFlow<()>, C::Error> {
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(usize::MAX);
            let want = want.min(self.buf.len());
            let buf = self.buf.get_mut(..want).unwrap_or_default();
            let after = at.saturating_add(want as u64);
            match self.content.read(at, buf) {
                Ok(0) => return Ok(Break(())),
                Ok(count) => {
                    (self.sink)(at, self.buf.get(..count).unwrap_or_default())?;
                    at = at.saturating_add(count as u64);
                    continue;
                }
                Err(error) => {
                    let cause = C::damage(error)?;
                    if self.around(at, after, cause)?.is_break() {
                        return Ok(Break(()));
                    }
                }
            }
            at = after;
        }
        Ok(Continue(()))
    }

    /// Reads the readable parts of a range that cannot be read at once.
    fn around(&mut self, at: u64, end: u64, cause: Cause) -> Result<ControlFlow<()>, C::Error> {
        let unit = UNIT as u64;
        if end - at <= unit {
            if self.salvage.add(at..end, cause).is_continue() {
                return Ok(Continue(()));
            }
            self.measure(end);
            return Ok(Break(()));
        }
        let middle = at + ((end - at) / 2).next_multiple_of(unit);
        match self.range(at, middle)? {
            Continue(()) => self.range(middle, end),
            Break(()) => Ok(Break(())),
        }
    }

    /// Adds the unreadable bytes that follow the damage at which reading ends: from `at`, at most
    /// as many as a buffer has.
    fn measure(&mut self, at: u64) {
        let last = at.saturating_add(self.buf.len() as u64).min(self.end);
        for start in (at..last).step_by(UNIT) {
            let end = last.min(start.saturating_add(UNIT as u64));
            let length = usize::try_from(end - start).unwrap_or(UNIT);
            let buf = self.buf.get_mut(..length).unwrap_or_default();
            let Some(Ok(cause)) = self.content.read(start, buf).err().map(C::damage) else {
                return;
            };
            // Reading ends in any case.
            let _ = self.salvage.add(start..end, cause);
        }
    }
}

#[cfg(test)]
#[expect(
    clippy::single_range_in_vec_init,
    reason = "a list of ranges may have one"
)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    /// A file whose byte is the number of its unit, with damage in its data and in its map.
    #[derive(Default)]
    struct Damaged {
        data: Vec<Range<u64>>,
        map: Vec<Range<u64>>,
        holes: Vec<Range<u64>>,
    }

    fn bad() -> vfs::Error {
        vfs::Error::Io(Cause::new("planted"))
    }

    impl Content for Damaged {
        type Error = vfs::Error;

        fn read(&self, at: u64, buf: &mut [u8]) -> vfs::Result<usize> {
            let end = SIZE.min(at + buf.len() as u64);
            if self.data.iter().any(|bad| bad.start < end && at < bad.end) {
                return Err(bad());
            }
            for (offset, byte) in (at..end).zip(&mut *buf) {
                *byte = (offset / UNIT as u64) as u8;
            }
            Ok(end.saturating_sub(at) as usize)
        }

        fn data(&self, at: u64) -> vfs::Result<Option<u64>> {
            if self.map.iter().any(|bad| bad.contains(&at)) {
                return Err(bad());
            }
            let hole = self.holes.iter().find(|hole| hole.contains(&at));
            let at = hole.map_or(at, |hole| hole.end);
            Ok((at < SIZE).then_some(at))
        }

        fn hole(&self, at: u64) -> vfs::Result<u64> {
            if self.map.iter().any(|bad| bad.start >= at) {
                return Err(bad());
            }
            let holes = self.holes.iter().map(|hole| hole.start);
            Ok(holes.filter(|hole| *hole >= at).min().unwrap_or(SIZE))
        }

        fn damage(error: vfs::Error) -> vfs::Result<Cause> {
            InImage::damage(error)
        }
    }

    /// The ranges that were read, and the unreadable parts.
    fn read(file: &Damaged, keep_going: bool) -> (Vec<Range<u64>>, Salvage) {
        let mut salvage = Salvage::new(keep_going, Stop::new());
        let mut pieces: Vec<Range<u64>> = Vec::new();
        let mut sink = |at: u64, data: &[u8]| {
            for (offset, byte) in (at..).zip(data) {
                assert_eq!(*byte, (offset / UNIT as u64) as u8, "{offset}");
            }
            let end = at + data.len() as u64;
            match pieces.last_mut() {
                Some(last) if last.end == at => last.end = end,
                _ => pieces.push(at..end),
            }
            Ok(())
        };
        let mut buf = vec![0; 256 << 10];
        read_data(file, SIZE, &mut buf, &mut salvage, &mut sink).unwrap();
        (pieces, salvage)
    }

    fn ranges(salvage: Salvage) -> Vec<Range<u64>> {
        salvage.found().map_or(Vec::new(), |found| found.ranges)
    }

    #[test]
    fn reading_ends_at_the_damage_unless_it_keeps_going() {
        let file = Damaged {
            data: vec![40960..45056, 500_000..500_001],
            ..Damaged::default()
        };
        let (pieces, salvage) = read(&file, false);
        assert_eq!(pieces, [0..40960]);
        assert_eq!(salvage.length(SIZE), 40960);
        assert_eq!(ranges(salvage), [40960..45056]);
        let (pieces, salvage) = read(&file, true);
        let unit = 499_712..499_712 + UNIT as u64;
        assert_eq!(pieces, [0..40960, 45056..unit.start, unit.end..SIZE]);
        assert_eq!(salvage.length(SIZE), SIZE);
        assert_eq!(ranges(salvage), [40960..45056, unit]);
    }

    #[test]
    fn damage_of_the_map_is_skipped() {
        let (first, after) = (256 << 10, 300 << 10);
        let file = Damaged {
            map: vec![100 << 10..after],
            ..Damaged::default()
        };
        let (pieces, salvage) = read(&file, true);
        assert_eq!(pieces, [0..first, after..SIZE]);
        assert_eq!(ranges(salvage), [first..after]);
        let (pieces, salvage) = read(&file, false);
        assert_eq!(pieces, [0..first]);
        assert_eq!(salvage.length(SIZE), first);
        let lost = Damaged {
            data: vec![90 << 10..SIZE],
            map: vec![90 << 10..SIZE],
            ..Damaged::default()
        };
        for keep_going in [false, true] {
            let (pieces, salvage) = read(&lost, keep_going);
            assert_eq!(pieces, [0..90 << 10]);
            assert_eq!(
                ranges(salvage).first().map(|first| first.start),
                Some(90 << 10)
            );
        }
    }

    #[test]
    fn a_message_names_the_first_ranges() {
        let mut damage = Damage::new(0..1024, Cause::new("planted"));
        assert_eq!(damage.to_string(), "bytes 0-1023 cannot be read: planted");
        damage.add(&(1024..2048));
        damage.add(&(4096..5120));
        let text = "bytes 0-2047, 4096-5119 (3072 bytes in all) cannot be read: planted";
        assert_eq!(damage.to_string(), text);
        for number in 2..NAMED as u64 + 3 {
            damage.add(&(number << 20..(number << 20) + 1));
        }
        assert_eq!(damage.ranges().len(), NAMED);
        assert!(damage.to_string().contains(" and 3 more ranges ("));
    }
}
