//! Bytes of file data in memory, in buffers that are reused.
//!
//! # How it works
//! A [`Piece`] takes its buffer from a pool of the process, and returns it when it is dropped. The
//! pool hands out the buffer that was returned last, because its memory is mapped and in the
//! processor's caches. The allocator would not cache such a buffer, because it is large and
//! released by another thread than the one that allocated it; it would return the memory to the
//! system. The pool keeps at most `MOST_BYTES`. Buffers smaller than `LEAST` come from the
//! allocator.

use std::ops::{Deref, DerefMut};

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

/// Bytes of file data.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Piece(Vec<u8>);

impl Piece {
    /// A copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let pooled = (LEAST..=MOST).contains(&bytes.len());
        let found = pooled.then(|| POOL.lock().take(bytes.len())).flatten();
        let mut buffer = found.unwrap_or_else(|| Vec::with_capacity(bytes.len()));
        buffer.extend_from_slice(bytes);
        Self(buffer)
    }

    /// Adds bytes at its end.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Splits off the bytes from `at` on.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        let rest = Self::copy_of(self.0.get(at..).unwrap_or_default());
        self.0.truncate(at);
        rest
    }
}

impl From<Vec<u8>> for Piece {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if (LEAST..=MOST).contains(&self.0.capacity()) {
            // The lock is not held when the oldest buffer is released.
            let oldest = POOL.lock().keep(std::mem::take(&mut self.0));
            drop(oldest);
        }
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
}
