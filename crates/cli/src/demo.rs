//! `sapwood demo`: the features of Sapwood in a minute.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sapwood::Kind;

use super::failure::{Failure, Result};
use super::output::line;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Kind of file system: btrfs, ext4
    #[arg(
        short = 't',
        long = "type",
        value_name = "KIND",
        default_value = "btrfs"
    )]
    kind: Kind,
    /// Keep the image here instead of deleting it
    #[arg(long, value_name = "FILE")]
    keep: Option<PathBuf>,
}

/// Longest wait for a mount to come up or go away.
const PATIENCE: Duration = Duration::from_secs(30);

/// A mount served by a child process. Dropping it unmounts in any case.
struct Mount {
    child: Child,
    dir: PathBuf,
}

impl Mount {
    fn start(image: &Path, dir: &Path) -> Result<Self> {
        let child = ours()?
            .args(["mount", "--foreground"])
            .args([image, dir])
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| Failure::on("sapwood mount", error))?;
        let mut mount = Self {
            child,
            dir: dir.to_owned(),
        };
        let begun = Instant::now();
        while !is_mounted(dir) {
            if let Ok(Some(status)) = mount.child.try_wait() {
                return Err(Failure::on("sapwood mount", status));
            }
            if begun.elapsed() > PATIENCE {
                return Err(Failure::on("sapwood mount", "did not come up"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(mount)
    }

    /// Kills the daemon as a power cut would: nothing is written any more. Being dropped takes
    /// the dead mount away.
    fn pull_the_plug(mut self) -> Result<()> {
        self.child
            .kill()
            .map_err(|error| Failure::on("kill", error))?;
        self.child
            .wait()
            .map_err(|error| Failure::on("wait", error))?;
        Ok(())
    }

    fn unmount(mut self) -> Result<()> {
        call(ours()?.arg("umount").arg(&self.dir))?;
        self.child
            .wait()
            .map_err(|error| Failure::on("wait", error))?;
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if is_mounted(&self.dir)
            && let Ok(mut ours) = ours()
        {
            // On the way out of an error: there is nothing more to do if this fails too.
            let _ = ours.args(["umount", "--lazy"]).arg(&self.dir).status();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ours() -> Result<Command> {
    let program = std::env::current_exe().map_err(|error| Failure::on("sapwood", error))?;
    Ok(Command::new(program))
}

fn call(command: &mut Command) -> Result<()> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::on(format!("{command:?}"), status)),
        Err(error) => Err(Failure::on(format!("{command:?}"), error)),
    }
}

fn is_mounted(dir: &Path) -> bool {
    crate::host::mount::mounted_on(dir).is_some()
}

fn local<T>(path: &Path, result: std::io::Result<T>) -> Result<T> {
    result.map_err(|error| Failure::local(path, error))
}

fn tell(kind: Kind, image: &Path, dir: &Path) -> Result<()> {
    line(format!(
        "1. Make an image of 1 GiB with {kind}; no root, no kernel driver."
    ))?;
    call(
        ours()?
            .args(["mkfs", "--quiet", "--type", kind.name()])
            .args(["--label", "demo", "--size", "1G"])
            .arg(image),
    )?;

    line("2. Mount it and work in it with ordinary system calls.")?;
    let mount = Mount::start(image, dir)?;
    let notes = dir.join("notes");
    local(&notes, fs::create_dir(&notes))?;
    let safe = notes.join("safe.txt");
    let mut file = local(&safe, File::create(&safe))?;
    local(&safe, file.write_all(b"written, and fsync returned\n"))?;
    local(&safe, file.sync_all())?;
    line("   notes/safe.txt: written, and fsync returned")?;
    let hasty = notes.join("hasty.txt");
    local(&hasty, fs::write(&hasty, b"written, never synced\n"))?;
    line("   notes/hasty.txt: written, but never synced")?;
    drop(file);

    line("3. Pull the plug: SIGKILL ends the daemon while a file is unsynced.")?;
    mount.pull_the_plug()?;

    line("4. Check the image after that.")?;
    call(ours()?.args(["check", "--quiet"]).arg(image))?;
    line("   clean")?;

    line("5. Mount it again and read both files.")?;
    let mount = Mount::start(image, dir)?;
    let text = local(&safe, fs::read_to_string(&safe))?;
    line(format!("   notes/safe.txt: {}", text.trim_end()))?;
    let hasty_survived = hasty.exists();
    line(if hasty_survived {
        "   notes/hasty.txt: survived too, without a promise"
    } else {
        "   notes/hasty.txt: gone; it was never synced"
    })?;
    mount.unmount()?;

    line("6. The same without a mount:")?;
    let mut place = image.as_os_str().to_owned();
    place.push(":/notes");
    call(ours()?.args(["ls", "-l"]).arg(place))?;
    let mut check = ours()?;
    check.args(["check", "--quiet"]);
    if kind == Kind::Btrfs {
        check.arg("--check-data-csum");
    }
    call(check.arg(image))?;
    match text.as_str() {
        "written, and fsync returned\n" => Ok(()),
        _ => Err(Failure::on(
            "notes/safe.txt",
            "does not hold what was synced",
        )),
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let scratch = tempfile::tempdir().map_err(|error| Failure::on("temporary directory", error))?;
    let dir = scratch.path().join("mnt");
    local(&dir, fs::create_dir(&dir))?;
    // The mount table has the path without symbolic links.
    let dir = local(&dir, dir.canonicalize())?;
    let image = args
        .keep
        .clone()
        .unwrap_or_else(|| scratch.path().join("demo.img"));
    if image.symlink_metadata().is_ok() {
        return Err(Failure::local(&image, "exists, and is not replaced"));
    }
    tell(args.kind, &image, &dir)
}
