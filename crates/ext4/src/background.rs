//! The threads that work by time: commits what is old, and what the journal wishes.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use parking_lot::Condvar;
use sapwood_jbd2::Request;

use crate::engine::Engine;
use crate::lock::{Rank, RankedMutex};

/// What the thread waits for.
pub(crate) struct Alarm {
    state: RankedMutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// When the first change since the last commit was begun.
    since: Option<Instant>,
    commit: bool,
    checkpoint: bool,
    relieve: bool,
    stopping: bool,
}

enum Work {
    Commit,
    Checkpoint,
    /// Let inodes leave memory.
    Relieve,
    Stop,
}

impl Alarm {
    /// Nothing to do yet.
    pub(crate) fn new() -> Self {
        Self {
            state: RankedMutex::new(Rank::Leaf, State::default()),
            changed: Condvar::new(),
        }
    }

    /// A change begins: a commit is due one interval later.
    pub(crate) fn change(&self) {
        let mut state = self.state.lock();
        if state.since.is_none() {
            state.since = Some(Instant::now());
            self.changed.notify_one();
        }
    }

    /// The journal wishes for something.
    pub(crate) fn wish(&self, wish: Request) {
        let mut state = self.state.lock();
        match wish {
            Request::Commit => state.commit = true,
            Request::Checkpoint => state.checkpoint = true,
        }
        self.changed.notify_one();
    }

    /// There are more inodes in memory than there may be.
    pub(crate) fn relieve(&self) {
        self.state.lock().relieve = true;
        self.changed.notify_one();
    }

    fn next(&self, interval: std::time::Duration) -> Work {
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

/// The thread; ends with [`stop`](Self::stop).
pub(crate) struct Background {
    thread: RankedMutex<Option<JoinHandle<()>>>,
}

impl Background {
    /// Starts it, if the mount takes changes and wants one.
    pub(crate) fn start(engine: &Arc<Engine>) -> Self {
        let wanted = engine.options.background && !engine.read_only();
        let worker = Arc::clone(engine);
        let spawn = || {
            thread::Builder::new()
                .name("ext4-commit".into())
                .spawn(move || serve(&worker))
        };
        let thread = wanted.then(spawn).and_then(|spawned| {
            spawned
                .map_err(|error| log::warn!("no thread for commits: {error}"))
                .ok()
        });
        Self {
            thread: RankedMutex::new(Rank::Leaf, thread),
        }
    }

    /// Ends it and waits until it has ended.
    pub(crate) fn stop(&self, engine: &Engine) {
        let Some(thread) = self.thread.lock().take() else {
            return;
        };
        engine.alarm.state.lock().stopping = true;
        engine.alarm.changed.notify_all();
        if thread.join().is_err() {
            log::error!("the commit thread panicked");
        }
    }
}

fn serve(engine: &Arc<Engine>) {
    loop {
        // What fails turns the mount read-only, and a thread that waits for it hears of it.
        let _ = match engine.alarm.next(engine.options.commit_interval) {
            Work::Commit => match engine.journal.commit_all() {
                Ok(()) => engine.inodes.relieve(engine),
                Err(error) => Err(error.into()),
            },
            Work::Checkpoint => engine.journal.checkpoint().map_err(Into::into),
            Work::Relieve => engine.inodes.relieve(engine),
            Work::Stop => return,
        };
    }
}
