//! The devices and block groups of a mounted btrfs: its daemon changes them.

use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde::Deserialize;

use super::{
    BalanceOptions, BalanceReport, BalanceState, DeviceChoice, DevicesError, ReplaceReport, step,
};
use crate::bulk::upkeep::{self, Change, Removal, Request};
use crate::progress::{OnProgress, Stop};
use crate::quota::{QuotaChange, Quotas};

type Result<T> = std::result::Result<T, DevicesError>;

fn requested(dir: &Path, change: Change) -> Result<UnixStream> {
    Ok(upkeep::request(dir, &Request::Change(change))?)
}

fn wait<R: for<'m> Deserialize<'m>>(
    dir: &Path,
    socket: &UnixStream,
    stop: &Stop,
    progress: &mut OnProgress<'_>,
) -> Result<R> {
    let mut each = |done, total| step(stop, progress, done, total);
    Ok(upkeep::wait(dir, socket, &mut each)?)
}

/// Waits for the result of work that shows no progress.
fn wait_unseen<R: for<'m> Deserialize<'m>>(dir: &Path, socket: &UnixStream) -> Result<R> {
    let go_on = &mut |_, _| ControlFlow::Continue(());
    Ok(upkeep::wait(dir, socket, go_on)?)
}

/// Balances the file system that `dir` is in.
///
/// # Errors
/// [`DevicesError::Daemon`].
pub(super) fn balance(
    dir: &Path,
    options: &BalanceOptions,
    progress: &mut OnProgress<'_>,
) -> Result<BalanceReport> {
    let text = |filter: &Option<super::BalanceFilter>| filter.as_ref().map(ToString::to_string);
    let change = Change::Balance {
        data: text(&options.data),
        metadata: text(&options.metadata),
        system: text(&options.system),
        force: options.force,
    };
    let socket = requested(dir, change)?;
    wait(dir, &socket, &options.stop, progress)
}

/// Continues the balance that the file system of the directory `dir` records.
///
/// # Errors
/// [`DevicesError::Daemon`].
pub(super) fn resume_balance(
    dir: &Path,
    stop: &Stop,
    progress: &mut OnProgress<'_>,
) -> Result<BalanceReport> {
    let socket = requested(dir, Change::ResumeBalance)?;
    wait(dir, &socket, stop, progress)
}

/// Drops the balance that the file system of the directory `dir` records.
///
/// # Errors
/// [`DevicesError::Daemon`].
pub(super) fn cancel_balance(dir: &Path) -> Result<()> {
    let socket = requested(dir, Change::CancelBalance)?;
    wait_unseen(dir, &socket)
}

/// The balance of the file system that the directory `dir` is in.
///
/// # Errors
/// [`DevicesError::Daemon`].
pub(super) fn balance_state(dir: &Path) -> Result<BalanceState> {
    let socket = upkeep::request(dir, &Request::BalanceState)?;
    wait_unseen(dir, &socket)
}

/// The quotas of the file system that `dir` is in; `None` if they are off.
///
/// # Errors
/// [`DevicesError::Daemon`].
pub(super) fn quotas(dir: &Path) -> Result<Option<Quotas>> {
    let socket = upkeep::request(dir, &Request::Quotas)?;
    wait_unseen(dir, &socket)
}

/// Changes the quotas of the file system that `dir` is in.
///
/// # Errors
/// [`DevicesError::Daemon`].
pub(super) fn change_quotas(dir: &Path, change: QuotaChange) -> Result<()> {
    let socket = requested(dir, Change::Quota(change))?;
    wait_unseen(dir, &socket)
}

/// Ends the balance of the file system that the directory `dir` is in. False if none runs.
///
/// # Errors
/// [`DevicesError::Daemon`].
pub(super) fn pause_balance(dir: &Path) -> Result<bool> {
    let socket = upkeep::request(dir, &Request::PauseBalance)?;
    wait_unseen(dir, &socket)
}

/// Adds the device `new`, which this process opens, to the file system that `dir` is in.
///
/// # Errors
/// [`DevicesError::Open`], [`DevicesError::Daemon`].
pub(super) fn add_device(dir: &Path, new: &Path, force: bool) -> Result<u64> {
    let socket = requested_with(dir, new, |name| Change::AddDevice { name, force })?;
    wait_unseen(dir, &socket)
}

/// Requests a change with the device `new`, which this process opens.
fn requested_with(
    dir: &Path,
    new: &Path,
    change: impl FnOnce(String) -> Change,
) -> Result<UnixStream> {
    let new = new.canonicalize().unwrap_or_else(|_| new.to_owned());
    let file = sapwood_block::open_to_pass(&new);
    let file = file.map_err(|error| DevicesError::Open(error.into()))?;
    let socket = requested(dir, change(new.display().to_string()))?;
    // A daemon that refuses may have closed the connection by now. Its reason is the error then.
    let _ = sapwood_fuse::bulk::send_file(&socket, file.as_fd());
    Ok(socket)
}

/// Replaces a device of the file system that `dir` is in by `new`, which this process opens.
///
/// # Errors
/// [`DevicesError::Open`], [`DevicesError::Daemon`].
pub(super) fn replace_device(
    dir: &Path,
    (old, new): (&DeviceChoice, &Path),
    force: bool,
    stop: &Stop,
    progress: &mut OnProgress<'_>,
) -> Result<ReplaceReport> {
    let old = named(old);
    let socket = requested_with(dir, new, |name| Change::ReplaceDevice { old, name, force })?;
    wait(dir, &socket, stop, progress)
}

fn named(device: &DeviceChoice) -> Removal {
    match device {
        DeviceChoice::Id(devid) => Removal::Devid(*devid),
        DeviceChoice::Missing => Removal::Missing,
        DeviceChoice::Path(path) => {
            let path = path.canonicalize().unwrap_or_else(|_| path.clone());
            Removal::Name(path.display().to_string())
        }
    }
}

/// Removes a device from the file system that `dir` is in. False if `stop` ended it.
///
/// # Errors
/// [`DevicesError::Daemon`].
pub(super) fn remove_device(
    dir: &Path,
    device: &DeviceChoice,
    stop: &Stop,
    progress: &mut OnProgress<'_>,
) -> Result<bool> {
    let socket = requested(dir, Change::RemoveDevice(named(device)))?;
    wait(dir, &socket, stop, progress)
}
