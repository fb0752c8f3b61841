//! Errors of work that the daemon of a mount does for another process.

use std::io;
use std::path::PathBuf;

use crate::image::named;

/// Why the daemon of a mount did not do the work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// The directory is in no mount by Sapwood, or its daemon does not serve this user.
    #[error("{}", named(path, source))]
    Mount {
        /// The directory.
        path: PathBuf,
        /// The error of the host.
        source: io::Error,
    },
    /// The daemon refused the work, or ended it.
    #[error("{}", named(path, why))]
    Refused {
        /// The directory.
        path: PathBuf,
        /// The daemon's reason.
        why: String,
    },
}
