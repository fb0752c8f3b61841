//! Partition tables, compared with `sfdisk` and the kernel. The kernel's part needs root.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sapwood_block::partition::{PartitionTable, Scheme};
use sapwood_block::{FileDevice, OpenOptions};
use sapwood_testing::machine::{Need, left_out, note, part_left_out};
use sapwood_testing::oracle::Loop;

const SIZE: u64 = 64 << 20;

const GPT: &str = "label: gpt
size=1MiB, name=\"first\"
size=8MiB, name=\"zwei\", type=0FC63DAF-8483-4772-8E79-3D69D8477DE4
start=40MiB, size=4MiB
";

const MBR: &str = "label: dos
size=1MiB, type=83
size=3MiB, type=82
size=20MiB, type=5
start=50MiB, size=8MiB, type=83
size=2MiB, type=83
size=4MiB, type=83
size=1MiB, type=82
";

/// Number, first byte, bytes.
type Found = Vec<(u32, u64, u64)>;

/// A disk image with the table that `sfdisk` makes of a script; nothing without `sfdisk`.
fn disk(dir: &Path, script: &str) -> Option<PathBuf> {
    if left_out(&[Need::Program("sfdisk")]) {
        return None;
    }
    let image = dir.join("disk");
    drop(FileDevice::create(&image, SIZE).unwrap());
    let mut sfdisk = Command::new("sfdisk")
        .args(["--quiet", "--no-tell-kernel", "--no-reread"])
        .arg(&image)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = sfdisk.stdin.take().unwrap();
    input.write_all(script.as_bytes()).unwrap();
    drop(input);
    assert!(sfdisk.wait().unwrap().success());
    Some(image)
}

/// The partitions that can be used.
fn ours(image: &Path, scheme: Scheme) -> Found {
    let device = FileDevice::open(image, OpenOptions::read_only()).unwrap();
    let table = PartitionTable::read(&device).unwrap();
    assert_eq!(table.scheme, scheme);
    let usable = table.partitions.iter().filter(|part| part.flaw.is_none());
    usable
        .map(|part| (part.number, part.start, part.len))
        .collect()
}

/// The partitions in the output of `sfdisk --dump`, without extended ones.
fn sfdisk(image: &Path) -> Found {
    let dump = Command::new("sfdisk").arg("--dump").arg(image).output();
    let text = String::from_utf8(dump.unwrap().stdout).unwrap();
    let field = |line: &str, name: &str| -> u64 {
        let (_, rest) = line.split_once(name).unwrap();
        rest.split(',').next().unwrap().trim().parse().unwrap()
    };
    let lines = text.lines().filter(|line| line.contains("start="));
    lines
        .filter(|line| !line.contains("type=5"))
        .map(|line| {
            let name = line.split(' ').next().unwrap();
            let number = name.strip_prefix(image.to_str().unwrap()).unwrap();
            (
                number.parse().unwrap(),
                field(line, "start=") * 512,
                field(line, "size=") * 512,
            )
        })
        .collect()
}

/// The partitions that the kernel finds through a loop device, without extended ones; `None` where
/// loop devices cannot be made or do not read partition tables.
fn kernel(image: &Path) -> Option<Found> {
    if part_left_out("the kernel", &[Need::Loop]) {
        return None;
    }
    let attached = Loop::new(image, &["-P", "-r"]).unwrap();
    let device = attached.path().to_str().unwrap().to_owned();
    let name = device.rsplit('/').next().unwrap().to_owned();
    let number =
        |path: PathBuf| -> Option<u64> { std::fs::read_to_string(path).ok()?.trim().parse().ok() };
    let mut found = Found::new();
    for part in 1..16 {
        let dir = PathBuf::from(format!("/sys/block/{name}/{name}p{part}"));
        if let (Some(start), Some(size)) = (number(dir.join("start")), number(dir.join("size"))) {
            found.push((part, start * 512, size * 512));
        }
    }
    drop(attached);
    // The kernel shows an extended partition with the size of its first sectors.
    found.retain(|(_, _, len)| *len > 1024);
    if found.is_empty() {
        note(Some("the kernel"), "it reads no partition tables");
        return None;
    }
    Some(found)
}

fn all_find_the_same(script: &str, scheme: Scheme, count: usize) {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = disk(dir.path(), script) else {
        return;
    };
    let found = ours(&image, scheme);
    assert_eq!(found.len(), count);
    assert_eq!(found, sfdisk(&image));
    if let Some(wanted) = kernel(&image) {
        assert_eq!(found, wanted);
    }
}

#[test]
fn a_gpt_is_what_sfdisk_and_the_kernel_find() {
    all_find_the_same(GPT, Scheme::Gpt, 3);
}

#[test]
fn an_mbr_is_what_sfdisk_and_the_kernel_find() {
    all_find_the_same(MBR, Scheme::Mbr, 6);
}
