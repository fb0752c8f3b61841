//! `FileDevice` on regular files.
#![cfg_attr(
    not(all(target_os = "linux", not(sapwood_portable))),
    allow(unused_imports, reason = "some tests are for Linux alone")
)]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use sapwood_block::{Device, Error, FileDevice, MemoryDevice, OpenOptions};
use sapwood_testing::machine::note;

const MIB: u64 = 1 << 20;

struct TempImage {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

fn image(size: u64) -> TempImage {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    drop(FileDevice::create(&path, size).unwrap());
    TempImage { _dir: dir, path }
}

fn direct() -> OpenOptions {
    OpenOptions {
        // Other builds have no direct I/O.
        direct: cfg!(all(target_os = "linux", not(sapwood_portable))),
        ..OpenOptions::default()
    }
}

#[test]
fn write_behind_does_not_change_data() {
    for options in [OpenOptions::default(), direct()] {
        let image = image(MIB);
        let device = FileDevice::open(&image.path, options).unwrap();
        device.write_at(4096, &[7; 8192]).unwrap();
        // Whole, in parts, past the end, and of lengths larger than any file.
        for (offset, len) in [
            (4096, 8192),
            (5000, 1),
            (0, MIB + 1),
            (MIB, 0),
            (u64::MAX, u64::MAX),
        ] {
            device.write_behind(offset, len);
        }
        device.flush().unwrap();
        let bytes = fs::read(&image.path).unwrap();
        assert_eq!(bytes.len() as u64, MIB);
        assert!(bytes[4096..12288].iter().all(|&byte| byte == 7));
        assert!(bytes[12288..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn written_data_is_read_back_and_in_the_file() {
    let image = image(MIB);
    let device = FileDevice::open(&image.path, OpenOptions::default()).unwrap();
    assert_eq!(device.size(), MIB);
    assert!(!device.read_only() && !device.is_block_device());
    device.write_at(100, b"plain").unwrap();
    device.write_fua(200, b"through").unwrap();
    let many: Vec<[u8; 1]> = (0..3000).map(|i| [i as u8]).collect();
    let bufs: Vec<&[u8]> = many.iter().map(|b| b.as_slice()).chain([&[][..]]).collect();
    device.write_vectored_at(5000, &bufs).unwrap();
    device.flush().unwrap();
    let content = fs::read(&image.path).unwrap();
    assert_eq!(&content[100..105], b"plain");
    assert_eq!(&content[200..207], b"through");
    assert_eq!(&content[5000..8000], many.concat());
    let mut buf = [0; 7];
    device.read_at(200, &mut buf).unwrap();
    assert_eq!(&buf, b"through");
}

#[test]
fn out_of_range_and_read_only_are_refused() {
    let image = image(MIB);
    let device = FileDevice::open(&image.path, OpenOptions::default()).unwrap();
    assert!(matches!(
        device.write_at(MIB, b"x"),
        Err(Error::OutOfRange { .. })
    ));
    assert!(matches!(
        device.read_at(MIB - 1, &mut [0; 2]),
        Err(Error::OutOfRange { .. })
    ));
    assert!(matches!(
        device.discard(0, MIB + 1),
        Err(Error::OutOfRange { .. })
    ));
    drop(device);
    assert_eq!(fs::metadata(&image.path).unwrap().len(), MIB);
    let device = FileDevice::open(&image.path, OpenOptions::read_only()).unwrap();
    assert!(matches!(
        device.write_at(0, b"x"),
        Err(Error::ReadOnly { .. })
    ));
    assert!(matches!(
        device.write_fua(0, b"x"),
        Err(Error::ReadOnly { .. })
    ));
    assert!(matches!(
        device.write_vectored_at(0, &[b"x"]),
        Err(Error::ReadOnly { .. })
    ));
    assert!(matches!(device.discard(0, 1), Err(Error::ReadOnly { .. })));
    device.flush().unwrap();
}

#[test]
fn shrunk_image_is_an_error() {
    for options in [OpenOptions::default(), direct()] {
        let image = image(MIB);
        let device = FileDevice::open(&image.path, options).unwrap();
        fs::OpenOptions::new()
            .write(true)
            .open(&image.path)
            .unwrap()
            .set_len(MIB / 2 + 1000)
            .unwrap();
        for (offset, len) in [(MIB / 2, 4096), (MIB / 2 + 8192, 4096), (MIB - 100, 50)] {
            let error = device.read_at(offset, &mut vec![0; len]).unwrap_err();
            assert!(
                matches!(error, Error::Shrunk { .. }),
                "{options:?}: {error}"
            );
        }
        device.read_at(MIB / 2 - 4096, &mut [0; 4096]).unwrap();
        assert!(matches!(device.flush(), Err(Error::Shrunk { .. })));
    }
}

#[test]
fn lock_admits_one_writer_or_many_readers() {
    let image = image(MIB);
    let busy = |o| {
        assert!(matches!(
            FileDevice::open(&image.path, o),
            Err(Error::Busy { .. })
        ))
    };
    let writer = FileDevice::open(&image.path, OpenOptions::default()).unwrap();
    busy(OpenOptions::default());
    busy(OpenOptions::read_only());
    assert!(matches!(
        FileDevice::create(&image.path, 5),
        Err(Error::Busy { .. })
    ));
    assert_eq!(fs::metadata(&image.path).unwrap().len(), MIB);
    let unlocked = OpenOptions {
        lock: false,
        ..OpenOptions::read_only()
    };
    FileDevice::open(&image.path, unlocked).unwrap();
    drop(writer);
    let _one = FileDevice::open(&image.path, OpenOptions::read_only()).unwrap();
    let _two = FileDevice::open(&image.path, OpenOptions::read_only()).unwrap();
    busy(OpenOptions::default());
}

#[test]
fn only_files_and_block_devices_are_opened() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |path: &std::path::Path| {
        let error = FileDevice::open(path, OpenOptions::default()).unwrap_err();
        assert!(matches!(error, Error::Open { .. }), "{error}");
        error.to_string()
    };
    assert!(refused(dir.path()).contains("regular file"));
    assert!(refused(&dir.path().join("missing")).contains("missing"));
    refused("/dev/null".as_ref());
    assert!(matches!(
        FileDevice::create(dir.path(), 1),
        Err(Error::Open { .. })
    ));
}

#[cfg(all(target_os = "linux", not(sapwood_portable)))]
#[test]
fn discard_frees_the_space_of_a_file() {
    let image = image(4 * MIB);
    let device = FileDevice::open(&image.path, OpenOptions::default()).unwrap();
    device.write_at(0, &vec![1; 4 << 20]).unwrap();
    device.flush().unwrap();
    let before = fs::metadata(&image.path).unwrap().blocks();
    device.discard(MIB, 2 * MIB).unwrap();
    device.discard(MIB, 0).unwrap();
    device.flush().unwrap();
    let after = fs::metadata(&image.path).unwrap();
    assert_eq!(after.len(), 4 * MIB);
    assert!(
        after.blocks() < before,
        "{} of {before} blocks left",
        after.blocks()
    );
    let mut buf = vec![1; 2 << 20];
    device.read_at(MIB, &mut buf).unwrap();
    assert!(buf.iter().all(|&b| b == 0));
}

#[test]
fn create_empties_an_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    fs::write(&path, b"old content").unwrap();
    let device = FileDevice::create(&path, MIB).unwrap();
    let mut buf = [1; 11];
    device.read_at(0, &mut buf).unwrap();
    assert_eq!(buf, [0; 11]);
    assert_eq!(device.size(), MIB);
}

/// Every mix of aligned and unaligned requests on a direct descriptor equals a model.
#[cfg(all(target_os = "linux", not(sapwood_portable)))]
#[test]
fn direct_requests_of_any_alignment() {
    let image = image(4 * MIB + 1234);
    let device = match FileDevice::open(&image.path, direct()) {
        Ok(device) => device,
        Err(error) => {
            note(
                None,
                &format!("no direct I/O on the temporary directory: {error}"),
            );
            return;
        }
    };
    assert_eq!(device.size(), 4 * MIB, "rounded down to the alignment");
    let model = MemoryDevice::new(4 * MIB);
    let mut state = 7u64;
    let mut random = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % below
    };
    for round in 0..300 {
        let unit = [1, 512, 4096][random(3) as usize];
        let longest = [100, 20_000, 3 << 20][random(3) as usize];
        let len = (random(longest) / unit * unit) as usize;
        let offset = random(4 * MIB - len as u64) / unit * unit;
        let data = vec![round as u8; len];
        match random(3) {
            0 => device.write_at(offset, &data).unwrap(),
            1 => device.write_fua(offset, &data).unwrap(),
            _ => {
                let (a, b) = data.split_at(len / 3);
                device.write_vectored_at(offset, &[a, b]).unwrap();
            }
        }
        model.write_at(offset, &data).unwrap();
        let mut got = vec![0; len + 100];
        let mut want = got.clone();
        let from = offset.min(4 * MIB - got.len() as u64);
        device.read_at(from, &mut got).unwrap();
        model.read_at(from, &mut want).unwrap();
        assert!(got == want, "round {round}: {len} bytes at {offset}");
    }
    device.flush().unwrap();
    drop(device);
    let saved = MemoryDevice::load(&image.path).unwrap();
    assert_eq!(saved.first_difference(&model), Some(4 * MIB));
}

#[cfg(all(target_os = "linux", not(sapwood_portable)))]
#[test]
fn direct_partial_writes_of_one_block_do_not_undo_each_other() {
    let image = image(MIB);
    let Ok(device) = FileDevice::open(&image.path, direct()) else {
        note(None, "no direct I/O on the temporary directory");
        return;
    };
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                for i in 0..32 {
                    let offset = (i * 4 + thread) * 32;
                    device.write_at(offset, &[thread as u8 + 1; 32]).unwrap();
                }
            });
        }
    });
    let mut buf = [0; 4096];
    device.read_at(0, &mut buf).unwrap();
    for (i, part) in buf.chunks(32).enumerate() {
        assert_eq!(part, [(i % 4) as u8 + 1; 32], "part {i}");
    }
}

#[cfg(all(target_os = "linux", not(sapwood_portable)))]
#[test]
fn a_read_only_device_becomes_writable_with_a_descriptor_of_its_file() {
    let (image, other) = (image(MIB), image(MIB));
    let device = FileDevice::open(&image.path, OpenOptions::read_only()).unwrap();
    let refused = |file: fs::File| device.make_writable(file).unwrap_err();
    let readable = fs::File::open(&image.path).unwrap();
    assert!(matches!(refused(readable), Error::ReadOnly { .. }));
    let foreign = sapwood_block::open_for_writing(&other.path).unwrap();
    assert!(matches!(refused(foreign), Error::ReadOnly { .. }));
    let reader = FileDevice::open(&image.path, OpenOptions::read_only()).unwrap();
    let file = || sapwood_block::open_for_writing(&image.path).unwrap();
    assert!(matches!(refused(file()), Error::Busy { .. }));
    drop(reader);
    // The lock that it had is there again.
    let open = |options| FileDevice::open(&image.path, options).map(drop);
    assert!(matches!(
        open(OpenOptions::default()),
        Err(Error::Busy { .. })
    ));
    assert!(device.read_only() && device.write_at(0, &[1; 512]).is_err());

    device.make_writable(file()).unwrap();
    assert!(!device.read_only());
    device.write_at(512, &[7; 512]).unwrap();
    device.flush().unwrap();
    assert_eq!(fs::read(&image.path).unwrap()[512..1024], [7; 512]);
    // Now it is the only one.
    assert!(matches!(
        open(OpenOptions::read_only()),
        Err(Error::Busy { .. })
    ));
    device.release_lock().unwrap();
    open(OpenOptions::default()).unwrap();
}
