//! The host has no space for an engine's writes: the image is sparse and its file system full.
//!
//! On both engines, data stays in memory, and a caller that asks for durability gets the error.
//! Metadata waits for some time. Then the mount becomes read-only, and no acknowledged data is
//! lost.

use std::sync::Arc;
use std::time::Duration;

use sapwood_block::{Device, MemoryDevice};
use sapwood_testing::{Fault, FaultDevice, FaultRule, RequestKinds};
use sapwood_vfs::{
    AllocMode, Credentials, Error, FileSystem, Ino, NewInode, SetAttr, SyncKind, WriteMode,
};

const SIZE: u64 = 256 << 20;
const LEN: usize = 96 << 10;
/// The byte that fills the data without space on the host.
const BYTE: u8 = 0xda;

type Faulty = Arc<FaultDevice<MemoryDevice>>;

#[derive(Clone, Copy)]
enum Format {
    Btrfs,
    Ext4,
}

const BOTH: [Format; 2] = [Format::Btrfs, Format::Ext4];

impl Format {
    fn image(self) -> Faulty {
        let device = MemoryDevice::new(SIZE);
        match self {
            Self::Btrfs => {
                let options = sapwood_btrfs::mkfs::MkfsOptions::default();
                sapwood_btrfs::mkfs::mkfs(&device, &options).unwrap();
            }
            Self::Ext4 => {
                let options = sapwood_ext4::mkfs::MkfsOptions::default();
                sapwood_ext4::mkfs::mkfs(&device, &options).unwrap();
            }
        }
        Arc::new(FaultDevice::new(device))
    }

    /// Mounts without background threads. Metadata waits for `patience`.
    fn open(self, device: &Faulty, patience: Duration) -> Box<dyn FileSystem> {
        let device: Arc<dyn Device> = device.clone();
        match self {
            Self::Btrfs => {
                let options = sapwood_btrfs::Options {
                    background: false,
                    dirty_bytes: 4 << 20,
                    patience,
                    ..sapwood_btrfs::Options::default()
                };
                Box::new(sapwood_btrfs::Btrfs::open(vec![device], options).unwrap())
            }
            Self::Ext4 => {
                let options = sapwood_ext4::Options {
                    background: false,
                    dirty_bytes: 4 << 20,
                    patience,
                    ..sapwood_ext4::Options::default()
                };
                Box::new(sapwood_ext4::Ext4::open(device, options).unwrap())
            }
        }
    }

    /// The image as a power cut would leave it now, with all that was written.
    fn reopen(self, device: &Faulty) -> Box<dyn FileSystem> {
        let copy = Arc::new(FaultDevice::new(device.inner().snapshot()));
        self.open(&copy, Duration::ZERO)
    }
}

fn is_data(bytes: &[u8]) -> bool {
    bytes.len() >= 4096 && bytes.iter().take(64).all(|byte| *byte == BYTE)
}

/// The host has no space for [data](is_data) from now on.
fn no_space_for_data(device: &Faulty) {
    let rule = FaultRule::new(RequestKinds::ANY_WRITE, 1, Fault::NoSpace);
    device.arm(rule.from_then_on().of_bytes(is_data));
}

fn file(fs: &dyn FileSystem, name: &str) -> Ino {
    let made = fs.create(
        &Credentials::ROOT,
        fs.root(),
        name.as_bytes(),
        NewInode::Regular,
        0o644,
    );
    made.unwrap().ino()
}

fn write(fs: &dyn FileSystem, ino: Ino, offset: u64, byte: u8, len: usize) {
    let data = vec![byte; len];
    fs.write(ino, offset, &data, WriteMode::default()).unwrap();
}

fn content(fs: &dyn FileSystem, name: &str) -> Vec<u8> {
    let ino = fs.lookup(fs.root(), name.as_bytes()).unwrap().ino();
    let mut bytes = vec![0xee; 4 * LEN];
    let len = fs.read(ino, 0, &mut bytes).unwrap();
    fs.forget(ino, 1);
    bytes.truncate(len);
    bytes
}

fn fsync(fs: &dyn FileSystem, ino: Ino) -> Result<(), Error> {
    fs.fsync(ino, SyncKind::All)
}

fn is_no_space<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::NoSpace))
}

#[test]
fn data_that_the_host_has_no_space_for_stays_and_every_fsync_fails() {
    for engine in BOTH {
        let device = engine.image();
        let fs = engine.open(&device, Duration::ZERO);
        let fs = &*fs;
        let (new, allocated, other) = (file(fs, "new"), file(fs, "allocated"), file(fs, "other"));
        let keep_size = AllocMode::Allocate { keep_size: false };
        fs.fallocate(allocated, 0, LEN as u64, keep_size).unwrap();
        write(fs, new, 0, b'o', LEN);
        fs.sync().unwrap();
        no_space_for_data(&device);
        for ino in [new, allocated] {
            write(fs, ino, 0, BYTE, LEN);
            write(fs, ino, 8192, BYTE, LEN);
            for _ in 0..3 {
                assert!(is_no_space(&fsync(fs, ino)), "{}", fs.kind());
            }
        }
        assert!(device.fired() >= 6);
        // Other work continues, and a sync reports the error.
        write(fs, other, 0, b'x', LEN);
        fsync(fs, other).unwrap();
        let late = file(fs, "late");
        write(fs, late, 0, b'l', LEN);
        assert!(is_no_space(&fs.sync()));
        assert!(!fs.read_only());
        let model = vec![BYTE; LEN + 8192];
        assert_eq!(content(fs, "new"), model);
        let cut = engine.reopen(&device);
        assert_eq!(content(&*cut, "new"), vec![b'o'; LEN]);
        assert_eq!(content(&*cut, "other"), vec![b'x'; LEN]);
        assert_eq!(content(&*cut, "late"), vec![b'l'; LEN]);
        cut.unmount().unwrap();

        // The data is written once more before the host has space again.
        write(fs, new, 4096, b'n', 4096);
        device.clear();
        fsync(fs, new).unwrap();
        fsync(fs, allocated).unwrap();
        let cut = engine.reopen(&device);
        let mut newer = model.clone();
        newer[4096..8192].fill(b'n');
        assert_eq!(content(&*cut, "new"), newer);
        assert_eq!(content(&*cut, "allocated"), model);
        cut.unmount().unwrap();
        fs.unmount().unwrap();
    }
}

#[test]
fn refused_data_gives_its_space_back_when_the_file_is_cut() {
    for engine in BOTH {
        let device = engine.image();
        let fs = engine.open(&device, Duration::ZERO);
        let fs = &*fs;
        let ino = file(fs, "f");
        fs.sync().unwrap();
        let free = fs.statfs().unwrap().blocks_free;
        no_space_for_data(&device);
        write(fs, ino, 0, BYTE, LEN);
        assert!(is_no_space(&fsync(fs, ino)));
        let empty = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        fs.setattr(ino, &empty).unwrap();
        fsync(fs, ino).unwrap();
        fs.sync().unwrap();
        assert_eq!(fs.statfs().unwrap().blocks_free, free, "{}", fs.kind());
        let cut = engine.reopen(&device);
        assert_eq!(content(&*cut, "f"), b"");
        cut.unmount().unwrap();
        fs.unmount().unwrap();
    }
}

#[test]
fn a_writer_beyond_the_dirty_bound_gets_the_error_and_does_not_wait_for_ever() {
    for engine in BOTH {
        let device = engine.image();
        let fs = engine.open(&device, Duration::ZERO);
        let ino = file(&*fs, "f");
        no_space_for_data(&device);
        let data = vec![BYTE; 1 << 20];
        let written = (0..64).map_while(|nth| {
            let done = fs.write(ino, nth << 20, &data, WriteMode::default());
            match done {
                Ok(_) => Some(1),
                Err(error) => {
                    assert_eq!(error, Error::NoSpace, "{}", fs.kind());
                    None
                }
            }
        });
        let written: u64 = written.sum();
        assert!((1..64).contains(&written), "{written}");
        assert!(!fs.read_only());
        assert!(is_no_space(&fsync(&*fs, ino)), "{}", fs.kind());
        device.clear();
        // A background write that the device refused just before `clear` fails one more fsync.
        // Each queue of writeback has at most one.
        let succeeds = || match fsync(&*fs, ino) {
            Ok(()) => true,
            refused => {
                assert!(is_no_space(&refused), "{}: {refused:?}", fs.kind());
                false
            }
        };
        assert!((0..16).any(|_| succeeds()), "{}", fs.kind());
        fs.unmount().unwrap();
    }
}

#[test]
fn metadata_waits_for_space() {
    for engine in BOTH {
        let device = engine.image();
        let fs = engine.open(&device, Duration::from_secs(600));
        let ino = file(&*fs, "f");
        device.arm(FaultRule::new(RequestKinds::ANY_WRITE, 1, Fault::NoSpace));
        fsync(&*fs, ino).unwrap();
        assert_eq!(device.fired(), 1);
        fs.unmount().unwrap();
        assert_eq!(content(&*engine.reopen(&device), "f"), b"");
    }
}

#[test]
fn metadata_without_space_ends_all_changes_and_loses_nothing_acknowledged() {
    for engine in BOTH {
        let device = engine.image();
        let fs = engine.open(&device, Duration::ZERO);
        let fs = &*fs;
        let kept = file(fs, "kept");
        write(fs, kept, 0, b'k', LEN);
        fsync(fs, kept).unwrap();
        let rule = FaultRule::new(RequestKinds::ANY_WRITE, 1, Fault::NoSpace);
        device.arm(rule.from_then_on());
        let lost = file(fs, "lost");
        assert!(fsync(fs, lost).is_err());
        assert!(fs.sync().is_err());
        assert!(fs.read_only(), "{}", fs.kind());
        let cut = engine.reopen(&device);
        assert_eq!(content(&*cut, "kept"), vec![b'k'; LEN]);
        cut.unmount().unwrap();
    }
}
