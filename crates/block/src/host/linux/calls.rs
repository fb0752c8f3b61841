//! System calls that make writes durable, and system calls without a safe wrapper.
//!
//! Only this module makes the calls that [`FileDevice`](crate::FileDevice) promises (a flush is an
//! `fdatasync`, a FUA write has `RWF_DSYNC`), and each records a [`Call`] in the crate's tests.
//! Interrupted calls are repeated.
//!
//! Unsafe because an `ioctl` number determines how the kernel uses the pointer. Each call here
//! pairs the number with the type from the kernel's documentation (`linux/fs.h`: `BLKGETSIZE64`
//! writes a `u64`, `BLKROGET` a C `int`, `BLKDISCARD` reads two `u64`; `linux/loop.h`). The `fcntl`
//! of a lock reads and writes one `struct flock`. `sync_file_range` and `dup3` take no pointer.
#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use rustix::fs::{Advice, FallocateFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags, Result, retry_on_intr};
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};

use super::loop_device::LoopTarget;
use crate::host::Call;
use crate::host::calls;

/// The error number of a connection that was shut down.
pub(crate) const SHUT_DOWN: i32 = libc::ESHUTDOWN;
/// A write can be durable on return.
pub(crate) const WRITES_THROUGH: bool = true;

/// The kernel encodes the size of `size_t` in the number, but writes 64 bits.
const BLKGETSIZE64: Opcode = opcode::read::<usize>(0x12, 114);
const BLKDISCARD: Opcode = opcode::none(0x12, 119);
const BLKROGET: Opcode = opcode::none(0x12, 94);
const LOOP_GET_STATUS64: Opcode = 0x4c05;

/// `struct loop_info64`: 232 bytes on every architecture.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    numbers: [u32; 4],
    names_and_key: [u8; 64 + 64 + 32],
    init: [u64; 2],
}

const _: () = assert!(size_of::<LoopInfo>() == 232);

/// Reads at `offset`. Returns the number of bytes; 0 at the end of the file.
pub(crate) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    Ok(retry_on_intr(|| {
        rustix::io::pread(file, &mut *buf, offset)
    })?)
}

/// Fills `buf` from `offset`.
pub(crate) fn read_exact_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(buf, offset)
}

/// Writes all of `buf` at `offset`.
pub(crate) fn write_all_at(file: &File, buf: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(buf, offset)
}

/// Makes all writes to `file` durable.
pub(crate) fn data_sync(file: &File) -> io::Result<()> {
    Ok(retry_on_intr(|| {
        calls::made(Call::DataSync);
        rustix::fs::fdatasync(file)
    })?)
}

/// Writes `slices` at `at`. They are durable on return if `through`. Returns the number of bytes.
pub(crate) fn write(
    file: &File,
    slices: &[IoSlice<'_>],
    at: u64,
    through: bool,
) -> io::Result<usize> {
    Ok(retry_on_intr(|| {
        if through {
            calls::made(Call::WriteThrough);
            rustix::io::pwritev2(file, slices, at, ReadWriteFlags::DSYNC)
        } else {
            calls::made(Call::Write);
            rustix::io::pwritev(file, slices, at)
        }
    })?)
}

/// Whether the host has no such operation for this file.
pub(crate) fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY)
    )
}

/// The first byte at `from` or after it that is in no hole. `None` if only a hole follows.
pub(crate) fn next_data(file: &File, from: u64) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The first hole at `from` or after it; the end of the file counts as one.
pub(crate) fn next_hole(file: &File, from: u64) -> io::Result<u64> {
    Ok(rustix::fs::seek(file, SeekFrom::Hole(from))?)
}

/// Starts to read a range into the page cache.
pub(crate) fn will_read(file: &File, offset: u64, len: u64) {
    // The system call takes a length of 0 for everything up to the end of the file.
    let Some(len) = NonZeroU64::new(len) else {
        return;
    };
    let _ = rustix::fs::fadvise(file, offset, Some(len), Advice::WillNeed);
}

/// Drops the pages of a range from the page cache, unless they are dirty.
pub(crate) fn drop_cached(file: &File, offset: u64, len: u64) {
    // Pages that the range covers only in part would stay.
    const PAGE: u64 = 64 << 10;
    let start = offset - offset % PAGE;
    let end = offset
        .saturating_add(len)
        .div_ceil(PAGE)
        .saturating_mul(PAGE);
    let Some(len) = NonZeroU64::new(end.saturating_sub(start)) else {
        return;
    };
    let _ = rustix::fs::fadvise(file, start, Some(len), Advice::DontNeed);
}

/// Makes a hole of a range of a file.
pub(crate) fn punch_hole(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(retry_on_intr(|| {
        rustix::fs::fallocate(file, punch, offset, len)
    })?)
}

/// Discards `len` bytes of a block device at `start`; both are multiples of the logical block size.
pub(crate) fn discard_blocks(file: &File, start: u64, len: u64) -> io::Result<()> {
    Ok(retry_on_intr(|| discard(file, start, len))?)
}

/// The error of a failed [`begin_writeback`], unless the host merely did not start: then it writes
/// during the flush.
pub(crate) fn writeback_failed(error: &io::Error) -> Option<i32> {
    match Errno::from_io_error(error) {
        Some(
            Errno::INVAL | Errno::SPIPE | Errno::NOSYS | Errno::INTR | Errno::AGAIN | Errno::NOMEM,
        ) => None,
        errno => Some(errno.unwrap_or(Errno::IO).raw_os_error()),
    }
}

/// `/dev/null`, opened once.
fn null() -> io::Result<&'static File> {
    static NULL: OnceLock<File> = OnceLock::new();
    if let Some(null) = NULL.get() {
        return Ok(null);
    }
    let opened = File::open("/dev/null")?;
    Ok(NULL.get_or_init(|| opened))
}

/// Prepares for [`release`]. The open of a device calls it, because a process that has opened its
/// image may be confined.
pub(crate) fn prepare_release() {
    // Without it the device can be used, but not released.
    let _ = null();
}

/// Ends the locks of `file`, and makes its descriptor useless. It stays open, so that a late
/// request cannot reach another file that reuses its number: it is replaced by `/dev/null`, opened
/// read-only.
pub(crate) fn release(file: &File) -> io::Result<()> {
    // The lock ends when no request can reach the file any more.
    let locked = file.try_clone();
    replace(file, null()?)?;
    if let Ok(locked) = locked {
        super::unlock(&locked);
    }
    Ok(())
}

/// Bytes of a name as a part of a path.
pub(crate) fn os_str(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// Bytes of a name as a path.
pub(crate) fn os_string(bytes: Vec<u8>) -> OsString {
    OsString::from_vec(bytes)
}

/// Size of a block device in bytes.
pub(super) fn device_size(file: &File) -> Result<u64> {
    // SAFETY: BLKGETSIZE64 writes one u64 to the pointer, which Getter provides.
    unsafe { ioctl(file, Getter::<BLKGETSIZE64, u64>::new()) }
}

/// Whether a block device is write-protected. The kernel allows opening such a device for writing,
/// accepts writes into its cache, and loses them.
pub(super) fn is_write_protected(device: &File) -> Result<bool> {
    // SAFETY: BLKROGET writes one C int to the pointer, which Getter provides.
    let flag = unsafe { ioctl(device, Getter::<BLKROGET, libc::c_int>::new()) }?;
    Ok(flag != 0)
}

fn discard(file: &File, start: u64, len: u64) -> Result<()> {
    // SAFETY: BLKDISCARD reads two u64 (start, length) from the pointer.
    unsafe { ioctl(file, Setter::<BLKDISCARD, [u64; 2]>::new([start, len])) }
}

/// Makes the host start to write the dirty pages of a range, without waiting.
pub(crate) fn begin_writeback(file: &File, start: u64, len: u64) -> io::Result<()> {
    let offset = |number: u64| i64::try_from(number).map_err(|_| Errno::INVAL);
    let (start, len) = (offset(start)?, offset(len)?);
    let flags = libc::SYNC_FILE_RANGE_WRITE;
    calls::made(Call::BeginWriteback);
    // SAFETY: the descriptor is open as long as `file` is borrowed; only numbers are passed
    // otherwise.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), start, len, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Replaces the open file of `file` with the open file of `with`, and closes the old one.
pub(super) fn replace(file: &File, with: &File) -> Result<()> {
    // SAFETY: both descriptors are open and stay open, with the same numbers and owners.
    match unsafe { libc::dup3(with.as_raw_fd(), file.as_raw_fd(), libc::O_CLOEXEC) } {
        -1 => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(()),
    }
}

/// Takes a shared lock on a byte, for the open file description.
pub(super) fn lock_byte(file: &File, byte: u64) -> Result<()> {
    lock_call(file, libc::F_OFD_SETLK, libc::F_RDLCK, byte, 1)?;
    Ok(())
}

/// Releases all locks on bytes that the open file description has.
pub(super) fn unlock_bytes(file: &File) -> Result<()> {
    lock_call(file, libc::F_OFD_SETLK, libc::F_UNLCK, 0, 0)?;
    Ok(())
}

/// The bytes of a lock on this byte that is not of this open file description.
pub(super) fn lock_on(file: &File, byte: u64) -> Result<Option<Range<u64>>> {
    let found = lock_call(file, libc::F_OFD_GETLK, libc::F_WRLCK, byte, 1)?;
    if found.l_type == number(libc::F_UNLCK)? {
        return Ok(None);
    }
    let start = u64::try_from(found.l_start).unwrap_or(0);
    // A length of zero means to the end of the file.
    let end = match u64::try_from(found.l_len) {
        Ok(0) | Err(_) => u64::MAX,
        Ok(len) => start.saturating_add(len),
    };
    Ok(Some(start..end))
}

/// Makes one call on a lock, and returns the kernel's answer.
fn lock_call(
    file: &File,
    command: libc::c_int,
    kind: libc::c_int,
    start: u64,
    len: u64,
) -> Result<libc::flock> {
    // SAFETY: `struct flock` has only integers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = number(kind)?;
    lock.l_whence = number(libc::SEEK_SET)?;
    lock.l_start = number(start)?;
    lock.l_len = number(len)?;
    loop {
        // SAFETY: the descriptor is open as long as `file` is borrowed; these commands read and
        // write one `struct flock`.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } == 0 {
            return Ok(lock);
        }
        match Errno::from_io_error(&io::Error::last_os_error()) {
            Some(Errno::INTR) => {}
            errno => return Err(errno.unwrap_or(Errno::IO)),
        }
    }
}

/// A number in the type of a field.
fn number<T: TryFrom<F>, F>(value: F) -> Result<T> {
    T::try_from(value).map_err(|_| Errno::INVAL)
}

/// The file below an open loop device.
pub(super) fn loop_target(device: &File) -> Result<LoopTarget> {
    // SAFETY: LOOP_GET_STATUS64 writes one `struct loop_info64` to the pointer, which LoopInfo is.
    let info = unsafe { ioctl(device, Getter::<LOOP_GET_STATUS64, LoopInfo>::new()) }?;
    Ok(LoopTarget {
        device: decoded(info.device),
        inode: info.inode,
        block_device: decoded(info.rdevice),
        offset: info.offset,
        size_limit: info.size_limit,
    })
}

/// Decodes major and minor of a device number in the kernel's 32-bit encoding for user space.
fn decoded(device: u64) -> (u32, u32) {
    let bits = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let major = (device >> 8) & 0xfff;
    let minor = (device & 0xff) | ((device >> 12) & 0xf_ff00);
    (bits(major), bits(minor))
}
