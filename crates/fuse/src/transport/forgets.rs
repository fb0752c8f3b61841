//! Forgets: requests that release an unlinked inode's space.
//!
//! # How it works
//!
//! When `unlink` returns, the inode is gone for its caller. The kernel tells the server by a
//! forget, which no caller waits for. So a forget may still be in flight while a later request is
//! served, and the free space seems smaller than it is. A request that finds no space waits for the
//! forgets that were sent before it ([`Forgets::settle`]), and is tried again. A request that makes
//! everything durable waits for them, too. A `statfs` does not: its answer may lack the space of
//! forgets in flight.
//!
//! **With io_uring** ([`Forgets::use_for_forgets`]) forgets arrive on `/dev/fuse`, which carries
//! almost nothing else. One of its threads at a time polls the device. When something arrives, the
//! thread waits for [`BATCH_TIME`], because each message would wake a thread, and the kernel
//! delivers everything that has arrived in one message. A thread that settles reads the pending
//! messages itself. If a message of forgets does not fill its buffer, it contains all of them, and
//! the thread does not wait for later ones. A message is counted under the lock that it is read
//! with, so every message that was read is counted.
//!
//! **Without io_uring** requests and forgets arrive in one order, and are counted after they are
//! read. A thread of their own serves most forgets ([`Deferred`]). A thread that settles serves the
//! forgets that no thread has taken. A request thread may be delayed between the read and the
//! count, or before the read. So a request without space is retried only when no other request
//! thread is about to run and the kernel has no message ([`Plain::is_quiet`]), or after
//! [`MOST_MOMENTS`].
//! Test: `many_names` in `tests/suites/enospc.rs`, over both transports.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::thread::Pid;
use zerocopy::FromBytes;

use super::deferred::Deferred;
use super::device::{Device, Received};
use crate::wire::Opcode;
use crate::wire::abi::{ForgetOne, InHeader};

/// How long messages are collected with io_uring.
const BATCH_TIME: Duration = Duration::from_millis(2);
/// Without io_uring, a request without space checks the other threads at this interval, and at most
/// [`MOST_MOMENTS`] times.
const MOMENT: Duration = Duration::from_millis(2);
const MOST_MOMENTS: u32 = 50;
/// Most messages that a settling thread reads: the kernel delivers interrupts before forgets.
const MOST_MESSAGES: usize = 16;
/// Most attempts of a request that finds no space.
const MOST_TRIES: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct Forgets {
    device: OnceLock<ForgetDevice>,
    plain: OnceLock<Plain>,
    pub(super) deferred: Deferred,
    state: Mutex<State>,
    one_done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the next message to be counted.
    next: u64,
    in_progress: BTreeSet<u64>,
    /// Has room for the longest message.
    buffer: Vec<u8>,
}

/// The device that carries forgets with io_uring. It does not block.
#[derive(Debug)]
struct ForgetDevice {
    device: Arc<Device>,
    /// Held by the thread that polls for a message.
    poller: Mutex<()>,
}

/// The device that carries all messages without io_uring, and the threads that read it.
#[derive(Debug)]
struct Plain {
    device: Arc<Device>,
    readers: Mutex<Vec<Pid>>,
}

/// A thread that reads messages without io_uring.
pub(super) struct Reader<'a>(&'a Forgets, Pid);

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        if let Some(plain) = self.0.plain.get() {
            let mut readers = plain.readers.lock();
            readers.retain(|&reader| reader != self.1);
            if readers.is_empty() {
                self.0.deferred.close();
            }
        }
    }
}

impl Plain {
    /// Whether all readers but the calling thread sleep, and the kernel has no message for them.
    /// Then every message that was read is counted.
    fn is_quiet(&self) -> bool {
        let caller = rustix::thread::gettid();
        let readers = self.readers.lock().clone();
        let mut others = readers.into_iter().filter(|&reader| reader != caller);
        !others.any(may_run) && !self.device.has_request(Duration::ZERO)
    }
}

/// Whether a thread of this process runs or waits for a CPU.
fn may_run(thread: Pid) -> bool {
    let path = format!("/proc/self/task/{}/stat", thread.as_raw_nonzero());
    std::fs::read_to_string(path).is_ok_and(|stat| state_of(&stat) == Some('R'))
}

/// The state of a thread in a line of `stat`, described in `proc_pid_stat(5)`. It follows the name,
/// which may have spaces and parentheses.
fn state_of(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// A message from the device that carries forgets with io_uring.
pub(super) enum Arrival<'a> {
    Message(Vec<u8>, InProgress<'a>),
    Nothing,
    Ended,
}

/// A forget, or a message that may be one, with its number. It counts as served when this is
/// dropped.
pub(super) struct InProgress<'a>(&'a Forgets, u64);

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.0.state.lock().in_progress.remove(&self.1);
        self.0.one_done.notify_all();
    }
}

impl State {
    fn count(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        self.in_progress.insert(number);
        number
    }
}

/// Whether `message` contains all forgets that the kernel had. `room` is the size of its buffer.
/// The kernel puts as many forgets as fit into one message.
fn brings_all(message: &[u8], room: usize) -> bool {
    let Ok((header, _)) = InHeader::read_from_prefix(message) else {
        return false;
    };
    let batch = header.opcode == Opcode::BatchForget as u32;
    header.opcode == Opcode::Forget as u32
        || (batch && message.len().saturating_add(size_of::<ForgetOne>()) <= room)
}

impl Forgets {
    /// From now on only [`receive`](Self::receive) reads the device. `longest` is the size of the
    /// longest message in bytes.
    ///
    /// # Errors
    /// The device cannot be made non-blocking.
    pub(super) fn use_for_forgets(&self, device: &Arc<Device>, longest: usize) -> io::Result<()> {
        device.never_block()?;
        self.state.lock().buffer = vec![0; longest];
        self.device
            .set(ForgetDevice {
                device: Arc::clone(device),
                poller: Mutex::new(()),
            })
            .map_err(|_| io::Error::other("the device is read by two"))
    }

    /// The calling thread begins to read `device`, which carries all messages.
    pub(super) fn reader(&self, device: &Arc<Device>) -> Reader<'_> {
        let thread = rustix::thread::gettid();
        let plain = self.plain.get_or_init(|| Plain {
            device: Arc::clone(device),
            readers: Mutex::default(),
        });
        plain.readers.lock().push(thread);
        Reader(self, thread)
    }

    /// Counts a forget that was read without io_uring.
    pub(super) fn begin(&self) -> InProgress<'_> {
        InProgress(self, self.state.lock().count())
    }

    /// Passes a forget that was read without io_uring to the thread of forgets, if it takes it.
    pub(super) fn defer(&self, message: &[u8]) -> bool {
        self.deferred.push(message, || self.state.lock().count())
    }

    /// A forget that was counted when it was deferred.
    pub(super) fn resume(&self, number: u64) -> InProgress<'_> {
        InProgress(self, number)
    }

    /// The next pending message with io_uring.
    ///
    /// # Errors
    /// The connection failed.
    pub(super) fn receive(&self) -> io::Result<Arrival<'_>> {
        let Some(device) = self.device.get() else {
            return Ok(Arrival::Nothing);
        };
        let mut state = self.state.lock();
        Ok(match device.device.receive_now(&mut state.buffer)? {
            Received::Ended => Arrival::Ended,
            Received::Nothing => Arrival::Nothing,
            Received::Message(len) => {
                let message = state.buffer.get(..len).unwrap_or(&[]).to_vec();
                Arrival::Message(message, InProgress(self, state.count()))
            }
        })
    }

    /// Waits until a message may have arrived, and then for messages that follow shortly.
    pub(super) fn wait_for_messages(&self) {
        if let Some(device) = self.device.get() {
            let _turn = device.poller.lock();
            device.device.await_request();
            std::thread::sleep(BATCH_TIME);
        }
    }

    /// Waits until all forgets that were sent before now are served. Messages that no thread has
    /// read yet are served by `serve`.
    pub(super) fn settle(&self, serve: impl Fn(&Device, &[u8])) {
        if let Some(device) = self.device.get() {
            for _ in 0..MOST_MESSAGES {
                // The device's own threads report that the connection has ended or failed.
                let Ok(Arrival::Message(message, _in_progress)) = self.receive() else {
                    break;
                };
                serve(&device.device, &message);
                if brings_all(&message, self.state.lock().buffer.len()) {
                    break;
                }
            }
        }
        let now = self.counted();
        if let Some(plain) = self.plain.get() {
            while let Some(message) = self.deferred.take_before(now) {
                let _in_progress = self.resume(message.number);
                serve(&plain.device, &message.bytes);
            }
        }
        let mut state = self.state.lock();
        self.one_done.wait_while(&mut state, |state| {
            state.in_progress.first().is_some_and(|&one| one < now)
        });
    }

    /// Runs a request, and retries it as long as it finds no space and forgets arrive. The first
    /// retry always happens, because forgets may have been served unnoticed during the first
    /// attempt.
    pub(super) fn retry<T>(
        &self,
        mut once: impl FnMut() -> T,
        no_space: impl Fn(&T) -> bool,
        serve: impl Fn(&Device, &[u8]),
    ) -> T {
        let mut outcome = once();
        let mut tries = 1;
        while tries < MOST_TRIES && no_space(&outcome) {
            let seen = self.counted();
            self.settle_after_moment(&serve);
            outcome = once();
            tries += 1;
            if self.counted() == seen {
                break;
            }
        }
        outcome
    }

    /// Number of messages counted so far.
    fn counted(&self) -> u64 {
        self.state.lock().next
    }

    /// Like [`settle`](Self::settle), and also waits for forgets that were read but not yet
    /// counted.
    fn settle_after_moment(&self, serve: impl Fn(&Device, &[u8])) {
        if self.device.get().is_none() {
            for _ in 0..MOST_MOMENTS {
                std::thread::sleep(MOMENT);
                if self.plain.get().is_none_or(Plain::is_quiet) {
                    break;
                }
            }
        }
        self.settle(serve);
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn tries(forgets: &Forgets, mut once: impl FnMut(u32) -> bool) -> u32 {
        let mut tries = 0;
        let once = || {
            tries += 1;
            once(tries)
        };
        forgets.retry(once, |found| !found, |_, _| {});
        tries
    }

    #[test]
    fn a_request_without_space_is_tried_again_while_forgets_come() {
        let forgets = Forgets::default();
        let found = tries(&forgets, |number| {
            drop(forgets.begin());
            number == 5
        });
        assert_eq!(found, 5);
        assert_eq!(tries(&forgets, |_| true), 1);
        assert_eq!(tries(&forgets, |_| false), 2);
        let never = tries(&forgets, |_| {
            drop(forgets.begin());
            false
        });
        assert_eq!(never, MOST_TRIES);
    }

    #[test]
    fn a_thread_that_settles_serves_what_no_thread_took() {
        let forgets = Forgets::default();
        let null = std::fs::File::open("/dev/null").unwrap();
        let device = Arc::new(Device::new(null.into()));
        let _reader = forgets.reader(&device);
        forgets.deferred.open();
        assert!(forgets.defer(&[1]) && forgets.defer(&[2]));
        let served = Mutex::new(Vec::new());
        forgets.settle(|_, message| served.lock().extend_from_slice(message));
        assert_eq!(*served.lock(), [1, 2]);
    }

    #[test]
    fn a_thread_that_waits_for_a_cpu_may_run() {
        let stat = |state| format!("7 (fuse ) R (x) {state} 1 2 3");
        assert_eq!(state_of(&stat('S')), Some('S'));
        assert_eq!(state_of(&stat('R')), Some('R'));
        assert_eq!(state_of("7"), None);
        assert!(may_run(rustix::thread::gettid()));
        let (sleeps, told) = std::sync::mpsc::channel();
        let (go_on, wait) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                sleeps.send(rustix::thread::gettid()).ok();
                wait.recv().ok();
            });
            let thread = told.recv().unwrap_or_else(|error| panic!("{error}"));
            while may_run(thread) {
                std::thread::yield_now();
            }
            go_on.send(()).ok();
        });
    }

    #[test]
    fn only_a_message_with_room_left_brings_all_forgets() {
        let message = |opcode: Opcode, len: usize| {
            let header = InHeader {
                opcode: opcode as u32,
                ..InHeader::default()
            };
            let mut bytes = header.as_bytes().to_vec();
            bytes.resize(len, 0);
            bytes
        };
        let room = 4096;
        assert!(brings_all(&message(Opcode::Forget, 48), room));
        assert!(brings_all(&message(Opcode::BatchForget, room - 16), room));
        assert!(!brings_all(&message(Opcode::BatchForget, room - 15), room));
        assert!(!brings_all(&message(Opcode::BatchForget, room), room));
        assert!(!brings_all(&message(Opcode::Interrupt, 48), room));
        assert!(!brings_all(&[0; 7], room));
    }
}
