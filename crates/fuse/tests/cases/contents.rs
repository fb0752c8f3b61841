//! Contents of files.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use libtest_mimic::Trial;
use rustix::fs::{FallocateFlags, FlockOperation, copy_file_range, fallocate, flock};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use crate::support::{Mounted, Outcome, eventually, expect_errno, trial};
use crate::{holds, same};
use sapwood_fuse::{MountOptions, control};
use sapwood_vfs::Choice;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("large_file", &[], large_file),
        trial("append_and_truncate", &[], append),
        trial("shared_mapping", &[], mapping),
        trial(
            "a_snapshot_waits_for_what_the_kernel_writes_back",
            &[],
            write_back,
        ),
        trial(
            "a_held_write_of_a_lone_client_does_not_hold_up_others",
            &[],
            held_lone,
        ),
        trial("holes_of_a_file_just_written", &[], holes),
        trial("fallocate_in_each_mode", &[], allocate),
        trial("copy_file_range", &[], copy),
        trial("direct_io", &[], direct),
        trial("locks", &[], locks),
        trial("tmpfile_without_and_with_a_name", &[], tmpfile),
        trial("many_threads", &[], many_threads),
        trial("many_seeks_in_files_being_written", &[], many_seeks),
        trial("killed_in_the_middle", &[], killed),
        trial("fsync_of_files_and_directories", &[], fsync),
    ]
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ seed)
        .collect()
}

fn large_file() -> Outcome {
    let mounted = Mounted::new()?;
    let path = mounted.path("big");
    let data = pattern((9 << 20) + 1234, 5);
    fs::write(&path, &data)?;
    let file = fs::File::options().read(true).write(true).open(&path)?;
    file.write_all_at(b"patched", 5 << 20)?;
    file.sync_data()?;
    // Drops the page cache, so that the data comes from the engine.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    let mut back = Vec::new();
    (&file).read_to_end(&mut back)?;
    same!(back.len(), data.len());
    holds!(back[..5 << 20] == data[..5 << 20]);
    same!(&back[5 << 20..(5 << 20) + 7], b"patched");
    holds!(back[(5 << 20) + 7..] == data[(5 << 20) + 7..]);
    Ok(())
}

fn append() -> Outcome {
    let mounted = Mounted::new()?;
    let path = mounted.path("log");
    let mut one = fs::File::options().append(true).create(true).open(&path)?;
    let mut two = fs::File::options().append(true).open(&path)?;
    for _ in 0..100 {
        one.write_all(b"one\n")?;
        two.write_all(b"two\n")?;
    }
    one.sync_all()?;
    same!(fs::read(&path)?, b"one\ntwo\n".repeat(100));
    drop(fs::File::options().write(true).truncate(true).open(&path)?);
    same!(fs::metadata(&path)?.len(), 0);
    one.write_all(b"again")?;
    same!(fs::read(&path)?, b"again");
    one.set_len(10_000)?;
    holds!(fs::read(&path)?[4990..] == [0; 5010]);
    Ok(())
}

#[expect(unsafe_code, reason = "a mapping is raw memory")]
fn mapping() -> Outcome {
    const LEN: usize = 3 * 4096;
    let mounted = Mounted::new()?;
    let path = mounted.path("mapped");
    fs::write(&path, pattern(LEN, 1))?;
    let file = fs::File::options().read(true).write(true).open(&path)?;
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of a file of that length, unmapped below, and not used after.
    unsafe {
        let map = mmap(std::ptr::null_mut(), LEN, both, MapFlags::SHARED, &file, 0)?;
        let bytes = std::slice::from_raw_parts_mut(map.cast::<u8>(), LEN);
        let read_well = *bytes == pattern(LEN, 1);
        bytes[4096..4102].copy_from_slice(b"mapped");
        msync(map, LEN, MsyncFlags::SYNC)?;
        munmap(map, LEN)?;
        holds!(read_well);
    }
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    same!(&fs::read(&path)?[4096..4102], b"mapped");
    Ok(())
}

/// The write-back of a page that a mapping changed is held until the snapshot is taken, or until
/// the mount ensures that all such writes have arrived.
#[expect(unsafe_code, reason = "shared mappings; see within")]
fn write_back() -> Outcome {
    const LEN: usize = 4096;
    let mounted = Mounted::with(&MountOptions {
        threads: Some(4),
        ..MountOptions::default()
    })?;
    let root = mounted.dir();
    control::create_subvolume(root, b"sub")?;
    let file = fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mounted.path("sub/file"))?;
    file.set_len(LEN as u64)?;
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of a file of that length, unmapped below, and not used after. It stays
    // until everything is written back: unmapping waits for that, with a lock that the mount's
    // threads need.
    let done = unsafe {
        let map = mmap(std::ptr::null_mut(), LEN, both, MapFlags::SHARED, &file, 0)?;
        std::slice::from_raw_parts_mut(map.cast::<u8>(), LEN).fill(7);
        mounted.fs.hold_writes();
        let done = control::snapshot(&mounted.path("sub"), root, b"snap", true);
        msync(map, LEN, MsyncFlags::SYNC)?;
        munmap(map, LEN)?;
        done
    };
    done?;
    holds!(fs::read(mounted.path("snap/file"))? == [7; LEN]);
    Ok(())
}

/// The write is held until the other client has been served. If that client waited for it, the
/// writer would have ended.
fn held_lone() -> Outcome {
    let mounted = Mounted::with(&MountOptions {
        polling: Choice::On,
        ..MountOptions::default()
    })?;
    for number in 0..100 {
        fs::write(mounted.path(format!("lone-{number}")), b"data")?;
    }
    let path = mounted.path("held");
    let file = fs::File::create(path)?;
    mounted.fs.hold_writes();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| file.write_all_at(b"held", 0).and_then(|()| file.sync_all()));
        for number in 0..100 {
            fs::File::create(mounted.path(format!("other-{number}")))?;
        }
        holds!(!writer.is_finished());
        mounted.fs.release_writes();
        writer.join().map_err(|_| "the writer panicked")??;
        Ok(())
    })
}

/// Dirty pages that the kernel has not written back count as data.
fn holes() -> Outcome {
    let mounted = Mounted::new()?;
    let mut file = fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mounted.path("sparse"))?;
    file.write_all_at(&[1; 4096], 1 << 20)?;
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0))?;
    same!(data, 1 << 20);
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(1 << 20))?;
    same!(hole, (1 << 20) + 4096);
    let behind = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(2 << 20));
    expect_errno(behind.map_err(std::io::Error::from), libc::ENXIO)?;
    same!(file.seek(SeekFrom::End(0))?, (1 << 20) + 4096);
    Ok(())
}

fn allocate() -> Outcome {
    let mounted = Mounted::new()?;
    let path = mounted.path("file");
    fs::write(&path, [9; 16384])?;
    let file = fs::File::options().read(true).write(true).open(&path)?;
    fallocate(&file, FallocateFlags::empty(), 16384, 8192)?;
    same!(fs::metadata(&path)?.len(), 24576);
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 20)?;
    same!(fs::metadata(&path)?.len(), 24576);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 4096, 4096)?;
    fallocate(&file, FallocateFlags::ZERO_RANGE, 12288, 2048)?;
    let content = fs::read(&path)?;
    holds!(content[..4096] == [9; 4096]);
    holds!(content[4096..8192] == [0; 4096]);
    holds!(content[8192..12288] == [9; 4096]);
    holds!(content[12288..14336] == [0; 2048]);
    holds!(content[14336..16384] == [9; 2048]);
    holds!(content[16384..] == [0; 8192]);
    let collapse = fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
    expect_errno(collapse.map_err(std::io::Error::from), libc::EOPNOTSUPP)
}

fn copy() -> Outcome {
    let mounted = Mounted::new()?;
    let data = pattern(300_000, 7);
    fs::write(mounted.path("from"), &data)?;
    let from = fs::File::open(mounted.path("from"))?;
    let to = fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mounted.path("to"))?;
    let (mut at, mut into) = (4096, 8192);
    let mut left = 200_000;
    while left > 0 {
        let count = copy_file_range(&from, Some(&mut at), &to, Some(&mut into), left)?;
        holds!(count > 0);
        left -= count;
    }
    same!(at, 204_096);
    let copied = fs::read(mounted.path("to"))?;
    same!(copied.len(), 208_192);
    holds!(copied[8192..] == data[4096..204_096]);
    // The copy includes dirty pages of the kernel's cache.
    let from = fs::File::options().write(true).open(mounted.path("from"))?;
    from.write_all_at(b"fresh", 0)?;
    fs::copy(mounted.path("from"), mounted.path("whole"))?;
    same!(&fs::read(mounted.path("whole"))?[..5], b"fresh");
    Ok(())
}

#[repr(align(4096))]
struct Aligned([u8; 8192]);

fn direct() -> Outcome {
    let mounted = Mounted::new()?;
    let path = mounted.path("direct");
    let file = fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)?;
    let mut block = Box::new(Aligned([3; 8192]));
    file.write_all_at(&block.0, 4096)?;
    same!(fs::metadata(&path)?.len(), 12288);
    // A cached reader sees the direct write, and direct reads see a cached write.
    holds!(fs::read(&path)?[4096..] == [3; 8192]);
    let cached = fs::File::options().write(true).open(&path)?;
    cached.write_all_at(&[4; 4096], 4096)?;
    file.read_exact_at(&mut block.0, 4096)?;
    holds!(block.0[..4096] == [4; 4096]);
    holds!(block.0[4096..] == [3; 4096]);
    same!(file.read_at(&mut block.0, 8192)?, 4096);
    Ok(())
}

fn locks() -> Outcome {
    let mounted = Mounted::new()?;
    let path = mounted.path("lock");
    let one = fs::File::create(&path)?;
    let two = fs::File::open(&path)?;
    flock(&one, FlockOperation::NonBlockingLockExclusive)?;
    let second = flock(&two, FlockOperation::NonBlockingLockShared);
    expect_errno(second.map_err(std::io::Error::from), libc::EWOULDBLOCK)?;
    drop(one);
    flock(&two, FlockOperation::NonBlockingLockShared)?;
    rustix::fs::fcntl_lock(&two, FlockOperation::NonBlockingLockShared)?;
    Ok(())
}

fn tmpfile() -> Outcome {
    let mounted = Mounted::new()?;
    let count = || fs::read_dir(mounted.dir()).map(Iterator::count);
    let make = |flags| {
        fs::File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_TMPFILE | flags)
            .open(mounted.dir())
    };
    let mut file = make(0)?;
    file.write_all(b"nameless")?;
    same!(file.metadata()?.nlink(), 0);
    same!(count()?, 0);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    let unnamed = format!("/proc/self/fd/{fd}");
    let flags = rustix::fs::AtFlags::SYMLINK_FOLLOW;
    let cwd = rustix::fs::CWD;
    rustix::fs::linkat(cwd, &unnamed, cwd, mounted.path("named"), flags)?;
    same!(file.metadata()?.nlink(), 1);
    file.write_all(b" no more")?;
    drop(file);
    same!(fs::read(mounted.path("named"))?, b"nameless no more");
    // With O_EXCL the file can never get a name; without a name it disappears with its descriptor.
    let before = mounted.fs.inode_count();
    let file = make(libc::O_EXCL)?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    let unnamed = format!("/proc/self/fd/{fd}");
    let linked = rustix::fs::linkat(cwd, &unnamed, cwd, mounted.path("never"), flags);
    expect_errno(linked.map_err(std::io::Error::from), libc::ENOENT)?;
    drop(file);
    eventually("the nameless file is gone", || {
        mounted.fs.inode_count() == before
    })?;
    Ok(())
}

fn many_threads() -> Outcome {
    let mounted = Mounted::with(&MountOptions {
        threads: Some(8),
        ..MountOptions::default()
    })?;
    let work = |thread: u8| -> std::io::Result<()> {
        let dir = mounted.path(format!("d{thread}"));
        fs::create_dir(&dir)?;
        for number in 0..60 {
            let (one, two) = (
                dir.join(format!("a{number}")),
                dir.join(format!("b{number}")),
            );
            let content = vec![thread; 5000 + number];
            fs::write(&one, &content)?;
            fs::File::open(&one)?.sync_all()?;
            fs::rename(&one, &two)?;
            if fs::metadata(&one).is_ok() || fs::read(&two)? != content {
                return Err(std::io::Error::other(format!("{} is wrong", two.display())));
            }
            if number % 3 == 0 {
                fs::remove_file(&two)?;
            }
        }
        if fs::read_dir(&dir)?.count() != 40 {
            return Err(std::io::Error::other("names are missing"));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..12).map(|n| scope.spawn(move || work(n))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(std::io::Error::other("panicked")))
        })
    })?;
    same!(fs::read_dir(mounted.dir())?.count(), 12);
    Ok(())
}

/// Each seek waits until the kernel has written back, which needs idle threads.
fn many_seeks() -> Outcome {
    for threads in [Some(1), None] {
        let mounted = Mounted::with(&MountOptions {
            threads,
            ..MountOptions::default()
        })?;
        let work = |thread: u64| -> std::io::Result<()> {
            let mut file = fs::File::create_new(mounted.path(format!("f{thread}")))?;
            for step in 1..20 {
                let start = step * (1 << 20);
                file.write_all_at(&[7; 9000], start)?;
                let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(start))?;
                let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(start - 20_000))?;
                if hole < start + 9000 || data > start {
                    return Err(std::io::Error::other(format!("{start}: {hole}, {data}")));
                }
            }
            file.rewind()
        };
        std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = (0..24).map(|n| scope.spawn(move || work(n))).collect();
            threads.into_iter().try_for_each(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(std::io::Error::other("panicked")))
            })
        })?;
    }
    Ok(())
}

/// Callers that are killed while their requests are in flight leave nothing behind that stops other
/// callers.
fn killed() -> Outcome {
    let mounted = Mounted::new()?;
    for round in 0..20 {
        let line = format!(
            "echo begun; i=0; while :; do echo x > {0}/f$i; mv {0}/f$i {0}/g; sync {0}/g; i=$((i+1)); done",
            mounted.dir().display()
        );
        let mut child = std::process::Command::new("sh")
            .args(["-c", &line])
            .stdout(std::process::Stdio::piped())
            // Its children outlive it for a moment, and find their files gone.
            .stderr(std::process::Stdio::null())
            .spawn()?;
        let mut begun = [0; 6];
        if let Some(mut stdout) = child.stdout.take() {
            std::io::Read::read_exact(&mut stdout, &mut begun)?;
        }
        let other = mounted.path(format!("other{round}"));
        fs::write(&other, b"y")?;
        child.kill()?;
        child.wait()?;
        same!(fs::read(&other)?, b"y");
    }
    // A caller killed in a lookup or a create holds no reference.
    mounted.session.unmount()?;
    holds!(mounted.session.has_ended());
    Ok(())
}

fn fsync() -> Outcome {
    let mounted = Mounted::new()?;
    fs::create_dir(mounted.path("d"))?;
    let mut file = fs::File::create(mounted.path("d/f"))?;
    file.write_all(b"x")?;
    file.sync_data()?;
    file.sync_all()?;
    // The engine has the data, whatever the kernel's cache holds.
    let ino = sapwood_vfs::Ino(file.metadata()?.ino());
    let mut buffer = [0; 4];
    let engine: &dyn sapwood_vfs::FileSystem = &*mounted.fs;
    same!(engine.read(ino, 0, &mut buffer)?, 1);
    let dir = fs::File::open(mounted.path("d"))?;
    dir.sync_all()?;
    dir.sync_data()?;
    rustix::fs::syncfs(&dir)?;
    Ok(())
}
