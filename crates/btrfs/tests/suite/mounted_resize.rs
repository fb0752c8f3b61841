//! A device that grows and shrinks while the file system is in use; power cuts at every request of
//! that.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::Btrfs;
use sapwood_btrfs::membership::add_mounted;
use sapwood_btrfs::resize::{
    DeviceResized, DeviceSize, ResizeError, resize_mounted, size as stored_size,
};
use sapwood_vfs::FileSystem;

use super::devices::{MIB, SIZE, any, get, put, recording};
use super::mounted_balance::{Acknowledged, Counted, write_files};
use super::relocation::{filled_memory, memory, noise, open, verify, whole};

const SMALL: u64 = SIZE;
const LARGE: u64 = 400 * MIB;

fn resized(fs: &Btrfs, devid: Option<u64>, size: DeviceSize) -> Result<DeviceResized, ResizeError> {
    resize_mounted(fs, devid, size, &mut |_, _| ControlFlow::Continue(()))
}

/// A file system on the first part of a device.
fn made() -> Arc<MemoryDevice> {
    Arc::new(filled_memory().resized(LARGE))
}

/// Grows and shrinks a mount while files are written. Returns the files and the number of requests
/// when each became durable.
fn work(device: &Arc<dyn Device>) -> Acknowledged {
    let begun = Arc::new(AtomicUsize::new(0));
    let counted: Arc<dyn Device> = Arc::new(Counted {
        below: Arc::clone(device),
        begun: Arc::clone(&begun),
    });
    let fs = open(&[counted]).unwrap();
    let ended = AtomicBool::new(false);
    let acknowledged = thread::scope(|scope| {
        let now = || begun.load(Ordering::SeqCst);
        let writer = scope.spawn({
            let (fs, ended) = (&fs, &ended);
            move || write_files(fs, ended, &now)
        });
        let before = fs.statfs().unwrap().blocks;
        let grown = resized(&fs, None, DeviceSize::Exactly(LARGE)).unwrap();
        assert_eq!((grown.devid, grown.before, grown.after), (1, SMALL, LARGE));
        assert!(fs.statfs().unwrap().blocks > before);
        // In one extent: a commit between two of them leaves the second past the end of the file.
        put(&fs, b"beyond", &noise(9, 100 << 10));
        fs.sync().unwrap();
        let less = resized(&fs, Some(1), DeviceSize::Less(LARGE - 250 * MIB)).unwrap();
        assert_eq!(less.after, 250 * MIB);
        ended.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    fs.unmount().unwrap();
    acknowledged
}

#[test]
fn every_cut_of_a_mounted_resize_keeps_what_was_acknowledged() {
    let mut acknowledged = Acknowledged::default();
    let recording = recording([made(), memory()], |devices| {
        acknowledged = work(&devices[0]);
    });
    let cuts = &recording.cuts;
    let (mut seen, mut sizes) = (0, [0; 3]);
    for at in (0..cuts.len()).step_by(cuts.len().div_ceil(70)) {
        let image = recording.images(at, at / 3)[0].clone();
        let why = format!("cut {at} of {}", cuts.len());
        let size = stored_size(&*image).unwrap();
        let known = [SMALL, LARGE, 250 * MIB];
        let known = known.iter().position(|known| *known == size);
        sizes[known.unwrap_or_else(|| panic!("{why}: {size} bytes"))] += 1;
        let image = [image];
        let fs = open(&image).unwrap();
        for (name, content, when) in acknowledged.lock().iter() {
            if *when <= at {
                seen += 1;
                assert!(get(&fs, name) == *content, "{why}: {}", name.escape_ascii());
            }
        }
        verify(&fs);
        drop(fs);
        whole(&image, &why);
    }
    assert!(seen > 10, "only {seen} files");
    assert!(sizes.iter().all(|count| *count > 0), "{sizes:?}");
}

#[test]
fn one_of_several_devices_is_resized_and_what_is_impossible_is_refused() {
    let (first, second) = (made(), memory());
    let fs = open(&[any(&first)]).unwrap();
    add_mounted(&fs, &any(&second), false).unwrap();
    let total = second.size();
    let refused = |devid, size| resized(&fs, devid, size).unwrap_err();
    assert!(matches!(
        refused(Some(3), DeviceSize::Max),
        ResizeError::NoSuchDevice(3)
    ));
    assert!(matches!(
        refused(Some(2), DeviceSize::More(4096)),
        ResizeError::PastEnd { .. }
    ));
    assert!(matches!(
        refused(None, DeviceSize::Less(SMALL + 1)),
        ResizeError::TooMuchLess(SMALL)
    ));
    assert!(matches!(
        refused(None, DeviceSize::Exactly(0)),
        ResizeError::TooSmall { .. }
    ));
    // With one device, nothing can move elsewhere.
    let alone = open(&[any(&filled_memory())]).unwrap();
    let stays = resized(&alone, None, DeviceSize::Exactly(17 * MIB));
    assert!(matches!(stays, Err(ResizeError::NoHole { .. })));
    alone.unmount().unwrap();
    let less = resized(&fs, Some(2), DeviceSize::Exactly(64 * MIB + 5)).unwrap();
    assert_eq!((less.before, less.after), (total, 64 * MIB));
    let grown = resized(&fs, None, DeviceSize::Max).unwrap();
    assert_eq!((grown.devid, grown.after), (1, LARGE));
    let stopped = resize_mounted(&fs, Some(1), DeviceSize::Exactly(20 * MIB), &mut |_, _| {
        ControlFlow::Break(())
    });
    assert!(matches!(stopped, Err(ResizeError::Interrupted)));
    put(&fs, b"file", &noise(4, 30 * MIB as usize));
    fs.unmount().unwrap();
    drop(fs);
    whole(&[any(&first), any(&second)], "resized");
}
