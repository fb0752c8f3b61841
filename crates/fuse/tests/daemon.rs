//! Mounts by a separate process: in the background, ended by signals, and by a user without
//! privileges. With an environment variable the test binary is that process.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use sapwood_fuse::{Access, MountOptions, daemon, mount, sandbox, signals};
use sapwood_testing::MemoryFs;
use sapwood_vfs::{FileSystem, SetAttr};
use support::{Detached, Need, Outcome, eventually, trial};

/// Role of a process that is not the test runner.
const ROLE: &str = "SAPWOOD_FUSE_TEST_ROLE";
/// The mount point for that process.
pub(crate) const DIR: &str = "SAPWOOD_FUSE_TEST_DIR";

fn main() -> ExitCode {
    match std::env::var(ROLE) {
        Ok(role) => play(&role),
        Err(_) => {
            support::run(vec![
                trial("background_mount_is_up_on_return", &[], background),
                trial("background_failure_has_its_code", &[], background_failure),
                trial("background_crash_is_a_failure", &[], background_crash),
                trial("sigterm_unmounts", &[], sigterm),
                trial("sigint_while_busy", &[], sigint_busy),
                trial("killed_daemon_leaves_a_stale_mount", &[], killed),
                trial("a_confined_process_reaches_nothing", &[], confined),
                trial("a_confined_process_executes_nothing", &[], executes),
                trial("a_process_with_threads_is_not_confined", &[], threads),
                unprivileged_trial("a_confined_user_reaches_nothing", confined_user),
                unprivileged_trial("ordinary_user_mounts", ordinary_user),
                unprivileged_trial("ordinary_user_may_not_allow_other", allow_other),
            ]);
            ExitCode::SUCCESS
        }
    }
}

/// Plays the role of a process other than the runner.
fn play(role: &str) -> ExitCode {
    match role {
        "confined" => return support::confined::attack(),
        "executes" => return support::confined::execute(),
        "threads" => return support::confined::with_a_thread(),
        _ => {}
    }
    let dir = std::env::var(DIR).unwrap_or_default();
    let serve = |ready: daemon::ReadyNotifier| serve(Path::new(&dir), role, ready);
    let foreground = !role.starts_with("background");
    daemon::daemonize(foreground, serve).unwrap_or(ExitCode::from(99))
}

fn serve(dir: &Path, role: &str, ready: daemon::ReadyNotifier) -> ExitCode {
    if role == "background-crash" {
        std::process::abort();
    }
    let fs: Arc<dyn FileSystem> = Arc::new(MemoryFs::new());
    let own = SetAttr {
        uid: Some(rustix::process::geteuid().as_raw()),
        gid: Some(rustix::process::getegid().as_raw()),
        ..SetAttr::default()
    };
    if fs.setattr(fs.root(), &own).is_err() {
        return ExitCode::from(6);
    }
    let options = MountOptions {
        busy_grace: Duration::from_millis(100),
        access: if role == "allow-other" {
            Access::All
        } else {
            Access::Owner
        },
        ..MountOptions::default()
    };
    let session = match mount(Arc::clone(&fs), dir, &options) {
        Ok(session) => session,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(7);
        }
    };
    let on_signal = session.clone();
    let watch = signals::on_termination(move |_| {
        if let Err(error) = on_signal.unmount() {
            eprintln!("unmounting: {error}");
        }
    });
    if let Err(error) = watch {
        eprintln!("{error}");
        return ExitCode::from(8);
    }
    println!("ready");
    ready.ready();
    match (session.wait(), fs.unmount()) {
        (Ok(()), Ok(())) => ExitCode::SUCCESS,
        _ => ExitCode::from(9),
    }
}

fn command(role: &str, dir: &Path) -> Result<Command, Failed> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(ROLE, role).env(DIR, dir).stdin(Stdio::null());
    Ok(command)
}

/// Starts a daemon in the foreground and waits until it is ready.
fn start(mut command: Command) -> Result<Child, Failed> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    if line == "ready\n" {
        return Ok(child);
    }
    let output = child.wait_with_output()?;
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!("{}: {words}", output.status).into())
}

fn signal(child: &Child, signal: rustix::process::Signal) -> Outcome {
    let pid = i32::try_from(child.id()).ok();
    let pid = pid
        .and_then(rustix::process::Pid::from_raw)
        .ok_or("no pid")?;
    rustix::process::kill_process(pid, signal)?;
    Ok(())
}

fn mounted(dir: &Path) -> bool {
    sapwood_fuse::mounted_on(dir).is_some()
}

fn background() -> Outcome {
    let dir = Detached::new()?;
    let output = command("background", dir.path())?.output()?;
    holds!(output.status.success());
    holds!(mounted(dir.path()));
    fs::write(dir.path().join("f"), b"content")?;
    same!(fs::read(dir.path().join("f"))?, b"content");
    Ok(())
}

fn background_failure() -> Outcome {
    let dir = Detached::new()?;
    let missing = dir.path().join("missing");
    let output = command("background", &missing)?.output()?;
    same!(output.status.code(), Some(7));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    same!(
        words,
        format!("mount point {} does not exist\n", missing.display())
    );
    Ok(())
}

fn background_crash() -> Outcome {
    let dir = Detached::new()?;
    let output = command("background-crash", dir.path())?.output()?;
    same!(output.status.code(), Some(1));
    Ok(())
}

fn sigterm() -> Outcome {
    let dir = Detached::new()?;
    let mut child = start(command("foreground", dir.path())?)?;
    fs::write(dir.path().join("f"), b"content")?;
    signal(&child, rustix::process::Signal::TERM)?;
    holds!(child.wait()?.success());
    holds!(!mounted(dir.path()));
    Ok(())
}

fn sigint_busy() -> Outcome {
    let dir = Detached::new()?;
    let mut child = start(command("foreground", dir.path())?)?;
    let held = fs::File::create(dir.path().join("held"))?;
    signal(&child, rustix::process::Signal::INT)?;
    holds!(child.wait()?.success());
    holds!(!mounted(dir.path()));
    // The daemon is gone: a process that still holds a file gets an error at once.
    holds!(held.set_len(5).is_err());
    Ok(())
}

fn killed() -> Outcome {
    let dir = Detached::new()?;
    let mut child = start(command("foreground", dir.path())?)?;
    child.kill()?;
    child.wait()?;
    // The kernel ends a ring, and with it the connection, shortly after the process ended.
    eventually("the mount is dead", || {
        let looked = fs::metadata(dir.path().join("f"));
        looked.is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
    })?;
    let output = command("foreground", dir.path())?.output()?;
    same!(output.status.code(), Some(7));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    holds!(words.contains("held by a dead mount") && words.lines().count() == 1);
    Ok(())
}

/// Violations of the sandbox by a process in it, one line each.
fn outcome_of_attack(mut command: Command) -> Outcome {
    let output = command.output()?;
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if errors.contains(&sandbox::SandboxError::NoLandlock.to_string()) {
        eprintln!("the kernel has no Landlock: not tested");
        return Ok(());
    }
    same!(words, "");
    same!(errors, "");
    holds!(output.status.success());
    Ok(())
}

fn confined() -> Outcome {
    let dir = Detached::new()?;
    fs::write(dir.path().join("there"), b"content")?;
    outcome_of_attack(command("confined", dir.path())?)?;
    same!(fs::read_dir(dir.path())?.count(), 1);
    Ok(())
}

fn confined_user() -> Outcome {
    let dir = Detached::new()?;
    fs::write(dir.path().join("there"), b"content")?;
    outcome_of_attack(nobodys_daemon("confined", dir.path())?)?;
    same!(fs::read_dir(dir.path())?.count(), 1);
    Ok(())
}

fn executes() -> Outcome {
    use std::os::unix::process::ExitStatusExt;

    let dir = Detached::new()?;
    let output = command("executes", dir.path())?.output()?;
    same!(output.stdout, b"");
    same!(output.status.signal(), Some(libc::SIGSYS));
    Ok(())
}

fn threads() -> Outcome {
    let dir = Detached::new()?;
    let output = command("threads", dir.path())?.output()?;
    same!(output.stdout, b"the process has threads already\n");
    Ok(())
}

/// A user without privileges.
const NOBODY: u32 = 65534;

/// A command as that user.
fn as_nobody(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(program);
    command
}

/// Leaves a test out where that user cannot run this binary or use `/dev/fuse`.
fn unprivileged_trial(name: &str, run: fn() -> Outcome) -> Trial {
    let programs = ["setpriv", "fusermount3"].map(Need::Program);
    let reachable = Need::Other(|| {
        let reachable = std::env::current_exe().is_ok_and(|exe| {
            as_nobody(Path::new("sh"))
                .args(["-c", "test -x \"$0\" && test -w /dev/fuse"])
                .arg(exe)
                .status()
                .is_ok_and(|status| status.success())
        });
        (!reachable).then(|| "an ordinary user reaches no /dev/fuse or not this program".to_owned())
    });
    trial(name, &[&programs[..], &[reachable]].concat(), run)
}

fn nobodys_daemon(role: &str, dir: &Path) -> Result<Command, Failed> {
    std::os::unix::fs::chown(dir, Some(NOBODY), Some(NOBODY))?;
    let mut command = as_nobody(&std::env::current_exe()?);
    command.env(ROLE, role).env(DIR, dir).stdin(Stdio::null());
    Ok(command)
}

fn ordinary_user() -> Outcome {
    let dir = Detached::new()?;
    let mut child = start(nobodys_daemon("foreground", dir.path())?)?;
    let file = dir.path().join("f");
    let line = format!(
        "echo content > {0} && mkdir {1}/d && mv {0} {1}/d/g && cat {1}/d/g && sync {1}/d/g",
        file.display(),
        dir.path().display()
    );
    let output = as_nobody(Path::new("sh")).args(["-c", &line]).output()?;
    same!(String::from_utf8_lossy(&output.stderr), "");
    same!(output.stdout, b"content\n");
    // Not even root is admitted.
    holds!(fs::read_dir(dir.path()).is_err());
    signal(&child, rustix::process::Signal::TERM)?;
    holds!(child.wait()?.success());
    holds!(!mounted(dir.path()));
    Ok(())
}

fn allow_other() -> Outcome {
    let allowed = fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|conf| conf.lines().any(|line| line.trim() == "user_allow_other"));
    let dir = Detached::new()?;
    let started = start(nobodys_daemon("allow-other", dir.path())?);
    match started {
        Ok(mut child) => {
            signal(&child, rustix::process::Signal::TERM)?;
            child.wait()?;
            holds!(allowed);
        }
        Err(error) => {
            let words = error.message().unwrap_or_default().to_owned();
            holds!(!allowed && words.contains("user_allow_other"));
        }
    }
    Ok(())
}
