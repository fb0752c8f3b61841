//! Every way to ask for synchronous I/O, on both engines: what was acknowledged is there after the
//! daemon was killed. All mounts have `commit=300`, so that nothing becomes durable by itself.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use libtest_mimic::Trial;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use sapwood::Kind;
use sapwood_tests::Outcome;
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::machine::{self, Need};
use sapwood_tests::mount::{Mounted, SapwoodMount};

use sapwood_testing::aio;

use aio::{BLOCK, WriteCall};

const SIZE: u64 = 200 << 20;
const LEN: usize = 16 * BLOCK;
/// What is overwritten.
const PART: std::ops::Range<usize> = 3 * BLOCK..11 * BLOCK;

fn main() {
    machine::run(2, trials);
}

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for kind in [Kind::Btrfs, Kind::Ext4] {
        let need = match kind {
            Kind::Btrfs => machine::KERNEL,
            Kind::Ext4 => machine::KERNEL_EXT4,
        };
        for (transport, options) in [
            ("io_uring", "io_uring=auto,sandbox=off"),
            ("dev_fuse", "io_uring=off"),
        ] {
            for cache in ["no_writeback_cache", "writeback_cache"] {
                let mut add = |what: &str, run: fn(Kind, &str) -> Outcome| {
                    let name = format!("{}_{transport}_{cache}_{what}", kind.name());
                    let options = format!("commit=300,{options},{cache}");
                    trials.push(machine::trial(name, &[need, Need::Fuse], move || {
                        run(kind, &options)
                    }));
                };
                add("synchronous_writes_survive", writes);
                add("writes_of_a_sync_mount_survive", sync_mount);
                add("names_of_a_dirsync_mount_survive", dirsync_mount);
            }
        }
    }
    trials
}

fn image(kind: Kind) -> Result<TempImage, String> {
    TempImage::new(&Mkfs {
        kind,
        ..Mkfs::default().sized(SIZE)
    })
}

fn open(path: &Path, flags: i32) -> std::io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)
}

/// Zeros that are durable.
fn zeros(path: &Path) -> std::io::Result<()> {
    let file = File::create(path)?;
    file.write_all_at(&[0; LEN], 0)?;
    file.sync_all()
}

/// A way to overwrite a file's part.
struct Way {
    name: String,
    engine: WriteCall,
    open: i32,
    write: i32,
}

fn ways() -> Vec<Way> {
    let flags = [
        ("o_sync", libc::O_SYNC, 0),
        ("o_dsync", libc::O_DSYNC, 0),
        ("rwf_sync", 0, libc::RWF_SYNC),
        ("rwf_dsync", 0, libc::RWF_DSYNC),
    ];
    let ways = plain_ways();
    let mut all = Vec::new();
    for (what, open, write) in flags {
        all.extend(ways.iter().map(|way| Way {
            name: format!("{what}-{}", way.name),
            engine: way.engine,
            open: way.open | open,
            write,
        }));
    }
    all
}

fn plain_ways() -> Vec<Way> {
    let mut ways = Vec::new();
    for engine in WriteCall::ALL {
        for (how, open) in [("buffered", 0), ("direct", libc::O_DIRECT)] {
            ways.push(Way {
                name: format!("{engine:?}-{how}"),
                engine,
                open,
                write: 0,
            });
        }
    }
    ways
}

impl Way {
    fn overwrite(&self, root: &Path) -> std::io::Result<()> {
        let file = open(&root.join(&self.name), self.open)?;
        let data = [7; PART.end - PART.start];
        self.engine
            .write(&file, PART.start as u64, &data, self.write)
    }
}

/// Kills the daemon, mounts the image again, and expects the new content in these files.
fn expect(image: &TempImage, mount: SapwoodMount, names: &[String]) -> Outcome {
    mount.kill();
    let mount = SapwoodMount::new(image.path(), "rw")?;
    let mut lost = Vec::new();
    for name in names {
        let content = fs::read(mount.path().join(name))?;
        let whole = content.len() == LEN
            && content
                .iter()
                .enumerate()
                .all(|(at, byte)| *byte == if PART.contains(&at) { 7 } else { 0 });
        if !whole {
            lost.push(name.clone());
        }
    }
    Box::new(mount).unmount()?;
    image.check()?;
    if lost.is_empty() {
        Ok(())
    } else {
        Err(format!("acknowledged and lost: {}", lost.join(", ")).into())
    }
}

fn writes(kind: Kind, options: &str) -> Outcome {
    let image = image(kind)?;
    let mount = SapwoodMount::new(image.path(), options)?;
    let root = mount.path();
    let ways = ways();
    let marked: Vec<_> = plain_ways()
        .into_iter()
        // The kernel does not know the flag, and keeps buffered writes in its own cache.
        .filter(|way| way.open != 0 || options.contains("no_writeback_cache"))
        .map(|way| Way {
            name: format!("chattr-{}", way.name),
            ..way
        })
        .collect();
    let mut names: Vec<String> = ways
        .iter()
        .chain(&marked)
        .map(|way| way.name.clone())
        .collect();
    names.push("mapped".to_owned());
    for name in &names {
        zeros(&root.join(name))?;
    }
    for way in &marked {
        let file = open(&root.join(&way.name), 0)?;
        ioctl_setflags(&file, ioctl_getflags(&file)? | IFlags::SYNC)?;
        file.sync_all()?;
    }
    File::open(root)?.sync_all()?;
    map(&root.join("mapped"))?;
    for way in ways.iter().chain(&marked) {
        way.overwrite(root)
            .map_err(|error| format!("{}: {error}", way.name))?;
    }
    expect(&image, mount, &names)
}

#[expect(unsafe_code, reason = "a mapping is raw memory")]
fn map(path: &Path) -> Outcome {
    let file = open(path, 0)?;
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of a file of that length, unmapped below, and not used after.
    unsafe {
        let map = mmap(std::ptr::null_mut(), LEN, both, MapFlags::SHARED, &file, 0)?;
        std::slice::from_raw_parts_mut(map.cast::<u8>(), LEN)[PART].fill(7);
        msync(map, LEN, MsyncFlags::SYNC)?;
        munmap(map, LEN)?;
    }
    Ok(())
}

fn sync_mount(kind: Kind, options: &str) -> Outcome {
    let image = image(kind)?;
    let mount = SapwoodMount::new(image.path(), &format!("{options},sync"))?;
    let ways = plain_ways();
    for way in &ways {
        zeros(&mount.path().join(&way.name))?;
    }
    for way in &ways {
        way.overwrite(mount.path())
            .map_err(|error| format!("{}: {error}", way.name))?;
    }
    let names: Vec<_> = ways.into_iter().map(|way| way.name).collect();
    expect(&image, mount, &names)
}

fn dirsync_mount(kind: Kind, options: &str) -> Outcome {
    for mode in ["sync", "dirsync"] {
        let image = image(kind)?;
        let mount = SapwoodMount::new(image.path(), &format!("{options},{mode}"))?;
        let path = |name: &str| mount.path().join(name);
        for dir in ["a", "b", "empty"] {
            fs::create_dir(path(dir))?;
        }
        drop(File::create(path("a/file"))?);
        drop(File::create(path("a/gone"))?);
        fs::hard_link(path("a/file"), path("b/link"))?;
        std::os::unix::fs::symlink("target", path("b/symlink"))?;
        fs::rename(path("a/file"), path("b/moved"))?;
        fs::remove_file(path("a/gone"))?;
        fs::remove_dir(path("empty"))?;
        mount.kill();
        let mount = SapwoodMount::new(image.path(), "rw")?;
        let list = |dir: &str| -> std::io::Result<Vec<_>> {
            let entries = fs::read_dir(mount.path().join(dir))?;
            let mut names = entries
                .map(|entry| entry.map(|entry| entry.file_name()))
                .collect::<Result<Vec<_>, _>>()?;
            names.retain(|name| name != "lost+found");
            names.sort();
            Ok(names)
        };
        let (top, a, b) = (list("")?, list("a")?, list("b")?);
        Box::new(mount).unmount()?;
        if top != ["a", "b"] || !a.is_empty() || b != ["link", "moved", "symlink"] {
            return Err(format!("{mode}: {top:?} {a:?} {b:?}").into());
        }
        image.check()?;
    }
    Ok(())
}
