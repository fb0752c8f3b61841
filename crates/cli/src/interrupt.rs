//! Ctrl-C during a command that changes or makes an image.
//!
//! A command that makes a file ends at once ([`abandon_new_files`]); the file is not made.
//!
//! Otherwise the first signal makes the command stop: it completes its current step, closes the
//! image, reports its work, and exits with 130 (143 after SIGTERM), as a process that the signal
//! ends. A second signal ends the process at once; the image is then as after a power cut.
//!
//! In a shell on a terminal Ctrl-C stops the command that runs, and nothing else ([`outlive`]).

use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::Timespec;
use sapwood::Stop;
use sapwood::internal::new_file;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::failure::Failure;

/// The last signal that came.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// Whether a signal asked a shell to end.
static ENDED: AtomicBool = AtomicBool::new(false);
/// The request of the current command.
static STOP: Mutex<Option<Stop>> = Mutex::new(None);
static WATCHED: Once = Once::new();

/// The request that the first signal makes. Only a command that heeds it asks for it: from then on
/// the signal alone does not end the process.
pub(super) fn stop() -> Stop {
    let stop = STOP.lock().get_or_insert_with(Stop::new).clone();
    WATCHED.call_once(|| {
        watch(&[SIGINT, SIGTERM], |signal| {
            if came() {
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
            request(signal);
        });
    });
    stop
}

/// From now on Ctrl-C only ends the command of a shell that runs. Another signal that ends a
/// process also calls `end` with its number, in a thread, after it made the request.
pub(super) fn outlive(end: impl Fn(i32) + Send + 'static) {
    WATCHED.call_once(|| {
        watch(&[SIGINT, SIGTERM, SIGHUP], move |signal| {
            if signal != SIGINT {
                ENDED.store(true, Ordering::SeqCst);
            }
            request(signal);
            if signal != SIGINT {
                end(signal);
            }
        });
    });
}

/// The request for the next command of a shell; the last one is forgotten.
pub(super) fn renew() -> Stop {
    let stop = Stop::new();
    *STOP.lock() = Some(stop.clone());
    // After a signal that ends the shell no command runs.
    if has_ended() {
        stop.stop();
    }
    stop
}

/// Whether a signal asked the shell to end.
pub(super) fn has_ended() -> bool {
    ENDED.load(Ordering::SeqCst)
}

/// The number of the last signal.
pub(super) fn signal() -> i32 {
    SIGNAL.load(Ordering::Relaxed)
}

fn request(signal: i32) {
    SIGNAL.store(signal, Ordering::Relaxed);
    STOP.lock().get_or_insert_with(Stop::new).stop();
}

/// Calls `each` for each of the signals, in a thread.
fn watch(signals: &[i32], mut each: impl FnMut(i32) + Send + 'static) {
    match Signals::new(signals) {
        Ok(mut signals) => {
            std::thread::spawn(move || signals.forever().for_each(&mut each));
        }
        // Then a signal ends the process at once.
        Err(error) => log::warn!("signals: {error}"),
    }
}

/// From now on a signal that ends the command first removes the files that it makes, where the host
/// gives them a temporary name. Where they have none, the signal ends the process at once.
pub(super) fn abandon_new_files() {
    static WATCHED: Once = Once::new();

    new_file::before_temporary_names(|| {
        WATCHED.call_once(|| {
            if let Err(error) = watch_new_files() {
                log::warn!("signals: {error}");
            }
        });
    });
}

fn watch_new_files() -> io::Result<()> {
    let mut ending = vec![SIGINT, SIGTERM, SIGQUIT];
    // Ignored in a command that outlives its terminal (`nohup`).
    if !is_ignored(SIGHUP) {
        ending.push(SIGHUP);
    }
    let mut signals = Signals::new(ending)?;
    let watch = move || {
        for signal in signals.forever() {
            new_file::abandon(|| {
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            });
        }
    };
    std::thread::Builder::new().spawn(watch).map(drop)
}

/// Whether the process was started with a signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let ignored = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (signal - 1) & 1 != 0)
}

/// Whether a signal came.
pub(super) fn came() -> bool {
    STOP.lock().as_ref().is_some_and(Stop::is_stopped)
}

/// Fails after a signal, with the work until then.
pub(super) fn check(done: impl FnOnce() -> String) -> Result<(), Failure> {
    if came() {
        Err(failure(&done()))
    } else {
        Ok(())
    }
}

/// The failure of a command that stopped after it had done that.
pub(super) fn failure(done: &str) -> Failure {
    let code = 128_u8.saturating_add(u8::try_from(signal()).unwrap_or(0));
    let line = format!("interrupted: {done}; the image is consistent");
    Failure::new(code, line)
}

/// A file of this machine that a stop ends.
pub(super) struct Input<R>(pub(super) R);

impl<R: Seek> Seek for Input<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

impl<R: Read + AsFd> Read for Input<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        const WAIT: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        loop {
            if came() {
                // Readers repeat an interrupted call.
                return Err(io::Error::other("interrupted"));
            }
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match rustix::event::poll(&mut fds, Some(&WAIT)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) | Err(_) => break,
            }
        }
        self.0.read(buf)
    }
}
