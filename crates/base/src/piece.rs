//! Bytes of file data in memory, in buffers that are reused.
//!
//! # How it works
//! A [`Piece`] has a buffer of its own, or shares one with others ([`SharedBytes`]), so that data
//! that a program read into such a buffer is not copied again. Shared bytes are copied before they
//! change.
//!
//! Buffers come from a pool of the process, and return to it when they are dropped. The
//! pool hands out the buffer that was returned last, because its memory is mapped and in the
//! processor's caches. The allocator would not cache such a buffer, because it is large and
//! released by another thread than the one that allocated it; it would return the memory to the
//! system. The pool keeps at most `MOST_BYTES`. Buffers smaller than `LEAST` come from the
//! allocator.

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use parking_lot::Mutex;

/// Smallest buffer of the pool, in bytes.
pub(crate) const LEAST: usize = 32 << 10;
/// Largest buffer of the pool, in bytes.
const MOST: usize = 1 << 20;
/// Bytes that the pool keeps at most.
const MOST_BYTES: usize = 4 << 20;

static POOL: Mutex<Pool> = Mutex::new(Pool::new());

/// Unused buffers, the most recently returned one at the end.
struct Pool {
    buffers: Vec<Vec<u8>>,
    /// Sum of their capacities.
    bytes: usize,
}

impl Pool {
    const fn new() -> Self {
        Self {
            buffers: Vec::new(),
            bytes: 0,
        }
    }

    /// An empty buffer with room for `len` bytes, and for not much more than that.
    fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        let fits = |buffer: &Vec<u8>| (len..=2 * len).contains(&buffer.capacity());
        let buffer = self.buffers.remove(self.buffers.iter().rposition(fits)?);
        self.bytes -= buffer.capacity();
        Some(buffer)
    }

    /// Keeps a buffer; returns the oldest one if there are too many bytes.
    fn keep(&mut self, mut buffer: Vec<u8>) -> Option<Vec<u8>> {
        buffer.clear();
        self.bytes += buffer.capacity();
        self.buffers.push(buffer);
        if self.bytes <= MOST_BYTES {
            return None;
        }
        let oldest = self.buffers.remove(0);
        self.bytes -= oldest.capacity();
        Some(oldest)
    }
}

/// A buffer, which the pool gets back.
#[derive(Debug, Default)]
struct Buffer(Vec<u8>);

impl Buffer {
    /// An empty buffer with room for `len` bytes.
    fn with_room(len: usize) -> Self {
        let pooled = (LEAST..=MOST).contains(&len);
        let found = pooled.then(|| POOL.lock().take(len)).flatten();
        Self(found.unwrap_or_else(|| Vec::with_capacity(len)))
    }

    fn copy_of(bytes: &[u8]) -> Self {
        let mut buffer = Self::with_room(bytes.len());
        buffer.0.extend_from_slice(bytes);
        buffer
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if (LEAST..=MOST).contains(&self.0.capacity()) {
            // The lock is not held when the oldest buffer is released.
            let oldest = POOL.lock().keep(std::mem::take(&mut self.0));
            drop(oldest);
        }
    }
}

/// Part of the bytes of a buffer that has several owners. Nothing changes them.
#[derive(Debug, Clone)]
pub struct SharedBytes {
    buffer: Arc<Buffer>,
    range: Range<usize>,
}

impl SharedBytes {
    /// Reads bytes into a new buffer by `fill`, which gets an empty one with room for `len` bytes.
    ///
    /// # Errors
    /// The error of `fill`.
    pub fn filled<E>(
        len: usize,
        fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut buffer = Buffer::with_room(len);
        fill(&mut buffer.0)?;
        let range = 0..buffer.0.len();
        Ok(Self {
            buffer: Arc::new(buffer),
            range,
        })
    }

    /// The first `len` bytes, or all of them.
    #[must_use]
    pub fn first(&self, len: usize) -> Self {
        let (start, end) = (self.range.start, self.range.end);
        self.with_range(start..end.min(start.saturating_add(len)))
    }

    /// The bytes after the first `len` ones.
    #[must_use]
    pub fn after(&self, len: usize) -> Self {
        let (start, end) = (self.range.start, self.range.end);
        self.with_range(end.min(start.saturating_add(len))..end)
    }

    fn with_range(&self, range: Range<usize>) -> Self {
        Self {
            buffer: Arc::clone(&self.buffer),
            range,
        }
    }

    /// The owner of `part`, if that is a part of these bytes.
    #[must_use]
    pub fn owner_of(&self, part: &[u8]) -> Option<Self> {
        let place = |bytes: &[u8]| bytes.as_ptr() as usize;
        let start = place(part).checked_sub(place(&self.buffer.0))?;
        let range = start..start.checked_add(part.len())?;
        let is_inside = range.start >= self.range.start && range.end <= self.range.end;
        is_inside.then(|| self.with_range(range))
    }

    /// These bytes, and zeros up to a length of `len`, if zeros follow them in the buffer.
    #[must_use]
    pub fn with_zeros(&self, len: usize) -> Option<Self> {
        let end = self.range.start.checked_add(len)?;
        let zeros = self.buffer.0.get(self.range.end..end)?;
        let are_zero = zeros.iter().all(|byte| *byte == 0);
        are_zero.then(|| self.with_range(self.range.start..end))
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.0.get(self.range.clone()).unwrap_or_default()
    }
}

/// Data to write.
#[derive(Debug, Clone)]
pub enum WriteData<'d> {
    /// Bytes that are copied.
    Borrowed(&'d [u8]),
    /// Bytes that may be kept.
    Shared(SharedBytes),
}

impl<'d> WriteData<'d> {
    /// The first `len` bytes and the rest.
    #[must_use]
    pub fn split_at(&self, len: usize) -> (Self, Self) {
        match self {
            Self::Borrowed(bytes) => {
                let (front, back) = bytes.split_at_checked(len).unwrap_or((bytes, &[]));
                (Self::Borrowed(front), Self::Borrowed(back))
            }
            Self::Shared(bytes) => (
                Self::Shared(bytes.first(len)),
                Self::Shared(bytes.after(len)),
            ),
        }
    }

    /// The data with zeros up to a length of `len`, if that takes no copy.
    #[must_use]
    pub fn with_zeros(&self, len: usize) -> Option<Self> {
        match self {
            Self::Borrowed(_) => None,
            Self::Shared(bytes) => bytes.with_zeros(len).map(Self::Shared),
        }
    }
}

impl<'d> From<&'d [u8]> for WriteData<'d> {
    fn from(bytes: &'d [u8]) -> Self {
        Self::Borrowed(bytes)
    }
}

impl Deref for WriteData<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// Bytes of file data.
#[derive(Debug, Default)]
pub struct Piece {
    own: Buffer,
    /// The bytes, unless the piece has a buffer of its own.
    shared: Option<SharedBytes>,
}

impl Piece {
    /// A copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        Self {
            own: Buffer::copy_of(bytes),
            shared: None,
        }
    }

    /// The bytes, for a change. Shared ones are copied.
    fn own(&mut self) -> &mut Vec<u8> {
        if let Some(bytes) = self.shared.take() {
            self.own = Buffer::copy_of(&bytes);
        }
        &mut self.own.0
    }

    /// Adds bytes at its end.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.own().extend_from_slice(bytes);
    }

    /// Splits off the bytes from `at` on.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        if let Some(bytes) = &mut self.shared {
            let rest = bytes.after(at);
            *bytes = bytes.first(at);
            return rest.into();
        }
        let rest = Self::copy_of(self.own.0.get(at..).unwrap_or_default());
        self.own.0.truncate(at);
        rest
    }
}

impl PartialEq for Piece {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl From<Vec<u8>> for Piece {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            own: Buffer(bytes),
            shared: None,
        }
    }
}

impl From<SharedBytes> for Piece {
    fn from(bytes: SharedBytes) -> Self {
        Self {
            own: Buffer::default(),
            shared: Some(bytes),
        }
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.shared.as_deref().unwrap_or(&self.own.0)
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.own()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_buffer_that_fits_goes_out_first() {
        let mut pool = Pool::new();
        for size in [LEAST, 2 * LEAST, 2 * LEAST, 8 * LEAST] {
            assert!(pool.keep(Vec::with_capacity(size)).is_none());
        }
        let last = pool.buffers.get(2).map(|buffer| buffer.as_ptr());
        let found = pool.take(2 * LEAST);
        assert_eq!(found.as_ref().map(|found| found.as_ptr()), last);
        assert!(pool.take(3 * LEAST).is_none(), "the last one is too large");
        assert!(pool.take(8 * LEAST).is_some());
        assert_eq!(pool.bytes, 3 * LEAST);
    }

    #[test]
    fn the_pool_keeps_a_bounded_number_of_bytes() {
        let mut pool = Pool::new();
        for number in 0..100 {
            let mut buffer = Vec::with_capacity(MOST / 2);
            buffer.push(number);
            pool.keep(buffer);
            assert!(pool.bytes <= MOST_BYTES);
        }
        assert_eq!(pool.bytes, MOST_BYTES);
        let sum: usize = pool.buffers.iter().map(Vec::capacity).sum();
        assert_eq!(pool.bytes, sum);
        assert!(pool.buffers.iter().all(Vec::is_empty));
    }

    #[test]
    fn a_piece_has_its_own_bytes_only() {
        let mut first = Piece::copy_of(&[1; 2 * LEAST]);
        let rest = first.split_off(LEAST);
        first.extend_from_slice(&[2]);
        assert_eq!((first.len(), rest.len()), (LEAST + 1, LEAST));
        assert_eq!((first[0], first[LEAST], rest[0]), (1, 2, 1));
        drop(first);
        let again = Piece::copy_of(&[3; LEAST]);
        assert_eq!(*again, [3; LEAST]);
    }

    fn shared(bytes: &[u8]) -> SharedBytes {
        let fill = |buffer: &mut Vec<u8>| {
            buffer.extend_from_slice(bytes);
            Ok::<_, ()>(())
        };
        SharedBytes::filled(bytes.len(), fill).unwrap()
    }

    #[test]
    fn shared_bytes_are_copied_before_they_change() {
        let bytes = shared(&[1, 2, 3, 4, 0, 0]);
        let mut first = Piece::from(bytes.first(4));
        let rest = first.split_off(1);
        assert_eq!((&*first, &*rest), (&[1][..], &[2, 3, 4][..]));
        let mut changed = Piece::from(bytes.clone());
        changed[0] = 9;
        first.extend_from_slice(&[8]);
        assert_eq!((&*changed, &*first), (&[9, 2, 3, 4, 0, 0][..], &[1, 8][..]));
        assert_eq!(*bytes, [1, 2, 3, 4, 0, 0]);
    }

    #[test]
    fn zeros_of_the_buffer_make_shared_bytes_longer() {
        let bytes = shared(&[1, 2, 0, 0, 5]);
        let data = WriteData::Shared(bytes.first(2));
        assert_eq!(&*data.with_zeros(4).unwrap(), [1, 2, 0, 0]);
        assert!(data.with_zeros(5).is_none(), "a byte is not zero");
        assert!(
            WriteData::Shared(bytes.after(2)).with_zeros(4).is_none(),
            "the buffer ends"
        );
        assert!(WriteData::from(&[1_u8][..]).with_zeros(2).is_none());
    }

    #[test]
    fn a_part_of_shared_bytes_has_the_same_owner() {
        let bytes = shared(&[1, 2, 3, 4]);
        let part = bytes.after(1).first(2);
        assert_eq!(&*bytes.owner_of(&bytes[1..3]).unwrap(), [2, 3]);
        assert!(part.owner_of(&bytes[..2]).is_none());
        assert!(bytes.owner_of(&[2, 3]).is_none());
        let (front, back) = WriteData::Shared(part).split_at(1);
        assert_eq!((&*front, &*back), (&[2][..], &[3][..]));
        let (front, back) = WriteData::from(&[1_u8, 2][..]).split_at(9);
        assert_eq!((&*front, &*back), (&[1, 2][..], &[][..]));
    }
}
