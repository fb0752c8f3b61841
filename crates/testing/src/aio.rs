//! Asynchronous I/O for the tests of all crates.
//!
//! `unsafe`: the system calls of `io_submit(2)` and io_uring take addresses. A [`Queue`] owns the
//! buffers whose addresses it gives to the kernel, and waits for every write before it frees a
//! buffer.
#![expect(unsafe_code, reason = "see the module's text")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Alignment of direct I/O, in bytes.
pub const BLOCK: usize = 4096;

/// The system call that a program writes with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteCall {
    /// `pwritev2(2)`: the call waits for the write.
    Psync,
    /// `io_submit(2)`.
    Libaio,
    /// io_uring.
    Uring,
}

impl WriteCall {
    /// All engines.
    pub const ALL: [Self; 3] = [Self::Psync, Self::Libaio, Self::Uring];

    /// Writes at `offset` with `RWF_` flags and waits for the completion.
    ///
    /// # Errors
    /// An error of the kernel, or a short write.
    pub fn write(self, file: &File, offset: u64, data: &[u8], flags: i32) -> io::Result<()> {
        let done = match self {
            Self::Psync => psync(file, offset, data, flags)?,
            Self::Libaio => {
                let mut queue = Queue::new()?;
                queue.submit(file, offset, data, flags)?;
                queue.wait()?
            }
            Self::Uring => uring(file, offset, data, flags)?,
        };
        if done == data.len() {
            Ok(())
        } else {
            Err(io::Error::other(format!("{done} of {} bytes", data.len())))
        }
    }
}

/// Bytes at an address that is aligned for direct I/O.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    fn new(data: &[u8]) -> Self {
        let mut bytes = vec![0; data.len() + BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        bytes[start..start + data.len()].copy_from_slice(data);
        Self {
            bytes,
            start,
            len: data.len(),
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

fn psync(file: &File, offset: u64, data: &[u8], flags: i32) -> io::Result<usize> {
    let buffer = Buffer::new(data);
    if flags == 0 {
        return file.write_at(buffer.bytes(), offset);
    }
    let vector = libc::iovec {
        iov_base: buffer.bytes().as_ptr().cast_mut().cast(),
        iov_len: buffer.len,
    };
    // SAFETY: the kernel reads the buffer during the call only.
    let done = unsafe {
        let offset = offset.cast_signed();
        libc::pwritev2(file.as_raw_fd(), &raw const vector, 1, offset, flags)
    };
    usize::try_from(done).map_err(|_| io::Error::last_os_error())
}

fn uring(file: &File, offset: u64, data: &[u8], flags: i32) -> io::Result<usize> {
    let mut ring = io_uring::IoUring::new(2)?;
    let buffer = Buffer::new(data);
    let fd = io_uring::types::Fd(file.as_raw_fd());
    let len = u32::try_from(buffer.len).map_err(io::Error::other)?;
    let entry = io_uring::opcode::Write::new(fd, buffer.bytes().as_ptr(), len)
        .offset(offset)
        .rw_flags(flags)
        .build();
    // SAFETY: the buffer lives until the completion was seen below.
    unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
    while ring
        .submit_and_wait(1)
        .is_err_and(|e| e.kind() == io::ErrorKind::Interrupted)
    {}
    let completion = ring.completion().next();
    let done = completion.map_or(-libc::EIO, |completion| completion.result());
    usize::try_from(done).map_err(|_| io::Error::from_raw_os_error(-done))
}

/// `struct iocb` of `io_submit(2)`.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buf: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Default)]
struct Event {
    data: u64,
    object: u64,
    result: i64,
    result2: i64,
}

const IOCB_CMD_PWRITE: u16 = 1;

/// A context of `io_setup(2)`.
pub struct Queue {
    context: u64,
    pending: Vec<Buffer>,
}

impl Queue {
    /// # Errors
    /// An error of the kernel.
    pub fn new() -> io::Result<Self> {
        let mut context = 0u64;
        // SAFETY: the kernel writes the context's id to `context`.
        call(unsafe { libc::syscall(libc::SYS_io_setup, 512, &raw mut context) })?;
        Ok(Self {
            context,
            pending: Vec::new(),
        })
    }

    /// Submits a write with `RWF_` flags.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn submit(&mut self, file: &File, offset: u64, data: &[u8], flags: i32) -> io::Result<()> {
        let buffer = Buffer::new(data);
        let iocb = Iocb {
            rw_flags: flags,
            opcode: IOCB_CMD_PWRITE,
            fd: u32::try_from(file.as_raw_fd()).map_err(io::Error::other)?,
            buf: buffer.bytes().as_ptr() as u64,
            len: buffer.len as u64,
            offset: offset.cast_signed(),
            ..Iocb::default()
        };
        let list = [&raw const iocb];
        self.pending.push(buffer);
        // SAFETY: the kernel copies the block; the buffer stays in `pending` until `wait`.
        call(unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1, list.as_ptr()) })?;
        Ok(())
    }

    /// Waits for all submitted writes, and returns the number of bytes that they wrote.
    ///
    /// # Errors
    /// An error of the kernel, or of one of the writes.
    pub fn wait(&mut self) -> io::Result<usize> {
        let mut sum = 0;
        let mut failed = None;
        for _ in 0..self.pending.len() {
            let mut event = Event::default();
            let none: *const libc::timespec = std::ptr::null();
            loop {
                // SAFETY: the kernel writes one event.
                let got = call(unsafe {
                    libc::syscall(
                        libc::SYS_io_getevents,
                        self.context,
                        1,
                        1,
                        &raw mut event,
                        none,
                    )
                });
                match got {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other?,
                }
            }
            match usize::try_from(event.result) {
                Ok(len) => sum += len,
                Err(_) => failed = i32::try_from(-event.result).ok(),
            }
        }
        self.pending.clear();
        match failed {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(sum),
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the context is ours; the kernel waits for the writes in flight.
        let _ = unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

fn call(result: libc::c_long) -> io::Result<()> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
