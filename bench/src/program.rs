//! The programs that a run measures.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::{io_error, run_program};
use crate::{Error, Result, wait};

/// What a program used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    /// Seconds of processor time, in the program and in the kernel.
    pub(crate) processor_seconds: f64,
    /// Peak memory in MiB.
    pub(crate) peak_mib: Option<f64>,
}

/// Time between two samples of the peak memory.
const SAMPLE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

/// Runs a program to its end, with what it used.
///
/// # Errors
/// It could not be started or failed.
pub(crate) fn watched(command: &mut Command) -> Result<Used> {
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(io_error(program.clone()))?;
    let failed = |errno: rustix::io::Errno| io_error(program.clone())(errno.into());
    let end = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).map_err(failed)?;
    let mut sampled = None;
    loop {
        sampled = peak_mib(child.id()).or(sampled);
        match poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&SAMPLE)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => break,
            Err(errno) => return Err(failed(errno)),
        }
    }
    let ended = wait::wait(&child).map_err(io_error(program.clone()))?;
    if !ended.status.success() {
        let why = ended.status.to_string();
        return Err(Error::Program { program, why });
    }
    // The kernel's figure is exact if it exceeds this process's, which the child inherited.
    let exact = Some(ended.peak_kib as f64 / 1024.0);
    let exact = exact.filter(|peak| peak_mib(std::process::id()).is_some_and(|own| *peak > own));
    Ok(Used {
        processor_seconds: ended.processor_seconds,
        peak_mib: exact.or(sampled),
    })
}

/// The peak memory of a running process (`VmHWM` in `proc_pid_status(5)`), in MiB.
pub(crate) fn peak_mib(process: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let kib = crate::usage::field(&status, "VmHWM:")?;
    Some(kib as f64 / 1024.0)
}

/// Runs a program to its end and returns the seconds that it took.
///
/// # Errors
/// It could not be started or failed.
pub(crate) fn timed(command: &mut Command) -> Result<f64> {
    let began = Instant::now();
    run_program(command)?;
    Ok(began.elapsed().as_secs_f64())
}

/// The command of this build, in the directory of this program, or `SAPWOOD_BIN`.
///
/// # Errors
/// It is not built.
pub fn sapwood() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("SAPWOOD_BIN") {
        return Ok(path.into());
    }
    let own = std::env::current_exe().map_err(io_error("this program"))?;
    let beside = own.with_file_name("sapwood");
    if beside.is_file() {
        Ok(beside)
    } else {
        Err(Error::Refused(format!(
            "{} is not built: cargo build --release -p sapwood-cli",
            beside.display()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_watched_to_its_end() {
        let used = watched(Command::new("sleep").arg("0.05")).unwrap();
        assert!(used.peak_mib.unwrap() > 0.0);
        assert!(watched(&mut Command::new("false")).is_err());
        assert!(peak_mib(std::process::id()).unwrap() > 1.0);
    }

    #[test]
    fn the_peak_is_the_program_s_and_not_ours() {
        // The child inherits the kernel's figure of this process, which is larger than `sleep`.
        let ours = vec![1_u8; 64 << 20];
        assert!(std::hint::black_box(&ours).iter().all(|byte| *byte == 1));
        let small = watched(Command::new("sleep").arg("0.05")).unwrap();
        assert!(small.peak_mib.unwrap() < 32.0, "{small:?}");
        let script = "a=$(head -c 100000000 /dev/zero | tr '\\0' x)";
        let large = watched(Command::new("sh").args(["-c", script])).unwrap();
        assert!(large.peak_mib.unwrap() > 95.0, "{large:?}");
    }
}
