//! `/dev/fuse`: each read returns a request, each write sends an answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::time::Timespec;
use zerocopy::IntoBytes;

use crate::wire::abi::OutHeader;
use crate::wire::{Malformed, Opcode};

/// Size of an answer's header in bytes.
pub(super) const HEADER: usize = size_of::<OutHeader>();
/// Room for headers and the fixed part of any request or answer, in addition to `MAX_IO`.
pub(super) const HEADROOM: usize = 4096;
/// A request or answer larger than this, in bytes, leaves resident pages in the buffer. They are
/// returned to the system when no request arrives for [`KEEP`].
pub(super) const LARGE: usize = 128 << 10;
pub(super) const KEEP: Duration = Duration::from_secs(1);

/// Result of reading a device.
#[derive(Debug)]
pub(super) enum Received {
    /// A message of this many bytes.
    Message(usize),
    /// No message. Only a device that does not block returns this.
    Nothing,
    Ended,
}

/// One descriptor of a connection. Requests that were read from it must be answered on it.
#[derive(Debug)]
pub(super) struct Device(OwnedFd);

impl Device {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Another descriptor of the connection, with a separate queue in the kernel.
    ///
    /// # Errors
    /// `/dev/fuse` cannot be opened, or the kernel cannot clone the connection.
    pub(super) fn another(&self) -> io::Result<Self> {
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")?;
        clone_call::clone_connection(&file, self.0.as_fd())?;
        Ok(Self(file.into()))
    }

    /// Waits for a request; `None` once the connection has ended.
    ///
    /// # Errors
    /// The connection failed.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.receive_now(buffer)? {
                Received::Message(len) => return Ok(Some(len)),
                Received::Nothing => {}
                Received::Ended => return Ok(None),
            }
        }
    }

    /// Makes [`receive_now`](Self::receive_now) return at once.
    ///
    /// # Errors
    /// Errors of system calls.
    pub(super) fn never_block(&self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.0)?;
        Ok(rustix::fs::fcntl_setfl(&self.0, flags | OFlags::NONBLOCK)?)
    }

    /// The next request, if one is there. Otherwise waits, unless set to [never
    /// block](Self::never_block).
    ///
    /// # Errors
    /// The connection failed.
    pub(super) fn receive_now(&self, buffer: &mut [u8]) -> io::Result<Received> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(len) => return Ok(Received::Message(len)),
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                // The kernel returns `ENOENT` if the request was cancelled in between.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(Received::Ended),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits until a request arrives or the connection ends.
    pub(super) fn await_request(&self) {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        // The next read returns the error.
        let _ = rustix::event::poll(&mut fds, None);
    }

    /// Whether a request arrives, or the connection ends, within `time`.
    pub(super) fn has_request(&self, time: Duration) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let time = Timespec::try_from(time).ok();
        // The next read returns the error.
        rustix::event::poll(&mut fds, time.as_ref()) != Ok(0)
    }

    /// Sends a whole message.
    ///
    /// # Errors
    /// The kernel refused the message: `ENOENT` for an answer whose request is gone.
    pub(super) fn send(&self, message: &[u8]) -> io::Result<()> {
        loop {
            match rustix::io::write(&self.0, message) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Answers with a payload.
    ///
    /// # Errors
    /// The kernel refused the message: `ENOENT` for an answer to a cancelled request.
    pub(super) fn answer(&self, unique: u64, payload: &[u8]) -> io::Result<()> {
        let mut message = header(unique, 0, payload.len()).as_bytes().to_vec();
        message.extend_from_slice(payload);
        self.send(&message)
    }

    /// Answers with an errno.
    ///
    /// # Errors
    /// The kernel refused the message: `ENOENT` for an answer to a cancelled request.
    pub(super) fn refuse(&self, unique: u64, errno: i32) -> io::Result<()> {
        self.send(header(unique, errno, 0).as_bytes())
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The header of an answer: an errno, or 0 and the size of the payload.
pub(super) fn header(unique: u64, errno: i32, payload: usize) -> OutHeader {
    OutHeader {
        len: u32::try_from(HEADER + payload).unwrap_or(u32::MAX),
        error: errno.saturating_neg(),
        unique,
    }
}

/// Logs an answer that could not be delivered, unless its request or the connection is gone.
pub(super) fn undelivered(opcode: u32, error: &io::Error) {
    if !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) {
        log::warn!("answering {}: {error}", name(opcode));
    }
}

fn name(opcode: u32) -> String {
    Opcode::try_from(opcode).map_or_else(|_| opcode.to_string(), |opcode| format!("{opcode:?}"))
}

/// Answers a malformed request with an errno, if its header can be read.
pub(super) fn malformed(device: &Device, message: &[u8], error: Malformed) {
    log::warn!("malformed request: {error}");
    if let Some(unique) = message.get(8..16).and_then(|bytes| bytes.first_chunk()) {
        let _ = device.refuse(u64::from_ne_bytes(*unique), error.errno());
    }
}

/// The only ioctl of `/dev/fuse` in use passes a pointer to the kernel, hence `unsafe`.
#[expect(unsafe_code, reason = "ioctl; see the module's text")]
mod clone_call {
    use std::fs::File;
    use std::io;
    use std::os::fd::{AsRawFd, BorrowedFd};

    use rustix::ioctl::{Setter, ioctl};

    /// `_IOR(229, 0, uint32_t)`
    const CLONE: u32 = 0x8004_e500;

    /// Makes `new`, just opened, another descriptor of the connection of `old`.
    pub(super) fn clone_connection(new: &File, old: BorrowedFd<'_>) -> io::Result<()> {
        let old = u32::try_from(old.as_raw_fd()).map_err(io::Error::other)?;
        // SAFETY: the kernel reads the 4 bytes that the command's number encodes.
        unsafe { ioctl(new, Setter::<CLONE, u32>::new(old)) }?;
        Ok(())
    }
}
