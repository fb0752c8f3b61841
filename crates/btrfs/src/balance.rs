//! Moves block groups of a file system, mounted or not, and changes their profiles.
//!
//! # How it works
//! The chosen block groups are processed one after another, the highest address first, as the
//! kernel does. Each one moves in a transaction of its own (module `relocate`). An
//! interrupted balance leaves a complete file system with some groups done; running it again
//! continues with the others. Addresses do not change, so extents stay in their order: a group
//! shrinks to its used parts, but does not merge with others. While the file system is mounted, a
//! group moves as a whole.
//!
//! The file system records the balance while it runs (module `item`). The record is left when the
//! balance is interrupted, so that [`resume`] or the kernel continues it.

pub(crate) mod item;

use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs_format::BlockGroupFlags;
use sapwood_vfs::Timestamp;

use crate::mkfs::Profile;
use crate::relocate::parts::{self, Group};
use crate::relocate::{self, Relocated, Relocation};
use crate::space::{Layout, Prefer};
use crate::transaction::Store;
use crate::{Btrfs, Error};

/// Most parts into which a group is cut when its unused space is removed.
const MOST_PARTS: u64 = 64;
/// Most passes over the groups. A conversion needs several, because chunks of the old profile may be
/// allocated meanwhile.
const MOST_PASSES: usize = 4;

/// The block groups of one content that a balance moves.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only groups whose used percentage is in this range.
    pub usage: Option<RangeInclusive<u64>>,
    /// Only groups with one of these profiles; all groups if it is empty.
    pub profiles: Vec<Profile>,
    /// Only groups with a stripe on this device.
    pub devid: Option<u64>,
    /// Most groups that are moved.
    pub limit: Option<u64>,
    /// The profile to which the groups are converted.
    pub convert: Option<Profile>,
    /// Skips groups that have the new profile already.
    pub soft: bool,
}

/// Parameters of a balance.
#[derive(Clone, Debug, Default)]
pub struct BalanceOptions {
    /// Block groups of data that are moved.
    pub data: Option<Filter>,
    /// Block groups of metadata that are moved.
    pub metadata: Option<Filter>,
    /// Block groups of the chunk tree that are moved.
    pub system: Option<Filter>,
    /// A conversion may leave metadata with fewer copies.
    pub force: bool,
    /// Devices may be missing, as far as the profiles allow.
    pub degraded: bool,
    /// Time of the changes, for a reproducible result.
    pub time: Option<Timestamp>,
}

/// The result of a balance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalanceReport {
    /// Block groups of the file system.
    pub groups: u64,
    /// Block groups that the filters chose.
    pub chosen: u64,
    /// Block groups that moved, got another profile or became smaller.
    pub changed: u64,
    /// Used bytes of groups that moved.
    pub moved: u64,
    /// The callback stopped the balance.
    pub interrupted: bool,
}

/// Reasons why a balance failed. The file system is consistent after each of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BalanceError {
    /// An error of the engine.
    #[error(transparent)]
    Engine(#[from] Error),
    /// The file system has fewer devices than the profile needs.
    #[error("profile {profile} needs {needed} devices, the file system has {present}")]
    TooFewDevices {
        /// The profile.
        profile: Profile,
        /// Devices that the profile needs.
        needed: usize,
        /// Devices that are present.
        present: usize,
    },
    /// The conversion would leave metadata with fewer copies.
    #[error("profile {0} has fewer copies of metadata than now; it needs force")]
    LessRedundant(Profile),
    /// Data and metadata share block groups.
    #[error("data and metadata share block groups, so both need the same filters")]
    Mixed,
    /// No device has this id.
    #[error("the file system has no device {0}")]
    NoSuchDevice(u64),
    /// The recorded balance has filters that are not known here.
    #[error("the paused balance uses {0}, which is not supported; --cancel drops it")]
    Unsupported(String),
    /// No balance is recorded.
    #[error("no balance is paused")]
    NonePaused,
    /// No free place is large enough.
    #[error("block group {group} ({profile}, {len} bytes) fits nowhere in the unallocated space")]
    NoRoom {
        /// Logical address.
        group: u64,
        /// Profile that the group was to get.
        profile: &'static str,
        /// Bytes of the group.
        len: u64,
    },
    /// Block groups of an old profile were allocated until the last pass.
    #[error("not converted: {left} block groups that were allocated meanwhile; run it again")]
    GroupsLeft {
        /// Block groups that still have an old profile.
        left: usize,
    },
}

type Result<T> = std::result::Result<T, BalanceError>;

/// Progress callback: used bytes of the groups that are done, and of all chosen groups.
pub type OnBalanced<'p> = dyn FnMut(u64, u64) -> ControlFlow<()> + Send + 'p;

/// Balances the file system on `devices`. Nothing else uses them meanwhile.
///
/// # Errors
/// Before any change: [`BalanceError::Mixed`], [`BalanceError::NoSuchDevice`],
/// [`BalanceError::TooFewDevices`], [`BalanceError::LessRedundant`]. Later [`BalanceError::NoRoom`],
/// [`BalanceError::GroupsLeft`] or [`BalanceError::Engine`]; groups that are done stay done.
pub fn balance(
    devices: &[Arc<dyn Device>],
    options: &BalanceOptions,
    step: &mut OnBalanced<'_>,
) -> Result<BalanceReport> {
    with_open(devices, options, |fs| {
        balance_open(fs, false, options, step)
    })
}

/// Balances a mounted file system, which stays in use. `degraded` and `time` of the options do not
/// count.
///
/// # Errors
/// The errors of [`balance`].
pub fn balance_mounted(
    fs: &Btrfs,
    options: &BalanceOptions,
    step: &mut OnBalanced<'_>,
) -> Result<BalanceReport> {
    balance_open(fs, true, options, step)
}

/// Continues the balance that the file system on `devices` records, of this engine or the kernel.
/// Nothing else uses them meanwhile. `degraded` and `time` of the options count.
///
/// # Errors
/// [`BalanceError::NonePaused`], [`BalanceError::Unsupported`]; the errors of [`balance`].
pub fn resume(
    devices: &[Arc<dyn Device>],
    options: &BalanceOptions,
    step: &mut OnBalanced<'_>,
) -> Result<BalanceReport> {
    with_open(devices, options, |fs| {
        let recorded = item::read(&fs.engine)?.ok_or(BalanceError::NonePaused)?;
        balance_open(fs, false, &recorded, step)
    })
}

/// Continues the balance that a mounted file system records.
///
/// # Errors
/// The errors of [`resume`].
pub fn resume_mounted(fs: &Btrfs, step: &mut OnBalanced<'_>) -> Result<BalanceReport> {
    let recorded = item::read(&fs.engine)?.ok_or(BalanceError::NonePaused)?;
    balance_open(fs, true, &recorded, step)
}

/// Drops the balance that the file system on `devices` records. What it has done stays.
///
/// # Errors
/// [`BalanceError::NonePaused`]; the errors of a mount.
pub fn cancel(devices: &[Arc<dyn Device>], options: &BalanceOptions) -> Result<()> {
    with_open(devices, options, cancel_mounted)
}

/// Drops the balance that a mounted file system records. What it has done stays.
///
/// # Errors
/// [`BalanceError::NonePaused`]; no space, unreadable blocks.
pub fn cancel_mounted(fs: &Btrfs) -> Result<()> {
    if item::remove(&fs.engine)? {
        Ok(())
    } else {
        Err(BalanceError::NonePaused)
    }
}

/// Whether a mounted file system records a balance that does not run.
///
/// # Errors
/// Unreadable blocks.
pub fn is_paused(fs: &Btrfs) -> Result<bool> {
    Ok(item::is_there(&fs.engine)?)
}

/// Whether the file system on `devices` records a balance that does not run. Changes nothing.
///
/// # Errors
/// The errors of a mount.
pub fn is_recorded(devices: &[Arc<dyn Device>], degraded: bool) -> Result<bool> {
    is_paused(&relocate::open_to_read(devices, degraded)?)
}

fn with_open<T>(
    devices: &[Arc<dyn Device>],
    options: &BalanceOptions,
    work: impl FnOnce(&Btrfs) -> Result<T>,
) -> Result<T> {
    let fs = relocate::open(devices, options.time, options.degraded)?;
    let done = work(&fs);
    let closed = fs.close();
    let done = done?;
    closed?;
    Ok(done)
}

fn balance_open(
    fs: &Btrfs,
    mounted: bool,
    options: &BalanceOptions,
    step: &mut OnBalanced<'_>,
) -> Result<BalanceReport> {
    let mut balance = Balance {
        fs,
        mounted,
        options,
        report: BalanceReport::default(),
    };
    balance.run(step)?;
    Ok(balance.report)
}

struct Balance<'b> {
    fs: &'b Btrfs,
    mounted: bool,
    options: &'b BalanceOptions,
    report: BalanceReport,
}

impl Balance<'_> {
    fn store(&self) -> &Arc<Store> {
        &self.fs.engine
    }

    fn relocation(&self) -> Relocation<'_> {
        if self.mounted {
            Relocation::mounted(self.store())
        } else {
            Relocation::new(self.store())
        }
    }

    fn run(&mut self, step: &mut OnBalanced<'_>) -> Result<()> {
        if !self.mounted {
            self.fs.finish_cleaning();
        }
        self.store().commit_and_unpin(None)?;
        let groups = self.relocation().groups()?;
        self.validate(&groups)?;
        self.report.groups = groups.len() as u64;
        let chosen = self.chosen(&groups);
        self.report.chosen = chosen.len() as u64;
        if chosen.is_empty() {
            let _ = step(0, 0);
            item::remove(self.store())?;
            return Ok(());
        }
        item::write(self.store(), self.options)?;
        let done = self.groups(chosen, step);
        if done.is_err() && self.store().health.failed() || self.report.interrupted {
            return done;
        }
        let removed = item::remove(self.store());
        done.and(removed.map(drop))
    }

    fn groups(&mut self, mut chosen: Vec<Group>, step: &mut OnBalanced<'_>) -> Result<()> {
        let mut total: u64 = chosen.iter().map(Group::used).sum();
        let mut done = 0;
        for _ in 0..MOST_PASSES {
            for group in &chosen {
                if step(done, total).is_break() {
                    self.report.interrupted = true;
                    return Ok(());
                }
                self.balance_group(group)?;
                done += group.used();
            }
            chosen = self.left()?;
            if chosen.is_empty() {
                let _ = step(total, total);
                return Ok(());
            }
            total += chosen.iter().map(Group::used).sum::<u64>();
        }
        let left = chosen.len();
        Err(BalanceError::GroupsLeft { left })
    }

    fn filter(&self, flags: BlockGroupFlags) -> Option<&Filter> {
        if flags.contains(BlockGroupFlags::SYSTEM) {
            self.options.system.as_ref()
        } else if flags.contains(BlockGroupFlags::DATA) {
            self.options.data.as_ref()
        } else {
            self.options.metadata.as_ref()
        }
    }

    /// Rejects options that cannot be fulfilled, before anything is changed.
    fn validate(&self, groups: &[Group]) -> Result<()> {
        let options = self.options;
        let both = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
        let mixed = groups.iter().any(|group| group.flags.contains(both));
        let convert = |filter: &Option<Filter>| filter.as_ref().map(|f| f.convert);
        if mixed && convert(&options.data) != convert(&options.metadata) {
            return Err(BalanceError::Mixed);
        }
        let all = [&options.data, &options.metadata, &options.system];
        let devices = self.store().space.devices();
        for filter in all.into_iter().flatten() {
            if let Some(devid) = filter.devid
                && !devices.iter().any(|device| device.devid == devid)
            {
                return Err(BalanceError::NoSuchDevice(devid));
            }
            let Some(profile) = filter.convert else {
                continue;
            };
            let needed = Layout::of(profile.flags()).least;
            let present = self.store().volume.written_ids().len();
            if present < needed {
                return Err(BalanceError::TooFewDevices {
                    profile,
                    needed,
                    present,
                });
            }
        }
        let copies = |flags| Layout::of(flags).copies;
        for group in groups.iter().filter(|group| !group.is_data()) {
            if let Some(profile) = self.filter(group.flags).and_then(|f| f.convert)
                && copies(profile.flags()) < copies(group.flags)
                && !options.force
            {
                return Err(BalanceError::LessRedundant(profile));
            }
        }
        Ok(())
    }

    /// The groups that the filters choose, the highest address first.
    fn chosen(&self, groups: &[Group]) -> Vec<Group> {
        let mut chosen: Vec<Group> = Vec::new();
        for group in groups.iter().rev() {
            let Some(filter) = self.filter(group.flags) else {
                continue;
            };
            let has_filter = |other: &&Group| {
                let other = self.filter(other.flags);
                other.is_some_and(|other| std::ptr::eq(other, filter))
            };
            let before = || chosen.iter().filter(has_filter).count() as u64;
            let full = filter.limit.is_some_and(|most| before() >= most);
            if !full && self.matches(filter, group) {
                chosen.push(group.clone());
            }
        }
        chosen
    }

    fn matches(&self, filter: &Filter, group: &Group) -> bool {
        let profile = group.flags.profile();
        let has = |wanted: &Profile| wanted.flags() == profile;
        if !filter.profiles.is_empty() && !filter.profiles.iter().any(has) {
            return false;
        }
        if filter.soft && filter.convert.as_ref().is_some_and(has) {
            return false;
        }
        if let Some(usage) = &filter.usage {
            let used = u128::from(group.used());
            let percent = |bound: u64| u128::from(group.len) * u128::from(bound.min(100)) / 100;
            let (from, to) = (percent(*usage.start()), percent(*usage.end()));
            if used < from || used > to {
                return false;
            }
        }
        let is_on = |devid| is_on(self.store(), group.start, devid);
        filter.devid.is_none_or(is_on)
    }

    /// The groups that still have to be converted: parts of groups that were split, and groups that
    /// were allocated meanwhile.
    fn left(&self) -> Result<Vec<Group>> {
        let left = self.unconverted()?;
        if left.is_empty() {
            return Ok(left);
        }
        // A group that was allocated last has no items before this, and does not move without them.
        self.store().commit_and_unpin(None)?;
        self.unconverted()
    }

    fn unconverted(&self) -> Result<Vec<Group>> {
        let mut left = Vec::new();
        for group in self.relocation().groups()? {
            let Some(filter) = self.filter(group.flags) else {
                continue;
            };
            let Some(profile) = filter.convert.filter(|_| filter.limit.is_none()) else {
                continue;
            };
            if group.flags.profile() != profile.flags() && self.matches(filter, &group) {
                left.push(group);
            }
        }
        Ok(left)
    }

    /// Moves a group in the way that its filter asks for.
    fn balance_group(&mut self, group: &Group) -> Result<()> {
        let Some(filter) = self.filter(group.flags) else {
            return Ok(());
        };
        let content = group.flags.difference(group.flags.profile());
        let convert = filter.convert;
        let flags = convert.map_or(group.flags, |profile| content | profile.flags());
        let relocation = self.relocation();
        let mut changed = false;
        // Metadata keeps its free space unless a filter asks for full groups.
        if !self.mounted && convert.is_none() && (group.is_data() || filter.usage.is_some()) {
            changed = relocation.cut(group, parts::LEAST_GAP.max(group.len / MOST_PARTS))?;
        }
        let prefer = if flags == group.flags {
            Prefer::Room
        } else {
            Prefer::Present
        };
        let (from, to) = (group.start, group.start.saturating_add(group.len));
        let (mut at, mut moved) = (from, 0);
        while let Some((start, len)) = next_chunk(self.store(), at, to) {
            let relocated = relocation.relocate(start, flags, prefer, &|_| true);
            match gone_stays(relocated)? {
                Relocated::Stays => {}
                Relocated::Moved(bytes) => {
                    moved += bytes;
                    changed = true;
                }
                Relocated::Split => {
                    changed = true;
                    continue;
                }
                // Without a conversion the group can stay where it is.
                Relocated::NoRoom if convert.is_none() => {}
                Relocated::NoRoom => {
                    return Err(BalanceError::NoRoom {
                        group: start,
                        profile: flags.profile_name(),
                        len,
                    });
                }
            }
            at = start.saturating_add(len);
        }
        self.report.changed += u64::from(changed);
        self.report.moved += moved;
        Ok(())
    }
}

/// A group that was removed meanwhile needs no move.
pub(crate) fn gone_stays(relocated: crate::Result<Relocated>) -> crate::Result<Relocated> {
    match relocated {
        Err(Error::Unmapped { .. }) => Ok(Relocated::Stays),
        other => other,
    }
}

/// Whether the chunk at `start` has a stripe on a device.
pub(crate) fn is_on(store: &Store, start: u64, devid: u64) -> bool {
    // A chunk that is removed meanwhile does not count.
    let found = store.volume.chunk_at(start).ok();
    found.is_some_and(|(_, chunk)| chunk.stripes.iter().any(|stripe| stripe.devid == devid))
}

/// The first chunk in a range of addresses, and its bytes.
pub(crate) fn next_chunk(store: &Store, from: u64, to: u64) -> Option<(u64, u64)> {
    let chunks = store.volume.chunks();
    let mut chunks = chunks.iter().map(|(start, chunk)| (*start, chunk.length));
    chunks.find(|(start, _)| (from..to).contains(start))
}
