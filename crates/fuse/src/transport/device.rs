//! `/dev/fuse`: a request a read, an answer a write.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::later::Helper;
use super::server::{Outcome, Server};
use super::{HEADROOM, MAX_IO};
use crate::wire::abi::OutHeader;
use crate::wire::{self, Malformed, Opcode, reply};

/// Bytes of an answer's header.
const HEADER: usize = size_of::<OutHeader>();

/// One descriptor of a connection. Requests that were read from it must be answered on it.
#[derive(Debug)]
pub(super) struct Device(OwnedFd);

impl Device {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Another descriptor of the connection, with a queue of its own in the kernel.
    ///
    /// # Errors
    /// `/dev/fuse` may not be opened, or the kernel does not do it.
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
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(len) => return Ok(Some(len)),
                // A request that was taken back in between is `ENOENT`.
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends a whole message.
    ///
    /// # Errors
    /// The kernel does not want it: `ENOENT` for an answer whose request is gone.
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
    /// As [`send`](Self::send).
    pub(super) fn answer(&self, unique: u64, payload: &[u8]) -> io::Result<()> {
        let mut message = header(unique, 0, payload.len()).as_bytes().to_vec();
        message.extend_from_slice(payload);
        self.send(&message)
    }

    /// Answers with an errno.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(super) fn refuse(&self, unique: u64, errno: i32) -> io::Result<()> {
        self.send(header(unique, errno, 0).as_bytes())
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

/// Serves requests until the connection ends.
///
/// # Errors
/// It failed.
pub(super) fn serve(device: &Arc<Device>, server: &Server, helper: &Helper) -> io::Result<()> {
    let size = usize::try_from(MAX_IO).unwrap_or(0) + HEADROOM;
    let (mut request, mut answer) = (vec![0; size], vec![0; size]);
    while let Some(len) = device.receive(&mut request)? {
        let message = request.get(..len).unwrap_or(&[]);
        one(device, server, helper, message, &mut answer);
    }
    Ok(())
}

fn one(device: &Arc<Device>, server: &Server, helper: &Helper, message: &[u8], answer: &mut [u8]) {
    let (header_in, body) = match wire::split_message(message) {
        Ok(split) => split,
        Err(error) => return malformed(device, message, error),
    };
    let Some((space, payload)) = answer.split_at_mut_checked(HEADER) else {
        return;
    };
    let unique = header_in.unique;
    let sent = match server.handle(&header_in, body, payload) {
        Outcome::Silent => return,
        Outcome::Later(job) => return helper.hand_over(device, unique, job),
        Outcome::Answer(Err(errno)) => device.refuse(unique, errno),
        Outcome::Answer(Ok(len)) => {
            space.copy_from_slice(header(unique, 0, len).as_bytes());
            let sent = device.send(answer.get(..HEADER + len).unwrap_or(&[]));
            if sent.is_err() {
                let payload = answer.get(HEADER..HEADER + len).unwrap_or(&[]);
                server.give_back(&reply::granted(header_in.opcode, payload));
            }
            sent
        }
    };
    if let Err(error) = sent {
        undelivered(header_in.opcode, &error);
    }
}

/// A request that is gone, or a connection that is, wants no answer; else say so.
pub(super) fn undelivered(opcode: u32, error: &io::Error) {
    if !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) {
        log::warn!("answering {}: {error}", name(opcode));
    }
}

fn name(opcode: u32) -> String {
    Opcode::try_from(opcode).map_or_else(|_| opcode.to_string(), |opcode| format!("{opcode:?}"))
}

/// Answers what can be: the header stands at the front, whatever length it tells.
fn malformed(device: &Device, message: &[u8], error: Malformed) {
    log::warn!("malformed request: {error}");
    if let Some(unique) = message.get(8..16).and_then(|bytes| bytes.first_chunk()) {
        let _ = device.refuse(u64::from_ne_bytes(*unique), error.errno());
    }
}

/// The one ioctl of `/dev/fuse` that is needed hands the kernel a pointer, hence `unsafe`.
#[expect(unsafe_code, reason = "ioctl; see the module's text")]
mod clone_call {
    use std::fs::File;
    use std::io;
    use std::os::fd::{AsRawFd, BorrowedFd};

    use rustix::ioctl::{Setter, ioctl};

    /// `_IOR(229, 0, uint32_t)`
    const CLONE: u32 = 0x8004_e500;

    /// Makes `new`, just opened, one more descriptor of the connection of `old`.
    pub(super) fn clone_connection(new: &File, old: BorrowedFd<'_>) -> io::Result<()> {
        let old = u32::try_from(old.as_raw_fd()).map_err(io::Error::other)?;
        // SAFETY: the kernel reads the 4 bytes that the command's number encodes.
        unsafe { ioctl(new, Setter::<CLONE, u32>::new(old)) }?;
        Ok(())
    }
}
