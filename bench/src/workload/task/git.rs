//! Getting a source tree: by git, by tar.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::material;
use super::measured::Part;
use crate::contestant::Standing;
use crate::error::{io_error, run_program};
use crate::figures::Seen;
use crate::program::timed;
use crate::workload::small_files::{self, Contents};
use crate::{Error, Result};

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

/// Clones a repository of many small files, and removes the clone.
pub(super) fn clone_many(dir: &Path, standing: &mut Standing, files: u32) -> Result<Seen> {
    let source = standing.scratch()?.join("source.git");
    import(&source, files)?;
    let part = Part::begin(standing)?;
    let mut command = Command::new("git");
    // Over the protocol: a local clone would link or copy the pack.
    command.args(["clone", "-q", "--no-hardlinks"]);
    command.arg(format!("file://{}", source.display()));
    let target = dir.join("clone");
    let clone = timed(command.arg(&target).env("GIT_CONFIG_GLOBAL", "/dev/null"))?;
    let seen = Seen::rate(f64::from(files) / clone).with("s", clone);
    let seen = part.end(standing, seen, f64::from(files))?;
    let began = Instant::now();
    standing.begin()?;
    let durable = began.elapsed().as_secs_f64();
    small_files::expect(&target.join(small_files::ROOT), files)?;
    let began = Instant::now();
    let changed = git(&target, &["status", "--porcelain"])?;
    let status = began.elapsed().as_secs_f64();
    if !changed.is_empty() {
        return Err(Error::Refused("the clone has changes".to_owned()));
    }
    let removed = timed(Command::new("rm").arg("-rf").arg(&target))?;
    Ok(seen
        .with("durable_s", durable)
        .with("status_s", status)
        .with("remove_s", removed))
}

/// Makes a bare repository with one commit of `files` files.
fn import(repository: &Path, files: u32) -> Result<()> {
    let mut init = Command::new("git");
    init.args(["init", "-q", "--bare", "-b", "main"]);
    run_program(init.arg(repository).env("GIT_CONFIG_GLOBAL", "/dev/null"))?;
    let failed = || io_error("git fast-import");
    let mut child = Command::new("git")
        .arg("-C")
        .arg(repository)
        .args(["fast-import", "--quiet"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .map_err(failed())?;
    let input = child.stdin.take();
    let written = input.map(|input| write_commit(BufWriter::new(input), files));
    let status = child.wait().map_err(failed())?;
    match (written, status.success()) {
        (Some(Ok(())), true) => Ok(()),
        _ => Err(Error::Program {
            program: "git fast-import".to_owned(),
            why: status.to_string(),
        }),
    }
}

/// A commit in the format of `git-fast-import(1)`.
fn write_commit(mut out: impl Write, files: u32) -> io::Result<()> {
    writeln!(out, "commit refs/heads/main")?;
    writeln!(out, "committer Bench <bench@localhost> 1700000000 +0000")?;
    writeln!(out, "data 3\nall")?;
    let mut contents = Contents::new();
    for number in 0..files {
        let content = contents.next();
        let path = small_files::path(number);
        writeln!(out, "M 100644 inline {path}\ndata {}", content.len())?;
        out.write_all(content)?;
        writeln!(out)?;
    }
    out.flush()
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

#[cfg(test)]
mod tests {
    use sapwood_testing::machine::{Need, left_out};

    use super::*;

    #[test]
    fn a_repository_has_every_file() {
        if left_out(&[Need::Program("git")]) {
            return;
        }
        let home = tempfile::tempdir().unwrap();
        let source = home.path().join("source.git");
        import(&source, 150).unwrap();
        let list = git(&source, &["ls-tree", "-r", "--name-only", "main"]).unwrap();
        let expected: Vec<_> = (0..150).map(small_files::path).collect();
        assert_eq!(list.lines().collect::<Vec<_>>(), expected);
        let show = format!("main:{}", small_files::path(0));
        let first = git(&source, &["show", &show]).unwrap();
        assert_eq!(first.as_bytes(), Contents::new().next());
    }
}
