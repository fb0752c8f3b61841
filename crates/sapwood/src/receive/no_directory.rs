//! Receiving into a directory needs system calls of Linux, which this build does not make.

use std::io::{self, Read};
use std::path::Path;

use super::error::{ReceiveError, Result};
use super::{OnProgress, ReceiveOptions, ReceiveReport};

/// Refuses.
pub(super) fn receive(
    dir: &Path,
    _: impl Read,
    _: &ReceiveOptions,
    _: &mut OnProgress<'_>,
) -> Result<ReceiveReport> {
    let text = "this build receives streams into images alone";
    Err(ReceiveError::Host {
        action: "receive into".to_owned(),
        path: dir.to_owned(),
        source: io::Error::new(io::ErrorKind::Unsupported, text),
    })
}
