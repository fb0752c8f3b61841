//! Contradicting fields are reported by their cause.

use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};

use crate::oracles::{KERNEL, MIB, TOOLS, image, left_out};

use super::tools::{Saved, fill, lines, report, with_kernel};

const PLAIN: &str = "-b 1024 -O ^has_journal,^metadata_csum";
const OLD: &str = "-t ext2 -b 1024";
const SUMS: &str = "-b 1024";

/// Image, commands of `debugfs`, and words of the finding.
const TABLE: &[(&str, &str, &str)] = &[
    (
        PLAIN,
        "feature ^ext_attr",
        "an attribute block without the feature",
    ),
    (
        OLD,
        "sif /big file_acl 0x200000000",
        "an attribute block of more than 32 bits without the feature",
    ),
    (
        OLD,
        "sif /big blocks 0x100000000",
        "blocks of more than 32 bits without the feature",
    ),
    (PLAIN, "sif /big faddr 5", "the address of a fragment"),
    (
        PLAIN,
        "feature ea_inode\nsif /short-link flags 0x200000",
        "an attribute's value that is no file",
    ),
    (
        PLAIN,
        "sif /short-link size 0x100000005",
        "a size of more than 32 bits in what is no file",
    ),
    (
        PLAIN,
        "feature encrypt\nsif /big flags 0x80800",
        "encrypted without a context",
    ),
    (
        PLAIN,
        "feature encrypt\nsif /d0 flags 0x80800",
        "too short for an encrypted name",
    ),
    (
        PLAIN,
        "ssv want_extra_isize 1024",
        "want_extra_isize is 1024",
    ),
    (PLAIN, "ssv min_extra_isize 1", "min_extra_isize is 1"),
    (
        SUMS,
        "sif /one links_count 0\nsif /one dtime 5\nsif /one checksum 7",
        "checksum",
    ),
    (PLAIN, "sif <7> size 5", "inode 7: size 5"),
    (
        PLAIN,
        "sif <7> file_acl 7000",
        "inode 7: attribute block 7000",
    ),
    (
        PLAIN,
        "sif <6> mode 0100644\nsif <6> links_count 1",
        "inode 6: reserved: is not in use, and yet not empty",
    ),
    (
        PLAIN,
        "sif <3> block[0] 7000",
        "inode 3: reserved: is not in use, and yet not empty",
    ),
    (
        OLD,
        "sif <1> block[0] 2\nsif <1> size 1024",
        "inode 1: 1 blocks from block 2 on are metadata of groups",
    ),
];

/// Findings that `e2fsck` does not report: the kernel takes defaults for the first two, and refuses
/// to load the third.
const TOLERATED: &[&str] = &[
    "want_extra_isize is 1024",
    "min_extra_isize is 1",
    "an attribute's value that is no file",
];

fn filled(args: &str) -> Arc<MemoryDevice> {
    with_kernel(&image(16 * MIB, args), fill).unwrap()
}

#[test]
fn contradicting_fields_are_found() {
    if left_out(TOOLS) || left_out(KERNEL) {
        return;
    }
    let kinds = [PLAIN, OLD, SUMS];
    let images = kinds.map(|args| Saved::new(&filled(args)));
    let mut wrong = Vec::new();
    for (args, commands, words) in TABLE {
        let sound = &images[kinds.iter().position(|kind| kind == args).unwrap()];
        let damaged = Saved::new(&sound.load());
        damaged.debugfs(commands);
        let said = report(&damaged.load()).map(|report| lines(&report));
        if !said.as_ref().is_ok_and(|said| said.contains(words)) {
            wrong.push(format!("{commands}: {words}: {said:?}"));
        }
        let (clean, said) = damaged.e2fsck();
        if clean && !TOLERATED.contains(words) {
            wrong.push(format!("{commands}: e2fsck finds nothing: {said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Location of the journal's superblock.
fn journal(device: &MemoryDevice) -> u64 {
    let head = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 4];
    let blocks = (0..device.size()).step_by(1024);
    let mut found = blocks.filter(|at| {
        let mut bytes = [0; 8];
        device.read_at(*at, &mut bytes).unwrap();
        bytes == head
    });
    found.next().unwrap()
}

#[test]
fn journal_fields_of_another_version_are_found() {
    if left_out(TOOLS) {
        return;
    }
    let device = image(16 * MIB, "-b 1024 -O ^metadata_csum");
    let at = journal(&device);
    let judge = |offset: u64, bytes: &[u8], words: &str| {
        let device = Arc::new(device.snapshot());
        device.write_at(at + offset, bytes).unwrap();
        let said = lines(&report(&device).unwrap());
        assert!(said.contains(words), "{words}: {said}");
        assert!(!Saved::new(&device).e2fsck().0, "{words}");
    };
    judge(0x40, &[0, 0, 0, 2], "more than one user");
    let device = Arc::new(device.snapshot());
    device.write_at(at + 7, &[3]).unwrap();
    assert_eq!(lines(&report(&device).unwrap()), "");
    device.write_at(at + 0x28, &[0, 0, 0, 1]).unwrap();
    let said = lines(&report(&device).unwrap());
    assert!(
        said.contains("version 1, with fields of version 2"),
        "{said}"
    );
}

/// The Hurd writes no file types despite the feature; its images are valid.
#[test]
fn names_of_the_hurd_need_no_type() {
    if left_out(TOOLS) {
        return;
    }
    let made = image(16 * MIB, "-t ext2 -o hurd -b 1024 -I 128");
    let saved = Saved::new(&made);
    saved.debugfs("feature filetype");
    assert_eq!(lines(&report(&saved.load()).unwrap()), "");
    saved.debugfs("zap_block -f / -o 31 -l 1 -p 3 0");
    let said = lines(&report(&saved.load()).unwrap());
    assert!(said.contains("EntryType"), "{said}");
}
