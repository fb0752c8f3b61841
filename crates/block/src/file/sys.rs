//! Two requests to a block device and one to a file that have no safe wrapper.
//!
//! Unsafe because an `ioctl` number decides what the kernel does with the pointer: each
//! call here pairs the number with the type that the kernel's documentation gives
//! (`linux/fs.h`: `BLKGETSIZE64` writes a `u64`, `BLKDISCARD` reads two `u64`).
//! `sync_file_range` takes no pointer.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use rustix::io::{Errno, Result};
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};

/// Declared by the kernel with the size of `size_t`, though it writes 64 bits.
const BLKGETSIZE64: Opcode = opcode::read::<usize>(0x12, 114);
const BLKDISCARD: Opcode = opcode::none(0x12, 119);

/// Size of a block device in bytes.
pub(super) fn device_size(file: &File) -> Result<u64> {
    // SAFETY: BLKGETSIZE64 writes one u64 to the pointer, which Getter provides.
    unsafe { ioctl(file, Getter::<BLKGETSIZE64, u64>::new()) }
}

/// Discards `len` bytes at `start`; both are multiples of the logical block size.
pub(super) fn discard(file: &File, start: u64, len: u64) -> Result<()> {
    // SAFETY: BLKDISCARD reads two u64 (start, length) from the pointer.
    unsafe { ioctl(file, Setter::<BLKDISCARD, [u64; 2]>::new([start, len])) }
}

/// Has the host begin to write what is dirty of a range, without waiting for it.
pub(super) fn begin_writeback(file: &File, start: u64, len: u64) -> Result<()> {
    let offset = |number: u64| i64::try_from(number).map_err(|_| Errno::INVAL);
    let (start, len) = (offset(start)?, offset(len)?);
    let flags = libc::SYNC_FILE_RANGE_WRITE;
    // SAFETY: the descriptor is open as long as `file` is borrowed; nothing else is passed but numbers.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), start, len, flags) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
