//! Images that are built from tar archives, on both formats.

mod attacks;
mod below;
mod bounds;
mod formats;
mod layers;
mod mix;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::yield_now;
use std::time::{Duration, Instant, SystemTime};

use sapwood::internal::{ArchiveError, BuildError};
use sapwood::vfs::FileKind;
use sapwood::{ErrorKind, FileSystem, ImageBuilder, Kind};
use tar::{Builder, EntryType, Header};

/// Error number of an image that is in use.
const EBUSY: i32 = 16;
/// How long an image may be in use by a process that is about to begin.
const PATIENCE: Duration = Duration::from_secs(30);

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(7);
    header.set_gid(8);
    header.set_mtime(1_000_000_000);
    header.set_size(size);
    header
}

fn add(to: &mut Builder<Vec<u8>>, name: &str, mut header: Header, content: &[u8]) {
    to.append_data(&mut header, name, content).unwrap();
}

fn link(to: &mut Builder<Vec<u8>>, name: &str, kind: EntryType, target: &str) {
    let mut header = header(kind, 0o777, 0);
    to.append_link(&mut header, name, target).unwrap();
}

/// Builds an image of each format and hands it, opened, to `test`.
fn each(archive: &[u8], test: impl Fn(&FileSystem, &Path)) {
    for kind in Kind::ALL {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        let builder = ImageBuilder::new(kind).from_tar(archive).unwrap();
        // Without it, nothing could be added.
        let builder = builder.free(sapwood::FreeRoom::Bytes(16 << 20));
        builder.write_to(&path).unwrap();
        let fs = opened(&path);
        test(&fs, &path);
        fs.close().unwrap();
        assert_clean(kind, &path);
    }
}

/// Opens an image. A process that another test starts holds its lock from fork to exec.
fn opened(image: &Path) -> FileSystem {
    let end = Instant::now() + PATIENCE;
    loop {
        match sapwood::open(image) {
            Err(error) if error.errno() == EBUSY && Instant::now() < end => yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

/// Opens the image like [`opened`] for a check, which must find nothing.
fn assert_clean(kind: Kind, image: &Path) {
    let options = sapwood::CheckOptions::default();
    let end = Instant::now() + PATIENCE;
    let report = loop {
        match sapwood::check(image, &options, &mut |_| {}) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy && Instant::now() < end => {
                yield_now();
            }
            report => break report.unwrap(),
        }
    };
    assert!(report.findings.is_empty(), "{kind:?}: {report:?}");
}

fn refused(archive: &[u8]) -> BuildError {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    let builder = ImageBuilder::ext4().from_tar(archive);
    let error = builder
        .and_then(|builder| builder.write_to(&path))
        .unwrap_err();
    assert!(!path.exists());
    error.downcast().unwrap()
}

#[test]
fn everything_that_an_archive_says_is_in_the_image() {
    let mut tar = Builder::new(Vec::new());
    let long = format!("deep/{}/{}", "d".repeat(120), "f".repeat(120));
    add(
        &mut tar,
        "./etc/",
        header(EntryType::Directory, 0o2750, 0),
        b"",
    );
    let records: [(&str, &[u8]); 2] = [
        ("mtime", b"1000000001.5"),
        ("SCHILY.xattr.user.colour", b"red"),
    ];
    tar.append_pax_extensions(records).unwrap();
    add(
        &mut tar,
        "etc/motd",
        header(EntryType::Regular, 0o4711, 6),
        b"hello\n",
    );
    add(&mut tar, &long, header(EntryType::Regular, 0o600, 1), b"x");
    link(&mut tar, "etc/again", EntryType::Link, "etc/motd");
    link(&mut tar, "etc/link", EntryType::Symlink, "../nowhere");
    let mut null = header(EntryType::Char, 0o666, 0);
    null.set_device_major(1).unwrap();
    null.set_device_minor(3).unwrap();
    add(&mut tar, "null", null, b"");
    add(&mut tar, "pipe", header(EntryType::Fifo, 0o644, 0), b"");
    each(&tar.into_inner().unwrap(), |fs, _| {
        let of = |path: &str| fs.symlink_metadata(path).unwrap();
        let motd = of("etc/motd");
        assert_eq!(fs.read("etc/motd").unwrap(), b"hello\n");
        assert_eq!(
            (motd.mode() & 0o7777, motd.uid(), motd.gid()),
            (0o4711, 7, 8)
        );
        assert_eq!((motd.ino(), motd.nlink()), (of("etc/again").ino(), 2));
        let half = Duration::new(1_000_000_001, 500_000_000);
        assert_eq!(motd.modified(), SystemTime::UNIX_EPOCH + half);
        assert_eq!(
            fs.xattr("etc/motd", "user.colour").unwrap().unwrap(),
            b"red"
        );
        let etc = of("etc");
        assert_eq!(etc.mode() & 0o7777, 0o2750);
        let whole = Duration::from_secs(1_000_000_000);
        assert_eq!(etc.modified(), SystemTime::UNIX_EPOCH + whole);
        assert_eq!(
            fs.read_link("etc/link").unwrap(),
            PathBuf::from("../nowhere")
        );
        assert_eq!(of("etc/link").uid(), 7);
        assert_eq!(fs.read(&long).unwrap(), b"x");
        assert_eq!(of("null").file_type().kind(), FileKind::CharDevice);
        assert_eq!(of("null").rdev(), rustix::fs::makedev(1, 3));
        assert_eq!(of("pipe").file_type().kind(), FileKind::Fifo);
    });
}

#[test]
fn a_later_entry_replaces_an_earlier_one() {
    let mut tar = Builder::new(Vec::new());
    link(&mut tar, "a", EntryType::Symlink, "b");
    add(&mut tar, "b", header(EntryType::Regular, 0o600, 3), b"old");
    add(&mut tar, "a", header(EntryType::Regular, 0o600, 3), b"new");
    each(&tar.into_inner().unwrap(), |fs, _| {
        assert_eq!(fs.read("a").unwrap(), b"new");
        assert_eq!(fs.read("b").unwrap(), b"old");
    });
}

#[test]
fn many_small_files_have_inodes_and_room() {
    let mut tar = Builder::new(Vec::new());
    for number in 0..9000 {
        let name = format!("d{}/f{number}", number % 7);
        add(&mut tar, &name, header(EntryType::Regular, 0o600, 1), b"1");
    }
    each(&tar.into_inner().unwrap(), |fs, _| {
        let files = fs
            .walk("/")
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().metadata().is_file());
        assert_eq!(files.count(), 9000);
    });
}

#[test]
fn zeros_become_holes() {
    let mut tar = Builder::new(Vec::new());
    let mut content = vec![0; 4 << 20];
    content.extend(b"end");
    let size = content.len() as u64;
    add(
        &mut tar,
        "f",
        header(EntryType::Regular, 0o600, size),
        &content,
    );
    each(&tar.into_inner().unwrap(), |fs, _| {
        assert_eq!(fs.read("f").unwrap(), content);
        assert!(fs.metadata("f").unwrap().allocated() < 128 << 10);
    });
}

#[test]
fn archives_that_lie_are_refused_and_leave_no_image() {
    let mut evil = header(EntryType::Regular, 0o600, 1);
    evil.as_old_mut().name[..7].copy_from_slice(b"../evil");
    evil.set_cksum();
    let mut tar = Builder::new(Vec::new());
    tar.append(&evil, &b"x"[..]).unwrap();
    let error = refused(&tar.into_inner().unwrap());
    assert!(
        matches!(error, BuildError::Archive(ArchiveError::Outside(_))),
        "{error}"
    );

    let mut tar = Builder::new(Vec::new());
    link(&mut tar, "a", EntryType::Link, "missing");
    assert!(matches!(
        refused(&tar.into_inner().unwrap()),
        BuildError::Archive(_)
    ));

    let mut tar = Builder::new(Vec::new());
    add(
        &mut tar,
        "f",
        header(EntryType::Regular, 0o600, 3000),
        &[1; 3000],
    );
    let whole = tar.into_inner().unwrap();
    let error = refused(&whole[..1024]);
    assert_eq!(error.to_string(), "f: the archive ends within this entry");

    let error = refused(&[b'n'; 1024]);
    assert_eq!(error.to_string(), "no tar header at byte 0");
}

#[test]
fn an_archive_of_tar_is_the_directory() {
    let source = tempfile::tempdir().unwrap();
    std::fs::create_dir(source.path().join("sub")).unwrap();
    std::fs::write(source.path().join("sub/file"), vec![5; 70_000]).unwrap();
    let sparse = std::fs::File::create(source.path().join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    for piece in 0..40 {
        sparse.write_all_at(b"piece", piece << 20).unwrap();
    }
    let content = std::fs::read(source.path().join("sparse")).unwrap();
    for format in ["gnu", "pax 0.0", "pax 0.1", "pax 1.0"] {
        let mut tar = Command::new("tar");
        let (format, version) = format.split_once(' ').unwrap_or((format, ""));
        tar.args(["--sparse", "-cf", "-", "--format", format]);
        if !version.is_empty() {
            tar.args(["--sparse-version", version]);
        }
        let archive = tar.arg("-C").arg(source.path()).arg(".").output().unwrap();
        assert!(archive.status.success());
        assert!(archive.stdout.len() < 1 << 20, "{format} is not sparse");
        each(&archive.stdout, |fs, _| {
            assert_eq!(fs.read("sub/file").unwrap(), vec![5; 70_000]);
            let found = fs.metadata("sparse").unwrap();
            assert_eq!(found.len(), 64 << 20);
            assert!(found.allocated() <= 40 << 16, "{}", found.allocated());
            assert!(fs.read("sparse").unwrap() == content);
        });
    }
}

#[test]
fn an_archive_is_added_to_an_image_that_has_files() {
    let mut tar = Builder::new(Vec::new());
    add(
        &mut tar,
        "etc/motd",
        header(EntryType::Regular, 0o644, 4),
        b"new\n",
    );
    add(
        &mut tar,
        "etc/rc",
        header(EntryType::Regular, 0o644, 3),
        b"rc\n",
    );
    let second = tar.into_inner().unwrap();
    let mut tar = Builder::new(Vec::new());
    add(
        &mut tar,
        "etc/motd",
        header(EntryType::Regular, 0o644, 4),
        b"old\n",
    );
    add(
        &mut tar,
        "etc/kept",
        header(EntryType::Regular, 0o644, 5),
        b"kept\n",
    );
    each(&tar.into_inner().unwrap(), |fs, _| {
        fs.extract_tar(second.as_slice()).unwrap();
        assert_eq!(fs.read("etc/motd").unwrap(), b"new\n");
        assert_eq!(fs.read("etc/rc").unwrap(), b"rc\n");
        assert_eq!(fs.read("etc/kept").unwrap(), b"kept\n");
    });
}

/// An archive that a name, or a hard link, leads out of its directory through a symbolic link.
fn through_link(kind: EntryType) -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    link(&mut tar, "out", EntryType::Symlink, "../secret");
    match kind {
        EntryType::Link => link(&mut tar, "name", kind, "out/key"),
        _ => add(&mut tar, "out/new", header(kind, 0o644, 2), b"x\n"),
    }
    tar.into_inner().unwrap()
}

#[test]
fn no_entry_leaves_the_directory_that_an_archive_is_put_into() {
    let mut tar = Builder::new(Vec::new());
    add(
        &mut tar,
        "secret/key",
        header(EntryType::Regular, 0o600, 4),
        b"key\n",
    );
    each(&tar.into_inner().unwrap(), |fs, _| {
        fs.create_dir("dir").unwrap();
        for kind in [EntryType::Regular, EntryType::Link, EntryType::Directory] {
            let archive = through_link(kind);
            let into = fs.extract_tar_into("dir", archive.as_slice(), &mut |_| {});
            assert!(
                matches!(
                    into.as_ref().map_err(sapwood::Error::downcast_ref),
                    Err(Some(ArchiveError::ThroughLink(_)))
                ),
                "{into:?}"
            );
        }
        assert_eq!(fs.read_dir("secret").unwrap().count(), 1);
        assert!(fs.extract_tar_into("none", &[][..], &mut |_| {}).is_err());
    });
}

#[test]
fn a_compressed_archive_is_the_same_archive() {
    let mut tar = Builder::new(Vec::new());
    let content = vec![7; 100_000];
    let entry = header(EntryType::Regular, 0o644, 100_000);
    add(&mut tar, "file", entry, &content);
    let plain = tar.into_inner().unwrap();
    let level = flate2::Compression::default();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), level);
    std::io::Write::write_all(&mut gzip, &plain).unwrap();
    let zstd = zstd::encode_all(plain.as_slice(), 3).unwrap();
    let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    std::io::Write::write_all(&mut bzip2, &plain).unwrap();
    let options = lzma_rust2::XzOptions::with_preset(1);
    let mut xz = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
    std::io::Write::write_all(&mut xz, &plain).unwrap();
    let compressed = [
        gzip.finish().unwrap(),
        zstd,
        bzip2.finish().unwrap(),
        xz.finish().unwrap(),
    ];
    for archive in compressed {
        each(&archive, |fs, _| {
            assert_eq!(fs.read("file").unwrap(), content);
        });
        let error = refused(&archive[..archive.len() / 2]);
        assert!(matches!(error, BuildError::Archive(_)), "{error}");
    }
    for (magic, name) in [(&b"LZIP\x01\0"[..], "lzip"), (b"\x04\x22\x4d\x18aa", "lz4")] {
        let BuildError::Archive(ArchiveError::Compression(found)) = refused(magic) else {
            panic!("{name} is read");
        };
        assert_eq!(found, name);
    }
}
