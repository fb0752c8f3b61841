//! A bound on the rate at which bytes are read.

use std::time::{Duration, Instant};

/// Longest pause, so that the caller can end the work soon.
const LONGEST: Duration = Duration::from_millis(100);

/// Keeps the bytes of all threads that share it below a rate, from its creation on.
#[derive(Debug)]
pub struct Pace {
    begun: Instant,
    /// Bytes per second.
    rate: u64,
}

impl Pace {
    /// The work begins. `rate` is in bytes per second; 0 counts as 1.
    #[must_use]
    pub fn new(rate: u64) -> Self {
        Self {
            begun: Instant::now(),
            rate: rate.max(1),
        }
    }

    /// The next pause of a caller after `done` bytes; `None` once they are due.
    #[must_use]
    pub fn pause(&self, done: u64) -> Option<Duration> {
        let due = Duration::try_from_secs_f64(done as f64 / self.rate as f64);
        let due = due.unwrap_or(Duration::MAX);
        let early = due.checked_sub(self.begun.elapsed())?;
        Some(early.min(LONGEST))
    }
}
