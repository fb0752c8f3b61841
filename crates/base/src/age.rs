//! Writing back what has been dirty for long.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::lock::Rank;
use crate::workers::Alarm;

/// Dirty data is not looked for more often than this.
const LEAST_AGE: Duration = Duration::from_millis(100);

/// Body of the thread that writes back what has been dirty for `interval`. `begin` starts the
/// writeback of what is due, and returns how long the oldest of the rest has until then; `None` if no
/// file has dirty data. The thread sleeps until then, or until the alarm reports a file. It ends with
/// the alarm, or once `engine` is gone.
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
