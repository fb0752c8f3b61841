//! Attributes, extended attributes, ACLs and flags.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use libtest_mimic::Trial;
use rustix::fs::{
    CWD, IFlags, Timespec, Timestamps, XattrFlags, getxattr, ioctl_getflags, ioctl_setflags,
    listxattr, removexattr, setxattr, utimensat,
};

use crate::support::{
    Mounted, Need, Outcome, as_other, expect_errno, for_all, shell, trial, writes_back,
};
use crate::{holds, same};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("modes_and_owners", &[], modes),
        trial("umask_and_inherited_group", &[], umask),
        trial("times_before_and_after_1970", &[], times),
        trial("birth_time", &[], birth_time),
        trial("times_follow_changes", &[], times_follow),
        trial(
            "set_id_bits_are_cleared",
            &[Need::Program("setpriv")],
            set_id,
        ),
        trial("extended_attributes", &[], xattrs),
        trial("acls", &[Need::Program("setfacl")], acls),
        trial("inode_flags", &[], flags),
        trial("a_change_of_flags_shows_in_ctime", &[], flags_ctime),
        trial(
            "what_was_mapped_before_a_file_became_immutable_is_kept",
            &[],
            mapped_then_immutable,
        ),
        trial("statfs", &[], statfs),
    ]
}

fn modes() -> Outcome {
    let mounted = Mounted::new()?;
    let path = mounted.path("file");
    fs::write(&path, b"")?;
    for mode in [0o600, 0o4755, 0o2711, 0o1644, 0] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        same!(fs::metadata(&path)?.mode() & 0o7777, mode);
    }
    chown(&path, Some(70_000), Some(80_000))?;
    same!(fs::metadata(&path)?.uid(), 70_000);
    same!(fs::metadata(&path)?.gid(), 80_000);
    fs::File::options()
        .write(true)
        .open(&path)?
        .set_len(12_345)?;
    same!(fs::metadata(&path)?.len(), 12_345);
    Ok(())
}

fn umask() -> Outcome {
    let mounted = Mounted::new()?;
    fs::create_dir(mounted.path("d"))?;
    chown(mounted.path("d"), Some(0), Some(99))?;
    fs::set_permissions(mounted.path("d"), fs::Permissions::from_mode(0o2777))?;
    let output = Command::new("sh")
        .args(["-c", "umask 027; touch d/f; mkdir d/s"])
        .current_dir(mounted.dir())
        .output()?;
    holds!(output.status.success());
    let file = fs::metadata(mounted.path("d/f"))?;
    same!(file.mode() & 0o7777, 0o640);
    same!(file.gid(), 99);
    let dir = fs::metadata(mounted.path("d/s"))?;
    same!(dir.mode() & 0o7777, 0o2750);
    same!(dir.gid(), 99);
    Ok(())
}

fn times() -> Outcome {
    let mounted = Mounted::new()?;
    let path = mounted.path("file");
    fs::write(&path, b"")?;
    for (sec, nsec) in [
        (0, 1),
        (1_700_000_000, 123_456_789),
        (-2, 800_000_000),
        (-1, 0),
        (-100_000_000_000, 5),
        (1 << 34, 999_999_999),
    ] {
        let time = Timespec {
            tv_sec: sec,
            tv_nsec: nsec,
        };
        let both = Timestamps {
            last_access: time,
            last_modification: time,
        };
        utimensat(CWD, &path, &both, rustix::fs::AtFlags::empty())?;
        let meta = fs::metadata(&path)?;
        same!((meta.mtime(), meta.mtime_nsec()), (sec, nsec));
        same!((meta.atime(), meta.atime_nsec()), (sec, nsec));
    }
    // The engine stores the same.
    let old = UNIX_EPOCH - Duration::new(1, 200_000_000);
    let file = fs::File::options().write(true).open(&path)?;
    file.set_times(fs::FileTimes::new().set_modified(old))?;
    file.sync_all()?;
    let kept = sapwood_vfs::FileSystem::getattr(
        &*mounted.fs,
        sapwood_vfs::Ino(fs::metadata(&path)?.ino()),
    )?;
    same!((kept.mtime.sec, kept.mtime.nsec), (-2, 800_000_000));
    Ok(())
}

fn birth_time() -> Outcome {
    let mounted = Mounted::new()?;
    let path = mounted.path("file");
    fs::write(&path, b"")?;
    let ino = sapwood_vfs::Ino(fs::metadata(&path)?.ino());
    let engine: &dyn sapwood_vfs::FileSystem = &*mounted.fs;
    let btime = engine.getattr(ino)?.btime;
    let shown = fs::metadata(&path)?.created()?;
    same!(sapwood_vfs::Timestamp::from(shown), btime);
    // It stays when the other times change.
    fs::write(&path, b"changed")?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    let meta = fs::metadata(&path)?;
    same!(sapwood_vfs::Timestamp::from(meta.created()?), btime);
    same!(meta.len(), 7);
    same!(meta.mode() & 0o7777, 0o600);
    holds!(fs::metadata(mounted.dir())?.created().is_ok());
    Ok(())
}

fn times_follow() -> Outcome {
    let mounted = Mounted::new()?;
    let path = mounted.path("file");
    fs::write(&path, b"1")?;
    let past = UNIX_EPOCH + Duration::from_secs(1000);
    let file = fs::File::options().append(true).open(&path)?;
    file.set_times(fs::FileTimes::new().set_modified(past).set_accessed(past))?;
    same!(fs::metadata(&path)?.modified()?, past);
    std::io::Write::write_all(&mut &file, b"2")?;
    holds!(fs::metadata(&path)?.modified()? > past + Duration::from_secs(1000));
    // The times that the kernel maintains reach the engine with the next fsync.
    file.sync_all()?;
    let shown = fs::metadata(&path)?;
    let kept = sapwood_vfs::FileSystem::getattr(&*mounted.fs, sapwood_vfs::Ino(shown.ino()))?;
    same!(kept.mtime.sec, shown.mtime());
    same!(i64::from(kept.mtime.nsec), shown.mtime_nsec());
    Ok(())
}

fn set_id() -> Outcome {
    let mounted = for_all()?;
    let path = mounted.path("file");
    let reset = || -> std::io::Result<()> {
        fs::write(&path, b"content")?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777))
    };
    let mode = || fs::metadata(&path).map(|meta| meta.mode() & 0o7777);
    reset()?;
    same!(mode()?, 0o6777);
    for line in [
        "printf x >> file",
        "printf x > file",
        "truncate -s 3 file",
        "dd if=/dev/zero of=file bs=4096 count=1 oflag=direct conv=notrunc",
    ] {
        reset()?;
        let output = as_other(line, mounted.dir())?;
        if !output.status.success() {
            return Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        if mode()? != 0o777 {
            return Err(format!("after {line}: mode {:o}", mode()?).into());
        }
    }
    reset()?;
    chown(&path, Some(5), Some(6))?;
    same!(mode()?, 0o777);
    fs::create_dir(mounted.path("dir"))?;
    fs::set_permissions(mounted.path("dir"), fs::Permissions::from_mode(0o2755))?;
    chown(mounted.path("dir"), Some(5), Some(0))?;
    same!(fs::metadata(mounted.path("dir"))?.mode() & 0o7777, 0o2755);
    Ok(())
}

fn xattrs() -> Outcome {
    let mounted = Mounted::new()?;
    let path = mounted.path("file");
    fs::write(&path, b"")?;
    let io = std::io::Error::from;
    setxattr(&path, "user.one", b"first", XattrFlags::empty())?;
    setxattr(&path, "trusted.two", b"", XattrFlags::CREATE)?;
    let again = setxattr(&path, "user.one", b"x", XattrFlags::CREATE);
    expect_errno(again.map_err(io), libc::EEXIST)?;
    let absent = setxattr(&path, "user.none", b"x", XattrFlags::REPLACE);
    expect_errno(absent.map_err(io), libc::ENODATA)?;
    let mut small = [0_u8; 2];
    let short = getxattr(&path, "user.one", &mut small);
    expect_errno(short.map_err(io), libc::ERANGE)?;
    let mut buffer = [0_u8; 64];
    let len = getxattr(&path, "user.one", &mut buffer)?;
    same!(&buffer[..len], b"first");
    same!(rustix::fs::getxattr_query(&path, "user.one")?, 5);
    let len = listxattr(&path, &mut buffer)?;
    let mut names: Vec<&[u8]> = buffer[..len]
        .split(|&b| b == 0)
        .filter(|n| !n.is_empty())
        .collect();
    names.sort_unstable();
    same!(names, [&b"trusted.two"[..], b"user.one"]);
    removexattr(&path, "user.one")?;
    expect_errno(
        getxattr(&path, "user.one", &mut buffer).map_err(io),
        libc::ENODATA,
    )?;
    let big = vec![7_u8; 3000];
    setxattr(&path, "user.big", &big, XattrFlags::empty())?;
    let mut buffer = vec![0_u8; 4096];
    let len = getxattr(&path, "user.big", &mut buffer)?;
    holds!(buffer[..len] == big[..]);
    Ok(())
}

fn acls() -> Outcome {
    let mounted = for_all()?;
    fs::create_dir(mounted.path("d"))?;
    let dir = mounted.path("d");
    shell(
        "setfacl",
        &[
            "-m".as_ref(),
            "u:1234:rwx,d:u:1234:rw".as_ref(),
            dir.as_os_str(),
        ],
    )?;
    fs::write(mounted.path("d/f"), b"secret")?;
    fs::set_permissions(mounted.path("d/f"), fs::Permissions::from_mode(0o660))?;
    let file = mounted.path("d/f");
    let shown = shell("getfacl", &["-n".as_ref(), "-p".as_ref(), file.as_os_str()])?;
    holds!(shown.contains("user:1234:rw-"));
    let output = as_other("cat d/f", mounted.dir())?;
    same!(output.stdout, b"secret");
    // The mask narrows with the mode, and the kernel applies it at once.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    let output = as_other("cat d/f", mounted.dir())?;
    holds!(!output.status.success());
    Ok(())
}

fn flags() -> Outcome {
    let mounted = Mounted::new()?;
    let path = mounted.path("file");
    let file = fs::File::create(&path)?;
    same!(ioctl_getflags(&file)?, IFlags::empty());
    ioctl_setflags(&file, IFlags::NODUMP | IFlags::NOATIME)?;
    same!(ioctl_getflags(&file)?, IFlags::NODUMP | IFlags::NOATIME);
    ioctl_setflags(&file, IFlags::IMMUTABLE)?;
    expect_errno(
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)),
        libc::EPERM,
    )?;
    expect_errno(fs::remove_file(&path), libc::EPERM)?;
    ioctl_setflags(&file, IFlags::empty())?;
    fs::remove_file(&path)?;
    let dir = fs::File::open(mounted.dir())?;
    ioctl_setflags(&dir, IFlags::NODUMP)?;
    same!(ioctl_getflags(&dir)?, IFlags::NODUMP);
    Ok(())
}

/// With a write-back cache the kernel maintains file times, and `chattr` does not change its copy.
fn flags_ctime() -> Outcome {
    if writes_back() {
        return Ok(());
    }
    let mounted = Mounted::new()?;
    let path = mounted.path("file");
    fs::write(&path, b"x")?;
    let file = fs::File::open(&path)?;
    for (what, change) in [
        ("FS_IOC_SETFLAGS", IFlags::NODUMP),
        ("back", IFlags::empty()),
    ] {
        let before = fs::metadata(&path)?;
        // The engine's clock is finer than a round trip.
        ioctl_setflags(&file, change)?;
        let after = fs::metadata(&path)?;
        let time = |of: &fs::Metadata| (of.ctime(), of.ctime_nsec());
        if time(&after) <= time(&before) {
            return Err(format!("{what}: {:?}, before {:?}", time(&after), time(&before)).into());
        }
    }
    Ok(())
}

#[expect(unsafe_code, reason = "a mapping is raw memory")]
fn mapped_then_immutable() -> Outcome {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    const LEN: usize = 2 * 4096;
    let mounted = Mounted::new()?;
    for flag in [IFlags::IMMUTABLE, IFlags::APPEND] {
        let path = mounted.path(format!("{flag:?}"));
        fs::write(&path, [1; LEN])?;
        let file = fs::File::options().read(true).write(true).open(&path)?;
        // A store through the mapping changes the time, which a write-back cache sends later.
        file.set_modified(std::time::UNIX_EPOCH)?;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of a file of that length, unmapped below, and not used after.
        let synced = unsafe {
            let map = mmap(std::ptr::null_mut(), LEN, both, MapFlags::SHARED, &file, 0)?;
            std::slice::from_raw_parts_mut(map.cast::<u8>(), LEN).fill(7);
            ioctl_setflags(&file, flag)?;
            let synced = msync(map, LEN, MsyncFlags::SYNC);
            munmap(map, LEN)?;
            synced
        };
        let kept = fs::read(&path)?;
        // A write-back cache would accept a write that the engine refuses.
        if !writes_back() {
            let refused = std::os::unix::fs::FileExt::write_all_at(&file, b"x", 0);
            expect_errno(refused, libc::EPERM)?;
        }
        ioctl_setflags(&file, IFlags::empty())?;
        synced?;
        holds!(kept == [7; LEN]);
    }
    Ok(())
}

fn statfs() -> Outcome {
    let mounted = Mounted::new()?;
    let stat = rustix::fs::statvfs(mounted.dir())?;
    let engine = sapwood_vfs::FileSystem::statfs(&*mounted.fs)?;
    same!(stat.f_blocks, engine.blocks);
    same!(stat.f_namemax, u64::from(engine.name_max));
    same!(stat.f_bsize, u64::from(engine.block_size));
    Ok(())
}
