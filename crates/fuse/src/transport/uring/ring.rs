//! One io_uring with one entry of the FUSE connection on it.
//!
//! `unsafe`: a submission names memory by address and must outlive what the kernel does with
//! it. The ring is in the mode in which the kernel works for it only while the owning thread
//! is in `io_uring_enter` (single issuer, deferred task work); there is one submission at a
//! time, and its memory is owned by the same value and dropped after the ring.
#![expect(unsafe_code, reason = "see the module's text")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::squeue::Entry128;
use io_uring::types::{Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};
use zerocopy::IntoBytes;

use super::memory::Memory;
use crate::wire::abi::RingCommand;

/// Commands to the device.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// Where a submission has the number of ranges: `len` of its fixed layout, in bytes.
const LEN_OFFSET: usize = 24;

/// What came of waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A request lies in the memory.
    Request,
    /// None within the time.
    Nothing,
    /// The connection has ended.
    Ended,
}

/// A ring with its entry's memory. Belongs to the thread that made it.
pub(super) struct Ring {
    // Dropped in this order: the kernel lets go of the memory with the ring.
    ring: IoUring<Entry128, cqueue::Entry>,
    memory: Memory,
    queue: u16,
    /// What came with the registration; for the first wait.
    first: Option<Arrival>,
}

impl Ring {
    /// A ring for the connection of `device`, on the kernel's queue `queue`, to be used by
    /// this thread only. Nothing is registered yet.
    ///
    /// # Errors
    /// The kernel has no io_uring of this kind, or does not let us have it.
    pub(super) fn new(device: BorrowedFd<'_>, queue: u16, payload: usize) -> io::Result<Self> {
        let ring = IoUring::<Entry128, cqueue::Entry>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .dontfork()
            .build(2)?;
        ring.submitter().register_files(&[device.as_raw_fd()])?;
        Ok(Self {
            ring,
            memory: Memory::new(payload)?,
            queue,
            first: None,
        })
    }

    pub(super) fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Offers the entry to the kernel. On a connection that has ended the first wait says so.
    ///
    /// # Errors
    /// It refuses.
    pub(super) fn register(&mut self) -> io::Result<()> {
        let (address, count) = self.memory.ranges();
        self.push(REGISTER, 0, Some((address, count)))?;
        self.ring.submit()?;
        let done = self.ring.completion().next();
        self.first = done.map(|done| arrival(done.result())).transpose()?;
        Ok(())
    }

    /// Hands the answer that lies in the memory over, and offers the entry again. Goes to the
    /// kernel with the next [`wait`](Self::wait).
    ///
    /// # Errors
    /// The ring is broken.
    pub(super) fn commit(&mut self, commit_id: u64) -> io::Result<()> {
        self.push(COMMIT_AND_FETCH, commit_id, None)
    }

    fn push(&mut self, command: u32, commit_id: u64, ranges: Option<(u64, u32)>) -> io::Result<()> {
        let argument = RingCommand {
            flags: 0,
            commit_id,
            qid: self.queue,
            padding: [0; 3],
        };
        let mut bytes = [0; 80];
        let (front, _) = bytes.split_at_mut(size_of::<RingCommand>());
        front.copy_from_slice(argument.as_bytes());
        let mut entry = opcode::UringCmd80::new(Fixed(0), command)
            .cmd(bytes)
            .addr(ranges.map(|(address, _)| address))
            .build();
        if let Some((_, count)) = ranges {
            // SAFETY: `Entry128` is laid out as the kernel's 128 bytes, of which these four
            // are `len`. The crate has no setter for it with this opcode.
            unsafe {
                (&raw mut entry)
                    .cast::<u8>()
                    .add(LEN_OFFSET)
                    .cast::<u32>()
                    .write_unaligned(count);
            }
        }
        // SAFETY: what the entry points at lives in `self.memory`, dropped after the ring.
        unsafe { self.ring.submission().push(&entry) }
            .map_err(|_| io::Error::other("the submission queue is full"))
    }

    /// Sends what was pushed and waits for a request, at most for `timeout`.
    ///
    /// # Errors
    /// The ring or the connection is broken.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Arrival> {
        loop {
            match self.taken()? {
                Arrival::Nothing => {}
                arrival => return Ok(arrival),
            }
            let entered = match timeout {
                None => self.ring.submit_and_wait(1),
                Some(timeout) => {
                    let time = Timespec::from(timeout);
                    let arguments = SubmitArgs::new().timespec(&time);
                    self.ring.submitter().submit_with_args(1, &arguments)
                }
            };
            match entered.map_err(|error| (error.raw_os_error(), error)) {
                Ok(_) | Err((Some(libc::EINTR | libc::EAGAIN | libc::EBUSY), _)) => {}
                Err((Some(libc::ETIME), _)) => return self.taken(),
                Err((_, error)) => return Err(error),
            }
        }
    }

    fn taken(&mut self) -> io::Result<Arrival> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        let done = self.ring.completion().next();
        done.map_or(Ok(Arrival::Nothing), |done| arrival(done.result()))
    }
}

/// What a completion says, by its result.
fn arrival(result: i32) -> io::Result<Arrival> {
    match result.saturating_neg() {
        ..=0 => Ok(Arrival::Request),
        libc::ENOTCONN | libc::ENODEV | libc::ECONNABORTED | libc::ECANCELED => Ok(Arrival::Ended),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_that_is_over_is_an_end_and_no_error() {
        for errno in [
            libc::ENOTCONN,
            libc::ECONNABORTED,
            libc::ENODEV,
            libc::ECANCELED,
        ] {
            assert_eq!(arrival(-errno).ok(), Some(Arrival::Ended));
        }
        assert_eq!(arrival(0).ok(), Some(Arrival::Request));
        let refused = arrival(-libc::EINVAL).map_err(|error| error.raw_os_error());
        assert_eq!(refused, Err(Some(libc::EINVAL)));
    }
}
