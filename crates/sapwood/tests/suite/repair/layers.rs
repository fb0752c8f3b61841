//! Repairs of encrypted images, and of a btrfs over several devices.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood::internal::{mkfs, mkfs_several};
use sapwood::{
    CheckOptions, ErrorKind, FileSystem, MkfsOptions, Options, RepairOptions, RepairReport,
    UndoOptions, luks,
};
use sapwood_block::{Device, FileDevice, OpenOptions};
use sapwood_btrfs_format::ChecksumKind;
use tempfile::TempDir;

use super::MIB;

fn repair(image: &Path, opening: &Options, dry_run: bool) -> sapwood::Result<RepairReport> {
    let options = RepairOptions {
        dry_run,
        opening: opening.clone(),
        ..RepairOptions::default()
    };
    sapwood::repair(image, &options, &mut |_| {})
}

fn is_clean(image: &Path, opening: &Options) -> bool {
    let options = CheckOptions {
        opening: opening.clone(),
        ..CheckOptions::default()
    };
    sapwood::check(image, &options, &mut |_| {}).unwrap().clean
}

#[test]
fn an_encrypted_image_is_repaired_and_its_undo_file_is_encrypted() {
    let dir = TempDir::new().unwrap();
    let image = dir.path().join("image");
    let key = luks::Key::new(b"key".to_vec());
    let how = luks::FormatOptions {
        derivation: luks::Derivation::Pbkdf2 { iterations: 10 },
        ..luks::FormatOptions::default()
    };
    let volume = luks::NewVolume::new(&image).size(40 * MIB);
    luks::format(&volume, &key, &how).unwrap();
    let outer = FileDevice::open(&image, OpenOptions::default()).unwrap();
    let inner = sapwood_luks::open(Arc::new(outer), &key).unwrap();
    let options = MkfsOptions::new("ext4".parse().unwrap());
    mkfs(&*inner, &image, &options, true).unwrap();
    drop(inner);
    let opening = Options::new().key(key.clone());
    let fs = FileSystem::open_with_options(&image, &opening).unwrap();
    let secret = vec![b'S'; 3000];
    fs.write("file", &secret).unwrap();
    fs.close().unwrap();
    // The count of free inodes is wrong, and the superblock does not match its checksum.
    let outer = FileDevice::open(&image, OpenOptions::default()).unwrap();
    let inner = sapwood_luks::open(Arc::new(outer), &key).unwrap();
    let mut count = [0; 4];
    inner.read_at(1024 + 16, &mut count).unwrap();
    count[0] ^= 1;
    inner.write_at(1024 + 16, &count).unwrap();
    let mut page = vec![0; 4096];
    inner.read_at(0, &mut page).unwrap();
    drop(inner);
    let damaged = fs::read(&image).unwrap();
    let refused = repair(&image, &Options::new(), false).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    let wrong = Options::new().key(luks::Key::new(b"wrong".to_vec()));
    repair(&image, &wrong, false).unwrap_err();
    let dry = repair(&image, &opening, true).unwrap();
    assert!(fs::read(&image).unwrap() == damaged);
    let report = repair(&image, &opening, false).unwrap();
    assert_eq!(dry.repairs, report.repairs);
    assert!(!report.repairs.is_empty() && report.after.clean);
    assert!(is_clean(&image, &opening));
    let undo = report.undo.unwrap();
    let stored = fs::read(&undo).unwrap();
    let plain = page[1024..1024 + 64].to_vec();
    assert!(!stored.windows(64).any(|window| window == plain));
    // A mount changes the superblock.
    let repaired = fs::read(&image).unwrap();
    FileSystem::open_with_options(&image, &opening)
        .unwrap()
        .close()
        .unwrap();
    let refused = sapwood::undo(&undo, &UndoOptions::default()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    fs::write(&image, repaired).unwrap();
    sapwood::undo(&undo, &UndoOptions::default()).unwrap();
    assert!(fs::read(&image).unwrap() == damaged);
}

const DEVICES: usize = 3;

/// A btrfs over three devices with metadata in two copies. Returns the paths, and the options that
/// open it from the first.
fn several(dir: &Path, options: &[(&str, &str)]) -> (Vec<PathBuf>, Options) {
    let paths: Vec<PathBuf> = (0..DEVICES).map(|n| dir.join(format!("disk{n}"))).collect();
    let mut opened = Vec::new();
    for path in &paths {
        // No multiple of a page.
        File::create(path)
            .unwrap()
            .set_len(160 * MIB + 512)
            .unwrap();
        opened.push(FileDevice::open(path, OpenOptions::default()).unwrap());
    }
    let mut mkfs = MkfsOptions::new("btrfs".parse().unwrap());
    for (name, value) in options {
        mkfs.set(name, Some(value)).unwrap();
    }
    let devices: Vec<&dyn Device> = opened.iter().map(|one| one as &dyn Device).collect();
    mkfs_several(&devices, &paths[0], &mkfs, true).unwrap();
    drop(opened);
    let mut opening = Options::new();
    paths[1..].iter().for_each(|path| opening.add_device(path));
    let fs = FileSystem::open_with_options(&paths[0], &opening).unwrap();
    for number in 0..200 {
        fs.write(format!("{number}"), vec![number as u8; 5000])
            .unwrap();
    }
    fs.close().unwrap();
    (paths, opening)
}

#[test]
fn a_destroyed_mirror_of_several_devices_is_written_again_and_undone() {
    let dir = TempDir::new().unwrap();
    let profiles = [("data", "raid0"), ("metadata", "raid1")];
    let (paths, opening) = several(dir.path(), &profiles);
    let first = FileDevice::open(&paths[0], OpenOptions::read_only()).unwrap();
    let mut super_block = vec![0; 4096];
    first.read_at(64 << 10, &mut super_block).unwrap();
    drop(first);
    let fsid = super_block[32..48].to_vec();
    // Offsets of the tree blocks of a device.
    let blocks = |path: &PathBuf| -> Vec<u64> {
        let content = fs::read(path).unwrap();
        let pages = content.chunks_exact(4096).enumerate().skip(256);
        let headers =
            pages.filter(|(_, page)| page[32..48] == fsid && page[64..72] != *b"_BHRfS_M");
        headers.map(|(number, _)| number as u64 * 4096).collect()
    };
    let most = (0..DEVICES)
        .max_by_key(|n| blocks(&paths[*n]).len())
        .unwrap();
    let disk = File::options().write(true).open(&paths[most]).unwrap();
    let lost = blocks(&paths[most]);
    for at in &lost {
        disk.write_all_at(&[0x55; 4096], *at).unwrap();
    }
    assert!(lost.len() > 3, "{} blocks", lost.len());
    let other = File::options()
        .write(true)
        .open(&paths[(most + 1) % DEVICES])
        .unwrap();
    other.write_all_at(&[0x55; 4096], 64 << 20).unwrap();
    let all = || paths.iter().map(|path| fs::read(path).unwrap());
    let damaged: Vec<Vec<u8>> = all().collect();

    let alone = repair(&paths[0], &Options::new(), false).unwrap_err();
    assert!(alone.to_string().contains("3 devices"), "{alone}");
    let dry = repair(&paths[0], &opening, true).unwrap();
    assert!(all().eq(damaged.iter().cloned()));
    let report = repair(&paths[0], &opening, false).unwrap();
    assert_eq!(dry.repairs, report.repairs);
    assert!(
        report.after.clean && report.after.findings.is_empty(),
        "{:#?}",
        report.after
    );
    let codes = |code| {
        report
            .repairs
            .iter()
            .filter(|repair| repair.code == code)
            .count()
    };
    assert!(codes("BlockCopy") > 3 && codes("SuperBad") == 1);
    assert!(is_clean(&paths[0], &opening));
    let fs = FileSystem::open_with_options(&paths[0], &opening.clone().read_only(true)).unwrap();
    for number in 0..200 {
        assert!(fs.read(format!("{number}")).unwrap() == [number as u8; 5000]);
    }
    drop(fs);
    let undo = report.undo.unwrap();
    // The devices have other names now.
    let moved: Vec<PathBuf> = paths
        .iter()
        .map(|path| path.with_extension("moved"))
        .collect();
    paths
        .iter()
        .zip(&moved)
        .for_each(|(from, to)| fs::rename(from, to).unwrap());
    sapwood::undo(&undo, &UndoOptions::default()).unwrap_err();
    let names = UndoOptions {
        image: Some(moved[0].clone()),
        devices: moved[1..].to_vec(),
        force: false,
    };
    let swapped = UndoOptions {
        devices: vec![moved[2].clone(), moved[1].clone()],
        ..names.clone()
    };
    sapwood::undo(&undo, &swapped).unwrap_err();
    sapwood::undo(&undo, &names).unwrap();
    moved
        .iter()
        .zip(&paths)
        .for_each(|(from, to)| fs::rename(from, to).unwrap());
    assert!(all().eq(damaged.iter().cloned()));
}

#[test]
fn the_order_of_devices_does_not_change_the_undo_file() {
    let dir = TempDir::new().unwrap();
    let profiles = [("data", "raid0"), ("metadata", "raid1")];
    let (paths, _) = several(dir.path(), &profiles);
    let disk = File::options().write(true).open(&paths[1]).unwrap();
    disk.write_all_at(&[0x55; 4096], 64 << 20).unwrap();
    let all = || paths.iter().map(|path| fs::read(path).unwrap());
    let damaged: Vec<Vec<u8>> = all().collect();
    let expected = fs::canonicalize(&paths[0]).unwrap().with_extension("undo");
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut opening = Options::new();
        for number in &order[1..] {
            opening.add_device(&paths[*number]);
        }
        let report = repair(&paths[order[0]], &opening, false).unwrap();
        // The file of a repair that was undone is used again, so its pages are those of all devices
        // in the same order.
        assert_eq!(report.undo.as_ref(), Some(&expected), "{order:?}");
        assert!(report.after.clean);
        sapwood::undo(&expected, &UndoOptions::default()).unwrap();
        assert!(all().eq(damaged.iter().cloned()), "{order:?}");
    }
}

#[test]
fn a_set_of_devices_that_is_stale_or_not_exact_is_not_repaired() {
    let dir = TempDir::new().unwrap();
    let profiles = [("data", "raid1"), ("metadata", "raid1")];
    let (paths, opening) = several(dir.path(), &profiles);
    let older = fs::read(&paths[1]).unwrap();
    let copy = dir.path().join("copy");
    fs::write(&copy, &older).unwrap();
    let mut with_copy = opening.clone();
    with_copy.add_device(&copy);
    let refused = repair(&paths[0], &with_copy, false).unwrap_err();
    assert!(refused.to_string().contains("another device"), "{refused}");
    // A device with a number that the file system does not have.
    let surplus = File::options().write(true).open(&copy).unwrap();
    for at in [64 << 10, 64 << 20] {
        let mut own = older[at..at + 4096].to_vec();
        own[201] = 77;
        ChecksumKind::Crc32c.seal_block(&mut own);
        surplus.write_all_at(&own, at as u64).unwrap();
    }
    let refused = repair(&paths[0], &with_copy, false).unwrap_err();
    assert!(
        refused.to_string().contains("3 devices, 4 given"),
        "{refused}"
    );
    let fs = FileSystem::open_with_options(&paths[0], &opening).unwrap();
    fs.write("new", vec![7; 5000]).unwrap();
    fs.close().unwrap();
    fs::write(&paths[1], &older).unwrap();
    let all = || paths.iter().map(|path| fs::read(path).unwrap());
    let before: Vec<Vec<u8>> = all().collect();
    for dry_run in [true, false] {
        let refused = repair(&paths[0], &opening, dry_run).unwrap_err();
        assert!(refused.to_string().contains("sapwood scrub"), "{refused}");
    }
    assert!(all().eq(before));
}

/// An ext4 of these options, whose superblock has a wrong count of inodes and a wrong checksum.
fn damaged_ext4(image: &Path, options: &[(&str, &str)]) {
    File::create(image).unwrap().set_len(32 * MIB).unwrap();
    let device = FileDevice::open(image, OpenOptions::default()).unwrap();
    let mut made = MkfsOptions::new("ext4".parse().unwrap());
    for (name, value) in options {
        made.set(name, Some(value)).unwrap();
    }
    mkfs(&device, image, &made, true).unwrap();
    let mut count = [0; 4];
    device.read_at(1024 + 16, &mut count).unwrap();
    count[0] ^= 1;
    device.write_at(1024 + 16, &count).unwrap();
}

#[test]
fn a_repair_leaves_a_journal_on_another_device_alone() {
    let dir = TempDir::new().unwrap();
    // In both orders of the names.
    for (image, journal) in [("a", "b"), ("d", "c")] {
        let (image, journal) = (dir.path().join(image), dir.path().join(journal));
        File::create(&journal).unwrap().set_len(8 * MIB).unwrap();
        let device = FileDevice::open(&journal, OpenOptions::default()).unwrap();
        let mut options = MkfsOptions::new("ext4".parse().unwrap());
        options.set("features", Some("journal_dev")).unwrap();
        mkfs(&device, &journal, &options, true).unwrap();
        drop(device);
        let device = format!("device={}", journal.display());
        damaged_ext4(&image, &[("b", "4096"), ("journal", &device)]);
        let (before, log) = (fs::read(&image).unwrap(), fs::read(&journal).unwrap());
        let opening = Options::new().journal(&journal);
        let report = repair(&image, &opening, false).unwrap();
        assert!(!report.repairs.is_empty() && report.after.clean);
        assert!(is_clean(&image, &opening));
        sapwood::undo(report.undo.unwrap(), &UndoOptions::default()).unwrap();
        assert!(fs::read(&image).unwrap() == before);
        assert!(fs::read(&journal).unwrap() == log);
    }
}

#[test]
fn a_repair_of_the_superblock_and_an_undo_take_the_multiple_mount_protection() {
    use sapwood_ext4_format::{Geometry, MMP_SEQ_FSCK, MmpBlock, SuperBlock};

    let dir = TempDir::new().unwrap();
    let image = dir.path().join("image");
    damaged_ext4(&image, &[("features", "mmp")]);
    let before = fs::read(&image).unwrap();
    let mut good = before[1024..2048].to_vec();
    good[16] ^= 1;
    let sb = SuperBlock::parse(&good).unwrap();
    let geometry = Geometry::new(&sb).unwrap();
    let at = geometry.block_offset(sb.mmp_block.get()).unwrap();
    let file = File::options().write(true).open(&image).unwrap();
    let mut block = MmpBlock::clean(0, 5);
    block.seq = MMP_SEQ_FSCK.into();
    block.set_checksum(geometry.csum_seed());
    // The damaged superblock names no protection, the repaired one does.
    file.write_all_at(block.bytes(), at).unwrap();
    let marked = fs::read(&image).unwrap();
    let refused = repair(&image, &Options::new(), false).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceBusy, "{refused}");
    assert!(fs::read(&image).unwrap() == marked);
    assert!(!dir.path().join("image.undo").exists());
    // A damaged block protects nothing.
    file.write_all_at(&[0; 8], at).unwrap();
    let report = repair(&image, &Options::new(), false).unwrap();
    let undo = report.undo.unwrap();
    file.write_all_at(block.bytes(), at).unwrap();
    let marked = fs::read(&image).unwrap();
    let refused = sapwood::undo(&undo, &UndoOptions::default()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ResourceBusy, "{refused}");
    assert!(fs::read(&image).unwrap() == marked);
    file.write_all_at(&[0; 8], at).unwrap();
    sapwood::undo(&undo, &UndoOptions::default()).unwrap();
    let at = usize::try_from(at).unwrap();
    file.write_all_at(&before[at..at + 8 * 128], at as u64)
        .unwrap();
    assert!(fs::read(&image).unwrap() == before);
}
