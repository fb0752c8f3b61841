//! The clock of multiple mount protection.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// Tells the time and waits. A test steps through the waits of a protection with its own clock.
pub trait Clock: Send + Sync + Debug {
    /// Time since an arbitrary start. It also passes while the machine is suspended.
    fn now(&self) -> Duration;

    /// Waits.
    fn sleep(&self, time: Duration);
}

/// The clock of the machine.
#[derive(Debug)]
struct Machine;

impl Clock for Machine {
    fn now(&self) -> Duration {
        sapwood_base::machine::awake_or_asleep()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A [`Clock`] as an option of a mount.
#[derive(Clone, Debug)]
pub struct SharedClock(Arc<dyn Clock>);

impl SharedClock {
    /// A clock of a test.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self(clock)
    }

    pub(crate) fn now(&self) -> Duration {
        self.0.now()
    }

    pub(crate) fn sleep(&self, time: Duration) {
        self.0.sleep(time);
    }
}

impl Default for SharedClock {
    /// The clock of the machine.
    fn default() -> Self {
        Self(Arc::new(Machine))
    }
}

/// Options with clocks compare equal if everything else does.
impl PartialEq for SharedClock {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for SharedClock {}
