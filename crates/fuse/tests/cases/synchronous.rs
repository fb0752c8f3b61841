//! What is durable when a call returns, and what readers see during direct writes.

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::time::SystemTime;

use libtest_mimic::{Failed, Trial};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use rustix::time::{ClockId, clock_gettime};
use sapwood_fuse::MountOptions;
use sapwood_vfs::{FileSystem, Ino, SyncKind, Timestamp};

use crate::aio::{BLOCK, Queue, WriteCall};
use crate::support::{Mounted, Outcome, eventually, trial, writes_back};
use crate::{holds, same};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_synchronous_write_is_durable_when_it_ends", &[], writes),
        trial("a_synchronous_mount_is_durable", &[], sync_mount),
        trial("names_of_a_dirsync_mount_are_durable", &[], dirsync_mount),
        trial("fsync_and_fdatasync_reach_the_engine", &[], fsync),
        trial("msync_is_durable", &[], mapping),
        trial("readers_see_asynchronous_direct_writes", &[], coherent),
        trial(
            "many_direct_writes_beside_readers_end",
            &[],
            many_beside_readers,
        ),
    ]
}

const SIZE: usize = 16 * BLOCK;

/// A file of zeros that is durable.
fn zeros(mounted: &Mounted, name: &str) -> Result<Ino, Failed> {
    let file = File::create(mounted.path(name))?;
    file.write_all_at(&[0; SIZE], 0)?;
    file.sync_all()?;
    Ok(Ino(file.metadata()?.ino()))
}

fn open(mounted: &Mounted, name: &str, flags: i32) -> std::io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(mounted.path(name))
}

/// Long before any write of a test.
const PAST: SystemTime = SystemTime::UNIX_EPOCH;

/// The time of the clock that the kernel stamps inodes with, which may be some milliseconds late.
fn stamp() -> Timestamp {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Timestamp {
        sec: now.tv_sec,
        nsec: u32::try_from(now.tv_nsec).unwrap_or(0),
    }
}

/// What a crash would lose of a write that began at a time.
fn lost(mounted: &Mounted, ino: Ino, kind: SyncKind, began: Timestamp) -> Option<&'static str> {
    if !mounted.fs.is_durable(ino, SyncKind::Data) {
        return Some("its data");
    }
    // With a write-back cache the kernel may have sent times after the write was durable.
    if !writes_back() && !mounted.fs.is_durable(ino, kind) {
        return Some("an attribute");
    }
    let kept = mounted.fs.durable_attr(ino);
    let has_times = kept.is_some_and(|attr| attr.mtime >= began && attr.ctime >= began);
    (kind == SyncKind::All && !has_times).then_some("its times")
}

/// After each write the kernel writes back what it has of the inode: with a write-back cache, its
/// own times of a direct write. That may happen at any moment, and no caller asked for it to be
/// durable.
fn writes() -> Outcome {
    let mounted = Mounted::new()?;
    let ino = zeros(&mounted, "f")?;
    let ways = [
        (libc::O_SYNC, 0, SyncKind::All),
        (libc::O_DSYNC, 0, SyncKind::Data),
        (0, libc::RWF_SYNC, SyncKind::All),
        (0, libc::RWF_DSYNC, SyncKind::Data),
    ];
    let mut seed = 0;
    for engine in WriteCall::ALL {
        for direct in [0, libc::O_DIRECT] {
            for (open_flags, write_flags, kind) in ways {
                let what = format!("{engine:?} {direct:o} {open_flags:o} {write_flags:o}");
                let file = open(&mounted, "f", direct | open_flags)?;
                seed += 1;
                let data = [seed; 2 * BLOCK];
                file.set_times(FileTimes::new().set_modified(PAST))?;
                file.sync_all()?;
                let began = stamp();
                engine.write(&file, BLOCK as u64, &data, write_flags)?;
                rustix::fs::syncfs(&file)?;
                if let Some(part) = lost(&mounted, ino, kind, began) {
                    return Err(format!("not durable: {part} ({what})").into());
                }
                let mut there = [0; 2 * BLOCK];
                mounted.fs.read(ino, BLOCK as u64, &mut there)?;
                if there != data {
                    return Err(format!("not in the engine: {what}").into());
                }
            }
        }
    }
    Ok(())
}

fn sync_mount() -> Outcome {
    let mounted = Mounted::with(&MountOptions {
        sync: true,
        ..MountOptions::default()
    })?;
    let ino = zeros(&mounted, "f")?;
    for engine in WriteCall::ALL {
        for direct in [0, libc::O_DIRECT] {
            let file = open(&mounted, "f", direct)?;
            engine.write(&file, 0, &[7; BLOCK], 0)?;
            if !mounted.fs.is_durable(ino, SyncKind::Data) {
                return Err(format!("not durable: {engine:?} {direct:o}").into());
            }
        }
    }
    let file = open(&mounted, "f", 0)?;
    // With a write-back cache the kernel has yet to send the times of the direct writes.
    file.sync_all()?;
    fs::set_permissions(
        mounted.path("f"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )?;
    holds!(mounted.fs.is_durable(ino, SyncKind::All));
    file.set_len(100)?;
    holds!(mounted.fs.is_durable(ino, SyncKind::All));
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 9000)?;
    holds!(mounted.fs.is_durable(ino, SyncKind::All));
    names_are_durable(&mounted)
}

fn dirsync_mount() -> Outcome {
    let mounted = Mounted::with(&MountOptions {
        dirsync: true,
        ..MountOptions::default()
    })?;
    names_are_durable(&mounted)
}

fn names_are_durable(mounted: &Mounted) -> Outcome {
    let root = mounted.fs.root();
    let path = |name: &str| mounted.path(name);
    let durable = |what: &str, dir: Ino| {
        if mounted.fs.is_durable(dir, SyncKind::All) {
            Ok(())
        } else {
            Err(Failed::from(format!("not durable: {what}")))
        }
    };
    drop(File::create(path("file"))?);
    durable("create", root)?;
    fs::create_dir(path("d"))?;
    durable("mkdir", root)?;
    let dir = Ino(fs::metadata(path("d"))?.ino());
    std::os::unix::fs::symlink("x", path("d/symlink"))?;
    durable("symlink", dir)?;
    fs::hard_link(path("file"), path("d/link"))?;
    durable("link", dir)?;
    fs::rename(path("d/link"), path("moved"))?;
    durable("rename from", dir)?;
    durable("rename to", root)?;
    fs::remove_file(path("d/symlink"))?;
    durable("unlink", dir)?;
    fs::remove_dir(path("d"))?;
    durable("rmdir", root)
}

fn fsync() -> Outcome {
    let mounted = Mounted::new()?;
    let ino = zeros(&mounted, "f")?;
    holds!(mounted.fs.is_durable(ino, SyncKind::All));
    let file = open(&mounted, "f", 0)?;
    fs::set_permissions(
        mounted.path("f"),
        std::os::unix::fs::PermissionsExt::from_mode(0o640),
    )?;
    file.write_all_at(&[1; 10], 0)?;
    holds!(!mounted.fs.is_durable(ino, SyncKind::All));
    file.sync_data()?;
    holds!(mounted.fs.is_durable(ino, SyncKind::Data));
    file.sync_all()?;
    holds!(mounted.fs.is_durable(ino, SyncKind::All));
    let root = mounted.fs.root();
    fs::create_dir(mounted.path("d"))?;
    holds!(!mounted.fs.is_durable(root, SyncKind::Data));
    File::open(mounted.dir())?.sync_all()?;
    holds!(mounted.fs.is_durable(root, SyncKind::All));
    Ok(())
}

#[expect(unsafe_code, reason = "a mapping is raw memory")]
fn mapping() -> Outcome {
    let mounted = Mounted::new()?;
    let ino = zeros(&mounted, "f")?;
    let file = open(&mounted, "f", 0)?;
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of a file of that length, unmapped below, and not used after.
    unsafe {
        let map = mmap(std::ptr::null_mut(), SIZE, both, MapFlags::SHARED, &file, 0)?;
        std::slice::from_raw_parts_mut(map.cast::<u8>(), SIZE).fill(9);
        msync(map, SIZE, MsyncFlags::SYNC)?;
        munmap(map, SIZE)?;
    }
    holds!(mounted.fs.is_durable(ino, SyncKind::Data));
    let mut there = [0; SIZE];
    same!(mounted.fs.read(ino, 0, &mut there)?, SIZE);
    holds!(there == [9; SIZE]);
    Ok(())
}

/// The engine holds each direct write until a reader has filled the page cache with the old
/// content.
fn coherent() -> Outcome {
    let mounted = Mounted::new()?;
    zeros(&mounted, "f")?;
    let direct = open(&mounted, "f", libc::O_DIRECT)?;
    let reader = open(&mounted, "f", 0)?;
    let mut queue = Queue::new()?;
    let mut page = [0; BLOCK];
    for round in 1..20u8 {
        mounted.fs.hold_writes();
        queue.submit(&direct, 0, &[round; 4 * BLOCK], 0)?;
        reader.read_exact_at(&mut page, BLOCK as u64)?;
        holds!(page == [round - 1; BLOCK]);
        mounted.fs.release_writes();
        same!(queue.wait()?, 4 * BLOCK);
        reader.read_exact_at(&mut page, BLOCK as u64)?;
        if page != [round; BLOCK] {
            return Err(format!("a reader sees {} in round {round}", page[0]).into());
        }
    }
    Ok(())
}

/// More direct writes than the kernel sends at a time. Each of them waits for pages that readers
/// are filling.
fn many_beside_readers() -> Outcome {
    const BLOCKS: u64 = 256;
    let mounted = Mounted::new()?;
    let file = File::create(mounted.path("f"))?;
    file.set_len(BLOCKS * BLOCK as u64)?;
    let direct = open(&mounted, "f", libc::O_DIRECT)?;
    let reader = open(&mounted, "f", 0)?;
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| -> Outcome {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut all = vec![0; BLOCKS as usize * BLOCK];
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = reader.read_at(&mut all, 0);
                }
            });
        }
        let written = (1..40u8).try_for_each(|round| -> std::io::Result<()> {
            let mut queue = Queue::new()?;
            for block in 0..BLOCKS {
                queue.submit(&direct, block * BLOCK as u64, &[round; BLOCK], 0)?;
            }
            queue.wait().map(drop)
        });
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        Ok(written?)
    })?;
    eventually("readers see the last writes", || {
        fs::read(mounted.path("f")).is_ok_and(|all| all.iter().all(|byte| *byte == 39))
    })
}
