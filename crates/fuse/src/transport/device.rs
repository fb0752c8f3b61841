//! `/dev/fuse`: each read returns a request, each write sends an answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::time::Timespec;
use zerocopy::{FromBytes, IntoBytes};

use super::content::{takes_long, waits};
use super::later::Helper;
use super::lone::{Lone, Poll};
use super::pool::{Load, Need, Pool};
use super::server::{Outcome, Server};
use super::{HEADROOM, KEEP, LARGE, MAX_IO};
use crate::wire::abi::{InHeader, OutHeader};
use crate::wire::{self, Body, Malformed, Opcode, reply};

/// Size of an answer's header in bytes.
const HEADER: usize = size_of::<OutHeader>();

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
    /// The system's.
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

/// The request loop on `/dev/fuse`, run by several threads.
pub(super) struct Plain {
    device: Arc<Device>,
    server: Arc<Server>,
    helper: Helper,
    pool: Arc<Pool>,
    lone: Arc<Lone>,
    load: Load,
}

impl Plain {
    /// A loop for `first` threads, started by [`start`](Self::start), and at most `most`.
    pub(super) fn new(
        device: Arc<Device>,
        server: Arc<Server>,
        helper: Helper,
        pool: &Arc<Pool>,
        lone: &Arc<Lone>,
        (first, most): (usize, usize),
    ) -> Arc<Self> {
        Arc::new(Self {
            device,
            server,
            helper,
            pool: Arc::clone(pool),
            lone: Arc::clone(lone),
            load: Load::new(first, first, most),
        })
    }

    /// Starts the first threads.
    ///
    /// # Errors
    /// Not even one thread could be started.
    pub(super) fn start(self: &Arc<Self>, first: usize) -> io::Result<()> {
        for number in 0..first {
            match self.add() {
                Err(error) if number == 0 => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Starts one more thread, which is counted already.
    fn add(self: &Arc<Self>) -> io::Result<()> {
        let plain = Arc::clone(self);
        let started = self.pool.start(move || {
            // An ordinary user may not be allowed to open the device a second time.
            let device = match plain.device.another() {
                Ok(device) => Arc::new(device),
                Err(error) => {
                    log::debug!("request threads share a descriptor: {error}");
                    Arc::clone(&plain.device)
                }
            };
            plain.serve(&device)
        });
        started.inspect_err(|error| {
            self.load.lost();
            log::warn!("fewer request threads than wanted: {error}");
        })
    }

    /// Serves requests until the connection ends.
    fn serve(self: &Arc<Self>, device: &Arc<Device>) -> io::Result<()> {
        let _forgets = self.server.reads_forgets(&self.device);
        let reader = self.lone.reader();
        let mut poll = Poll::default();
        let mut buffers = Buffers::new();
        // Whether a client waited for the last answer, and one of its buffers was large.
        let (mut answered, mut large) = (false, false);
        loop {
            if large && !device.has_request(KEEP) {
                buffers = Buffers::new();
                large = false;
            }
            let at_once = reader.turn() && poll.wait(|| device.has_request(Duration::ZERO));
            let Some(len) = device.receive(&mut buffers.request)? else {
                return Ok(());
            };
            let message = buffers.request.get(..len).unwrap_or(&[]);
            let awaited = !is_forget(message);
            if at_once && answered && awaited {
                self.lone.overlap();
            }
            answered = awaited;
            let sent = self.one(device, message, &mut buffers.answer);
            large |= len.max(sent) > LARGE;
        }
    }

    /// Serves one request. Returns the size of the answer.
    fn one(self: &Arc<Self>, device: &Arc<Device>, message: &[u8], answer: &mut [u8]) -> usize {
        let (header_in, body) = match wire::split_message(message) {
            Ok(split) => split,
            Err(error) => {
                malformed(device, message, error);
                return 0;
            }
        };
        let _serving = self.lone.begin(waits(header_in.opcode, body));
        if !takes_long(header_in.opcode, body) {
            return self.answer(device, &header_in, body, answer);
        }
        if self.load.begin() == Need::OneMore {
            // A failure was logged; the existing threads continue.
            let _ = self.add();
        }
        let len = self.answer(device, &header_in, body, answer);
        self.load.end();
        len
    }

    fn answer(
        &self,
        device: &Arc<Device>,
        header_in: &InHeader,
        body: Body<'_>,
        answer: &mut [u8],
    ) -> usize {
        let Some((space, payload)) = answer.split_at_mut_checked(HEADER) else {
            return 0;
        };
        let unique = header_in.unique;
        let reply = match self.server.handle(header_in, body, payload) {
            Outcome::Silent => return 0,
            Outcome::Later(job) => {
                self.helper.answer_later(device, unique, job);
                return 0;
            }
            Outcome::AnswerThen(reply, job) => {
                self.helper.post(job);
                reply
            }
            Outcome::Answer(reply) => reply,
        };
        let (sent, len) = match reply {
            Err(errno) => (device.refuse(unique, errno), 0),
            Ok(len) => {
                space.copy_from_slice(header(unique, 0, len).as_bytes());
                let sent = device.send(answer.get(..HEADER + len).unwrap_or(&[]));
                if sent.is_err() {
                    let payload = answer.get(HEADER..HEADER + len).unwrap_or(&[]);
                    let granted = reply::granted(header_in.opcode, payload);
                    self.server.release(&granted);
                }
                (sent, len)
            }
        };
        if let Err(error) = sent {
            undelivered(header_in.opcode, &error);
        }
        len
    }
}

/// Whether no client waits for the message.
fn is_forget(message: &[u8]) -> bool {
    InHeader::read_from_prefix(message).is_ok_and(|(header, _)| {
        [Opcode::Forget as u32, Opcode::BatchForget as u32].contains(&header.opcode)
    })
}

/// Buffers of a thread: a request, and its answer. Pages that were never touched take no memory.
struct Buffers {
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Buffers {
    fn new() -> Self {
        let size = usize::try_from(MAX_IO).unwrap_or(0) + HEADROOM;
        Self {
            request: vec![0; size],
            answer: vec![0; size],
        }
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
