//! The part that an open names: options, operands, and images on several devices.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood::block::{FileDevice, OpenOptions, OperandError};
use sapwood::internal::image::{OpenError, located};
use sapwood::{ImageBuilder, Kind, Options};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// A disk with an image of `kind` from 4 MiB on, which is its partition 1.
fn disk(kind: Kind) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (part, path) = (dir.path().join("part.img"), dir.path().join("disk.img"));
    ImageBuilder::new(kind)
        .size(128 * MIB)
        .write_to(&part)
        .unwrap();
    let mut content = vec![0; usize::try_from(4 * MIB).unwrap()];
    // An MBR entry: type, first sector, number of sectors; and the signature.
    content[450] = 0x83;
    content[454..458].copy_from_slice(&8192_u32.to_le_bytes());
    content[458..462].copy_from_slice(&(128 * 2048_u32).to_le_bytes());
    content[510..512].copy_from_slice(&[0x55, 0xaa]);
    content.extend(fs::read(&part).unwrap());
    fs::write(&path, content).unwrap();
    (dir, path)
}

fn options(list: &str) -> Options {
    let mut options = Options::new();
    options.set_list(list).unwrap();
    options
}

#[test]
fn options_and_operands_name_the_same_part() {
    for kind in Kind::ALL {
        let (_dir, path) = disk(kind);
        let named = |part: &str| PathBuf::from(format!("{}#{part}", path.display()));
        let ways = [
            (path.clone(), "offset=4M"),
            (path.clone(), "offset=4M,length=128M"),
            (path.clone(), "partition=1"),
            (named("1"), ""),
            (named("offset=4194304"), ""),
        ];
        for (at, (image, list)) in ways.iter().enumerate() {
            let fs = options(list).open(image).unwrap();
            assert_eq!(fs.kind(), kind);
            fs.write(format!("from-{at}"), list).unwrap();
            fs.close().unwrap();
        }
        let fs = sapwood::open(named("1")).unwrap();
        for (at, (_, list)) in ways.iter().enumerate() {
            assert_eq!(fs.read(format!("from-{at}")).unwrap(), list.as_bytes());
        }
    }
}

#[test]
fn a_part_that_cannot_be_opened_is_named() {
    let (_dir, path) = disk(Kind::Ext4);
    let named = PathBuf::from(format!("{}#1", path.display()));
    let refused = |image: &Path, list: &str| match options(list).open(image) {
        Err(error) => error.downcast::<OpenError>().expect(list),
        Ok(_) => panic!("{list}: opened"),
    };
    for (image, list) in [
        (&*named, "offset=4M"),
        (&*named, "partition=1"),
        (&*path, "offset=4M,partition=1"),
    ] {
        let error = refused(image, list);
        let OpenError::Operand(OperandError::TwoRanges { .. }) = error else {
            panic!("{list}: {error}");
        };
    }
    let error = refused(&path, "partition=7");
    assert!(
        matches!(error, OpenError::Operand(OperandError::Partition(_))),
        "{error}"
    );
    let error = refused(&path, "offset=1M");
    assert!(matches!(error, OpenError::Kind { .. }), "{error}");
    assert!(error.to_string().contains("#offset=1048576"), "{error}");
}

/// A btrfs over two devices of 256 MiB.
fn two_devices() -> (TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a.img", "b.img"].map(|name| dir.path().join(name));
    let devices = paths.clone().map(|path| {
        let file = fs::File::create(&path).unwrap();
        file.set_len(256 * MIB).unwrap();
        Arc::new(FileDevice::open(&path, OpenOptions::default()).unwrap())
    });
    let [first, second] = &devices;
    let made = sapwood::internal::btrfs::mkfs::mkfs_several(
        &[&**first, &**second],
        &sapwood::internal::btrfs::mkfs::MkfsOptions::default(),
    );
    made.unwrap();
    let [first, second] = paths;
    (dir, first, second)
}

#[test]
fn a_btrfs_over_two_devices_opens_with_both() {
    let (_dir, first, second) = two_devices();
    let alone = sapwood::open(&first).unwrap_err();
    assert!(
        alone.to_string().contains("device 2 of the file system"),
        "{alone}"
    );
    let content = vec![b'x'; usize::try_from(300 * MIB).unwrap()];
    let mut both = Options::new();
    both.add_device(&second);
    let image = both.open(&first).unwrap();
    image.write("file", &content).unwrap();
    // Each device is locked.
    let taken = sapwood::open(&second).unwrap_err();
    assert!(
        matches!(
            taken.downcast_ref(),
            Some(OpenError::Device(sapwood::block::Error::Busy { .. }))
        ),
        "{taken}"
    );
    image.close().unwrap();
    // More than fits on either. The order of the devices does not matter.
    let list = format!("ro,device={}", first.display());
    let image = options(&list).open(&second).unwrap();
    assert!(image.read("file").unwrap() == content);
    drop(image);
    let ext4 = disk(Kind::Ext4);
    let foreign = both.open(format!("{}#1", ext4.1.display())).unwrap_err();
    assert!(
        matches!(foreign.downcast_ref(), Some(OpenError::Option { .. })),
        "{foreign}"
    );
}

#[test]
fn a_located_image_holds_in_every_directory() {
    let (_dir, first, second) = two_devices();
    let here = std::env::current_dir().unwrap();
    let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
    let relative = |path: &Path| up.join(path.strip_prefix("/").unwrap());
    let mut both = options("offset=4M");
    both.add_device(relative(&second));
    let (image, left) = located(&relative(&first), &both).unwrap();
    let wanted = format!("{}#offset=4194304", first.display());
    assert_eq!(image, Path::new(&wanted));
    assert_eq!(left.devices(), [second]);
    // The part is in the operand, and only there.
    assert_eq!(located(&image, &left).unwrap().0, image);
    let export = Path::new("nbd+unix:///x?socket=s");
    let (image, _) = located(export, &Options::new()).unwrap();
    let socket = format!("socket={}/s", here.display());
    assert!(image.display().to_string().ends_with(&socket), "{image:?}");
    both.add_device("none");
    let missing = located(&first, &both).unwrap_err();
    assert!(matches!(missing, OpenError::Device(_)), "{missing}");
}
