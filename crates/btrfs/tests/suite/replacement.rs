//! Devices that are replaced: ones that are there, missing, stale or unreadable; power cuts at every
//! request, and the same command again after them.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::membership::{MembershipError, Removal};
use sapwood_btrfs::mkfs::Profile;
use sapwood_btrfs::replacement::{ReplaceOptions, ReplaceReport, replace};
use sapwood_btrfs::{Btrfs, Error, Options};
use sapwood_testing::CrashPlan;
use sapwood_testing::device::{Fault, FaultDevice, FaultRule, RequestKinds};
use sapwood_vfs::{Credentials, FileSystem, NewInode, WriteMode};

use super::devices::{MIB, Recording, SIZE, any, place, recording};
use super::relocation::{Devices, filled, filled_memory, memory, noise, open, verify, whole};

fn options(source: Removal) -> ReplaceOptions {
    ReplaceOptions {
        source,
        force: false,
        degraded: false,
        time: None,
    }
}

fn replaced(
    devices: &[Arc<dyn Device>],
    source: Removal,
    new: &Arc<dyn Device>,
) -> Result<ReplaceReport, MembershipError> {
    let go_on = &mut |_, _| ControlFlow::Continue(());
    replace(devices, new, &options(source), go_on)
}

/// Numbers of devices, with the profiles of data and of metadata.
pub(super) const SETS: [(usize, Profile, Profile); 4] = [
    (1, Profile::Single, Profile::Dup),
    (2, Profile::Raid0, Profile::Raid1),
    (3, Profile::Raid1, Profile::Raid1c3),
    (4, Profile::Raid10, Profile::Raid10),
];

pub(super) fn degraded(devices: &[Arc<dyn Device>]) -> Result<Btrfs, Error> {
    let options = Options {
        background: false,
        degraded: true,
        ..Options::default()
    };
    Btrfs::open(devices.to_vec(), options)
}

#[test]
fn the_new_device_has_the_place_of_the_old_one() {
    for (count, data, metadata) in SETS {
        let mut devices = filled(count, data, metadata);
        for (turn, nth) in [0, count - 1].into_iter().enumerate() {
            let new: Arc<dyn Device> = Arc::new(MemoryDevice::new(SIZE + MIB * nth as u64));
            let old = std::mem::replace(&mut devices[nth], new.clone());
            let (source, before) = match turn {
                0 => (Removal::Device(old.clone()), devices[1..].to_vec()),
                _ => {
                    let mut before = devices.clone();
                    before[nth] = old.clone();
                    (Removal::Devid(nth as u64 + 1), before)
                }
            };
            let report = replaced(&before, source, &new).unwrap();
            assert_eq!(report.devid, nth as u64 + 1);
            assert!(!report.old_is_left && !report.interrupted);
            assert!(open(std::slice::from_ref(&old)).is_err());
            whole(&devices, &format!("{data}, turn {turn}"));
        }
    }
}

#[test]
fn a_missing_device_is_rebuilt() {
    for (count, profile) in [
        (2, Profile::Raid1),
        (3, Profile::Raid1c3),
        (4, Profile::Raid10),
    ] {
        for nth in 0..2 {
            let mut devices = filled(count, profile, profile);
            devices.remove(nth);
            let new: Arc<dyn Device> = memory();
            let report = replaced(&devices, Removal::Missing, &new).unwrap();
            assert_eq!(report.devid, nth as u64 + 1);
            assert_eq!(report.unreadable, 0);
            devices.insert(nth, new.clone());
            whole(&devices, &format!("{profile} with a new {nth}"));
            // The new device has a copy of everything.
            if count == 2 {
                let alone = degraded(&[new]).unwrap();
                verify(&alone);
                alone.unmount().unwrap();
            }
        }
    }
}

/// A file system over two mirrors, one of which missed changes.
fn with_stale() -> Devices {
    let devices = filled(2, Profile::Raid1, Profile::Raid1);
    let fs = degraded(&devices[..1]).unwrap();
    for name in ["one", "two"] {
        let (root, who) = (fs.root(), &Credentials::ROOT);
        fs.create(who, root, name.as_bytes(), NewInode::Directory, 0o700)
            .unwrap();
        fs.sync().unwrap();
    }
    fs.unmount().unwrap();
    drop(fs);
    assert!(matches!(open(&devices), Err(Error::StaleDevice { .. })));
    devices
}

#[test]
fn a_stale_device_is_rebuilt_from_the_other_one() {
    let devices = with_stale();
    let new: Arc<dyn Device> = memory();
    let report = replaced(&devices, Removal::Devid(2), &new).unwrap();
    assert!(report.unreadable == 0 && !report.old_is_left);
    assert!(open(&devices[1..]).is_err());
    let now = [devices[0].clone(), new.clone()];
    whole(&now, "stale");
    let alone = degraded(&[new]).unwrap();
    assert!(alone.lookup(alone.root(), b"two").is_ok());
}

#[test]
fn a_rebuild_that_ended_early_leaves_no_device_and_begins_again() {
    let mut devices = filled(2, Profile::Raid1, Profile::Raid1);
    let new: Arc<dyn Device> = memory();
    let stop = &mut |done, _| {
        if done > MIB {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    };
    let report = replace(&devices[..1], &new, &options(Removal::Missing), stop).unwrap();
    assert!(report.interrupted && open(std::slice::from_ref(&new)).is_err());
    replaced(&devices[..1], Removal::Missing, &new).unwrap();
    devices[1] = new;
    whole(&devices, "at last");
}

#[test]
fn bytes_that_the_old_device_does_not_return_come_from_its_mirror() {
    let mut devices = filled(2, Profile::Raid1, Profile::Raid1);
    let (faulty, mut fail) = unreadable(&devices[1], MIB..64 * MIB);
    devices[1] = faulty;
    let new: Arc<dyn Device> = memory();
    let report = replace(&devices, &new, &options(Removal::Devid(2)), &mut fail).unwrap();
    assert!(report.unreadable == 0 && !report.interrupted);
    devices[1] = new.clone();
    whole(&devices, "unreadable");
    // Also of the file without checksums.
    let alone = degraded(&[new]).unwrap();
    verify(&alone);
    alone.unmount().unwrap();
}

/// A device that does not return a range after the first piece of a copy, when the file system is
/// closed. The second value is the callback of the replacement.
fn unreadable(
    device: &Arc<dyn Device>,
    range: Range<u64>,
) -> (
    Arc<dyn Device>,
    impl FnMut(u64, u64) -> ControlFlow<()> + Send + use<>,
) {
    let faulty = Arc::new(FaultDevice::new(Arc::clone(device)));
    let fails = FaultRule::new(RequestKinds::READ, 1, Fault::Fail);
    let mut fails = Some(fails.from_then_on().within(range));
    let failing = Arc::clone(&faulty);
    let fail = move |_, _| {
        if let Some(rule) = fails.take() {
            failing.arm(rule);
        }
        ControlFlow::Continue(())
    };
    (faulty, fail)
}

#[test]
fn bytes_without_another_copy_are_lost_only_by_force() {
    let filled = filled_memory();
    let bad = place(&filled, &noise(4, 50_000));
    let devices = [any(&filled)];
    let (faulty, mut fail) = unreadable(&devices[0], bad.clone());
    let new: Arc<dyn Device> = memory();
    let refused = replace(&[faulty], &new, &options(Removal::Devid(1)), &mut fail).unwrap_err();
    let is_unreadable = matches!(refused, MembershipError::Unreadable { .. });
    assert!(is_unreadable, "{refused}");
    assert!(open(std::slice::from_ref(&new)).is_err());
    whole(&devices, "refused");
    let force = ReplaceOptions {
        force: true,
        ..options(Removal::Devid(1))
    };
    let (faulty, mut fail) = unreadable(&devices[0], bad);
    let report = replace(&[faulty], &new, &force, &mut fail).unwrap();
    assert!(report.unreadable > 0 && !report.interrupted);
    assert!(open(&devices).is_err());
}

#[test]
fn an_unfinished_copy_is_no_device_of_the_file_system() {
    let memory = filled_memory();
    // A block group lies over the second superblock.
    let fs = open(&[any(&memory)]).unwrap();
    let who = &Credentials::ROOT;
    let made = fs.create(who, fs.root(), b"large", NewInode::Regular, 0o600);
    let made = made.unwrap().ino();
    let piece = noise(9, MIB as usize);
    for at in 0..40 {
        let mode = WriteMode::default();
        fs.write(made, at * MIB, &piece, mode).unwrap();
    }
    fs.unmount().unwrap();
    drop(fs);
    let old = any(&memory);
    let new: Arc<dyn Device> = Arc::new(MemoryDevice::new(SIZE));
    let mut passed = false;
    for most in [0.3, 0.9, 1.0] {
        let stop = &mut |done: u64, total: u64| {
            passed |= done == total;
            if done as f64 >= most * total as f64 {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        let one = [old.clone()];
        let report = replace(&one, &new, &options(Removal::Devid(1)), stop).unwrap();
        assert!(report.interrupted);
        assert!(open(std::slice::from_ref(&new)).is_err());
        let mut copy = [0; 4096];
        new.read_at(64 * MIB, &mut copy).unwrap();
        assert_eq!(copy, [0; 4096]);
        whole(std::slice::from_ref(&old), &format!("{most}"));
    }
    assert!(passed);
    replaced(&[old], Removal::Devid(1), &new).unwrap();
    whole(&[new], "at last");
}

#[test]
fn a_copy_that_changed_since_is_not_taken_for_the_device() {
    let memory = filled_memory();
    let clone = Arc::new(memory.snapshot());
    let (old, new) = (any(&memory), any(&clone));
    whole(std::slice::from_ref(&new), "the clone changes");
    let refused = replaced(std::slice::from_ref(&old), Removal::Devid(1), &new).unwrap_err();
    let is_member = matches!(refused, MembershipError::Member { devid: 1, .. });
    assert!(is_member, "{refused}");
    whole(std::slice::from_ref(&old), "the old one is there");
    let same = replaced(std::slice::from_ref(&old), Removal::Devid(1), &old).unwrap_err();
    assert!(matches!(same, MembershipError::Member { .. }), "{same}");
    whole(&[old], "not by itself");
}

#[test]
fn a_missing_device_with_the_only_copy_is_refused() {
    let devices = filled(2, Profile::Single, Profile::Raid1);
    let new: Arc<dyn Device> = memory();
    let mut refused = 0;
    for left in &devices {
        match replaced(std::slice::from_ref(left), Removal::Missing, &new) {
            Err(MembershipError::Unmirrored { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
            // All data may be on one device.
            Ok(_) => new.write_at(65536, &[0; 4096]).unwrap(),
        }
        assert!(open(std::slice::from_ref(&new)).is_err());
    }
    assert!(refused > 0);
}

#[test]
fn what_cannot_be_replaced_is_refused_before_any_change() {
    let devices = filled(2, Profile::Raid1, Profile::Raid1);
    let new: Arc<dyn Device> = memory();
    let refused = |source, new: &Arc<dyn Device>| replaced(&devices, source, new).unwrap_err();
    let error = refused(Removal::Devid(7), &new);
    assert!(matches!(error, MembershipError::NoSuchDevice(7)), "{error}");
    let error = refused(Removal::Missing, &new);
    assert!(matches!(error, MembershipError::NoneMissing), "{error}");
    let small: Arc<dyn Device> = Arc::new(MemoryDevice::new(SIZE - MIB));
    let error = refused(Removal::Devid(1), &small);
    assert!(matches!(error, MembershipError::Smaller { .. }), "{error}");
    let error = refused(Removal::Devid(1), &devices[1]);
    assert!(
        matches!(error, MembershipError::Member { devid: 2, .. }),
        "{error}"
    );
    let other = filled(1, Profile::Single, Profile::Dup).remove(0);
    let error = refused(Removal::Devid(1), &other);
    assert!(matches!(error, MembershipError::Occupied { .. }), "{error}");
    whole(&devices, "refused");
    let force = ReplaceOptions {
        force: true,
        ..options(Removal::Devid(1))
    };
    let go_on = &mut |_, _| ControlFlow::Continue(());
    replace(&devices, &other, &force, go_on).unwrap();
    whole(&[other, devices[1].clone()], "forced");
}

/// Replaces the first device by the second one, unless that is done.
fn finish(devices: &[Arc<dyn Device>; 2]) {
    let [old, new] = devices;
    if open(std::slice::from_ref(old)).is_ok() {
        let force = ReplaceOptions {
            force: true,
            ..options(Removal::Devid(1))
        };
        let go_on = &mut |_, _| ControlFlow::Continue(());
        replace(std::slice::from_ref(old), new, &force, go_on).unwrap();
    }
}

#[test]
fn every_cut_of_a_replacement_leaves_everything_and_it_continues() {
    let Recording { base, logs, cuts } = recording([filled_memory(), memory()], finish);
    assert!(cuts.len() > 20, "only {} cuts", cuts.len());
    for (at, cut) in cuts.into_iter().enumerate() {
        let plan = |n: usize| match (at + n) % 3 {
            0 => CrashPlan::at(cut[n]),
            1 => CrashPlan::at(cut[n]).without(logs[n].volatile(cut[n])),
            _ => logs[n].random_plan(cut[n], at as u64),
        };
        let images = [0, 1].map(|n| Arc::new(logs[n].image(&base[n], &plan(n))));
        let images = images.each_ref().map(any);
        let why = format!("cut {at} ({cut:?})");
        let first = [&images[..1], &images[1..]];
        let complete = first.into_iter().find(|set| open(set).is_ok());
        whole(complete.unwrap_or_else(|| panic!("{why}")), &why);
        finish(&images);
        assert!(open(&images[..1]).is_err(), "{why}");
        whole(&images[1..], &format!("{why}, continued"));
    }
}
