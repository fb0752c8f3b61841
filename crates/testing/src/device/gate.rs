//! [`GateDevice`]: holds chosen requests until the test releases them.
//!
//! # How it works
//!
//! A predicate sees each request before it reaches the device below. A request that it chooses
//! waits inside the device call, listed by a ticket, until the test releases or fails it. The test
//! waits for "n requests are held" on a condition variable, so it knows without sleeping where
//! every thread waits. Trouble cases:
//! - The gate opens between the predicate's answer and the wait: the answer belongs to an older
//!   generation, and the predicate is called again.
//! - A test forgets to release a request: after a minute the request fails, and
//!   [`wait_held`](GateDevice::wait_held) panics with the list of held requests.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::request::{Request, RequestKind};
use sapwood_block::{Device, Error, Result};

/// How long a wait may last before the test counts as broken.
const TIMEOUT: Duration = Duration::from_secs(60);

type Predicate = Arc<dyn Fn(&Request<'_>) -> bool + Send + Sync>;

/// A request that waits at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Identifies the request for [`GateDevice::release`]; tickets grow in order of arrival.
    pub ticket: u64,
    /// Kind of the request.
    pub kind: RequestKind,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

#[derive(Debug, Clone, Copy)]
enum Verdict {
    Pass,
    Fail,
}

#[derive(Default)]
struct State {
    predicate: Option<Predicate>,
    generation: u64,
    next_ticket: u64,
    held: BTreeMap<u64, Held>,
    verdicts: HashMap<u64, Verdict>,
}

impl State {
    fn decide(&mut self, ticket: u64, verdict: Verdict) -> Option<Held> {
        let held = self.held.remove(&ticket)?;
        self.verdicts.insert(ticket, verdict);
        Some(held)
    }

    fn decide_all(&mut self, verdict: Verdict) -> usize {
        let tickets: Vec<u64> = self.held.keys().copied().collect();
        for &ticket in &tickets {
            self.decide(ticket, verdict);
        }
        tickets.len()
    }
}

/// A device whose chosen requests wait for the test. See the module.
///
/// Keep it in an `Arc` and give a clone of that to the code under test.
pub struct GateDevice<D> {
    inner: D,
    state: Mutex<State>,
    changed: Condvar,
}

impl<D: fmt::Debug> fmt::Debug for GateDevice<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateDevice")
            .field("inner", &self.inner)
            .field("held", &self.state.lock().held)
            .finish_non_exhaustive()
    }
}

impl<D: Device> GateDevice<D> {
    /// Wraps `inner`; the gate is open.
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Holds the requests for which `predicate` is true from now on; it replaces an earlier
    /// predicate. Requests that are held already stay held.
    pub fn hold_if(&self, predicate: impl Fn(&Request<'_>) -> bool + Send + Sync + 'static) {
        let mut state = self.state.lock();
        state.generation += 1;
        state.predicate = Some(Arc::new(predicate));
    }

    /// Stops holding requests and releases all of them.
    pub fn open(&self) {
        let mut state = self.state.lock();
        state.generation += 1;
        state.predicate = None;
        state.decide_all(Verdict::Pass);
        self.changed.notify_all();
    }

    /// Waits until at least `n` requests are held; returns them in order of arrival.
    ///
    /// # Panics
    /// After a minute: the code under test did not send the expected requests.
    pub fn wait_held(&self, n: usize) -> Vec<Held> {
        let deadline = Instant::now() + TIMEOUT;
        let mut state = self.state.lock();
        while state.held.len() < n {
            let waited = self.changed.wait_until(&mut state, deadline);
            assert!(
                !waited.timed_out() || state.held.len() >= n,
                "waited for {n} held requests, but only these came: {:?}",
                state.held
            );
        }
        state.held.values().copied().collect()
    }

    /// The requests that are held now, in order of arrival.
    #[must_use]
    pub fn held(&self) -> Vec<Held> {
        self.state.lock().held.values().copied().collect()
    }

    /// Releases one request; false if no such ticket is held.
    pub fn release(&self, ticket: u64) -> bool {
        self.decide(ticket, Verdict::Pass)
    }

    /// Releases the request that arrived first, and returns it.
    pub fn release_first(&self) -> Option<Held> {
        let mut state = self.state.lock();
        let ticket = *state.held.keys().next()?;
        let held = state.decide(ticket, Verdict::Pass);
        self.changed.notify_all();
        held
    }

    /// Releases all requests that are held now; later ones are still held. Returns their number.
    pub fn release_all(&self) -> usize {
        let released = self.state.lock().decide_all(Verdict::Pass);
        self.changed.notify_all();
        released
    }

    /// Fails one request with `EIO`; false if no such ticket is held.
    pub fn fail(&self, ticket: u64) -> bool {
        self.decide(ticket, Verdict::Fail)
    }

    /// Fails all requests that are held now. Returns their number.
    pub fn fail_all(&self) -> usize {
        let failed = self.state.lock().decide_all(Verdict::Fail);
        self.changed.notify_all();
        failed
    }

    /// The device below; requests made to it directly bypass the gate.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    fn decide(&self, ticket: u64, verdict: Verdict) -> bool {
        let known = self.state.lock().decide(ticket, verdict).is_some();
        self.changed.notify_all();
        known
    }

    /// Returns when the request may continue.
    fn pass(&self, request: &Request<'_>) -> Result<()> {
        loop {
            let (predicate, generation) = {
                let state = self.state.lock();
                (state.predicate.clone(), state.generation)
            };
            // The predicate is called without the lock, so that it may itself inspect the gate.
            if !predicate.is_some_and(|p| p(request)) {
                return Ok(());
            }
            let mut state = self.state.lock();
            if state.generation != generation {
                continue;
            }
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            let held = Held {
                ticket,
                kind: request.kind,
                offset: request.offset,
                len: request.len,
            };
            state.held.insert(ticket, held);
            self.changed.notify_all();
            let deadline = Instant::now() + TIMEOUT;
            loop {
                match state.verdicts.remove(&ticket) {
                    Some(Verdict::Pass) => return Ok(()),
                    Some(Verdict::Fail) => return Err(request.failure(self.name())),
                    None => {}
                }
                if Instant::now() >= deadline {
                    state.held.remove(&ticket);
                    return Err(self.forgotten(request));
                }
                self.changed.wait_until(&mut state, deadline);
            }
        }
    }

    fn forgotten(&self, request: &Request<'_>) -> Error {
        let source = io::Error::new(io::ErrorKind::TimedOut, "held by the gate and forgotten");
        Error::io(
            self.name(),
            request.kind.op(),
            request.offset,
            request.len,
            source,
        )
    }
}

impl<D: Device> sapwood_block::Layer for GateDevice<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.pass(&Request::new(RequestKind::Read, offset, buf.len() as u64))?;
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.pass(&Request::write(RequestKind::Write, offset, buf))?;
        self.inner.write_at(offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        Device::write_at(self, offset, &bufs.concat())
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.pass(&Request::write(RequestKind::Fua, offset, buf))?;
        self.inner.write_fua(offset, buf)
    }

    fn flush(&self) -> Result<()> {
        self.pass(&Request::new(RequestKind::Flush, 0, 0))?;
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.pass(&Request::new(RequestKind::Discard, offset, len))?;
        self.inner.discard(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sapwood_block::MemoryDevice;
    use std::thread;

    fn gate() -> GateDevice<MemoryDevice> {
        GateDevice::new(MemoryDevice::new(1 << 20))
    }

    fn byte(gate: &GateDevice<MemoryDevice>, offset: u64) -> u8 {
        let mut buf = [0];
        gate.inner().read_at(offset, &mut buf).unwrap();
        buf[0]
    }

    #[test]
    fn holds_what_the_predicate_chooses_and_nothing_else() {
        let gate = gate();
        gate.hold_if(|r| r.bytes.is_some_and(|b| b.first() == Some(&9)));
        gate.write_at(0, &[1]).unwrap();
        gate.flush().unwrap();
        thread::scope(|scope| {
            let writer = scope.spawn(|| gate.write_vectored_at(100, &[&[9], &[8]]));
            let held = gate.wait_held(1)[0];
            assert_eq!(
                (held.kind, held.offset, held.len),
                (RequestKind::Write, 100, 2)
            );
            assert_eq!(byte(&gate, 100), 0);
            assert!(gate.release(held.ticket));
            assert!(!gate.release(held.ticket));
            writer.join().unwrap().unwrap();
        });
        assert_eq!((byte(&gate, 100), byte(&gate, 101)), (9, 8));
    }

    #[test]
    fn releases_one_some_or_all_and_fails() {
        let gate = gate();
        gate.hold_if(|r| r.kind == RequestKind::Fua);
        thread::scope(|scope| {
            let mut writers = Vec::new();
            for i in 0..5u64 {
                let gate = &gate;
                writers.push(scope.spawn(move || gate.write_fua(i, &[7])));
                gate.wait_held(i as usize + 1);
            }
            let mut join = || writers.remove(0).join().unwrap();
            assert_eq!(gate.release_first().unwrap().offset, 0);
            join().unwrap();
            assert!(gate.fail(gate.held()[0].ticket));
            assert!(join().is_err());
            assert_eq!(gate.held().len(), 3);
            gate.release_first();
            join().unwrap();
            assert_eq!(gate.fail_all(), 2);
            assert!(join().is_err() && join().is_err());
        });
        let written: Vec<u8> = (0..5).map(|i| byte(&gate, i)).collect();
        assert_eq!(written, [7, 0, 7, 0, 0]);
    }

    #[test]
    fn open_releases_and_stops_holding() {
        let gate = gate();
        gate.hold_if(|_| true);
        thread::scope(|scope| {
            let flusher = scope.spawn(|| gate.flush());
            let reader = scope.spawn(|| gate.read_at(0, &mut [0]));
            gate.wait_held(2);
            gate.open();
            flusher.join().unwrap().unwrap();
            reader.join().unwrap().unwrap();
        });
        gate.write_at(0, &[1]).unwrap();
        assert!(gate.held().is_empty());
    }

    #[test]
    fn a_request_chosen_while_the_gate_opens_is_not_lost() {
        let gate = Arc::new(gate());
        let opener = Arc::downgrade(&gate);
        gate.hold_if(move |_| {
            if let Some(gate) = opener.upgrade() {
                gate.open();
            }
            true
        });
        gate.write_at(0, &[1]).unwrap();
    }
}
