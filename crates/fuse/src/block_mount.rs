//! Mounts of type `fuseblk`, where `sync` and `umount` wait for the daemon.
//!
//! # How it works
//!
//! Only in mounts of this type does the kernel pass `sync(1)` and `syncfs(2)` on to the daemon
//! (`FUSE_SYNCFS`, since Linux 6.18) and end the mount with a request that `umount(2)` waits for
//! (`FUSE_DESTROY`). A daemon that does not answer can block every `sync` of the machine, so the
//! kernel allows the type to root only. It also needs a block device: see [`crate::anchor`].
//!
//! The mount table shows the path under which the kernel found the block device. To show the image
//! there, the path must lead to the loop device while the kernel resolves it. So a thread with its
//! own root directory, an empty `tmpfs` that is mounted nowhere, creates a device node under the
//! image's name and mounts from there. Where that fails, the table shows `/dev/loopN`.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};

use crate::anchor::Anchor;
use crate::options::MountOptions;
use crate::permissions::{is_first_namespace, kernel_checks};
use sapwood_vfs::{Access, Choice};

/// The first kernel that passes `FUSE_SYNCFS` to a `fuseblk` mount.
const FIRST_RELEASE: (u32, u32) = (6, 18);

/// The image, if a mount with these options should be of type `fuseblk`.
pub(crate) fn wanted(options: &MountOptions) -> Option<&Path> {
    let image = options.anchor.as_deref()?;
    let wanted = match options.fuseblk {
        Choice::Off => false,
        Choice::On => true,
        Choice::Auto => !options.auto_unmount && is_offered(),
    };
    wanted.then_some(image)
}

/// Whether this process can mount an image with type `fuseblk`, and the kernel passes `sync` on to
/// such a mount.
#[must_use]
pub fn is_offered() -> bool {
    rustix::process::geteuid().is_root()
        && is_first_namespace()
        && passes_sync()
        && Path::new("/dev/loop-control").exists()
}

/// Whether the kernel passes `sync` on to mounts of type `fuseblk`.
pub(crate) fn passes_sync() -> bool {
    release() >= FIRST_RELEASE
}

/// Whether `sync(1)` and `syncfs(2)` should reach the daemon of a mount with these options.
#[must_use]
pub fn will_receive_sync(options: &MountOptions) -> bool {
    wanted(options).is_some() && passes_sync()
}

/// Version of the running kernel; zeros if it cannot be read.
fn release() -> (u32, u32) {
    let system = rustix::system::uname();
    system.release().to_str().map_or((0, 0), parse_release)
}

fn parse_release(text: &str) -> (u32, u32) {
    let mut numbers = text
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next())
}

/// Mounts on the directory `path`. `device` is the open `/dev/fuse` to serve the mount with, and
/// the mode of the root directory until the kernel asks the daemon for it.
///
/// # Errors
/// There is no loop device, or the kernel refused. Nothing is mounted.
pub(crate) fn mount(
    device: (&OwnedFd, u32),
    path: &Path,
    image: &Path,
    options: &MountOptions,
    read_only: bool,
) -> io::Result<()> {
    let anchor = Anchor::attach(image, read_only)?;
    let detached = std::thread::scope(|scope| {
        let named = scope.spawn(|| {
            let source = name_anchor(&anchor, &options.fsname)?;
            create(device, &source, options, read_only)
        });
        named
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the mounting thread panicked")))
    });
    let detached = match detached {
        Ok(detached) => detached,
        Err(error) => {
            log::debug!("the mount table shows {}: {error}", anchor.path());
            create(device, anchor.path().as_ref(), options, read_only)?
        }
    };
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(move_mount(&detached, "", CWD, path, flags)?)
}

/// Gives the calling thread a root directory in which `name` is the anchor. Returns the name.
fn name_anchor(anchor: &Anchor, name: &str) -> io::Result<PathBuf> {
    let name = PathBuf::from(name);
    let plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    if !name.components().all(plain) {
        return Err(io::Error::other("the name is no plain path"));
    }
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let root = fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )?;
    own_root::leave()?;
    rustix::process::fchdir(&root)?;
    rustix::process::chroot(".")?;
    let parts: Vec<OsString> = name
        .components()
        .filter_map(|part| match part {
            Component::Normal(part) => Some(part.to_owned()),
            _ => None,
        })
        .collect();
    let relative: PathBuf = parts.iter().collect();
    if let Some(parent) = relative.parent() {
        std::fs::create_dir_all(Path::new("/").join(parent))?;
    }
    let (major, minor) = anchor.device_number();
    rustix::fs::mknodat(
        CWD,
        &relative,
        FileType::BlockDevice,
        Mode::RUSR | Mode::WUSR,
        rustix::fs::makedev(major, minor),
    )?;
    Ok(name)
}

/// A mount of the block device `source` that is not attached to a directory yet.
fn create(
    (device, root_mode): (&OwnedFd, u32),
    source: &Path,
    options: &MountOptions,
    read_only: bool,
) -> io::Result<OwnedFd> {
    let context = fsopen("fuseblk", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let user = rustix::process::getuid().as_raw();
    let group = rustix::process::getgid().as_raw();
    fsconfig_set_string(&context, "source", source)?;
    for (key, value) in [
        ("subtype", options.subtype.clone()),
        ("fd", device.as_raw_fd().to_string()),
        ("rootmode", format!("{root_mode:o}")),
        ("user_id", user.to_string()),
        ("group_id", group.to_string()),
        // With a smaller block size the kernel would write back and read parts of pages.
        ("blksize", rustix::param::page_size().to_string()),
    ] {
        fsconfig_set_string(&context, key, value)?;
    }
    for (key, on) in [
        ("default_permissions", kernel_checks(options)),
        ("allow_other", options.access != Access::Owner),
        ("ro", read_only),
        ("sync", options.sync),
        ("dirsync", options.dirsync),
        ("lazytime", options.lazytime),
    ] {
        if on {
            fsconfig_set_flag(&context, key)?;
        }
    }
    fsconfig_create(&context)?;
    let attributes = attributes(options, read_only);
    Ok(fsmount(
        &context,
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes,
    )?)
}

fn attributes(options: &MountOptions, read_only: bool) -> MountAttrFlags {
    let mut attributes = MountAttrFlags::empty();
    for (on, attribute) in [
        (read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (options.nosuid, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (options.nodev, MountAttrFlags::MOUNT_ATTR_NODEV),
        (options.noexec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (options.noatime, MountAttrFlags::MOUNT_ATTR_NOATIME),
        (options.strictatime, MountAttrFlags::MOUNT_ATTR_STRICTATIME),
        (options.nodiratime, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
        (options.nosymfollow, MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
    ] {
        attributes.set(attribute, on);
    }
    attributes
}

/// `unshare` is unsafe only for descriptor tables; a thread's root directory is not one.
#[expect(unsafe_code, reason = "unshare; see the module's text")]
mod own_root {
    use rustix::thread::UnshareFlags;

    /// Gives the calling thread its own root and working directory.
    pub(super) fn leave() -> rustix::io::Result<()> {
        // SAFETY: `CLONE_FS` leaves descriptors and memory shared.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_compare_by_number() {
        for (text, release) in [
            ("6.18.44-fc-v669", (6, 18)),
            ("6.6.0", (6, 6)),
            ("10.0-rc1", (10, 0)),
            ("unknown", (0, 0)),
        ] {
            assert_eq!(parse_release(text), release);
        }
        assert!(parse_release("6.9.1") < FIRST_RELEASE);
        assert!(parse_release("7.0.0") > FIRST_RELEASE);
    }
}
