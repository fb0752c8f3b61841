//! Receives that end at once, as by `kill -9` or a power cut, and their continuation.

use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_testing::tree::Facts;
use sapwood_testing::{CrashPlan, RecordDevice, Replayer};

use super::super::ReceiveOptions;
use super::interrupted::{
    SAME, Streams, assert_clean, directory, empty, ends, in_image, into, into_image, is_complete,
    open, streams, tree,
};
use super::random_stream::random_stream;
use crate::{FileSystem, ImageBuilder};

/// A stream after which the receive ends without another step of it.
struct Killed<'s>(&'s [u8]);

impl Read for Killed<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            resume_unwind(Box::new("killed"));
        }
        self.0.read(buf)
    }
}

/// Receives the commands of a stream into a directory, and then ends without a checkpoint.
pub(super) fn killed_after(dir: &Path, stream: &[u8], checkpoint: u64, resume: bool) {
    let options = ReceiveOptions {
        checkpoint,
        resume,
        ..ReceiveOptions::default()
    };
    let receive = || super::super::receive(dir, Killed(stream), &options, &mut |_| {});
    let ended = catch_unwind(AssertUnwindSafe(receive));
    assert_eq!(ended.unwrap_err().downcast_ref(), Some(&"killed"));
}

#[test]
fn commands_in_any_order_are_resumed_in_a_directory() {
    for seed in 0..40 {
        let stream = random_stream(seed, 120);
        let whole = directory();
        into(whole.path(), &stream, false).unwrap();
        let expected = tree(whole.path(), "s");
        let mut random = fastrand::Rng::with_seed(seed);
        let ends = ends(&stream);
        let dir = directory();
        let interval = [600, 20_000, u64::MAX][random.usize(..3)];
        // Killed several times, at later and later commands, and sometimes at an earlier one.
        let mut at = 0_usize;
        for round in 0..6 {
            at = random.usize(at.saturating_sub(10)..ends.len() - 1);
            killed_after(dir.path(), &stream[..ends[at]], interval, round > 0);
        }
        into(dir.path(), &stream, true).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let found = tree(dir.path(), "s");
        expected
            .compare(&found, |_, _, _| Facts::PLAIN)
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// A stream during which other users of the image commit its metadata, without the data of the
/// received files.
struct Disturbed<'s, F: FnMut()> {
    stream: &'s [u8],
    random: fastrand::Rng,
    commit: F,
}

impl<F: FnMut()> Read for Disturbed<'_, F> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.random.u8(..20) == 0 {
            (self.commit)();
        }
        self.stream.read(buf)
    }
}

/// Commits the metadata of an image.
fn commit(fs: &FileSystem, number: &mut u32) {
    *number += 1;
    if fs.kind() == crate::Kind::Btrfs {
        fs.snapshot_read_only("/other", format!("/x{number}"))
            .unwrap();
        fs.delete_subvolume(format!("/x{number}")).unwrap();
    } else {
        let mut file = fs.create("/outside2").unwrap();
        std::io::Write::write_all(&mut file, b"text").unwrap();
        file.sync_all().unwrap();
    }
}

/// Cuts power at each write of a receive, also with a part of the writes that no flush followed,
/// and resumes it. A whole receive has the same `facts`.
fn cut_everywhere(builder: ImageBuilder, stream: &[u8], name: &str, interval: u64, facts: Facts) {
    cut_after(&empty(builder), stream, name, interval, facts);
}

/// The same of a receive into an image that is not empty.
fn cut_after(base: &MemoryDevice, stream: &[u8], name: &str, interval: u64, facts: Facts) {
    let prepared = Arc::new(base.snapshot());
    let device: Arc<dyn Device> = prepared.clone();
    let fs = open(&device);
    let btrfs = fs.kind() == crate::Kind::Btrfs;
    if btrfs {
        fs.create_subvolume("/other").unwrap();
    }
    fs.close().unwrap();
    let base = prepared.snapshot();
    let record = Arc::new(RecordDevice::new(base.snapshot()));
    let device: Arc<dyn Device> = record.clone();
    let fs = open(&device);
    let mut number = 0;
    let disturbed = Disturbed {
        stream,
        random: fastrand::Rng::with_seed(interval),
        commit: || commit(&fs, &mut number),
    };
    let options = ReceiveOptions {
        checkpoint: interval,
        ..ReceiveOptions::default()
    };
    fs.receive("/", disturbed, &options, &mut |_| {}).unwrap();
    let expected = in_image(&fs, &format!("/{name}"));
    fs.close().unwrap();
    let log = record.log();
    let mut replayer = Replayer::new(&log, &base);
    let mut parts = 0;
    for at in log.crash_points() {
        for plan in [CrashPlan::at(at), log.random_plan(at, at as u64)] {
            let what = format!("{interval}, {plan:?}");
            let device: Arc<dyn Device> = Arc::new(replayer.image(&plan));
            let fs = open(&device);
            assert_eq!(fs.read("/outside").unwrap(), b"kept", "{what}");
            parts += u32::from(fs.exists(format!("/{name}")).unwrap());
            let received = into_image(&fs, stream, true);
            assert!(received.is_ok(), "{what}: {received:?}");
            let found = in_image(&fs, &format!("/{name}"));
            let same = expected.compare(&found, |_, _, _| facts);
            same.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(!btrfs || is_complete(&fs, name) == Some(true), "{what}");
            for entry in fs.read_dir("/").unwrap() {
                let name = entry.unwrap().file_name().as_encoded_bytes().to_vec();
                assert!(!name.starts_with(b".sapwood-receive-"), "{what}");
            }
            fs.close().unwrap();
            if btrfs {
                assert_clean(&device, &what);
            }
        }
    }
    assert!(parts > 0);
}

#[test]
fn a_receive_into_btrfs_is_resumed_after_each_power_cut() {
    let Streams { full, .. } = streams(1);
    cut_everywhere(ImageBuilder::btrfs(), &full, "a", u64::MAX, SAME);
    cut_everywhere(ImageBuilder::btrfs(), &full, "a", 400, SAME);
    for seed in 0..3 {
        let stream = random_stream(seed, 100);
        let interval = [u64::MAX, 30_000, 100_000][seed as usize];
        cut_everywhere(ImageBuilder::btrfs(), &stream, "s", interval, Facts::PLAIN);
    }
}

#[test]
fn a_receive_into_ext4_is_resumed_after_each_power_cut() {
    let Streams { full, changes } = streams(1);
    let base = Arc::new(empty(ImageBuilder::ext4()).snapshot());
    let fs = open(&(base.clone() as Arc<dyn Device>));
    into_image(&fs, &full, false).unwrap();
    fs.close().unwrap();
    for interval in [u64::MAX, 400] {
        cut_after(&base, &changes, "b", interval, SAME);
    }
    cut_everywhere(ImageBuilder::ext4(), &full, "a", u64::MAX, SAME);
    cut_everywhere(ImageBuilder::ext4(), &full, "a", 400, SAME);
    for seed in 0..3 {
        let stream = random_stream(seed, 100);
        let interval = [u64::MAX, 30_000, 100_000][seed as usize];
        cut_everywhere(ImageBuilder::ext4(), &stream, "s", interval, Facts::PLAIN);
    }
}
