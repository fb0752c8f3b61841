//! A file system over two devices in memory: devices that belong together, superblocks with wrong
//! fields, power cuts between and on both devices.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use sapwood_block::{Device, MemoryDevice, Result as DeviceResult};
use sapwood_btrfs::check::{CheckOptions, check};
use sapwood_btrfs::mkfs::{MkfsOptions, Profile, mkfs, mkfs_several};
use sapwood_btrfs::{Btrfs, Error, Options};
use sapwood_btrfs_format::{SUPER_OFFSETS, SUPER_SIZE, SuperBlock, validate_super};
use sapwood_testing::device::RecordLog;
use sapwood_testing::{CrashPlan, FaultDevice, RecordDevice, RequestKinds};
use sapwood_vfs::{Credentials, FileSystem, Ino, NewInode, SyncKind, WriteMode};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const SIZE: u64 = 96 * MIB;

pub(crate) type Pair = [Arc<MemoryDevice>; 2];

pub(crate) fn formatted(options: &MkfsOptions) -> Pair {
    let pair = [MemoryDevice::new(SIZE), MemoryDevice::new(SIZE)];
    mkfs_several(&[&pair[0], &pair[1]], options).unwrap();
    pair.map(Arc::new)
}

/// Each chunk lies on one device.
fn pair() -> Pair {
    formatted(&MkfsOptions {
        metadata: Some(Profile::Dup),
        ..MkfsOptions::default()
    })
}

pub(crate) fn any(device: &Arc<MemoryDevice>) -> Arc<dyn Device> {
    device.clone()
}

pub(crate) fn open(devices: Vec<Arc<dyn Device>>) -> Result<Btrfs, Error> {
    let options = Options {
        background: false,
        ..Options::default()
    };
    Btrfs::open(devices, options)
}

fn refused(devices: &[&Arc<MemoryDevice>]) -> Error {
    open(devices.iter().map(|device| any(device)).collect())
        .err()
        .unwrap()
}

fn create(fs: &Btrfs, name: &[u8]) -> Ino {
    let made = fs.create(
        &Credentials::ROOT,
        fs.root(),
        name,
        NewInode::Regular,
        0o600,
    );
    made.unwrap().ino()
}

pub(crate) fn put(fs: &Btrfs, name: &[u8], content: &[u8]) -> Ino {
    let file = create(fs, name);
    fs.write(file, 0, content, WriteMode::default()).unwrap();
    file
}

pub(crate) fn get(fs: &Btrfs, name: &[u8]) -> Vec<u8> {
    let file = fs.lookup(fs.root(), name).unwrap();
    let mut content = vec![0; file.attr.size as usize];
    let read = fs.read(file.ino(), 0, &mut content).unwrap();
    assert_eq!(read, content.len());
    content
}

/// The place of a content on a device.
pub(crate) fn place(device: &MemoryDevice, content: &[u8]) -> Range<u64> {
    let mut sector = [0; 4096];
    let mut starts = (MIB..SIZE).step_by(4096);
    let start = starts.find(|at| {
        device.read_at(*at, &mut sector).unwrap();
        sector[..] == content[..4096]
    });
    let start = start.expect("the content lies on the device");
    start..start + content.len() as u64
}

pub(crate) fn super_of(device: &dyn Device, at: u64) -> SuperBlock {
    let mut bytes = [0; SUPER_SIZE];
    device.read_at(at, &mut bytes).unwrap();
    validate_super(&bytes, at).unwrap()
}

/// Changes both superblocks of a device and makes their checksums right.
fn edit_supers(device: &MemoryDevice, edit: impl Fn(&mut SuperBlock)) {
    for at in SUPER_OFFSETS.into_iter().filter(|at| at + 4096 <= SIZE) {
        let mut sb = super_of(device, at);
        edit(&mut sb);
        let mut bytes = sb.bytes().to_vec();
        sb.checksum_kind().unwrap().seal_block(&mut bytes);
        device.write_at(at, &bytes).unwrap();
    }
}

pub(crate) fn clean(pair: &Pair) {
    let options = CheckOptions {
        check_data_csum: true,
        ..CheckOptions::default()
    };
    let report = check(&[&*pair[0], &*pair[1]], &options, &mut |_| ()).unwrap();
    assert_eq!(report.findings, []);
}

#[test]
fn devices_are_given_in_any_order() {
    for metadata in [Profile::Dup, Profile::Single] {
        let pair = formatted(&MkfsOptions {
            metadata: Some(metadata),
            ..MkfsOptions::default()
        });
        clean(&pair);
        for round in 0..4u8 {
            let (first, second) = (round % 2, (round + 1) % 2);
            let order = [first, second].map(|at| any(&pair[usize::from(at)]));
            let fs = open(order.to_vec()).unwrap();
            for old in 0..round {
                assert_eq!(get(&fs, &[b'f', old + 1]), vec![old; 100_000]);
            }
            let file = put(&fs, &[b'f', round + 1], &vec![round; 100_000]);
            fs.fsync(file, SyncKind::All).unwrap();
            fs.unmount().unwrap();
            drop(fs);
            clean(&pair);
        }
    }
}

#[test]
fn data_fills_both_devices() {
    let pair = pair();
    let fs = open(vec![any(&pair[0]), any(&pair[1])]).unwrap();
    let before = fs.statfs().unwrap();
    assert_eq!(before.blocks * 4096, 2 * SIZE);
    let mut files = 0u64;
    loop {
        let content = vec![files as u8; 1 << 20];
        let file = create(&fs, format!("{files}").as_bytes());
        if fs.write(file, 0, &content, WriteMode::default()).is_err() || fs.sync().is_err() {
            break;
        }
        files += 1;
    }
    let promised = before.blocks_available * 4096 / MIB;
    assert!(
        files.abs_diff(promised) <= promised / 10,
        "{files} MiB of {promised}"
    );
    assert!(files * MIB > SIZE, "{files} MiB fit on one device");
    for file in 0..files {
        let name = format!("{file}");
        assert_eq!(get(&fs, name.as_bytes()), vec![file as u8; 1 << 20]);
    }
    fs.unmount().unwrap();
    drop(fs);
    clean(&pair);
    for (devid, device) in [(1, &pair[0]), (2, &pair[1])] {
        for at in [SUPER_OFFSETS[0], SUPER_OFFSETS[1]] {
            let item = super_of(&**device, at).dev_item;
            assert_eq!(item.devid.get(), devid);
            assert_eq!(item.total_bytes.get(), SIZE);
            let used = item.bytes_used.get();
            assert!(
                used > SIZE / 10 * 7 && used <= SIZE,
                "device {devid}: {used}"
            );
        }
    }
}

#[test]
fn what_does_not_belong_together_is_refused_by_name() {
    let pair = pair();
    let [one, two] = &pair;
    let uuid = |device: &MemoryDevice| super_of(device, SUPER_OFFSETS[0]).dev_item.uuid;
    match refused(&[one]) {
        Error::MissingDevice { devid: 2, uuid: of } => assert_eq!(of, uuid(two)),
        error => panic!("{error}"),
    }
    match refused(&[two]) {
        Error::MissingDevice { devid: 1, uuid: of } => assert_eq!(of, uuid(one)),
        error => panic!("{error}"),
    }
    let twice = refused(&[one, two, one]);
    assert!(
        matches!(twice, Error::DuplicateDevice { devid: 1, .. }),
        "{twice}"
    );
    let copy = Arc::new(two.snapshot());
    let copied = refused(&[one, two, &copy]);
    assert!(
        matches!(copied, Error::DuplicateDevice { devid: 2, .. }),
        "{copied}"
    );
    let other = Arc::new(MemoryDevice::new(SIZE));
    mkfs(&*other, &MkfsOptions::default()).unwrap();
    let foreign = refused(&[one, &other]);
    assert!(matches!(foreign, Error::ForeignDevice { .. }), "{foreign}");
    let blank = Arc::new(MemoryDevice::new(SIZE));
    let blank = refused(&[one, &blank]);
    assert!(matches!(blank, Error::NotBtrfs { .. }), "{blank}");
    let small = [one.snapshot(), two.snapshot()].map(Arc::new);
    small
        .iter()
        .for_each(|device| edit_supers(device, |sb| sb.num_devices = 1.into()));
    let extra = refused(&[&small[0], &small[1]]);
    let counted = Error::ExtraDevices {
        given: 2,
        expected: 1,
    };
    assert_eq!(extra.to_string(), counted.to_string());
}

#[test]
fn a_device_that_missed_commits_is_stale() {
    let pair = pair();
    let fs = open(vec![any(&pair[0]), any(&pair[1])]).unwrap();
    let mut before = Vec::new();
    for round in 0..3u8 {
        before.push(Arc::new(pair[1].snapshot()));
        put(&fs, &[b'a' + round], b"new");
        fs.sync().unwrap();
    }
    fs.unmount().unwrap();
    drop(fs);
    // A cut between two superblocks leaves one commit between the devices, and no more.
    let newest = super_of(&*pair[0], SUPER_OFFSETS[0]).generation.get();
    for old in &before {
        let generation = super_of(&**old, SUPER_OFFSETS[0]).generation.get();
        if newest - generation < 2 {
            continue;
        }
        match refused(&[old, &pair[0]]) {
            Error::StaleDevice {
                devid: 2,
                generation: of,
                newest: than,
                ..
            } => assert_eq!((of, than), (generation, newest)),
            error => panic!("{error}"),
        }
    }
    let last = super_of(&*before[0], SUPER_OFFSETS[0]).generation.get();
    assert!(newest - last >= 2);
}

#[test]
fn device_items_that_lie_are_refused() {
    let pair = pair();
    let lie = |edit: &dyn Fn(&mut SuperBlock)| {
        let lying = Arc::new(pair[1].snapshot());
        edit_supers(&lying, edit);
        refused(&[&pair[0], &lying])
    };
    let zero = lie(&|sb| sb.dev_item.devid = 0.into());
    assert!(matches!(zero, Error::Superblock { .. }), "{zero}");
    let same = lie(&|sb| sb.dev_item.devid = 1.into());
    assert!(
        matches!(same, Error::DuplicateDevice { devid: 1, .. }),
        "{same}"
    );
    let third = lie(&|sb| sb.dev_item.devid = 3.into());
    assert!(
        matches!(third, Error::MissingDevice { devid: 2, .. }),
        "{third}"
    );
    let uuid = lie(&|sb| sb.dev_item.uuid = [9; 16]);
    assert!(
        matches!(uuid, Error::MissingDevice { devid: 2, .. }),
        "{uuid}"
    );
    for size in [SIZE + 1, u64::MAX] {
        let large = lie(&|sb| sb.dev_item.total_bytes = size.into());
        assert!(matches!(large, Error::Superblock { .. }), "{large}");
    }
    let fsid = lie(&|sb| sb.dev_item.fsid = [1; 16]);
    assert!(fsid.to_string().contains("fsid"), "{fsid}");
}

#[test]
fn every_byte_of_a_device_item_may_be_wrong() {
    let base = pair();
    let item = 201..201 + 98;
    for at in item {
        for mask in [0xff, 0x01, 0x80] {
            let pair = [base[0].snapshot(), base[1].snapshot()].map(Arc::new);
            let mut bytes = [0; SUPER_SIZE];
            pair[1].read_at(SUPER_OFFSETS[0], &mut bytes).unwrap();
            bytes[at] ^= mask;
            let sb = SuperBlock::read(&bytes).unwrap();
            sb.checksum_kind().unwrap().seal_block(&mut bytes);
            pair[1].write_at(SUPER_OFFSETS[0], &bytes).unwrap();
            pair[1]
                .write_at(SUPER_OFFSETS[1], &[0; SUPER_SIZE])
                .unwrap();
            let Ok(fs) = open(vec![any(&pair[0]), any(&pair[1])]) else {
                continue;
            };
            put(&fs, b"new", &[1; 5000]);
            fs.unmount().unwrap();
            drop(fs);
            let fs = open(vec![any(&pair[0]), any(&pair[1])]).unwrap();
            assert_eq!(get(&fs, b"new"), [1; 5000], "byte {at} ^ {mask:#x}");
            let used = super_of(&*pair[1], SUPER_OFFSETS[0]).dev_item.bytes_used;
            let right = super_of(&*base[1], SUPER_OFFSETS[0]).dev_item.bytes_used;
            assert_eq!(used.get(), right.get(), "byte {at} ^ {mask:#x}");
        }
    }
}

#[test]
fn a_failing_flush_of_either_device_acknowledges_nothing() {
    for failing in 0..2 {
        let pair = pair();
        let faulty = pair
            .clone()
            .map(|device| Arc::new(FaultDevice::new(device)));
        let devices: Vec<Arc<dyn Device>> = vec![faulty[0].clone(), faulty[1].clone()];
        let fs = open(devices).unwrap();
        let file = put(&fs, b"first", &[1; 9000]);
        fs.fsync(file, SyncKind::All).unwrap();
        let generations = || {
            pair.each_ref()
                .map(|d| super_of(&**d, SUPER_OFFSETS[0]).generation)
        };
        let before = generations();
        faulty[failing].fail_all(RequestKinds::FLUSH);
        let file = put(&fs, b"second", &[2; 9000]);
        fs.fsync(file, SyncKind::All).unwrap_err();
        fs.sync().unwrap_err();
        assert_eq!(generations().map(|g| g.get()), before.map(|g| g.get()));
        drop(fs);
        faulty[failing].clear();
        let fs = open(vec![any(&pair[1]), any(&pair[0])]).unwrap();
        assert_eq!(get(&fs, b"first"), [1; 9000]);
    }
}

pub(crate) type Recorded = Arc<RecordDevice<Arc<MemoryDevice>>>;

/// Lets one request to either device happen at a time, and keeps the logs' positions after each.
#[derive(Debug)]
pub(crate) struct Clocked {
    pub(crate) own: Recorded,
    pub(crate) both: [Recorded; 2],
    pub(crate) clock: Arc<Mutex<Vec<[usize; 2]>>>,
}

/// What two devices recorded.
pub(crate) struct Recording {
    /// The devices before the first request.
    pub(crate) base: [MemoryDevice; 2],
    pub(crate) logs: [RecordLog; 2],
    /// Positions of both logs after each request.
    pub(crate) cuts: Vec<[usize; 2]>,
}

impl Recording {
    /// The devices after a power cut, in one of four ways: all requests arrive, the first or the
    /// second device loses its cache, or each loses a part of it.
    pub(crate) fn images(&self, at: usize, way: usize) -> [Arc<dyn Device>; 2] {
        let (cut, logs) = (self.cuts[at], &self.logs);
        let all = |n: usize| CrashPlan::at(cut[n]);
        let none = |n: usize| all(n).without(logs[n].volatile(cut[n]));
        let plans = match way % 4 {
            0 => [all(0), all(1)],
            1 => [none(0), all(1)],
            2 => [all(0), none(1)],
            _ => [0, 1].map(|n| logs[n].random_plan(cut[n], at as u64)),
        };
        [0, 1].map(|n| any(&Arc::new(logs[n].image(&self.base[n], &plans[n]))))
    }
}

/// Records the requests of `work` to two devices.
pub(crate) fn recording(memory: Pair, work: impl FnOnce(&[Arc<dyn Device>; 2])) -> Recording {
    let base = memory.each_ref().map(|device| device.snapshot());
    let recorded = memory.map(|device| Arc::new(RecordDevice::new(device)));
    let clock: Arc<Mutex<Vec<[usize; 2]>>> = Arc::default();
    work(&recorded.each_ref().map(|own| -> Arc<dyn Device> {
        Arc::new(Clocked {
            own: own.clone(),
            both: recorded.clone(),
            clock: Arc::clone(&clock),
        })
    }));
    let logs = recorded.each_ref().map(|device| device.log());
    let cuts = clock.lock().unwrap().clone();
    Recording { base, logs, cuts }
}

impl Clocked {
    fn tick<T>(&self, request: impl FnOnce() -> T) -> T {
        let mut clock = self.clock.lock().unwrap();
        let done = request();
        clock.push(self.both.each_ref().map(|device| device.position()));
        done
    }
}

impl sapwood_block::Layer for Clocked {
    type Below = RecordDevice<Arc<MemoryDevice>>;

    fn below(&self) -> &Self::Below {
        &self.own
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> DeviceResult<()> {
        self.tick(|| Device::write_at(&*self.own, offset, buf))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> DeviceResult<()> {
        self.tick(|| Device::write_vectored_at(&*self.own, offset, bufs))
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> DeviceResult<()> {
        self.tick(|| Device::write_fua(&*self.own, offset, buf))
    }

    fn flush(&self) -> DeviceResult<()> {
        self.tick(|| Device::flush(&*self.own))
    }

    fn discard(&self, offset: u64, len: u64) -> DeviceResult<()> {
        self.tick(|| Device::discard(&*self.own, offset, len))
    }
}

const ROUNDS: u8 = 8;

pub(crate) fn content(round: u8) -> Vec<u8> {
    vec![round + 1; 3000 + usize::from(round) * 9000]
}

pub(crate) fn name(round: u8) -> [u8; 2] {
    [b'f', b'a' + round]
}

/// A mount after the cut shows every acknowledged file, and a later one only whole.
fn verify(images: [MemoryDevice; 2], acknowledged: Option<u8>, why: &str) {
    let pair = images.map(Arc::new);
    let fs = open(vec![any(&pair[0]), any(&pair[1])]);
    let fs = fs.unwrap_or_else(|error| panic!("{why}: {error}"));
    for round in 0..ROUNDS {
        let there = fs.lookup(fs.root(), &name(round)).is_ok();
        let must = acknowledged.is_some_and(|newest| round <= newest);
        assert!(there || !must, "{why}: file {round} is missing");
        if there {
            assert!(
                get(&fs, &name(round)) == content(round),
                "{why}: file {round}"
            );
        }
    }
    put(&fs, b"after", &[9; 7000]);
    fs.unmount().unwrap();
    drop(fs);
    clean(&pair);
}

#[test]
fn every_cut_over_two_devices_leaves_what_was_acknowledged() {
    every_cut(pair());
}

#[test]
fn every_cut_over_two_mirrors_leaves_what_was_acknowledged() {
    every_cut(formatted(&MkfsOptions {
        data: Some(Profile::Raid1),
        ..MkfsOptions::default()
    }));
}

#[test]
fn every_cut_over_two_stripes_leaves_what_was_acknowledged() {
    every_cut(formatted(&MkfsOptions {
        metadata: Some(Profile::Raid0),
        data: Some(Profile::Raid0),
        ..MkfsOptions::default()
    }));
}

fn every_cut(memory: Pair) {
    let base = memory.each_ref().map(|device| device.snapshot());
    let recorded = memory.map(|device| Arc::new(RecordDevice::new(device)));
    let clock = Arc::default();
    let clocked = recorded.each_ref().map(|own| {
        Arc::new(Clocked {
            own: own.clone(),
            both: recorded.clone(),
            clock: Arc::clone(&clock),
        })
    });
    let fs = open(vec![clocked[0].clone(), clocked[1].clone()]).unwrap();
    for round in 0..ROUNDS {
        let file = put(&fs, &name(round), &content(round));
        match round % 2 {
            0 => fs.fsync(file, SyncKind::All).unwrap(),
            _ => fs.sync().unwrap(),
        }
        clocked[0].tick(|| recorded[0].mark(format!("{round}")));
    }
    drop(fs);
    let logs = recorded.each_ref().map(|device| device.log());
    let cuts = clock.lock().unwrap().clone();
    assert!(cuts.len() > 50, "only {} cuts", cuts.len());
    for (at, cut) in cuts.into_iter().enumerate() {
        let marks = logs[0].marks_before(cut[0]);
        let acknowledged = marks.filter_map(|(_, mark)| mark.parse().ok()).max();
        let image = |plans: [CrashPlan; 2], what: &str| {
            let images = [0, 1].map(|n| logs[n].image(&base[n], &plans[n]));
            verify(images, acknowledged, &format!("cut {at} ({cut:?}), {what}"));
        };
        let all = |n: usize| CrashPlan::at(cut[n]);
        let none = |n: usize| all(n).without(logs[n].volatile(cut[n]));
        image([all(0), all(1)], "all arrives");
        image([none(0), all(1)], "the first device loses its cache");
        image([all(0), none(1)], "the second device loses its cache");
        let seed = at as u64;
        image(
            [0, 1].map(|n| logs[n].random_plan(cut[n], seed)),
            "at random",
        );
    }
}
