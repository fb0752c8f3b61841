//! The log, one line for each message.
//!
//! A command logs warnings and errors to standard error. The daemon of a mount has a level (`-o
//! log=LEVEL`) and a bound ([`Limit`]). In the background it has no standard error: it logs to the
//! system's log ([`syslog`](super::syslog)). Where standard error leads to the journal, each line
//! begins with its priority, as sd-daemon(3) has it.

use std::fmt::Display;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

use crate::host::mount::broker::Broker;
use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;

use super::limit::Limit;
use super::stream;
use super::syslog::Syslog;

/// Set once, when the process gives up its standard streams.
static SYSTEM: OnceLock<Syslog> = OnceLock::new();

/// The bound for standard error; set for a daemon in the foreground.
static FOREGROUND: OnceLock<Mutex<Limit>> = OnceLock::new();

/// The last message of a command, which is not repeated.
static LAST: Mutex<String> = Mutex::new(String::new());

/// The device and inode that standard error has if it leads to the journal.
const JOURNAL_VARIABLE: &str = "JOURNAL_STREAM";

struct Logger;

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        let (level, text) = (record.level(), record.args());
        if !self.enabled(record.metadata()) || to_system(level, text) {
            return;
        }
        let Some(limit) = FOREGROUND.get() else {
            // A read around damage meets the same error several times.
            let text = text.to_string();
            let mut last = LAST.lock();
            if *last != text {
                stream::to_stderr(level, &text);
                *last = text;
            }
            return;
        };
        let mut limit = limit.lock();
        if limit.admits(Instant::now(), level) {
            report(&mut limit);
            stream::to_stderr(level, text);
        }
    }

    /// Reports how many messages were left out.
    fn flush(&self) {
        if let Some(system) = SYSTEM.get() {
            system.flush();
        }
        if let Some(limit) = FOREGROUND.get() {
            report(&mut limit.lock());
        }
    }
}

fn report(limit: &mut Limit) {
    if let Some(count) = limit.report() {
        stream::to_stderr(Level::Warn, &count);
        limit.reported();
    }
}

/// The number of a level in syslog(3).
pub(super) fn severity(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

/// Starts the log on standard error.
pub(crate) fn start_log() {
    // This fails only if a library user set a logger before; then that logger counts.
    let _ = log::set_logger(&Logger);
    log::set_max_level(LevelFilter::Warn);
}

/// Bounds the log on standard error, for a daemon in the foreground.
pub(crate) fn limit_log() {
    let _ = FOREGROUND.set(Mutex::default());
}

/// Whether standard error leads to the journal. The answer of the first call counts: a confined
/// daemon need not ask.
pub(super) fn is_journal() -> bool {
    static JOURNAL: OnceLock<bool> = OnceLock::new();
    *JOURNAL.get_or_init(|| {
        let named = std::env::var(JOURNAL_VARIABLE);
        named.is_ok_and(|named| names_file(&named, std::io::stderr()))
    })
}

/// Whether `DEVICE:INODE` names the open file.
fn names_file(named: &str, file: impl AsFd) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| named == format!("{}:{}", stat.st_dev, stat.st_ino))
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::names_file;

    #[test]
    fn a_stream_is_the_journal_only_with_its_device_and_inode() {
        let file = tempfile::tempfile().unwrap();
        let metadata = file.metadata().unwrap();
        let (device, inode) = (metadata.dev(), metadata.ino());
        assert!(names_file(&format!("{device}:{inode}"), &file));
        for other in [
            format!("{device}:{}", inode + 1),
            format!("{inode}"),
            String::new(),
        ] {
            assert!(!names_file(&other, &file), "{other}");
        }
    }
}
