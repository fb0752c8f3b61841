//! Remounts of a mount that was made read-only.

use std::fs;
use std::path::Path;

use libtest_mimic::Trial;
use sapwood_tests::Outcome;
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::machine::{self, Need};
use sapwood_tests::mount::{Mounted, SapwoodMount};

use super::{image, remount};

pub(super) fn trials() -> Vec<Trial> {
    let btrfs = [machine::KERNEL, Need::Fuse];
    let ext4 = [machine::KERNEL_EXT4, Need::Fuse];
    let loops = [machine::KERNEL, Need::Fuse, Need::Loop];
    vec![
        machine::trial("remount_rw_of_a_read_only_mount_writes", &btrfs, writes),
        machine::trial("remount_rw_keeps_open_files", &btrfs, open_files),
        machine::trial("remount_rw_replays_a_journal", &ext4, journal),
        machine::trial("remount_rw_replays_a_log_that_was_left_alone", &btrfs, log),
        machine::trial("remount_rw_by_image_and_of_a_device", &loops, by_image),
        machine::trial(
            "remount_rw_is_refused_while_another_reads",
            &btrfs,
            another_reader,
        ),
    ]
}

fn rw(place: &Path) -> Result<(), String> {
    let said = remount(place, "rw")?;
    if said.status.success() {
        Ok(())
    } else {
        Err(format!("{}: {}", said.status, said.stderr))
    }
}

fn ext4() -> Result<TempImage, String> {
    TempImage::new(&Mkfs::ext4("").sized(64 << 20))
}

fn kept(image: &TempImage, name: &str) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let again = SapwoodMount::new(image.path(), "ro")?;
    let content = fs::read(again.path().join(name));
    Box::new(again).unmount()?;
    Ok(content?)
}

fn writes() -> Outcome {
    for (image, options) in [
        (image()?, "ro"),
        (image()?, "ro,fuseblk=off"),
        (image()?, "ro,sandbox=on"),
        (image()?, "ro,sandbox=off"),
        (ext4()?, "ro"),
    ] {
        let running = SapwoodMount::new(image.path(), options)?;
        let file = running.path().join("file");
        if fs::write(&file, b"early").is_ok() {
            return Err("a read-only mount was written to".into());
        }
        rw(running.path()).map_err(|why| format!("{options}: {why}"))?;
        fs::write(&file, b"content")?;
        fs::File::open(&file)?.sync_all()?;
        // And back.
        let back = remount(running.path(), "ro")?;
        if !back.status.success() || fs::write(&file, b"late").is_ok() {
            return Err(format!("{options}: still writable: {}", back.stderr).into());
        }
        running.kill();
        if kept(&image, "file")? != b"content" {
            return Err(format!("{options}: other content").into());
        }
        image.check()?;
    }
    Ok(())
}

/// What is open stays open, and is deleted only when it is closed.
fn open_files() -> Outcome {
    use std::io::Read;

    for image in [image()?, ext4()?] {
        let first = SapwoodMount::new(image.path(), "rw")?;
        fs::create_dir(first.path().join("dir"))?;
        fs::write(first.path().join("dir/file"), b"content")?;
        Box::new(first).unmount()?;
        let running = SapwoodMount::new(image.path(), "ro")?;
        let dir = running.path().join("dir");
        for _ in 0..3 {
            fs::metadata(dir.join("file"))?;
        }
        let (mut open, listed) = (fs::File::open(dir.join("file"))?, fs::File::open(&dir)?);
        rw(running.path())?;
        fs::remove_file(dir.join("file"))?;
        fs::write(dir.join("other"), vec![1; 100_000])?;
        listed.sync_all()?;
        let mut content = Vec::new();
        open.read_to_end(&mut content)?;
        let links = rustix::fs::fstat(&open)?.st_nlink;
        drop((open, listed));
        Box::new(running).unmount()?;
        image.check()?;
        if content != b"content" || links != 0 {
            return Err(format!("{content:?}, {links} links").into());
        }
    }
    Ok(())
}

/// Leaves an image with a log or journal that has `file`.
fn crashed(image: &TempImage) -> Result<(), Box<dyn std::error::Error>> {
    let running = SapwoodMount::new(image.path(), "commit=300")?;
    let file = running.path().join("file");
    fs::write(&file, b"content")?;
    fs::File::open(&file)?.sync_all()?;
    running.kill();
    Ok(())
}

fn journal() -> Outcome {
    for options in ["ro", "ro,norecovery"] {
        let image = ext4()?;
        crashed(&image)?;
        let running = SapwoodMount::new(image.path(), options)?;
        let before = fs::read(running.path().join("file")).ok();
        rw(running.path())?;
        let after = fs::read(running.path().join("file"))?;
        fs::write(running.path().join("more"), b"more")?;
        Box::new(running).unmount()?;
        image.check()?;
        if before.is_some() != (options == "ro") || after != b"content" {
            return Err(format!("{options}: {before:?}, {after:?}").into());
        }
        if kept(&image, "more")? != b"more" {
            return Err("other content".into());
        }
    }
    Ok(())
}

fn log() -> Outcome {
    let image = image()?;
    crashed(&image)?;
    let running = SapwoodMount::new(image.path(), "ro,norecovery")?;
    let before = fs::read(running.path().join("file")).is_ok();
    let listed = fs::read_dir(running.path())?.count();
    rw(running.path())?;
    let after = fs::read(running.path().join("file"))?;
    let found = fs::read_dir(running.path())?.count();
    Box::new(running).unmount()?;
    image.check()?;
    if !before && after == b"content" && (listed, found) == (0, 1) {
        Ok(())
    } else {
        Err(format!("{before}, {after:?}, {listed}, {found}").into())
    }
}

fn by_image() -> Outcome {
    let image = image()?;
    let device = sapwood_testing::oracle::Loop::new(image.path(), &[])?;
    for place in [image.path(), device.path()] {
        let running = SapwoodMount::new(place, "ro")?;
        rw(place)?;
        fs::write(running.path().join("file"), b"content")?;
        Box::new(running).unmount()?;
    }
    drop(device);
    image.check()?;
    Ok(())
}

fn another_reader() -> Outcome {
    let image = image()?;
    let running = SapwoodMount::new(image.path(), "ro")?;
    let reader = fs::File::open(image.path())?;
    rustix::fs::flock(&reader, rustix::fs::FlockOperation::LockShared)?;
    let refused = remount(running.path(), "rw")?;
    let readable = fs::read_dir(running.path())?.count();
    // A process that another test starts may have a copy of the descriptor.
    rustix::fs::flock(&reader, rustix::fs::FlockOperation::Unlock)?;
    // The mount still has its lock, and can become writable later.
    let writer = fs::File::options().write(true).open(image.path())?;
    let locked = rustix::fs::flock(
        &writer,
        rustix::fs::FlockOperation::NonBlockingLockExclusive,
    );
    drop(writer);
    rw(running.path())?;
    fs::write(running.path().join("file"), b"content")?;
    Box::new(running).unmount()?;
    image.check()?;
    if refused.status.code() == Some(32)
        && refused.stderr.contains("in use")
        && locked.is_err()
        && readable == 0
    {
        Ok(())
    } else {
        Err(format!("{locked:?}, {}", refused.stderr).into())
    }
}
