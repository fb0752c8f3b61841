//! btrfs.

use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::check::CheckOptions;
use sapwood_btrfs::mkfs::{MkfsOptions, Profile, mkfs};
use sapwood_btrfs::{Btrfs, Groups, LogPolicy, Options, resize};
use sapwood_vfs::FileSystem;

use super::Format;
use crate::base::BaseKind;
use crate::policy::Policy;

pub(super) fn format(kind: BaseKind, size: u64) -> Result<MemoryDevice, String> {
    // Without a block-group tree, which older versions of `btrfs check` do not support.
    let usual = MkfsOptions {
        block_group_tree: Some(false),
        ..MkfsOptions::default()
    };
    let options = match kind {
        BaseKind::Usual => usual,
        _ => MkfsOptions {
            node_size: Some(4096),
            metadata: Some(Profile::Single),
            no_holes: kind != BaseKind::Holes,
            ..usual
        },
    };
    let device = MemoryDevice::new(size);
    mkfs(&device, &options).map_err(|error| error.to_string())?;
    Ok(device)
}

pub(super) fn open(
    device: Arc<dyn Device>,
    policy: Policy,
    threads: usize,
) -> Result<Arc<dyn FileSystem>, String> {
    if !policy.fits(Format::Btrfs) {
        return Err(format!("btrfs has no policy {policy}"));
    }
    let options = Options {
        background: false,
        threads,
        cache_bytes: 8 << 20,
        tree_log: policy != Policy::NoLog,
        log: log(policy),
        ..Options::default()
    };
    match Btrfs::open(vec![device], options) {
        Ok(fs) => Ok(Arc::new(fs)),
        Err(error) => Err(error.to_string()),
    }
}

fn log(policy: Policy) -> LogPolicy {
    let mut log = LogPolicy::default();
    match policy {
        Policy::Now | Policy::NoLog | Policy::DataJournal | Policy::FullFastCommits => {}
        Policy::NoOverlap => log.overlap = false,
        Policy::WaitForTrees => log.fast_wait = false,
        Policy::AllXattrs => log.xattrs_when_changed = false,
        Policy::WholeDirectories => log.single_names = false,
        Policy::Groups => log.groups = Groups::Always,
    }
    log
}

pub(super) fn size(device: &dyn Device) -> Result<u64, String> {
    resize::size(device).map_err(|error| error.to_string())
}

pub(super) fn resize(
    device: &Arc<dyn Device>,
    size: Option<u64>,
) -> Result<Result<u64, String>, String> {
    let resized = match size {
        Some(size) => resize::resize(device, size, None, &mut |_| ()),
        None => resize::shrink_to_fit(device, None, &mut |_| ()),
    };
    match resized {
        Err(resize::ResizeError::Engine(error)) => Err(error.to_string()),
        other => Ok(other.map_err(|refused| refused.to_string())),
    }
}

pub(super) fn check(device: &dyn Device) -> Result<(), String> {
    let options = CheckOptions {
        check_data_csum: true,
        ..CheckOptions::default()
    };
    let report = sapwood_btrfs::check::check(&[device], &options, &mut |_| ());
    let report = report.map_err(|error| error.to_string())?;
    let first = report.errors().next().map(ToString::to_string);
    first.map_or(Ok(()), Err)
}

/// Offset of the first copy of the superblock, and the end of its used part.
pub(super) const SUPER: (u64, u64) = (64 << 10, (64 << 10) + 4096);
/// Offset of the second copy.
const SECOND_SUPER: u64 = 64 << 20;

pub(super) fn only_super(device_size: u64) -> Option<(u64, u64)> {
    (device_size <= SECOND_SUPER).then_some(SUPER)
}

/// Byte offset of `log_root` in the superblock.
pub(super) fn has_log(image: &MemoryDevice) -> bool {
    let mut root = [0; 8];
    image.read_at((64 << 10) + 96, &mut root).is_ok() && root != [0; 8]
}
