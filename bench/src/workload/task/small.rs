//! Many small files: one client unpacks an archive and lists, reads and removes the files. Then the
//! `sapwood` command puts the same files into the file system, by the daemon and without a mount;
//! beside it a file system of the kernel has `tar` and `cp`.
//!
//! The archive is written before the measured part, from a fixed seed, without a tree on disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::measured::Part;
use crate::contestant::Standing;
use crate::error::{io_error, on, run_program};
use crate::figures::Seen;
use crate::program::{sapwood, timed};
use crate::workload::Place;
use crate::workload::small_files::{self, ROOT, SIZES, path};
use crate::{Error, Result};

/// Greatest number of files that are read.
const READ: usize = 20_000;
/// With as many requests for each file, the kernel's client made the files, and not the daemon.
const REQUESTS_BY_CLIENT: f64 = 1.0;

pub(super) fn run(dir: &Path, standing: &mut Standing, files: u32) -> Result<Seen> {
    let archive = standing.scratch()?.join("small.tar");
    small_files::make_archive(&archive, files)?;
    let part = Part::begin(standing)?;
    let unpacked = timed(tar(&archive).arg(dir))?;
    let seen = Seen::rate(f64::from(files) / unpacked).with("s", unpacked);
    let seen = part.end(standing, seen, f64::from(files))?;
    let durable = durable(standing)?;
    standing.remount_cold()?;
    let dir = mounted(standing)?;
    let mut find = Command::new("find");
    let listed = timed(find.arg(&dir).args(["-type", "f", "-printf", "%s\\n"]))?;
    let read = read_some(&dir, files)?;
    let removed = remove(&dir)?;
    let seen = seen
        .with("durable_s", durable)
        .with("find_s", listed)
        .with("read_s", read)
        .with("remove_s", removed);
    by_command(standing, &archive, files, seen)
}

/// `tar` that extracts an archive into the directory that is its next argument.
fn tar(archive: &Path) -> Command {
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(archive).arg("-C");
    tar
}

/// Seconds to make everything durable.
fn durable(standing: &mut Standing) -> Result<f64> {
    let began = Instant::now();
    standing.begin()?;
    Ok(began.elapsed().as_secs_f64())
}

fn mounted(standing: &Standing) -> Result<PathBuf> {
    match standing.place()? {
        Place::Directory(dir) => Ok(dir),
        Place::Library(_) => Err(Error::Refused("a mount is needed".to_owned())),
    }
}

fn remove(dir: &Path) -> Result<f64> {
    timed(Command::new("rm").arg("-rf").arg(dir.join(ROOT)))
}

/// The same files once more, in three ways that end with the same tree: `sapwood untar` into the
/// mount, `sapwood untar` and `sapwood cp -a` into the image. For the kernel these are `tar` into
/// the mount, `tar` and `cp -a` until all is durable.
fn by_command(standing: &mut Standing, archive: &Path, files: u32, seen: Seen) -> Result<Seen> {
    let ours = standing.is_sapwood();
    standing.begin()?;
    let dir = mounted(standing)?;
    let mounted_s = if ours {
        timed(untar()?.arg(archive).arg(&dir))?
    } else {
        timed(tar(archive).arg(&dir))?
    };
    if let Some(counted) = standing.counted()? {
        let requests = counted.requests.values().sum::<u64>() as f64 / f64::from(files);
        if requests >= REQUESTS_BY_CLIENT {
            let why = format!("sapwood untar was not done by the daemon: {requests:.1} requests");
            return Err(Error::Refused(why));
        }
    }
    empty_again(standing, files)?;
    let offline_s = if ours {
        standing.unmounted(|image| timed(untar()?.arg(archive).arg(inside(image))))?
    } else {
        timed(tar(archive).arg(&dir))? + durable(standing)?
    };
    empty_again(standing, files)?;
    let source = small_files::extract(archive, &standing.scratch()?.join("tree"))?;
    let copied_s = if ours {
        standing.unmounted(|image| {
            let mut command = Command::new(sapwood()?);
            command.args(["cp", "--quiet", "-a"]).arg(&source);
            timed(command.arg(inside(image)))
        })?
    } else {
        let mut command = Command::new("cp");
        timed(command.arg("-a").arg(&source).arg(&dir))? + durable(standing)?
    };
    small_files::expect(&mounted(standing)?.join(ROOT), files)?;
    Ok(seen
        .with("untar_s", mounted_s)
        .with("untar_offline_s", offline_s)
        .with("cp_offline_s", copied_s))
}

fn untar() -> Result<Command> {
    let mut command = Command::new(sapwood()?);
    command.args(["untar", "--quiet"]);
    Ok(command)
}

/// The root directory of an image, as an operand of the command.
fn inside(image: &Path) -> std::ffi::OsString {
    let mut operand = image.as_os_str().to_owned();
    operand.push(":/");
    operand
}

/// Checks that all files are there, and removes them.
fn empty_again(standing: &mut Standing, files: u32) -> Result<()> {
    let dir = mounted(standing)?;
    small_files::expect(&dir.join(ROOT), files)?;
    let mut rm = Command::new("rm");
    run_program(rm.arg("-rf").arg(dir.join(ROOT)))?;
    standing.begin()
}

/// Seconds to read whole files in random order.
fn read_some(dir: &Path, files: u32) -> Result<f64> {
    let mut order: Vec<u32> = (0..files).collect();
    fastrand::Rng::with_seed(20).shuffle(&mut order);
    order.truncate(READ);
    let began = Instant::now();
    for number in order {
        let path = dir.join(path(number));
        let content = fs::read(&path).map_err(on(&path))?;
        if content.len() < SIZES.0 {
            let short = io::Error::from(io::ErrorKind::UnexpectedEof);
            return Err(io_error(path.display().to_string())(short));
        }
    }
    Ok(began.elapsed().as_secs_f64())
}
