//! Images of `mke2fs` in memory, and the answers of `e2fsck`, `debugfs`, `dumpe2fs` and the kernel.

use std::path::Path;
use std::sync::Arc;

use sapwood_block::MemoryDevice;

use super::{KernelMount, Kind, Saved, TempImage};
use crate::process;

/// A new image in memory, made by `mke2fs` with these arguments.
///
/// # Panics
/// With the output of `mke2fs`, if it fails.
#[must_use]
pub fn image(size: u64, args: &str) -> Arc<MemoryDevice> {
    let image = TempImage::blank(size);
    make(image.path(), args);
    Arc::new(MemoryDevice::load(image.path()).unwrap())
}

/// Makes an image on a device that was full of other data. `mke2fs` leaves that data where it can.
#[must_use]
pub fn image_on_garbage(size: u64, args: &str) -> Arc<MemoryDevice> {
    let image = TempImage::from_bytes(&vec![0xa5; usize::try_from(size).unwrap()]);
    make(
        image.path(),
        &format!("{args} -E nodiscard,lazy_itable_init=1"),
    );
    Arc::new(MemoryDevice::load(image.path()).unwrap())
}

fn make(path: &Path, args: &str) {
    let args: Vec<&str> = args.split_whitespace().collect();
    let made = Kind::Ext4.format(path, &args);
    made.unwrap_or_else(|why| panic!("{why}"));
}

/// `e2fsck -fn` of the device's content.
///
/// # Errors
/// Its findings.
pub fn check(device: &MemoryDevice) -> Result<(), String> {
    let saved = Saved::new(device);
    Kind::Ext4.check(&saved.path()).map_err(|why| {
        let kept = std::env::var_os("SAPWOOD_KEEP_IMAGES").map(|dir| {
            let path = Path::new(&dir).join(format!("{}.img", fastrand::u32(..)));
            std::fs::copy(saved.path(), &path).map(|_| path)
        });
        match kept {
            Some(Ok(path)) => format!("{why}kept as {}", path.display()),
            _ => why,
        }
    })
}

/// `e2fsck -fn` of the device's content finds nothing.
///
/// # Panics
/// With its findings.
pub fn clean(device: &MemoryDevice, what: &str) {
    check(device).unwrap_or_else(|why| panic!("{what}: {why}"));
}

/// The image after these commands of `debugfs`.
#[must_use]
pub fn debugfs_only(device: &MemoryDevice, commands: &str) -> Arc<MemoryDevice> {
    edited(device, commands).load()
}

fn edited(device: &MemoryDevice, commands: &str) -> Saved {
    let saved = Saved::new(device);
    saved.debugfs(commands);
    saved
}

/// The image after these commands of `debugfs`, and after `e2fsck` gave indexes to directories that
/// need one.
#[must_use]
pub fn debugfs(device: &MemoryDevice, commands: &str) -> Arc<MemoryDevice> {
    let saved = edited(device, commands);
    // Its status is not 0 if it changed something.
    let mut e2fsck = process::command("e2fsck", &["-fyD"]);
    let _ = process::finish(e2fsck.arg(saved.path()), process::ORDINARY);
    saved.load()
}

/// The answer of `dumpe2fs`.
#[must_use]
pub fn dumpe2fs(device: &MemoryDevice) -> String {
    super::run("dumpe2fs", &[Saved::new(device).path()])
}

/// Mounts an image next to its file, where a test finds it while it is mounted.
fn mounted(saved: &Saved, options: &str) -> Result<KernelMount, String> {
    KernelMount::at(&saved.path(), options, &saved.beside("mnt"))
}

/// Runs `body` with the image mounted by the kernel, read-only.
pub fn kernel<T>(device: &MemoryDevice, body: impl FnOnce(&Path) -> T) -> T {
    let saved = Saved::new(device);
    let mount = mounted(&saved, "ro").unwrap_or_else(|why| panic!("{why}"));
    body(mount.path())
}

/// The image after the kernel mounted it, and `body` changed something there.
pub fn kernel_writes(device: &MemoryDevice, body: impl FnOnce(&Path)) -> Arc<MemoryDevice> {
    try_kernel_writes(device, body).unwrap_or_else(|why| panic!("{why}"))
}

/// Like [`kernel_writes`], with the error as a result.
///
/// # Errors
/// The kernel cannot mount the image, because not every kernel has every feature. Any other failure
/// of mount(8) panics.
pub fn try_kernel_writes(
    device: &MemoryDevice,
    body: impl FnOnce(&Path),
) -> Result<Arc<MemoryDevice>, String> {
    let saved = Saved::new(device);
    let mount = mounted(&saved, "rw").inspect_err(|why| {
        assert!(why.contains("wrong fs type"), "mount: {why}");
    })?;
    body(mount.path());
    drop(mount);
    Ok(saved.load())
}
