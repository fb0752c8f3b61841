//! One connection: requests in flight, and the thread that receives their replies.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind, Read};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::handshake::{self, Export, Negotiated};
use super::status;
use super::stream::Stream;
use super::uri::NbdUri;
use super::wire::{self, *};
use crate::NbdError;
use crate::error::Violation;

/// Time between two looks for late replies.
const TICK: Duration = Duration::from_secs(1);
/// Longest time that a server takes to begin the handshake.
const GREETING_TIME: Duration = Duration::from_secs(10);
/// The longest chunk with an error, in bytes.
const MAX_ERROR: u32 = 8 << 10;

/// Causes of a failed request.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// The server's error, as an error number of the host.
    Server(i32),
    /// The connection is unusable. The server may have executed the request or not.
    Dead(Arc<NbdError>),
}

/// The arguments of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'p> {
    pub(super) command: u16,
    pub(super) flags: u16,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) payload: &'p [u8],
}

type Reply = Result<Vec<u8>, Failure>;

/// A request in flight.
#[derive(Debug, Default)]
pub(super) struct Ticket {
    reply: Mutex<Option<Reply>>,
    arrived: Condvar,
}

impl Ticket {
    /// Waits for the reply: the data of a read.
    pub(super) fn wait(&self) -> Reply {
        let mut reply = self.reply.lock();
        loop {
            match reply.take() {
                Some(reply) => return reply,
                None => self.arrived.wait(&mut reply),
            }
        }
    }

    fn arrive(&self, reply: Reply) {
        *self.reply.lock() = Some(reply);
        self.arrived.notify_all();
    }
}

/// Whether a read ended because of its time limit.
fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// The expected content of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wants {
    Nothing,
    Data,
    Status,
}

/// State of a request in flight.
#[derive(Debug)]
struct Waiting {
    ticket: Arc<Ticket>,
    since: Instant,
    wants: Wants,
    offset: u64,
    len: u32,
    /// Data of a read, or extents of a status.
    data: Vec<u8>,
    /// Ranges of the request that were answered: begin and end.
    got: BTreeMap<u64, u64>,
    error: Option<i32>,
}

impl Waiting {
    /// Records a piece of data as received. Returns its range in the data of the request.
    fn place(&mut self, offset: u64, len: u64) -> Result<std::ops::Range<usize>, Violation> {
        let wrong = Violation::Data { offset, len };
        let from = offset.checked_sub(self.offset);
        let to = from.and_then(|from| from.checked_add(len));
        let (Some(from), Some(to)) = (from, to) else {
            return Err(wrong);
        };
        let before = self.got.range(..to).next_back();
        let overlaps = before.is_some_and(|(_, end)| *end > from);
        if self.wants != Wants::Data || len == 0 || to > self.len.into() || overlaps {
            return Err(wrong);
        }
        self.got.insert(from, to);
        Ok(from as usize..to as usize)
    }

    fn finish(self) -> Result<(), Violation> {
        let got: u64 = self.got.iter().map(|(from, to)| to - from).sum();
        let wanted = match self.wants {
            Wants::Nothing => 0,
            Wants::Data | Wants::Status => self.len.into(),
        };
        let reply = match self.error {
            Some(error) => Err(Failure::Server(error)),
            None if got < wanted => {
                let short = Violation::Short { got, wanted };
                let dead = Arc::new(NbdError::Violation(short.clone()));
                self.ticket.arrive(Err(Failure::Dead(dead)));
                return Err(short);
            }
            None => Ok(self.data),
        };
        self.ticket.arrive(reply);
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Pending {
    waiting: HashMap<u64, Waiting>,
    next: u64,
    dead: Option<Arc<NbdError>>,
    /// The receiving thread has ended.
    ended: bool,
}

/// A connection in the transmission phase.
#[derive(Debug)]
pub(super) struct Connection {
    socket: Stream,
    writer: Mutex<Stream>,
    pending: Mutex<Pending>,
    ended: Condvar,
    structured: bool,
    /// Number of the context of a status.
    allocation: Option<u32>,
    timeout: Duration,
}

impl Connection {
    /// Connects, negotiates, and starts the receiving thread. `first` is the first cookie.
    pub(super) fn open(
        uri: &NbdUri,
        timeout: Duration,
        first: u64,
    ) -> Result<(Arc<Self>, Export), NbdError> {
        let mut stream = Stream::connect(&uri.address, timeout).map_err(NbdError::Connect)?;
        // A server that has one client at a time lets others connect, and leaves them unanswered.
        let greeting = GREETING_TIME.min(timeout);
        let limited = stream.set_read_timeout(greeting);
        limited.map_err(NbdError::Connect)?;
        handshake::greeting(&mut stream).map_err(|why| match why {
            NbdError::Lost(error) if is_late(&error) => NbdError::Silent(greeting.as_secs()),
            why => why,
        })?;
        let limited = stream.set_read_timeout(timeout);
        limited.map_err(NbdError::Connect)?;
        let Negotiated { export, allocation } = handshake::negotiate(&mut stream, &uri.export)?;
        let clone = |stream: &Stream| stream.try_clone().map_err(NbdError::Connect);
        stream
            .set_read_timeout(TICK.min(timeout))
            .map_err(NbdError::Connect)?;
        let connection = Arc::new(Self {
            socket: clone(&stream)?,
            writer: Mutex::new(clone(&stream)?),
            pending: Mutex::new(Pending {
                next: first,
                ..Pending::default()
            }),
            ended: Condvar::new(),
            structured: export.structured,
            allocation,
            timeout,
        });
        let receiver = Arc::clone(&connection);
        std::thread::Builder::new()
            .name("nbd".to_owned())
            .spawn(move || receiver.receive(stream))
            .map_err(NbdError::Connect)?;
        Ok((connection, export))
    }

    /// Sends a request.
    pub(super) fn send(&self, request: Request<'_>) -> Result<Arc<Ticket>, Failure> {
        let ticket = Arc::new(Ticket::default());
        let (wants, data) = match request.command {
            CMD_READ => (Wants::Data, request.len as usize),
            CMD_BLOCK_STATUS => (Wants::Status, 0),
            _ => (Wants::Nothing, 0),
        };
        let cookie = {
            let mut pending = self.pending.lock();
            if let Some(dead) = &pending.dead {
                return Err(Failure::Dead(Arc::clone(dead)));
            }
            let cookie = pending.next;
            pending.next = cookie.wrapping_add(1);
            let waiting = Waiting {
                ticket: Arc::clone(&ticket),
                since: Instant::now(),
                wants,
                offset: request.offset,
                len: request.len,
                data: vec![0; data],
                got: BTreeMap::new(),
                error: None,
            };
            pending.waiting.insert(cookie, waiting);
            cookie
        };
        let Request {
            command,
            flags,
            offset,
            len,
            payload,
        } = request;
        let header = wire::request(flags, command, cookie, offset, len);
        let sent = self.writer.lock().write_both(&header, payload);
        if let Err(error) = sent {
            // A part of it may have been sent: nothing can follow on this connection.
            self.die(NbdError::Lost(error));
        }
        Ok(ticket)
    }

    /// Ends the connection in order: sends nothing after this. Waits at most `wait` for the server
    /// to end it too, so that the server has served all it received.
    pub(super) fn close(&self, wait: Duration) {
        let header = wire::request(0, CMD_DISC, 0, 0, 0);
        if let Some(mut writer) = self.writer.try_lock() {
            let _ = writer.write_both(&header, &[]);
        }
        self.socket.shutdown(Shutdown::Write);
        let until = Instant::now() + wait;
        let mut pending = self.pending.lock();
        while !pending.ended && !self.ended.wait_until(&mut pending, until).timed_out() {}
        drop(pending);
        self.die(NbdError::Lost(ErrorKind::NotConnected.into()));
    }

    /// Fails every request in flight, and all later ones.
    fn die(&self, why: NbdError) {
        let mut pending = self.pending.lock();
        let why = Arc::clone(pending.dead.get_or_insert_with(|| Arc::new(why)));
        for (_, waiting) in pending.waiting.drain() {
            waiting.ticket.arrive(Err(Failure::Dead(Arc::clone(&why))));
        }
        drop(pending);
        // Only now: a request that finds the socket closed must find the reason recorded.
        self.socket.shutdown(Shutdown::Both);
    }

    fn receive(&self, mut stream: Stream) {
        let why = loop {
            if let Err(why) = self.reply(&mut stream) {
                break why;
            }
        };
        self.die(why);
        self.pending.lock().ended = true;
        self.ended.notify_all();
    }

    /// Receives one reply, or one chunk of one.
    fn reply(&self, stream: &mut Stream) -> Result<(), NbdError> {
        let magic = u32::from_be_bytes(self.read(stream)?);
        match magic {
            SIMPLE_REPLY => self.simple(stream),
            STRUCTURED_REPLY if self.structured => self.chunk(stream),
            magic => Err(Violation::Magic(magic.into()).into()),
        }
    }

    fn simple(&self, stream: &mut Stream) -> Result<(), NbdError> {
        let error = u32::from_be_bytes(self.read(stream)?);
        let cookie = u64::from_be_bytes(self.read(stream)?);
        let mut data = self.with(cookie, |waiting| {
            let read = waiting.wants == Wants::Data && self.structured;
            if read || (waiting.wants == Wants::Status && error == 0) {
                return Err(Violation::Kind(0));
            }
            if error != 0 {
                waiting.error = Some(errno(error));
                return Ok(Vec::new());
            }
            waiting.got.insert(0, u64::from(waiting.len));
            Ok(std::mem::take(&mut waiting.data))
        })?;
        self.fill(stream, &mut data)?;
        self.with(cookie, |waiting| {
            waiting.data = data;
            Ok(())
        })?;
        self.finish(cookie)
    }

    fn chunk(&self, stream: &mut Stream) -> Result<(), NbdError> {
        let flags = u16::from_be_bytes(self.read(stream)?);
        let kind = u16::from_be_bytes(self.read(stream)?);
        let cookie = u64::from_be_bytes(self.read(stream)?);
        let len = u32::from_be_bytes(self.read(stream)?);
        let wrong = || NbdError::Violation(Violation::Length(len.into()));
        let done = flags & REPLY_DONE != 0;
        match kind {
            CHUNK_NONE if len == 0 && done => self.with(cookie, |_| Ok(()))?,
            CHUNK_DATA => {
                let count = len.checked_sub(8).ok_or_else(wrong)?;
                let offset = u64::from_be_bytes(self.read(stream)?);
                let (mut data, range) = self.with(cookie, |waiting| {
                    let range = waiting.place(offset, count.into())?;
                    Ok((std::mem::take(&mut waiting.data), range))
                })?;
                self.fill(stream, data.get_mut(range).unwrap_or_default())?;
                self.with(cookie, |waiting| {
                    waiting.data = data;
                    Ok(())
                })?;
            }
            CHUNK_HOLE if len == 12 => {
                let offset = u64::from_be_bytes(self.read(stream)?);
                let count = u32::from_be_bytes(self.read(stream)?);
                // The data begins as zeros.
                self.with(cookie, |waiting| {
                    waiting.place(offset, count.into()).map(drop)
                })?;
            }
            kind if kind & CHUNK_ERROR != 0 => {
                if !(6..=MAX_ERROR).contains(&len) {
                    return Err(wrong());
                }
                self.with(cookie, |_| Ok(()))?;
                let mut message = vec![0; len as usize];
                self.fill(stream, &mut message)?;
                let (error, _) = message.split_first_chunk::<4>().ok_or_else(wrong)?;
                let error = errno(u32::from_be_bytes(*error));
                self.with(cookie, |waiting| {
                    waiting.error.get_or_insert(error);
                    Ok(())
                })?;
            }
            CHUNK_STATUS => self.status(stream, cookie, len)?,
            CHUNK_NONE | CHUNK_HOLE => return Err(wrong()),
            kind => return Err(Violation::Kind(kind).into()),
        }
        if done { self.finish(cookie) } else { Ok(()) }
    }

    /// Receives the extents of a status: all of them are in one chunk.
    fn status(&self, stream: &mut Stream, cookie: u64, len: u32) -> Result<(), NbdError> {
        self.with(cookie, |waiting| {
            let asked = waiting.wants == Wants::Status && waiting.got.is_empty();
            asked.then_some(()).ok_or(Violation::Kind(CHUNK_STATUS))
        })?;
        let wrong = || NbdError::Violation(Violation::Length(len.into()));
        let bytes = status::bytes_of_extents(len).ok_or_else(wrong)?;
        let context = u32::from_be_bytes(self.read(stream)?);
        if self.allocation != Some(context) {
            return Err(Violation::Context(context).into());
        }
        let mut extents = vec![0; bytes];
        self.fill(stream, &mut extents)?;
        self.with(cookie, |waiting| {
            status::verify(&extents, waiting.len)?;
            waiting.got.insert(0, waiting.len.into());
            waiting.data = extents;
            Ok(())
        })
    }

    /// Whether the server reports allocated ranges.
    pub(super) fn tells_status(&self) -> bool {
        self.allocation.is_some()
    }

    /// Works on the request of a cookie.
    fn with<T>(
        &self,
        cookie: u64,
        work: impl FnOnce(&mut Waiting) -> Result<T, Violation>,
    ) -> Result<T, NbdError> {
        let mut pending = self.pending.lock();
        if let Some(dead) = &pending.dead {
            let why = io::Error::other(dead.to_string());
            return Err(NbdError::Lost(why));
        }
        let waiting = pending.waiting.get_mut(&cookie);
        Ok(work(waiting.ok_or(Violation::Cookie(cookie))?)?)
    }

    fn finish(&self, cookie: u64) -> Result<(), NbdError> {
        let waiting = self.pending.lock().waiting.remove(&cookie);
        Ok(waiting.ok_or(Violation::Cookie(cookie))?.finish()?)
    }

    fn read<const N: usize>(&self, stream: &mut Stream) -> Result<[u8; N], NbdError> {
        let mut bytes = [0; N];
        self.fill(stream, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads until `buf` is full, unless a reply is late.
    fn fill(&self, stream: &mut Stream, buf: &mut [u8]) -> Result<(), NbdError> {
        let mut done = 0;
        while done < buf.len() {
            match stream.read(&mut buf[done..]) {
                Ok(0) => return Err(NbdError::Lost(ErrorKind::UnexpectedEof.into())),
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_late(&error) => {}
                Err(error) => return Err(NbdError::Lost(error)),
            }
            if done < buf.len() && self.is_late() {
                return Err(NbdError::Lost(io::Error::new(
                    ErrorKind::TimedOut,
                    "the server does not answer",
                )));
            }
        }
        Ok(())
    }

    /// Whether a request has waited longer than one may.
    fn is_late(&self) -> bool {
        let pending = self.pending.lock();
        let mut waiting = pending.waiting.values();
        waiting.any(|waiting| waiting.since.elapsed() >= self.timeout)
    }
}
