//! Processes that do the same thing at the same time.
//!
//! # How it works
//! Each is this very program, started as `sapwood-bench crew ...`. It prepares, says a line, and waits
//! for a byte on its standard input, a pipe of its own: with one for all, who is done with a phase
//! could take the byte of another that has not begun. When a phase is done it says the time at
//! which it ended (of the system's monotonic clock, which all processes share) and waits for the next.
//! A phase took from the first byte written until the last one's end.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::error::io_error;
use crate::{Error, Result};

/// The processes; dropping it ends them.
pub(super) struct Crew {
    members: Vec<Member>,
}

struct Member {
    child: Child,
    gate: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Crew {
    /// Starts `count` of them, each with `arguments` and its number behind, and returns when all
    /// are prepared.
    pub(super) fn start(count: u32, arguments: &[String]) -> Result<Self> {
        let program = std::env::current_exe().map_err(io_error("this program"))?;
        let mut crew = Self {
            members: Vec::new(),
        };
        for number in 0..count {
            let mut command = Command::new(&program);
            command.arg("crew").args(arguments).arg(number.to_string());
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(io_error("crew"))?;
            let pipes = (child.stdin.take(), child.stdout.take());
            let (Some(gate), Some(output)) = pipes else {
                return Err(gone("it has no pipes"));
            };
            crew.members.push(Member {
                child,
                gate,
                output: BufReader::new(output),
            });
        }
        crew.lines()?;
        Ok(crew)
    }

    /// Lets all do the next thing; how long it took.
    pub(super) fn phase(&mut self) -> Result<Duration> {
        let began = now();
        for member in &mut self.members {
            member.gate.write_all(b"\n").map_err(io_error("crew"))?;
        }
        let ends = self.lines()?;
        let last = ends.into_iter().max().unwrap_or(began);
        Ok(Duration::from_nanos(last.saturating_sub(began)))
    }

    /// A number from each.
    fn lines(&mut self) -> Result<Vec<u64>> {
        let read = |member: &mut Member| {
            let mut line = String::new();
            member
                .output
                .read_line(&mut line)
                .map_err(io_error("crew"))?;
            line.trim().parse().map_err(|_| gone("it failed"))
        };
        self.members.iter_mut().map(read).collect()
    }

    /// Waits until all have ended.
    pub(super) fn end(mut self) -> Result<()> {
        for Member { child, .. } in &mut self.members {
            let status = child.wait().map_err(io_error("crew"))?;
            if !status.success() {
                return Err(gone(&status.to_string()));
            }
        }
        Ok(())
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for Member { child, .. } in &mut self.members {
            // Of one that has ended both are known already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn gone(why: &str) -> Error {
    Error::Program {
        program: "a process of the load".to_owned(),
        why: why.to_owned(),
    }
}

/// The child's side of one gate: says that it is there, waits until it may go.
pub(super) fn wait_for_go() -> Result<()> {
    say(now())?;
    let mut line = String::new();
    let read = io::stdin().read_line(&mut line);
    match read.map_err(io_error("crew"))? {
        0 => Err(gone("its parent has gone")),
        _ => Ok(()),
    }
}

/// The child's side of the last phase's end.
pub(super) fn say_end() -> Result<()> {
    say(now())
}

fn say(number: u64) -> Result<()> {
    let mut out = io::stdout().lock();
    let said = writeln!(out, "{number}").and_then(|()| out.flush());
    said.map_err(io_error("crew"))
}

/// Nanoseconds of the clock that all processes share.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let parts = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    match parts {
        (Ok(seconds), Ok(nanos)) => seconds * 1_000_000_000 + nanos,
        _ => 0,
    }
}
