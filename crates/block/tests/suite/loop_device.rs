//! `FileDevice` on loop devices, and files that the kernel has mounted. Needs root.

use std::path::{Path, PathBuf};

use sapwood_block::{Device, Error, FileDevice, OpenOptions};
use sapwood_testing::machine::{Need, left_out};
use sapwood_testing::oracle::{self, Kind};
use sapwood_testing::process;

const SIZE: u64 = 128 << 20;

/// A file under a loop device; both are removed at the end.
struct Loop {
    dir: tempfile::TempDir,
    image: PathBuf,
    device: PathBuf,
    _attached: oracle::Loop,
}

impl Loop {
    /// `None`, with a message, where loop devices cannot be created.
    fn new() -> Option<Self> {
        Self::limited("0")
    }

    /// Over this many bytes of the file; 0 means all.
    fn limited(bytes: &str) -> Option<Self> {
        Self::made(&["--sizelimit", bytes])
    }

    /// With these arguments of `losetup`.
    fn made(args: &[&str]) -> Option<Self> {
        if left_out(&[Need::Loop]) {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        drop(FileDevice::create(&image, SIZE).unwrap());
        let attached = oracle::Loop::new(&image, args).unwrap();
        Some(Self {
            dir,
            image,
            device: attached.path().to_owned(),
            _attached: attached,
        })
    }
}

/// A mount of the loop device, unmounted at the end.
struct Mount(PathBuf);

impl Mount {
    fn new(of: &Loop) -> Option<Self> {
        let target = of.dir.path().join("mount");
        std::fs::create_dir_all(&target).unwrap();
        process::run("mount", &[&of.device, &target])
            .is_ok()
            .then(|| Self(target))
    }
}

/// Creates a file system on the device, which the kernel can mount.
fn is_mountable(of: &Loop) -> bool {
    if left_out(&[Need::Kernel(Kind::Btrfs)]) {
        return false;
    }
    let args = ["-q".as_ref(), of.device.as_os_str()];
    process::run("mkfs.btrfs", &args).unwrap();
    drop(Mount::new(of).unwrap());
    true
}

impl Drop for Mount {
    fn drop(&mut self) {
        let done = sapwood_testing::unmount(self.0.as_ref());
        assert!(done.is_ok() || std::thread::panicking(), "{done:?}");
    }
}

fn is_busy(path: &Path, options: OpenOptions) -> bool {
    match FileDevice::open(path, options) {
        Ok(_) => false,
        Err(Error::Busy { .. }) => true,
        Err(other) => panic!("neither open nor busy: {other}"),
    }
}

#[test]
fn a_write_protected_device_is_opened_read_only() {
    let Some(looped) = Loop::made(&["--read-only"]) else {
        return;
    };
    let device = FileDevice::open(&looped.device, OpenOptions::default()).unwrap();
    assert!(device.read_only());
    let refused = device.write_at(0, &[1; 512]);
    assert!(matches!(refused, Err(Error::ReadOnly { .. })));
    drop(device);
    let Some(writable) = Loop::new() else { return };
    let device = FileDevice::open(&writable.device, OpenOptions::default()).unwrap();
    assert!(!device.read_only());
}

#[test]
fn block_device_requests() {
    let Some(looped) = Loop::new() else { return };
    for direct in [false, true] {
        let options = OpenOptions {
            direct,
            ..OpenOptions::default()
        };
        let device = FileDevice::open(&looped.device, options).unwrap();
        assert!(device.is_block_device());
        assert_eq!(device.size(), SIZE);
        device.write_at(1000, &[1; 5000]).unwrap();
        device.write_fua(SIZE - 7, &[2; 7]).unwrap();
        device
            .write_vectored_at(8192, &[&[3; 512], &[4; 512]])
            .unwrap();
        device.flush().unwrap();
        let mut buf = vec![9; 9300];
        device.read_at(0, &mut buf).unwrap();
        assert!(buf[..1000].iter().all(|&b| b == 0) && buf[1000..6000] == [1; 5000]);
        assert!(buf[8192..8704] == [3; 512] && buf[8704..9216] == [4; 512]);
        let mut end = [0; 7];
        device.read_at(SIZE - 7, &mut end).unwrap();
        assert_eq!(end, [2; 7]);
        assert!(matches!(
            device.write_at(SIZE, &[1]),
            Err(Error::OutOfRange { .. })
        ));
        device.discard(700, 7000).unwrap();
        device.read_at(0, &mut buf).unwrap();
        let unaligned = (&buf[1000..1024], &buf[8192..8704]);
        assert_eq!(
            unaligned,
            (&[1; 24][..], &[3; 512][..]),
            "only whole sectors go"
        );
        assert!(
            buf[1024..7168].iter().all(|&b| b == 0),
            "a loop device reads zeros"
        );
        device.discard(0, SIZE).unwrap();
    }
}

#[test]
fn block_device_is_exclusive() {
    let Some(looped) = Loop::new() else { return };
    let device = FileDevice::open(&looped.device, OpenOptions::default()).unwrap();
    assert!(is_busy(&looped.device, OpenOptions::default()));
    assert!(is_busy(&looped.device, OpenOptions::read_only()));
    let unlocked = OpenOptions {
        lock: false,
        ..OpenOptions::read_only()
    };
    assert!(!is_busy(&looped.device, unlocked));
    drop(device);
    assert!(!is_busy(&looped.device, OpenOptions::default()));
}

#[test]
fn an_image_mounted_by_the_kernel_is_busy() {
    let Some(looped) = Loop::new() else { return };
    assert!(
        !is_busy(&looped.image, OpenOptions::default()),
        "attached is not mounted"
    );
    let Some(mount) = Mount::new(&looped) else {
        return;
    };
    let other_name = looped.dir.path().join("link");
    std::fs::hard_link(&looped.image, &other_name).unwrap();
    for path in [&looped.image, &other_name, &looped.device] {
        assert!(is_busy(path, OpenOptions::default()), "{}", path.display());
    }
    assert!(matches!(
        FileDevice::create(&looped.image, 1),
        Err(Error::Busy { .. })
    ));
    assert_eq!(std::fs::metadata(&looped.image).unwrap().len(), SIZE);
    drop(mount);
    assert!(!is_busy(&looped.image, OpenOptions::default()));
}

#[test]
fn the_kernel_does_not_mount_a_locked_device() {
    let Some(looped) = Loop::new() else { return };
    if !is_mountable(&looped) {
        return;
    }
    let device = FileDevice::open(&looped.device, OpenOptions::default()).unwrap();
    assert!(Mount::new(&looped).is_none());
    drop(device);
    assert!(Mount::new(&looped).is_some());
}

/// Message of an open that fails as busy.
fn refusal(path: &Path, options: OpenOptions) -> String {
    match FileDevice::open(path, options) {
        Err(error @ Error::Busy { .. }) => error.to_string(),
        other => panic!("not busy: {other:?}"),
    }
}

#[test]
fn an_image_and_the_loop_device_over_it_exclude_each_other() {
    let Some(looped) = Loop::new() else { return };
    let (image, device) = (&looped.image, &looped.device);
    for (first, second) in [(image, device), (device, image)] {
        let writer = FileDevice::open(first, OpenOptions::default()).unwrap();
        for options in [OpenOptions::default(), OpenOptions::read_only()] {
            assert!(is_busy(second, options), "{} second", second.display());
        }
        drop(writer);
        let reader = FileDevice::open(first, OpenOptions::read_only()).unwrap();
        assert!(is_busy(second, OpenOptions::default()));
        assert!(!is_busy(second, OpenOptions::read_only()));
        drop(reader);
        assert!(!is_busy(second, OpenOptions::default()));
    }
}

#[test]
fn a_refusal_names_the_other_user() {
    let Some(looped) = Loop::new() else { return };
    let writer = FileDevice::open(&looped.image, OpenOptions::default()).unwrap();
    let said = refusal(&looped.device, OpenOptions::default());
    assert!(said.contains(looped.image.to_str().unwrap()), "{said}");
    drop(writer);
    if !is_mountable(&looped) {
        return;
    }
    let _mount = Mount::new(&looped).unwrap();
    let said = refusal(&looped.image, OpenOptions::default());
    assert!(said.contains(looped.device.to_str().unwrap()), "{said}");
}

#[test]
fn a_loop_device_before_the_first_superblock_does_not_lock_the_image() {
    for (limit, in_the_way) in [("1024", false), ("1536", true)] {
        let Some(looped) = Loop::limited(limit) else {
            return;
        };
        // Claims the device as the kernel does for a mount: without a lock on the file.
        let claim = rustix::fs::open(
            &looped.device,
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::EXCL,
            rustix::fs::Mode::empty(),
        )
        .unwrap();
        assert_eq!(is_busy(&looped.image, OpenOptions::default()), in_the_way);
        drop(claim);
    }
}

#[test]
fn a_released_device_is_unlocked_and_inaccessible() {
    let Some(looped) = Loop::new() else { return };
    for path in [&looped.image, &looped.device] {
        let device = FileDevice::open(path, OpenOptions::default()).unwrap();
        device.write_at(0, &[1; 4096]).unwrap();
        device.release_lock().unwrap();
        let again = FileDevice::open(path, OpenOptions::default()).unwrap();
        assert!(device.write_at(0, &[2; 4096]).is_err());
        assert!(device.read_at(0, &mut [0; 512]).is_err());
        assert!(device.flush().is_err());
        let mut kept = [0; 512];
        again.read_at(0, &mut kept).unwrap();
        assert_eq!(kept, [1; 512]);
    }
}
