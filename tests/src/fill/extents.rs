//! Kinds of extents: inline, regular, preallocated, compressed and shared ones, holes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, IFlags, XattrFlags, copy_file_range, fallocate};
use rustix::io::Errno;

use super::Fill;

/// Opens a file to read and write, new or not.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

pub(super) fn data(fill: &mut Fill<'_>) -> io::Result<()> {
    let dir = fill.dir("data")?;
    let large = fill.limits.large;
    let sizes = [
        0, 1, 100, 2047, 2048, 2049, 3000, 4095, 4096, 4097, 8192, 65_536, 131_073, 1_048_593,
        large,
    ];
    for size in sizes {
        fs::write(dir.join(format!("bytes-{size}")), fill.random.bytes(size))?;
        fs::write(dir.join(format!("text-{size}")), fill.random.text(size))?;
    }
    fs::write(dir.join("zeros"), vec![0; 300_000])?;
    grown(fill, &dir)?;
    rewritten(fill, &dir)?;
    truncated(fill, &dir)
}

/// Files that grew by small appends, with and without a sync between.
fn grown(fill: &mut Fill<'_>, dir: &Path) -> io::Result<()> {
    let mut file = File::create(dir.join("grown"))?;
    for step in 0..200 {
        let len = usize::try_from(fill.random.below(3000)).unwrap();
        file.write_all(&fill.random.bytes(len))?;
        if step % 67 == 0 {
            file.sync_all()?;
        }
    }
    // Inline first, regular later.
    let mut file = File::create(dir.join("grown-out-of-inline"))?;
    file.write_all(&fill.random.text(500))?;
    file.sync_all()?;
    file.write_all(&fill.random.text(9000))
}

/// Overwrites in the middle of written data split its extents.
fn rewritten(fill: &mut Fill<'_>, dir: &Path) -> io::Result<()> {
    let file = open(&dir.join("rewritten"))?;
    file.write_all_at(&fill.random.bytes(1 << 20), 0)?;
    file.sync_all()?;
    for _ in 0..60 {
        let at = fill.random.below(1 << 20);
        let len = usize::try_from(fill.random.below(20_000)).unwrap();
        file.write_all_at(&fill.random.bytes(len), at)?;
    }
    file.sync_data()?;
    for _ in 0..20 {
        let at = fill.random.below(250) << 12;
        file.write_all_at(&fill.random.bytes(4096), at)?;
    }
    Ok(())
}

fn truncated(fill: &mut Fill<'_>, dir: &Path) -> io::Result<()> {
    for (name, first, second) in [
        ("shorter", 200_000, 70_001),
        ("longer", 70_001, 200_000),
        ("to-inline", 50_000, 900),
        ("to-nothing", 9000, 0),
    ] {
        let file = open(&dir.join(format!("truncated-{name}")))?;
        file.write_all_at(&fill.random.bytes(first), 0)?;
        file.sync_all()?;
        file.set_len(second)?;
    }
    // Truncated bytes must read as zeros when the file grows again.
    let file = open(&dir.join("truncated-and-grown"))?;
    file.write_all_at(&fill.random.bytes(100_000), 0)?;
    file.sync_all()?;
    file.set_len(30_001)?;
    file.set_len(90_000)?;
    file.write_all_at(b"end", 89_997)
}

pub(super) fn sparse(fill: &mut Fill<'_>) -> io::Result<()> {
    let dir = fill.dir("sparse")?;
    open(&dir.join("all-hole"))?.set_len(10 << 20)?;
    let file = open(&dir.join("islands"))?;
    let far = fill.limits.far;
    for at in [1 << 20, 3 << 20, (5 << 20) + 777, far] {
        file.write_all_at(&fill.random.bytes(10_000), at)?;
    }
    file.set_len(far + (1 << 20))?;
    let file = open(&dir.join("behind-inline"))?;
    file.write_all_at(b"start", 0)?;
    file.sync_all()?;
    file.write_all_at(b"far", 1 << 20)?;
    let file = open(&dir.join("hole-at-front"))?;
    file.write_all_at(&fill.random.text(8192), 4096)?;
    preallocated(fill, &dir)?;
    punched(fill, &dir)
}

fn preallocated(fill: &mut Fill<'_>, dir: &Path) -> io::Result<()> {
    if !fill.limits.unwritten {
        return Ok(());
    }
    let none = FallocateFlags::empty();
    let keep = FallocateFlags::KEEP_SIZE;
    fallocate(&open(&dir.join("preallocated"))?, none, 0, 1 << 20)?;
    let file = open(&dir.join("preallocated-beyond-end"))?;
    file.write_all_at(&fill.random.bytes(5000), 0)?;
    file.sync_all()?;
    fallocate(&file, keep, 8192, 1 << 20)?;
    let file = open(&dir.join("preallocated-partly-written"))?;
    fallocate(&file, none, 0, 1 << 20)?;
    file.sync_all()?;
    for at in [0, 40_960, 100_001, (1 << 20) - 4096] {
        file.write_all_at(&fill.random.bytes(4096), at)?;
    }
    let file = open(&dir.join("preallocated-between"))?;
    file.write_all_at(&fill.random.bytes(20_000), 0)?;
    file.write_all_at(&fill.random.bytes(20_000), 200_000)?;
    file.sync_all()?;
    fallocate(&file, none, 10_000, 250_000)?;
    Ok(())
}

fn punched(fill: &mut Fill<'_>, dir: &Path) -> io::Result<()> {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let zero = FallocateFlags::ZERO_RANGE;
    for (name, from, len) in [
        ("aligned", 65_536, 131_072),
        ("odd", 70_001, 99_999),
        ("within-block", 8200, 100),
        ("to-end", 400_000, 200_000),
    ] {
        let file = open(&dir.join(format!("punched-{name}")))?;
        file.write_all_at(&fill.random.bytes(500_000), 0)?;
        file.sync_all()?;
        fallocate(&file, punch, from, len)?;
        if !fill.limits.unwritten {
            continue;
        }
        let file = open(&dir.join(format!("zeroed-{name}")))?;
        file.write_all_at(&fill.random.bytes(500_000), 0)?;
        file.sync_all()?;
        fallocate(&file, zero | FallocateFlags::KEEP_SIZE, from, len)?;
    }
    let file = open(&dir.join("punched-all"))?;
    // Removed before it was ever written back.
    file.write_all_at(&fill.random.bytes(98_304), 0)?;
    fallocate(&file, punch, 0, 98_304)?;
    Ok(())
}

/// Copies a range as a reflink where the driver can (`copy_file_range` does so in btrfs).
fn share(from: &File, from_at: u64, to: &File, to_at: u64, len: u64) -> io::Result<()> {
    let (mut from_at, mut to_at, mut left) = (from_at, to_at, len);
    while left > 0 {
        let piece = usize::try_from(left).unwrap();
        match copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), piece) {
            Ok(0) => return Err(io::Error::other("copy_file_range copied nothing")),
            Ok(done) => left -= done as u64,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

pub(super) fn shared(fill: &mut Fill<'_>) -> io::Result<()> {
    let dir = fill.dir("shared")?;
    let source = open(&dir.join("source"))?;
    source.write_all_at(&fill.random.bytes(1 << 20), 0)?;
    source.sync_all()?;
    for copy in 0..5 {
        let whole = open(&dir.join(format!("whole-{copy}")))?;
        share(&source, 0, &whole, 0, 1 << 20)?;
        if copy % 2 == 1 {
            whole.write_all_at(&fill.random.bytes(12_288), 65_536 * copy)?;
        }
    }
    let parts = open(&dir.join("parts"))?;
    for step in 0..8 {
        share(
            &source,
            step * 131_072,
            &parts,
            (7 - step) * 131_072,
            65_536,
        )?;
    }
    // Within one file.
    share(&source, 0, &source, 2 << 20, 262_144)?;
    // The end of a file that does not end with a block.
    let odd = open(&dir.join("odd"))?;
    odd.write_all_at(&fill.random.bytes(50_001), 0)?;
    odd.sync_all()?;
    let copy = open(&dir.join("odd-copy"))?;
    share(&odd, 0, &copy, 0, 50_001)?;
    let text = open(&dir.join("inline"))?;
    text.write_all_at(b"small enough to be inline", 0)?;
    text.sync_all()?;
    let copy = open(&dir.join("inline-copy"))?;
    share(&text, 0, &copy, 0, 25)?;
    let gone = open(&dir.join("gone"))?;
    share(&source, 524_288, &gone, 0, 131_072)?;
    drop(gone);
    fs::remove_file(dir.join("gone"))
}

pub(super) fn packed(fill: &mut Fill<'_>) -> io::Result<()> {
    if !fill.limits.packed {
        return Ok(());
    }
    let dir = fill.dir("packed")?;
    let set = |name: &str| -> io::Result<File> {
        let file = File::create_new(dir.join(name))?;
        rustix::fs::ioctl_setflags(&file, IFlags::COMPRESSED)?;
        Ok(file)
    };
    set("text")?.write_all(&fill.random.text(400_000))?;
    set("bytes")?.write_all(&fill.random.bytes(200_000))?;
    set("inline")?.write_all(&fill.random.text(1900))?;
    set("block-of-zeros")?.write_all(&vec![0; 1 << 20])?;
    let mixed = set("mixed")?;
    for piece in 0..6 {
        let bytes = if piece % 2 == 0 {
            fill.random.text(70_000)
        } else {
            fill.random.bytes(70_000)
        };
        mixed.write_all_at(&bytes, piece * 70_000)?;
        mixed.sync_all()?;
    }
    mixed.write_all_at(&fill.random.text(50_000), 33_333)?;
    mixed.set_len(399_999)?;
    for algorithm in ["zlib", "lzo", "zstd"] {
        let path = dir.join(format!("by-{algorithm}"));
        let file = File::create_new(&path)?;
        let none = XattrFlags::empty();
        rustix::fs::setxattr(&path, "btrfs.compression", algorithm.as_bytes(), none)?;
        file.write_all_at(&fill.random.text(300_000), 0)?;
        file.sync_all()?;
        file.write_all_at(&fill.random.text(10_000), 100_000)?;
    }
    let below = dir.join("below");
    fs::create_dir(&below)?;
    rustix::fs::ioctl_setflags(&File::open(&below)?, IFlags::COMPRESSED)?;
    fs::write(below.join("heir"), fill.random.text(100_000))
}

pub(super) fn nocow(fill: &mut Fill<'_>) -> io::Result<()> {
    if !fill.limits.cow {
        return Ok(());
    }
    let dir = fill.dir("nocow")?;
    let file = File::create_new(dir.join("file"))?;
    rustix::fs::ioctl_setflags(&file, IFlags::NOCOW)?;
    file.write_all_at(&fill.random.bytes(600_000), 0)?;
    file.sync_all()?;
    for step in 0..10 {
        file.write_all_at(&fill.random.bytes(9000), step * 50_000)?;
    }
    let file = File::create_new(dir.join("preallocated"))?;
    rustix::fs::ioctl_setflags(&file, IFlags::NOCOW)?;
    fallocate(&file, FallocateFlags::empty(), 0, 300_000)?;
    file.write_all_at(&fill.random.bytes(100_000), 50_000)?;
    let below = dir.join("below");
    fs::create_dir(&below)?;
    rustix::fs::ioctl_setflags(&File::open(&below)?, IFlags::NOCOW)?;
    fs::write(below.join("heir"), fill.random.bytes(100_000))
}
