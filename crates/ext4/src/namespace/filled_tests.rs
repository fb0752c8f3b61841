//! Small files that are created with their content, judged by `e2fsck` and beside those that are
//! created, written and given their times.

use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_testing::{
    CrashPlan, Fault, FaultDevice, FaultRule, RecordDevice, Replayer, RequestKinds,
};
use sapwood_vfs::{
    Content, Credentials, Entry, FileSystem, Ino, NewInode, SetAttr, SetTime, Timestamp, WriteMode,
};

use crate::options::DataMode;
use crate::oracles::{MIB, TOOLS, clean, image, left_out, open};
use crate::{Ext4, Options};

const TIMES: (Timestamp, Timestamp) = (
    Timestamp {
        sec: 1_000,
        nsec: 7,
    },
    Timestamp {
        sec: 2_000,
        nsec: 9,
    },
);

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(7) ^ seed)
        .collect()
}

fn filled(fs: &Ext4, name: &str, data: &[u8]) -> Option<Entry> {
    let content = Content {
        data,
        atime: TIMES.0,
        mtime: TIMES.1,
    };
    let who = Credentials::ROOT;
    fs.create_filled(&who, fs.root(), name.as_bytes(), 0o640, &content)
        .unwrap()
}

/// The same in three steps.
fn written(fs: &Ext4, name: &str, data: &[u8]) -> Ino {
    let (who, what) = (Credentials::ROOT, NewInode::Regular);
    let made = fs.create(&who, fs.root(), name.as_bytes(), what, 0o640);
    let ino = made.unwrap().ino();
    fs.write(ino, 0, data, WriteMode::default()).unwrap();
    let times = SetAttr {
        atime: Some(SetTime::To(TIMES.0)),
        mtime: Some(SetTime::To(TIMES.1)),
        ..SetAttr::default()
    };
    fs.setattr(ino, &times).unwrap();
    ino
}

fn content(fs: &Ext4, ino: Ino) -> Vec<u8> {
    let mut found = vec![0; 70_000];
    let len = fs.read(ino, 0, &mut found).unwrap();
    found.truncate(len);
    found
}

#[test]
fn a_filled_file_is_as_one_that_is_written() {
    if left_out(TOOLS) {
        return;
    }
    for args in [
        "-b 4096",
        "-b 1024",
        "-O ^has_journal",
        "-O fast_commit",
        "-I 128",
    ] {
        let device = image(64 * MIB, args);
        let fs = open(&device);
        let most = fs.most_filled() as usize;
        let sizes = [1, 1023, 4096, 5000, most];
        for (size, seed) in sizes.into_iter().zip(1..) {
            let data = bytes(size, seed);
            let one = filled(&fs, &format!("f{size}"), &data).unwrap();
            let other = written(&fs, &format!("w{size}"), &data);
            fs.sync().unwrap();
            let (one, other) = (one.attr, fs.getattr(other).unwrap());
            assert_eq!(
                (one.size, one.allocated),
                (other.size, other.allocated),
                "{args}"
            );
            assert_eq!((one.perm, one.uid, one.nlink), (0o640, 0, 1));
            assert_eq!((one.atime, one.mtime), (other.atime, other.mtime), "{args}");
        }
        assert!(filled(&fs, "long", &bytes(most + 1, 1)).is_none());
        assert!(filled(&fs, "empty", b"").is_none());
        fs.unmount().unwrap();
        drop(fs);
        clean(&device, args);
        let fs = open(&device);
        for (size, seed) in sizes.into_iter().zip(1..) {
            let found = fs.lookup(fs.root(), format!("f{size}").as_bytes()).unwrap();
            assert_eq!(content(&fs, found.ino()), bytes(size, seed), "{args}");
            // It can be written as any other.
            fs.write(found.ino(), size as u64, b"more", WriteMode::default())
                .unwrap();
        }
        assert!(fs.lookup(fs.root(), b"long").is_err());
        fs.unmount().unwrap();
        clean(&device, args);
    }
}

#[test]
fn what_has_steps_of_its_own_is_not_filled() {
    if left_out(TOOLS) {
        return;
    }
    for args in ["-O inline_data", "-O ^extents,^64bit"] {
        let fs = open(&image(16 * MIB, args));
        assert_eq!(fs.most_filled(), 0, "{args}");
        assert!(filled(&fs, "f", b"data").is_none());
        assert!(fs.lookup(fs.root(), b"f").is_err());
    }
    let options = Options {
        background: false,
        data: DataMode::Journal,
        ..Options::default()
    };
    let fs = Ext4::open(image(16 * MIB, ""), options).unwrap();
    assert_eq!(fs.most_filled(), 0);
}

#[test]
fn without_space_nothing_has_happened() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(8 * MIB, "-b 4096 -m 0");
    let fs = open(&device);
    let ino = written(&fs, "large", b"begin");
    let mut at = 0;
    while fs.write(ino, at, &[5; 4096], WriteMode::default()).is_ok() {
        at += 4096;
    }
    fs.sync().unwrap();
    let before = fs.statfs().unwrap();
    assert!(filled(&fs, "f", &bytes(65_536, 1)).is_none());
    assert!(fs.lookup(fs.root(), b"f").is_err());
    let after = fs.statfs().unwrap();
    assert_eq!(after.blocks_free, before.blocks_free);
    assert_eq!(after.inodes_free, before.inodes_free);
    fs.unmount().unwrap();
    clean(&device, "full");
}

#[test]
fn what_the_device_refuses_is_written_later() {
    if left_out(TOOLS) {
        return;
    }
    let memory = image(16 * MIB, "-b 4096");
    let device = Arc::new(FaultDevice::new(Arc::clone(&memory)));
    let options = Options {
        background: false,
        ..Options::default()
    };
    let fs = Ext4::open(device.clone(), options).unwrap();
    fs.sync().unwrap();
    let before = fs.statfs().unwrap().blocks_free;
    device.arm(FaultRule::new(RequestKinds::WRITE, 1, Fault::Fail));
    assert!(filled(&fs, "f", &bytes(9_000, 1)).is_none());
    assert_eq!(fs.statfs().unwrap().blocks_free, before);
    assert!(!fs.read_only());
    assert!(filled(&fs, "f", &bytes(9_000, 2)).is_some());
    fs.unmount().unwrap();
    clean(&memory, "refused");
}

#[test]
fn after_a_cut_a_filled_file_is_whole_or_not_there() {
    if left_out(TOOLS) {
        return;
    }
    for args in ["-b 4096", "-b 1024 -O fast_commit"] {
        let base = image(16 * MIB, args).snapshot();
        let record = Arc::new(RecordDevice::new(base.snapshot()));
        let options = Options {
            background: false,
            ..Options::default()
        };
        let fs = Ext4::open(record.clone(), options).unwrap();
        for number in 0..6u8 {
            let data = bytes(2_500 * usize::from(number + 1), number);
            let made = filled(&fs, &format!("f{number}"), &data).unwrap();
            if number % 2 == 1 {
                fs.fsync(made.ino(), sapwood_vfs::SyncKind::All).unwrap();
            }
        }
        fs.unmount().unwrap();
        let log = record.log();
        let mut replayer = Replayer::new(&log, &base);
        let mut seen = [0; 7];
        for at in log.crash_points() {
            let mut plan = log.random_plan(at, at as u64);
            plan.torn.clear();
            for cut in [replayer.image(&CrashPlan::at(at)), log.image(&base, &plan)] {
                seen[whole(&Arc::new(cut), &format!("{args}: {plan:?}"))] += 1;
            }
        }
        assert!(seen[0] > 0 && seen[6] > 0, "{seen:?}");
    }
}

/// How many of the files an image has, each of which is whole.
fn whole(cut: &Arc<MemoryDevice>, what: &str) -> usize {
    let device: Arc<dyn Device> = cut.clone();
    let options = Options {
        background: false,
        ..Options::default()
    };
    let fs = Ext4::open(device, options).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut count = 0;
    for number in 0..6u8 {
        if let Ok(found) = fs.lookup(fs.root(), format!("f{number}").as_bytes()) {
            let wanted = bytes(2_500 * usize::from(number + 1), number);
            assert!(content(&fs, found.ino()) == wanted, "{what}: f{number}");
            count += 1;
        }
    }
    fs.unmount().unwrap();
    drop(fs);
    clean(cut, what);
    count
}
