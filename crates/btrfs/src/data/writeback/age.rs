//! Writing back what has been dirty for long.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::{Queue, Writeback};
use crate::data::flush;
use crate::engine::Engine;
use crate::ops::Inode;

/// Dirty data is not looked for more often than this.
const LEAST_AGE: Duration = Duration::from_millis(100);

/// Body of the thread that writes back what has been dirty for long. It sleeps until the oldest
/// is due, and while no file is active until one is.
pub(super) fn flush_old(engine: &Weak<Engine>, queue: &Queue, interval: Duration) {
    let interval = interval.max(LEAST_AGE);
    loop {
        let Some(engine) = engine.upgrade() else {
            return;
        };
        let due = engine.writeback.flush_due(&engine, interval);
        drop(engine);
        let mut lanes = queue.lanes.lock();
        match due {
            Some(wait) if !lanes.stopping => {
                lanes.wait_for(&queue.age, wait);
            }
            _ => {
                while !lanes.stopping && !lanes.awake {
                    lanes.wait(&queue.age);
                }
            }
        }
        lanes.awake = false;
        if lanes.stopping {
            return;
        }
    }
}

impl Writeback {
    /// Begins writeback of what is older than the interval. Returns how long the oldest of the
    /// others has until then; `None` if no file is active.
    fn flush_due(&self, engine: &Arc<Engine>, interval: Duration) -> Option<Duration> {
        let mut next: Option<Duration> = None;
        for (inode, since) in self.active_files() {
            let age = since.elapsed();
            let rest = match age >= interval {
                true => {
                    self.renew(&inode);
                    if inode.data.dirty_bytes() > 0 {
                        flush::begin(engine, &inode, 0..u64::MAX, flush::Dispatch::Queue);
                    }
                    interval
                }
                false => interval.saturating_sub(age),
            };
            next = Some(next.map_or(rest, |next| next.min(rest)));
        }
        next
    }

    /// Counts the age of a file's dirty data from now on.
    fn renew(&self, inode: &Inode) {
        if let Some(active) = self.active.lock().get_mut(&inode.lock_key()) {
            active.since = Instant::now();
        }
    }
}
