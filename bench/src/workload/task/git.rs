//! Getting a source tree: by git, by tar.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::material;
use crate::Result;
use crate::contestant::Standing;
use crate::error::run_program;
use crate::figures::Seen;

/// Seconds that a program took.
fn timed(command: &mut Command) -> Result<f64> {
    let began = Instant::now();
    run_program(command)?;
    Ok(began.elapsed().as_secs_f64())
}

fn git(dir: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(dir);
    // Independent of the user's settings and of the directory's owner.
    command.env("GIT_CONFIG_GLOBAL", "/dev/null");
    command.args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"]);
    run_program(command.args(arguments))
}

pub(super) fn clone(dir: &Path, standing: &mut Standing) -> Result<Seen> {
    let source = standing.scratch()?.join("source");
    material::make(&source)?;
    git(&source, &["init", "-q"])?;
    git(&source, &["add", "-A"])?;
    git(&source, &["commit", "-q", "-m", "all"])?;
    standing.begin()?;
    let mut command = Command::new("git");
    // Over the protocol: a local clone would link or copy files.
    command.args(["clone", "-q"]);
    command.arg(format!("file://{}", source.display()));
    command.arg(dir.join("clone"));
    let clone = timed(&mut command)?;
    let began = Instant::now();
    git(&dir.join("clone"), &["status", "--porcelain"])?;
    let status = began.elapsed().as_secs_f64();
    Ok(Seen::rate(1.0 / clone)
        .with("s", clone)
        .with("status_s", status))
}

pub(super) fn untar(dir: &Path, standing: &mut Standing) -> Result<Seen> {
    let scratch = standing.scratch()?;
    let (source, archive) = (scratch.join("source"), scratch.join("source.tar"));
    material::make(&source)?;
    let mut pack = Command::new("tar");
    pack.arg("-cf")
        .arg(&archive)
        .arg("-C")
        .arg(&source)
        .arg(".");
    run_program(&mut pack)?;
    standing.begin()?;
    let out = dir.join("out");
    std::fs::create_dir(&out).map_err(crate::error::on(&out))?;
    let mut unpack = Command::new("tar");
    let unpacked = timed(unpack.arg("-xf").arg(&archive).arg("-C").arg(&out))?;
    let removed = timed(Command::new("rm").arg("-r").arg(&out))?;
    Ok(Seen::rate(1.0 / unpacked)
        .with("s", unpacked)
        .with("remove_s", removed))
}
