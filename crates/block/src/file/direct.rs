//! Unaligned requests on a descriptor opened with `O_DIRECT`.
//!
//! The host requires aligned offsets, lengths and memory. Other requests are copied through an
//! aligned buffer of bounded size. A write of part of a block reads the block, changes it and
//! writes it back. Two such writes to one block could undo each other, so a lock serializes them.
//! Whole-block writes need no lock: if one overlaps a partial write, it overlaps the same bytes,
//! and such a pair has no defined order.

use parking_lot::Mutex;

use super::FileDevice;
use crate::Result;

/// Most bytes that are copied at once.
const CHUNK: u64 = 1 << 20;

/// Alignment of a direct descriptor.
#[derive(Debug)]
pub(super) struct Direct {
    /// In bytes; a power of two.
    align: u64,
    partial_writes: Mutex<()>,
}

impl Direct {
    pub(super) fn new(align: u64) -> Self {
        Self {
            align,
            partial_writes: Mutex::new(()),
        }
    }

    pub(super) fn is_aligned(&self, value: u64) -> bool {
        value & (self.align - 1) == 0
    }

    fn fits(&self, offset: u64, buf: &[u8]) -> bool {
        self.is_aligned(offset)
            && self.is_aligned(buf.len() as u64)
            && self.is_aligned(buf.as_ptr() as u64)
    }

    /// Fills `buf` from `offset`.
    pub(super) fn read(&self, device: &FileDevice, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.fits(offset, buf) {
            return device.read_full(offset, buf);
        }
        let mut bounce = Bounce::new(self.align);
        let mut done = 0;
        while done < buf.len() {
            let piece = self.piece(offset + done as u64, buf.len() - done);
            let block = bounce.get(piece.block_len);
            device.read_full(piece.start, block)?;
            buf[done..done + piece.len].copy_from_slice(&block[piece.skip..piece.skip + piece.len]);
            done += piece.len;
        }
        Ok(())
    }

    /// Writes `buf` at `offset`. It is durable on return if `through`.
    pub(super) fn write(
        &self,
        device: &FileDevice,
        offset: u64,
        buf: &[u8],
        through: bool,
    ) -> Result<()> {
        if self.fits(offset, buf) {
            return device.write_full(offset, buf, through);
        }
        let mut bounce = Bounce::new(self.align);
        let mut done = 0;
        while done < buf.len() {
            let piece = self.piece(offset + done as u64, buf.len() - done);
            let block = bounce.get(piece.block_len);
            let partial = piece.len < piece.block_len;
            let _turn = partial.then(|| self.partial_writes.lock());
            if partial {
                device.read_full(piece.start, block)?;
            }
            block[piece.skip..piece.skip + piece.len].copy_from_slice(&buf[done..done + piece.len]);
            device.write_full(piece.start, block, through)?;
            done += piece.len;
        }
        Ok(())
    }

    /// The next aligned piece of a request that has `left` bytes left at `at`.
    fn piece(&self, at: u64, left: usize) -> Piece {
        let start = at & !(self.align - 1);
        let end = (at + left as u64)
            .next_multiple_of(self.align)
            .min(start + CHUNK);
        let skip = (at - start) as usize;
        let block_len = (end - start) as usize;
        Piece {
            start,
            block_len,
            skip,
            len: left.min(block_len - skip),
        }
    }
}

/// An aligned piece of the device, and the part of it that the request covers.
struct Piece {
    /// Aligned byte offset.
    start: u64,
    /// Aligned length.
    block_len: usize,
    /// Bytes of the piece before the request's part.
    skip: usize,
    /// Bytes of the request in this piece.
    len: usize,
}

/// Memory with an aligned start, grown on demand.
struct Bounce {
    memory: Vec<u8>,
    align: usize,
}

impl Bounce {
    fn new(align: u64) -> Self {
        Self {
            memory: Vec::new(),
            align: align as usize,
        }
    }

    fn get(&mut self, len: usize) -> &mut [u8] {
        let room = len + self.align;
        if self.memory.len() < room {
            self.memory = vec![0; room];
        }
        let address = self.memory.as_ptr() as usize;
        let start = address.next_multiple_of(self.align) - address;
        &mut self.memory[start..start + len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_request_without_gap() {
        let direct = Direct::new(4096);
        for (offset, len) in [
            (0, 1),
            (4095, 2),
            (5000, 3 << 20),
            (4096, 4096),
            (1, 1 << 20),
        ] {
            let mut done = 0;
            while done < len {
                let at = offset + done as u64;
                let piece = direct.piece(at, len - done);
                assert!(
                    direct.is_aligned(piece.start) && direct.is_aligned(piece.block_len as u64)
                );
                assert_eq!(piece.start + piece.skip as u64, at);
                assert!(piece.len > 0 && piece.skip + piece.len <= piece.block_len);
                assert!(piece.block_len as u64 <= CHUNK);
                done += piece.len;
            }
            assert_eq!(done, len);
        }
    }

    #[test]
    fn bounce_memory_is_aligned() {
        let mut bounce = Bounce::new(4096);
        for len in [4096, 65536, 4096] {
            let block = bounce.get(len);
            assert_eq!(block.as_ptr() as usize % 4096, 0);
            assert_eq!(block.len(), len);
        }
    }
}
