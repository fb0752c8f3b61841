//! One io_uring with one entry of the FUSE connection on it.
//!
//! `unsafe`: a submission passes memory by address, which must outlive the kernel's use of it. In
//! the ring's mode (single issuer, deferred task work) the kernel works for it only while the
//! owning thread is in `io_uring_enter`. There is one submission at a time, and the same value owns
//! its memory and drops it after the ring.
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

/// Position of the number of ranges in a submission: `len` of its fixed layout, in bytes.
const LEN_OFFSET: usize = 24;

/// Result of waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A request is in the memory.
    Request,
    /// None arrived within the time.
    Nothing,
    /// The connection has ended.
    Ended,
}

/// A ring with its entry's memory. Belongs to the thread that created it.
pub(super) struct Ring {
    // Dropped in this order: the kernel stops using the memory when the ring is dropped.
    ring: IoUring<Entry128, cqueue::Entry>,
    memory: Memory,
    queue: u16,
    /// A completion of the registration, for the first wait.
    first: Option<Arrival>,
}

impl Ring {
    /// A ring for the connection of `device`, on the kernel's queue `queue`. Only this thread may
    /// use it. Registers nothing yet.
    ///
    /// # Errors
    /// The kernel has no io_uring of this kind, or refuses it to this process.
    pub(super) fn new(device: BorrowedFd<'_>, queue: u16, payload: usize) -> io::Result<Self> {
        let ring = IoUring::<Entry128, cqueue::Entry>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
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

    /// Offers the entry to the kernel. If the connection has ended, the first wait returns that.
    ///
    /// # Errors
    /// The kernel refuses the entry.
    pub(super) fn register(&mut self) -> io::Result<()> {
        let (address, count) = self.memory.ranges();
        self.push(REGISTER, 0, Some((address, count)))?;
        self.ring.submit()?;
        let done = self.ring.completion().next();
        self.first = done.map(|done| arrival(done.result())).transpose()?;
        Ok(())
    }

    /// Commits the answer in the memory and offers the entry again. The next [`wait`](Self::wait)
    /// submits it to the kernel.
    ///
    /// # Errors
    /// The ring is broken.
    pub(super) fn commit(&mut self, commit_id: u64) -> io::Result<()> {
        self.push(COMMIT_AND_FETCH, commit_id, None)
    }

    /// Submits the pushed entries, without waiting. The next [`wait`](Self::wait) submits entries
    /// again that the kernel did not take.
    ///
    /// # Errors
    /// The ring or the connection is broken.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        entered(self.ring.submit()).map(drop)
    }

    /// Whether the next [`wait`](Self::wait) returns at once. Makes no system call.
    pub(super) fn is_ready(&mut self) -> bool {
        self.first.is_some()
            || self.ring.submission().taskrun()
            || !self.ring.completion().is_empty()
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
            // SAFETY: `Entry128` has the layout of the kernel's 128 bytes; these four are `len`.
            // The crate has no setter for it with this opcode.
            unsafe {
                (&raw mut entry)
                    .cast::<u8>()
                    .add(LEN_OFFSET)
                    .cast::<u32>()
                    .write_unaligned(count);
            }
        }
        // SAFETY: the memory that the entry points at is in `self.memory`, dropped after the ring.
        unsafe { self.ring.submission().push(&entry) }
            .map_err(|_| io::Error::other("the submission queue is full"))
    }

    /// Submits the pushed entries and waits for a request, at most for `timeout`.
    ///
    /// # Errors
    /// The ring or the connection is broken.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Arrival> {
        loop {
            match self.taken()? {
                Arrival::Nothing => {}
                arrival => return Ok(arrival),
            }
            let in_time = entered(match timeout {
                None => self.ring.submit_and_wait(1),
                Some(timeout) => {
                    let time = Timespec::from(timeout);
                    let arguments = SubmitArgs::new().timespec(&time);
                    self.ring.submitter().submit_with_args(1, &arguments)
                }
            })?;
            if !in_time {
                return self.taken();
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

/// Decodes the result of a system call, which may have to be repeated. `false`: its time is over.
fn entered(result: io::Result<usize>) -> io::Result<bool> {
    match result.map_err(|error| (error.raw_os_error(), error)) {
        Ok(_) | Err((Some(libc::EINTR | libc::EAGAIN | libc::EBUSY), _)) => Ok(true),
        Err((Some(libc::ETIME), _)) => Ok(false),
        Err((_, error)) => Err(error),
    }
}

/// Decodes the result of a completion.
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
    fn registering_on_an_ended_connection_is_no_error() {
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
