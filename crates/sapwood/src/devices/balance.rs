//! Balances: block groups move, and get other profiles.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use sapwood_btrfs::balance as engine;
use sapwood_btrfs::mkfs::Profile;
use serde::{Deserialize, Serialize};

#[cfg(feature = "fuse")]
use super::mounted;
use super::{DevicesError, open, step};
use crate::Result;
use crate::options::Options;
use crate::progress::{OnProgress, Stop};

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

/// Drops a balance that was interrupted, so that neither Sapwood nor the kernel continues it. One
/// that the daemon of a mount runs ends first. Block groups that it moved stay where they are.
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

/// The balance of a btrfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum BalanceState {
    /// There is none.
    None,
    /// One was interrupted, by Sapwood or the kernel, and can be continued.
    Paused,
    /// The daemon of the mount runs one.
    Running {
        /// Used bytes of the block groups that are done.
        done: u64,
        /// Used bytes of all chosen block groups.
        total: u64,
    },
}

/// Finds out whether a balance of a btrfs runs or was interrupted. `path` is an image, or a
/// directory in a mount by Sapwood. Changes nothing.
///
/// # Errors
/// The image cannot be opened ([`open`](crate::open)), for example because a balance of it runs
/// outside of a mount.
pub fn balance_state(path: impl AsRef<Path>, opening: &Options) -> Result<BalanceState> {
    let path = path.as_ref();
    #[cfg(feature = "fuse")]
    if path.is_dir() {
        return Ok(mounted::balance_state(path)?);
    }
    let devices = open(path, opening, true, "a balance")?;
    let paused = engine::is_recorded(&devices, opening.is_degraded());
    Ok(if paused.map_err(balance_failed(path))? {
        BalanceState::Paused
    } else {
        BalanceState::None
    })
}

/// Ends the balance that the daemon of a mount by Sapwood runs, after the block group that moves.
/// [`resume_balance`] continues it. `path` is a directory in the mount.
///
/// # Errors
/// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): no balance runs; `path` is no
/// directory. The directory is in no mount by Sapwood.
pub fn pause_balance(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    #[cfg(feature = "fuse")]
    if path.is_dir() && mounted::pause_balance(path)? {
        return Ok(());
    }
    Err(DevicesError::NoBalance(path.to_owned()).into())
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
}
