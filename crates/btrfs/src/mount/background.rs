//! Threads of a mount: the committer and the cleaner.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use super::engine::Engine;
use crate::subvolume::cleaner;

/// The threads of a mount, until they are stopped.
pub(crate) struct Background {
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Background {
    /// Starts them, unless the mount is read-only or its options do without.
    pub(crate) fn start(engine: &Arc<Engine>) -> Self {
        let mut threads = Vec::new();
        if engine.options.background && !engine.health.read_only() {
            engine.writeback.start(engine);
            threads.extend(spawn(engine, "btrfs-commit", committer));
            threads.extend(spawn(engine, "btrfs-cleaner", |engine| {
                cleaner::run(engine);
            }));
        }
        Self {
            threads: Mutex::new(threads),
        }
    }

    /// Ends them and waits for that.
    pub(crate) fn stop(&self, engine: &Engine) {
        engine.transactions.stop();
        engine.cleaner.stop();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.join().is_err() {
                log::error!("a background thread panicked");
            }
        }
    }
}

fn spawn(engine: &Arc<Engine>, name: &str, work: fn(&Arc<Engine>)) -> Option<JoinHandle<()>> {
    let engine = engine.clone();
    let builder = thread::Builder::new().name(name.to_owned());
    match builder.spawn(move || work(&engine)) {
        Ok(thread) => Some(thread),
        Err(err) => {
            log::error!("no thread {name}: {err}");
            None
        }
    }
}

/// Commits what is older than the interval, or when asked. Sleeps while nothing changed.
fn committer(engine: &Arc<Engine>) {
    while engine.transactions.wait_due(engine.options.commit_interval) {
        // An error made the mount read-only and was logged; there is nothing left to commit then.
        if engine.commit(None).is_err() {
            return;
        }
        // What the transaction held may leave memory now.
        engine.inodes.trim();
    }
}
