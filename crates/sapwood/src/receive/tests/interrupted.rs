//! Receives that end early, and their continuation by a resumed receive.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::check::{CheckOptions, check};
use sapwood_btrfs_format::stream::{
    COMMAND_HEADER, CommandHeader, HEADER, attribute, command, parse,
};
use sapwood_testing::tree::{Detail, Facts, Tree};
use tempfile::TempDir;

use super::super::directory::part_of;
use super::killed::killed_after;
use super::{ReceiveError, ReceiveOptions, image};
use crate::{FileSystem, Options, SendOptions};

/// Streams of a snapshot `a`, and of the changes to `b`.
pub(super) struct Streams {
    pub(super) full: Vec<u8>,
    pub(super) changes: Vec<u8>,
}

pub(super) fn streams(version: u32) -> Streams {
    let dir = directory();
    let fs = image(&dir.path().join("source"));
    fs.create_dir("/d").unwrap();
    fs.write("/d/file", vec![7; 9000]).unwrap();
    fs.write("/small", b"text").unwrap();
    fs.symlink("target", "/d/link").unwrap();
    fs.hard_link("/d/file", "/link").unwrap();
    fs.set_xattr("/small", "user.x", b"y").unwrap();
    fs.create_dir("/old").unwrap();
    fs.write("/old/gone", b"gone").unwrap();
    fs.snapshot_read_only("/", "/a").unwrap();
    fs.rename("/d", "/e").unwrap();
    fs.rename("/small", "/d").unwrap();
    fs.rename("/e", "/small").unwrap();
    fs.remove_file("/link").unwrap();
    fs.remove_dir_all("/old").unwrap();
    fs.write("/new", vec![8; 5000]).unwrap();
    fs.snapshot_read_only("/", "/b").unwrap();
    let send = |path: &str, parent: Option<PathBuf>| {
        let options = SendOptions {
            version,
            parent,
            ..SendOptions::default()
        };
        let mut bytes = Vec::new();
        fs.send(path, &mut bytes, &options, &mut |_| {}).unwrap();
        bytes
    };
    Streams {
        full: send("/a", None),
        changes: send("/b", Some("/a".into())),
    }
}

/// In memory where the machine has such a file system: a receive waits until its files are durable.
pub(super) fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

pub(super) fn into(dir: &Path, stream: &[u8], resume: bool) -> crate::Result<crate::ReceiveReport> {
    let options = ReceiveOptions {
        resume,
        ..ReceiveOptions::default()
    };
    super::super::receive(dir, stream, &options, &mut |_| {})
}

pub(super) fn tree(dir: &Path, name: &str) -> Tree {
    Tree::of_mount(&dir.join(name), Detail::Bytes).unwrap()
}

pub(super) const SAME: Facts = Facts::PLAIN.union(Facts::MTIME);

/// The ends of the commands of a stream.
pub(super) fn ends(stream: &[u8]) -> Vec<usize> {
    let mut at = HEADER;
    let mut ends = Vec::new();
    while let Some(head) = stream[at..].first_chunk::<COMMAND_HEADER>() {
        at += COMMAND_HEADER + CommandHeader::parse(head).unwrap().len;
        ends.push(at);
    }
    ends
}

/// Every byte of the first commands and of the last ones, and some of those between.
fn cuts(stream: &[u8], step: usize) -> impl Iterator<Item = usize> {
    let all = (0..stream.len()).step_by(step);
    let ends = ends(stream);
    all.chain(ends.into_iter().rev().skip(1).step_by(3))
}

#[test]
fn a_cut_stream_is_resumed_in_a_directory() {
    for version in [1, 2] {
        let Streams { full, changes } = streams(version);
        let whole = directory();
        into(whole.path(), &full, false).unwrap();
        into(whole.path(), &changes, false).unwrap();
        for (name, stream) in [("a", &full), ("b", &changes)] {
            let expected = tree(whole.path(), name);
            for cut in cuts(stream, 131) {
                let dir = directory();
                if name == "b" {
                    into(dir.path(), &full, false).unwrap();
                }
                into(dir.path(), &stream[..cut], false).unwrap_err();
                assert!(!dir.path().join(name).exists(), "cut at {cut}");
                into(dir.path(), stream, true).unwrap();
                let found = tree(dir.path(), name);
                expected
                    .compare(&found, |_, _, _| SAME)
                    .unwrap_or_else(|error| panic!("version {version}, cut at {cut}: {error}"));
                assert!(!dir.path().join(format!("{name}.part")).exists());
                // Once more it is complete.
                let again = into(dir.path(), stream, true).unwrap();
                assert_eq!((again.content, again.subvolumes.len()), (0, 1));
            }
        }
    }
}

#[test]
fn a_killed_receive_repeats_the_commands_after_its_checkpoint() {
    let Streams { full, changes } = streams(1);
    let whole = directory();
    into(whole.path(), &full, false).unwrap();
    into(whole.path(), &changes, false).unwrap();
    for (name, stream) in [("a", &full), ("b", &changes)] {
        let expected = tree(whole.path(), name);
        let ends = ends(stream);
        let mut before = None;
        // Not the last command, which completes the directory. Once more the kill came before the
        // names were recorded.
        for (end, early) in ends[..ends.len() - 1]
            .iter()
            .flat_map(|end| [(end, true), (end, false)])
        {
            let dir = directory();
            if name == "b" {
                into(dir.path(), &full, false).unwrap();
            }
            killed_after(dir.path(), &stream[..*end], u64::MAX, false);
            assert!(dir.path().join(format!("{name}.part")).exists());
            let mark = names_mark(dir.path());
            match before {
                Some(before) if early => mark.set_modified(before).unwrap(),
                _ => before = mark.metadata().unwrap().modified().ok(),
            }
            into(dir.path(), stream, true).unwrap();
            let found = tree(dir.path(), name);
            expected
                .compare(&found, |_, _, _| SAME)
                .unwrap_or_else(|error| panic!("{name}, {end}: {error}"));
            let left = std::fs::read_dir(dir.path().join(".sapwood-received")).unwrap();
            assert_eq!(left.count(), if name == "b" { 2 } else { 1 });
        }
    }
}

/// The file whose time is the position of the last change of names.
fn names_mark(dir: &Path) -> std::fs::File {
    let all = std::fs::read_dir(dir.join(".sapwood-received")).unwrap();
    let mut paths = all.map(|entry| entry.unwrap().path());
    let mark = paths.find(|path| path.extension().is_some_and(|suffix| suffix == "names"));
    std::fs::File::options()
        .write(true)
        .open(mark.unwrap())
        .unwrap()
}

#[test]
fn another_stream_is_not_resumed() {
    let (first, second) = (streams(1).full, streams(2).full);
    let dir = directory();
    into(dir.path(), &first[..first.len() / 2], false).unwrap_err();
    // A stream of another snapshot of that name.
    let error = into(dir.path(), &second, true).unwrap_err();
    let other = matches!(error.downcast_ref(), Some(ReceiveError::OtherPart(_)));
    assert!(other, "{error}");
    // The same snapshot, but another content.
    let mut changed = first.clone();
    let text = changed.windows(4).position(|bytes| bytes == b"text");
    changed[text.unwrap()] = b'T';
    let error = into(dir.path(), &changed, true).unwrap_err();
    assert!(error.to_string().contains("checksum"), "{error}");
    let part = dir.path().join("a.part");
    assert!(part.exists());
    let error = into(dir.path(), &first, false).unwrap_err();
    let part = matches!(error.downcast_ref(), Some(ReceiveError::Part(_)));
    assert!(part, "{error}");
    // None of them has spoilt the part.
    into(dir.path(), &first, true).unwrap();
    assert!(dir.path().join("a").exists());
    assert_eq!(part_of(b"a"), b"a.part");
}

/// The end of the command before the first UNLINK of a stream, and its path.
fn first_unlink(stream: &[u8]) -> (usize, String) {
    for start in ends(stream) {
        let (head, rest) = stream[start..].split_first_chunk().unwrap();
        let header = CommandHeader::parse(head).unwrap();
        if header.command == command::UNLINK {
            let found = parse(1, &header, &rest[..header.len]).unwrap();
            let path = found.path(attribute::PATH).unwrap().to_vec();
            return (start, String::from_utf8(path).unwrap());
        }
    }
    panic!("nothing is removed")
}

#[test]
fn a_command_that_fails_after_an_orderly_end_fails_in_each_resume() {
    let Streams { full, changes } = streams(1);
    let (start, path) = first_unlink(&changes);
    let dir = directory();
    into(dir.path(), &full, false).unwrap();
    into(dir.path(), &changes[..start], false).unwrap_err();
    std::fs::remove_file(dir.path().join("b.part").join(&path)).unwrap();
    for _ in 0..3 {
        let error = into(dir.path(), &changes, true).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::NotFound, "{error}");
    }
    let device: Arc<dyn Device> = Arc::new(empty_image());
    let fs = open(&device);
    into_image(&fs, &full, false).unwrap();
    into_image(&fs, &changes[..start], false).unwrap_err();
    fs.remove_file(format!("/b/{path}")).unwrap();
    for _ in 0..3 {
        let error = into_image(&fs, &changes, true).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::NotFound, "{error}");
    }
}

#[test]
fn an_orderly_end_keeps_the_doubt_of_a_kill_before_it() {
    let Streams { full, changes } = streams(1);
    let whole = directory();
    into(whole.path(), &full, false).unwrap();
    into(whole.path(), &changes, false).unwrap();
    let (start, path) = first_unlink(&changes);
    let dir = directory();
    into(dir.path(), &full, false).unwrap();
    killed_after(dir.path(), &changes[..start], u64::MAX, false);
    // The kill came after the removal, and before its record.
    std::fs::remove_file(dir.path().join("b.part").join(&path)).unwrap();
    for _ in 0..2 {
        into(dir.path(), &changes[..start], true).unwrap_err();
    }
    into(dir.path(), &changes, true).unwrap();
    let found = tree(dir.path(), "b");
    let same = tree(whole.path(), "b").compare(&found, |_, _, _| SAME);
    same.unwrap_or_else(|error| panic!("{error}"));
}

pub(super) fn open(device: &Arc<dyn Device>) -> FileSystem {
    FileSystem::open_on(Arc::clone(device), "memory", &Options::new()).unwrap()
}

pub(super) fn into_image(fs: &FileSystem, stream: &[u8], resume: bool) -> crate::Result<()> {
    let options = ReceiveOptions {
        resume,
        ..ReceiveOptions::default()
    };
    fs.receive("/", stream, &options, &mut |_| {}).map(drop)
}

pub(super) fn in_image(fs: &FileSystem, name: &str) -> Tree {
    let dir = fs.metadata(name).unwrap().attr().ino;
    Tree::of_directory(&**fs.engine(), dir, Detail::Bytes).unwrap()
}

pub(super) fn assert_clean(device: &Arc<dyn Device>, what: &str) {
    let options = CheckOptions {
        check_data_csum: true,
        max_findings: 10,
    };
    let report = check(&[&**device], &options, &mut |_| ()).unwrap();
    assert!(report.findings.is_empty(), "{what}: {:?}", report.findings);
}

/// An image with a file that no receive may touch.
fn empty_image() -> MemoryDevice {
    empty(crate::ImageBuilder::btrfs())
}

/// An image with a file that no receive may touch.
pub(super) fn empty(builder: crate::ImageBuilder) -> MemoryDevice {
    let dir = directory();
    let path = dir.path().join("image");
    builder.size(super::SIZE).write_to(&path).unwrap();
    let fs = crate::open(&path).unwrap();
    fs.write("/outside", b"kept").unwrap();
    fs.close().unwrap();
    MemoryDevice::from_bytes(&std::fs::read(path).unwrap())
}

/// Whether a subvolume is complete; `None`: it is not there.
pub(super) fn is_complete(fs: &FileSystem, name: &str) -> Option<bool> {
    let all = fs.subvolumes().unwrap();
    let one = all.iter().find(|one| one.path == name.as_bytes())?;
    assert_eq!(one.read_only, one.received_uuid != [0; 16]);
    Some(one.read_only)
}

#[test]
fn a_cut_stream_is_resumed_in_an_image() {
    let Streams { full, changes } = streams(1);
    let empty = empty_image();
    let with_a = Arc::new(empty.snapshot());
    let device: Arc<dyn Device> = with_a.clone();
    let fs = open(&device);
    into_image(&fs, &full, false).unwrap();
    let a = in_image(&fs, "/a");
    fs.close().unwrap();
    let whole: Arc<dyn Device> = Arc::new(with_a.snapshot());
    let fs = open(&whole);
    into_image(&fs, &changes, false).unwrap();
    let b = in_image(&fs, "/b");
    fs.close().unwrap();
    for (name, stream, base, expected) in [("a", &full, &empty, a), ("b", &changes, &with_a, b)] {
        for cut in cuts(stream, 401) {
            let device: Arc<dyn Device> = Arc::new(base.snapshot());
            let fs = open(&device);
            into_image(&fs, &stream[..cut], false).unwrap_err();
            assert_ne!(is_complete(&fs, name), Some(true));
            fs.close().unwrap();
            let fs = open(&device);
            into_image(&fs, stream, true).unwrap();
            assert_eq!(is_complete(&fs, name), Some(true));
            let found = in_image(&fs, &format!("/{name}"));
            expected
                .compare(&found, |_, _, _| SAME)
                .unwrap_or_else(|error| panic!("{name}, cut at {cut}: {error}"));
            into_image(&fs, stream, true).unwrap();
            fs.close().unwrap();
            assert_clean(&device, &format!("{name}, cut at {cut}"));
        }
    }
}
