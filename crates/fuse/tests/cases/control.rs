//! Sapwood's own commands to a mounted file system.

use std::fs;
use std::io::Write;

use libtest_mimic::Trial;
use sapwood_fuse::{Access, MountOptions, UnmountError, control, unmount};

use crate::support::{Mounted, Need, Outcome, expect_errno, trial};
use crate::{holds, same};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("statistics_and_sync", &[], statistics),
        trial("subvolumes_through_the_mount", &[], subvolumes),
        trial("subvolumes_are_listed_and_one_is_the_default", &[], listed),
        trial(
            "subvolumes_are_the_owners",
            &[Need::Program("setpriv")],
            rights,
        ),
        trial("unmount_by_path", &[], unmount_by_path),
        trial("commands_elsewhere_are_refused", &[], elsewhere),
    ]
}

fn statistics() -> Outcome {
    let mounted = Mounted::new()?;
    let json = control::stats(mounted.dir())?;
    holds!(json.starts_with('{') && json.ends_with('}'));
    control::sync(mounted.dir())?;
    Ok(())
}

fn subvolumes() -> Outcome {
    let mounted = Mounted::new()?;
    let root = mounted.dir();
    // The kernel must learn that a name exists after it cached its absence, and vice versa.
    expect_errno(fs::metadata(mounted.path("sub")), libc::ENOENT)?;
    control::create_subvolume(root, b"sub")?;
    holds!(fs::metadata(mounted.path("sub"))?.is_dir());
    let mut file = fs::File::create(mounted.path("sub/file"))?;
    file.write_all(b"before")?;
    control::snapshot(&mounted.path("sub"), root, b"snap", true)?;
    file.write_all(b" and after")?;
    drop(file);
    same!(fs::read(mounted.path("snap/file"))?, b"before");
    same!(fs::read(mounted.path("sub/file"))?, b"before and after");
    expect_errno(fs::write(mounted.path("snap/new"), b""), libc::EROFS)?;
    control::set_read_only(&mounted.path("snap"), false)?;
    fs::write(mounted.path("snap/new"), b"")?;
    control::delete_subvolume(root, b"snap")?;
    expect_errno(fs::metadata(mounted.path("snap")), libc::ENOENT)?;
    expect_errno(control::create_subvolume(root, b"sub"), libc::EEXIST)?;
    expect_errno(control::create_subvolume(root, b"a/b"), libc::EINVAL)?;
    let long = [b'x'; 256];
    expect_errno(control::create_subvolume(root, &long), libc::ENAMETOOLONG)?;
    control::create_subvolume(root, &long[..255])?;
    same!(fs::read_dir(root)?.count(), 2);
    Ok(())
}

fn listed() -> Outcome {
    let mounted = Mounted::new()?;
    let root = mounted.dir();
    let before = control::list_subvolumes(root)?;
    same!(before.subvolumes.len(), 0);
    // More than one page.
    let name = |number: u32| format!("{number:03}-{}", "x".repeat(200));
    for number in 0..100 {
        control::create_subvolume(root, name(number).as_bytes())?;
    }
    control::snapshot(&mounted.path(name(7)), root, b"snap", true)?;
    let found = control::list_subvolumes(root)?;
    same!(found.subvolumes.len(), 101);
    let (snap, others) = found.subvolumes.split_last().ok_or("none")?;
    same!((&snap.path[..], snap.read_only), (&b"snap"[..], true));
    for (number, one) in others.iter().enumerate() {
        same!(one.path, name(u32::try_from(number)?).into_bytes());
    }
    control::set_default_subvolume(&mounted.path("snap"), snap.id)?;
    same!(control::list_subvolumes(root)?.default, snap.id);
    let none = sapwood_vfs::SubvolumeId(1 << 40);
    expect_errno(control::set_default_subvolume(root, none), libc::ENOENT)?;
    Ok(())
}

fn rights() -> Outcome {
    let mounted = Mounted::with(&MountOptions {
        access: Access::All,
        ..MountOptions::default()
    })?;
    let dir = mounted.dir().to_path_buf();
    // Credentials are the thread's own.
    let stranger = std::thread::spawn(move || -> std::io::Result<()> {
        rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(1234))?;
        control::stats(&dir)?;
        control::create_subvolume(&dir, b"x")
    });
    let refused = stranger.join().map_err(|_| "the stranger panicked")?;
    expect_errno(refused, libc::EPERM)?;
    control::create_subvolume(mounted.dir(), b"x")?;
    holds!(mounted.path("x").is_dir());
    Ok(())
}

fn unmount_by_path() -> Outcome {
    let mounted = Mounted::new()?;
    let held = fs::File::create(mounted.path("held"))?;
    holds!(matches!(
        unmount(mounted.dir(), false),
        Err(UnmountError::Busy(_))
    ));
    drop(held);
    unmount(mounted.dir(), false)?;
    mounted.session.wait()?;
    holds!(matches!(
        unmount(mounted.dir(), false),
        Err(UnmountError::NotMounted(_))
    ));
    Ok(())
}

fn elsewhere() -> Outcome {
    let dir = tempfile::tempdir()?;
    holds!(control::stats(dir.path()).is_err());
    holds!(control::create_subvolume(dir.path(), b"x").is_err());
    Ok(())
}
