//! The memory of one ring entry, which the kernel reads and writes: a page for the headers, then
//! the payload.
//!
//! `unsafe`: pages are mapped, and passed to the kernel by address. The ring's mode (`ring.rs`)
//! ensures that safe references to them are exclusive: the kernel accesses them only within a
//! system call of the thread that owns the entry. They are mapped instead of allocated, so that
//! untouched pages take no memory and used ones can be returned.
#![expect(unsafe_code, reason = "see the module's text")]

use std::io;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Positions of the three headers in the protocol: request or answer, the opcode's struct, and the
/// ring's own header.
pub(super) const MESSAGE: std::ops::Range<usize> = 0..128;
pub(super) const STRUCT: std::ops::Range<usize> = 128..256;
pub(super) const RING: std::ops::Range<usize> = 256..288;
/// Size of the three headers.
const HEADERS: usize = 288;
/// Start of the payload, after the page of the headers.
const PAYLOAD: usize = 4096;

/// An entry's pages, and the two ranges of them that the kernel uses.
#[derive(Debug)]
pub(super) struct Memory {
    base: NonNull<u8>,
    payload: usize,
    /// The ranges that a registration points at.
    ranges: Box<[libc::iovec; 2]>,
}

// SAFETY: only this value refers to the pages, as with a `Vec`.
unsafe impl Send for Memory {}

impl Memory {
    /// Room for the headers and `payload` bytes.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn new(payload: usize) -> io::Result<Self> {
        let size = PAYLOAD
            .checked_add(payload)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let (read_write, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), size, read_write, private) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let range = |offset: usize, len: usize| libc::iovec {
            // SAFETY: within the mapping.
            iov_base: unsafe { base.add(offset) }.as_ptr().cast(),
            iov_len: len,
        };
        let ranges = Box::new([range(0, HEADERS), range(PAYLOAD, payload)]);
        Ok(Self {
            base,
            payload,
            ranges,
        })
    }

    /// Address and number of the ranges. They are valid as long as this value.
    pub(super) fn ranges(&self) -> (u64, u32) {
        (self.ranges.as_ptr().expose_provenance() as u64, 2)
    }

    /// Headers and payload.
    pub(super) fn parts(&mut self) -> (&mut [u8], &mut [u8]) {
        // SAFETY: two ranges of the mapping that do not overlap, borrowed from the value that owns
        // it. Zeroed pages, and pages that the kernel wrote, are initialized bytes.
        unsafe {
            let headers = std::slice::from_raw_parts_mut(self.base.as_ptr(), HEADERS);
            let payload =
                std::slice::from_raw_parts_mut(self.base.add(PAYLOAD).as_ptr(), self.payload);
            (headers, payload)
        }
    }

    /// Returns the payload's pages to the system until they are used again.
    pub(super) fn trim(&mut self) {
        // SAFETY: our pages, which no thread borrows. They read as zeros afterwards.
        let advised = unsafe {
            let start = self.base.add(PAYLOAD).as_ptr().cast();
            rustix::mm::madvise(start, self.payload, Advice::LinuxDontNeed)
        };
        if let Err(error) = advised {
            log::debug!("giving memory back: {error}");
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our mapping, which no thread uses any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), PAYLOAD + self.payload) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_match_the_registered_ranges() {
        let mut memory = Memory::new(10_000).unwrap_or_else(|error| panic!("{error}"));
        let told = [
            memory.ranges[0].iov_base.addr(),
            memory.ranges[1].iov_base.addr(),
        ];
        let (headers, payload) = memory.parts();
        assert_eq!(told, [headers.as_ptr().addr(), payload.as_ptr().addr()]);
        assert_eq!((headers.len(), payload.len()), (RING.end, 10_000));
        headers.fill(1);
        payload.fill(2);
        assert!(headers.iter().all(|&byte| byte == 1));
        memory.trim();
        let (headers, payload) = memory.parts();
        assert!(payload.iter().all(|&byte| byte == 0));
        assert!(headers.iter().all(|&byte| byte == 1));
    }
}
