//! Damaged streams: a receive ends with an error or a subvolume, and the image stays consistent.
//! Nothing outside of a directory changes.
#![cfg(all(target_os = "linux", not(sapwood_portable)))]

mod interrupted;
mod killed;
mod lying_extents;
mod random_stream;

use std::path::Path;
use std::sync::Arc;

use sapwood_block::MemoryDevice;
use sapwood_btrfs::check::{CheckOptions, check};
use sapwood_btrfs_format::stream::{
    COMMAND_HEADER, CommandHeader, HEADER, Writer, attribute, command, header, parse,
};

use super::{ReceiveError, ReceiveOptions};
use crate::{FileSystem, Options, SendOptions};

const SIZE: u64 = 128 << 20;

fn image(path: &Path) -> FileSystem {
    crate::ImageBuilder::btrfs()
        .size(SIZE)
        .write_to(path)
        .unwrap();
    crate::open(path).unwrap()
}

/// A stream of a subvolume with one of each thing.
fn stream(dir: &Path, version: u32) -> Vec<u8> {
    let fs = image(&dir.join("source"));
    fs.create_dir("/d").unwrap();
    fs.write("/d/file", vec![7; 70_000]).unwrap();
    fs.write("/small", b"text").unwrap();
    fs.symlink("../../outside", "/d/link").unwrap();
    fs.hard_link("/d/file", "/link").unwrap();
    fs.set_xattr("/small", "user.x", b"y").unwrap();
    fs.snapshot_read_only("/", "/s").unwrap();
    let options = SendOptions {
        version,
        ..SendOptions::default()
    };
    let mut bytes = Vec::new();
    fs.send("/s", &mut bytes, &options, &mut |_| {}).unwrap();
    let mut again = Vec::new();
    fs.send("/s", &mut again, &options, &mut |_| {}).unwrap();
    assert_eq!(bytes, again);
    bytes
}

/// The same stream with one attribute changed, under a right checksum.
fn lie(bytes: &[u8], version: u32, random: &mut fastrand::Rng) -> Vec<u8> {
    let (head, mut rest) = bytes.split_at(HEADER);
    let mut commands = Vec::new();
    while let Some((head, tail)) = rest.split_first_chunk::<COMMAND_HEADER>() {
        let header = CommandHeader::parse(head).unwrap();
        let (attributes, next) = tail.split_at(header.len);
        commands.push((header, attributes));
        rest = next;
    }
    let chosen = random.usize(..commands.len());
    let mut lied = head.to_vec();
    for (index, (header, attributes)) in commands.iter().enumerate() {
        let command = parse(version, header, attributes).unwrap();
        let mut writer = Writer::new(version);
        writer.begin(header.command);
        let count = command.attributes().count().max(1);
        let wrong = random.usize(..count);
        for (place, (number, value)) in command.attributes().enumerate() {
            let mut value = value.to_vec();
            if index == chosen && place == wrong {
                match random.u8(..5) {
                    0 => value.clear(),
                    1 => value = b"d/link/x".to_vec(),
                    2 => value = b"../outside".to_vec(),
                    3 => value = random.u64(..).to_le_bytes().to_vec(),
                    _ => value.iter_mut().for_each(|byte| *byte = random.u8(..)),
                }
            }
            if number != attribute::DATA {
                writer.put(number, &value);
            } else if index != chosen || wrong != place || random.bool() {
                writer.put_data(&value);
            }
        }
        lied.extend_from_slice(writer.finish());
    }
    lied
}

#[test]
fn a_stream_that_lies_leaves_a_consistent_image() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("target");
    let fs = image(&target);
    fs.write("/outside", b"kept").unwrap();
    fs.close().unwrap();
    let empty = std::fs::read(&target).unwrap();
    for version in [1, 2] {
        let good = stream(dir.path(), version);
        std::fs::remove_file(dir.path().join("source")).unwrap();
        for seed in 0..40 {
            let mut random = fastrand::Rng::with_seed(seed);
            let bytes = match seed {
                0 => good.clone(),
                _ => lie(&good, version, &mut random),
            };
            let device = Arc::new(MemoryDevice::from_bytes(&empty));
            let fs = FileSystem::open_on(device.clone(), "memory", &Options::new()).unwrap();
            let options = ReceiveOptions::default();
            let received = fs.receive("/", &*bytes, &options, &mut |_| {});
            assert!(seed != 0 || received.is_ok(), "{received:?}");
            assert_eq!(fs.read("/outside").unwrap(), b"kept", "seed {seed}");
            for one in fs.subvolumes().unwrap() {
                let complete = one.received_uuid != [0; 16];
                assert_eq!(one.read_only, complete, "seed {seed}");
                assert!(!complete || received.is_ok(), "seed {seed}");
            }
            fs.close().unwrap();
            let options = CheckOptions {
                check_data_csum: true,
                max_findings: 10,
            };
            let report = check(&[&*device], &options, &mut |_| ()).unwrap();
            assert!(
                report.findings.is_empty(),
                "seed {seed}: {:?}",
                report.findings
            );
            lies_stay_in_a_directory(&bytes, seed);
        }
    }
}

/// No command on a directory of this machine changes anything outside of it.
fn lies_stay_in_a_directory(bytes: &[u8], seed: u64) {
    let above = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let above = above.unwrap();
    let dir = above.path().join("dir");
    std::fs::create_dir(&dir).unwrap();
    let outside = above.path().join("outside");
    std::fs::write(&outside, b"kept").unwrap();
    let options = ReceiveOptions::default();
    let received = super::receive(&dir, bytes, &options, &mut |_| {});
    assert!(seed != 0 || received.is_ok(), "{received:?}");
    assert_eq!(std::fs::read(&outside).unwrap(), b"kept", "seed {seed}");
    let names = std::fs::read_dir(above.path()).unwrap().count();
    assert_eq!(names, 2, "seed {seed}");
    let complete = std::fs::read_dir(&dir).unwrap().any(|entry| {
        let name = entry.unwrap().file_name().into_encoded_bytes();
        name != b".sapwood-received" && !name.ends_with(b".part")
    });
    assert_eq!(complete, received.is_ok(), "seed {seed}");
}

/// A stream with a file whose range of 4096 bytes at 0 is cloned to `to`.
fn clone_within(to: u64) -> Vec<u8> {
    let mut bytes = header(1).to_vec();
    let mut writer = Writer::new(1);
    let uuid = [7; 16];
    let mut add = |number, compose: &dyn Fn(&mut Writer)| {
        compose(writer.begin(number));
        bytes.extend_from_slice(writer.finish());
    };
    add(command::SUBVOL, &|out| {
        out.put(attribute::PATH, b"s").put(attribute::UUID, &uuid);
        out.put_u64(attribute::CTRANSID, 1);
    });
    add(command::MKFILE, &|out| {
        out.put(attribute::PATH, b"f").put_u64(attribute::INO, 2);
    });
    add(command::WRITE, &|out| {
        out.put(attribute::PATH, b"f")
            .put_u64(attribute::FILE_OFFSET, 0);
        out.put_data(&[1; 8192]);
    });
    add(command::CLONE, &|out| {
        out.put(attribute::PATH, b"f")
            .put_u64(attribute::FILE_OFFSET, to);
        out.put_u64(attribute::CLONE_LEN, 4096);
        out.put(attribute::CLONE_UUID, &uuid);
        out.put_u64(attribute::CLONE_CTRANSID, 1);
        out.put(attribute::CLONE_PATH, b"f")
            .put_u64(attribute::CLONE_OFFSET, 0);
    });
    add(command::END, &|_| {});
    bytes
}

#[test]
fn a_range_is_not_cloned_over_itself() {
    for (to, overlaps) in [(0, true), (1, true), (4095, true), (4096, false)] {
        let dir = tempfile::tempdir().unwrap();
        let options = ReceiveOptions::default();
        let received = super::receive(dir.path(), &*clone_within(to), &options, &mut |_| {});
        assert_eq!(received.is_err(), overlaps, "{to}: {received:?}");
    }
}

#[test]
fn links_and_dots_of_the_destination_stay_in_the_chroot() {
    let source = tempfile::tempdir().unwrap();
    let bytes = stream(source.path(), 1);
    let above = tempfile::tempdir().unwrap();
    let root = above.path().join("root");
    std::fs::create_dir_all(root.join("backup/deep")).unwrap();
    std::fs::create_dir(above.path().join("backup")).unwrap();
    for (link, target) in [
        ("absolute", "/backup"),
        ("up", "../../backup"),
        ("out", "/"),
    ] {
        std::os::unix::fs::symlink(target, root.join(link)).unwrap();
    }
    let options = ReceiveOptions {
        chroot: Some(root.clone()),
        ..ReceiveOptions::default()
    };
    let inside = root.join("backup");
    for dir in [
        "backup",
        "/backup",
        "absolute",
        "up",
        "../backup",
        "out/backup/deep/..",
    ] {
        super::receive(dir, &*bytes, &options, &mut |_| {}).unwrap();
        assert_eq!(
            std::fs::read(inside.join("s/small")).unwrap(),
            b"text",
            "{dir}"
        );
        std::fs::remove_dir_all(inside.join("s")).unwrap();
        assert_eq!(
            std::fs::read_dir(above.path().join("backup"))
                .unwrap()
                .count(),
            0
        );
    }
    let outside = above.path().join("backup");
    let error = super::receive(outside, &*bytes, &options, &mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::NotFound, "{error}");
}
