//! The wake-ups of a mount's background thread: a commit that is due, and requests of the journal
//! and of the inode table.

use std::time::{Duration, Instant};

use parking_lot::Condvar;
use sapwood_jbd2::Request;

use crate::lock::{Rank, RankedMutex};

/// Requests to the background thread.
pub(crate) struct Alarm {
    state: RankedMutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Start of the first change since the last commit.
    since: Option<Instant>,
    commit: bool,
    checkpoint: bool,
    relieve: bool,
    stopping: bool,
}

/// The next job of the background thread.
pub(crate) enum Work {
    /// Commit the running transaction.
    Commit,
    /// Write the journal's blocks back to their home locations.
    Checkpoint,
    /// Evict inodes from memory.
    Relieve,
    /// End.
    Stop,
}

impl Alarm {
    /// An alarm without work.
    pub(crate) fn new() -> Self {
        Self {
            state: RankedMutex::new(Rank::Leaf, State::default()),
            changed: Condvar::new(),
        }
    }

    /// Records that a change begins: a commit is due one interval later.
    pub(crate) fn change(&self) {
        let mut state = self.state.lock();
        if state.since.is_none() {
            state.since = Some(Instant::now());
            self.changed.notify_one();
        }
    }

    /// Records a request of the journal.
    pub(crate) fn request(&self, request: Request) {
        let mut state = self.state.lock();
        match request {
            Request::Commit => state.commit = true,
            Request::Checkpoint => state.checkpoint = true,
        }
        self.changed.notify_one();
    }

    /// Requests an eviction: the inodes in memory exceed their bound.
    pub(crate) fn relieve(&self) {
        self.state.lock().relieve = true;
        self.changed.notify_one();
    }

    /// Drops all requests: from now on [`next`](Self::next) returns [`Work::Stop`].
    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        self.changed.notify_all();
    }

    /// Waits for the next piece of work. A change is committed after `interval`.
    pub(crate) fn next(&self, interval: Duration) -> Work {
        let mut state = self.state.lock();
        loop {
            if state.stopping {
                return Work::Stop;
            }
            let due = state.since.map(|since| since + interval);
            if std::mem::take(&mut state.commit) || due.is_some_and(|due| due <= Instant::now()) {
                state.since = None;
                return Work::Commit;
            }
            if std::mem::take(&mut state.checkpoint) {
                return Work::Checkpoint;
            }
            if std::mem::take(&mut state.relieve) {
                return Work::Relieve;
            }
            match due {
                Some(due) => {
                    let left = due.saturating_duration_since(Instant::now());
                    state.wait_for(&self.changed, left);
                }
                None => state.wait(&self.changed),
            }
        }
    }
}
