//! Block groups that move, and devices that come and go, while the file system is in use; power
//! cuts at every request of that.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use sapwood_block::{Device, MemoryDevice, Result as DeviceResult};
use sapwood_btrfs::Btrfs;
use sapwood_btrfs::balance::{
    BalanceError, BalanceOptions, BalanceReport, Filter, balance_mounted, cancel_mounted,
    is_paused, resume_mounted,
};
use sapwood_btrfs::membership::{
    MembershipError, MountedDevice, add_mounted, remove_mounted, usage,
};
use sapwood_btrfs::mkfs::{MkfsOptions, Profile, mkfs_several};
use sapwood_btrfs::scrub::{ScrubOptions, scrub_mounted};
use sapwood_testing::RequestKinds;
use sapwood_testing::device::{GateDevice, RequestKind};
use sapwood_vfs::{Credentials, FileSystem, InodeFlags, NewInode, SyncKind, WriteMode};

use super::devices::{any, clean, get, place, put, recording};
use super::mirrors::{mirrored, opened};
use super::relocation::{complete, filled_memory, memory, noise, open, verify, whole};

fn converted(fs: &Btrfs, profile: Profile) -> BalanceReport {
    let filter = Some(Filter {
        convert: Some(profile),
        soft: true,
        ..Filter::default()
    });
    let options = BalanceOptions {
        data: filter.clone(),
        metadata: filter.clone(),
        system: filter,
        force: true,
        ..BalanceOptions::default()
    };
    balance_mounted(fs, &options, &mut |_, _| ControlFlow::Continue(())).unwrap()
}

fn removed(fs: &Btrfs, device: MountedDevice<'_>) -> Result<bool, MembershipError> {
    remove_mounted(fs, device, &mut |_, _| ControlFlow::Continue(()))
}

pub(super) type Acknowledged = Mutex<Vec<(Vec<u8>, Vec<u8>, usize)>>;

/// Writes files with fsyncs until it is told to end, and lists those that are durable, each with
/// what `now` returns then.
pub(super) fn write_files(fs: &Btrfs, ended: &AtomicBool, now: &dyn Fn() -> usize) -> Acknowledged {
    let all = Acknowledged::default();
    let plain = put(fs, b"in place", b"");
    fs.set_flags(plain, InodeFlags::NOCOW).unwrap();
    fs.write(plain, 0, &noise(1, 60_000), WriteMode::default())
        .unwrap();
    for round in 0u32.. {
        if ended.load(Ordering::Relaxed) && round > 3 {
            break;
        }
        let (name, content) = (
            format!("live{round}").into_bytes(),
            noise(u64::from(round), 5000 + round as usize % 20 * 4000),
        );
        let user = &Credentials::ROOT;
        let file = fs.create(user, fs.root(), &name, NewInode::Regular, 0o600);
        let file = file.unwrap().ino();
        fs.write(file, 0, &content, WriteMode::default()).unwrap();
        let stamp = [round as u8; 4096];
        fs.write(
            plain,
            u64::from(round % 14) * 4096,
            &stamp,
            WriteMode::default(),
        )
        .unwrap();
        fs.fsync(plain, SyncKind::Data).unwrap();
        match round % 4 {
            3 => fs.sync().unwrap(),
            _ => fs.fsync(file, SyncKind::All).unwrap(),
        }
        all.lock().push((name, content, now()));
        if round >= 8 {
            // The blocks of older files are freed, and used again.
            fs.unlink(fs.root(), format!("live{}", round - 8).as_bytes())
                .unwrap();
            all.lock()
                .retain(|(name, ..)| *name != format!("live{}", round - 8).as_bytes());
        }
        fs.forget(file, 1);
    }
    all
}

fn profiles(devices: &[Arc<dyn Device>]) -> Vec<&'static str> {
    let used = usage(devices, false).unwrap();
    let parts = used.iter().flat_map(|device| device.allocated.iter());
    let mut names: Vec<_> = parts.map(|part| part.profile).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
fn a_mount_is_converted_and_leaves_a_device_while_files_are_written() {
    let (first, second, third) = (filled_memory(), memory(), memory());
    let fs = open(&[any(&first)]).unwrap();
    let ended = AtomicBool::new(false);
    let acknowledged = thread::scope(|scope| {
        let writer = scope.spawn(|| write_files(&fs, &ended, &|| 0));
        assert_eq!(add_mounted(&fs, &any(&second), false).unwrap(), 2);
        assert!(converted(&fs, Profile::Raid1).changed > 0);
        let again = add_mounted(&fs, &any(&second), false);
        assert!(matches!(
            again,
            Err(MembershipError::Member { devid: 2, .. })
        ));
        assert_eq!(add_mounted(&fs, &any(&third), false).unwrap(), 3);
        assert!(removed(&fs, MountedDevice::Devid(1)).unwrap());
        let least = removed(&fs, MountedDevice::Devid(2));
        assert!(matches!(least, Err(MembershipError::TooFewDevices { .. })));
        let go_on = &mut |_: &_| ControlFlow::Continue(());
        let report = scrub_mounted(&fs, &ScrubOptions::default(), go_on).unwrap();
        assert!(
            report.devices.keys().eq(&[2, 3]) && report.is_clean(),
            "{report:?}"
        );
        ended.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    for (name, content, _) in acknowledged.lock().iter() {
        assert!(get(&fs, name) == *content, "{}", name.escape_ascii());
    }
    fs.unmount().unwrap();
    drop(fs);
    assert!(open(&[any(&first)]).is_err());
    let left = [any(&second), any(&third)];
    assert_eq!(profiles(&left), ["raid1"]);
    let fs = open(&left).unwrap();
    for (name, content, _) in acknowledged.lock().iter() {
        assert!(get(&fs, name) == *content, "{}", name.escape_ascii());
    }
    fs.unmount().unwrap();
    drop(fs);
    whole(&left, "after the removal");
}

#[test]
fn an_interrupted_balance_is_recorded_until_it_is_continued_or_dropped() {
    let options = |convert| BalanceOptions {
        data: Some(Filter {
            convert: Some(convert),
            ..Filter::default()
        }),
        metadata: Some(Filter {
            convert: Some(convert),
            ..Filter::default()
        }),
        force: true,
        ..BalanceOptions::default()
    };
    let (first, second) = (filled_memory(), memory());
    let fs = open(&[any(&first)]).unwrap();
    add_mounted(&fs, &any(&second), false).unwrap();
    assert!(!is_paused(&fs).unwrap());
    let mut turns = 0;
    let report = balance_mounted(&fs, &options(Profile::Raid1), &mut |_, _| {
        turns += 1;
        if turns > 1 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    assert!(report.unwrap().interrupted && is_paused(&fs).unwrap());
    fs.unmount().unwrap();
    drop(fs);
    let both = [any(&first), any(&second)];
    whole(&both, "with the record");
    let fs = open(&both).unwrap();
    assert!(is_paused(&fs).unwrap());
    let go_on = &mut |_, _| ControlFlow::Continue(());
    assert!(!resume_mounted(&fs, go_on).unwrap().interrupted);
    assert!(!is_paused(&fs).unwrap());
    assert!(matches!(cancel_mounted(&fs), Err(BalanceError::NonePaused)));
    let report = balance_mounted(&fs, &options(Profile::Single), &mut |_, _| {
        ControlFlow::Break(())
    });
    assert!(report.unwrap().interrupted && is_paused(&fs).unwrap());
    cancel_mounted(&fs).unwrap();
    assert!(!is_paused(&fs).unwrap());
    fs.unmount().unwrap();
    drop(fs);
    let used = usage(&both, false).unwrap();
    let parts = used.iter().flat_map(|device| &device.allocated);
    let mut parts = parts.filter(|part| part.content != "System");
    assert!(parts.all(|part| part.profile == "raid1"), "{used:?}");
    whole(&both, "after the balance");
}

#[test]
fn a_conversion_fails_if_other_block_groups_come_all_the_time() {
    let pair = mirrored();
    let fs = opened(&pair);
    let options = BalanceOptions {
        data: Some(Filter {
            convert: Some(Profile::Single),
            ..Filter::default()
        }),
        ..BalanceOptions::default()
    };
    let (mut passes, mut last) = (0, None);
    let done = balance_mounted(&fs, &options, &mut |_, total| {
        if last.replace(total) != Some(total) {
            passes += 1;
            // More than the free space of the groups, while one of them is still mirrored.
            put(&fs, &[passes], &noise(passes.into(), 12 << 20));
            fs.sync().unwrap();
        }
        ControlFlow::Continue(())
    });
    assert!(
        matches!(done, Err(BalanceError::GroupsLeft { left }) if left > 0),
        "{done:?}"
    );
    assert!(passes > 1 && !is_paused(&fs).unwrap());
    converted(&fs, Profile::Single);
    for pass in 1..=passes {
        assert!(get(&fs, &[pass]) == noise(pass.into(), 12 << 20), "{pass}");
    }
    fs.unmount().unwrap();
    drop(fs);
    let devices = pair.each_ref().map(any);
    assert_eq!(profiles(&devices), ["single"]);
    clean(&pair);
}

/// Writes a file in place while `work` waits to copy its old bytes through `gate`.
pub(super) fn overwrite_during(
    fs: &Btrfs,
    gate: &GateDevice<Arc<MemoryDevice>>,
    work: impl FnOnce() + Send,
) {
    let file = put(fs, b"in place", b"");
    fs.set_flags(file, InodeFlags::NOCOW).unwrap();
    fs.write(file, 0, &[1; 65536], WriteMode::default())
        .unwrap();
    fs.sync().unwrap();
    // The copy of the old bytes waits.
    gate.hold_if(|request| {
        let is_write = RequestKinds::ANY_WRITE.contains(request.kind.set());
        let is_old = |bytes: &[u8]| bytes.windows(4096).any(|part| part == [1; 4096]);
        is_write && request.bytes.is_some_and(is_old)
    });
    thread::scope(|scope| {
        let working = scope.spawn(work);
        gate.wait_held(1);
        let writer = scope.spawn(|| {
            fs.write(file, 0, &[2; 65536], WriteMode::default())
                .unwrap();
            fs.fsync(file, SyncKind::All).unwrap();
        });
        thread::sleep(Duration::from_millis(200));
        gate.open();
        writer.join().unwrap();
        working.join().unwrap();
    });
}

#[test]
fn a_write_in_place_is_not_lost_in_a_move() {
    let (first, second) = (filled_memory(), memory());
    let gate = Arc::new(GateDevice::new(second.clone()));
    let fs = open(&[any(&first)]).unwrap();
    let new: Arc<dyn Device> = gate.clone();
    add_mounted(&fs, &new, false).unwrap();
    overwrite_during(&fs, &gate, || {
        converted(&fs, Profile::Raid1);
    });
    assert!(get(&fs, b"in place") == [2; 65536]);
    fs.unmount().unwrap();
    drop(fs);
    // Each device alone has it.
    for device in [&first, &second] {
        let options = sapwood_btrfs::Options {
            background: false,
            degraded: true,
            read_only: true,
            ..sapwood_btrfs::Options::default()
        };
        let fs = Btrfs::open(vec![any(device)], options).unwrap();
        assert!(get(&fs, b"in place") == [2; 65536]);
    }
    whole(&[any(&first), any(&second)], "after the move");
}

#[test]
fn a_chunk_that_is_allocated_during_a_move_gets_other_places() {
    let (first, second) = (filled_memory(), memory());
    let gate = Arc::new(GateDevice::new(first.clone()));
    let below: Arc<dyn Device> = gate.clone();
    let fs = open(&[below]).unwrap();
    add_mounted(&fs, &any(&second), false).unwrap();
    // The first block group is being verified: its new places are chosen.
    let held = AtomicBool::new(false);
    gate.hold_if(move |request| {
        let is_data = request.kind == RequestKind::Read && request.len > 16384;
        is_data && !held.swap(true, Ordering::Relaxed)
    });
    let content = noise(9, 24 << 20);
    thread::scope(|scope| {
        let balance = scope.spawn(|| converted(&fs, Profile::Raid1));
        gate.wait_held(1);
        put(&fs, b"large", &content);
        fs.sync().unwrap();
        gate.open();
        balance.join().unwrap();
    });
    assert!(get(&fs, b"large") == content);
    fs.unmount().unwrap();
    drop(fs);
    whole(&[any(&first), any(&second)], "after the move");
}

#[test]
fn a_repair_ends_before_its_place_is_given_back() {
    let devices = [memory(), memory(), memory()];
    let options = MkfsOptions {
        data: Some(Profile::Raid1),
        metadata: Some(Profile::Raid1),
        ..MkfsOptions::default()
    };
    mkfs_several(&[&*devices[0], &*devices[1]], &options).unwrap();
    let gate = Arc::new(GateDevice::new(devices[0].clone()));
    let below: Arc<dyn Device> = gate.clone();
    let fs = open(&[below, any(&devices[1])]).unwrap();
    add_mounted(&fs, &any(&devices[2]), false).unwrap();
    let content = noise(6, 65536);
    let file = put(&fs, b"kept", &content);
    fs.sync().unwrap();
    let at = place(&devices[0], &content).start;
    devices[0].write_at(at, &[0; 4096]).unwrap();
    let held = AtomicBool::new(false);
    gate.hold_if(move |request| {
        let is_repair = RequestKinds::ANY_WRITE.contains(request.kind.set());
        is_repair && request.touches(&(at..at + 4096)) && !held.swap(true, Ordering::Relaxed)
    });
    thread::scope(|scope| {
        let reader = scope.spawn(|| fs.read(file, 0, &mut [0; 65536]).unwrap());
        gate.wait_held(1);
        let remover = scope.spawn(|| removed(&fs, MountedDevice::Devid(1)).unwrap());
        // Time in which a missing lock shows.
        thread::sleep(Duration::from_millis(500));
        let waits = !remover.is_finished();
        gate.open();
        assert!(waits, "the device is removed while it is written");
        assert!(remover.join().unwrap());
        reader.join().unwrap();
    });
    assert!(get(&fs, b"kept") == content);
    fs.unmount().unwrap();
}

#[test]
fn a_device_comes_after_another_one_has_left() {
    let (first, second, third) = (filled_memory(), memory(), memory());
    let fs = open(&[any(&first)]).unwrap();
    assert_eq!(add_mounted(&fs, &any(&second), false).unwrap(), 2);
    assert!(removed(&fs, MountedDevice::Devid(2)).unwrap());
    let options = ScrubOptions::default();
    let report = scrub_mounted(&fs, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.devices.len(), 1);
    // It gets the id of the removed one.
    assert_eq!(add_mounted(&fs, &any(&third), false).unwrap(), 2);
    assert!(converted(&fs, Profile::Raid1).changed > 0);
    put(&fs, b"later", &noise(8, 20 << 20));
    fs.unmount().unwrap();
    drop(fs);
    whole(&[any(&first), any(&third)], "after the second addition");
}

/// Counts the requests that change a device, when they begin.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) below: Arc<dyn Device>,
    pub(super) begun: Arc<AtomicUsize>,
}

impl sapwood_block::Layer for Counted {
    type Below = Arc<dyn Device>;

    fn below(&self) -> &Self::Below {
        &self.below
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> DeviceResult<()> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Device::write_at(&*self.below, offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> DeviceResult<()> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Device::write_vectored_at(&*self.below, offset, bufs)
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> DeviceResult<()> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Device::write_fua(&*self.below, offset, buf)
    }

    fn flush(&self) -> DeviceResult<()> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Device::flush(&*self.below)
    }

    fn discard(&self, offset: u64, len: u64) -> DeviceResult<()> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Device::discard(&*self.below, offset, len)
    }
}

/// A mount on the first device moves to the second one, while files are written. Returns the files
/// and the number of requests when each became durable.
fn migrate(devices: &[Arc<dyn Device>; 2]) -> Acknowledged {
    let begun = Arc::new(AtomicUsize::new(0));
    let counted = devices.each_ref().map(|device| -> Arc<dyn Device> {
        Arc::new(Counted {
            below: Arc::clone(device),
            begun: Arc::clone(&begun),
        })
    });
    let fs = open(&counted[..1]).unwrap();
    let ended = AtomicBool::new(false);
    let acknowledged = thread::scope(|scope| {
        let now = || begun.load(Ordering::SeqCst);
        let writer = scope.spawn({
            let (fs, ended) = (&fs, &ended);
            move || write_files(fs, ended, &now)
        });
        add_mounted(&fs, &counted[1], false).unwrap();
        converted(&fs, Profile::Raid1);
        converted(&fs, Profile::Single);
        assert!(removed(&fs, MountedDevice::Devid(1)).unwrap());
        ended.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    fs.unmount().unwrap();
    acknowledged
}

#[test]
fn every_cut_of_a_mounted_migration_keeps_what_was_acknowledged() {
    let mut acknowledged = Acknowledged::default();
    let work = |devices: &[Arc<dyn Device>; 2]| acknowledged = migrate(devices);
    let recording = recording([filled_memory(), memory()], work);
    let cuts = &recording.cuts;
    assert!(cuts.len() > 200, "only {} cuts", cuts.len());
    let mut seen = 0;
    for (at, cut) in cuts.iter().enumerate() {
        if at % 3 > 0 && at > 60 {
            continue;
        }
        let images = recording.images(at, at / 3);
        let why = format!("cut {at} ({cut:?})");
        let complete = complete(&images, &why);
        let fs = open(complete).unwrap();
        for (name, content, when) in acknowledged.lock().iter() {
            if *when <= at {
                seen += 1;
                assert!(get(&fs, name) == *content, "{why}: {}", name.escape_ascii());
            }
        }
        verify(&fs);
        drop(fs);
        whole(complete, &why);
    }
    assert!(seen > 20, "only {seen} files");
}
