//! Holds writes, for tests of front ends that must wait for them.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// A write passes after this time even if no call opened the gate.
const LONGEST: Duration = Duration::from_secs(10);

/// Open, until it is closed.
#[derive(Debug, Default)]
pub(super) struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(super) fn shut(&self) {
        *self.shut.lock() = true;
    }

    pub(super) fn open(&self) {
        *self.shut.lock() = false;
        self.opened.notify_all();
    }

    /// Waits while the gate is closed.
    pub(super) fn pass(&self) {
        let mut shut = self.shut.lock();
        if *shut {
            let late = self
                .opened
                .wait_while_for(&mut shut, |shut| *shut, LONGEST)
                .timed_out();
            if late {
                *shut = false;
            }
        }
    }
}
