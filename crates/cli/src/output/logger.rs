//! The log: warnings and errors, one line each.
//!
//! A command logs to standard error. A daemon in the background has none: it logs to the system's
//! log ([`syslog`](super::syslog)).

use std::fmt::Display;
use std::path::Path;
use std::sync::OnceLock;

use log::{Level, LevelFilter, Log, Metadata, Record};
use sapwood::mount::broker::Broker;

use super::stream;
use super::syslog::Syslog;

/// Set once, when the process gives up its standard streams.
static SYSTEM: OnceLock<Syslog> = OnceLock::new();

/// The level of detail.
const LEVEL: LevelFilter = LevelFilter::Warn;

struct Logger;

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= LEVEL
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) && !to_system(record.level(), record.args()) {
            stream::to_stderr(record.args());
        }
    }

    fn flush(&self) {}
}

/// Starts the log on standard error.
pub(crate) fn start_log() {
    // Only a library user who set a logger before us can make this fail, and then theirs counts.
    let _ = log::set_logger(&Logger);
    log::set_max_level(LEVEL);
}

/// The system's log of the daemon of a mount, which is not in use yet. The daemon may be confined
/// before it begins to use it.
pub(crate) struct SystemLog(Syslog);

impl SystemLog {
    /// For the mount of `image` on `dir`. If there is a `broker`, that connects.
    pub(crate) fn new(image: &Path, dir: &Path, broker: Option<Broker>) -> Self {
        let about = format!("{} on {}", image.display(), dir.display());
        Self(Syslog::new(&about, broker))
    }

    /// From now on the log, messages and panics go to the system's log: the process is about to
    /// lose its standard streams.
    pub(crate) fn begin(self) {
        let _ = SYSTEM.set(self.0);
        std::panic::set_hook(Box::new(|panic| log::error!("{panic}")));
    }
}

/// Sends a line to the system's log; false if this process does not log there.
pub(super) fn to_system(level: Level, text: &dyn Display) -> bool {
    let Some(system) = SYSTEM.get() else {
        return false;
    };
    system.send(level, &text.to_string());
    true
}
