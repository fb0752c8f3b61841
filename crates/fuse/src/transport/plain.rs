//! The request loop on `/dev/fuse`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use zerocopy::IntoBytes;

use super::content::Wait;
use super::device::{Device, HEADER, HEADROOM, KEEP, LARGE, header, malformed, undelivered};
use super::later::{Helper, Outcome};
use super::lone::{Lone, Poll, Serving};
use super::pool::{Load, Need, Pool};
use super::server::Server;
use crate::options::MAX_IO;
use crate::wire::abi::InHeader;
use crate::wire::{self, Body, Opcode, reply};

/// The loop, run by several threads.
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
            let request = wire::split_message(message);
            let awaited = !request.as_ref().is_ok_and(|(header, _)| is_forget(header));
            if !awaited && self.server.defer(message) {
                answered = false;
                continue;
            }
            if at_once && answered && awaited {
                self.lone.overlap();
            }
            answered = awaited;
            let sent = match request {
                Ok((header_in, body)) => self.one(device, &header_in, body, &mut buffers.answer),
                Err(error) => {
                    malformed(device, message, error);
                    0
                }
            };
            large |= len.max(sent) > LARGE;
        }
    }

    /// Serves one request. Returns the size of the answer.
    fn one(
        self: &Arc<Self>,
        device: &Arc<Device>,
        header_in: &InHeader,
        body: Body<'_>,
        answer: &mut [u8],
    ) -> usize {
        let wait = Wait::of(header_in.opcode, body);
        let serving = self.lone.begin(wait == Wait::Long);
        if wait == Wait::No {
            return self.answer(device, header_in, body, serving, answer);
        }
        if self.load.begin() == Need::OneMore {
            // A failure was logged; the existing threads continue.
            let _ = self.add();
        }
        let len = self.answer(device, header_in, body, serving, answer);
        self.load.end();
        len
    }

    fn answer(
        &self,
        device: &Arc<Device>,
        header_in: &InHeader,
        body: Body<'_>,
        serving: Serving<'_>,
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
        // A fast client sends its next request before the answer's system call returns.
        drop(serving);
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

/// Whether no client waits for the request.
fn is_forget(header: &InHeader) -> bool {
    [Opcode::Forget as u32, Opcode::BatchForget as u32].contains(&header.opcode)
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
