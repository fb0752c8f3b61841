//! The devices and block groups of a mounted btrfs: its daemon changes them.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde::Deserialize;

use super::{BalanceOptions, BalanceReport, DeviceChoice, DevicesError, step};
use crate::bulk::upkeep::{self, Removal, Request};
use crate::progress::{OnProgress, Stop};

type Result<T> = std::result::Result<T, DevicesError>;

/// A connection to the daemon of the mount that `dir` is in, with the request sent.
fn requested(dir: &Path, request: &Request) -> Result<UnixStream> {
    let unreachable = |source| DevicesError::Mount {
        path: dir.to_owned(),
        source: upkeep::named(source),
    };
    let opened = File::open(dir).map_err(unreachable)?;
    let socket = sapwood_fuse::bulk::connect_for_upkeep(opened.as_fd()).map_err(unreachable)?;
    request.send(&socket).map_err(|error| lost(dir, &error))?;
    Ok(socket)
}

fn lost(dir: &Path, error: &io::Error) -> DevicesError {
    failed(dir, error.to_string())
}

fn failed(dir: &Path, why: String) -> DevicesError {
    let path = dir.to_owned();
    DevicesError::Daemon { path, why }
}

fn wait<R: for<'m> Deserialize<'m>>(
    dir: &Path,
    socket: &UnixStream,
    stop: &Stop,
    progress: &mut OnProgress<'_>,
) -> Result<R> {
    let mut each = |done, total| step(stop, progress, done, total);
    upkeep::wait(socket, &mut each).map_err(|why| failed(dir, why))
}

/// Balances the file system that `dir` is in.
///
/// # Errors
/// [`DevicesError::Mount`], [`DevicesError::Daemon`].
pub(super) fn balance(
    dir: &Path,
    options: &BalanceOptions,
    progress: &mut OnProgress<'_>,
) -> Result<BalanceReport> {
    let text = |filter: &Option<super::BalanceFilter>| filter.as_ref().map(ToString::to_string);
    let request = Request::Balance {
        data: text(&options.data),
        metadata: text(&options.metadata),
        system: text(&options.system),
        force: options.force,
    };
    let socket = requested(dir, &request)?;
    wait(dir, &socket, &options.stop, progress)
}

/// Continues the balance that the file system that `dir` is in records.
///
/// # Errors
/// [`DevicesError::Mount`], [`DevicesError::Daemon`].
pub(super) fn resume_balance(
    dir: &Path,
    stop: &Stop,
    progress: &mut OnProgress<'_>,
) -> Result<BalanceReport> {
    let socket = requested(dir, &Request::ResumeBalance)?;
    wait(dir, &socket, stop, progress)
}

/// Drops the balance that the file system that `dir` is in records.
///
/// # Errors
/// [`DevicesError::Mount`], [`DevicesError::Daemon`].
pub(super) fn cancel_balance(dir: &Path) -> Result<()> {
    let socket = requested(dir, &Request::CancelBalance)?;
    let go_on = &mut |_, _| ControlFlow::Continue(());
    upkeep::wait(&socket, go_on).map_err(|why| failed(dir, why))
}

/// Adds the device `new`, which this process opens, to the file system that `dir` is in.
///
/// # Errors
/// [`DevicesError::Open`], [`DevicesError::Mount`], [`DevicesError::Daemon`].
pub(super) fn add_device(dir: &Path, new: &Path, force: bool) -> Result<u64> {
    let new = new.canonicalize().unwrap_or_else(|_| new.to_owned());
    let file = sapwood_block::open_to_pass(&new);
    let file = file.map_err(|error| DevicesError::Open(error.into()))?;
    let name = new.display().to_string();
    let socket = requested(dir, &Request::AddDevice { name, force })?;
    // A daemon that refuses may have closed the connection by now. Its reason is the error then.
    let _ = sapwood_fuse::bulk::send_file(&socket, file.as_fd());
    let go_on = &mut |_, _| ControlFlow::Continue(());
    upkeep::wait(&socket, go_on).map_err(|why| failed(dir, why))
}

/// Removes a device from the file system that `dir` is in. False if `stop` ended it.
///
/// # Errors
/// [`DevicesError::Mount`], [`DevicesError::Daemon`].
pub(super) fn remove_device(
    dir: &Path,
    device: &DeviceChoice,
    stop: &Stop,
    progress: &mut OnProgress<'_>,
) -> Result<bool> {
    let removal = match device {
        DeviceChoice::Id(devid) => Removal::Devid(*devid),
        DeviceChoice::Missing => Removal::Missing,
        DeviceChoice::Path(path) => {
            let path = path.canonicalize().unwrap_or_else(|_| path.clone());
            Removal::Name(path.display().to_string())
        }
    };
    let socket = requested(dir, &Request::RemoveDevice(removal))?;
    wait(dir, &socket, stop, progress)
}
