//! ext4.

use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_ext4::mkfs::{MkfsOptions, mkfs};
use sapwood_ext4::{Ext4, Options as EngineOptions};
use sapwood_rescue::ext4::{Image, Options};
use sapwood_rescue::{Error, Rescued, Scanning};
use sapwood_vfs::{Credentials, FileSystem, NewInode, WriteMode};

use crate::walk::{Contents, files, wrong};

const WATCH: fn(Scanning) -> bool = |_| true;
const SIZE: u64 = 64 << 20;
const BLOCK: u64 = 1024;

/// An image with some directories and files.
fn image() -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(SIZE));
    mkfs(&*device, &MkfsOptions::default()).unwrap();
    let shared: Arc<dyn Device> = device.clone();
    let fs = Ext4::open(shared, EngineOptions::default()).unwrap();
    let who = Credentials::ROOT;
    for number in 0..6 {
        let name = format!("dir{number}");
        let dir = fs.create(&who, fs.root(), name.as_bytes(), NewInode::Directory, 0o755);
        let dir = dir.unwrap().ino();
        for file in 0..40 {
            let name = format!("file{file}");
            let made = fs.create(&who, dir, name.as_bytes(), NewInode::Regular, 0o644);
            let made = made.unwrap().ino();
            let content = vec![number * 40 + file; 100 * usize::from(file)];
            fs.write(made, 0, &content, WriteMode::default()).unwrap();
            fs.forget(made, 1);
        }
        fs.forget(dir, 1);
    }
    fs.unmount().unwrap();
    device.snapshot()
}

fn open(device: &Arc<MemoryDevice>) -> Result<Image, Error> {
    Image::open(device.clone(), Options::default(), &WATCH)
}

fn rescued(device: &Arc<MemoryDevice>) -> Contents {
    let opened = open(device);
    opened.map_or(Contents::new(), |image| files(&Rescued::new(image.files())))
}

#[test]
fn an_intact_image_has_all_files() {
    let found = rescued(&Arc::new(image()));
    assert_eq!(found.len(), 240);
    let content = found[&b"/dir2/file7"[..]].clone();
    assert_eq!(content, Some(vec![87; 700]));
}

#[test]
fn a_lost_block_never_changes_another_file() {
    let whole = image();
    let expected = rescued(&Arc::new(whole.snapshot()));
    // Metadata of the first group; every seventh block keeps the test short.
    for block in (0..3000).step_by(7) {
        let device = whole.snapshot();
        device
            .write_at(block * BLOCK, &[0; BLOCK as usize])
            .unwrap();
        let device = Arc::new(device);
        let before = device.snapshot();
        let found = rescued(&device);
        assert_eq!(device.first_difference(&before), None);
        // A block of data may be the one that was zeroed.
        assert!(wrong(&found, &expected).len() <= 1, "block {block}");
    }
}

#[test]
fn a_backup_replaces_superblock_and_descriptors() {
    let whole = image();
    let expected = rescued(&Arc::new(whole.snapshot()));
    let device = whole.snapshot();
    device.write_at(0, &[0; 8192]).unwrap();
    let device = Arc::new(device);
    assert!(open(&device).unwrap().superblock().offset > 1024);
    assert_eq!(rescued(&device), expected);
}

#[test]
fn nothing_is_found_where_nothing_is() {
    let device = Arc::new(MemoryDevice::new(1 << 20));
    assert!(matches!(open(&device), Err(Error::NoExt4 { .. })));
}
