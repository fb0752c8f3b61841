//! The parent of a difference that a directory receives.

use std::io;
use std::os::fd::OwnedFd;

use super::{DirectorySink, ReceiveError, Result, host, mounted};
use crate::copy::{CopyError, CopyOptions, Place, copy};
use crate::host::by_descriptor;
use crate::progress;

impl DirectorySink {
    /// The name of a parent, and its directory. In a mount the parent may be a subvolume that was
    /// received without a record.
    pub(super) fn parent(&self, uuid: [u8; 16]) -> Result<Option<(Vec<u8>, OwnedFd)>> {
        if let Some((record, dir)) = self.complete(uuid)? {
            return Ok(Some((record.name, dir)));
        }
        let name = mounted::unique_name(&self.dir, uuid);
        Ok(name.and_then(|name| Some((name.clone(), self.open(&name).ok()?))))
    }

    /// Copies the directory of a parent, or makes a snapshot of it.
    pub(super) fn copy_parent(&self, (parent, dir): (&[u8], &OwnedFd), part: &[u8]) -> Result<()> {
        // Another walk of the path could end elsewhere.
        let from = by_descriptor(dir).join(".");
        if self.subvolumes {
            let made = mounted::snapshot(&from, &self.place, part, false);
            return made.map_err(|error| host("create", &self.shown(part), error));
        }
        let mut options = CopyOptions::archive();
        options.stop = self.stop.clone();
        let to = self.below(part);
        let copied = copy(
            &[Place::host(from.clone())],
            &Place::host(to),
            &options,
            &mut progress::ignore,
        );
        let failed = |error: CopyError| ReceiveError::CopyParent {
            path: self.shown(parent),
            source: Box::new(error),
        };
        match copied {
            Ok(report) => match report.into_first_error() {
                None => Ok(()),
                Some(error) => Err(failed(error)),
            },
            Err(_) if self.stop.is_stopped() => Err(ReceiveError::Stopped),
            Err(error) => match error.downcast() {
                Ok(error) => Err(failed(error)),
                Err(error) => Err(host("copy", &self.shown(parent), io::Error::from(error))),
            },
        }
    }
}
