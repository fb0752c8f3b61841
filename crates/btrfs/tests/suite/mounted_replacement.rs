//! Devices that are replaced while the file system is in use: ones that are there, missing, or fail
//! meanwhile; power cuts at every request of that.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::Btrfs;
use sapwood_btrfs::membership::{MembershipError, MountedDevice};
use sapwood_btrfs::mkfs::Profile;
use sapwood_btrfs::replacement::{ReplaceReport, replace_mounted};
use sapwood_btrfs::scrub::{ScrubOptions, scrub_mounted};
use sapwood_testing::RequestKinds;
use sapwood_testing::device::{Fault, FaultDevice, FaultRule, GateDevice};
use sapwood_vfs::FileSystem;

use super::devices::{MIB, SIZE, any, get, recording};
use super::mounted_balance::{Acknowledged, Counted, overwrite_during, write_files};
use super::relocation::{Devices, filled, filled_memory, memory, open, verify, whole};
use super::replacement::{SETS, degraded};

type Pair = [Arc<dyn Device>; 2];

fn replaced(
    fs: &Btrfs,
    device: MountedDevice<'_>,
    new: &Arc<dyn Device>,
) -> Result<ReplaceReport, MembershipError> {
    replace_mounted(
        fs,
        device,
        new,
        false,
        &mut |_, _| ControlFlow::Continue(()),
    )
}

fn assert_there(fs: &Btrfs, files: &Acknowledged, until: usize, why: &str) -> usize {
    let mut seen = 0;
    for (name, content, when) in files.lock().iter().filter(|file| file.2 <= until) {
        seen += 1;
        assert!(
            get(fs, name) == *content,
            "{why}: {} of {when}",
            name.escape_ascii()
        );
    }
    seen
}

/// Runs `work` while another thread writes files. Returns the files.
fn meanwhile(fs: &Btrfs, now: &(dyn Fn() -> usize + Sync), work: impl FnOnce()) -> Acknowledged {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| write_files(fs, &ended, now));
        work();
        ended.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    })
}

fn assert_scrubbed(fs: &Btrfs) {
    let go_on = &mut |_: &_| ControlFlow::Continue(());
    let report = scrub_mounted(fs, &ScrubOptions::default(), go_on).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

/// The file system on `devices` has these files after another mount, and nothing is wrong with it.
fn assert_kept(devices: &[Arc<dyn Device>], files: &Acknowledged, why: &str) {
    let fs = open(devices).unwrap_or_else(|error| panic!("{why}: {error}"));
    assert_there(&fs, files, usize::MAX, why);
    fs.unmount().unwrap();
    drop(fs);
    whole(devices, why);
}

#[test]
fn a_device_is_replaced_while_files_are_written() {
    for (count, data, metadata) in SETS {
        let mut devices = filled(count, data, metadata);
        let fs = open(&devices).unwrap();
        let new: Arc<dyn Device> = Arc::new(MemoryDevice::new(SIZE + MIB));
        let last = count as u64;
        let files = meanwhile(&fs, &|| 0, || {
            let report = replaced(&fs, MountedDevice::Devid(last), &new).unwrap();
            assert_eq!((report.devid, report.unreadable), (last, 0));
            assert!(!report.old_is_left && !report.interrupted);
        });
        let why = format!("{data} over {count}");
        assert_there(&fs, &files, usize::MAX, &why);
        assert_scrubbed(&fs);
        fs.unmount().unwrap();
        drop(fs);
        let old = std::mem::replace(&mut devices[count - 1], new);
        assert!(open(&[old]).is_err(), "{why}");
        assert_kept(&devices, &files, &why);
    }
}

#[test]
fn a_missing_device_is_replaced_in_a_degraded_mount() {
    for (count, profile) in [(2, Profile::Raid1), (4, Profile::Raid10)] {
        let mut devices = filled(count, profile, profile);
        devices.remove(1);
        let fs = degraded(&devices).unwrap();
        let new: Arc<dyn Device> = memory();
        let files = meanwhile(&fs, &|| 0, || {
            let report = replaced(&fs, MountedDevice::Missing, &new).unwrap();
            assert_eq!((report.devid, report.unreadable), (2, 0));
        });
        assert_scrubbed(&fs);
        let again = replaced(&fs, MountedDevice::Missing, &any(&memory()));
        assert!(
            matches!(again, Err(MembershipError::NoneMissing)),
            "{again:?}"
        );
        fs.unmount().unwrap();
        drop(fs);
        devices.insert(1, new);
        assert_kept(&devices, &files, &format!("{profile}"));
    }
}

#[test]
fn a_device_that_fails_meanwhile_is_replaced_from_its_mirror() {
    let mut devices = filled(2, Profile::Raid1, Profile::Raid1);
    let faulty = Arc::new(FaultDevice::new(Arc::clone(&devices[1])));
    devices[1] = faulty.clone();
    let fs = open(&devices).unwrap();
    let new: Arc<dyn Device> = memory();
    let mut steps = 0;
    let files = meanwhile(&fs, &|| 0, || {
        let report = replace_mounted(&fs, MountedDevice::Devid(2), &new, false, &mut |_, _| {
            steps += 1;
            if steps == 3 {
                faulty.fail_all(RequestKinds::ANY_WRITE | RequestKinds::READ);
            }
            ControlFlow::Continue(())
        });
        assert_eq!(report.unwrap().unreadable, 0);
    });
    assert!(steps > 3);
    assert_scrubbed(&fs);
    fs.unmount().unwrap();
    drop(fs);
    devices[1] = new;
    assert_kept(&devices, &files, "failed");
}

#[test]
fn a_new_device_that_refuses_a_request_replaces_nothing() {
    let (first_super, rest) = (65_536..69_632, MIB..SIZE);
    for (kind, nth, within) in [
        (RequestKinds::ANY_WRITE, 4, rest),
        // The first one erases it.
        (RequestKinds::ANY_WRITE, 2, first_super),
        (RequestKinds::FLUSH, 1, 0..SIZE),
        (RequestKinds::FLUSH, 3, 0..SIZE),
        (RequestKinds::FLUSH, 4, 0..SIZE),
    ] {
        let devices = filled(2, Profile::Raid1, Profile::Raid1);
        let fs = open(&devices).unwrap();
        let below = memory();
        let faulty = Arc::new(FaultDevice::new(below.clone()));
        let mut rule = FaultRule::new(kind, nth, Fault::Fail).from_then_on();
        if kind == RequestKinds::ANY_WRITE {
            rule = rule.within(within);
        }
        faulty.arm(rule);
        let new: Arc<dyn Device> = faulty.clone();
        let mut refused = None;
        let files = meanwhile(&fs, &|| 0, || {
            refused = Some(replaced(&fs, MountedDevice::Devid(1), &new));
        });
        let refused = refused.unwrap();
        assert!(faulty.fired() > 0, "{kind:?} {nth}");
        let expected = matches!(refused, Err(MembershipError::Refused { .. }));
        assert!(expected, "{kind:?} {nth}: {refused:?}");
        // The mount goes on with the old device, and another one replaces it.
        let other: Arc<dyn Device> = memory();
        replaced(&fs, MountedDevice::Devid(1), &other).unwrap();
        fs.unmount().unwrap();
        drop(fs);
        assert_kept(&[other, Arc::clone(&devices[1])], &files, "another one");
        assert!(open(&[devices[0].clone()]).is_err());
    }
}

#[test]
fn a_replacement_that_is_ended_changes_nothing() {
    let devices = filled(1, Profile::Single, Profile::Dup);
    let fs = open(&devices).unwrap();
    let new: Arc<dyn Device> = memory();
    for most in [0.0, 0.5, 1.0] {
        let report = replace_mounted(
            &fs,
            MountedDevice::Devid(1),
            &new,
            false,
            &mut |done, all| {
                if done as f64 >= most * all as f64 {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            },
        );
        assert!(report.unwrap().interrupted);
        assert!(open(std::slice::from_ref(&new)).is_err());
    }
    let error = replaced(&fs, MountedDevice::Devid(3), &new).unwrap_err();
    assert!(matches!(error, MembershipError::NoSuchDevice(3)), "{error}");
    let error = replaced(&fs, MountedDevice::Name("x"), &new).unwrap_err();
    assert!(
        matches!(error, MembershipError::NoDeviceNamed(_)),
        "{error}"
    );
    let error = replaced(&fs, MountedDevice::Devid(1), &devices[0]).unwrap_err();
    assert!(
        matches!(error, MembershipError::Member { devid: 1, .. }),
        "{error}"
    );
    let small: Arc<dyn Device> = Arc::new(MemoryDevice::new(SIZE - MIB));
    let error = replaced(&fs, MountedDevice::Devid(1), &small).unwrap_err();
    assert!(matches!(error, MembershipError::Smaller { .. }), "{error}");
    let other = filled(1, Profile::Single, Profile::Dup).remove(0);
    let error = replaced(&fs, MountedDevice::Devid(1), &other).unwrap_err();
    assert!(matches!(error, MembershipError::Occupied { .. }), "{error}");
    fs.unmount().unwrap();
    drop(fs);
    whole(&devices, "ended");
}

#[test]
fn a_write_in_place_is_not_lost_in_the_copy() {
    let old = filled_memory();
    let below = memory();
    let gate = Arc::new(GateDevice::new(below.clone()));
    let fs = open(&[any(&old)]).unwrap();
    let new: Arc<dyn Device> = gate.clone();
    overwrite_during(&fs, &gate, || {
        replaced(&fs, MountedDevice::Devid(1), &new).unwrap();
    });
    fs.unmount().unwrap();
    drop(fs);
    let fs = open(&[any(&below)]).unwrap();
    assert!(get(&fs, b"in place") == [2; 65536]);
    fs.unmount().unwrap();
    drop(fs);
    whole(&[any(&below)], "after the copy");
}

fn counted(devices: &Pair) -> (Devices, Arc<AtomicUsize>) {
    let begun = Arc::new(AtomicUsize::new(0));
    let counted = devices.iter().map(|device| -> Arc<dyn Device> {
        Arc::new(Counted {
            below: Arc::clone(device),
            begun: Arc::clone(&begun),
        })
    });
    (counted.collect(), begun)
}

/// Asserts that after each cut `opened` finds a file system that has what was acknowledged.
fn assert_every_cut(
    memory: [Arc<MemoryDevice>; 2],
    work: &dyn Fn(&Pair) -> Acknowledged,
    opened: &dyn Fn(&Pair, &str) -> Btrfs,
) {
    let mut files = Acknowledged::default();
    let recording = recording(memory, |devices| files = work(devices));
    let cuts = &recording.cuts;
    assert!(cuts.len() > 100, "only {} cuts", cuts.len());
    let mut seen = 0;
    // The superblocks change near the end.
    let last = cuts.len() - 100;
    for (at, cut) in cuts.iter().enumerate() {
        if at % 5 > 0 && (30..last).contains(&at) {
            continue;
        }
        for way in [at, at / 5] {
            let images = recording.images(at, way);
            let why = format!("cut {at} of {} ({cut:?}), way {}", cuts.len(), way % 4);
            let fs = opened(&images, &why);
            seen += assert_there(&fs, &files, at, &why);
            verify(&fs);
            fs.unmount()
                .unwrap_or_else(|error| panic!("{why}: {error}"));
        }
    }
    assert!(seen > 20, "only {seen} files");
}

#[test]
fn every_cut_of_a_replacement_keeps_what_was_acknowledged() {
    let work = |devices: &Pair| {
        let (devices, begun) = counted(devices);
        let fs = open(&devices[..1]).unwrap();
        let now = || begun.load(Ordering::SeqCst);
        let files = meanwhile(&fs, &now, || {
            replaced(&fs, MountedDevice::Devid(1), &devices[1]).unwrap();
        });
        fs.unmount().unwrap();
        files
    };
    assert_every_cut([filled_memory(), memory()], &work, &|images, why| {
        // Where both are the device, both have everything.
        let each = [0, 1].map(|at| open(&images[at..=at]));
        match each {
            [Ok(old), Ok(new)] => {
                verify(&old);
                new
            }
            [Ok(one), Err(_)] | [Err(_), Ok(one)] => one,
            [Err(old), Err(new)] => panic!("{why}: {old}; {new}"),
        }
    });
}

#[test]
fn every_cut_of_a_rebuild_keeps_what_was_acknowledged() {
    let mut devices = filled(2, Profile::Raid1, Profile::Raid1);
    let first = devices.remove(0);
    let copy = MemoryDevice::new(SIZE);
    let mut bytes = vec![0; SIZE as usize];
    first.read_at(0, &mut bytes).unwrap();
    copy.write_at(0, &bytes).unwrap();
    let work = |devices: &Pair| {
        let (devices, begun) = counted(devices);
        let fs = degraded(&devices[..1]).unwrap();
        let now = || begun.load(Ordering::SeqCst);
        let files = meanwhile(&fs, &now, || {
            replaced(&fs, MountedDevice::Missing, &devices[1]).unwrap();
        });
        fs.unmount().unwrap();
        files
    };
    assert_every_cut([Arc::new(copy), memory()], &work, &|images, why| {
        let both = open(&images[..]).or_else(|_| degraded(&images[..1]));
        both.unwrap_or_else(|error| panic!("{why}: {error}"))
    });
}
