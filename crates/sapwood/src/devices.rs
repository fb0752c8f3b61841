//! The devices of a btrfs, and the block groups on them: devices are added and removed, block
//! groups move and get other profiles.

#[cfg(feature = "fuse")]
mod mounted;

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs::balance as engine;
use sapwood_btrfs::membership as members;
use sapwood_btrfs::mkfs::Profile;
use sapwood_btrfs::replacement;
use serde::{Deserialize, Serialize};

use crate::daemon::DaemonError;
use crate::image::{self, OpenError, named};
use crate::options::Options;
use crate::progress::{OnProgress, Progress, Stop};
use crate::resize::MOVING;
use crate::{Kind, Result};

/// Which block groups of one content a balance moves, in the syntax of btrfs-progs:
/// `usage=50,profiles=single|dup,devid=2,limit=3,convert=raid1,soft`. An empty text is all of them.
#[derive(Debug, Clone, Default)]
pub struct BalanceFilter(engine::Filter);

/// A filter that does not parse.
#[derive(Debug, thiserror::Error)]
#[error("{text}: {why}")]
pub struct BadFilter {
    text: String,
    why: &'static str,
}

impl FromStr for BalanceFilter {
    type Err = BadFilter;

    fn from_str(text: &str) -> std::result::Result<Self, BadFilter> {
        let mut filter = engine::Filter::default();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let bad = |why| BadFilter {
                text: word.to_owned(),
                why,
            };
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let number = || value.parse().map_err(|_| bad("not a number"));
            let profile = |name: &str| {
                Profile::from_name(name).ok_or_else(|| bad("not a profile that can be written"))
            };
            match name {
                "usage" => filter.usage = Some(percent(value).ok_or_else(|| bad(PERCENT))?),
                "profiles" => {
                    let each = value.split('|').map(profile);
                    filter.profiles = each.collect::<std::result::Result<_, _>>()?;
                }
                "devid" => filter.devid = Some(number()?),
                "limit" => filter.limit = Some(number()?),
                "convert" => filter.convert = Some(profile(value)?),
                "soft" if value.is_empty() => filter.soft = true,
                _ => {
                    let why = "not a filter: usage=, profiles=, devid=, limit=, convert=, soft";
                    return Err(bad(why));
                }
            }
        }
        if filter.soft && filter.convert.is_none() {
            let (text, why) = (text.to_owned(), "soft needs convert=");
            return Err(BadFilter { text, why });
        }
        Ok(Self(filter))
    }
}

impl fmt::Display for BalanceFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filter = &self.0;
        let mut words = Vec::new();
        if let Some(usage) = &filter.usage {
            words.push(format!("usage={}..{}", usage.start(), usage.end()));
        }
        if !filter.profiles.is_empty() {
            let names: Vec<String> = filter.profiles.iter().map(Profile::to_string).collect();
            words.push(format!("profiles={}", names.join("|")));
        }
        words.extend(filter.devid.map(|devid| format!("devid={devid}")));
        words.extend(filter.limit.map(|limit| format!("limit={limit}")));
        words.extend(filter.convert.map(|profile| format!("convert={profile}")));
        words.extend(filter.soft.then(|| "soft".to_owned()));
        f.write_str(&words.join(","))
    }
}

const PERCENT: &str = "not a percentage, or a range of two";

/// `50` is 0 to 50, as in btrfs-progs; `10..50` is a range.
fn percent(text: &str) -> Option<std::ops::RangeInclusive<u64>> {
    let bound = |text: &str| text.parse().ok().filter(|percent: &u64| *percent <= 100);
    match text.split_once("..") {
        None => Some(0..=bound(text)?),
        Some(("", to)) => Some(0..=bound(to)?),
        Some((from, "")) => Some(bound(from)?..=100),
        Some((from, to)) => Some(bound(from)?..=bound(to)?),
    }
}

/// The block groups that a balance moves. Without any filter it moves all of them.
#[derive(Debug, Clone, Default)]
pub struct BalanceOptions {
    /// Block groups of data.
    pub data: Option<BalanceFilter>,
    /// Block groups of metadata, and of the chunk tree unless `system` is given.
    pub metadata: Option<BalanceFilter>,
    /// Block groups of the chunk tree.
    pub system: Option<BalanceFilter>,
    /// A conversion may leave metadata with fewer copies.
    pub force: bool,
    /// Ends the balance after the block group that is being moved.
    pub stop: Stop,
}

/// The result of a balance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BalanceReport {
    /// Block groups of the file system.
    pub groups: u64,
    /// Block groups that the filters chose.
    pub chosen: u64,
    /// Block groups that moved, got another profile or became smaller.
    pub changed: u64,
    /// Used bytes of groups that moved.
    pub moved: u64,
    /// It ended early.
    pub interrupted: bool,
}

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

/// Moves block groups of a btrfs that nothing else uses, and changes their profiles. Each block
/// group is one step: a crash leaves a complete file system, and the same call continues. A
/// directory in a mount by Sapwood is balanced by the daemon of the mount, which stays in use.
///
/// # Errors
/// The image cannot be opened ([`open`](crate::open)).
/// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): the devices do not allow the
/// profile.
pub fn balance(
    path: impl AsRef<Path>,
    opening: &Options,
    options: &BalanceOptions,
    progress: &mut OnProgress<'_>,
) -> Result<BalanceReport> {
    let path = path.as_ref();
    #[cfg(feature = "fuse")]
    if path.is_dir() {
        return Ok(mounted::balance(path, options, progress)?);
    }
    let devices = open(path, opening, false, "a balance")?;
    let filters = [&options.data, &options.metadata, &options.system].map(Option::as_ref);
    let engine = engine::BalanceOptions {
        degraded: opening.is_degraded(),
        time: opening.fixed_time(),
        ..engine_options(filters, options.force)
    };
    let stop = &options.stop;
    let done = engine::balance(&devices, &engine, &mut |done, total| {
        step(stop, progress, done, total)
    });
    Ok(balanced(done.map_err(balance_failed(path))?))
}

fn balance_failed(path: &Path) -> impl Fn(engine::BalanceError) -> DevicesError {
    let path = path.to_owned();
    move |source| DevicesError::Balance {
        path: path.clone(),
        source: Box::new(source),
    }
}

/// Continues a balance that was interrupted, by Sapwood or the kernel, with its filters. `path` is
/// an image that nothing else uses, or a directory in a mount by Sapwood.
///
/// # Errors
/// The errors of [`balance`]. [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): no
/// balance was interrupted, or it has filters that are not supported.
pub fn resume_balance(
    path: impl AsRef<Path>,
    opening: &Options,
    stop: &Stop,
    progress: &mut OnProgress<'_>,
) -> Result<BalanceReport> {
    let path = path.as_ref();
    #[cfg(feature = "fuse")]
    if path.is_dir() {
        return Ok(mounted::resume_balance(path, stop, progress)?);
    }
    let devices = open(path, opening, false, "a balance")?;
    let done = engine::resume(&devices, &of_opening(opening), &mut |done, total| {
        step(stop, progress, done, total)
    });
    Ok(balanced(done.map_err(balance_failed(path))?))
}

/// Drops a balance that was interrupted, so that neither Sapwood nor the kernel continues it. Block
/// groups that it moved stay where they are.
///
/// # Errors
/// The errors of [`resume_balance`].
pub fn cancel_balance(path: impl AsRef<Path>, opening: &Options) -> Result<()> {
    let path = path.as_ref();
    #[cfg(feature = "fuse")]
    if path.is_dir() {
        return Ok(mounted::cancel_balance(path)?);
    }
    let devices = open(path, opening, false, "a balance")?;
    Ok(engine::cancel(&devices, &of_opening(opening)).map_err(balance_failed(path))?)
}

/// The options of the engine that say how the image is opened.
fn of_opening(opening: &Options) -> engine::BalanceOptions {
    engine::BalanceOptions {
        degraded: opening.is_degraded(),
        time: opening.fixed_time(),
        ..engine::BalanceOptions::default()
    }
}

/// The engine's options for filters of data, metadata and the chunk tree. Without any it is all.
pub(crate) fn engine_options(
    filters: [Option<&BalanceFilter>; 3],
    force: bool,
) -> engine::BalanceOptions {
    let [mut data, mut metadata, system] = filters.map(|filter| filter.map(|f| f.0.clone()));
    if data.is_none() && metadata.is_none() && system.is_none() {
        (data, metadata) = (Some(<_>::default()), Some(<_>::default()));
    }
    engine::BalanceOptions {
        system: system.or_else(|| metadata.clone()),
        data,
        metadata,
        force,
        ..engine::BalanceOptions::default()
    }
}

/// The report of the engine.
pub(crate) fn balanced(done: engine::BalanceReport) -> BalanceReport {
    BalanceReport {
        groups: done.groups,
        chosen: done.chosen,
        changed: done.changed,
        moved: done.moved,
        interrupted: done.interrupted,
    }
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
    fn filters_are_read_as_btrfs_progs_writes_them() {
        let read = |text: &str| text.parse::<BalanceFilter>().map(|filter| filter.0);
        let all = read("usage=50,profiles=single|DUP,devid=2,limit=3,convert=raid1,soft").unwrap();
        assert_eq!(all.usage, Some(0..=50));
        assert_eq!(all.profiles, [Profile::Single, Profile::Dup]);
        assert_eq!((all.devid, all.limit), (Some(2), Some(3)));
        assert_eq!((all.convert, all.soft), (Some(Profile::Raid1), true));
        assert_eq!(read("usage=10..20").unwrap().usage, Some(10..=20));
        for bad in [
            "usage=101",
            "profiles=raid5",
            "convert=",
            "soft",
            "x",
            "devid=a",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_device_is_named_by_id_path_or_as_missing() {
        let read = |text: &str| text.parse::<DeviceChoice>().unwrap();
        assert_eq!(read("2"), DeviceChoice::Id(2));
        assert_eq!(read("missing"), DeviceChoice::Missing);
        assert_eq!(read("b.img"), DeviceChoice::Path("b.img".into()));
    }
}
