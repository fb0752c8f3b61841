//! Runs programs with a time limit; their output becomes the error.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How long an ordinary command may take.
pub const ORDINARY: Duration = Duration::from_secs(300);

/// Exit status and output of a command.
#[derive(Debug, Clone)]
pub struct Said {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Said {
    /// Standard output and standard error, one after the other.
    #[must_use]
    pub fn all(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// A command from its words.
pub fn command(program: &str, args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// Runs a command that has to succeed; its standard output.
///
/// # Errors
/// It cannot be started, fails, or takes too long.
pub fn run(program: &str, args: &[impl AsRef<OsStr>]) -> Result<String, String> {
    succeed(&mut command(program, args), ORDINARY)
}

/// Runs a shell script that has to succeed in a directory; its standard output.
///
/// # Errors
/// The output, if the script failed or took too long.
pub fn shell(dir: &std::path::Path, script: &str, limit: Duration) -> Result<String, String> {
    let mut command = Command::new("bash");
    command
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(dir);
    succeed(&mut command, limit)
}

/// Runs a prepared command, like [`run`].
///
/// # Errors
/// The output, if the command failed or took too long.
pub fn succeed(command: &mut Command, limit: Duration) -> Result<String, String> {
    let said = finish(command, limit)?;
    if said.status.success() {
        return Ok(said.stdout);
    }
    Err(format!(
        "{command:?}: {}\n{}",
        said.status,
        tail(&said.all())
    ))
}

/// Runs a command to its end, whatever its exit status is.
///
/// # Errors
/// It cannot be started or takes too long (then it is killed).
pub fn finish(command: &mut Command, limit: Duration) -> Result<Said, String> {
    let failed = |error: std::io::Error| format!("{command:?}: {error}");
    // Files, not pipes: nothing has to be read while the command runs, so nothing can stall.
    let mut stdout = tempfile::tempfile().map_err(failed)?;
    let mut stderr = tempfile::tempfile().map_err(failed)?;
    let handle = |file: &File| file.try_clone().map(Stdio::from);
    let (out, err) = (
        handle(&stdout).map_err(failed)?,
        handle(&stderr).map_err(failed)?,
    );
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    let mut child = command
        .spawn()
        .map_err(|error| format!("{command:?}: {error}"))?;
    let ended = wait(&mut child, limit);
    if ended.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let (stdout, stderr) = (text(&mut stdout), text(&mut stderr));
    match ended {
        Some(status) => Ok(Said {
            status,
            stdout,
            stderr,
        }),
        None => {
            let said = tail(&format!("{stdout}{stderr}"));
            Err(format!("{command:?}: not done after {limit:?}\n{said}"))
        }
    }
}

/// Waits for a child to end, at most for `limit`.
pub fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let _ = file.seek(SeekFrom::Start(0));
    let _ = file.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The end of a long text.
#[must_use]
pub fn tail(text: &str) -> String {
    const LINES: usize = 60;
    let lines: Vec<&str> = text.lines().collect();
    let skipped = lines.len().saturating_sub(LINES);
    let shown = lines[skipped..].join("\n");
    if skipped == 0 {
        shown
    } else {
        format!("... ({skipped} lines)\n{shown}")
    }
}

/// Lets this process open as many files as it may: trees are walked with a descriptor for
/// each level.
pub fn lift_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}
