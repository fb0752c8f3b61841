//! The limits of the process: memory, threads, size of files.
//!
//! A command that meets one prints one line and exits with 1, and makes no file.
//!
//! - Too little address space is refused before the first thread starts: a thread that starts without
//!   memory can abort the process in the C library.
//! - A failed allocation ends the process. A new file has no name yet, or a temporary one that is
//!   removed.
//! - A thread that cannot be started, where the standard library panics, ends it too.
//! - A write beyond `RLIMIT_FSIZE` fails (`EFBIG`), because the signal has a handler. An ignored
//!   signal would stay ignored in the programs that a command runs.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Resource, getrlimit};
use sapwood::internal::new_file;
use signal_hook::consts::SIGXFSZ;

use super::failure::{FAILED, Failure};

/// Bytes of address space that a command needs, and those that the threads of a processor add.
const LEAST: u64 = 112 << 20;
const PER_PROCESSOR: u64 = 8 << 20;

/// Refuses a limit of the address space that a command's threads would meet.
pub(super) fn check_memory() -> Result<(), Failure> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let needed = LEAST.saturating_add(PER_PROCESSOR.saturating_mul(processors));
    match getrlimit(Resource::As).current {
        Some(limit) if limit < needed => Err(Failure::new(
            FAILED,
            format_args!(
                "the limit of memory is {limit} bytes (ulimit -v); a command needs {needed} bytes"
            ),
        )),
        _ => Ok(()),
    }
}

/// Turns the limits of the process into errors. Called once, before threads are started.
pub(super) fn become_errors() {
    sapwood_allocator::when_exhausted(|bytes| {
        end(format_args!("out of memory: {bytes} bytes were needed"));
    });
    let otherwise = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or_default();
        let starting = [
            "failed to spawn thread",
            "failed to allocate an alternative stack",
        ];
        if starting.iter().any(|start| text.starts_with(start)) {
            end(format_args!(
                "cannot start a thread: a limit of the process, or of the machine"
            ));
        }
        otherwise(panic);
    }));
    if let Err(error) = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))) {
        log::warn!("signals: {error}");
    }
}

/// Prints one line and ends the process, without any allocation.
fn end(why: std::fmt::Arguments<'_>) {
    static ENDING: AtomicBool = AtomicBool::new(false);
    while ENDING.swap(true, Ordering::Relaxed) {
        // Another thread ends the process.
        std::thread::park();
    }
    let mut line = [0; 200];
    let mut rest = &mut line[..];
    // A line that is too long is cut.
    let _ = writeln!(rest, "sapwood: {why}");
    let left = rest.len();
    let printed = line.get(..line.len() - left).unwrap_or_default();
    let _ = rustix::io::write(rustix::stdio::stderr(), printed);
    new_file::abandon_without_memory(|| signal_hook::low_level::exit(FAILED.into()));
}
