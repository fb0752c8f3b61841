//! Scrubbing a mounted file system: its daemon, which has the image open, does it.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use super::{READING, ScrubOptions, ScrubReport};
use crate::bulk::upkeep::{self, Request};
use crate::daemon::DaemonError;
use crate::progress::{OnProgress, Progress};

/// Has the daemon of the mount that `dir` is in scrub the file system.
///
/// # Errors
/// [`DaemonError`].
pub(super) fn scrub_by_daemon(
    dir: &Path,
    options: &ScrubOptions,
    progress: &mut OnProgress<'_>,
) -> Result<ScrubReport, DaemonError> {
    if options.state.is_some() {
        let why = "the position of a scrub is recorded only while nothing has it mounted";
        let path = dir.to_owned();
        let source = io::Error::new(io::ErrorKind::InvalidInput, why);
        return Err(DaemonError::Mount { path, source });
    }
    let request = Request::Scrub {
        read_only: options.read_only,
        limit: options.limit,
    };
    let socket = upkeep::request(dir, &request)?;
    let mut known = None;
    upkeep::wait(dir, &socket, &mut |done, total| {
        if known.replace(total) != Some(total) {
            progress(Progress::Total(total));
        }
        let phase = READING;
        progress(Progress::Done { phase, done });
        if options.stop.is_stopped() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })
}
