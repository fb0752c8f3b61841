//! Runs a mount in the background, as mount helpers do: the command returns when the mount is up;
//! its exit code is the result.
//!
//! # How it works
//!
//! [`daemonize`] forks before any other thread exists. The child starts a new session and runs the
//! program; the parent waits on a pipe.
//!
//! - The child reports success once, with [`ReadyNotifier::ready`]. It then redirects its standard
//!   streams to `/dev/null`, and the parent exits with 0.
//! - If the child ends without a report, by returning, a signal or a panic, the pipe closes, and
//!   the parent exits with the child's code.
//!
//! Messages need no channel: until it reports, the child shares the caller's standard error.
//!
//! `tests/daemon.rs` tests each of these ends.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;

use rustix::process::{Pid, WaitOptions};

/// Reports to the parent process that the mount is up.
#[derive(Debug)]
pub struct ReadyNotifier {
    background: Option<Background>,
}

/// The outputs of a process in the background, opened before it may be confined.
#[derive(Debug)]
struct Background {
    pipe: io::PipeWriter,
    null: File,
}

impl ReadyNotifier {
    /// Reports success: the command in the foreground ends with exit code 0, and this process
    /// releases the terminal and its working directory. Does nothing if this process runs in the
    /// foreground.
    pub fn ready(self) {
        let Some(Background { mut pipe, null }) = self.background else {
            return;
        };
        if let Err(error) = release_terminal(&null) {
            log::warn!("cannot let go of the terminal: {error}");
        }
        // If the parent is gone, no process waits for the report.
        let _ = pipe.write_all(&[READY]);
    }
}

const READY: u8 = 1;

/// Runs `work` in the background, or in this process if `foreground`. In the background this call
/// returns in the parent only: with success once `work` called [`ReadyNotifier::ready`], otherwise
/// with the exit code of the child. Must be called before the process has started a thread.
///
/// # Errors
/// No pipe, or no process, could be created; `work` did not run.
pub fn daemonize(
    foreground: bool,
    work: impl FnOnce(ReadyNotifier) -> ExitCode,
) -> io::Result<ExitCode> {
    if foreground {
        return Ok(work(ReadyNotifier { background: None }));
    }
    let (mut reader, writer) = io::pipe()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    io::stdout().flush()?;
    match fork::fork()? {
        fork::Forked::Child => {
            drop(reader);
            // Fails only for a process-group leader, which a new child is not.
            let _ = rustix::process::setsid();
            let background = Some(Background { pipe: writer, null });
            Ok(work(ReadyNotifier { background }))
        }
        fork::Forked::Parent(child) => {
            drop(writer);
            let mut report = [0];
            match reader.read(&mut report) {
                Ok(1) if report == [READY] => Ok(ExitCode::SUCCESS),
                _ => Ok(exit_code_of(child)),
            }
        }
    }
}

/// The exit code of a child that ended; 1 if it was killed or its status is unknown.
fn exit_code_of(child: Pid) -> ExitCode {
    loop {
        match rustix::process::waitpid(Some(child), WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(Some((_, status))) => {
                return match status.exit_status() {
                    // A child that ends without a report has failed, whatever its exit code.
                    Some(0) | None => ExitCode::FAILURE,
                    Some(code) => u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from),
                };
            }
            _ => return ExitCode::FAILURE,
        }
    }
}

/// Redirects the standard streams to `/dev/null` and leaves the caller's working directory.
fn release_terminal(null: &File) -> io::Result<()> {
    std::env::set_current_dir("/")?;
    io::stdout().flush()?;
    rustix::stdio::dup2_stdin(null.as_fd())?;
    rustix::stdio::dup2_stdout(null.as_fd())?;
    rustix::stdio::dup2_stderr(null.as_fd())?;
    Ok(())
}

/// Closes all descriptors of this process except the standard streams. A process calls it at its
/// start, before it opens anything that it needs. Otherwise a daemon would keep inherited
/// descriptors, such as a lock of the script that mounts, as long as the mount, and within reach of
/// its sandbox.
///
/// # Errors
/// The process has more than one thread; errors of system calls.
pub fn close_inherited() -> io::Result<()> {
    if !has_one_thread() {
        let why = "cannot close what was inherited: the process has threads already";
        return Err(io::Error::other(why));
    }
    descriptors::close()
}

/// Whether the calling thread is the only one of this process, as far as can be seen.
pub(crate) fn has_one_thread() -> bool {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count) <= 1
}

/// To close a descriptor that another part of the process owns is unsafe. [`close_inherited`] is
/// for the start of a process, which owns only the standard streams.
#[expect(
    unsafe_code,
    reason = "there is no safe way to close what was inherited"
)]
mod descriptors {
    use std::io;

    const FIRST: libc::c_uint = 3;

    pub(super) fn close() -> io::Result<()> {
        // SAFETY: no other part of the process owns a descriptor; see the module's text.
        let closed =
            unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, 0_u32) };
        if closed == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // Before Linux 5.9, or a filter that does not know the call.
            Some(libc::ENOSYS | libc::EPERM) => close_each(),
            _ => Err(error),
        }
    }

    fn close_each() -> io::Result<()> {
        let numbers = std::fs::read_dir("/proc/self/fd")?
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect::<Vec<libc::c_int>>();
        for number in numbers {
            if number >= FIRST.cast_signed() {
                // SAFETY: as above. The descriptor of the listing is closed already, which is no
                // error that matters.
                unsafe { libc::close(number) };
            }
        }
        Ok(())
    }
}

/// `fork` is unsafe: in a process with several threads the child has only the forking thread, and
/// locks of the other threads stay locked for ever. [`daemonize`] requires a single thread, and
/// this module checks it.
#[expect(unsafe_code, reason = "there is no safe fork; see the module's text")]
mod fork {
    use std::io;

    use rustix::process::Pid;

    pub(super) enum Forked {
        Parent(Pid),
        Child,
    }

    pub(super) fn fork() -> io::Result<Forked> {
        if !super::has_one_thread() {
            return Err(io::Error::other(
                "cannot go into the background: the process has threads already",
            ));
        }
        // SAFETY: this process has a single thread, so the child's memory is consistent.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => Ok(Forked::Child),
            pid => Pid::from_raw(pid)
                .map(Forked::Parent)
                .ok_or_else(|| io::Error::other("fork returned no process")),
        }
    }
}
