//! A directory in a mount of Sapwood, where a received subvolume is a subvolume.

use std::io;
use std::os::fd::OwnedFd;
#[cfg(not(feature = "fuse"))]
use std::path::Path;

#[cfg(feature = "fuse")]
use sapwood_fuse::control;

#[cfg(feature = "fuse")]
use crate::host::by_descriptor;

/// `f_type` of FUSE.
#[cfg(feature = "fuse")]
const FUSE: u64 = 0x6573_5546;

#[cfg(feature = "fuse")]
fn is_fuse(dir: &OwnedFd) -> bool {
    let found = rustix::fs::fstatfs(dir).ok();
    let kind = found.and_then(|found| u64::try_from(found.f_type).ok());
    kind == Some(FUSE)
}

/// Makes the file system of a directory durable. For a mount the kernel does not ask the daemon to.
pub(super) fn sync(dir: &OwnedFd) -> io::Result<()> {
    rustix::fs::syncfs(dir)?;
    #[cfg(feature = "fuse")]
    if is_fuse(dir) && control::daemon(&by_descriptor(dir)).is_ok() {
        return control::sync(&by_descriptor(dir));
    }
    Ok(())
}

/// Whether the caller may make subvolumes in a directory.
#[cfg_attr(not(feature = "fuse"), expect(unused_variables))]
pub(super) fn has_subvolumes(dir: &OwnedFd) -> bool {
    #[cfg(feature = "fuse")]
    if is_fuse(dir) {
        return control::list_subvolumes(&by_descriptor(dir)).is_ok();
    }
    false
}

/// The name of the read-only subvolume with a UUID, as its received one or its own, if no other
/// subvolume of the file system has this name: then a subvolume of this name is that one.
#[cfg_attr(not(feature = "fuse"), expect(unused_variables))]
pub(super) fn unique_name(dir: &OwnedFd, uuid: [u8; 16]) -> Option<Vec<u8>> {
    #[cfg(feature = "fuse")]
    if has_subvolumes(dir) {
        let all = control::list_subvolumes(&by_descriptor(dir)).ok()?;
        let name = |path: &[u8]| path.rsplit(|byte| *byte == b'/').next().map(<[u8]>::to_vec);
        let mut all = all.subvolumes;
        all.sort_by_key(|one| one.received_uuid != uuid);
        let found = all
            .iter()
            .find(|one| one.read_only && (one.received_uuid == uuid || one.uuid == uuid))?;
        let found = name(&found.path)?;
        let same = all
            .iter()
            .filter(|one| name(&one.path).as_ref() == Some(&found));
        return (same.count() == 1).then_some(found);
    }
    None
}

#[cfg(feature = "fuse")]
pub(super) use control::{create_subvolume, delete_subvolume, set_received, snapshot};

/// Programs without mounts make no subvolumes in them.
#[cfg(not(feature = "fuse"))]
mod absent {
    use super::{Path, io};

    fn none() -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in crate::receive::directory) fn create_subvolume(_: &Path, _: &[u8]) -> io::Result<()> {
        none()
    }

    pub(in crate::receive::directory) fn snapshot(
        _: &Path,
        _: &Path,
        _: &[u8],
        _: bool,
    ) -> io::Result<()> {
        none()
    }

    pub(in crate::receive::directory) fn delete_subvolume(_: &Path, _: &[u8]) -> io::Result<()> {
        none()
    }

    pub(in crate::receive::directory) fn set_received(
        _: &Path,
        _: [u8; 16],
        _: u64,
    ) -> io::Result<()> {
        none()
    }
}
#[cfg(not(feature = "fuse"))]
pub(super) use absent::{create_subvolume, delete_subvolume, set_received, snapshot};
