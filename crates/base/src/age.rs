//! Writes back data that has been dirty for long.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::lock::Rank;
use crate::workers::Alarm;

/// Shortest pause between two searches for old dirty data.
const LEAST_AGE: Duration = Duration::from_millis(100);

/// Body of the thread that writes back data that has been dirty for `interval`.
///
/// `begin` starts the writeback of everything that is due, and returns the time until the oldest of
/// the rest is due; `None` if no file has dirty data. The thread sleeps until then, or until the
/// alarm reports a file. It ends when the alarm stops, or when `engine` is dropped.
pub fn write_back_old<E, R: Rank>(
    engine: &Weak<E>,
    alarm: &Alarm<R>,
    interval: Duration,
    begin: impl Fn(&Arc<E>, Duration) -> Option<Duration>,
) {
    let interval = interval.max(LEAST_AGE);
    loop {
        let Some(engine) = engine.upgrade() else {
            return;
        };
        let due = begin(&engine, interval);
        drop(engine);
        if !alarm.sleep(due) {
            return;
        }
    }
}
