//! Copies, exports and reads of a file with an unreadable part: a block whose checksum does not
//! match.

use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use sapwood::internal::{CopyCause, ExportError};
use sapwood::{
    CopyOptions, CopyReport, Damage, ExportOptions, FileSystem, ImageBuilder, Kind, Options, Place,
    Progress, copy,
};
use tempfile::TempDir;

const BLOCK: usize = 4096;
const SIZE: usize = 20 * BLOCK;
/// The bytes that cannot be read.
const BAD: Range<u64> = 10 * BLOCK as u64..11 * BLOCK as u64;

fn content() -> Vec<u8> {
    let blocks = (0..SIZE / BLOCK).map(|block| vec![b'A' + block as u8; BLOCK]);
    blocks.collect::<Vec<_>>().concat()
}

/// The content with zeros in place of the damage.
fn with_zeros() -> Vec<u8> {
    let mut content = content();
    content[BAD.start as usize..BAD.end as usize].fill(0);
    content
}

fn readable() -> Vec<u8> {
    content()[..BAD.start as usize].to_vec()
}

/// An image with a damaged file, which has two names, and others around it.
fn damaged(dir: &Path) -> FileSystem {
    let image = dir.join("damaged");
    let builder = ImageBuilder::new(Kind::Btrfs).size(128 << 20);
    builder.write_to(&image).unwrap();
    let fs = sapwood::open(&image).unwrap();
    fs.create_dir("d").unwrap();
    for (name, content) in [
        ("d/before", vec![1; 9000]),
        ("d/file", content()),
        ("d/z", vec![2; 9000]),
    ] {
        fs.write(name, content).unwrap();
    }
    fs.hard_link("d/file", "d/link").unwrap();
    fs.set_permissions("d/file", 0o640).unwrap();
    fs.close().unwrap();
    let bytes = std::fs::read(&image).unwrap();
    let wanted = vec![b'A' + 10; BLOCK];
    let blocks = bytes.chunks(BLOCK).enumerate();
    let found: Vec<_> = blocks.filter(|(_, block)| **block == wanted).collect();
    assert_eq!(found.len(), 1, "the block is not stored as it is");
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    let at = (found[0].0 * BLOCK) as u64 + 100;
    file.write_all_at(b"damage", at).unwrap();
    FileSystem::open_with_options(&image, &Options::new().read_only(true)).unwrap()
}

fn empty(dir: &Path, name: &str, kind: Kind) -> FileSystem {
    let builder = ImageBuilder::new(kind).size(128 << 20);
    builder.write_to(dir.join(name)).unwrap();
    sapwood::open(dir.join(name)).unwrap()
}

fn options(archive: bool, keep_going: bool) -> CopyOptions {
    let mut options = if archive {
        CopyOptions::archive()
    } else {
        CopyOptions::default()
    };
    options.keep_going = keep_going;
    options
}

/// The only failure names the file and the bytes.
fn assert_named(report: &CopyReport, reported: &[String]) {
    assert_eq!((report.left_out, reported.len()), (1, 1), "{reported:?}");
    let named = ["/file: bytes 40960-45055 cannot be read: ", "checksum"];
    assert!(
        named.iter().all(|part| reported[0].contains(part)),
        "{reported:?}"
    );
    let first = report.first_error().unwrap();
    assert!(matches!(first.cause(), CopyCause::Damaged(found) if found.ranges() == [BAD]));
}

fn copied(from: Place<'_>, to: Place<'_>, options: &CopyOptions) {
    let mut reported = Vec::new();
    let mut progress = |step: Progress<'_>| {
        if let Progress::Failed(error) = step {
            reported.push(error.to_string());
        }
    };
    let report = copy(&[from], &to, options, &mut progress).unwrap();
    assert_named(&report, &reported);
}

/// The expected content of a copy.
fn expected(keep_going: bool) -> Vec<u8> {
    if keep_going { with_zeros() } else { readable() }
}

#[test]
fn a_copy_of_a_damaged_file_has_what_can_be_read() {
    for (archive, keep_going) in [(false, false), (false, true), (true, false), (true, true)] {
        let dir = tempfile::tempdir().unwrap();
        let (fs, options) = (damaged(dir.path()), options(archive, keep_going));
        let to = dir.path().join("copy");
        copied(Place::image(&fs, "d/file"), Place::host(&to), &options);
        assert_eq!(std::fs::read(&to).unwrap(), expected(keep_going));
        if keep_going {
            let allocated = std::fs::metadata(&to).unwrap().blocks() * 512;
            assert!(
                allocated < SIZE as u64,
                "the damage is no hole: {allocated}"
            );
        }
        // A file that exists is written anew.
        std::fs::write(&to, vec![9; 2 * SIZE]).unwrap();
        copied(Place::image(&fs, "d/file"), Place::host(&to), &options);
        assert_eq!(std::fs::read(&to).unwrap(), expected(keep_going));
        for kind in Kind::ALL {
            let other = empty(dir.path(), &format!("{kind}"), kind);
            copied(
                Place::image(&fs, "d/file"),
                Place::image(&other, "f"),
                &options,
            );
            assert_eq!(other.read("f").unwrap(), expected(keep_going));
            other.close().unwrap();
        }
        fs.close().unwrap();
    }
}

#[test]
fn a_copy_of_a_directory_goes_on_after_a_damaged_file() {
    for keep_going in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (fs, options) = (damaged(dir.path()), options(true, keep_going));
        let to = dir.path().join("copy");
        copied(Place::image(&fs, "d"), Place::host(&to), &options);
        assert_eq!(
            std::fs::read(to.join("file")).unwrap(),
            expected(keep_going)
        );
        assert_eq!(std::fs::read(to.join("z")).unwrap(), vec![2; 9000]);
        let (file, link) = (to.join("file"), to.join("link"));
        let (file, link) = (file.metadata().unwrap(), link.metadata().unwrap());
        assert_eq!(file.ino(), link.ino());
        assert_eq!(file.permissions().mode() & 0o7777, 0o640);
        let modified = fs.metadata("d/file").unwrap().modified();
        assert_eq!(file.modified().unwrap(), modified);
        fs.close().unwrap();
    }
}

#[test]
fn a_damaged_file_is_read_around_its_damage() {
    let dir = tempfile::tempdir().unwrap();
    let fs = damaged(dir.path());
    for keep_going in [false, true] {
        let mut read = vec![0; SIZE];
        let mut end = 0;
        let mut sink = |at: u64, data: &[u8]| {
            end = at as usize + data.len();
            read[at as usize..end].copy_from_slice(data);
            Ok(())
        };
        let file = fs.open("d/file").unwrap();
        let damage = file.read_around_damage(keep_going, &mut sink).unwrap();
        assert_eq!(damage.as_ref().map(Damage::ranges), Some(&[BAD][..]));
        assert_eq!(damage.map(|damage| damage.bytes()), Some(BLOCK as u64));
        read.truncate(end);
        assert_eq!(read, expected(keep_going));
    }
    fs.close().unwrap();
}

fn exported(fs: &FileSystem, dir: &TempDir, options: &ExportOptions) -> FileSystem {
    let mut failures = Vec::new();
    let mut progress = |step: Progress<'_>| {
        if let Progress::Failed(error) = step {
            let error = error.downcast_ref::<ExportError>();
            assert!(matches!(error, Some(ExportError::Damaged { .. })));
            failures.push(error.unwrap().to_string());
        }
    };
    let mut archive = Vec::new();
    let exported = fs.export_tar("/d", &mut archive, options, &mut progress);
    let report = exported.unwrap();
    assert_eq!((report.damaged, report.entries), (1, 5));
    assert_eq!(failures.len(), 1);
    assert!(failures[0].starts_with("file: bytes 40960-45055 cannot be read"));
    let image = dir.path().join("exported");
    let _ = std::fs::remove_file(&image);
    let builder = ImageBuilder::ext4().from_tar(archive.as_slice()).unwrap();
    builder.write_to(&image).unwrap();
    sapwood::open(&image).unwrap()
}

#[test]
fn an_export_goes_on_after_a_damaged_file() {
    let dir = tempfile::tempdir().unwrap();
    let fs = damaged(dir.path());
    for (layer, keep_going) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut options = ExportOptions::default();
        (options.layer, options.keep_going) = (layer, keep_going);
        let made = exported(&fs, &dir, &options);
        let mut content = readable();
        if keep_going {
            content = with_zeros();
        }
        // The header has the length.
        content.resize(SIZE, 0);
        assert_eq!(made.read("file").unwrap(), content);
        assert_eq!(made.read("before").unwrap(), vec![1; 9000]);
        assert_eq!(made.read("z").unwrap(), vec![2; 9000]);
        let (file, link) = (
            made.metadata("file").unwrap(),
            made.metadata("link").unwrap(),
        );
        assert_eq!(file.ino(), link.ino());
        made.close().unwrap();
    }
    fs.close().unwrap();
}
