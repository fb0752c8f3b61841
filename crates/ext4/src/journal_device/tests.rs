//! A file system and its journal on two devices: refusals, and power cuts after every request, with
//! the caches of both devices lost independently.

use std::sync::Arc;

use parking_lot::Mutex;
use sapwood_block::{Device, Layer, MemoryDevice};
use sapwood_testing::{RecordDevice, RequestKinds};
use sapwood_vfs::{Credentials, FileSystem, Ino, NewInode, SyncKind, WriteMode};

use crate::check::{CheckOptions, check};
use crate::mkfs::{MkfsOptions, mkfs};
use crate::oracles::MIB;
use crate::{Error, Ext4, FastCommits, JournalDevice, Options};

const SIZE: u64 = 16 * MIB;

fn options(features: &str) -> MkfsOptions {
    let words = features.split(',').filter(|word| !word.is_empty());
    MkfsOptions {
        features: words.map(|word| (word.to_owned(), true)).collect(),
        block_size: Some(1024),
        force: true,
        ..MkfsOptions::default()
    }
}

/// A journal without a user.
fn journal() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(4 * MIB));
    mkfs(&*device, &options("journal_dev")).unwrap();
    device
}

/// A file system, and its journal.
fn made(features: &str) -> (Arc<MemoryDevice>, Arc<MemoryDevice>) {
    let (device, journal) = (Arc::new(MemoryDevice::new(SIZE)), journal());
    let options = MkfsOptions {
        journal: Some(JournalDevice::new(journal.clone())),
        ..options(features)
    };
    mkfs(&*device, &options).unwrap();
    (device, journal)
}

fn mount(device: Arc<dyn Device>, journal: Option<Arc<dyn Device>>) -> crate::Result<Ext4> {
    let options = Options {
        background: false,
        noatime: true,
        fast_commit: FastCommits::Full,
        journal: journal.map(JournalDevice::new),
        ..Options::default()
    };
    Ext4::open(device, options)
}

fn refusal(opened: crate::Result<Ext4>) -> Error {
    opened.map(|_| ()).unwrap_err()
}

fn create(fs: &Ext4, name: &str) -> Ino {
    let who = Credentials::ROOT;
    let made = fs.create(&who, fs.root(), name.as_bytes(), NewInode::Regular, 0o644);
    made.unwrap().ino()
}

fn write(fs: &Ext4, ino: Ino, byte: u8, len: usize) {
    fs.write(ino, 0, &vec![byte; len], WriteMode::default())
        .unwrap();
    fs.fsync(ino, SyncKind::All).unwrap();
}

#[test]
fn a_journal_that_is_missing_or_not_the_right_one_is_refused_by_name() {
    let (device, right) = made("");
    let before = device.snapshot();
    let missing = refusal(mount(device.clone(), None));
    assert!(matches!(missing, Error::ExternalJournal), "{missing}");
    assert!(missing.to_string().contains("journal_path=DEVICE"));
    let none: Arc<dyn Device> = Arc::new(MemoryDevice::new(4 * MIB));
    let (_, other) = made("");
    let shared = right.snapshot();
    // The count of users, big-endian.
    shared.write_at(2048 + 0x43, &[2]).unwrap();
    let foreign = right.snapshot();
    foreign.write_at(2048 + 0x100, &[0xaa; 16]).unwrap();
    let odd = Arc::new(MemoryDevice::new(8 * MIB));
    let blocks = MkfsOptions {
        block_size: Some(4096),
        uuid: Some(right_uuid(&right)),
        ..options("journal_dev")
    };
    mkfs(&*odd, &blocks).unwrap();
    for (journal, what) in [
        (none, "no journal of an ext4"),
        (other, "the journal has the UUID"),
        (Arc::new(shared), "2 file systems use the journal"),
        (Arc::new(foreign), "another file system uses the journal"),
        (odd, "blocks of 4096 bytes, the file system of 1024"),
    ] {
        let error = refusal(mount(device.clone(), Some(journal)));
        assert!(matches!(error, Error::JournalDevice { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
    let inside = MemoryDevice::new(SIZE);
    mkfs(&inside, &options("")).unwrap();
    let error = refusal(mount(Arc::new(inside), Some(right)));
    assert!(
        matches!(error, Error::NeedlessJournalDevice { .. }),
        "{error}"
    );
    assert_eq!(device.first_difference(&before), None);
}

fn right_uuid(journal: &Arc<MemoryDevice>) -> [u8; 16] {
    JournalDevice::new(journal.clone())
        .super_block()
        .unwrap()
        .uuid
}

#[test]
fn work_that_supports_only_an_inner_journal_refuses_another() {
    let (device, _) = made("");
    let device: Arc<dyn Device> = device;
    let refused = |error: &dyn std::fmt::Display| {
        let text = error.to_string();
        assert!(text.contains("the journal is on another device"), "{text}");
    };
    refused(&crate::Staging::begin(&device, None).unwrap_err());
    refused(&crate::resize::resize(&device, 8 * MIB, None, &mut |_| ()).unwrap_err());
}

#[test]
fn a_journal_is_taken_from_another_file_system_only_by_force() {
    let (_, journal) = made("");
    let again = MkfsOptions {
        journal: Some(JournalDevice::new(journal.clone())),
        force: false,
        ..options("")
    };
    let device = MemoryDevice::new(SIZE);
    let error = mkfs(&device, &again).unwrap_err().to_string();
    assert!(error.contains("a file system uses this journal"), "{error}");
    let forced = MkfsOptions {
        force: true,
        ..again
    };
    mkfs(&device, &forced).unwrap();
    let fs = mount(Arc::new(device), Some(journal)).unwrap();
    fs.unmount().unwrap();
}

#[test]
fn a_read_only_mount_replays_into_memory() {
    for features in ["", "fast_commit"] {
        let (device, journal) = made(features);
        let fs = mount(device.clone(), Some(journal.clone())).unwrap();
        let ino = create(&fs, "file");
        write(&fs, ino, 7, 3000);
        drop(fs);
        let before = (device.snapshot(), journal.snapshot());
        let reading = Options {
            read_only: true,
            journal: Some(JournalDevice::new(journal.clone())),
            ..Options::default()
        };
        let fs = Ext4::open(device.clone(), reading).unwrap();
        let found = fs.lookup(fs.root(), b"file").unwrap().ino();
        assert_eq!(fs.getattr(found).unwrap().size, 3000);
        fs.unmount().unwrap();
        assert_eq!(device.first_difference(&before.0), None);
        assert_eq!(journal.first_difference(&before.1), None);
        // Without the journal, and without its replay.
        let skipping = Options {
            read_only: true,
            no_load: true,
            ..Options::default()
        };
        Ext4::open(device, skipping).unwrap();
    }
}

/// Records how far both devices were after each of its requests.
#[derive(Debug)]
struct Timed {
    own: Arc<RecordDevice<MemoryDevice>>,
    both: [Arc<RecordDevice<MemoryDevice>>; 2],
    cuts: Arc<Mutex<Vec<[usize; 2]>>>,
}

impl Timed {
    fn cut(&self, done: sapwood_block::Result<()>) -> sapwood_block::Result<()> {
        self.cuts.lock().push(now(&self.both));
        done
    }
}

fn now(both: &[Arc<RecordDevice<MemoryDevice>>; 2]) -> [usize; 2] {
    [both[0].position(), both[1].position()]
}

impl Layer for Timed {
    type Below = RecordDevice<MemoryDevice>;

    fn below(&self) -> &Self::Below {
        &self.own
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> sapwood_block::Result<()> {
        self.cut(Device::write_at(&*self.own, offset, buf))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> sapwood_block::Result<()> {
        self.cut(Device::write_vectored_at(&*self.own, offset, bufs))
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> sapwood_block::Result<()> {
        self.cut(Device::write_fua(&*self.own, offset, buf))
    }

    fn flush(&self) -> sapwood_block::Result<()> {
        self.cut(Device::flush(&*self.own))
    }
}

/// The content that an fsync made durable: name, byte, length, and when it returned.
type Durable = (String, u8, usize, [usize; 2]);

/// Writes, commits and checkpoints; returns what is durable from when on.
fn work(fs: &Ext4, both: &[Arc<RecordDevice<MemoryDevice>>; 2]) -> Vec<Durable> {
    let mut durable = Vec::new();
    for round in 0..10_u8 {
        let name = format!("file{round}");
        let ino = create(fs, &name);
        let len = 1500 * usize::from(round + 1);
        write(fs, ino, b'a' + round, len);
        durable.push((name, b'a' + round, len, now(both)));
        match round {
            3 => fs.engine.journal.checkpoint().unwrap(),
            5 | 8 => fs.sync().unwrap(),
            _ => {}
        }
    }
    durable
}

fn found(fs: &Ext4, name: &str) -> Option<Vec<u8>> {
    let ino = fs.lookup(fs.root(), name.as_bytes()).ok()?.ino();
    let size = fs.getattr(ino).unwrap().size as usize;
    let mut bytes = vec![0; size];
    let got = fs.read(ino, 0, &mut bytes).unwrap();
    assert_eq!(got, size);
    Some(bytes)
}

#[test]
fn no_power_cut_loses_what_an_fsync_made_durable() {
    for features in ["", "fast_commit"] {
        let (device, journal) = made(features);
        let base = [device.snapshot(), journal.snapshot()];
        let both = [&base[0], &base[1]].map(|one| Arc::new(RecordDevice::new(one.snapshot())));
        let cuts = Arc::new(Mutex::new(Vec::new()));
        let timed = |own: usize| -> Arc<dyn Device> {
            Arc::new(Timed {
                own: both[own].clone(),
                both: both.clone(),
                cuts: cuts.clone(),
            })
        };
        let fs = mount(timed(0), Some(timed(1))).unwrap();
        let durable = work(&fs, &both);
        fs.unmount().unwrap();
        let logs = [both[0].log(), both[1].log()];
        let cuts = cuts.lock().clone();
        assert!(cuts.len() > 60, "{}", cuts.len());
        for (number, cut) in (0_u64..).zip(&cuts) {
            let plans = [0, 1].map(|n| {
                let seed = number.wrapping_mul(0x9e37_79b9).wrapping_add(n as u64);
                logs[n].random_plan(cut[n], seed)
            });
            let image = |n: usize| Arc::new(logs[n].image(&base[n], &plans[n]));
            let (device, journal) = (image(0), image(1));
            let what = format!("{features:?}, cut {number}");
            let fs = mount(device.clone(), Some(journal));
            let fs = fs.unwrap_or_else(|error| panic!("{what}: {error}"));
            for (name, byte, len, since) in &durable {
                if since[0] <= cut[0] && since[1] <= cut[1] {
                    assert_eq!(found(&fs, name), Some(vec![*byte; *len]), "{what}: {name}");
                }
            }
            fs.unmount().unwrap();
            let device: Arc<dyn Device> = device;
            let checked = check(&device, &CheckOptions::default(), &mut |_| {
                std::ops::ControlFlow::Continue(())
            });
            let report = checked.unwrap();
            assert!(report.is_clean(), "{what}: {:?}", report.findings);
        }
    }
}

#[test]
fn a_journal_that_fails_makes_the_mount_read_only() {
    let (device, journal) = made("");
    let faulty = Arc::new(sapwood_testing::FaultDevice::new(journal.clone()));
    let fs = mount(device.clone(), Some(faulty.clone())).unwrap();
    let ino = create(&fs, "kept");
    write(&fs, ino, 1, 100);
    faulty.fail_all(RequestKinds::ANY_WRITE);
    let lost = create(&fs, "lost");
    assert!(fs.fsync(lost, SyncKind::All).is_err());
    assert!(fs.engine.read_only());
    assert!(fs.unmount().is_err());
    drop(fs);
    let fs = mount(device, Some(journal)).unwrap();
    assert_eq!(found(&fs, "kept"), Some(vec![1; 100]));
    assert_eq!(found(&fs, "lost"), None);
    fs.unmount().unwrap();
}
