//! The devices of a btrfs, and the block groups on them: devices are added and removed, block
//! groups move and get other profiles. Its quota groups.

mod balance;
#[cfg(feature = "fuse")]
mod mounted;
mod quotas;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs::balance as engine;
use sapwood_btrfs::membership as members;
use sapwood_btrfs::replacement;
use serde::{Deserialize, Serialize};

use crate::daemon::DaemonError;
use crate::image::{self, OpenError, named};
use crate::options::Options;
use crate::progress::{OnProgress, Progress, Stop};
use crate::resize::MOVING;
use crate::{Kind, Result};
pub use balance::{
    BadFilter, BalanceFilter, BalanceOptions, BalanceReport, BalanceState, balance, balance_state,
    cancel_balance, pause_balance, resume_balance,
};
#[cfg(feature = "fuse")]
pub(crate) use balance::{balanced, engine_options};
pub use quotas::{change_quotas, quotas};

/// A device to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceChoice {
    /// By its id.
    Id(u64),
    /// By its file.
    Path(PathBuf),
    /// The first missing device of the file system.
    Missing,
}

impl FromStr for DeviceChoice {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        Ok(match text.parse() {
            Ok(id) => Self::Id(id),
            Err(_) if text == "missing" => Self::Missing,
            Err(_) => Self::Path(text.into()),
        })
    }
}

/// Space of a device in one profile.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllocatedSpace {
    /// `Data`, `Metadata`, `System`, or `Data+Metadata`.
    pub content: &'static str,
    /// Name of the profile.
    pub profile: &'static str,
    /// Bytes of the device.
    pub bytes: u64,
}

/// The space of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceSpace {
    /// Id in the file system.
    pub devid: u64,
    /// Name of the device; `None` if it is missing.
    pub name: Option<String>,
    /// Bytes that the file system may use.
    pub size: u64,
    /// Bytes of the device past these.
    pub slack: u64,
    /// Bytes in block groups.
    pub allocated: Vec<AllocatedSpace>,
    /// Bytes in no block group.
    pub unallocated: u64,
}

/// Why devices or block groups stay as they are. The file system is complete.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevicesError {
    /// The image, or a device, cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Error of a balance.
    #[error("{}", named(path, source))]
    Balance {
        /// The image.
        path: PathBuf,
        /// Why.
        source: Box<engine::BalanceError>,
    },
    /// The daemon of a mount did not do the work.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// Only a balance that the daemon of a mount runs is paused.
    #[error("{}: no mount by Sapwood runs a balance here", .0.display())]
    NoBalance(PathBuf),
    /// Error of quotas.
    #[error("{}", named(path, source))]
    Quota {
        /// The image.
        path: PathBuf,
        /// Why.
        source: Box<sapwood_btrfs::Error>,
    },
    /// Error of a change of the devices.
    #[error("{}", named(path, source))]
    Membership {
        /// The image.
        path: PathBuf,
        /// Why.
        source: Box<members::MembershipError>,
    },
}

fn open(
    path: &Path,
    opening: &Options,
    read_only: bool,
    what: &'static str,
) -> std::result::Result<Vec<Arc<dyn Device>>, DevicesError> {
    let (devices, found) = image::open_devices(path, opening, read_only)?;
    if found == Kind::Btrfs {
        return Ok(devices);
    }
    Err(DevicesError::Open(OpenError::OtherKind {
        path: path.to_owned(),
        what,
        needed: Kind::Btrfs,
        found,
    }))
}

fn step(stop: &Stop, progress: &mut OnProgress<'_>, done: u64, total: u64) -> ControlFlow<()> {
    progress(Progress::Total(total));
    progress(Progress::Done {
        phase: MOVING,
        done,
    });
    if stop.is_stopped() {
        return ControlFlow::Break(());
    }
    ControlFlow::Continue(())
}

fn membership(path: &Path) -> impl Fn(members::MembershipError) -> DevicesError {
    let path = path.to_owned();
    move |source| DevicesError::Membership {
        path: path.clone(),
        source: Box::new(source),
    }
}

/// Adds a device to a btrfs that nothing else uses, or to a mount by Sapwood, if `path` is a
/// directory in it. Returns its id. `force`: what the device contains is lost.
///
/// # Errors
/// The image cannot be opened ([`open`](crate::open)).
/// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): the device is too small, contains
/// something, or belongs to the file system.
pub fn add_device(
    path: impl AsRef<Path>,
    opening: &Options,
    new: impl AsRef<Path>,
    force: bool,
) -> Result<u64> {
    let path = path.as_ref();
    #[cfg(feature = "fuse")]
    if path.is_dir() {
        return Ok(mounted::add_device(path, new.as_ref(), force)?);
    }
    let devices = open(path, opening, false, "another device")?;
    let new = image::open_member(new.as_ref(), opening).map_err(DevicesError::from)?;
    let options = members::AddOptions {
        force,
        degraded: opening.is_degraded(),
        time: opening.fixed_time(),
    };
    Ok(members::add(&devices, &new, &options).map_err(membership(path))?)
}

/// Removes a device from a btrfs that nothing else uses, or from a mount by Sapwood: all of it
/// moves to the other devices, and its superblocks are erased. Each block group is one step: a
/// crash leaves a complete file system, and the same call continues. False if `stop` ended it.
///
/// # Errors
/// The image cannot be opened ([`open`](crate::open)).
/// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): a profile in use would lack
/// devices. [`ErrorKind::StorageFull`](crate::ErrorKind::StorageFull): the other devices have no
/// room.
pub fn remove_device(
    path: impl AsRef<Path>,
    opening: &Options,
    device: &DeviceChoice,
    stop: &Stop,
    progress: &mut OnProgress<'_>,
) -> Result<bool> {
    let path = path.as_ref();
    #[cfg(feature = "fuse")]
    if path.is_dir() {
        return Ok(mounted::remove_device(path, device, stop, progress)?);
    }
    let devices = open(path, opening, false, "the removal of a device")?;
    let options = members::RemoveOptions {
        device: chosen(device, opening)?,
        degraded: opening.is_degraded(),
        time: opening.fixed_time(),
    };
    let removed = members::remove(&devices, &options, &mut |done, total| {
        step(stop, progress, done, total)
    });
    Ok(removed.map_err(membership(path))?)
}

/// The device of a choice.
fn chosen(
    device: &DeviceChoice,
    opening: &Options,
) -> std::result::Result<members::Removal, DevicesError> {
    Ok(match device {
        DeviceChoice::Id(id) => members::Removal::Devid(*id),
        DeviceChoice::Missing => members::Removal::Missing,
        DeviceChoice::Path(path) => members::Removal::Device(image::open_member(path, opening)?),
    })
}

/// The result of a replacement of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReplaceReport {
    /// Id of the device, which stays.
    pub devid: u64,
    /// Bytes that no device returned. They are zeros now.
    pub unreadable: u64,
    /// It ended early: nothing is replaced.
    pub interrupted: bool,
    /// The superblocks of the old device could not be erased: it must not be used together with the
    /// new one.
    pub old_is_left: bool,
}

/// The report of the engine.
pub(crate) fn replaced(done: replacement::ReplaceReport) -> ReplaceReport {
    ReplaceReport {
        devid: done.devid,
        unreadable: done.unreadable,
        interrupted: done.interrupted,
        old_is_left: done.old_is_left,
    }
}

/// Replaces a device of a btrfs that nothing else uses, or of a mount by Sapwood if `path` is a
/// directory in it, by `new`, which gets its id: copies its block groups, from the other devices
/// where it is missing or unreadable. The superblocks of the old device are erased last. `force`: the
/// contents of `new` are lost, and it is used even if bytes have no good copy.
///
/// # Errors
/// The image cannot be opened ([`open`](crate::open)).
/// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): `new` is smaller than the device, has
/// contents, or belongs to the file system; there is no such device.
pub fn replace_device(
    path: impl AsRef<Path>,
    opening: &Options,
    (source, new): (&DeviceChoice, &Path),
    force: bool,
    stop: &Stop,
    progress: &mut OnProgress<'_>,
) -> Result<ReplaceReport> {
    let path = path.as_ref();
    #[cfg(feature = "fuse")]
    if path.is_dir() {
        let places = (source, new);
        return Ok(mounted::replace_device(
            path, places, force, stop, progress,
        )?);
    }
    let devices = open(path, opening, false, "the replacement of a device")?;
    let new = image::open_member(new, opening).map_err(DevicesError::from)?;
    // The image itself is open already.
    let source = match (source, devices.first()) {
        (DeviceChoice::Path(own), Some(first)) if is_same(own, path) => {
            members::Removal::Device(Arc::clone(first))
        }
        _ => chosen(source, opening)?,
    };
    let options = replacement::ReplaceOptions {
        source,
        force,
        degraded: opening.is_degraded(),
        time: opening.fixed_time(),
    };
    let done = replacement::replace(&devices, &new, &options, &mut |done, total| {
        step(stop, progress, done, total)
    });
    Ok(replaced(done.map_err(membership(path))?))
}

/// Whether two paths lead to one file.
fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    real(one).is_some_and(|path| real(other) == Some(path))
}

/// The space of each device of a btrfs: block groups by content and profile, and the rest.
///
/// # Errors
/// The image cannot be opened ([`open`](crate::open)), or its trees cannot be read.
pub fn device_usage(path: impl AsRef<Path>, opening: &Options) -> Result<Vec<DeviceSpace>> {
    let path = path.as_ref();
    let devices = open(path, opening, true, "the use of devices")?;
    let used = members::usage(&devices, opening.is_degraded()).map_err(membership(path))?;
    let allocated = |part: members::Allocated| AllocatedSpace {
        content: part.content,
        profile: part.profile,
        bytes: part.bytes,
    };
    let shown = used.into_iter().map(|device| DeviceSpace {
        devid: device.devid,
        name: device.name,
        size: device.size,
        slack: device.slack,
        allocated: device.allocated.into_iter().map(allocated).collect(),
        unallocated: device.unallocated,
    });
    Ok(shown.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_by_id_path_or_as_missing() {
        let read = |text: &str| text.parse::<DeviceChoice>().unwrap();
        assert_eq!(read("2"), DeviceChoice::Id(2));
        assert_eq!(read("missing"), DeviceChoice::Missing);
        assert_eq!(read("b.img"), DeviceChoice::Path("b.img".into()));
    }
}
