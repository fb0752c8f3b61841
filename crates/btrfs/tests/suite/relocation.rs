//! Block groups that move, get other profiles and leave a device; devices that are added and
//! removed; power cuts at every request of all that, and the same commands again after them.

use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::balance::{BalanceError, BalanceOptions, BalanceReport, Filter, balance};
use sapwood_btrfs::check::{CheckOptions, check};
use sapwood_btrfs::membership::{
    AddOptions, DeviceUsage, MembershipError, Removal, RemoveOptions, add, remove, usage,
};
use sapwood_btrfs::mkfs::{MkfsOptions, Profile, mkfs, mkfs_several};
use sapwood_btrfs::{Btrfs, Compression, Options};
use sapwood_vfs::{
    AllocMode, CopyMode, Credentials, FileSystem, Ino, InodeFlags, NewInode, Subvolumes, WriteMode,
};

use super::devices::{MIB, SIZE, any, recording};

pub(super) type Devices = Vec<Arc<dyn Device>>;

pub(super) fn memory() -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(SIZE))
}

pub(super) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(len).collect()
}

pub(super) fn open(devices: &[Arc<dyn Device>]) -> Result<Btrfs, sapwood_btrfs::Error> {
    let options = Options {
        background: false,
        compress: Some(Compression::Zstd(3)),
        ..Options::default()
    };
    Btrfs::open(devices.to_vec(), options)
}

fn create(fs: &Btrfs, dir: Ino, name: &str, content: &[u8]) -> Ino {
    let user = &Credentials::ROOT;
    let made = fs.create(user, dir, name.as_bytes(), NewInode::Regular, 0o600);
    let file = made.unwrap().ino();
    fs.write(file, 0, content, WriteMode::default()).unwrap();
    file
}

fn content(fs: &Btrfs, dir: Ino, name: &str) -> Vec<u8> {
    let file = fs.lookup(dir, name.as_bytes()).unwrap();
    let mut content = vec![0; file.attr.size as usize];
    fs.read(file.ino(), 0, &mut content).unwrap();
    content
}

fn text(len: usize) -> Vec<u8> {
    b"a text that becomes smaller "
        .iter()
        .copied()
        .cycle()
        .take(len)
        .collect()
}

const BIG: usize = 300_000;
const WRITTEN: usize = 50_000;

/// A subvolume with compressed, incompressible, small, preallocated and nodatacow files, a clone,
/// and a snapshot whose original changed.
fn fill(fs: &Btrfs) {
    let dir = fs.create_subvolume(fs.root(), b"volume").unwrap().ino();
    let source = create(fs, dir, "noise", &noise(1, BIG));
    create(fs, dir, "text", &text(BIG));
    create(fs, dir, "small", b"inline");
    let space = create(fs, dir, "space", &noise(2, 4096));
    let extend = AllocMode::Allocate { keep_size: false };
    fs.fallocate(space, 4096, 200_000, extend).unwrap();
    let plain = create(fs, dir, "plain", b"");
    fs.set_flags(plain, InodeFlags::NOCOW).unwrap();
    fs.write(plain, 0, &noise(3, 40_000), WriteMode::default())
        .unwrap();
    let clone = create(fs, dir, "clone", b"");
    fs.sync().unwrap();
    fs.copy_range(source, 0, clone, 0, 0, CopyMode::ShareOnly)
        .unwrap();
    fs.snapshot(dir, fs.root(), b"snapshot", true).unwrap();
    fs.write(source, 0, &noise(4, WRITTEN), WriteMode::default())
        .unwrap();
    for number in 0..200 {
        create(fs, dir, &format!("many{number}"), &noise(number, 3000));
    }
    fs.sync().unwrap();
}

pub(super) fn verify(fs: &Btrfs) {
    for (name, changed) in [("volume", true), ("snapshot", false)] {
        let dir = fs.lookup(fs.root(), name.as_bytes()).unwrap().ino();
        let mut expected = noise(1, BIG);
        assert!(content(fs, dir, "clone") == expected, "{name}");
        if changed {
            expected[..WRITTEN].copy_from_slice(&noise(4, WRITTEN));
            for number in 0..200 {
                let found = content(fs, dir, &format!("many{number}"));
                assert!(found == noise(number, 3000), "{number}");
            }
        }
        assert!(content(fs, dir, "noise") == expected, "{name}");
        assert!(content(fs, dir, "text") == text(BIG), "{name}");
        assert_eq!(content(fs, dir, "small"), b"inline");
        assert!(content(fs, dir, "space")[..4096] == noise(2, 4096));
        assert!(content(fs, dir, "plain") == noise(3, 40_000));
    }
}

/// Asserts that the file system on these devices is complete, takes changes, and passes the check.
pub(super) fn whole(devices: &[Arc<dyn Device>], why: &str) {
    let fs = open(devices).unwrap_or_else(|error| panic!("{why}: {error}"));
    verify(&fs);
    create(&fs, fs.root(), &format!("after {why}"), &noise(5, 7000));
    fs.unmount().unwrap();
    drop(fs);
    let options = CheckOptions {
        check_data_csum: true,
        ..CheckOptions::default()
    };
    let each: Vec<&dyn Device> = devices.iter().map(|device| &**device).collect();
    let report = check(&each, &options, &mut |_| ()).unwrap();
    assert_eq!(report.findings, [], "{why}");
}

/// Filled file systems with these profiles over new devices.
pub(super) fn filled(count: usize, data: Profile, metadata: Profile) -> Devices {
    let devices: Vec<_> = (0..count).map(|_| memory()).collect();
    let options = MkfsOptions {
        data: Some(data),
        metadata: Some(metadata),
        ..MkfsOptions::default()
    };
    let each: Vec<&dyn Device> = devices.iter().map(|device| &**device as _).collect();
    if count == 1 {
        mkfs(each[0], &options).unwrap();
    } else {
        mkfs_several(&each, &options).unwrap();
    }
    let devices: Devices = devices.iter().map(any).collect();
    let fs = open(&devices).unwrap();
    fill(&fs);
    fs.unmount().unwrap();
    devices
}

fn run(
    devices: &[Arc<dyn Device>],
    options: &BalanceOptions,
) -> Result<BalanceReport, BalanceError> {
    balance(devices, options, &mut |_, _| ControlFlow::Continue(()))
}

fn convert(data: Profile, metadata: Profile) -> BalanceOptions {
    let to = |profile| {
        Some(Filter {
            convert: Some(profile),
            soft: true,
            ..Filter::default()
        })
    };
    BalanceOptions {
        data: to(data),
        metadata: to(metadata),
        system: to(metadata),
        force: true,
        ..BalanceOptions::default()
    }
}

fn take_out(devices: &[Arc<dyn Device>], device: Removal) -> Result<bool, MembershipError> {
    let options = RemoveOptions {
        device,
        degraded: false,
        time: None,
    };
    remove(devices, &options, &mut |_, _| ControlFlow::Continue(()))
}

/// All profiles in use.
fn profiles(used: &[DeviceUsage]) -> Vec<(&'static str, &'static str)> {
    let each = used.iter().flat_map(|device| &device.allocated);
    let mut all: Vec<_> = each.map(|part| (part.content, part.profile)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn every_profile_becomes_every_other() {
    let steps = [
        (Profile::Raid1, Profile::Raid1),
        (Profile::Raid0, Profile::Raid1c3),
        (Profile::Raid10, Profile::Raid10),
        (Profile::Raid1c4, Profile::Raid1c4),
        (Profile::Dup, Profile::Raid0),
        (Profile::Raid1c3, Profile::Dup),
        (Profile::Single, Profile::Single),
        (Profile::Raid10, Profile::Raid1),
    ];
    let devices = filled(4, Profile::Single, Profile::Raid1);
    for (data, metadata) in steps {
        let why = format!("{data}, {metadata}");
        let report = run(&devices, &convert(data, metadata)).unwrap();
        assert!(report.changed > 0, "{why}");
        let used = usage(&devices, false).unwrap();
        let (data, metadata) = (data.to_string(), metadata.to_string());
        let expected = [
            ("Data", data.as_str()),
            ("Metadata", metadata.as_str()),
            ("System", metadata.as_str()),
        ];
        assert_eq!(profiles(&used), expected, "{why}");
        whole(&devices, &why);
        let again = run(
            &devices,
            &convert(
                Profile::from_name(&data).unwrap(),
                Profile::from_name(&metadata).unwrap(),
            ),
        );
        assert_eq!(again.unwrap().chosen, 0, "{why}");
    }
}

#[test]
fn a_conversion_that_the_devices_do_not_allow_is_refused() {
    let devices = filled(1, Profile::Single, Profile::Dup);
    let refused = run(&devices, &convert(Profile::Raid1, Profile::Dup)).unwrap_err();
    let text = "profile raid1 needs 2 devices, the file system has 1";
    assert_eq!(refused.to_string(), text);
    let mut fewer = convert(Profile::Single, Profile::Single);
    fewer.force = false;
    let refused = run(&devices, &fewer).unwrap_err();
    assert!(
        matches!(refused, BalanceError::LessRedundant(_)),
        "{refused}"
    );
    whole(&devices, "refused");
}

#[test]
fn unused_space_of_data_groups_becomes_unallocated() {
    let devices = filled(1, Profile::Single, Profile::Dup);
    let fs = open(&devices).unwrap();
    for number in 0..40 {
        create(
            &fs,
            fs.root(),
            &format!("gone{number}"),
            &noise(number, 1 << 20),
        );
    }
    fs.sync().unwrap();
    for number in 0..40 {
        fs.unlink(fs.root(), format!("gone{number}").as_bytes())
            .unwrap();
    }
    fs.unmount().unwrap();
    drop(fs);
    let unallocated = || usage(&devices, false).unwrap()[0].unallocated;
    let before = unallocated();
    let options = BalanceOptions {
        data: Some(Filter {
            usage: Some(0..=80),
            ..Filter::default()
        }),
        ..BalanceOptions::default()
    };
    let report = run(&devices, &options).unwrap();
    assert!(report.changed > 0);
    assert!(
        unallocated() >= before + 4 * MIB,
        "{before} {}",
        unallocated()
    );
    whole(&devices, "usage");
}

#[test]
fn filters_choose_by_device_profile_and_number() {
    let devices = filled(3, Profile::Single, Profile::Raid1);
    let report = |filter: Filter| {
        let data = Some(filter);
        let options = BalanceOptions {
            data,
            ..BalanceOptions::default()
        };
        run(&devices, &options)
    };
    let none = report(Filter {
        profiles: vec![Profile::Raid1],
        ..Filter::default()
    });
    assert_eq!(none.unwrap().chosen, 0);
    let one = report(Filter {
        limit: Some(1),
        ..Filter::default()
    });
    assert_eq!(one.unwrap().chosen, 1);
    let unknown = report(Filter {
        devid: Some(9),
        ..Filter::default()
    });
    assert!(matches!(unknown, Err(BalanceError::NoSuchDevice(9))));
    whole(&devices, "filters");
}

#[test]
fn a_removed_device_is_no_member_and_the_others_have_everything() {
    for (data, metadata) in [
        (Profile::Raid1, Profile::Raid1),
        (Profile::Raid0, Profile::Raid10),
        (Profile::Single, Profile::Dup),
    ] {
        for nth in 0..3 {
            let devices = filled(3, data, metadata);
            let mut others = devices.clone();
            let device = others.remove(nth);
            let removal = if nth == 1 {
                assert!(take_out(&devices, Removal::Devid(2)).unwrap());
                Removal::Device(device.clone())
            } else {
                Removal::Device(device.clone())
            };
            let again = take_out(&others, removal);
            assert_eq!(again.is_ok(), nth != 1, "{again:?}");
            assert!(open(std::slice::from_ref(&device)).is_err());
            whole(&others, &format!("{data} without {nth}"));
        }
    }
}

#[test]
fn a_missing_device_is_removed() {
    let devices = filled(3, Profile::Raid1, Profile::Raid1);
    let left = &devices[..2];
    assert!(take_out(left, Removal::Missing).unwrap());
    whole(left, "missing");
    let none = take_out(left, Removal::Missing).unwrap_err();
    assert!(matches!(none, MembershipError::NoneMissing), "{none}");
    let few = take_out(left, Removal::Devid(1)).unwrap_err();
    let text =
        "profile raid1 needs 2 devices, 1 would be left; convert it first with sapwood balance";
    assert_eq!(few.to_string(), text);
    let unknown = take_out(left, Removal::Devid(7)).unwrap_err();
    assert!(
        matches!(unknown, MembershipError::NoSuchDevice(7)),
        "{unknown}"
    );
    whole(left, "refused");
}

#[test]
fn a_lost_device_is_replaced_by_another_one() {
    let devices = filled(2, Profile::Raid1, Profile::Raid1);
    let (left, new): (_, Arc<dyn Device>) = (&devices[..1], memory());
    let degraded = AddOptions {
        degraded: true,
        ..AddOptions::default()
    };
    assert_eq!(add(left, &new, &degraded).unwrap(), 3);
    let both = [devices[0].clone(), new];
    assert!(take_out(&both, Removal::Missing).unwrap());
    whole(&both, "replaced");
    let used = usage(&both, false).unwrap();
    assert!(
        profiles(&used)
            .iter()
            .all(|(_, profile)| *profile == "raid1")
    );
    // The lost device has nothing that counts.
    let back = open(&devices).err().map(|error| error.to_string());
    assert!(back.is_some());
}

#[test]
fn a_device_with_contents_is_added_only_by_force() {
    let devices = filled(1, Profile::Single, Profile::Dup);
    let other = filled(1, Profile::Single, Profile::Single).remove(0);
    let refused = add(&devices, &other, &AddOptions::default()).unwrap_err();
    assert!(
        matches!(refused, MembershipError::Occupied { .. }),
        "{refused}"
    );
    let force = AddOptions {
        force: true,
        ..AddOptions::default()
    };
    assert_eq!(add(&devices, &other, &force).unwrap(), 2);
    let both = [devices[0].clone(), other.clone()];
    let member = add(&both, &other, &force).unwrap_err();
    assert!(
        matches!(member, MembershipError::Member { devid: 2, .. }),
        "{member}"
    );
    whole(&both, "added");
    let small: Arc<dyn Device> = Arc::new(MemoryDevice::new(MIB));
    let small = add(&both, &small, &force).unwrap_err();
    assert!(matches!(small, MembershipError::TooSmall { .. }), "{small}");
}

/// Adds the second device, mirrors everything, and removes the first. What is done already is
/// skipped.
fn migrate(devices: &[Arc<dyn Device>; 2]) {
    let [old, new] = devices;
    let only = |device: &Arc<dyn Device>| [device.clone()];
    if open(&only(new)).is_err() {
        match add(&only(old), new, &AddOptions::default()) {
            Ok(_) => {}
            // The first device alone is no file system: the second one is a member.
            Err(MembershipError::Engine(_)) => {}
            Err(error) => panic!("{error}"),
        }
        run(devices, &convert(Profile::Raid1, Profile::Raid1)).unwrap();
        run(devices, &convert(Profile::Single, Profile::Single)).unwrap();
        assert!(take_out(&only(new), Removal::Device(old.clone())).unwrap());
    }
}

#[test]
fn every_cut_of_a_migration_leaves_everything_and_it_continues() {
    let recording = recording([filled_memory(), memory()], migrate);
    let cuts = &recording.cuts;
    assert!(cuts.len() > 100, "only {} cuts", cuts.len());
    for (at, cut) in cuts.iter().enumerate() {
        let images = recording.images(at, at);
        let why = format!("cut {at} ({cut:?})");
        whole(complete(&images, &why), &why);
        migrate(&images);
        assert!(open(&images[..1]).is_err(), "{why}");
        whole(&images[1..], &format!("{why}, continued"));
    }
}

/// The devices that are a file system: both, or one of them.
pub(super) fn complete<'i>(images: &'i [Arc<dyn Device>; 2], why: &str) -> &'i [Arc<dyn Device>] {
    let sets = [&images[..], &images[..1], &images[1..]];
    let complete = sets.into_iter().find(|set| open(set).is_ok());
    let errors = || sets.map(|set| open(set).err().map(|error| error.to_string()));
    complete.unwrap_or_else(|| panic!("{why}: {:?}", errors()))
}

pub(super) fn filled_memory() -> Arc<MemoryDevice> {
    let device = memory();
    mkfs(&*device, &MkfsOptions::default()).unwrap();
    let fs = open(&[any(&device)]).unwrap();
    fill(&fs);
    fs.unmount().unwrap();
    device
}
