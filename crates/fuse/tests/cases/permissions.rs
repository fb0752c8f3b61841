//! Permission checks by the kernel and by the server.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use rustix::fs::Access as Wanted;

use crate::support::{Mounted, Need, Outcome, as_other, expect_errno, for_all, shell, trial};
use crate::{holds, same};
use sapwood_fuse::MountOptions;
use sapwood_testing::credentials::with_fsuid;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial(
            "others_are_checked_by_the_kernel",
            &[Need::Program("setpriv")],
            others,
        ),
        trial("root_without_checks_is_asked_nothing", &[], root_alone),
        trial("root_alone_may_all_but_execute", &[], root_may),
        trial(
            "another_file_system_user_is_refused_in_a_mount_of_root",
            &[],
            other_fsuid,
        ),
        trial(
            "another_file_system_user_is_not_served_without_checks",
            &[],
            unchecked_fsuid,
        ),
        trial(
            "root_alone_has_acls",
            &[Need::Program("setfacl")],
            acls_of_root,
        ),
    ]
}

fn others() -> Outcome {
    let mounted = for_all()?;
    holds!(table(&mounted)?.contains("default_permissions"));
    fs::write(mounted.path("mine"), b"x")?;
    fs::set_permissions(mounted.path("mine"), fs::Permissions::from_mode(0o600))?;
    holds!(!as_other("cat mine", mounted.dir())?.status.success());
    holds!(as_other("echo y > theirs", mounted.dir())?.status.success());
    same!(fs::metadata(mounted.path("theirs"))?.uid(), 1234);
    holds!(!as_other("chown 0 theirs", mounted.dir())?.status.success());
    // Without `allow_other` no other user is admitted, not even root.
    let own = Mounted::new()?;
    fs::set_permissions(own.dir(), fs::Permissions::from_mode(0o777))?;
    let output = Command::new("ls")
        .arg(own.dir())
        .uid(1234)
        .gid(1234)
        .output()?;
    holds!(!output.status.success());
    Ok(())
}

/// Options of the mount in the kernel's table.
fn table(mounted: &Mounted) -> Result<String, Failed> {
    let dir = mounted.dir().as_os_str();
    let options = "OPTIONS".as_ref();
    shell("findmnt", &["-n".as_ref(), "-o".as_ref(), options, dir])
}

/// Number of attribute requests while ten files are created, renamed and removed.
fn asked_by_ten(mounted: &Mounted) -> Result<u64, Failed> {
    fs::create_dir(mounted.path("d"))?;
    fs::write(mounted.path("d/first"), b"")?;
    let before = mounted.fs.attributes_read();
    for number in 0..10 {
        let (old, new) = (format!("d/{number}"), format!("d/{number}-new"));
        drop(fs::File::create(mounted.path(&old))?);
        fs::rename(mounted.path(&old), mounted.path(&new))?;
        fs::remove_file(mounted.path(&new))?;
    }
    Ok(mounted.fs.attributes_read() - before)
}

fn root_alone() -> Outcome {
    let mounted = Mounted::with(&MountOptions {
        default_permissions: false,
        ..MountOptions::default()
    })?;
    holds!(!table(&mounted)?.contains("default_permissions"));
    same!(asked_by_ten(&mounted)?, 0);
    let checked = Mounted::new()?;
    holds!(table(&checked)?.contains("default_permissions"));
    holds!(asked_by_ten(&checked)? >= 20);
    Ok(())
}

fn root_may() -> Outcome {
    for checks in [false, true] {
        let mounted = Mounted::with(&MountOptions {
            default_permissions: checks,
            ..MountOptions::default()
        })?;
        let (dir, file) = (mounted.path("d"), mounted.path("d/f"));
        fs::create_dir(&dir)?;
        fs::write(&file, b"#!/bin/sh\nexit 7\n")?;
        for path in [&file, &dir] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o000))?;
        }
        rustix::fs::access(&dir, Wanted::READ_OK | Wanted::WRITE_OK | Wanted::EXEC_OK)?;
        rustix::fs::access(&file, Wanted::READ_OK | Wanted::WRITE_OK)?;
        rustix::fs::access(&file, Wanted::EXISTS)?;
        let refused = rustix::fs::access(&file, Wanted::EXEC_OK);
        expect_errno(refused.map_err(Into::into), libc::EACCES)?;
        expect_errno(Command::new(&file).status(), libc::EACCES)?;
        same!(
            Command::new("true").current_dir(&dir).status()?.code(),
            Some(0)
        );
        // The kernel applies the new mode at once.
        fs::set_permissions(&file, fs::Permissions::from_mode(0o001))?;
        rustix::fs::access(&file, Wanted::EXEC_OK)?;
        same!(Command::new(&file).status()?.code(), Some(7));
    }
    Ok(())
}

fn acls_of_root() -> Outcome {
    for checks in [false, true] {
        let mounted = Mounted::with(&MountOptions {
            default_permissions: checks,
            ..MountOptions::default()
        })?;
        let (dir, file) = (mounted.path("d"), mounted.path("d/f"));
        fs::create_dir(&dir)?;
        let entries = "u:1234:rwx,d:u:1234:rw,d:g::r,d:o::-";
        shell(
            "setfacl",
            &["-m".as_ref(), entries.as_ref(), dir.as_os_str()],
        )?;
        // The default ACL replaces the umask.
        let made = Command::new("sh")
            .args(["-c", "umask 077; touch d/f"])
            .current_dir(mounted.dir())
            .status()?;
        holds!(made.success());
        same!(fs::metadata(&file)?.mode() & 0o7777, 0o660);
        let shown = shell("getfacl", &["-cnp".as_ref(), file.as_os_str()])?;
        let lines = [
            "user::rw-",
            "user:1234:rw-",
            "group::r--",
            "mask::rw-",
            "other::---",
        ];
        same!(shown.split_ascii_whitespace().collect::<Vec<_>>(), lines);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640))?;
        let shown = shell("getfacl", &["-cenp".as_ref(), file.as_os_str()])?;
        holds!(shown.contains("mask::r--"));
        holds!(shown.contains("user:1234:rw-\t#effective:r--"));
        shell("setfacl", &["-b".as_ref(), file.as_os_str()])?;
        let shown = shell("getfacl", &["-cnp".as_ref(), file.as_os_str()])?;
        holds!(!shown.contains("1234"));
    }
    Ok(())
}

/// The kernel answers from its caches, without a request, after root's read.
fn other_fsuid() -> Outcome {
    let mounted = Mounted::new()?;
    let (dir, file) = (mounted.path("d"), mounted.path("d/f"));
    fs::create_dir(&dir)?;
    fs::write(&file, b"secret")?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))?;
    same!(fs::read(&file)?, b"secret");
    same!(fs::read_dir(&dir)?.count(), 1);
    let refused = |what: &str, result: std::io::Result<()>| match result {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => Ok(()),
        other => Err(Failed::from(format!("{what}: {other:?}"))),
    };
    with_fsuid(1234, || -> Outcome {
        refused("read", fs::read(&file).map(drop))?;
        refused(
            "list",
            fs::read_dir(&dir).map(|entries| entries.for_each(drop)),
        )?;
        refused("stat", fs::metadata(&file).map(drop))?;
        refused("create", fs::write(dir.join("g"), b""))?;
        refused("mkdir", fs::create_dir(dir.join("e")))?;
        refused("rename", fs::rename(&file, dir.join("g")))?;
        refused("unlink", fs::remove_file(&file))?;
        refused("create in the root", fs::write(mounted.path("h"), b""))
    })??;
    same!(fs::read(&file)?, b"secret");
    Ok(())
}

/// Without the kernel's checks the server refuses such requests.
fn unchecked_fsuid() -> Outcome {
    let mounted = Mounted::with(&MountOptions {
        default_permissions: false,
        ..MountOptions::default()
    })?;
    let dir = mounted.path("d");
    fs::create_dir(&dir)?;
    fs::write(dir.join("f"), b"secret")?;
    with_fsuid(1234, || -> Outcome {
        expect_errno(
            fs::read_dir(&dir).and_then(|mut all| all.next().transpose()),
            libc::EACCES,
        )?;
        expect_errno(fs::metadata(dir.join("absent")), libc::EACCES)?;
        expect_errno(fs::create_dir(dir.join("e")), libc::EACCES)?;
        expect_errno(fs::remove_file(dir.join("f")), libc::EACCES)?;
        let file = fs::File::options().write(true).open(dir.join("f"))?;
        expect_errno(file.set_len(3), libc::EACCES)
    })??;
    same!(fs::read(dir.join("f"))?, b"secret");
    Ok(())
}
