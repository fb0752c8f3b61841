//! Subvolumes of a mounted file system: by `btrfs` on the kernel's mounts, by `sapwood` on
//! Sapwood's.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::mount::Driver;
use crate::process;

fn split(path: &Path) -> (&Path, &[u8]) {
    let name = path.file_name().unwrap_or_default();
    (path.parent().unwrap_or(path), name.as_bytes())
}

/// Creates an empty subvolume.
///
/// # Errors
/// The driver's error.
pub fn create(driver: Driver, place: &Path) -> Result<(), String> {
    match driver {
        Driver::Kernel => btrfs(&["create".as_ref(), place.as_ref()]),
        Driver::Sapwood => {
            let (dir, name) = split(place);
            told(place, sapwood_fuse::control::create_subvolume(dir, name))
        }
    }
}

/// Creates a writable snapshot.
///
/// # Errors
/// The driver's error.
pub fn snapshot(driver: Driver, source: &Path, place: &Path) -> Result<(), String> {
    match driver {
        Driver::Kernel => btrfs(&["snapshot".as_ref(), source.as_ref(), place.as_ref()]),
        Driver::Sapwood => {
            let (dir, name) = split(place);
            told(
                place,
                sapwood_fuse::control::snapshot(source, dir, name, false),
            )
        }
    }
}

/// Deletes a subvolume. Its space returns over time.
///
/// # Errors
/// The driver's error.
pub fn delete(driver: Driver, place: &Path) -> Result<(), String> {
    match driver {
        Driver::Kernel => btrfs(&["delete".as_ref(), place.as_ref()]),
        Driver::Sapwood => {
            let (dir, name) = split(place);
            told(place, sapwood_fuse::control::delete_subvolume(dir, name))
        }
    }
}

/// Makes everything durable.
///
/// # Errors
/// The driver's error.
pub fn sync(driver: Driver, root: &Path) -> Result<(), String> {
    match driver {
        Driver::Kernel => process::run(
            "btrfs",
            &["filesystem".as_ref(), "sync".as_ref(), root.as_os_str()],
        )
        .map(drop),
        Driver::Sapwood => told(root, sapwood_fuse::control::sync(root)),
    }
}

fn btrfs(args: &[&OsStr]) -> Result<(), String> {
    let args: Vec<&OsStr> = std::iter::once(OsStr::new("subvolume"))
        .chain(args.iter().copied())
        .collect();
    process::run("btrfs", &args).map(drop)
}

/// The text of an error holds its number, as `Os` errors show it.
fn told(place: &Path, result: std::io::Result<()>) -> Result<(), String> {
    result.map_err(|error| format!("{}: {error}", place.display()))
}
