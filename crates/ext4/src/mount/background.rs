//! The thread that commits old changes and serves the journal's requests.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::alarm::Work;
use crate::engine::Engine;
use crate::lock::{Rank, RankedMutex};

/// The thread; ends with [`stop`](Self::stop).
pub(crate) struct Background {
    thread: RankedMutex<Option<JoinHandle<()>>>,
}

impl Background {
    /// Starts the thread, if the mount takes changes and has background threads.
    pub(crate) fn start(engine: &Arc<Engine>) -> Self {
        let options = &engine.options;
        let own = options.background && options.fixed_time.is_none();
        let wanted = own && !engine.read_only();
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

    /// Ends the thread, and waits until it has ended.
    pub(crate) fn stop(&self, engine: &Engine) {
        let Some(thread) = self.thread.lock().take() else {
            return;
        };
        engine.alarm.stop();
        if thread.join().is_err() {
            log::error!("the commit thread panicked");
        }
    }
}

fn serve(engine: &Arc<Engine>) {
    loop {
        // An error makes the mount read-only, and threads that wait get it.
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
