//! A bound for what a daemon logs, so that a failing disk does not fill the log.
//!
//! Errors are counted apart from all else: a flood of warnings leaves no error out.

use std::time::{Duration, Instant};

use log::Level;

/// Most messages in a [`WINDOW`], of errors and of all else.
pub(super) const BURST: u32 = 50;
pub(super) const WINDOW: Duration = Duration::from_secs(10);

/// Messages in a span of time, and the number of those that were left out.
#[derive(Debug, Default)]
pub(super) struct Limit {
    errors: Window,
    others: Window,
    /// Not reported yet.
    left_out: u64,
}

#[derive(Debug, Default)]
struct Window {
    began: Option<Instant>,
    messages: u32,
}

impl Window {
    fn admits(&mut self, now: Instant) -> bool {
        if self
            .began
            .is_none_or(|began| now.saturating_duration_since(began) >= WINDOW)
        {
            *self = Self {
                began: Some(now),
                messages: 0,
            };
        }
        self.messages = self.messages.saturating_add(1);
        self.messages <= BURST
    }
}

impl Limit {
    /// Whether a message may be logged now; counts it as left out if not.
    pub(super) fn admits(&mut self, now: Instant, level: Level) -> bool {
        let window = match level {
            Level::Error => &mut self.errors,
            _ => &mut self.others,
        };
        let admitted = window.admits(now);
        if !admitted {
            self.leave_out();
        }
        admitted
    }

    /// Counts a message that could not be delivered.
    pub(super) fn leave_out(&mut self) {
        self.left_out += 1;
    }

    /// What to log about the messages that were left out.
    pub(super) fn report(&self) -> Option<String> {
        match self.left_out {
            0 => None,
            1 => Some("1 message was left out".to_owned()),
            many => Some(format!("{many} messages were left out")),
        }
    }

    /// The report was delivered.
    pub(super) fn reported(&mut self) {
        self.left_out = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_warnings_leaves_no_error_out() {
        let mut limit = Limit::default();
        let begin = Instant::now();
        let admitted = (0..1000)
            .filter(|_| limit.admits(begin, Level::Warn))
            .count();
        assert_eq!(admitted, BURST as usize);
        assert!(limit.admits(begin, Level::Error));
        assert!(!limit.admits(begin, Level::Info));
        assert_eq!(limit.report().unwrap(), "951 messages were left out");
        limit.reported();
        assert_eq!(limit.report(), None);
        assert!(limit.admits(begin + WINDOW, Level::Warn));
    }
}
