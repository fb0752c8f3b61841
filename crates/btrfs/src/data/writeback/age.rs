//! Writing back what has been dirty for long.

use std::sync::{Arc, Weak};
use std::time::Duration;

use sapwood_base::Alarm;

use super::Writeback;
use crate::data::flush;
use crate::engine::Engine;
use crate::lock::Rank;

/// Dirty data is not looked for more often than this.
const LEAST_AGE: Duration = Duration::from_millis(100);

/// Body of the thread that writes back what has been dirty for long. It sleeps until the oldest
/// is due, and while no file is active until one is.
pub(super) fn flush_old(engine: &Weak<Engine>, alarm: &Alarm<Rank>, interval: Duration) {
    let interval = interval.max(LEAST_AGE);
    loop {
        let Some(engine) = engine.upgrade() else {
            return;
        };
        let due = engine.writeback.flush_due(&engine, interval);
        drop(engine);
        if !alarm.sleep(due) {
            return;
        }
    }
}

impl Writeback {
    /// Begins writeback of what is older than the interval. Returns how long the oldest of the
    /// others has until then; `None` if no file is active.
    fn flush_due(&self, engine: &Arc<Engine>, interval: Duration) -> Option<Duration> {
        let (files, next) = self.active.due(interval);
        for inode in files {
            if inode.data.dirty_bytes() > 0 {
                flush::begin(engine, &inode, 0..u64::MAX);
            }
        }
        next
    }
}
