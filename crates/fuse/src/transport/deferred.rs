//! Forgets of the loop on `/dev/fuse`, which a thread of their own serves.
//!
//! # How it works
//!
//! A forget may free the space of a file, which takes as long as several requests, and no client
//! waits for it. So a request thread only copies the message ([`Deferred::push`]) and takes the
//! next request. The thread of forgets ([`Deferred::take`]) collects messages for [`BATCH_TIME`],
//! because waking it for each message would cost the request threads more than serving the message.
//!
//! A message is counted before it is passed on, so `forgets` waits for it as for any other. Where
//! many clients run, the thread gets little time, so a thread that settles takes waiting messages
//! itself ([`Deferred::take_before`]).
//!
//! Trouble cases:
//! - More than [`MOST_BYTES`] wait: the request thread serves the message itself, which keeps the
//!   client from being faster than the forgets (`a_full_queue_takes_no_more`).
//! - The connection ends: the last request thread closes the queue, and the thread of forgets ends
//!   after the last message (`what_was_taken_is_served_after_the_end`).

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How long messages are collected.
const BATCH_TIME: Duration = Duration::from_millis(2);
/// Most bytes of messages that wait.
const MOST_BYTES: usize = 1 << 20;

/// Messages that wait for the thread of forgets.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    open: bool,
    /// The time for collecting the messages in `waiting` is over.
    collected: bool,
    bytes: usize,
    waiting: VecDeque<Message>,
}

impl State {
    fn pop(&mut self) -> Option<Message> {
        let message = self.waiting.pop_front()?;
        self.bytes = self.bytes.saturating_sub(message.bytes.len());
        self.collected &= !self.waiting.is_empty();
        Some(message)
    }
}

/// A message of the device, and the number that it was counted with.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) number: u64,
    pub(super) bytes: Vec<u8>,
}

impl Deferred {
    /// From now on messages are taken. Call it before the thread that serves them starts.
    pub(super) fn open(&self) {
        self.state.lock().open = true;
    }

    /// From now on no message is taken.
    pub(super) fn close(&self) {
        self.state.lock().open = false;
        self.changed.notify_all();
    }

    /// Takes a message if there is room for it. `count` gives it a number.
    pub(super) fn push(&self, message: &[u8], count: impl FnOnce() -> u64) -> bool {
        let mut state = self.state.lock();
        let bytes = state.bytes.saturating_add(message.len());
        if !state.open || bytes > MOST_BYTES {
            return false;
        }
        state.bytes = bytes;
        state.waiting.push_back(Message {
            number: count(),
            bytes: message.to_vec(),
        });
        // The thread that collects needs no further wake-up.
        if state.waiting.len() == 1 {
            self.changed.notify_all();
        }
        true
    }

    /// Waits for a message, and for others that arrive soon after. Takes the first one. `None`: no
    /// more will come.
    pub(super) fn take(&self) -> Option<Message> {
        let mut state = self.state.lock();
        loop {
            self.changed
                .wait_while(&mut state, |state| state.open && state.waiting.is_empty());
            if !state.collected {
                let collects = |state: &mut State| state.open && !state.waiting.is_empty();
                self.changed
                    .wait_while_for(&mut state, collects, BATCH_TIME);
                state.collected = !state.waiting.is_empty();
            }
            if !state.open || !state.waiting.is_empty() {
                return state.pop();
            }
        }
    }

    /// Takes the first waiting message, if its number is below `end`.
    pub(super) fn take_before(&self, end: u64) -> Option<Message> {
        let mut state = self.state.lock();
        state.waiting.front().filter(|first| first.number < end)?;
        state.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> Deferred {
        let deferred = Deferred::default();
        deferred.open();
        deferred
    }

    #[test]
    fn messages_are_served_in_their_order() {
        let deferred = open();
        for number in 0..3 {
            assert!(deferred.push(&[7], || number));
        }
        let number = |message: Option<Message>| message.map(|message| message.number);
        assert_eq!(number(deferred.take()), Some(0));
        assert_eq!(number(deferred.take_before(2)), Some(1));
        assert_eq!(number(deferred.take_before(2)), None);
        assert_eq!(number(deferred.take()), Some(2));
        assert_eq!(number(deferred.take_before(9)), None);
    }

    #[test]
    fn a_full_queue_takes_no_more() {
        let deferred = open();
        let half = vec![0; MOST_BYTES / 2];
        assert!(deferred.push(&half, || 0));
        assert!(deferred.push(&half, || 1));
        assert!(!deferred.push(&[0], || unreachable!()));
        assert!(deferred.take().is_some_and(|first| first.number == 0));
        assert!(deferred.push(&half, || 2));
        assert!(!deferred.push(&[0], || unreachable!()));
    }

    #[test]
    fn what_was_taken_is_served_after_the_end() {
        let deferred = open();
        assert!(deferred.push(&[1], || 0));
        deferred.close();
        assert!(!deferred.push(&[2], || unreachable!()));
        let only = Message {
            number: 0,
            bytes: vec![1],
        };
        assert_eq!(deferred.take(), Some(only));
        assert_eq!(deferred.take(), None);
        assert!(!Deferred::default().push(&[3], || unreachable!()));
    }
}
