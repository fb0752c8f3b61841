//! Filling an image that was made.

use std::path::Path;
use std::sync::Arc;

use sapwood_block::Device;

use crate::build::BuildError;
use crate::copy::CopyReport;
use crate::fs::FileSystem;
use crate::options::Options;
use crate::progress::OnProgress;
use crate::sources::{Filled, Growth, Sources};
use crate::vfs::Timestamp;

/// Fills the image on `device`, which is called `image` in errors, from sources in their order. The
/// root belongs to the given owner, else to the owner in the last source that has one, else to the
/// caller. Names that cannot be copied from a directory are reported to `progress` and left out.
///
/// # Errors
/// [`BuildError`]; the image keeps the files so far.
pub fn fill(
    device: &Arc<dyn Device>,
    image: &Path,
    sources: &Sources,
    root_owner: Option<(u32, u32)>,
    progress: &mut OnProgress<'_>,
) -> Result<CopyReport, BuildError> {
    let fs = FileSystem::open_on(Arc::clone(device), image, &filling(sources)?)?;
    let filled = fill_open(&fs, image, sources, root_owner, None, progress);
    let ended = close(fs, &**device);
    let filled = filled?;
    ended.map(|()| filled.copied)
}

/// Ends the filling of the image on a device, which is durable then.
pub(super) fn close(fs: FileSystem, device: &dyn Device) -> Result<(), BuildError> {
    fs.close()?;
    Ok(device.flush()?)
}

pub(super) fn fill_open(
    fs: &FileSystem,
    image: &Path,
    sources: &Sources,
    root_owner: Option<(u32, u32)>,
    growth: Option<&mut Growth>,
    progress: &mut OnProgress<'_>,
) -> Result<Filled, BuildError> {
    let owner = root_owner.unwrap_or_else(|| builder_of(sources.time()));
    fs.set_owner("/", Some(owner.0), Some(owner.1))?;
    let filled = sources.fill(fs, image, owner, growth, progress)?;
    if let Some((uid, gid)) = root_owner.filter(|_| sources.has_dir()) {
        fs.set_owner("/", Some(uid), Some(gid))?;
    }
    Ok(filled)
}

/// Options of an image while it is filled: nothing must be durable before the end, and unwritten
/// data only takes memory. With a time the result is reproducible.
pub(super) fn filling(sources: &Sources) -> Result<Options, BuildError> {
    let mut options = Options::default();
    options.set_unflushed();
    if let Some(time) = sources.time() {
        options.set_reproducible(time);
    }
    sources.storage().opening(&mut options)?;
    for (name, value) in [
        // For inodes: the next two options set the other caches.
        ("memory_size", "80M"),
        ("cache_size", "64M"),
        ("dirty_size", "32M"),
        ("commit", "4"),
    ] {
        options
            .take(name, Some(value))
            .map_err(BuildError::Option)?;
    }
    Ok(options)
}

/// The owner of files without one in a source: root in an image that depends on the sources alone,
/// else the caller.
pub(super) fn builder_of(time: Option<Timestamp>) -> (u32, u32) {
    time.map_or_else(caller, |_| (0, 0))
}

fn caller() -> (u32, u32) {
    (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    )
}
