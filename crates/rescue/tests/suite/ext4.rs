//! ext4.

use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_ext4::mkfs::{MkfsOptions, mkfs};
use sapwood_ext4::{Ext4, Options as EngineOptions};
use sapwood_rescue::ext4::{Image, Options};
use sapwood_rescue::{Collected, Deleted, Error, NameSource, Rescued, Scanning};
use sapwood_testing::CountDevice;
use sapwood_vfs::{Credentials, FileSystem, NewInode, SetAttr, WriteMode};

use crate::walk::{Contents, files, wrong};

const WATCH: fn(Scanning) -> bool = |_| true;
const SIZE: u64 = 64 << 20;
const BLOCK: u64 = 1024;

/// An image with some directories and files.
fn image() -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(SIZE));
    let options = MkfsOptions {
        reserved_percent: 0.0,
        ..MkfsOptions::default()
    };
    mkfs(&*device, &options).unwrap();
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
fn a_walk_over_a_large_directory_reads_each_block_a_few_times() {
    const FILES: u64 = 3000;
    let device = Arc::new(MemoryDevice::new(SIZE));
    mkfs(&*device, &MkfsOptions::default()).unwrap();
    let fs = Ext4::open(device.clone(), EngineOptions::default()).unwrap();
    for number in 0..FILES {
        let name = format!("a file with a long name, number {number}");
        let made = fs.create(
            &Credentials::ROOT,
            fs.root(),
            name.as_bytes(),
            NewInode::Regular,
            0o644,
        );
        fs.forget(made.unwrap().ino(), 1);
    }
    fs.unmount().unwrap();
    let counted = Arc::new(CountDevice::new(device.snapshot()));
    let image = Image::open(counted.clone(), Options::default(), &WATCH).unwrap();
    let rescued = Rescued::new(image.files());
    let before = counted.counts().read_bytes;
    let found = files(&rescued);
    let read = counted.counts().read_bytes - before;
    assert_eq!(found.len() as u64, FILES);
    // A file costs its inode and the blocks of its lookup, not the whole directory.
    assert!(read < FILES * 16 * BLOCK, "{read} bytes");
    let absent = rescued.lookup(rescued.root(), b"a file with a long name, number 3000");
    assert!(matches!(absent, Err(sapwood_vfs::Error::NotFound)));
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

/// The deleted files of an image, as they are listed, and as files.
fn deleted(device: &Arc<MemoryDevice>) -> (Vec<Deleted>, Contents) {
    let (mut listed, mut tree) = (Vec::new(), Collected::new("ext4"));
    open(device).unwrap().deleted(&mut |found| {
        found.collect(&mut tree);
        listed.push(found.counted());
        ControlFlow::Continue(())
    });
    (listed, files(&Rescued::new(tree)))
}

/// Opens the engine, hands it to `work`, and unmounts it.
fn change(device: &MemoryDevice, work: impl FnOnce(&Ext4)) -> Arc<MemoryDevice> {
    let device = Arc::new(device.snapshot());
    let shared: Arc<dyn Device> = device.clone();
    let fs = Ext4::open(shared, EngineOptions::default()).unwrap();
    work(&fs);
    fs.unmount().unwrap();
    device
}

/// Removes the directories `dir2` and `dir4` with everything in them. A transaction before changes
/// the modes of all files, so the journal has their inodes.
fn remove(fs: &Ext4) {
    let changes = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    let who = Credentials::ROOT;
    let made = fs.create(&who, fs.root(), b"new", NewInode::Regular, 0o600);
    fs.forget(made.unwrap().ino(), 1);
    for name in ["dir2", "dir4"] {
        let dir = fs.lookup(fs.root(), name.as_bytes()).unwrap().ino();
        for file in 0..40 {
            let found = fs.lookup(dir, format!("file{file}").as_bytes()).unwrap();
            fs.setattr(found.ino(), &changes).unwrap();
            fs.forget(found.ino(), 1);
        }
        let made = fs.create(&who, dir, b"other", NewInode::Regular, 0o600);
        let made = made.unwrap().ino();
        fs.sync().unwrap();
        fs.forget(made, 1);
        fs.unlink(dir, b"other").unwrap();
        for file in 0..40 {
            fs.unlink(dir, format!("file{file}").as_bytes()).unwrap();
        }
        fs.sync().unwrap();
        fs.rmdir(fs.root(), name.as_bytes()).unwrap();
        fs.forget(dir, 1);
    }
}

/// Fills the image with the file `new`.
fn fill(fs: &Ext4) {
    let made = fs.lookup(fs.root(), b"new").unwrap().ino();
    let mut at = 0;
    for size in [1 << 20, 1 << 10] {
        let piece = vec![0xff; size];
        while fs.write(made, at, &piece, WriteMode::default()).is_ok() {
            at += size as u64;
        }
    }
    fs.forget(made, 1);
}

#[test]
fn an_image_without_deletions_has_no_deleted_files() {
    let (listed, files) = deleted(&Arc::new(image()));
    assert_eq!((listed, files.len()), (Vec::new(), 0));
}

#[test]
fn deleted_files_have_their_paths_and_contents() {
    let whole = image();
    let expected = rescued(&Arc::new(whole.snapshot()));
    let device = change(&whole, remove);
    let (listed, found) = deleted(&device);
    let is_other = |file: &Deleted| file.path.ends_with(b"/other");
    assert_eq!(listed.iter().filter(|file| is_other(file)).count(), 2);
    assert_eq!(listed.len(), 82);
    for file in listed.iter().filter(|file| !is_other(file)) {
        assert_eq!(file.name, NameSource::Directory);
        assert_eq!(file.readable, file.size, "{}", file.path.escape_ascii());
        assert_eq!(found[&file.path], expected[&file.path]);
    }
    assert_eq!(found.len(), 82);
    // What is there is not listed again.
    assert!(!found.contains_key(&b"/dir3/file7"[..]));
}

#[test]
fn a_block_that_another_file_has_is_missing() {
    let device = change(&image(), |fs| {
        remove(fs);
        fs.sync().unwrap();
        fill(fs);
    });
    let (listed, found) = deleted(&device);
    assert_eq!(listed.len(), 82);
    let content = |file: &Deleted| found[&file.path].clone();
    let lost = listed.iter().filter(|file| content(file).is_none()).count();
    assert!(lost > 5, "{lost}");
    for file in &listed {
        match content(file) {
            Some(content) => assert!(!content.contains(&0xff)),
            None => assert!(file.readable < file.size),
        }
    }
}

#[test]
fn a_block_that_a_deleted_file_had_later_is_missing() {
    let device = change(&image(), |fs| {
        remove(fs);
        fs.sync().unwrap();
        fill(fs);
        fs.sync().unwrap();
        fs.unlink(fs.root(), b"new").unwrap();
    });
    let (listed, found) = deleted(&device);
    assert_eq!(listed.len(), 83);
    let mut lost = 0;
    for file in &listed {
        let is_new = file.path == b"/new";
        let content = found[&file.path].as_ref();
        match content {
            // The file that had the blocks last has them all.
            Some(content) if is_new => assert!(content.iter().all(|byte| *byte == 0xff)),
            Some(content) => assert!(!content.contains(&0xff), "{file:?}"),
            None => assert!(!is_new && file.readable < file.size, "{file:?}"),
        }
        assert_eq!(content.is_some(), file.readable == file.size, "{file:?}");
        lost += usize::from(content.is_none());
    }
    assert!(lost > 5, "{lost}");
}

#[test]
fn the_target_of_a_long_link_is_lost_with_its_block() {
    let device = change(&image(), |fs| {
        let who = Credentials::ROOT;
        let made = fs.create(&who, fs.root(), b"new", NewInode::Regular, 0o600);
        fs.forget(made.unwrap().ino(), 1);
        // More blocks than the file system reserves.
        let names: Vec<String> = (0..3000).map(|number| format!("link{number}")).collect();
        for (number, name) in names.iter().enumerate() {
            let target = vec![b'x'; if number % 10 == 0 { 20 } else { 200 }];
            let kind = NewInode::Symlink(&target);
            let made = fs.create(&who, fs.root(), name.as_bytes(), kind, 0o777);
            fs.forget(made.unwrap().ino(), 1);
        }
        fs.sync().unwrap();
        for name in &names {
            fs.unlink(fs.root(), name.as_bytes()).unwrap();
        }
        fs.sync().unwrap();
        fill(fs);
    });
    let (listed, _) = deleted(&device);
    assert!(listed.len() > 1000, "{}", listed.len());
    for file in &listed {
        let whole = file.readable == file.size;
        assert!(whole || file.size == 200, "{file:?}");
    }
    let lost = listed.iter().filter(|file| file.readable == 0).count();
    assert!(lost > 5, "{lost}");
}

#[test]
fn directories_without_blocks_are_on_the_path() {
    let whole = Arc::new(MemoryDevice::new(SIZE));
    let options = MkfsOptions {
        features: vec![("inline_data".to_owned(), true)],
        ..MkfsOptions::default()
    };
    mkfs(&*whole, &options).unwrap();
    let device = change(&whole, |fs| {
        let who = Credentials::ROOT;
        let make = |dir, name: &str, kind| {
            let made = fs.create(&who, dir, name.as_bytes(), kind, 0o755);
            made.unwrap().ino()
        };
        let above = make(fs.root(), "above", NewInode::Directory);
        let dir = make(above, "dir", NewInode::Directory);
        for number in 0..60 {
            let made = make(dir, &format!("file{number}"), NewInode::Regular);
            fs.write(made, 0, &[b'x'; 3000], WriteMode::default())
                .unwrap();
            fs.forget(made, 1);
        }
        fs.sync().unwrap();
        fs.unlink(dir, b"file7").unwrap();
        fs.forget(dir, 1);
        fs.forget(above, 1);
    });
    let (listed, _) = deleted(&device);
    let paths: Vec<_> = listed
        .iter()
        .map(|file| file.path.escape_ascii().to_string())
        .collect();
    assert_eq!(paths, ["/above/dir/file7"]);
}

#[test]
fn damage_of_the_journal_gives_no_other_content() {
    let whole = image();
    let expected = rescued(&Arc::new(whole.snapshot()));
    let changed = change(&whole, remove);
    for seed in 0..60_u64 {
        let device = changed.snapshot();
        for step in 0..40_u64 {
            let place = (seed * 40 + step).wrapping_mul(0x9e37_79b9_7f4a_7c15) % (SIZE / 2);
            device.write_at(place, &[seed as u8; 7]).unwrap();
        }
        let (_, found) = deleted(&Arc::new(device));
        // A byte of a file's data may be one of those, and `other` is in no image.
        assert!(wrong(&found, &expected).len() <= 6, "seed {seed}");
    }
}
