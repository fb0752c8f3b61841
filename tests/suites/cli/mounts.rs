//! Commands on mounts, and on images that are mounted.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::mount::{Driver, sapwood};
use sapwood_tests::{Need, Outcome, machine, process, scratch};

use super::{FAILED, IMAGE, MOUNT, USAGE, all_fail, fails, said};

/// The image lies on a read-only file system.
pub(super) fn read_only() -> Outcome {
    let image = TempImage::by_kernel(&Mkfs::default().sized(300 << 20))?;
    // Seen through a read-only bind mount.
    let dir = scratch::directory();
    let point = dir.path().join("seen");
    fs::create_dir(&point)?;
    let from = image.path().parent().unwrap();
    process::run(
        "mount",
        &["--bind".as_ref(), from.as_os_str(), point.as_os_str()],
    )?;
    let result = read_only_at(&point);
    process::run("umount", &[&point])?;
    Ok(result?)
}

fn read_only_at(point: &Path) -> Result<(), String> {
    process::run(
        "mount",
        &["-o".as_ref(), "remount,bind,ro".as_ref(), point.as_os_str()],
    )?;
    let image = point.join("image");
    let path = image.to_str().unwrap();
    fails(&["mkdir", &format!("{path}:dir")], IMAGE, "read-only")?;
    let listed = said(&["ls", path])?;
    if !listed.status.success() {
        return Err(format!("ls: {}", listed.all()));
    }
    let dir = scratch::directory();
    fails(
        &["mount", path, dir.path().to_str().unwrap()],
        MOUNT,
        "read-only",
    )
}

/// Commands that only read work on an image that is mounted read-only.
pub(super) fn mounted_by_us() -> Outcome {
    let image = TempImage::by_kernel(&Mkfs::default().sized(300 << 20))?;
    let mount = Driver::Sapwood.mount(image.path(), "rw")?;
    all_fail(image.path(), "in use").or_else(|_| all_fail(image.path(), "busy"))?;
    let path = image.path().to_str().unwrap();
    let again = said(&["mkfs", "--force", path])?;
    if again.status.success() {
        return Err("mkfs overwrote a mounted image".into());
    }
    mount.unmount()?;
    image.check_by_kernel()?;
    Ok(())
}

pub(super) fn mounted_by_kernel() -> Outcome {
    let image = TempImage::by_kernel(&Mkfs::default().sized(300 << 20))?;
    let mount = Driver::Kernel.mount(image.path(), "rw")?;
    let path = image.path().to_str().unwrap();
    let dir = scratch::directory();
    let refused = |hint| {
        fails(&["mount", path, dir.path().to_str().unwrap()], MOUNT, hint)?;
        fails(&["mkdir", &format!("{path}:dir")], IMAGE, hint)
    };
    refused("in use").or_else(|_| refused("busy"))?;
    if said(&["mkfs", "--force", path])?.status.success() {
        return Err("mkfs overwrote a mounted image".into());
    }
    mount.unmount()?;
    Ok(())
}

pub(super) fn bad_mount_points() -> Outcome {
    let image = TempImage::by_kernel(&Mkfs::default().sized(300 << 20))?;
    let path = image.path().to_str().unwrap();
    let gone = image.beside("gone");
    fails(
        &["mount", path, gone.to_str().unwrap()],
        MOUNT,
        "no such file",
    )?;
    let plain = image.beside("plain");
    fs::write(&plain, b"")?;
    fails(
        &["mount", path, plain.to_str().unwrap()],
        MOUNT,
        "not a directory",
    )?;
    Ok(())
}

pub(super) fn umounts() -> Outcome {
    let dir = scratch::directory();
    fails(&["umount", dir.path().to_str().unwrap()], FAILED, "mounted")?;
    let image = TempImage::by_kernel(&Mkfs::default().sized(300 << 20))?;
    let mount = Driver::Sapwood.mount(image.path(), "rw")?;
    let open = File::create(mount.path().join("open"))?;
    fails(
        &["umount", mount.path().to_str().unwrap()],
        FAILED,
        "in use",
    )?;
    drop(open);
    mount.unmount()?;
    image.check_by_kernel()?;
    Ok(())
}

pub(super) fn stats() -> Outcome {
    let image = TempImage::by_kernel(&Mkfs::default().sized(300 << 20))?;
    let mount = Driver::Sapwood.mount(image.path(), "rw")?;
    let dir = mount.path().to_str().unwrap();
    for name in ["one", "two"] {
        let file = File::create(mount.path().join(name))?;
        file.sync_all()?;
    }
    let table = said(&["stats", dir])?.stdout;
    let fsyncs = |line: &str| line.split_whitespace().eq(["fsyncs", "2"]);
    if !table.lines().any(fsyncs) || !table.contains("fsync latency, p99") {
        return Err(table.into());
    }
    let json = said(&["stats", "--json", dir])?.stdout;
    if !json.contains("\"fsyncs\": 2") || !json.contains("\"fsync_latency\": {") {
        return Err(json.into());
    }
    let page = said(&["stats", "--prometheus", dir])?.stdout;
    let sample = format!("sapwood_fsyncs_total{{mount=\"{dir}\",engine=\"btrfs\"}} 2");
    let kind = "# TYPE sapwood_fsync_latency_seconds histogram";
    if ![&*sample, kind]
        .iter()
        .all(|wanted| page.lines().any(|line| line == *wanted))
    {
        return Err(page.into());
    }
    let watched = said(&["stats", "--watch", "--seconds", "1", "--json", dir])?.stdout;
    let unchanged = "\"change\":{\"fsyncs\":0,";
    let lines: Vec<&str> = watched.lines().collect();
    if lines.len() != 2 || !lines[1].contains(unchanged) {
        return Err(watched.into());
    }
    fails(&["stats", "/proc"], FAILED, "not in a Sapwood mount")?;
    mount.unmount()?;
    Ok(())
}

/// A mount by the user `uid`, and every command on subvolumes in it.
pub(super) fn subvolumes_of_a_mount(uid: u32) -> Outcome {
    let image = TempImage::new(&Mkfs {
        size: 128 << 20,
        ..Mkfs::default()
    })?;
    let path = image.path();
    let owned = [path, path.parent().ok_or("no directory")?];
    for path in owned {
        std::os::unix::fs::chown(path, Some(uid), Some(uid))?;
    }
    let as_user = |program: &Path| {
        let mut command = Command::new("setpriv");
        let ids = [format!("--reuid={uid}"), format!("--regid={uid}")];
        command.args(ids).arg("--clear-groups").arg(program);
        command
    };
    let point = scratch::directory();
    std::os::unix::fs::chown(point.path(), Some(uid), Some(uid))?;
    let run = |args: &[&OsStr], code: i32| -> Result<String, String> {
        let mut command = as_user(sapwood());
        let said = process::finish(command.args(args), Duration::from_secs(60))?;
        if said.status.code() == Some(code) {
            Ok(said.stdout)
        } else {
            Err(format!("{args:?}: {}\n{}", said.status, said.stderr))
        }
    };
    let dir = point.path().as_os_str();
    run(&["mount".as_ref(), path.as_os_str(), dir], 0)?;
    let in_mount = |name: &str| point.path().join(name).into_os_string();
    let all = || {
        let command = |args: &[&str], places: &[&OsString], code: i32| {
            let mut all: Vec<&OsStr> = vec!["subvolume".as_ref()];
            all.extend(args.iter().map(AsRef::<OsStr>::as_ref));
            all.extend(places.iter().map(|place| place.as_os_str()));
            run(&all, code)
        };
        let (sub, snap, top) = (in_mount("sub"), in_mount("snap"), dir.to_owned());
        command(&["create"], &[&sub], 0)?;
        // Others, root too, are refused in a user's mount.
        let mut stat = as_user(Path::new("stat"));
        let stat = process::finish(stat.args(["-c", "%u"]).arg(&sub), Duration::from_secs(60))?;
        if stat.stdout.trim_end() != uid.to_string() {
            return Err(format!("the owner of the new subvolume: {stat:?}"));
        }
        command(&["create"], &[&sub], FAILED)?;
        command(&["snapshot", "-r"], &[&sub, &snap], 0)?;
        let list = command(&["list"], &[&top], 0)?;
        if !list.contains("snap (read-only)") {
            return Err(list);
        }
        command(&["set-read-only", "--off"], &[&snap], 0)?;
        command(&["set-default"], &[&top, &"257".into()], 0)?;
        let default = command(&["get-default"], &[&top], 0)?;
        if !default.trim_end().ends_with("257  snap") {
            return Err(default);
        }
        let default_is = |end: &str| -> Result<(), String> {
            let default = command(&["get-default"], &[&top], 0)?;
            if default.trim_end().ends_with(end) {
                Ok(())
            } else {
                Err(default)
            }
        };
        command(&["set-default"], &[&sub], 0)?;
        default_is("  sub")?;
        command(&["set-default"], &[&top, &"/snap".into()], 0)?;
        default_is("257  snap")?;
        command(&["set-default"], &[&top, &"none".into()], FAILED)?;
        command(&["set-default", "--top-level"], &[&sub], USAGE)?;
        command(&["set-default"], &[&top], 0)?;
        default_is("5  /")?;
        command(&["set-default"], &[&top, &"5".into()], 0)?;
        command(&["delete"], &[&sub, &snap], 0)?;
        let list = command(&["list"], &[&top], 0)?;
        if list.is_empty() { Ok(()) } else { Err(list) }
    };
    let done = all();
    let end: &[&str] = if uid == 0 {
        &["umount"]
    } else {
        &["fusermount3", "-u"]
    };
    let (program, rest) = end.split_first().ok_or("no program")?;
    let mut end = as_user(Path::new(program));
    process::succeed(end.args(rest).arg(dir), Duration::from_secs(60))?;
    Ok(done?)
}

/// Whether this machine lets users open `/dev/fuse`.
pub(super) fn users_may_mount() -> bool {
    let mode = fs::metadata("/dev/fuse").map_or(0, |device| device.mode());
    machine::missing(&[machine::KERNEL, Need::Fuse]).is_none() && mode & 0o006 == 0o006
}
