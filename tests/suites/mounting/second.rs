//! Second mounts of an image that is mounted already.

use std::fs;
use std::path::Path;

use libtest_mimic::Trial;
use rustix::fs::StatVfsMountFlags;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::machine::{self, Need};
use sapwood_tests::{Outcome, scratch};
use tempfile::TempDir;

use super::{Point, image, mount, umount};

pub(super) fn trials() -> Vec<Trial> {
    let btrfs = [machine::KERNEL, Need::Fuse];
    let ext4 = [machine::KERNEL_EXT4, Need::Fuse];
    vec![
        machine::trial("a_second_mount_is_no_peer_of_the_first", &btrfs, no_peer),
        machine::trial("a_second_mount_has_its_own_flags", &btrfs, own_flags),
        machine::trial("a_second_mount_compares_what_is_in_effect", &ext4, effect),
        machine::trial("a_bind_mount_is_not_mounted_again", &btrfs, bind),
    ]
}

/// A file system in memory whose mounts are shared, as on most systems.
struct Shared(TempDir);

impl Shared {
    fn new() -> Result<Self, String> {
        let shared = Self(scratch::directory());
        let failed = |error: rustix::io::Errno| error.to_string();
        let path = shared.0.path();
        rustix::mount::mount("none", path, "tmpfs", MountFlags::empty(), c"").map_err(failed)?;
        rustix::mount::mount_change(path, MountPropagationFlags::SHARED).map_err(failed)?;
        Ok(shared)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // With everything below.
        let _ = rustix::mount::unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

/// Mounts on a directory that exists.
fn mount_on(image: &Path, dir: &Path, options: &str) -> Result<(), String> {
    let args: [&std::ffi::OsStr; 5] = [
        "mount".as_ref(),
        "-o".as_ref(),
        options.as_ref(),
        image.as_os_str(),
        dir.as_os_str(),
    ];
    super::succeeds(&args).map(drop)
}

fn no_peer() -> Outcome {
    for options in ["rw", "fuseblk=off"] {
        let image = image()?;
        let shared = Shared::new()?;
        let (first, second) = (
            shared.0.path().join("first"),
            shared.0.path().join("second"),
        );
        fs::create_dir(&first)?;
        fs::create_dir(&second)?;
        mount_on(image.path(), &first, options)?;
        fs::create_dir(first.join("sub"))?;
        mount_on(image.path(), &second, "rw")?;
        for (on, other) in [(&first, &second), (&second, &first)] {
            let sub = on.join("sub");
            rustix::mount::mount("none", &sub, "tmpfs", MountFlags::empty(), c"")?;
            let below = scratch::mounts_below(other);
            rustix::mount::unmount(&sub, UnmountFlags::empty())?;
            if below != [other.clone()] {
                return Err(format!("{options}: {below:?}").into());
            }
        }
        umount(&second)?;
        umount(&first)?;
        image.check()?;
    }
    Ok(())
}

fn own_flags() -> Outcome {
    let image = image()?;
    let (first, second) = (Point::new(), Point::new());
    mount(image.path(), &first, "noexec,nodev")?;
    mount(image.path(), &second, "rw")?;
    let flags = |point: &Point| rustix::fs::statvfs(point.path()).map(|found| found.f_flag);
    let of_interest =
        StatVfsMountFlags::NOEXEC | StatVfsMountFlags::NODEV | StatVfsMountFlags::NOSUID;
    let found = (flags(&first)? & of_interest, flags(&second)? & of_interest);
    umount(second.path())?;
    umount(first.path())?;
    let wanted = (
        StatVfsMountFlags::NOEXEC | StatVfsMountFlags::NODEV,
        StatVfsMountFlags::empty(),
    );
    if found == wanted {
        Ok(())
    } else {
        Err(format!("{found:?}").into())
    }
}

fn effect() -> Outcome {
    let image = TempImage::new(&Mkfs::ext4("").sized(64 << 20))?;
    let first = Point::new();
    mount(image.path(), &first, "acl,user_xattr,commit=7")?;
    for same in ["acl,user_xattr", "defaults", "commit=7,data=ordered,async"] {
        let second = Point::new();
        mount(image.path(), &second, same).map_err(|why| format!("{same}: {why}"))?;
        umount(second.path())?;
    }
    for other in [
        "commit=8",
        "data=journal",
        "allow_other",
        "sync",
        "compress",
    ] {
        let second = Point::new();
        let Err(why) = mount(image.path(), &second, other) else {
            return Err(format!("mounted with {other}").into());
        };
        let there = first.path().display().to_string();
        if !why.contains(&there) || !why.contains(other) {
            return Err(format!("{other}: {why}").into());
        }
    }
    umount(first.path())?;
    image.check()?;
    Ok(())
}

/// A second mount shows the whole image, or there is none.
fn bind() -> Outcome {
    let image = image()?;
    let (first, part, second) = (Point::new(), Point::new(), Point::new());
    mount(image.path(), &first, "rw")?;
    fs::create_dir(first.path().join("sub"))?;
    rustix::mount::mount_bind(first.path().join("sub"), part.path())?;
    mount(image.path(), &second, "rw")?;
    let whole = second.path().join("sub").is_dir();
    umount(second.path())?;
    // Something else is mounted over the only mount of the whole image.
    rustix::mount::mount("none", first.path(), "tmpfs", MountFlags::empty(), c"")?;
    let covered = mount(image.path(), &second, "rw").is_err();
    rustix::mount::unmount(first.path(), UnmountFlags::empty())?;
    // Only a part is mounted.
    umount(first.path())?;
    let only_part = mount(image.path(), &second, "rw").is_err();
    umount(part.path())?;
    if whole && covered && only_part {
        Ok(())
    } else {
        Err(format!("whole: {whole}, refused: {covered}, {only_part}").into())
    }
}
