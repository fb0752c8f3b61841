//! Mounting and unmounting.

use std::fs;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use sapwood_fuse::{MountError, MountOptions, mount};
use sapwood_testing::MemoryFs;
use sapwood_vfs::FileSystem;

use crate::support::{Mounted, Need, Outcome, expect_errno, shell, trial};
use crate::{holds, same};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("unmount_gives_all_references_back", &[], references),
        trial(
            "umount_by_somebody_else_ends_the_session",
            &[],
            foreign_umount,
        ),
        trial("unmount_while_busy", &[], busy),
        trial("mount_points_that_will_not_do", &[], bad_mount_points),
        trial("read_only", &[], read_only),
        trial("mount_table_shows_name_and_type", &[], mount_table),
        trial(
            "auto_unmount",
            &[Need::Program("fusermount3")],
            auto_unmount,
        ),
        trial("one_thread", &[], one_thread),
    ]
}

fn references() -> Outcome {
    let mounted = Mounted::new()?;
    for number in 0..200 {
        fs::create_dir(mounted.path(format!("d{number}")))?;
        fs::write(mounted.path(format!("d{number}/f")), b"x")?;
    }
    shell("find", &[mounted.dir().as_os_str(), "-ls".as_ref()])?;
    mounted.session.unmount()?;
    holds!(mounted.session.has_ended());
    mounted.session.wait()?;
    mounted.session.unmount()?;
    holds!(!mounted.path("d0").exists());
    // The kernel need not forget nodes that it still holds at the end.
    holds!(mounted.fs.inode_count() == 401);
    Ok(())
}

fn foreign_umount() -> Outcome {
    let mounted = Mounted::new()?;
    fs::write(mounted.path("f"), b"kept")?;
    let waiter = {
        let session = mounted.session.clone();
        std::thread::spawn(move || session.wait())
    };
    shell("umount", &[mounted.dir().as_os_str()])?;
    waiter.join().map_err(|_| "waiter panicked")??;
    // The dirty pages have reached the engine.
    let engine: &dyn FileSystem = &*mounted.fs;
    let file = engine.lookup(engine.root(), b"f")?;
    same!(file.attr.size, 4);
    Ok(())
}

fn busy() -> Outcome {
    let mounted = Mounted::with(&MountOptions {
        busy_grace: Duration::from_millis(200),
        ..MountOptions::default()
    })?;
    let mut file = fs::File::create(mounted.path("held"))?;
    file.write_all(b"written before")?;
    let begun = Instant::now();
    mounted.session.unmount()?;
    holds!(begun.elapsed() < Duration::from_secs(20));
    mounted.session.wait()?;
    holds!(!mounted.path("held").exists());
    let engine: &dyn FileSystem = &*mounted.fs;
    let kept = engine.lookup(engine.root(), b"held")?;
    same!(kept.attr.size, 14);
    expect_errno(file.sync_all().and_then(|()| file.set_len(1)), libc::EIO)?;
    // If the user closes its file within the grace period, the unmount ends at once.
    let mounted = Mounted::with(&MountOptions {
        busy_grace: Duration::from_secs(60),
        ..MountOptions::default()
    })?;
    let file = fs::File::create(mounted.path("held"))?;
    let session = mounted.session.clone();
    let unmounter = std::thread::spawn(move || session.unmount());
    while mounted.path("held").exists() {
        std::thread::yield_now();
    }
    drop(file);
    unmounter.join().map_err(|_| "unmount panicked")??;
    Ok(())
}

fn bad_mount_points() -> Outcome {
    let memory = || Arc::new(MemoryFs::new()) as Arc<dyn FileSystem>;
    let options = MountOptions::default();
    let dir = tempfile::tempdir()?;
    let missing = dir.path().join("missing");
    let result = mount(memory(), &missing, &options);
    holds!(matches!(result, Err(MountError::MissingMountPoint(_))));
    let file = dir.path().join("file");
    fs::write(&file, b"")?;
    let result = mount(memory(), &file, &options);
    holds!(matches!(result, Err(MountError::NotDirectory(_))));
    let mounted = Mounted::new()?;
    let result = mount(memory(), mounted.dir(), &options);
    let text = result.as_ref().map_err(ToString::to_string).err();
    holds!(matches!(result, Err(MountError::Busy(_))));
    same!(text.map(|text| text.lines().count()), Some(1));
    Ok(())
}

fn read_only() -> Outcome {
    let mounted = Mounted::with(&MountOptions {
        read_only: true,
        ..MountOptions::default()
    })?;
    expect_errno(fs::write(mounted.path("f"), b""), libc::EROFS)?;
    // The engine itself refuses a change in a mount that may write.
    let mounted = Mounted::new()?;
    fs::write(mounted.path("f"), b"old")?;
    mounted.fs.set_read_only(true);
    expect_errno(fs::create_dir(mounted.path("d")), libc::EROFS)?;
    expect_errno(fs::remove_file(mounted.path("f")), libc::EROFS)?;
    same!(fs::read(mounted.path("f"))?, b"old");
    Ok(())
}

fn mount_table() -> Outcome {
    let mounted = Mounted::with(&MountOptions {
        fsname: "/images/some image.img".to_owned(),
        noexec: true,
        ..MountOptions::default()
    })?;
    let dir = mounted.dir().as_os_str();
    let shown = shell(
        "findmnt",
        &[
            "-n".as_ref(),
            "-o".as_ref(),
            "SOURCE,FSTYPE,OPTIONS".as_ref(),
            dir,
        ],
    )?;
    holds!(shown.starts_with("/images/some image.img fuse.sapwood "));
    holds!(shown.contains("noexec"));
    Ok(())
}

fn auto_unmount() -> Outcome {
    let mounted = Mounted::with(&MountOptions {
        auto_unmount: true,
        ..MountOptions::default()
    })?;
    fs::write(mounted.path("f"), b"1")?;
    same!(fs::read(mounted.path("f"))?, b"1");
    mounted.session.unmount()?;
    mounted.session.wait()?;
    Ok(())
}

fn one_thread() -> Outcome {
    let mounted = Mounted::with(&MountOptions {
        threads: Some(1),
        ..MountOptions::default()
    })?;
    fs::write(mounted.path("f"), vec![1; 3 << 20])?;
    fs::copy(mounted.path("f"), mounted.path("g"))?;
    same!(fs::read_dir(mounted.dir())?.count(), 2);
    Ok(())
}
