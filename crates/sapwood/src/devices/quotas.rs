//! Shows and changes the quotas of a btrfs, in an image or a mount by Sapwood.

use std::path::Path;

use sapwood_btrfs::quota_groups as engine;

#[cfg(feature = "fuse")]
use super::mounted;
use super::{DevicesError, open};
use crate::Result;
use crate::options::Options;
use crate::quota::{QuotaChange, Quotas};

fn failed(path: &Path) -> impl FnOnce(sapwood_btrfs::Error) -> DevicesError {
    let path = path.to_owned();
    |source| DevicesError::Quota {
        path,
        source: Box::new(source),
    }
}

/// The quotas of a btrfs; `None` if they are off. `path` is an image, or a directory in a mount by
/// Sapwood. Changes nothing.
///
/// # Errors
/// The image cannot be opened ([`open`](crate::open)), or is no btrfs.
/// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt): the quota tree contradicts itself.
pub fn quotas(path: impl AsRef<Path>, opening: &Options) -> Result<Option<Quotas>> {
    let path = path.as_ref();
    #[cfg(feature = "fuse")]
    if path.is_dir() {
        return Ok(mounted::quotas(path)?);
    }
    let devices = open(path, opening, true, "a quota group")?;
    let found = engine::show_on(&devices, opening.is_degraded()).map_err(failed(path))?;
    Ok(found.map(Quotas::of))
}

/// Changes the quotas of a btrfs. The change is durable when this returns. `path` is an image that
/// nothing has mounted, or a directory in a mount by Sapwood. [`QuotaChange::Enable`], `Rescan`,
/// `Assign` and `Unassign` read all metadata; operations of the mount wait meanwhile.
///
/// # Errors
/// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput): quotas are off, there is no such
/// group, or the change is refused; nothing changed.
/// [`ErrorKind::ResourceBusy`](crate::ErrorKind::ResourceBusy): a deleted subvolume is in use.
/// The image cannot be opened ([`open`](crate::open)), or is no btrfs.
pub fn change_quotas(path: impl AsRef<Path>, opening: &Options, change: QuotaChange) -> Result<()> {
    let path = path.as_ref();
    #[cfg(feature = "fuse")]
    if path.is_dir() {
        return Ok(mounted::change_quotas(path, change)?);
    }
    let devices = open(path, opening, false, "a quota group")?;
    let (degraded, time) = (opening.is_degraded(), opening.fixed_time());
    let changed = engine::change_on(&devices, degraded, time, change.engine());
    Ok(changed.map_err(failed(path))?)
}
