//! The parent of a difference that a directory receives.

use std::os::fd::OwnedFd;

use super::super::parent;
use super::{DirectorySink, Result, host, mounted};
use crate::copy::Place;
use crate::host::by_descriptor;

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

    /// Copies the directory of the parent `parent_name`, or makes a snapshot of it.
    pub(super) fn copy_parent(
        &self,
        (parent_name, dir): (&[u8], &OwnedFd),
        part: &[u8],
    ) -> Result<()> {
        // Another walk of the path could end elsewhere.
        let from = by_descriptor(dir).join(".");
        if self.subvolumes {
            let made = mounted::snapshot(&from, &self.place, part, false);
            return made.map_err(|error| host("create", &self.shown(part), error));
        }
        let (from, to) = (Place::host(from), Place::host(self.below(part)));
        parent::copy(from, &to, &self.shown(parent_name), &self.stop)
    }
}
