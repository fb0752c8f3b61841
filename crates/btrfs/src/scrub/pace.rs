//! The bound on the rate of a scrub.

use std::time::{Duration, Instant};

/// Keeps the bytes of all threads below a rate.
pub(super) struct Pace {
    begun: Instant,
    /// Bytes per second.
    rate: u64,
}

impl Pace {
    /// A scrub begins.
    pub(super) fn new(rate: u64) -> Self {
        Self {
            begun: Instant::now(),
            rate,
        }
    }

    /// How much too early the bytes are read.
    pub(super) fn early(&self, done: u64) -> Option<Duration> {
        let due = Duration::try_from_secs_f64(done as f64 / self.rate.max(1) as f64);
        let due = due.unwrap_or(Duration::MAX);
        due.checked_sub(self.begun.elapsed())
    }
}
