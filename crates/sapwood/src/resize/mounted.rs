//! Resizing a mounted file system: its daemon, which has the image open, does it.

use std::ops::ControlFlow;
use std::path::Path;

use super::{NewSize, ResizeError, ResizeReport, moved};
use crate::bulk::upkeep::{self, Request, WantedSize};
use crate::progress::OnProgress;

/// Resizes the file system that `dir` is in, or its device `devid`.
///
/// # Errors
/// [`ResizeError::InUse`] for the smallest size; [`ResizeError::Daemon`].
pub(super) fn resize(
    dir: &Path,
    devid: Option<u64>,
    size: NewSize,
    progress: &mut OnProgress<'_>,
) -> Result<ResizeReport, ResizeError> {
    let size = match size {
        NewSize::Exactly(bytes) => WantedSize::Exactly(bytes),
        NewSize::More(bytes) => WantedSize::More(bytes),
        NewSize::Less(bytes) => WantedSize::Less(bytes),
        NewSize::Max => WantedSize::Max,
        NewSize::Min(_) => {
            let path = dir.to_owned();
            return Err(ResizeError::InUse { path });
        }
    };
    let socket = upkeep::request(dir, &Request::Resize { devid, size })?;
    let report = upkeep::wait(dir, &socket, &mut |done, _| {
        progress(moved(done));
        ControlFlow::Continue(())
    });
    Ok(report?)
}
