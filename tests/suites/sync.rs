//! The promises of `sync` and `umount` on both engines: everything that was written before is
//! durable when they return.
//!
//! All mounts have `commit=300`, so that nothing becomes durable by itself meanwhile.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::mount::UnmountFlags;
use sapwood::Kind;
use sapwood_testing::tree::{Detail, Tree};
use sapwood_tests::compare::{Compare, compare};
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::machine::{self, Need};
use sapwood_tests::mount::{Mounted, SapwoodMount, sapwood};
use sapwood_tests::{Outcome, process};

const SIZE: u64 = 160 << 20;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for kind in [Kind::Btrfs, Kind::Ext4] {
        let need = match kind {
            Kind::Btrfs => machine::KERNEL,
            Kind::Ext4 => machine::KERNEL_EXT4,
        };
        let mut add = |name: &str, more: Need, run: fn(Kind) -> Outcome| {
            let name = format!("{}_{name}", kind.name());
            trials.push(machine::trial(name, &[need, Need::Fuse, more], move || {
                run(kind)
            }));
        };
        add("sync_reaches_the_image", machine::FUSE_BLK, sync_of_all);
        add("syncfs_reaches_the_image", machine::FUSE_BLK, syncfs);
        add("sapwood_sync_reaches_the_image", Need::Fuse, sapwood_sync);
        add(
            "sapwood_sync_leaves_the_caches_alone",
            machine::FUSE_BLK,
            caches,
        );
        add("umount_completes_the_image", machine::FUSE_BLK, umount);
        add("sapwood_umount_completes_the_image", Need::Fuse, our_umount);
        add("lazy_umount_ends_well", machine::FUSE_BLK, lazy_umount);
        add("forced_umount_ends_well", machine::FUSE_BLK, forced_umount);
        add(
            "a_dead_daemon_leaves_no_anchor",
            machine::FUSE_BLK,
            dead_daemon,
        );
        add("the_anchor_is_apart", machine::FUSE_BLK, anchor);
        add(
            "a_terminated_daemon_ends_well",
            machine::FUSE_BLK,
            terminated,
        );
    }
    trials.push(machine::trial(
        "btrfs_df_after_a_sync_has_what_was_deleted",
        &[Need::Fuse],
        df_after_sync,
    ));
    trials
}

/// A deletion empties block groups, which the daemon removes after the commit. Their space is
/// available all the while.
fn df_after_sync() -> Outcome {
    let image = TempImage::new(&Mkfs::ours("").sized(256 << 20))?;
    let mount = SapwoodMount::new(image.path(), "commit=300")?;
    let available = || -> Result<u64, std::io::Error> {
        let stat = rustix::fs::statvfs(mount.path())?;
        Ok(stat.f_bavail * stat.f_frsize)
    };
    let before = available()?;
    let big = mount.path().join("big");
    let mut file = File::create(&big)?;
    let piece = vec![7; 1 << 20];
    while file.write_all(&piece).is_ok() {}
    drop(file);
    fs::remove_file(&big)?;
    process::succeed(
        Command::new(sapwood()).arg("sync").arg(mount.path()),
        process::ORDINARY,
    )?;
    let root = File::open(mount.path())?;
    let (most, slack) = (available()?, before / 4);
    if most + slack < before {
        return Err(format!("{most} bytes are available, {before} were before").into());
    }
    // The daemon removes groups until a second commit has nothing left of them.
    for _ in 0..5 {
        rustix::fs::syncfs(&root)?;
        let now = available()?;
        if now + slack < before {
            return Err(format!("{now} bytes are available, {before} were before").into());
        }
    }
    drop(root);
    Box::new(mount).unmount()?;
    Ok(())
}

/// The two ways in which requests reach the daemon.
const TRANSPORTS: [&str; 2] = ["io_uring=auto,sandbox=off", "io_uring=off"];

fn image(kind: Kind) -> Result<TempImage, String> {
    TempImage::new(&Mkfs {
        kind,
        ..Mkfs::default().sized(SIZE)
    })
}

fn block_mount(image: &TempImage, transport: &str) -> Result<SapwoodMount, String> {
    let options = format!("commit=300,fuseblk=on,{transport}");
    SapwoodMount::new(image.path(), &options)
}

/// Writes more than the caches write back by themselves at once, and changes names.
fn work(root: &Path) -> Result<Tree, Box<dyn std::error::Error>> {
    for number in 0..40_u8 {
        let dir = root.join(format!("dir{}", number % 3));
        fs::create_dir_all(&dir)?;
        let mut file = File::create(dir.join(format!("file{number}")))?;
        file.write_all(&vec![number; usize::from(number) * 20_000])?;
    }
    fs::rename(root.join("dir0/file3"), root.join("dir1/renamed"))?;
    fs::remove_file(root.join("dir2/file2"))?;
    File::options()
        .write(true)
        .open(root.join("dir1/file4"))?
        .write_all_at(b"changed", 70_000)?;
    Ok(Tree::of_mount(root, Detail::Sums)?)
}

/// Kills the daemon after `sync`, and expects all that was written before in the next mount.
fn survives(kind: Kind, options: &str, sync: impl Fn(&Path) -> Result<(), String>) -> Outcome {
    for transport in TRANSPORTS {
        let image = image(kind)?;
        let mount = SapwoodMount::new(image.path(), &format!("commit=300,{options},{transport}"))?;
        let expected = work(mount.path())?;
        sync(mount.path())?;
        mount.kill();
        let mount = SapwoodMount::new(image.path(), "rw")?;
        let found = Tree::of_mount(mount.path(), Detail::Sums)?;
        Box::new(mount).unmount()?;
        compare(&expected, &found, Compare::SameImage)?;
        image.check()?;
    }
    Ok(())
}

fn sync_of_all(kind: Kind) -> Outcome {
    survives(kind, "fuseblk=on", |_| {
        process::run("sync", &[] as &[&str]).map(drop)
    })
}

fn syncfs(kind: Kind) -> Outcome {
    survives(kind, "fuseblk=on", |root| {
        process::run("sync", &["-f".as_ref(), root.as_os_str()]).map(drop)
    })
}

fn sapwood_sync(kind: Kind) -> Outcome {
    survives(kind, "fuseblk=off", |root| {
        process::succeed(
            Command::new(sapwood()).arg("sync").arg(root),
            process::ORDINARY,
        )
        .map(drop)
    })
}

/// Where the kernel passes `syncfs` on, a sync includes what was stored in a mapping, and the kernel
/// keeps the pages of other files.
fn caches(kind: Kind) -> Outcome {
    for transport in TRANSPORTS {
        let image = image(kind)?;
        let mount = block_mount(&image, transport)?;
        let expected = work(mount.path())?;
        let mapped = mount.path().join("mapped");
        fs::write(&mapped, [0; 8192])?;
        let before = reads(mount.path())?;
        store(&mapped)?;
        process::succeed(
            Command::new(sapwood()).arg("sync").arg(mount.path()),
            process::ORDINARY,
        )?;
        let found = Tree::of_mount(mount.path(), Detail::Sums)?;
        // The reads of the mapped file, and none of the forty others.
        let after = reads(mount.path())?;
        if after > before + 4 {
            return Err(format!("{before} reads before the sync, {after} after it").into());
        }
        mount.kill();
        let mount = SapwoodMount::new(image.path(), "ro")?;
        let content = fs::read(mount.path().join("mapped"))?;
        let again = Tree::of_mount(mount.path(), Detail::Sums)?;
        Box::new(mount).unmount()?;
        if content != [7; 8192] {
            return Err("the bytes stored in the mapping are not in the image".into());
        }
        compare(&found, &again, Compare::SameImage)?;
        if found.nodes.len() != expected.nodes.len() + 1 {
            return Err("names are missing".into());
        }
    }
    Ok(())
}

/// The reads that the daemon has served.
fn reads(mount: &Path) -> Result<u64, Box<dyn std::error::Error>> {
    let said = process::succeed(
        Command::new(sapwood()).arg("stats").arg(mount),
        process::ORDINARY,
    )?;
    let line = said
        .lines()
        .find(|line| line.starts_with("requests, read "));
    let number = line.and_then(|line| line.split_whitespace().last());
    Ok(number.map_or(Ok(0), str::parse)?)
}

#[expect(unsafe_code, reason = "a mapping is raw memory")]
fn store(path: &Path) -> Outcome {
    let file = File::options().read(true).write(true).open(path)?;
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of a file of that length, unmapped below, and not used after.
    unsafe {
        let map = mmap(std::ptr::null_mut(), 8192, both, MapFlags::SHARED, &file, 0)?;
        std::slice::from_raw_parts_mut(map.cast::<u8>(), 8192).fill(7);
        munmap(map, 8192)?;
    }
    Ok(())
}

/// Expects that the image is complete, and free, when `unmount` has returned.
fn completes(kind: Kind, options: &str, unmount: impl Fn(&Path) -> Result<(), String>) -> Outcome {
    for transport in TRANSPORTS {
        let image = image(kind)?;
        let mount = SapwoodMount::new(image.path(), &format!("commit=300,{options},{transport}"))?;
        let expected = work(mount.path())?;
        unmount(mount.path())?;
        let copy = image.copy()?;
        let again = SapwoodMount::new(image.path(), "rw")?;
        mount.unmounted()?;
        Box::new(again).unmount()?;
        same(&copy, &expected)?;
    }
    Ok(())
}

/// Expects a clean image with this content, and no need to recover it.
fn same(image: &TempImage, expected: &Tree) -> Result<(), String> {
    image.check()?;
    let mount = SapwoodMount::new(image.path(), "ro,norecovery")?;
    let found = Tree::of_mount(mount.path(), Detail::Sums)?;
    Box::new(mount).unmount()?;
    compare(expected, &found, Compare::SameImage)
}

fn umount(kind: Kind) -> Outcome {
    completes(kind, "fuseblk=on", |root| {
        process::run("umount", &[root]).map(drop)
    })
}

fn our_umount(kind: Kind) -> Outcome {
    completes(kind, "fuseblk=off", |root| {
        process::succeed(
            Command::new(sapwood()).arg("umount").arg(root),
            process::ORDINARY,
        )
        .map(drop)
    })
}

/// A detached mount continues until its last file is closed, and then completes the image.
fn lazy_umount(kind: Kind) -> Outcome {
    for transport in TRANSPORTS {
        let image = image(kind)?;
        let mount = block_mount(&image, transport)?;
        let expected = work(mount.path())?;
        let held = File::open(mount.path().join("dir0/file0"))?;
        rustix::mount::unmount(mount.path(), UnmountFlags::DETACH)?;
        rustix::fs::syncfs(&held)?;
        drop(held);
        mount.unmounted()?;
        same(&image, &expected)?;
    }
    Ok(())
}

/// `umount -f` ends the connection first: the daemon completes the image by itself.
fn forced_umount(kind: Kind) -> Outcome {
    for transport in TRANSPORTS {
        let image = image(kind)?;
        let mount = block_mount(&image, transport)?;
        let expected = work(mount.path())?;
        process::run("sync", &["-f".as_ref(), mount.path().as_os_str()])?;
        process::run("umount", &["-f".as_ref(), mount.path().as_os_str()])?;
        mount.unmounted()?;
        same(&image, &expected)?;
    }
    Ok(())
}

fn terminated(kind: Kind) -> Outcome {
    for transport in TRANSPORTS {
        let image = image(kind)?;
        let mount = block_mount(&image, transport)?;
        let expected = work(mount.path())?;
        let daemon = mount.daemon().map(|id| id.to_string()).unwrap_or_default();
        process::run("kill", &["-TERM", &daemon])?;
        mount.unmounted()?;
        same(&image, &expected)?;
    }
    Ok(())
}

/// Loop devices over an image, as `losetup` lists them.
fn loops(image: &Path) -> Result<Vec<PathBuf>, String> {
    let args = [
        "--noheadings".as_ref(),
        "--output".as_ref(),
        "NAME".as_ref(),
        "--associated".as_ref(),
        image.as_os_str(),
    ];
    let listed = process::run("losetup", &args)?;
    Ok(listed.lines().map(|line| line.trim().into()).collect())
}

fn dead_daemon(kind: Kind) -> Outcome {
    let image = image(kind)?;
    let mut mount = block_mount(&image, "io_uring=auto,sandbox=off")?;
    mount.kill_daemon();
    // The dead mount is no obstacle to another one, and is taken away as any other is.
    let again = block_mount(&image, "io_uring=auto,sandbox=off")?;
    process::run("umount", &[mount.path()])?;
    let left = loops(image.path())?;
    if left.len() != 1 {
        return Err(format!("loop devices of the living mount: {left:?}").into());
    }
    Box::new(again).unmount()?;
    let left = loops(image.path())?;
    if !left.is_empty() {
        return Err(format!("loop devices of no mount: {left:?}").into());
    }
    Ok(())
}

/// The loop device shows nothing of the file system, the mount table shows the image, and the
/// kernel's driver does not get at the image through mount(8).
fn anchor(kind: Kind) -> Outcome {
    let image = image(kind)?;
    let mount = block_mount(&image, "io_uring=auto,sandbox=off")?;
    let shown = sapwood_fuse::mounted_on(mount.path()).ok_or("not in the mount table")?;
    if shown.kind != "fuseblk.sapwood" || Path::new(&shown.source) != image.path() {
        return Err(format!("mount table: {shown:?}").into());
    }
    let found = loops(image.path())?;
    let [device] = &found[..] else {
        return Err(format!("loop devices: {found:?}").into());
    };
    if fs::read(device)?.len() != 512 {
        return Err("the anchor covers more than a sector".into());
    }
    let dir = tempfile::tempdir()?;
    let args = [
        "-o".as_ref(),
        "loop".as_ref(),
        image.path().as_os_str(),
        dir.path().as_os_str(),
    ];
    if process::run("mount", &args).is_ok() {
        process::run("umount", &[dir.path()])?;
        return Err("the kernel has mounted it too".into());
    }
    Box::new(mount).unmount()?;
    Ok(())
}
