//! Ctrl-C during a command that changes an image.
//!
//! The first signal asks the command to stop: it completes the step that it is in, closes the
//! image, says what it did, and exits with 130 (143 after SIGTERM), as a process does that the
//! signal ends. A second one ends the process at once; the image is then as after a power cut.

use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::Timespec;
use sapwood::Stop;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::failure::Failure;

/// The first signal that came.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
static STOP: OnceLock<Stop> = OnceLock::new();

/// The request that the first signal makes. Only a command that heeds it asks for it: from then on
/// the signal alone does not end the process.
pub(super) fn stop() -> Stop {
    STOP.get_or_init(|| {
        let stop = Stop::new();
        let asked = stop.clone();
        match Signals::new([SIGINT, SIGTERM]) {
            Ok(mut signals) => {
                std::thread::spawn(move || {
                    for signal in signals.forever() {
                        if asked.is_stopped() {
                            let _ = signal_hook::low_level::emulate_default_handler(signal);
                        }
                        SIGNAL.store(signal, Ordering::Relaxed);
                        asked.stop();
                    }
                });
            }
            // Then a signal ends the process at once.
            Err(error) => log::warn!("signals: {error}"),
        }
        stop
    })
    .clone()
}

/// Whether a signal came.
pub(super) fn came() -> bool {
    STOP.get().is_some_and(Stop::is_stopped)
}

/// Fails if a signal came: with what was done until then.
pub(super) fn check(done: impl FnOnce() -> String) -> Result<(), Failure> {
    match came() {
        true => Err(failure(&done())),
        false => Ok(()),
    }
}

/// The failure of a command that stopped after it had done that.
pub(super) fn failure(done: &str) -> Failure {
    let code = 128_u8.saturating_add(u8::try_from(SIGNAL.load(Ordering::Relaxed)).unwrap_or(0));
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
                // Readers repeat what fails as interrupted.
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
