//! A thread that serves one ring entry.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use zerocopy::{FromBytes, IntoBytes};

use super::Queue;
use super::affinity::Cpus;
use super::memory::{MESSAGE, RING, STRUCT};
use super::ring::{Arrival, Ring};
use crate::request::Reply;
use crate::transport::content::Wait;
use crate::transport::device::{KEEP, LARGE, header};
use crate::transport::later::{Job, Outcome};
use crate::transport::lone::Poll;
use crate::wire::abi::{InHeader, RingHeader};
use crate::wire::{Body, Opcode, reply};

/// How long a job may take before queues are [kicked](Shared::kick), at first and at most.
const PATIENCE: Duration = Duration::from_millis(100);
const MOST_PATIENCE: Duration = Duration::from_secs(2);

const STRUCT_SIZE: usize = STRUCT.end - STRUCT.start;

pub(super) struct Worker {
    queue: Arc<Queue>,
    ring: Ring,
    /// A copy of the payload that the answer would overwrite.
    arguments: Vec<u8>,
    /// The thread polls, on another CPU than the queue's.
    is_away: bool,
}

impl Worker {
    /// A worker for a ring whose entry is registered.
    pub(super) fn new(queue: Arc<Queue>, ring: Ring) -> Self {
        Self {
            queue,
            ring,
            arguments: Vec::new(),
            is_away: false,
        }
    }

    /// Serves requests until the connection ends.
    ///
    /// # Errors
    /// The connection or the ring failed.
    pub(super) fn run(mut self) -> io::Result<()> {
        Cpus::stay_on(self.queue.number);
        let mut large = false;
        let mut poll = Poll::default();
        loop {
            self.choose_cpu();
            if self.is_away {
                self.ring.submit()?;
                poll.wait(|| self.ring.is_ready());
            }
            match self.ring.wait(large.then_some(KEEP))? {
                Arrival::Ended => return Ok(()),
                Arrival::Nothing => {
                    self.ring.memory().trim();
                    self.arguments = Vec::new();
                    large = false;
                }
                Arrival::Request => {
                    let (commit_id, used) = self.request()?;
                    large |= used > LARGE;
                    self.ring.commit(commit_id)?;
                }
            }
        }
    }

    /// Moves the thread when polling begins or ends.
    fn choose_cpu(&mut self) {
        let is_lone = self.queue.shared.lone.is_lone();
        if is_lone && !self.is_away {
            self.is_away = self.queue.shared.cpus.leave(self.queue.number);
        } else if !is_lone && self.is_away {
            Cpus::stay_on(self.queue.number);
            self.is_away = false;
        }
    }

    /// Serves the request in the memory and leaves the answer there. Returns the id for the commit,
    /// and how much of the payload was used.
    fn request(&mut self) -> io::Result<(u64, usize)> {
        let (headers, payload) = self.ring.memory().parts();
        let broken = || io::Error::other("the kernel's ring headers cannot be read");
        let (message, place, ring) = (
            headers.get(MESSAGE).ok_or_else(broken)?,
            headers.get(STRUCT).ok_or_else(broken)?,
            headers.get(RING).ok_or_else(broken)?,
        );
        let (request, _) = InHeader::read_from_prefix(message).map_err(|_| broken())?;
        let (mut told, _) = RingHeader::read_from_prefix(ring).map_err(|_| broken())?;
        let input = usize::try_from(told.payload_sz).map_err(io::Error::other)?;
        let answer = match lengths(&request, input, payload.len()) {
            Some(size) => {
                let mut copy = [0; STRUCT_SIZE];
                copy.copy_from_slice(place);
                self.serve(&request, copy.get(..size).unwrap_or(&[]), input)
            }
            None => {
                log::warn!(
                    "malformed request of {} bytes, {input} of payload",
                    request.len
                );
                Err(libc::EIO)
            }
        };
        let (errno, len) = match answer {
            Ok(len) => (0, len),
            Err(errno) => (errno, 0),
        };
        told.payload_sz = u32::try_from(len).map_err(io::Error::other)?;
        let (headers, _) = self.ring.memory().parts();
        put(
            headers,
            MESSAGE,
            header(request.unique, errno, len).as_bytes(),
        );
        put(headers, RING, told.as_bytes());
        Ok((told.commit_id, input.max(len)))
    }

    fn serve(&mut self, request: &InHeader, place: &[u8], input: usize) -> Reply<usize> {
        let (_, payload) = self.ring.memory().parts();
        // Data to write is served in place, because its answer is small. Other requests have short
        // arguments, and their answers may need the whole payload.
        let mut small = [0; 64];
        let body = Body::split(place, &[]);
        let kind = Wait::of(request.opcode, body);
        let long = kind != Wait::No;
        let shared = Arc::clone(&self.queue.shared);
        let _serving = shared.lone.begin(kind == Wait::Long);
        if long {
            let need = self.queue.load.begin();
            // It does not matter here whether the entry is there yet.
            let _ = self.queue.grow(need);
        }
        let outcome = if request.opcode == Opcode::Write as u32 {
            let body = Body::split(place, payload.get(..input).unwrap_or(&[]));
            let outcome = self.queue.shared.server.handle(request, body, &mut small);
            if let Some(front) = payload.get_mut(..small.len()) {
                front.copy_from_slice(&small);
            }
            outcome
        } else {
            self.arguments.clear();
            self.arguments
                .extend_from_slice(payload.get(..input).unwrap_or(&[]));
            let body = Body::split(place, &self.arguments);
            self.queue.shared.server.handle(request, body, payload)
        };
        let answer = match outcome {
            Outcome::Answer(answer) => answer,
            // The kernel sends no request here that expects no answer.
            Outcome::Silent => Ok(0),
            Outcome::AnswerThen(answer, job) => {
                self.queue.shared.helper.post(job);
                answer
            }
            Outcome::Later(job) => {
                // A thread that waits for the helper serves nothing, whatever the request.
                if !long {
                    let need = self.queue.load.begin();
                    let _ = self.queue.grow(need);
                }
                let answer = wait(&self.queue, job);
                if !long {
                    self.queue.load.end();
                }
                answer.and_then(|answer| {
                    let (_, payload) = self.ring.memory().parts();
                    reply::bytes(payload, &answer)
                })
            }
        };
        if long {
            self.queue.load.end();
        }
        answer
    }
}

/// Waits for a job that may need another entry of this or another queue to complete.
fn wait(queue: &Queue, job: Job) -> Reply<Vec<u8>> {
    let answer = queue.shared.helper.ask(job);
    let mut patience = PATIENCE;
    loop {
        match answer.recv_timeout(patience) {
            Ok(answer) => return answer,
            Err(RecvTimeoutError::Disconnected) => return Err(libc::EIO),
            Err(RecvTimeoutError::Timeout) => {
                queue.shared.kick();
                patience = patience.saturating_mul(2).min(MOST_PATIENCE);
            }
        }
    }
}

/// Size of the opcode's struct, if all lengths are consistent.
fn lengths(request: &InHeader, input: usize, room: usize) -> Option<usize> {
    let whole = usize::try_from(request.len).ok()?;
    let size = whole
        .checked_sub(size_of::<InHeader>())?
        .checked_sub(input)?;
    (input <= room && size <= STRUCT.len()).then_some(size)
}

fn put(headers: &mut [u8], range: std::ops::Range<usize>, bytes: &[u8]) {
    if let Some(front) = headers
        .get_mut(range)
        .and_then(|place| place.get_mut(..bytes.len()))
    {
        front.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inconsistent_lengths_are_refused() {
        let request = |len| InHeader {
            len,
            ..InHeader::default()
        };
        assert_eq!(lengths(&request(40), 0, 100), Some(0));
        assert_eq!(lengths(&request(40 + 16 + 5), 5, 100), Some(16));
        assert_eq!(lengths(&request(39), 0, 100), None);
        assert_eq!(lengths(&request(50), 11, 100), None);
        assert_eq!(lengths(&request(40 + 101), 101, 100), None);
        assert_eq!(lengths(&request(40 + 129), 0, 100), None);
        assert_eq!(lengths(&request(u32::MAX), usize::MAX, 100), None);
    }
}
