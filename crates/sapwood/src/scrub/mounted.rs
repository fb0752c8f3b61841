//! Scrubbing a mounted file system: its daemon, which has the image open, does it.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::Path;

use super::{READING, ScrubError, ScrubOptions, ScrubReport};
use crate::bulk::upkeep::{self, Request};
use crate::progress::{OnProgress, Progress};

type Result<T> = std::result::Result<T, ScrubError>;

/// Has the daemon of the mount that `dir` is in scrub the file system.
///
/// # Errors
/// [`ScrubError::Mount`], [`ScrubError::Daemon`].
pub(super) fn scrub_by_daemon(
    dir: &Path,
    options: &ScrubOptions,
    progress: &mut OnProgress<'_>,
) -> Result<ScrubReport> {
    let unreachable = |source| ScrubError::Mount {
        path: dir.to_owned(),
        source,
    };
    if options.state.is_some() {
        let why = "the position of a scrub is recorded only while nothing has it mounted";
        return Err(unreachable(io::Error::new(
            io::ErrorKind::InvalidInput,
            why,
        )));
    }
    let opened = File::open(dir).map_err(unreachable)?;
    let socket = sapwood_fuse::bulk::connect_for_upkeep(opened.as_fd());
    let socket = socket.map_err(|error| unreachable(upkeep::named(error)))?;
    let request = Request::Scrub {
        read_only: options.read_only,
        limit: options.limit,
    };
    let failed = |why: String| ScrubError::Daemon {
        path: dir.to_owned(),
        why,
    };
    let lost = |error: io::Error| failed(error.to_string());
    request.send(&socket).map_err(lost)?;
    let mut known = None;
    let report = upkeep::wait(&socket, &mut |done, total| {
        if known.replace(total) != Some(total) {
            progress(Progress::Total(total));
        }
        let phase = READING;
        progress(Progress::Done { phase, done });
        if options.stop.is_stopped() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    report.map_err(failed)
}
