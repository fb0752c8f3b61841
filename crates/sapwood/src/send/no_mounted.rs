//! Sending a snapshot of a mount needs FUSE, which this build does without.

use std::io::{self, Write};
use std::path::Path;

use super::error::SendError;
use super::{SendOptions, SendReport};
use crate::progress::OnProgress;

/// Refuses: only images can be sent.
///
/// # Errors
/// Always.
pub fn send(
    snapshot: impl AsRef<Path>,
    _: impl Write,
    _: &SendOptions,
    _: &mut OnProgress<'_>,
) -> crate::Result<SendReport> {
    let text = "this build sends snapshots of images alone";
    Err(SendError::Mount {
        path: snapshot.as_ref().to_owned(),
        source: io::Error::new(io::ErrorKind::Unsupported, text),
    }
    .into())
}
