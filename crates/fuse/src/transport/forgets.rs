//! Forgets: what gives an unlinked inode's space back.
//!
//! # How it works
//!
//! For the caller of `unlink` the inode is gone when the call returns; we hear of it by a forget,
//! which no thread waits for. So a forget may still be on its way while a request that was made
//! after it is served, and then there seems to be less space than there is. Whatever depends on
//! that, a `statfs` and a request that found no space, first waits for those forgets that were sent
//! before it ([`Forgets::settle`]).
//!
//! Beside io_uring ([`Forgets::beside_rings`]) they come over `/dev/fuse`, which brings nearly
//! nothing else. Its threads take turns as lookout; once something comes it gathers for
//! [`GATHER`], because each message would wake a thread, and the kernel hands out together what
//! has come meanwhile. Who settles reads what is there by itself; a message of forgets with room
//! left is all of it, and what others cause meanwhile is not waited for. A message is counted under
//! the lock that it is read with, so that none can be both read and not counted.
//!
//! On the plain loop requests and forgets come in one order, and are counted once they are
//! read. Between the read and the count a thread may stand still: a request without space
//! is therefore tried again only after a moment ([`Forgets::retry`]). `statfs` does not wait for it.
//!
//! Test: `many_names` in `tests/suites/enospc.rs`, over both transports.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use zerocopy::FromBytes;

use super::device::{Device, Received};
use crate::wire::Opcode;
use crate::wire::abi::{ForgetOne, InHeader};

/// How long messages gather beside io_uring.
const GATHER: Duration = Duration::from_millis(2);
/// How long a thread of the plain loop may take from the read of a forget to its count.
const MOMENT: Duration = Duration::from_millis(2);
/// Messages that one who settles reads at most: interrupts come before forgets.
const MOST_MESSAGES: usize = 16;
/// How often a request that finds no space is tried at most.
const MOST_TRIES: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct Forgets {
    beside: OnceLock<Beside>,
    state: Mutex<State>,
    one_done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Of all that were counted, the number of the next one.
    next: u64,
    under_way: BTreeSet<u64>,
    /// For the longest message.
    buffer: Vec<u8>,
}

/// A device that does not block.
#[derive(Debug)]
struct Beside {
    device: Arc<Device>,
    /// Held by the thread that waits for a message.
    lookout: Mutex<()>,
}

/// What the device brought beside io_uring.
pub(super) enum Arrival<'a> {
    Message(Vec<u8>, UnderWay<'a>),
    Nothing,
    Ended,
}

/// A forget, or a message that may be one, with its number; served when this is dropped.
pub(super) struct UnderWay<'a>(&'a Forgets, u64);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.state.lock().under_way.remove(&self.1);
        self.0.one_done.notify_all();
    }
}

impl State {
    fn count(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        self.under_way.insert(number);
        number
    }
}

/// Whether no forget was left when the kernel made `message`, for which there was `room` (bytes). It puts all
/// that there are into one.
fn brings_all(message: &[u8], room: usize) -> bool {
    let Ok((header, _)) = InHeader::read_from_prefix(message) else {
        return false;
    };
    let batch = header.opcode == Opcode::BatchForget as u32;
    header.opcode == Opcode::Forget as u32
        || (batch && message.len().saturating_add(size_of::<ForgetOne>()) <= room)
}

impl Forgets {
    /// From now on the device is read by [`receive`](Self::receive) only; `longest` is the size of the
    /// longest message in bytes.
    ///
    /// # Errors
    /// It cannot be made one that does not block.
    pub(super) fn beside_rings(&self, device: &Arc<Device>, longest: usize) -> io::Result<()> {
        device.never_block()?;
        self.state.lock().buffer = vec![0; longest];
        self.beside
            .set(Beside {
                device: Arc::clone(device),
                lookout: Mutex::new(()),
            })
            .map_err(|_| io::Error::other("the device is read by two"))
    }

    /// Counts a forget that was read from the plain loop.
    pub(super) fn begin(&self) -> UnderWay<'_> {
        UnderWay(self, self.state.lock().count())
    }

    /// The next message beside io_uring that is there.
    ///
    /// # Errors
    /// The connection failed.
    pub(super) fn receive(&self) -> io::Result<Arrival<'_>> {
        let Some(beside) = self.beside.get() else {
            return Ok(Arrival::Nothing);
        };
        let mut state = self.state.lock();
        Ok(match beside.device.receive_now(&mut state.buffer)? {
            Received::Ended => Arrival::Ended,
            Received::Nothing => Arrival::Nothing,
            Received::Message(len) => {
                let message = state.buffer.get(..len).unwrap_or(&[]).to_vec();
                Arrival::Message(message, UnderWay(self, state.count()))
            }
        })
    }

    /// Waits until messages may have come, and for those that come close behind.
    pub(super) fn look_out(&self) {
        if let Some(beside) = self.beside.get() {
            let _turn = beside.lookout.lock();
            beside.device.await_request();
            std::thread::sleep(GATHER);
        }
    }

    /// Waits until all forgets are served that were sent before now, each message that no thread
    /// has read yet by `serve`.
    pub(super) fn settle(&self, serve: impl Fn(&Device, &[u8])) {
        if let Some(beside) = self.beside.get() {
            for _ in 0..MOST_MESSAGES {
                // That the connection has ended or failed is for its own threads to say.
                let Ok(Arrival::Message(message, _under_way)) = self.receive() else {
                    break;
                };
                serve(&beside.device, &message);
                if brings_all(&message, self.state.lock().buffer.len()) {
                    break;
                }
            }
        }
        let mut state = self.state.lock();
        let now = state.next;
        self.one_done.wait_while(&mut state, |state| {
            state.under_way.first().is_some_and(|&one| one < now)
        });
    }

    /// Tries a request, and again as long as it finds no space and forgets come. The second try is
    /// made in any case: forgets may have been served during the first, which shows nowhere.
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
            self.settle_patiently(&serve);
            outcome = once();
            tries += 1;
            if self.counted() == seen {
                break;
            }
        }
        outcome
    }

    /// How many were counted so far.
    fn counted(&self) -> u64 {
        self.state.lock().next
    }

    /// As [`settle`](Self::settle), and for those too that were read and not yet counted.
    fn settle_patiently(&self, serve: impl Fn(&Device, &[u8])) {
        if self.beside.get().is_none() {
            std::thread::sleep(MOMENT);
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
