//! A second mount of a mounted file system.
//!
//! A bind mount would join the peer group of the first mount: mounts below one of the two would
//! appear below the other. The kernel's own second mount of a device does not join. So the copy
//! leaves the group before it is attached, and has its own flags. The directory that it is attached
//! to decides whether it is shared, as for any new mount.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    move_mount, open_tree,
};

use sapwood_block::mount_table::{MountEntry, mounted_on};

/// Mounts the file system of `first` on the directory `dir` too, with these flags of a mount.
///
/// # Errors
/// Errors of the kernel; `ENOENT` if `first` was unmounted or another mount hides it.
pub fn mount_again(first: &MountEntry, dir: &Path, flags: MountFlags) -> io::Result<()> {
    if mounted_on(&first.point).as_ref() != Some(first) {
        return Err(Errno::NOENT.into());
    }
    let copy = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    match open_tree(CWD, &first.point, copy).and_then(|tree| {
        call::set_attributes(tree.as_fd(), attributes(flags))?;
        Ok(tree)
    }) {
        Ok(tree) => attach(&tree, dir),
        // Before Linux 5.12, or a filter that does not know the calls.
        Err(Errno::NOSYS) => bind(&first.point, dir, flags),
        Err(error) => Err(error.into()),
    }
}

fn attach(tree: &OwnedFd, dir: &Path) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(move_mount(tree, "", CWD, dir, flags)?)
}

/// Does [`mount_again`] in steps: for a moment the new mount is in the group of the first.
fn bind(first: &Path, dir: &Path, flags: MountFlags) -> io::Result<()> {
    rustix::mount::mount_bind(first, dir)?;
    let changed = rustix::mount::mount_change(dir, MountPropagationFlags::PRIVATE)
        .and_then(|()| rustix::mount::mount_remount(dir, MountFlags::BIND | flags, c""));
    changed.map_err(|error| {
        // The first error is returned: it is more precise than an error of the unmount.
        let _ = rustix::mount::unmount(dir, UnmountFlags::DETACH);
        error.into()
    })
}

/// Flags of a mount in the form of the newer calls, without flags of the whole file system.
fn attributes(flags: MountFlags) -> MountAttrFlags {
    let mut attributes = MountAttrFlags::empty();
    for (flag, attribute) in [
        (MountFlags::RDONLY, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (MountFlags::NOSUID, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (MountFlags::NODEV, MountAttrFlags::MOUNT_ATTR_NODEV),
        (MountFlags::NOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (MountFlags::NOATIME, MountAttrFlags::MOUNT_ATTR_NOATIME),
        (
            MountFlags::STRICTATIME,
            MountAttrFlags::MOUNT_ATTR_STRICTATIME,
        ),
        (
            MountFlags::NODIRATIME,
            MountAttrFlags::MOUNT_ATTR_NODIRATIME,
        ),
        (
            MountFlags::NOSYMFOLLOW,
            MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW,
        ),
    ] {
        attributes.set(attribute, flags.contains(flag));
    }
    attributes
}

/// The call hands the kernel a pointer, hence `unsafe`.
#[expect(unsafe_code, reason = "mount_setattr; see the module's text")]
mod call {
    use std::os::fd::{AsRawFd, BorrowedFd};

    use rustix::io::Errno;
    use rustix::mount::MountAttrFlags;

    /// `struct mount_attr`.
    #[repr(C)]
    struct Attributes {
        set: u64,
        clear: u64,
        propagation: u64,
        user_namespace: u64,
    }

    const _: () = assert!(size_of::<Attributes>() == 32);

    /// Takes a detached mount out of its peer group, and gives it exactly these attributes.
    pub(super) fn set_attributes(
        mount: BorrowedFd<'_>,
        wanted: MountAttrFlags,
    ) -> Result<(), Errno> {
        let all = MountAttrFlags::MOUNT_ATTR_RDONLY
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC
            | MountAttrFlags::MOUNT_ATTR__ATIME
            | MountAttrFlags::MOUNT_ATTR_NODIRATIME
            | MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW;
        let attributes = Attributes {
            set: u64::from(wanted.bits()),
            clear: u64::from(all.bits()),
            propagation: libc::MS_PRIVATE,
            user_namespace: 0,
        };
        // SAFETY: the path is a C string, and the kernel reads the structure of the given size.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                mount.as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH,
                &raw const attributes,
                size_of::<Attributes>(),
            )
        };
        if done == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}
