//! This machine, as other machines see it: its name, and a clock that also runs while it sleeps.

use std::time::Duration;

use crate::host;

/// The name of this machine (`uname -n`); empty if the system has none.
#[must_use]
pub fn node_name() -> String {
    host::node_name()
}

/// Time since an arbitrary start, which includes the time in which the machine was suspended. Only
/// Linux counts that; elsewhere the clock may stop.
#[must_use]
pub fn awake_or_asleep() -> Duration {
    host::awake_or_asleep()
}
