//! Standard output and standard error.
//!
//! # How it works
//! A write error on standard output is a failure of the command, even if everything else succeeded.
//! The first error is kept here; every later call of [`line`] or [`bytes`] fails at once. The
//! command cleans up as after any failure, and [`finish`] turns the error into a message and the
//! exit code. A reader that closed its end of a pipe gets no message: the process ends by
//! `SIGPIPE`, as other programs do (a shell shows 141).
//!
//! Output is written without a buffer, so that nothing is left to write at the end.
//!
//! Nothing that happens to standard error fails a command or ends it.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use parking_lot::Mutex;
use rustix::io::Errno;
use sapwood::Stop;

use super::logger;
use crate::failure::{FAILED, Failure, Result};

/// The exit code that a shell shows for a process that `SIGPIPE` has ended.
const BROKEN_PIPE: u8 = 128 + 13;

static ERROR: Mutex<Option<io::Error>> = Mutex::new(None);
/// The request that ends the output of a shell's command.
static STOP: Mutex<Option<Stop>> = Mutex::new(None);

/// From now on nothing is written to standard output after `stop`.
pub(crate) fn end_with(stop: Stop) {
    *STOP.lock() = Some(stop);
}

/// Writes a line to standard output.
pub(crate) fn line(text: impl Display) -> Result<()> {
    bytes(format!("{text}\n").as_bytes())
}

/// Prints a line from a callback that cannot fail, in a command that changes nothing: an error ends
/// the process.
pub(crate) fn line_or_end(text: impl Display) {
    if line(text).is_err() {
        let code = conclude(FAILED);
        std::process::exit(i32::from(code));
    }
}

/// Writes bytes to standard output.
pub(crate) fn bytes(bytes: &[u8]) -> Result<()> {
    let stopped = || STOP.lock().as_ref().is_some_and(Stop::is_stopped);
    if ERROR.lock().is_some() || stopped() {
        return Err(silent());
    }
    write_all(bytes).map_err(failed)
}

/// Not through `std::io::stdout`, which takes a descriptor that cannot be written to for success.
fn write_all(mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(rustix::stdio::stdout(), bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(len) => bytes = bytes.get(len..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Keeps an error of standard output for the end of the command, and returns a failure that ends
/// the current work.
pub(crate) fn failed(error: io::Error) -> Failure {
    ERROR.lock().get_or_insert(error);
    silent()
}

/// Whether standard output has failed, so that nothing more is to be done.
pub(crate) fn broken() -> bool {
    ERROR.lock().is_some()
}

fn silent() -> Failure {
    Failure::reported()
}

/// Prints a value as JSON on standard output.
pub(crate) fn object(value: &impl serde::Serialize) -> Result<()> {
    line(serde_json::to_string_pretty(value).map_err(|error| Failure::on("json", error))?)
}

/// Prints a value as JSON in one line.
pub(crate) fn json_line(value: &impl serde::Serialize) -> Result<()> {
    line(serde_json::to_string(value).map_err(|error| Failure::on("json", error))?)
}

/// Tells people something on standard error; in a daemon in the background, in the system's log.
pub(crate) fn message(text: impl Display) {
    if !logger::to_system(log::Level::Error, &text) {
        to_stderr(log::Level::Error, &text);
    }
}

/// Writes a line to standard error; for the journal, each line of it with its priority. Errors do
/// not end a command, or a mount.
pub(super) fn to_stderr(level: log::Level, text: &dyn Display) {
    let mut stderr = io::stderr().lock();
    if !logger::is_journal() {
        let _ = writeln!(stderr, "sapwood: {text}");
        return;
    }
    let severity = logger::severity(level);
    for line in text.to_string().lines() {
        let _ = writeln!(stderr, "<{severity}>{line}");
    }
}

/// Prints the line of a failure and returns its exit code. A failure without a line was reported
/// before.
pub(crate) fn report(failure: &Failure) -> u8 {
    let line = failure.to_string();
    if !line.is_empty() {
        message(line);
    }
    failure.code()
}

/// The end of a command that would exit with `code`: the exit code once standard output is
/// accounted for.
pub(crate) fn finish(code: u8) -> ExitCode {
    ExitCode::from(conclude(code))
}

fn conclude(code: u8) -> u8 {
    let Some(error) = ERROR.lock().take() else {
        return code;
    };
    if error.kind() == ErrorKind::BrokenPipe {
        // Returns only where the signal is blocked.
        let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGPIPE);
        return BROKEN_PIPE;
    }
    message(format_args!("standard output: {error}"));
    if code == 0 { FAILED } else { code }
}
