//! Replay of logs that the kernel wrote: the same tree as in the kernel, nothing for the checkers
//! to find, and no change by a replay that is refused or cut short.
//!
//! Further images are taken from the directory in `SAPWOOD_LOG_IMAGES`, in addition to
//! `tests/data/logs`.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::image::{judge, try_mount};
use crate::logs::{Log, fixtures, logs_in};
use libtest_mimic::Trial;
use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::check::{CheckOptions, Finding, check};
use sapwood_btrfs::{Btrfs, Error, Options, inspect};
use sapwood_btrfs_format::{Block, BlockMut, ChecksumKind, Header, Item, kind, objectid};
use sapwood_testing::tree::{Detail, Facts, Tree, TreeInode};
use sapwood_testing::{CrashPlan, RecordDevice, Replayer};
use sapwood_vfs::{DirEntry, FileSystem, Timestamp};

/// Sapwood's checker and `btrfs check` report nothing.
fn clean(device: &MemoryDevice) {
    let options = CheckOptions {
        check_data_csum: true,
        ..CheckOptions::default()
    };
    let mut report = check(&[device], &options, &mut |_| {}).unwrap();
    // `mkfs.btrfs` before 6.3 leaves such items of the chunks that it makes first.
    report
        .findings
        .retain(|finding| !matches!(finding, Finding::FreeSpaceInfoStray { .. }));
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    judge(device).unwrap();
}

fn list(fs: &Btrfs) -> Tree {
    Tree::of(fs, Detail::Sums).unwrap()
}

/// Differences between the expected recovery (by the kernel, or by Sapwood) and `ours`. Times of
/// directories may come from the kernel's replay; so may the change time of a file whose name the
/// log removed, and in `ours` it is the time of our replay, not before `start`.
fn differences(kernel: &Tree, ours: &Tree, start: Timestamp) -> Vec<String> {
    let ctime = |node: &TreeInode| node.times.map(|times| times.ctime);
    let files = kernel.nodes.values().filter(|node| !node.is_dir());
    let newest = files
        .filter_map(|node| node.times.map(|times| times.mtime))
        .max();
    kernel.differences(ours, |path, theirs, ours| {
        if path == "." {
            return Facts::KIND | Facts::PERM | Facts::LINKS | Facts::SIZE;
        }
        let at_replay = ctime(ours) >= Some(start) && newest.is_some() && ctime(theirs) > newest;
        let mut facts = Facts::OF_IMAGE;
        facts.set(Facts::MTIME, !theirs.is_dir());
        facts.set(Facts::CTIME, !theirs.is_dir() && !at_replay);
        facts
    })
}

fn as_the_kernel(log: &Log) {
    let device = log.load();
    let start = Timestamp::now();
    let fs = try_mount(device.clone()).unwrap();
    let found = list(&fs);
    fs.unmount().unwrap();
    drop(fs);
    let differences = differences(&Tree::of_text(&log.listing).unwrap(), &found, start);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    clean(&device);
    let again = list(&try_mount(device).unwrap());
    let shown = found.compare(&again, |_, _, _| Facts::OF_IMAGE);
    shown.unwrap_or_else(|why| panic!("another mount shows something else: {why}"));
}

/// Cuts that a log is tried with; all there are with `SAPWOOD_FULL=1`.
const CUTS: usize = 10;

/// At most `most` of `all`, evenly spread, the first and the last among them.
fn sample<T>(all: Vec<T>, most: usize) -> Vec<T> {
    if all.len() <= most || std::env::var_os("SAPWOOD_FULL").is_some_and(|full| full == "1") {
        return all;
    }
    let last = all.len() - 1;
    let wanted: BTreeSet<usize> = (0..most).map(|nth| nth * last / (most - 1)).collect();
    let all = all.into_iter().enumerate();
    all.filter(|(at, _)| wanted.contains(at))
        .map(|(_, one)| one)
        .collect()
}

/// A power cut at any point of a replay, and with any of the last writes lost: the next mount
/// replays all of it.
fn cut_anywhere(log: &Log) {
    let memory = log.load();
    let base = memory.snapshot();
    let device = Arc::new(RecordDevice::new(memory));
    let start = Timestamp::now();
    let fs = try_mount(device.clone()).unwrap();
    let writes = device.log();
    let expected = list(&fs);
    drop(fs);
    let points = writes.crash_points();
    assert!(points.len() > 5, "a replay that writes nothing");
    let points = sample(points, CUTS);
    let mut replayer = Replayer::new(&writes, &base);
    for at in points {
        let plain = replayer.image(&CrashPlan::at(at));
        let random = (0..2).map(|seed| writes.image(&base, &writes.random_plan(at, seed)));
        for (nth, image) in std::iter::once(plain).chain(random).enumerate() {
            let image = Arc::new(image);
            let fs = try_mount(image.clone()).unwrap_or_else(|err| panic!("cut at {at}: {err}"));
            // A replay sets the change time of inodes that lose names to its own time.
            let differences = differences(&expected, &list(&fs), start);
            assert!(
                differences.is_empty(),
                "cut at {at}, variant {nth}: {differences:#?}"
            );
            fs.unmount().unwrap();
        }
    }
}

/// Places of a log block on the device.
struct LogBlockPlace {
    bytenr: u64,
    copies: Vec<u64>,
    bytes: Vec<u8>,
}

/// A change of a block's bytes.
type Damage = (&'static str, fn(&mut [u8]));

const NODESIZE: usize = 16384;

fn log_blocks(device: &Arc<MemoryDevice>) -> Vec<LogBlockPlace> {
    let places = blocks(device, true);
    assert!(!places.is_empty());
    places
}

/// Blocks of the log, or of the trees of the last commit; these with some that no tree has any
/// more.
fn blocks(device: &Arc<MemoryDevice>, of_log: bool) -> Vec<LogBlockPlace> {
    let sb = inspect::super_block(&[device.clone() as Arc<dyn Device>]).unwrap();
    let last = sb.generation.get();
    let wanted = |header: &Header| {
        let generation = header.generation.get();
        let is_log = header.owner.get() == objectid::TREE_LOG;
        if of_log {
            is_log && generation == last + 1
        } else {
            !is_log && generation <= last && header.fsid == sb.tree_fsid()
        }
    };
    let mut places: Vec<LogBlockPlace> = Vec::new();
    // All metadata of these images lies in the front.
    for at in (1 << 20..160 << 20).step_by(NODESIZE) {
        let mut head = [0; Header::SIZE];
        device.read_at(at, &mut head).unwrap();
        let (header, _) = Header::split(&head).unwrap();
        if !wanted(header) {
            continue;
        }
        let bytenr = header.bytenr.get();
        let mut bytes = vec![0; NODESIZE];
        device.read_at(at, &mut bytes).unwrap();
        match places.iter_mut().find(|place| place.bytenr == bytenr) {
            Some(place) => place.copies.push(at),
            None => places.push(LogBlockPlace {
                bytenr,
                copies: vec![at],
                bytes,
            }),
        }
    }
    places
}

fn refused(device: &Arc<MemoryDevice>, why: &str) -> String {
    let before = device.snapshot();
    let error = match try_mount(device.clone()) {
        Ok(_) => panic!("{why}: mounted"),
        Err(error) => error,
    };
    assert!(matches!(error, Error::LogReplay { .. }), "{why}: {error}");
    assert_eq!(device.first_difference(&before), None, "{why}: changed");
    let options = Options {
        read_only: true,
        no_log_replay: true,
        background: false,
        ..Options::default()
    };
    let fs = Btrfs::open(vec![device.clone()], options).unwrap();
    assert!(list(&fs).paths().contains_key(".filler0"), "{why}");
    error.to_string()
}

/// Every block of a log bad, stale, or torn: a mount names it and changes nothing.
fn damage_is_refused(log: &Log) {
    let good = log.load();
    let places = log_blocks(&good);
    // Blocks that an earlier fsync of the transaction wrote are still there; nothing needs them.
    let mut needed = 0;
    for place in &places {
        let kinds: [Damage; 4] = [
            ("a bad checksum", |bytes| bytes[NODESIZE - 3] ^= 1),
            ("a torn write", |bytes| bytes[4096..].fill(0)),
            ("a stale generation", |bytes| {
                bytes[80] ^= 1;
                ChecksumKind::Crc32c.seal_block(bytes);
            }),
            ("an item of no size", |bytes| {
                bytes[Header::SIZE + 21] = 0;
                ChecksumKind::Crc32c.seal_block(bytes);
            }),
        ];
        for (what, damage) in kinds {
            let device = Arc::new(good.snapshot());
            let mut bytes = place.bytes.clone();
            damage(&mut bytes);
            for at in &place.copies {
                device.write_at(*at, &bytes).unwrap();
            }
            if try_mount(Arc::new(device.snapshot())).is_ok() {
                continue;
            }
            needed += 1;
            let why = format!("{what} in block {}", place.bytenr);
            let said = refused(&device, &why);
            assert!(said.contains(&place.bytenr.to_string()), "{why}: {said}");
        }
    }
    assert!(needed >= 8, "only {needed} of the damages were noticed");
}

/// Bad copies of good blocks: one that a mount finds is repaired, unless the mount is refused.
fn only_a_mount_that_succeeds_repairs(log: &Log) {
    let device = log.load();
    let broken = log_blocks(&device);
    let mut damaged = 0;
    for place in blocks(&device, false) {
        let [first, second] = place.copies[..] else {
            continue;
        };
        let mut bytes = vec![0; NODESIZE];
        device.read_at(second, &mut bytes).unwrap();
        if bytes == place.bytes {
            device.write_at(first + 200, &[0xee; 8]).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 5, "{damaged}");
    let good_log = Arc::new(device.snapshot());
    for place in &broken {
        for at in &place.copies {
            device.write_at(at + 200, &[0xee; 8]).unwrap();
        }
    }
    refused(&device, "log and copies damaged");

    let sb = inspect::super_block(&[good_log.clone() as Arc<dyn Device>]).unwrap();
    let before = Arc::new(good_log.snapshot());
    // Replay repairs nothing; the mount that follows reads the top of this tree again.
    try_mount(good_log.clone()).unwrap().unmount().unwrap();
    let repaired = |place: &&LogBlockPlace| {
        let mut bytes = vec![0; NODESIZE];
        good_log.read_at(place.copies[0], &mut bytes).unwrap();
        bytes != place.bytes && place.copies.len() == 2
    };
    let places = blocks(&before, false);
    let top = |place: &&LogBlockPlace| place.bytenr == sb.chunk_root.get();
    assert_eq!(places.iter().filter(top).filter(repaired).count(), 1);
}

/// Random changes of items with right checksums: no panic, and a refused image is unchanged.
fn hostile_items(log: &Log) {
    let good = log.load();
    let places = log_blocks(&good);
    let mut state = 1u64;
    let mut random = move |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % below
    };
    let mut bad = 0;
    for round in 0..60 {
        let place = &places[random(places.len())];
        let mut bytes = place.bytes.clone();
        let block = Block::new(&bytes).unwrap();
        let slot = random(block.nritems());
        let start = Header::SIZE + block.item_offset(slot).unwrap();
        let size = block.item_size(slot).unwrap();
        let in_key = random(3) == 0 || size == 0;
        let at = if in_key {
            Header::SIZE + slot * Item::SIZE + random(17)
        } else {
            start + random(size)
        };
        bytes[at] = match random(3) {
            0 => 0,
            1 => bytes[at] ^ 1,
            _ => random(256) as u8,
        };
        ChecksumKind::Crc32c.seal_block(&mut bytes);
        let device = Arc::new(good.snapshot());
        for copy in &place.copies {
            device.write_at(*copy, &bytes).unwrap();
        }
        let before = device.snapshot();
        if let Err(error) = try_mount(device.clone()) {
            bad += 1;
            let why = format!("round {round}: {error}");
            assert!(matches!(error, Error::LogReplay { .. }), "{why}");
            assert_eq!(device.first_difference(&before), None, "{why}");
        }
    }
    assert!(bad > 2, "only {bad} were refused");
}

/// A mount that changes nothing does not replay; one that does may not ignore the log.
fn options_decide(log: &Log) {
    let device = log.load();
    let before = device.snapshot();
    let open = |read_only, no_log_replay| -> Result<(), Box<Error>> {
        let options = Options {
            read_only,
            no_log_replay,
            background: false,
            ..Options::default()
        };
        Btrfs::open(vec![device.clone()], options)?;
        Ok(())
    };
    let error = open(true, false).unwrap_err();
    assert!(matches!(*error, Error::LogPresent), "{error}");
    assert!(error.to_string().contains("nologreplay"), "{error}");
    let error = open(false, true).unwrap_err();
    assert!(matches!(*error, Error::NoReplayNeedsReadOnly), "{error}");
    open(true, true).unwrap();
    assert_eq!(device.first_difference(&before), None);
    device.set_read_only(true);
    let error = open(false, false).unwrap_err();
    assert!(matches!(*error, Error::LogPresent), "{error}");
    device.set_read_only(false);
    open(false, false).unwrap();
    open(true, false).unwrap();
}

/// Directories that are made each other's parents, or their own, in the refs of the log.
fn rings_of_directories(log: &Log) {
    let good = log.load();
    let places = log_blocks(&good);
    for parents in [[(260, 261), (261, 260)], [(260, 260), (261, 256)]] {
        let device = Arc::new(good.snapshot());
        let mut changed = 0;
        for place in &places {
            let mut bytes = place.bytes.clone();
            changed += parents
                .into_iter()
                .filter(|(dir, parent)| set_parent(&mut bytes, *dir, *parent))
                .count();
            ChecksumKind::Crc32c.seal_block(&mut bytes);
            for copy in &place.copies {
                device.write_at(*copy, &bytes).unwrap();
            }
        }
        assert!(changed >= 2, "the log does not name the directories");
        let said = refused(&device, &format!("{parents:?}"));
        assert!(said.contains("is below itself"), "{said}");
    }
}

/// A log that has extents of a file and not their checksums is replayed, as by Linux 6.18, and
/// reading that data is an error: no unverified bytes are returned.
fn data_without_checksums_cannot_be_read(log: &Log) {
    let device = log.load();
    let mut removed = 0;
    for place in log_blocks(&device) {
        let mut bytes = place.bytes.clone();
        let block = Block::new(&bytes).unwrap();
        let is_sum = |item: &&Item| item.key.get().kind == kind::EXTENT_CSUM;
        let count = block.items().iter().filter(is_sum).count();
        // Theirs are the last keys of a log.
        let first = block.nritems() - count;
        let mut block = BlockMut::new(&mut bytes).unwrap();
        block.remove_items(first, count).unwrap();
        removed += count;
        ChecksumKind::Crc32c.seal_block(&mut bytes);
        for copy in &place.copies {
            device.write_at(*copy, &bytes).unwrap();
        }
    }
    assert!(removed > 0, "the log has no checksums");
    let fs = try_mount(device.clone()).unwrap();
    let file = fs.lookup(fs.root(), b"f").unwrap();
    let size = file.attr.size;
    let mut sector = [0; 4096];
    // Committed data can be read, appended data cannot.
    fs.read(file.ino(), 0, &mut sector).unwrap();
    let error = fs.read(file.ino(), size - 4096, &mut sector).unwrap_err();
    assert_eq!(error.errno(), 5, "{error}");
    fs.unmount().unwrap();
    drop(fs);
    let report = check(&[&*device], &CheckOptions::default(), &mut |_| {}).unwrap();
    let codes: BTreeSet<_> = report.errors().map(Finding::code).collect();
    assert_eq!(Vec::from_iter(codes), ["ChecksumMissing"]);
}

/// An index in the log that no kernel counts to: the directory lists every name once, and ends.
fn indexes_of_any_size_list(log: &Log) {
    let good = log.load();
    let names = |device: &Arc<MemoryDevice>| -> Vec<Vec<u8>> {
        let fs = try_mount(device.clone()).unwrap();
        let (mut names, mut from) = (Vec::new(), 0);
        loop {
            let mut last = None;
            let one = &mut |entry: DirEntry| {
                last = Some(entry);
                ControlFlow::Break(())
            };
            fs.readdir(fs.root(), from, one).unwrap();
            let Some(entry) = last else {
                return names;
            };
            from = entry.next;
            names.push(entry.name);
            assert!(names.len() < 1000, "the listing does not end");
        }
    };
    let mut expected = names(&Arc::new(good.snapshot()));
    expected.sort();
    for index in [1 << 43, 0x0300_0000_0000_0003, u64::MAX - 2] {
        let device = Arc::new(good.snapshot());
        let mut changed = 0;
        for place in log_blocks(&good) {
            let mut bytes = place.bytes.clone();
            changed += usize::from(set_index(&mut bytes, index));
            ChecksumKind::Crc32c.seal_block(&mut bytes);
            for copy in &place.copies {
                device.write_at(*copy, &bytes).unwrap();
            }
        }
        assert!(changed > 0, "the log has no new name");
        let mut found = names(&device);
        found.sort();
        assert_eq!(found, expected, "{index:#x}");
        clean(&device);
    }
}

/// Changes the index of the only name of a new file in the top directory.
fn set_index(bytes: &mut [u8], index: u64) -> bool {
    let block = Block::new(bytes).unwrap();
    let found = (0..block.nritems()).find(|slot| {
        let (key, _) = block.entry(*slot).unwrap();
        (key.kind, key.offset) == (kind::INODE_REF, objectid::FIRST_FREE)
    });
    let Some(slot) = found else { return false };
    let at = Header::SIZE + block.item_offset(slot).unwrap();
    bytes[at..at + 8].copy_from_slice(&index.to_le_bytes());
    true
}

/// Changes the directory in which an inode has its name; the order of keys stays.
fn set_parent(bytes: &mut [u8], inode: u64, parent: u64) -> bool {
    let block = Block::new(bytes).unwrap();
    let found = (0..block.nritems()).find(|slot| {
        let (key, _) = block.entry(*slot).unwrap();
        (key.objectid, key.kind) == (inode, kind::INODE_REF)
    });
    let Some(slot) = found else { return false };
    let at = Header::SIZE + slot * Item::SIZE + 9;
    bytes[at..at + 8].copy_from_slice(&parent.to_le_bytes());
    true
}

type Case = (&'static str, fn(&Log));

const CASES: [Case; 5] = [
    ("cut_anywhere", cut_anywhere),
    ("damage_is_refused", damage_is_refused),
    ("hostile_items", hostile_items),
    (
        "only_a_mount_that_succeeds_repairs",
        only_a_mount_that_succeeds_repairs,
    ),
    ("options_decide", options_decide),
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for log in fixtures() {
        let name = format!("as_the_kernel::{}", log.name);
        let same = log.clone();
        trials.push(trial(name, move || as_the_kernel(&same)));
        for (name, test) in CASES {
            let log = log.clone();
            trials.push(trial(format!("{name}::{}", log.name), move || test(&log)));
        }
        if log.name == "append" {
            let log = log.clone();
            let name = "data_without_checksums_cannot_be_read".to_owned();
            trials.push(trial(name, move || {
                data_without_checksums_cannot_be_read(&log)
            }));
        }
        if log.name == "newfile" {
            let log = log.clone();
            trials.push(trial("indexes_of_any_size_list".to_owned(), move || {
                indexes_of_any_size_list(&log)
            }));
        }
        if log.name == "swap_dirs" {
            trials.push(trial("rings_of_directories".to_owned(), move || {
                rings_of_directories(&log)
            }));
        }
    }
    match std::env::var_os("SAPWOOD_LOG_IMAGES") {
        Some(dir) => {
            for log in logs_in(Path::new(&dir)) {
                let name = format!("as_the_kernel_in_directory::{}", log.name);
                trials.push(trial(name, move || as_the_kernel(&log)));
            }
        }
        None => {
            let skipped = Trial::test("as_the_kernel_in_directory", || Ok(()));
            trials.push(skipped.with_ignored_flag(true));
        }
    }
    trials
}

fn trial(name: String, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}
