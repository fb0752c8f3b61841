//! Power cuts at every point of a recorded workload: the next mount finds the last commit whole.

use std::sync::Arc;

use crate::image::{formatted, judge, mount, try_mount};
use sapwood_block::MemoryDevice;
use sapwood_btrfs::Btrfs;
use sapwood_testing::{CrashPlan, RecordDevice, Replayer};
use sapwood_vfs::{Credentials, FileSystem, Ino, NewInode, SyncKind, WriteMode};

const SIZE: u64 = 256 << 20;
const ROUNDS: u8 = 8;

fn name(round: u8) -> [u8; 2] {
    [b'f', b'a' + round]
}

/// Round after round: a file is written and synced, older ones are overwritten and removed.
fn workload(fs: &Btrfs, device: &RecordDevice<Arc<MemoryDevice>>) {
    let root = fs.root();
    let create = |dir: Ino, name: &[u8], what| {
        fs.create(&Credentials::ROOT, dir, name, what, 0o600)
            .unwrap()
            .ino()
    };
    for round in 0..ROUNDS {
        let file = create(root, &name(round), NewInode::Regular);
        fs.write(
            file,
            0,
            &vec![round + 1; 3000 + usize::from(round) * 9000],
            WriteMode::default(),
        )
        .unwrap();
        if round >= 3 {
            fs.unlink(root, &name(round - 3)).unwrap();
        }
        if round % 2 == 0 {
            fs.fsync(file, SyncKind::All).unwrap();
        } else {
            fs.sync().unwrap();
        }
        device.mark(format!("{round}"));
    }
}

/// All rounds that were acknowledged at the cut are there; a later one may be, whole.
fn verify(image: MemoryDevice, acknowledged: Option<u8>, why: &str) {
    let image = Arc::new(image);
    let fs = try_mount(image).unwrap_or_else(|error| panic!("{why}: {error}"));
    let root = fs.root();
    let there: Vec<u8> = (0..ROUNDS)
        .filter(|round| fs.lookup(root, &name(*round)).is_ok())
        .collect();
    let newest = there.iter().copied().max();
    assert!(
        newest >= acknowledged,
        "{why}: {acknowledged:?} was acknowledged, {there:?} are there"
    );
    if let Some(newest) = newest {
        // A removal is durable only with the next sync: fsync is about one file.
        let mut expected: Vec<u8> = (newest.saturating_sub(2)..=newest).collect();
        let unsynced = newest.checked_sub(3).filter(|_| newest.is_multiple_of(2));
        if let Some(removed) = unsynced.filter(|removed| there.contains(removed)) {
            expected.insert(0, removed);
        }
        assert_eq!(there, expected, "{why}");
    }
    for round in there {
        let file = fs.lookup(root, &name(round)).unwrap();
        let mut buf = vec![0; 3000 + usize::from(round) * 9000];
        assert_eq!(file.attr.size, buf.len() as u64, "{why}");
        assert_eq!(
            fs.read(file.ino(), 0, &mut buf).unwrap(),
            buf.len(),
            "{why}"
        );
        assert!(
            buf.iter().all(|byte| *byte == round + 1),
            "{why}: content of round {round}"
        );
    }
    fs.unmount().unwrap();
}

#[test]
fn every_cut_point_leaves_the_last_commit_whole() {
    let memory = formatted(SIZE);
    let base = memory.snapshot();
    let device = Arc::new(RecordDevice::new(memory));
    let fs = mount(device.clone());
    workload(&fs, &device);
    let log = device.log();
    drop(fs);
    let mut replayer = Replayer::new(&log, &base);
    let points = log.crash_points();
    assert!(points.len() > 50, "only {} cut points", points.len());
    for (number, at) in points.into_iter().enumerate() {
        let acknowledged = log
            .marks_before(at)
            .filter_map(|(_, mark)| mark.parse().ok())
            .max();
        let why = format!("cut at step {at}");
        let image = replayer.image(&CrashPlan::at(at));
        // The external checker takes a process for each image: every tenth will do.
        if number % 10 == 0 {
            judge(&image).unwrap_or_else(|error| panic!("{why}: {error}"));
        }
        verify(image, acknowledged, &why);
        for seed in 0..3 {
            let plan = log.random_plan(at, seed);
            verify(
                log.image(&base, &plan),
                acknowledged,
                &format!("{why}, plan {plan:?} of seed {seed}"),
            );
        }
    }
}
