//! A mounted file system that grows while files are written, and power cuts during that.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use sapwood_block::{Device, MemoryDevice};
use sapwood_ext4_format::{Compat, FormatError, Geometry, GroupDesc, Incompat, validate_group};
use sapwood_testing::{CrashPlan, RecordDevice, Replayer};
use sapwood_vfs::{FileSystem, SyncKind, WriteMode};

use super::mounted::{Grown, MountedSize, grow_mounted};
use super::{ResizeError, Result};
use crate::mount::read_super;
use crate::oracles::{KERNEL, MIB, TOOLS, clean, file, image, kernel, left_out, open};
use crate::{Ext4, Options};

fn grow(fs: &Ext4, size: MountedSize) -> Result<Grown> {
    grow_mounted(fs, size, &mut |_, _| ControlFlow::Continue(()))
}

fn grown(fs: &Ext4, size: u64) -> u64 {
    grow(fs, MountedSize::Exactly(size)).unwrap().after
}

/// A file system of `small` bytes on a device of `large` bytes.
fn made(args: &str, small: u64, large: u64) -> Arc<MemoryDevice> {
    Arc::new(image(small, args).resized(large))
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at * 7 + seed * 13 + at / 251) as u8)
        .collect()
}

fn put(fs: &Ext4, name: &str, content: &[u8]) {
    let ino = file(fs, name);
    fs.write(ino, 0, content, WriteMode::default()).unwrap();
    fs.fsync(ino, SyncKind::All).unwrap();
    fs.forget(ino, 1);
}

fn has(fs: &Ext4, name: &str, content: &[u8]) -> bool {
    let Ok(found) = fs.lookup(fs.root(), name.as_bytes()) else {
        return false;
    };
    let mut read = vec![0; content.len() + 1];
    let len = fs.read(found.ino(), 0, &mut read).unwrap();
    read.truncate(len);
    fs.forget(found.ino(), 1);
    read == content
}

/// Writes files with fsyncs until it is told to end, and returns their sizes.
fn write_files(fs: &Ext4, ended: &AtomicBool) -> Vec<usize> {
    let mut all = Vec::new();
    while !ended.load(Ordering::Relaxed) && all.len() < 200 {
        let len = 1000 + all.len() % 9 * 3000;
        put(fs, &format!("live{}", all.len()), &bytes(all.len(), len));
        all.push(len);
    }
    all
}

/// Parameters of `mke2fs`, and the sizes in MiB.
const FORMS: &[(&str, [u64; 4])] = &[
    ("-b 4096", [16, 130, 300, 700]),
    ("-b 1024 -g 1024 -J size=4", [12, 20, 41, 60]),
    ("-b 1024 -g 1024 -O fast_commit -J size=4", [12, 13, 41, 60]),
    ("-b 1024 -g 1024 -O quota -J size=4", [12, 13, 41, 60]),
    ("-b 1024 -g 1024 -E resize=20M -J size=4", [12, 18, 40, 80]),
    (
        "-b 1024 -g 256 -O ^resize_inode,^64bit -J size=1",
        [6, 7, 20, 30],
    ),
    ("-b 1024 -g 512 -O meta_bg,^resize_inode", [12, 13, 30, 40]),
    (
        "-b 1024 -g 512 -O ^resize_inode,sparse_super2",
        [12, 15, 30, 40],
    ),
    (
        "-b 1024 -g 512 -O ^resize_inode,^flex_bg,^64bit",
        [12, 13, 30, 40],
    ),
    (
        "-b 1024 -g 1024 -O ^64bit,^metadata_csum,uninit_bg -J size=4",
        [12, 13, 30, 40],
    ),
    ("-b 1024 -g 1024 -t ext3 -J size=4", [12, 13, 30, 40]),
];

#[test]
fn a_mount_grows_while_files_are_written() {
    if left_out(TOOLS) {
        return;
    }
    for (args, [first, sizes @ ..]) in FORMS {
        let device = made(args, first * MIB, sizes[2] * MIB);
        let fs = open(&device);
        put(&fs, "before", &bytes(1, 50_000));
        let ended = AtomicBool::new(false);
        let live = thread::scope(|scope| {
            let writer = scope.spawn(|| write_files(&fs, &ended));
            for size in sizes {
                let before = fs.statfs().unwrap();
                let after = grown(&fs, size * MIB);
                let now = fs.statfs().unwrap();
                assert!(
                    after > (size - 1) * MIB && after <= size * MIB,
                    "{args}: {after}"
                );
                assert!(
                    now.blocks > before.blocks && now.inodes > before.inodes,
                    "{args}"
                );
                assert_eq!(grown(&fs, size * MIB), after, "{args}: again");
            }
            ended.store(true, Ordering::Relaxed);
            writer.join().unwrap()
        });
        // More than fits into the old groups.
        let large = bytes(2, (first + 4) as usize * MIB as usize);
        put(&fs, "large", &large);
        let all = |fs: &Ext4| {
            assert!(
                has(fs, "before", &bytes(1, 50_000)) && has(fs, "large", &large),
                "{args}"
            );
            for (nth, len) in live.iter().enumerate() {
                assert!(
                    has(fs, &format!("live{nth}"), &bytes(nth, *len)),
                    "{args}: {nth}"
                );
            }
        };
        all(&fs);
        let inodes = fs.statfs().unwrap();
        fs.unmount().unwrap();
        drop(fs);
        clean(&device, args);
        let fs = open(&device);
        all(&fs);
        let again = fs.statfs().unwrap();
        assert_eq!(
            (inodes.blocks, inodes.inodes),
            (again.blocks, again.inodes),
            "{args}"
        );
        assert_eq!(inodes.blocks_free, again.blocks_free, "{args}");
        assert_eq!(inodes.inodes_free, again.inodes_free, "{args}");
        fs.unmount().unwrap();
    }
}

#[test]
fn past_its_reserved_blocks_a_mount_gets_meta_groups_which_the_kernel_reads() {
    if left_out(TOOLS) || left_out(KERNEL) {
        return;
    }
    let device = made(
        "-b 1024 -g 1024 -E resize=20M -J size=4",
        12 * MIB,
        80 * MIB,
    );
    let fs = open(&device);
    let content = bytes(3, 30_000_000);
    grown(&fs, 80 * MIB);
    put(&fs, "large", &content);
    fs.unmount().unwrap();
    drop(fs);
    let features = read_super(&*device).unwrap().features();
    assert!(features.has_incompat(Incompat::META_BG));
    assert!(!features.has_compat(Compat::RESIZE_INODE));
    clean(&device, "meta groups");
    kernel(&device, |dir| {
        assert!(std::fs::read(dir.join("large")).unwrap() == content);
    });
}

/// Checks the descriptors of all groups that the superblock counts, as a kernel does before it
/// recovers the journal.
fn has_descriptors(device: &MemoryDevice, what: &str) -> u64 {
    let geometry = Geometry::new(&read_super(device).unwrap()).unwrap();
    for group in 0..geometry.group_count() {
        let (block, offset) = geometry.descriptor_block(group).unwrap();
        let mut bytes = vec![0; geometry.desc_size().into()];
        let at = (block << geometry.block_bits()) + u64::from(offset);
        device.read_at(at, &mut bytes).unwrap();
        let desc = GroupDesc::read(&bytes, &geometry).unwrap();
        let valid = desc.verify_checksum(group, &geometry);
        let valid = valid.and_then(|()| validate_group(group, &desc, &geometry));
        // The last group may be longer already, which no kernel looks at before.
        let longer = matches!(valid, Err(FormatError::GroupCount { .. }));
        assert!(valid.is_ok() || longer, "{what}: group {group}: {valid:?}");
    }
    geometry.blocks_count() << geometry.block_bits()
}

/// The content of a file by its number.
fn content(nth: usize) -> Vec<u8> {
    bytes(nth, 2000 + nth * 5000)
}

/// Positions of a record at which something was acknowledged: a file, by its number, or a growth.
type Acknowledged = Vec<(usize, Option<usize>)>;

/// Puts three files, grows, and puts three more. Returns the position at which the growth begins.
fn grown_between_files(
    fs: &Ext4,
    record: &RecordDevice<MemoryDevice>,
    size: u64,
) -> (usize, Acknowledged) {
    let mut acknowledged = Vec::new();
    let mut begun = 0;
    for nth in 0..6 {
        if nth == 3 {
            begun = record.position();
            grown(fs, size);
            acknowledged.push((record.position(), None));
        }
        put(fs, &format!("f{nth}"), &content(nth));
        acknowledged.push((record.position(), Some(nth)));
    }
    (begun, acknowledged)
}

#[test]
fn every_cut_of_a_growth_leaves_a_file_system_with_what_was_acknowledged() {
    if left_out(TOOLS) {
        return;
    }
    for (args, sizes, each) in [
        ("-b 1024 -g 1024 -J size=4", [12, 24], 1),
        (
            "-b 1024 -g 1024 -O fast_commit -E resize=20M -J size=4",
            [12, 40],
            3,
        ),
        ("-b 1024 -g 256 -O ^resize_inode -J size=1", [6, 30], 5),
    ] {
        let base = image(sizes[0] * MIB, args).resized(sizes[1] * MIB);
        let record = Arc::new(RecordDevice::new(base.snapshot()));
        let options = Options {
            background: false,
            ..Options::default()
        };
        let fs = Ext4::open(record.clone(), options).unwrap();
        let (begun, acknowledged) = grown_between_files(&fs, &record, sizes[1] * MIB);
        let ended = record.position();
        fs.unmount().unwrap();
        drop(fs);
        let log = record.log();
        let mut replayer = Replayer::new(&log, &base);
        let (mut seen, mut all) = ([0, 0], 0);
        let points = log.crash_points().into_iter();
        let points = points.filter(|at| (begun..=ended).contains(at));
        for (turn, at) in points.step_by(each).enumerate() {
            let mut torn = log.random_plan(at, at as u64);
            torn.torn.clear();
            let cuts = [replayer.image(&CrashPlan::at(at)), log.image(&base, &torn)];
            for (which, cut) in cuts.into_iter().enumerate() {
                let what = format!("{args}: cut {at} ({which})");
                let before = has_descriptors(&cut, &what);
                let cut = Arc::new(cut);
                let fs = open(&cut);
                let is_larger = fs.engine.geometry.blocks_count() > sizes[0] << 10;
                for (_, nth) in acknowledged.iter().filter(|(when, _)| *when <= at) {
                    let Some(nth) = *nth else {
                        assert!(is_larger, "{what}: the new size is lost");
                        continue;
                    };
                    assert!(
                        has(&fs, &format!("f{nth}"), &content(nth)),
                        "{what}: f{nth}"
                    );
                }
                let after = fs.engine.geometry.blocks_count() << 10;
                seen[usize::from(after > sizes[0] * MIB)] += 1;
                all += usize::from(before != after);
                fs.unmount().unwrap();
                drop(fs);
                if turn % 3 == which {
                    clean(&cut, &what);
                }
            }
        }
        assert!(
            seen[0] > 5 && seen[1] > 5 && all > 0,
            "{args}: {seen:?} {all}"
        );
    }
}

#[test]
fn what_cannot_grow_is_refused_by_name_and_unchanged() {
    if left_out(TOOLS) {
        return;
    }
    let device = made("-b 1024 -J size=4", 16 * MIB, 32 * MIB);
    let fs = open(&device);
    let refused = |fs: &Ext4, size| grow(fs, MountedSize::Exactly(size)).unwrap_err();
    assert!(matches!(refused(&fs, 8 * MIB), ResizeError::Shrinks { .. }));
    assert!(matches!(
        refused(&fs, 64 * MIB),
        ResizeError::PastEnd { .. }
    ));
    let stopped = grow_mounted(&fs, MountedSize::Max, &mut |_, _| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(ResizeError::Interrupted)));
    // Too little for a group.
    grown(&fs, (16 << 20) + 1024);
    let Grown { before, after } = grow(&fs, MountedSize::More(20 << 10)).unwrap();
    assert_eq!(before, after);
    fs.unmount().unwrap();
    drop(fs);
    clean(&device, "refused");
    let small = made("-b 1024 -g 1024 -J size=1", 12 * MIB, 32 * MIB);
    let fs = open(&small);
    assert!(matches!(
        refused(&fs, 32 * MIB),
        ResizeError::SmallJournal { .. }
    ));
    fs.unmount().unwrap();
    let plain = made("-b 1024 -O ^has_journal", 16 * MIB, 32 * MIB);
    let fs = open(&plain);
    assert!(matches!(
        refused(&fs, 32 * MIB),
        ResizeError::NoJournalMounted
    ));
    fs.unmount().unwrap();
    let fs = Ext4::open(
        device.clone() as Arc<dyn Device>,
        Options {
            read_only: true,
            ..Options::default()
        },
    )
    .unwrap();
    assert!(grow(&fs, MountedSize::Max).is_err());
}
