//! The copy of a parent's directory, where there are no snapshots.

use std::path::Path;

use super::error::{ReceiveError, Result};
use crate::copy::{self, CopyError, CopyOptions, CopyReport, Place};
use crate::progress::{self, Stop};

/// Copies the directory `from` to `to`. Errors call it `parent`.
pub(super) fn copy(from: Place<'_>, to: &Place<'_>, parent: &Path, stop: &Stop) -> Result<()> {
    let failed = |error: CopyError| ReceiveError::CopyParent {
        path: parent.to_owned(),
        source: Box::new(error),
    };
    let mut options = CopyOptions::archive();
    options.stop = stop.clone();
    let copied = copy::copy(&[from], to, &options, &mut progress::ignore);
    match copied.map(CopyReport::into_first_error) {
        Ok(None) => Ok(()),
        Ok(Some(error)) => Err(failed(error)),
        Err(_) if stop.is_stopped() => Err(ReceiveError::Stopped),
        Err(error) => Err(match error.downcast() {
            Ok(error) => failed(error),
            Err(error) => ReceiveError::Host {
                action: "copy".to_owned(),
                path: parent.to_owned(),
                source: error.into(),
            },
        }),
    }
}
