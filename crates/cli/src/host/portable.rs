//! The functions of mounts, in a build without them.

use std::io;
use std::path::Path;

use sapwood::vfs::{SubvolumeId, SubvolumeInfo};

pub(crate) use sapwood::block::mount_table::{MountEntry, mount_table, mounted_on};

/// The subvolumes of a mount.
pub(crate) struct SubvolumeList {
    pub(crate) subvolumes: Vec<SubvolumeInfo>,
    pub(crate) default: SubvolumeId,
}

fn absent<T>() -> io::Result<T> {
    let text = "this build has no mounts: they are for Linux";
    Err(io::Error::new(io::ErrorKind::Unsupported, text))
}

/// Requests to the daemon of a mount.
pub(crate) mod control {
    use super::{Path, SubvolumeId, SubvolumeList, absent, io};

    pub(crate) fn sync(_: &Path) -> io::Result<()> {
        absent()
    }

    pub(crate) fn stats(_: &Path) -> io::Result<String> {
        absent()
    }

    pub(crate) fn create_subvolume(_: &Path, _: &[u8]) -> io::Result<()> {
        absent()
    }

    pub(crate) fn delete_subvolume(_: &Path, _: &[u8]) -> io::Result<()> {
        absent()
    }

    pub(crate) fn snapshot(_: &Path, _: &Path, _: &[u8], _: bool) -> io::Result<()> {
        absent()
    }

    pub(crate) fn set_read_only(_: &Path, _: bool) -> io::Result<()> {
        absent()
    }

    pub(crate) fn list_subvolumes(_: &Path) -> io::Result<SubvolumeList> {
        absent()
    }

    pub(crate) fn set_default_subvolume(_: &Path, _: SubvolumeId) -> io::Result<()> {
        absent()
    }

    pub(crate) fn set_default_to(_: &Path) -> io::Result<()> {
        absent()
    }
}

/// The process that mounts for a confined daemon.
pub(crate) mod broker {
    use std::io;
    use std::os::unix::net::UnixDatagram;

    /// No process has one.
    #[derive(Debug)]
    pub(crate) enum Broker {}

    impl Broker {
        pub(crate) fn connect_to_log(&self) -> io::Result<UnixDatagram> {
            match *self {}
        }
    }
}
