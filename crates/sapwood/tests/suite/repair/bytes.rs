//! Bytes of an ext4 that its checksums show: a damaged byte of an inode or of a directory block gets
//! its value back, and two damaged bytes stay.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use sapwood_testing::machine::{E2FSPROGS, left_out};
use sapwood_testing::oracle::run;
use tempfile::TempDir;

use super::{EXT4, PLAIN, assert_repaired, block_of, files, filled, repair, repaired_and_undone};

/// Offset of an inode in the image.
fn inode_at(image: &std::path::Path, path: &str) -> u64 {
    let request = format!("imap {path}");
    let text = run("debugfs", &["-R", &request, image.to_str().unwrap()]);
    let number = |after: &str| {
        let digits = text.split_once(after).unwrap().1.trim_start();
        let (radix, digits) = match digits.strip_prefix("0x") {
            Some(digits) => (16, digits),
            None => (10, digits),
        };
        let digits = digits
            .split(|byte: char| !byte.is_digit(radix))
            .next()
            .unwrap();
        u64::from_str_radix(digits, radix).unwrap()
    };
    number("located at block") * 1024 + number("offset")
}

#[test]
fn a_byte_that_a_checksum_shows_is_restored() {
    if left_out(&E2FSPROGS) {
        return;
    }
    let dir = TempDir::new().unwrap();
    let image = filled(dir.path(), "ext4", EXT4);
    let good = fs::read(&image).unwrap();
    let whole = files(&image);
    let file = File::options().write(true).open(&image).unwrap();
    let inode = inode_at(&image, "/d0/file-9");
    let names = block_of(&image, "/d1", 0);
    let names_later = names + 500;
    // Mode, owner, size, a time, flags, the map, the generation, extra_isize; names and inodes.
    let in_inode = [0, 1, 2, 5, 17, 34, 41, 44, 60, 101, 129];
    let places = in_inode.into_iter().map(|at| inode + at);
    for at in places.chain([names + 24, names + 33, names_later]) {
        let old = good[at as usize];
        file.write_all_at(&[old ^ 0x24], at).unwrap();
        let report = repaired_and_undone(&image, "one byte").unwrap();
        assert!(
            report.repairs.iter().any(|one| one.code == "ByteRestored"),
            "{at}"
        );
        assert!(report.after.clean, "{at}: {report:#?}");
        let report = repair(&image, false).unwrap();
        assert!(files(&image) == whole, "{at}");
        let now = fs::read(&image).unwrap();
        assert_eq!(now[at as usize], old, "{at}");
        sapwood::undo(report.undo.unwrap(), &sapwood::UndoOptions::default()).unwrap();
        file.write_all_at(&[old], at).unwrap();
    }
    // The mode and the owner.
    file.write_all_at(&[good[inode as usize] ^ 1], inode)
        .unwrap();
    file.write_all_at(&[good[inode as usize + 2] ^ 4], inode + 2)
        .unwrap();
    let report = repaired_and_undone(&image, "two bytes").unwrap();
    assert!(report.repairs.iter().all(|one| one.code != "ByteRestored"));
}

#[test]
fn fields_without_checksums_that_have_one_value_are_set() {
    if left_out(&E2FSPROGS) {
        return;
    }
    let dir = TempDir::new().unwrap();
    let image = filled(dir.path(), "ext4", PLAIN);
    let file = File::options().write(true).open(&image).unwrap();
    let inode = inode_at(&image, "/d0/file-9");
    // The address of a fragment; the number of further bytes.
    for (at, bytes) in [(112, [7, 0]), (128, [0xa0, 0]), (128, [33, 0])] {
        let good = fs::read(&image).unwrap();
        file.write_all_at(&bytes, inode + at).unwrap();
        assert_repaired(&image, "a field");
        fs::write(&image, good).unwrap();
    }
}
