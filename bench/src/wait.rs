//! Waits for a child process, and reads its resource use.
//!
//! `getrusage(2)`: `ru_maxrss` is the largest of the process and of the children that it waited
//! for, in KiB. An `execve` does not reset it, so it is never below the peak memory of the process
//! that started the child.
#![expect(unsafe_code, reason = "wait4(2), which neither std nor rustix offers")]

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

/// Resource use of a process that has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// Peak memory in KiB.
    pub(crate) peak_kib: u64,
    /// Seconds of processor time, in the program and in the kernel.
    pub(crate) processor_seconds: f64,
}

/// Waits for the end of a child.
///
/// # Errors
/// The process was waited for before.
pub(crate) fn wait(child: &Child) -> io::Result<Ended> {
    let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let process = libc::pid_t::try_from(child.id()).map_err(invalid)?;
    let mut status = 0;
    // SAFETY: a `rusage` consists of numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers lead to values that live until the call returns.
        let found = unsafe { libc::wait4(process, &raw mut status, 0, &raw mut usage) };
        if found == process {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(Ended {
        status: ExitStatus::from_raw(status),
        peak_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0),
        processor_seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime),
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_status_and_the_processor_time_are_the_child_s() {
        let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exit 3";
        let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let ended = wait(&child).unwrap();
        assert_eq!(ended.status.code(), Some(3));
        assert!(ended.processor_seconds > 0.0 && ended.peak_kib > 0);
        assert!(wait(&child).is_err() && child.wait().is_err());
    }
}
