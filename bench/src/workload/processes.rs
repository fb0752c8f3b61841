//! Processes that do the same work at the same time.
//!
//! # How it works
//! Each process runs this program, as `sapwood-bench worker ...`. It prepares, prints a line, and
//! waits for a byte on its standard input, a pipe of its own: from a common pipe, a process that
//! has finished a phase could read the byte of one that has not started. At the end of a phase it
//! prints the time (of the system's monotonic clock, which all processes share) and waits for the
//! next phase. A phase lasts from the write of the first byte to the last of these times.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::error::io_error;
use crate::{Error, Result};

/// The processes; dropping this ends them.
pub(super) struct Processes {
    workers: Vec<Worker>,
}

struct Worker {
    child: Child,
    gate: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Processes {
    /// Starts `count` processes, each with `arguments` and its number after them, and returns when
    /// all have prepared.
    pub(super) fn start(count: u32, arguments: &[String]) -> Result<Self> {
        let program = std::env::current_exe().map_err(io_error("this program"))?;
        let mut processes = Self {
            workers: Vec::new(),
        };
        for number in 0..count {
            let mut command = Command::new(&program);
            command
                .arg("worker")
                .args(arguments)
                .arg(number.to_string());
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(io_error("a worker process"))?;
            let pipes = (child.stdin.take(), child.stdout.take());
            let (Some(gate), Some(output)) = pipes else {
                return Err(gone("it has no pipes"));
            };
            processes.workers.push(Worker {
                child,
                gate,
                output: BufReader::new(output),
            });
        }
        processes.lines()?;
        Ok(processes)
    }

    /// Starts the next phase in all processes; returns its duration.
    pub(super) fn phase(&mut self) -> Result<Duration> {
        let began = now();
        for worker in &mut self.workers {
            worker
                .gate
                .write_all(b"\n")
                .map_err(io_error("a worker process"))?;
        }
        let ends = self.lines()?;
        let last = ends.into_iter().max().unwrap_or(began);
        Ok(Duration::from_nanos(last.saturating_sub(began)))
    }

    /// Reads a number from each process.
    fn lines(&mut self) -> Result<Vec<u64>> {
        let read = |worker: &mut Worker| {
            let mut line = String::new();
            worker
                .output
                .read_line(&mut line)
                .map_err(io_error("a worker process"))?;
            line.trim().parse().map_err(|_| gone("it failed"))
        };
        self.workers.iter_mut().map(read).collect()
    }

    /// Waits until all processes have ended.
    pub(super) fn end(mut self) -> Result<()> {
        for Worker { child, .. } in &mut self.workers {
            let status = child.wait().map_err(io_error("a worker process"))?;
            if !status.success() {
                return Err(gone(&status.to_string()));
            }
        }
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for Worker { child, .. } in &mut self.workers {
            // Both fail only for a process that has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn gone(why: &str) -> Error {
    Error::Program {
        program: "a worker process".to_owned(),
        why: why.to_owned(),
    }
}

/// The child's side of the start of a phase: reports that it is ready, and waits for the byte.
pub(super) fn wait_for_go() -> Result<()> {
    say(now())?;
    let mut line = String::new();
    let read = io::stdin().read_line(&mut line);
    match read.map_err(io_error("a worker process"))? {
        0 => Err(gone("its parent has gone")),
        _ => Ok(()),
    }
}

/// The child's side of the end of the last phase.
pub(super) fn report_end() -> Result<()> {
    say(now())
}

fn say(number: u64) -> Result<()> {
    let mut out = io::stdout().lock();
    let said = writeln!(out, "{number}").and_then(|()| out.flush());
    said.map_err(io_error("a worker process"))
}

/// Nanoseconds of the system's monotonic clock.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let parts = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    match parts {
        (Ok(seconds), Ok(nanos)) => seconds * 1_000_000_000 + nanos,
        _ => 0,
    }
}
