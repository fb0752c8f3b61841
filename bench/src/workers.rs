//! Processes that do the same work at the same time.
//!
//! # How it works
//! Each process runs this program, as `sapwood-bench worker ...`. It prepares, prints a line, and
//! waits for a line on its standard input, a pipe of its own: from a common pipe, a process that
//! has finished a phase could read the line of one that has not started. At the end of a phase it
//! prints the time (of the system's monotonic clock, which all processes share) and waits for the
//! next phase. A phase lasts from the write of the first line to the last of these times.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::error::{Error, Result};

/// The processes; dropping this ends them.
pub(crate) struct Workers(Vec<(Child, ChildStdin, BufReader<ChildStdout>)>);

impl Workers {
    /// Starts `count` processes, each with `arguments` and its number after them, and returns when
    /// all have prepared.
    pub(crate) fn start(count: u32, arguments: &[String]) -> Result<Self> {
        let program = std::env::current_exe()?;
        let mut workers = Self(Vec::new());
        for number in 0..count {
            let mut command = Command::new(&program);
            command
                .arg("worker")
                .args(arguments)
                .arg(number.to_string());
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            if let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) {
                workers.0.push((child, input, BufReader::new(output)));
            }
        }
        workers.lines()?;
        Ok(workers)
    }

    /// Starts the next phase in all processes; returns its duration.
    pub(crate) fn phase(&mut self) -> Result<Duration> {
        let began = now();
        for (_, input, _) in &mut self.0 {
            input.write_all(b"\n")?;
        }
        let last = self.lines()?.into_iter().max().unwrap_or(began);
        Ok(Duration::from_nanos(last.saturating_sub(began)))
    }

    /// Reads a number from each process.
    fn lines(&mut self) -> Result<Vec<u64>> {
        let read = |(_, _, output): &mut (_, _, BufReader<_>)| {
            let mut line = String::new();
            output.read_line(&mut line)?;
            line.trim()
                .parse()
                .map_err(|_| Error::new("a worker failed"))
        };
        self.0.iter_mut().map(read).collect()
    }

    /// Waits until all processes have ended.
    pub(crate) fn end(mut self) -> Result<()> {
        for (child, ..) in &mut self.0 {
            let status = child.wait()?;
            if !status.success() {
                return Err(Error::new(format!("a worker: {status}")));
            }
        }
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for (child, ..) in &mut self.0 {
            // Both fail only for a process that has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The child's side of the start of a phase: reports that it is ready, and waits for the line.
pub(crate) fn wait_for_start() -> Result<()> {
    report_end()?;
    if io::stdin().read_line(&mut String::new())? == 0 {
        return Err(Error::new("the parent of a worker has ended"));
    }
    Ok(())
}

/// The child's side of the end of a phase.
pub(crate) fn report_end() -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", now())?;
    Ok(out.flush()?)
}

/// Nanoseconds of the system's monotonic clock.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
