//! The kernel's mount table, on Linux.

use std::io;
use std::path::Path;

use crate::host;

pub use crate::holder::MountEntry;

/// All mounts of this namespace, in the order in which they were made.
///
/// # Errors
/// The table cannot be read, or the system is not Linux.
pub fn mount_table() -> io::Result<Vec<MountEntry>> {
    host::mount_table()
}

/// The topmost mount on `point`, an absolute path without symbolic links; `None` if there is none
/// or the table cannot be read.
#[must_use]
pub fn mounted_on(point: &Path) -> Option<MountEntry> {
    let table = mount_table().ok()?;
    table.into_iter().rfind(|entry| entry.point == point)
}

#[cfg(all(test, target_os = "linux", not(sapwood_portable)))]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_mounted() {
        let kind = mounted_on(Path::new("/")).map(|entry| entry.kind);
        assert!(kind.is_some_and(|kind| !kind.is_empty()));
    }
}
