//! Repairs: damage of many kinds is repaired so that our check and the format's tool agree, no file
//! changes that could be read before, and an undo restores the exact bytes.

mod btrfs;
mod bytes;
mod extents;
mod interrupted;
mod layers;
mod mutants;

use btrfs::several_kinds as damage_btrfs;
use interrupted::several_kinds as damage_ext4;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use sapwood::internal::mkfs;
use sapwood::{
    CheckOptions, ErrorKind, FileSystem, MkfsOptions, Options, RepairOptions, RepairReport,
    UndoOptions,
};
use sapwood_block::{FileDevice, OpenOptions};
use sapwood_testing::machine::{E2FSPROGS, Need, left_out};
use sapwood_testing::oracle::{Kind, run};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
/// Options of mkfs, such that an ext4 has several groups.
const EXT4: &[(&str, &str)] = &[("b", "1024")];
const PLAIN: &[(&str, &str)] = &[("b", "1024"), ("features", "^metadata_csum,^64bit")];

const BTRFS_PROGS: [Need; 1] = [Need::Program("btrfs")];

/// Paths and contents of the files that can be read.
type Files = BTreeMap<PathBuf, Vec<u8>>;

fn filled(dir: &Path, kind: &str, given: &[(&str, &str)]) -> PathBuf {
    let path = dir.join("image");
    let size = if kind == "ext4" { 32 * MIB } else { 128 * MIB };
    let file = fs::File::create(&path).unwrap();
    file.set_len(size).unwrap();
    let device = FileDevice::open(&path, OpenOptions::default()).unwrap();
    let mut options = MkfsOptions::new(kind.parse().unwrap());
    for (name, value) in given {
        options.set(name, Some(value)).unwrap();
    }
    mkfs(&device, &path, &options, true).unwrap();
    drop(device);
    let fs = sapwood::open(&path).unwrap();
    for dir in 0..4 {
        fs.create_dir(format!("d{dir}")).unwrap();
        for file in 0..30 {
            let content = vec![file as u8; 100 + file * 400];
            fs.write(format!("d{dir}/file-{file}"), content).unwrap();
        }
    }
    fs.hard_link("d0/file-1", "d1/link").unwrap();
    fs.create_dir("d3/below").unwrap();
    // An ext4 has a hash tree for this many names.
    fs.create_dir("many").unwrap();
    for number in 0..150 {
        fs.write(format!("many/{number}-of-many-names"), "")
            .unwrap();
    }
    fs.close().unwrap();
    path
}

/// Reads all files that can be read, below directories that can be read. A file that claims to be
/// larger than the image counts as unreadable.
fn files(image: &Path) -> Files {
    let mut found = Files::new();
    let opened = FileSystem::open_with_options(image, &Options::new().read_only(true));
    if let Ok(fs) = opened {
        collect(&fs, Path::new(""), &mut found, 0);
    }
    found
}

fn collect(fs: &FileSystem, dir: &Path, found: &mut Files, depth: usize) {
    let Ok(entries) = fs.read_dir(dir) else {
        return;
    };
    for entry in entries.map_while(Result::ok) {
        let path = dir.join(entry.file_name());
        let len = entry.metadata().map_or(0, |metadata| metadata.len());
        if len > 128 * MIB {
            continue;
        }
        if let Ok(content) = fs.read(&path) {
            found.insert(path, content);
        } else if depth < 8 {
            collect(fs, &path, found, depth + 1);
        }
    }
}

fn repair(image: &Path, dry_run: bool) -> sapwood::Result<RepairReport> {
    let options = RepairOptions {
        dry_run,
        ..RepairOptions::default()
    };
    sapwood::repair(image, &options, &mut |_| {})
}

fn lines(report: &RepairReport) -> Vec<String> {
    let repairs = report.repairs.iter().map(|repair| repair.text.clone());
    let left = report.after.findings.iter();
    repairs
        .chain(left.map(|left| format!("left: {left}")))
        .collect()
}

/// The files that changed or are gone.
fn lost(before: &Files, after: &Files) -> Vec<PathBuf> {
    let kept = |path: &PathBuf, content: &Vec<u8>| after.get(path) == Some(content);
    let lost = before.iter().filter(|(path, content)| !kept(path, content));
    lost.map(|(path, _)| path.clone()).collect()
}

/// The result of the format's tool. Data is not verified, as in our check.
fn judged(image: &Path) -> Result<(), String> {
    if Kind::of(image) == Kind::Ext4 {
        return Kind::Ext4.check(image);
    }
    let mut command = Command::new("btrfs");
    let output = command.args(["check", "--readonly"]).arg(image).output();
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Repairs an image, and undoes it. Everything that holds for each damage is asserted here.
fn repaired_and_undone(image: &Path, what: &str) -> Option<RepairReport> {
    let damaged = fs::read(image).unwrap();
    let before = files(image);
    let Ok(dry) = repair(image, true) else {
        assert!(fs::read(image).unwrap() == damaged, "{what}: changed");
        return None;
    };
    assert!(
        fs::read(image).unwrap() == damaged,
        "{what}: a dry run changed the image"
    );
    let report = repair(image, false).unwrap();
    assert_eq!(dry.repairs, report.repairs, "{what}");
    let gone = lost(&before, &files(image));
    assert!(
        gone.is_empty(),
        "{what}: lost {gone:?}: {:#?}",
        lines(&report)
    );
    let again = sapwood::check(image, &CheckOptions::default(), &mut |_| {}).unwrap();
    assert_eq!(again.clean, report.after.clean, "{what}");
    if report.after.clean {
        let judged = judged(image);
        assert!(judged.is_ok(), "{what}: {judged:?}: {:#?}", lines(&report));
    }
    if let Some(undo) = &report.undo {
        sapwood::undo(undo, &UndoOptions::default()).unwrap();
        fs::remove_file(undo).unwrap();
    }
    assert!(
        fs::read(image).unwrap() == damaged,
        "{what}: an undo restores other bytes"
    );
    Some(report)
}

/// Asserts that damage is repaired completely.
fn assert_repaired(image: &Path, what: &str) {
    let report = repaired_and_undone(image, what);
    let report = report.unwrap_or_else(|| panic!("{what}: not repaired"));
    assert!(!report.repairs.is_empty(), "{what}: no repair");
    assert!(report.after.clean, "{what}: {:#?}", lines(&report));
}

/// Commands of debugfs.
const DAMAGE: &[&str] = &[
    "ssv free_blocks_count 1",
    "ssv free_inodes_count 1",
    "set_bg 0 free_blocks_count 1\nset_bg 0 checksum calc",
    "set_bg 1 free_inodes_count 1\nset_bg 1 checksum calc",
    "set_bg 0 used_dirs_count 40\nset_bg 0 checksum calc",
    "set_bg 1 checksum 7",
    "set_bg 1 inode_table 1\nset_bg 1 checksum calc",
    "setb 30000 3",
    "freeb 600 1",
    "seti <600>",
    "freei /d0/file-3",
    "clri /d0/file-4",
    "sif /d0/file-1 links_count 9",
    "sif /d0/file-5 links_count 0",
    "sif /d0/file-6 dtime 5",
    "sif /d0/file-7 blocks 50",
    "ssv last_orphan 5",
    "ssv state 3",
    "unlink /d0/file-8",
    "unlink /d3",
    "unlink /d3\nunlink /d1/file-3\nunlink /lost+found",
    "sif /many flags 0x81000",
    "sif <8> links_count 1\nssv state 0",
    "sif <1> dtime 5",
    "sif <7> flags 0x80000",
];

/// Damage of a directory: its path, a block of it, bytes at an offset, and whether its name is
/// needed for the repair.
const DIRECTORIES: &[(&str, u64, u64, &[u8])] = &[
    // `.` and `..`: the inode, the length, the name.
    ("/d0", 0, 0, &[7]),
    ("/d0", 0, 4, &[13]),
    ("/d0", 0, 8, b"\0"),
    ("/d0", 0, 12, &[14]),
    ("/d0", 0, 12, &[0xff, 0xff]),
    ("/d0", 0, 20, b"\0\0"),
    ("/d0", 0, 22, b"x"),
    ("/", 0, 12, &[12]),
    // Lengths of entries, an impossible inode, the checksum.
    ("/d0", 0, 24 + 4, &[8]),
    ("/d0", 0, 24 + 4, &[200, 3]),
    ("/d0", 0, 24 + 5, &[9]),
    ("/d0", 0, 24 + 2, &[9]),
    ("/d0", 0, 1021, &[1, 2, 3]),
    // The hash tree: `..`, its head, an entry; hashes of a leaf.
    ("/many", 0, 12, &[14]),
    ("/many", 0, 28, &[77]),
    ("/many", 0, 29, &[3]),
    ("/many", 0, 32, &[0, 0]),
    ("/many", 0, 44, &[1]),
    ("/many", 0, 40, &[0xff; 8]),
];

/// Bytes from the start of the image to a block of a directory.
fn block_of(image: &Path, dir: &str, number: u64) -> u64 {
    let request = format!("bmap {dir} {number}");
    let output = run("debugfs", &["-R", &request, image.to_str().unwrap()]);
    output.trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn directories_of_an_ext4_are_repaired_and_undone() {
    if left_out(&E2FSPROGS) {
        return;
    }
    for options in [EXT4, PLAIN] {
        let dir = TempDir::new().unwrap();
        let image = filled(dir.path(), "ext4", options);
        let good = fs::read(&image).unwrap();
        let whole = files(&image);
        for (path, block, at, bytes) in DIRECTORIES {
            // Only `.` and `..` of a linear directory depend on checksums.
            if options == PLAIN && *at > 22 {
                continue;
            }
            fs::write(&image, &good).unwrap();
            let offset = block_of(&image, path, *block) + at;
            let file = fs::File::options().write(true).open(&image).unwrap();
            file.write_all_at(bytes, offset).unwrap();
            let what = format!("{path} {at} {bytes:x?} {options:?}");
            assert_repaired(&image, &what);
            repair(&image, false).unwrap();
            let mut gone = lost(&whole, &files(&image));
            // The file of an impossible entry is in lost+found.
            gone.retain(|name| *at != 26 || name != Path::new("d0/file-0"));
            assert_eq!(gone, Vec::<PathBuf>::new(), "{what}");
            fs::remove_file(dir.path().join("image.undo")).unwrap();
        }
    }
}

#[test]
fn damage_of_an_ext4_is_repaired_and_undone() {
    if left_out(&E2FSPROGS) {
        return;
    }
    for options in [EXT4, PLAIN] {
        let dir = TempDir::new().unwrap();
        let image = filled(dir.path(), "ext4", options);
        let good = fs::read(&image).unwrap();
        for commands in DAMAGE {
            fs::write(&image, &good).unwrap();
            for command in commands.lines() {
                run("debugfs", &["-w", "-R", command, image.to_str().unwrap()]);
            }
            // Without checksums a descriptor has none to damage.
            if fs::read(&image).unwrap() != good && !(options == PLAIN && commands.contains("7")) {
                assert_repaired(&image, commands);
            }
        }
    }
}

#[test]
fn a_lost_superblock_and_lost_descriptors_come_from_their_backups() {
    if left_out(&E2FSPROGS) {
        return;
    }
    let dir = TempDir::new().unwrap();
    let image = filled(dir.path(), "ext4", EXT4);
    let whole = files(&image);
    let good = fs::read(&image).unwrap();
    for (offset, len) in [(1024, 1024), (2048, 1024), (0, 32768), (8193 * 1024, 2048)] {
        fs::write(&image, &good).unwrap();
        let file = fs::File::options().write(true).open(&image).unwrap();
        file.write_all_at(&vec![0; len], offset).unwrap();
        let what = format!("{len} bytes at {offset}");
        let report = repaired_and_undone(&image, &what).unwrap();
        assert!(report.after.clean, "{what}: {:#?}", lines(&report));
        repair(&image, false).unwrap();
        assert_eq!(
            lost(&whole, &files(&image)),
            Vec::<PathBuf>::new(),
            "{what}"
        );
        fs::remove_file(dir.path().join("image.undo")).unwrap();
    }
}

#[test]
fn superblocks_of_a_btrfs_are_repaired_and_undone() {
    if left_out(&BTRFS_PROGS) {
        return;
    }
    let dir = TempDir::new().unwrap();
    let image = filled(dir.path(), "btrfs", &[]);
    let good = fs::read(&image).unwrap();
    for offset in [64 << 10, 64 << 20] {
        for at in [0, 64, 300] {
            fs::write(&image, &good).unwrap();
            let file = fs::File::options().write(true).open(&image).unwrap();
            file.write_all_at(&[0x5a; 40], offset + at).unwrap();
            assert_repaired(&image, &format!("byte {at} of the superblock at {offset}"));
        }
    }
}

#[test]
fn an_interrupted_repair_is_resumed_or_undone() {
    let dir = TempDir::new().unwrap();
    let image = filled(dir.path(), "ext4", EXT4);
    let file = fs::File::options().write(true).open(&image).unwrap();
    file.write_all_at(&[0; 32768], 0).unwrap();
    let damaged = fs::read(&image).unwrap();
    let undo = repair(&image, false).unwrap().undo.unwrap();
    let repaired = fs::read(&image).unwrap();
    // Only the first page was written.
    let mut half = damaged.clone();
    half[..4096].copy_from_slice(&repaired[..4096]);
    fs::write(&image, &half).unwrap();
    let report = repair(&image, false).unwrap();
    assert_eq!(report.resumed.as_deref(), Some(&*undo));
    assert!(fs::read(&image).unwrap() == repaired);
    fs::write(&image, &half).unwrap();
    sapwood::undo(&undo, &UndoOptions::default()).unwrap();
    assert!(fs::read(&image).unwrap() == damaged);
}

#[test]
fn an_undo_file_of_another_repair_is_kept() {
    let dir = TempDir::new().unwrap();
    let image = filled(dir.path(), "ext4", EXT4);
    let file = fs::File::options().write(true).open(&image).unwrap();
    file.write_all_at(&[0; 1024], 2048).unwrap();
    let first = repair(&image, false).unwrap().undo.unwrap();
    // Another user changes the image.
    let fs = sapwood::open(&image).unwrap();
    fs.write("new", "content").unwrap();
    fs.close().unwrap();
    let refused = sapwood::undo(&first, &UndoOptions::default()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    file.write_all_at(&[0; 1024], 2048).unwrap();
    let second = repair(&image, false).unwrap().undo.unwrap();
    assert_ne!(first, second);
    let named = RepairOptions {
        undo: Some(first),
        ..RepairOptions::default()
    };
    file.write_all_at(&[0; 1024], 2048).unwrap();
    let refused = sapwood::repair(&image, &named, &mut |_| {}).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists);
}

#[test]
fn an_undo_file_is_as_private_as_its_image() {
    let dir = TempDir::new().unwrap();
    let image = filled(dir.path(), "ext4", EXT4);
    for mode in [0o600, 0o640] {
        fs::set_permissions(&image, fs::Permissions::from_mode(mode)).unwrap();
        let file = fs::File::options().write(true).open(&image).unwrap();
        file.write_all_at(&[0; 1024], 2048).unwrap();
        let undo = repair(&image, false).unwrap().undo.unwrap();
        let found = fs::metadata(&undo).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode);
        fs::remove_file(undo).unwrap();
    }
}

fn number(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(default, |text| text.parse().unwrap())
}

#[test]
fn checksums_are_written_for_inodes_whose_map_shows_no_room_for_damage() {
    if left_out(&E2FSPROGS) {
        return;
    }
    let dir = TempDir::new().unwrap();
    let image = filled(dir.path(), "ext4", EXT4);
    let path = image.to_str().unwrap();
    let good = fs::read(&image).unwrap();
    // The second file loses most of its size: its blocks are then past the end.
    let cases = [
        (&["sif /d0/file-20 checksum 7"][..], true),
        (
            &["sif /d0/file-20 size 2000", "sif /d0/file-20 checksum 7"],
            false,
        ),
    ];
    for (commands, written) in cases {
        fs::write(&image, &good).unwrap();
        for command in commands {
            run("debugfs", &["-w", "-R", command, path]);
        }
        let damaged = fs::read(&image).unwrap();
        let report = repair(&image, false).unwrap();
        let mut repairs = report.repairs.iter();
        let found = repairs.any(|one| one.code == "InodeChecksum");
        assert_eq!(found, written, "{commands:?}: {:#?}", lines(&report));
        if written {
            assert!(report.after.clean, "{:#?}", lines(&report));
        } else {
            let mut left = report.after.findings.iter();
            assert!(left.any(|left| left.code == "InodeChecksum"));
        }
        if let Some(undo) = report.undo {
            sapwood::undo(&undo, &UndoOptions::default()).unwrap();
            fs::remove_file(undo).unwrap();
        }
        assert!(fs::read(&image).unwrap() == damaged);
    }
}
