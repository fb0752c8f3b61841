//! Mirrors in memory: devices that are missing, that fail while the file system is open, and that
//! return stale; bad copies.

use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::mkfs::{MkfsError, MkfsOptions, Profile, mkfs_several};
use sapwood_btrfs::scrub::{Position, ScrubOptions, ScrubReport, scrub};
use sapwood_btrfs::{Btrfs, Error, Options};
use sapwood_btrfs_format::SUPER_OFFSETS;
use sapwood_testing::{Fault, FaultDevice, FaultRule, RequestKinds};
use sapwood_vfs::{Credentials, FileSystem, NewInode, SyncKind, WriteMode};

use super::devices::{MIB, Pair, SIZE, any, clean, formatted, get, name, open, put, super_of};

pub(super) fn mirrored() -> Pair {
    formatted(&MkfsOptions {
        data: Some(Profile::Raid1),
        ..MkfsOptions::default()
    })
}

pub(super) fn opened(pair: &Pair) -> Btrfs {
    open(pair.each_ref().map(any).to_vec()).unwrap()
}

fn degraded(devices: Vec<Arc<dyn Device>>) -> Result<Btrfs, Error> {
    let options = Options {
        background: false,
        degraded: true,
        ..Options::default()
    };
    Btrfs::open(devices, options)
}

/// Writes files and makes each durable, until one fails. Returns the number of durable ones.
fn acknowledged(fs: &Btrfs, from: u8, count: u8) -> u8 {
    for round in from..from + count {
        let file = name(round);
        let (root, owner) = (fs.root(), Credentials::ROOT);
        let made = fs.create(&owner, root, &file, NewInode::Regular, 0o600);
        let Ok(made) = made else {
            return round;
        };
        let ino = made.ino();
        let durable = fs
            .write(ino, 0, &content(round), WriteMode::default())
            .and_then(|_| match round % 3 {
                2 => fs.sync(),
                _ => fs.fsync(ino, SyncKind::All),
            });
        if durable.is_err() {
            return round;
        }
    }
    from + count
}

fn content(round: u8) -> Vec<u8> {
    vec![round + 1; 3000 + usize::from(round) * 9000]
}

fn all_there(fs: &Btrfs, count: u8) {
    for round in 0..count {
        assert!(get(fs, &name(round)) == content(round), "file {round}");
    }
}

#[test]
fn a_device_that_fails_is_left_out_and_known_as_stale() {
    for failing in 0..2 {
        for kinds in [RequestKinds::ANY_WRITE, RequestKinds::FLUSH] {
            let pair = mirrored();
            let faulty = Arc::new(FaultDevice::new(pair[failing].clone()));
            let mut devices = pair.each_ref().map(any);
            devices[failing] = faulty.clone();
            let fs = open(devices.to_vec()).unwrap();
            assert_eq!(acknowledged(&fs, 0, 3), 3);
            faulty.fail_all(kinds);
            assert_eq!(acknowledged(&fs, 3, 6), 9);
            all_there(&fs, 9);
            drop(fs);
            let devid = failing as u64 + 1;
            match open(pair.each_ref().map(any).to_vec()).err().unwrap() {
                Error::StaleDevice { devid: stale, .. } => assert_eq!(stale, devid),
                error => panic!("{error}"),
            }
            let survivor = any(&pair[1 - failing]);
            match open(vec![survivor.clone()]).err().unwrap() {
                Error::MissingDevice { devid: missing, .. } => assert_eq!(missing, devid),
                error => panic!("{error}"),
            }
            for devices in [vec![survivor.clone()], pair.each_ref().map(any).to_vec()] {
                let fs = degraded(devices).unwrap();
                all_there(&fs, 9);
                fs.unmount().unwrap();
            }
        }
    }
}

#[test]
fn a_device_that_stops_at_any_write_loses_nothing() {
    let mut ends = 0;
    for failing in 0..2 {
        for nth in 1.. {
            let pair = mirrored();
            let faulty = Arc::new(FaultDevice::new(pair[failing].clone()));
            let mut devices = pair.each_ref().map(any);
            devices[failing] = faulty.clone();
            let fs = open(devices.to_vec()).unwrap();
            let kinds = RequestKinds::ANY_WRITE | RequestKinds::FLUSH;
            faulty.arm(FaultRule::new(kinds, nth, Fault::Fail).from_then_on());
            assert_eq!(
                acknowledged(&fs, 0, 5),
                5,
                "device {failing}, request {nth}"
            );
            let fired = faulty.fired() > 0;
            // The machine stops without an unmount.
            drop(fs);
            faulty.clear();
            let returned = open(pair.each_ref().map(any).to_vec());
            let fs = match returned {
                Err(Error::StaleDevice { .. }) if fired => {
                    degraded(vec![any(&pair[1 - failing])]).unwrap()
                }
                other => other.unwrap(),
            };
            all_there(&fs, 5);
            fs.unmount().unwrap();
            if !fired {
                ends += 1;
                break;
            }
        }
    }
    assert_eq!(ends, 2);
}

#[test]
fn a_degraded_mount_leaves_a_missing_device_stale_with_the_first_fsync() {
    for missing in 0..2 {
        let pair = mirrored();
        let fs = opened(&pair);
        assert_eq!(acknowledged(&fs, 0, 2), 2);
        fs.unmount().unwrap();
        drop(fs);
        let fs = degraded(vec![any(&pair[1 - missing])]).unwrap();
        let ino = put(&fs, &name(2), &content(2));
        fs.fsync(ino, SyncKind::All).unwrap();
        drop(fs);
        let error = open(pair.each_ref().map(any).to_vec()).err().unwrap();
        let devid = missing as u64 + 1;
        assert!(
            matches!(error, Error::StaleDevice { devid: of, .. } if of == devid),
            "{error}"
        );
        let fs = degraded(pair.each_ref().map(any).to_vec()).unwrap();
        all_there(&fs, 3);
        fs.unmount().unwrap();
    }
}

#[test]
fn too_few_devices_name_profile_and_counts() {
    let set: Vec<Arc<MemoryDevice>> = (0..4).map(|_| Arc::new(MemoryDevice::new(SIZE))).collect();
    let devices: Vec<&dyn Device> = set.iter().map(|d| &**d as &dyn Device).collect();
    let options = MkfsOptions {
        metadata: Some(Profile::Raid1c4),
        data: Some(Profile::Raid1c3),
        ..MkfsOptions::default()
    };
    mkfs_several(&devices, &options).unwrap();
    let some = |count: usize| degraded(set.iter().take(count).map(any).collect());
    assert!(some(3).is_ok() && some(2).is_ok());
    let data = super_of(&*set[0], SUPER_OFFSETS[0]);
    assert_eq!(data.num_devices.get(), 4);
    let fewer = MkfsOptions {
        metadata: Some(Profile::Raid1c3),
        ..MkfsOptions::default()
    };
    let error = mkfs_several(&devices[..2], &fewer).unwrap_err();
    assert!(
        matches!(
            error,
            MkfsError::TooFewDevices {
                needed: 3,
                given: 2,
                ..
            }
        ),
        "{error}"
    );
    let striped = formatted(&MkfsOptions {
        data: Some(Profile::Raid0),
        ..MkfsOptions::default()
    });
    let error = degraded(vec![any(&striped[0])]).err().unwrap();
    let said = "profile raid0 needs 2 of its 2 devices, 1 are there";
    assert_eq!(error.to_string(), said);
}

#[test]
fn bad_copies_are_repaired_from_the_good_one() {
    for bad in 0..2 {
        let pair = mirrored();
        let fs = opened(&pair);
        assert_eq!(acknowledged(&fs, 0, 5), 5);
        fs.unmount().unwrap();
        drop(fs);
        damage(&pair[bad]);
        let fs = opened(&pair);
        all_there(&fs, 5);
        fs.unmount().unwrap();
    }
}

fn scrubbed(pair: &Pair, options: &ScrubOptions) -> ScrubReport {
    let devices = pair.each_ref().map(any);
    let mut done = 0;
    let report = scrub(&devices, options, &mut |step| {
        assert!(step.done >= done, "{} after {done}", step.done);
        done = step.done;
        ControlFlow::Continue(())
    });
    report.unwrap()
}

/// Overwrites a quarter of a device's sectors, but no superblock.
fn damage(device: &MemoryDevice) {
    let mut rng = fastrand::Rng::with_seed(3);
    for at in (2 * MIB..SIZE).step_by(4096) {
        let keeps = SUPER_OFFSETS
            .iter()
            .any(|sb| (*sb..sb + 4096).contains(&at));
        if !keeps && rng.u8(..4) == 0 {
            device.write_at(at, &[0xa5; 4096]).unwrap();
        }
    }
}

#[test]
fn a_scrub_repairs_every_bad_copy() {
    for bad in 0..2 {
        let pair = mirrored();
        let fs = opened(&pair);
        assert_eq!(acknowledged(&fs, 0, 6), 6);
        fs.unmount().unwrap();
        drop(fs);
        let before = scrubbed(&pair, &ScrubOptions::default());
        assert!(before.is_clean() && before.files.is_empty(), "{before:?}");
        damage(&pair[bad]);
        pair[bad].write_at(SUPER_OFFSETS[1], &[1; 4096]).unwrap();
        let only = ScrubOptions {
            read_only: true,
            ..ScrubOptions::default()
        };
        let images = pair.each_ref().map(|device| device.snapshot());
        let seen = scrubbed(&pair, &only);
        assert!(!seen.is_clean());
        for (device, image) in pair.iter().zip(&images) {
            assert_eq!(device.first_difference(image), None);
        }
        let report = scrubbed(&pair, &ScrubOptions::default());
        assert!(report.is_clean(), "{report:?}");
        let device = &report.devices[&(bad as u64 + 1)];
        assert!(
            device.data > 0 && device.trees > 0 && device.superblocks == 1,
            "{device:?}"
        );
        assert_eq!(device.found(), device.repaired);
        assert!(
            report
                .files
                .iter()
                .any(|file| file.path == name(5) && file.repaired)
        );
        clean(&pair);
        assert_eq!(scrubbed(&pair, &only).files, []);
    }
}

#[test]
fn a_scrub_brings_a_stale_device_up_to_date() {
    for stale in 0..2 {
        let pair = mirrored();
        let fs = opened(&pair);
        assert_eq!(acknowledged(&fs, 0, 2), 2);
        fs.unmount().unwrap();
        drop(fs);
        let fs = degraded(vec![any(&pair[1 - stale])]).unwrap();
        assert_eq!(acknowledged(&fs, 2, 6), 8);
        fs.unmount().unwrap();
        drop(fs);
        // A scrub that is interrupted leaves it stale.
        let devices = pair.each_ref().map(any);
        let report = scrub(
            &devices,
            &ScrubOptions::default(),
            &mut |step| match step.position {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            },
        );
        assert!(report.unwrap().interrupted);
        let error = open(pair.each_ref().map(any).to_vec()).err().unwrap();
        assert!(matches!(error, Error::StaleDevice { .. }), "{error}");
        let report = scrubbed(&pair, &ScrubOptions::default());
        assert!(report.is_clean(), "{report:?}");
        assert!(report.devices[&(stale as u64 + 1)].was_stale);
        let fs = opened(&pair);
        all_there(&fs, 8);
        fs.unmount().unwrap();
        drop(fs);
        clean(&pair);
        let fs = degraded(vec![any(&pair[stale])]).unwrap();
        all_there(&fs, 8);
        fs.unmount().unwrap();
    }
}

#[test]
fn a_scrub_continues_at_a_position_of_the_same_generation() {
    let pair = mirrored();
    let fs = opened(&pair);
    assert_eq!(acknowledged(&fs, 0, 6), 6);
    fs.unmount().unwrap();
    drop(fs);
    let whole = scrubbed(&pair, &ScrubOptions::default());
    let bytes = |report: &ScrubReport| report.devices.values().map(|d| d.bytes).sum::<u64>();
    let mut positions: Vec<Position> = Vec::new();
    let devices = pair.each_ref().map(any);
    let report = scrub(&devices, &ScrubOptions::default(), &mut |step| {
        positions.extend(step.position);
        ControlFlow::Continue(())
    });
    assert_eq!(bytes(&report.unwrap()), bytes(&whole));
    assert!(positions.len() > 2);
    let from = |position: Position| {
        let resume = Some(position);
        bytes(&scrubbed(
            &pair,
            &ScrubOptions {
                resume,
                ..ScrubOptions::default()
            },
        ))
    };
    let mut left = bytes(&whole);
    for position in &positions {
        let now = from(*position);
        assert!(now <= left);
        left = now;
    }
    assert_eq!(left, 0);
    let other = Position {
        generation: positions[0].generation + 1,
        ..positions[0]
    };
    assert_eq!(from(other), bytes(&whole));
}

#[test]
fn a_stale_device_gets_all_bytes_whatever_an_earlier_scrub_did() {
    let pair = mirrored();
    let fs = opened(&pair);
    assert_eq!(acknowledged(&fs, 0, 2), 2);
    fs.unmount().unwrap();
    drop(fs);
    let fs = degraded(vec![any(&pair[0])]).unwrap();
    assert_eq!(acknowledged(&fs, 2, 6), 8);
    fs.unmount().unwrap();
    drop(fs);
    let mut end = None;
    let alone = ScrubOptions {
        degraded: true,
        ..ScrubOptions::default()
    };
    let report = scrub(&[any(&pair[0])], &alone, &mut |step| {
        end = step.position.or(end);
        ControlFlow::Continue(())
    });
    assert!(report.unwrap().is_clean() && end.is_some());
    let report = scrubbed(
        &pair,
        &ScrubOptions {
            resume: end,
            ..ScrubOptions::default()
        },
    );
    assert!(
        report.is_clean() && report.devices[&2].was_stale,
        "{report:?}"
    );
    let fs = degraded(vec![any(&pair[1])]).unwrap();
    all_there(&fs, 8);
    fs.unmount().unwrap();
}

#[test]
fn a_file_without_a_good_copy_is_named() {
    let pair = formatted(&MkfsOptions::default());
    let fs = opened(&pair);
    assert_eq!(acknowledged(&fs, 0, 6), 6);
    fs.unmount().unwrap();
    drop(fs);
    let content = content(4);
    let find = |device: &MemoryDevice| {
        let mut sector = vec![0; 4096];
        (2 * MIB..SIZE).step_by(4096).find(|at| {
            device.read_at(*at, &mut sector).unwrap();
            sector == content[..4096]
        })
    };
    let (device, at) = pair.iter().find_map(|d| Some((d, find(d)?))).unwrap();
    device.write_at(at, &[0; 4096]).unwrap();
    let report = scrubbed(&pair, &ScrubOptions::default());
    assert!(!report.is_clean());
    assert_eq!(report.files.len(), 1);
    let file = &report.files[0];
    assert_eq!(
        (&*file.path, file.repaired, file.len),
        (&name(4)[..], false, 4096)
    );
    let lost: u64 = report.devices.values().map(|device| device.lost).sum();
    assert_eq!(lost, 1);
}

#[test]
fn every_profile_fills_its_devices() {
    use Profile::{Dup, Raid0, Raid1, Raid1c3, Raid1c4, Raid10, Single};
    for (data, room) in [
        (Single, 4),
        (Dup, 2),
        (Raid0, 4),
        (Raid10, 2),
        (Raid1, 2),
        (Raid1c4, 1),
    ] {
        let set: Vec<Arc<MemoryDevice>> =
            (0..4).map(|_| Arc::new(MemoryDevice::new(SIZE))).collect();
        let devices: Vec<&dyn Device> = set.iter().map(|d| &**d as &dyn Device).collect();
        let options = MkfsOptions {
            metadata: Some(Raid1c3),
            data: Some(data),
            ..MkfsOptions::default()
        };
        mkfs_several(&devices, &options).unwrap();
        let fs = open(set.iter().map(any).collect()).unwrap();
        let before = fs.statfs().unwrap();
        let mut files = 0;
        loop {
            let (root, owner) = (fs.root(), Credentials::ROOT);
            let file = format!("{files}");
            let made = fs.create(&owner, root, file.as_bytes(), NewInode::Regular, 0o600);
            let Ok(made) = made else { break };
            let content = vec![files as u8; 1 << 20];
            let written = fs.write(made.ino(), 0, &content, WriteMode::default());
            if written.is_err() || fs.sync().is_err() {
                break;
            }
            files += 1;
        }
        let promised = before.blocks_available * 4096 / MIB;
        let metadata = SIZE / MIB * room / 3;
        assert!(files + metadata > SIZE / MIB * room, "{data}: {files} MiB");
        assert!(
            files.abs_diff(promised) <= promised / 6,
            "{data}: {files} of {promised} MiB"
        );
        for file in 0..files {
            let content = get(&fs, format!("{file}").as_bytes());
            assert!(content == vec![file as u8; 1 << 20], "{data}: {file}");
        }
        fs.unmount().unwrap();
        drop(fs);
        let devices: Vec<Arc<dyn Device>> = set.iter().map(any).collect();
        let step = &mut |_: &sapwood_btrfs::scrub::ScrubStep| ControlFlow::Continue(());
        let report = scrub(&devices, &ScrubOptions::default(), step).unwrap();
        assert!(report.is_clean(), "{data}: {report:?}");
    }
}
