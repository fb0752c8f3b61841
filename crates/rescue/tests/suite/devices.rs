//! btrfs over several devices, some of which are missing or destroyed.

use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::mkfs::{MkfsOptions, Profile, mkfs_several};
use sapwood_btrfs::{Btrfs, SubvolumeChoice};
use sapwood_rescue::btrfs::{Choice, Image, Options};
use sapwood_rescue::{Rescued, Scanning};
use sapwood_vfs::{Credentials, FileSystem, Ino, NewInode, WriteMode};

use crate::walk::{Contents, files};

const WATCH: fn(Scanning) -> bool = |_| true;
const SIZE: u64 = 200 << 20;
/// Byte offsets of superblocks.
const SUPERS: [u64; 2] = [64 << 10, 64 << 20];

type Devices = Vec<Arc<MemoryDevice>>;

fn shared(devices: &Devices) -> Vec<Arc<dyn Device>> {
    let shared = devices
        .iter()
        .map(|device| device.clone() as Arc<dyn Device>);
    shared.collect()
}

fn write(fs: &Btrfs, name: &str, content: &[u8]) {
    let who = Credentials::ROOT;
    let made = fs.create(&who, fs.root(), name.as_bytes(), NewInode::Regular, 0o644);
    let made: Ino = made.unwrap().ino();
    fs.write(made, 0, content, WriteMode::default()).unwrap();
    fs.forget(made, 1);
}

fn change(devices: &Devices, work: impl FnOnce(&Btrfs)) {
    let options = sapwood_btrfs::Options {
        subvolume: SubvolumeChoice::Id(5),
        degraded: true,
        ..sapwood_btrfs::Options::default()
    };
    let fs = Btrfs::open(shared(devices), options).unwrap();
    work(&fs);
    fs.unmount().unwrap();
}

/// Files on devices with these profiles: small ones, and some of several stripes.
fn made(count: usize, data: Profile, metadata: Profile) -> (Devices, Contents) {
    let devices: Devices = (0..count)
        .map(|_| Arc::new(MemoryDevice::new(SIZE)))
        .collect();
    let refs: Vec<&dyn Device> = devices.iter().map(|one| &**one as &dyn Device).collect();
    let options = MkfsOptions {
        data: Some(data),
        metadata: Some(metadata),
        ..MkfsOptions::default()
    };
    mkfs_several(&refs, &options).unwrap();
    let mut random = fastrand::Rng::with_seed(5);
    change(&devices, |fs| {
        for number in 0..150 {
            let size = if number % 10 == 0 { 400_000 } else { 5_000 };
            let content: Vec<u8> = (0..size).map(|_| random.u8(..)).collect();
            write(fs, &format!("file{number}"), &content);
        }
    });
    let whole = rescued(devices.clone(), Choice::Newest);
    assert_eq!(whole.len(), 150);
    assert!(whole.values().all(Option::is_some));
    (devices, whole)
}

fn rescued(devices: Devices, choice: Choice) -> Contents {
    let image = Image::open(shared(&devices), Options::default(), &WATCH).unwrap();
    files(&Rescued::new(image.files(choice).unwrap()))
}

/// All files have their names; those that can be read have their content. Returns how many cannot.
fn unreadable(found: &Contents, whole: &Contents) -> usize {
    assert!(found.keys().eq(whole.keys()));
    let wrong = |(path, content): &(&Vec<u8>, &Option<Vec<u8>>)| {
        content.is_some() && **content != whole[*path]
    };
    assert_eq!(found.iter().find(wrong), None);
    found.values().filter(|content| content.is_none()).count()
}

/// The devices without those with these indexes.
fn without(devices: &Devices, missing: &[usize]) -> Devices {
    let all = devices.iter().enumerate();
    let rest = all.filter(|(index, _)| !missing.contains(index));
    rest.map(|(_, device)| Arc::clone(device)).collect()
}

/// Copies of the devices, in which `damage` changed those with these indexes.
fn damaged(devices: &Devices, indexes: &[usize], damage: fn(&MemoryDevice)) -> Devices {
    let copy = |(index, device): (usize, &Arc<MemoryDevice>)| {
        let copy = device.snapshot();
        if indexes.contains(&index) {
            damage(&copy);
        }
        Arc::new(copy)
    };
    devices.iter().enumerate().map(copy).collect()
}

fn zero(device: &MemoryDevice) {
    let piece = vec![0; 1 << 20];
    for at in (0..SIZE).step_by(piece.len()) {
        device.write_at(at, &piece).unwrap();
    }
}

fn without_superblocks(device: &MemoryDevice) {
    for offset in SUPERS {
        device.write_at(offset, &[0; 4096]).unwrap();
    }
}

#[test]
fn a_copy_on_another_device_replaces_a_missing_or_destroyed_one() {
    use Profile::{Raid1, Raid1c3, Raid10};
    for (count, profile) in [(2, Raid1), (3, Raid1), (3, Raid1c3), (4, Raid10)] {
        let (devices, whole) = made(count, profile, profile);
        for missing in 0..count {
            let found = rescued(without(&devices, &[missing]), Choice::Newest);
            assert_eq!(found, whole, "{profile:?} without {missing}");
            let found = rescued(damaged(&devices, &[missing], zero), Choice::Newest);
            assert_eq!(found, whole, "{profile:?} zeros on {missing}");
            let image = without(&devices, &[missing]);
            let image = Image::open(shared(&image), Options::default(), &WATCH).unwrap();
            let generation = image.states(1)[0].generation;
            let state = image.files(Choice::Generation(generation)).unwrap();
            assert_eq!(files(&Rescued::new(state)), whole);
        }
    }
}

#[test]
fn two_devices_may_be_missing_if_each_byte_has_a_copy_left() {
    let (devices, whole) = made(4, Profile::Raid1c3, Profile::Raid1c3);
    for missing in [[0, 1], [1, 3], [2, 3]] {
        let found = rescued(without(&devices, &missing), Choice::Newest);
        assert_eq!(found, whole, "{missing:?}");
    }
    let (devices, whole) = made(4, Profile::Raid10, Profile::Raid1c4);
    let mut complete = 0;
    for (one, other) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
        let found = rescued(without(&devices, &[one, other]), Choice::Newest);
        complete += usize::from(unreadable(&found, &whole) == 0);
    }
    // Two of the six pairs are the copies of each other.
    assert_eq!(complete, 4);
}

#[test]
fn what_other_devices_have_of_striped_data_is_left() {
    let (devices, whole) = made(3, Profile::Raid0, Profile::Raid1c3);
    for missing in 0..3 {
        let found = rescued(without(&devices, &[missing]), Choice::Newest);
        let lost = unreadable(&found, &whole);
        assert!((1..140).contains(&lost), "{lost} without {missing}");
    }
}

#[test]
fn devices_without_superblocks_are_known_by_their_tree_blocks() {
    let cases = [
        (Profile::Raid0, Profile::Raid1c3, 3),
        (Profile::Raid10, Profile::Raid10, 4),
        (Profile::Raid1, Profile::Raid1, 2),
    ];
    for (data, metadata, count) in cases {
        let (mut devices, whole) = made(count, data, metadata);
        devices.reverse();
        for indexes in [&[0][..], &[1], &[0, 1]] {
            let damaged = damaged(&devices, indexes, without_superblocks);
            let found = rescued(damaged, Choice::Newest);
            assert_eq!(unreadable(&found, &whole), 0, "{data:?} {indexes:?}");
        }
    }
    // Tree blocks are on the first two devices; the last one is the only one left. Of two devices
    // without tree blocks the checksums of the data tell which is which.
    let (devices, whole) = made(4, Profile::Raid0, Profile::Raid1);
    for indexes in [&[3][..], &[2, 3], &[3, 2, 1]] {
        let mut damaged = damaged(&devices, indexes, without_superblocks);
        damaged.swap(2, 3);
        let found = rescued(damaged, Choice::Newest);
        assert_eq!(unreadable(&found, &whole), 0, "{indexes:?}");
    }
}

/// The last device that is not known may be of another file system.
#[test]
fn data_without_checksums_needs_a_device_that_is_known() {
    const PLAIN: &[u8] = b"/plain";
    let (devices, mut whole) = made(4, Profile::Raid0, Profile::Raid1);
    let options = sapwood_btrfs::Options {
        subvolume: SubvolumeChoice::Id(5),
        nodatacow: true,
        ..sapwood_btrfs::Options::default()
    };
    let fs = Btrfs::open(shared(&devices), options).unwrap();
    let plain: Vec<u8> = (0..600_000).map(|byte| (byte % 249) as u8).collect();
    write(&fs, "plain", &plain);
    fs.unmount().unwrap();
    whole.insert(PLAIN.to_vec(), Some(plain));
    // No tree blocks are on the last device.
    let own = damaged(&devices, &[3], without_superblocks);
    assert_eq!(rescued(own, Choice::Newest), whole);
    let mut random = fastrand::Rng::with_seed(8);
    let mut foreign = damaged(&devices, &[3], zero);
    let noise: Vec<u8> = (0..64 << 20).map(|_| random.u8(..)).collect();
    foreign[3].write_at(1 << 20, &noise).unwrap();
    foreign.rotate_right(1);
    let found = rescued(foreign, Choice::Newest);
    assert_eq!(found[PLAIN], None);
    let lost = unreadable(&found, &whole);
    assert!((2..150).contains(&lost), "{lost}");
}

#[test]
fn data_without_checksums_comes_from_the_device_that_missed_no_commit() {
    let (devices, _) = made(2, Profile::Raid1, Profile::Raid1);
    let options = sapwood_btrfs::Options {
        subvolume: SubvolumeChoice::Id(5),
        nodatacow: true,
        ..sapwood_btrfs::Options::default()
    };
    let fs = Btrfs::open(shared(&devices), options.clone()).unwrap();
    write(&fs, "plain", &[b'a'; 9000]);
    fs.unmount().unwrap();
    for stale in 0..2 {
        let mut copy = damaged(&devices, &[], zero);
        let old = copy[stale].snapshot();
        let fs = Btrfs::open(shared(&copy), options.clone()).unwrap();
        let plain = fs.lookup(fs.root(), b"plain").unwrap().ino();
        fs.write(plain, 0, &[b'b'; 9000], WriteMode::default())
            .unwrap();
        fs.forget(plain, 1);
        fs.unmount().unwrap();
        copy[stale] = Arc::new(old);
        let found = rescued(copy, Choice::Newest);
        assert_eq!(found[&b"/plain"[..]], Some(vec![b'b'; 9000]), "{stale}");
    }
}
