//! Metadata of files in the pax format and cpio.

use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use sapwood::vfs::FileKind;
use sapwood::{ImageBuilder, Kind};
use tar::{Builder, EntryType};

use super::{add, each, header};

#[test]
fn attributes_of_every_writer_of_pax_are_kept() {
    let mut tar = Builder::new(Vec::new());
    let records: [(&str, &[u8]); 6] = [
        ("mtime", b"-1.25"),
        ("SCHILY.xattr.user.raw", b"a\0b"),
        ("LIBARCHIVE.xattr.user.raw", b"d3Jvbmc"),
        ("LIBARCHIVE.xattr.user.a%3db", b"aGVsbG8"),
        (
            "SCHILY.acl.access",
            b"user::rw-,user:lisa:rwx:502,group::r--,mask::rwx,other::---",
        ),
        ("RHT.security.selinux", b"system_u:object_r:etc_t:s0"),
    ];
    tar.append_pax_extensions(records).unwrap();
    add(&mut tar, "f", header(EntryType::Regular, 0o670, 1), b"x");
    let list: [(&str, &[u8]); 1] = [(
        "SCHILY.acl.default",
        b"user::rwx,group::r-x,group:7:rw-,mask::rwx,other::---",
    )];
    tar.append_pax_extensions(list).unwrap();
    add(&mut tar, "d/", header(EntryType::Directory, 0o750, 0), b"");
    add(&mut tar, "d/f", header(EntryType::Regular, 0o604, 1), b"x");
    each(&tar.into_inner().unwrap(), |fs, _| {
        let value = |path: &str, name: &str| fs.xattr(path, name).unwrap();
        assert_eq!(value("f", "user.raw").unwrap(), b"a\0b");
        assert_eq!(value("f", "user.a=b").unwrap(), b"hello");
        assert_eq!(
            value("f", "security.selinux").unwrap(),
            b"system_u:object_r:etc_t:s0\0"
        );
        let acl = value("f", "system.posix_acl_access").unwrap();
        assert_eq!(
            &acl[12..20],
            [2, 0, 7, 0, 246, 1, 0, 0],
            "the second entry: user 502"
        );
        assert_eq!(fs.metadata("f").unwrap().mode() & 0o7777, 0o670);
        let before = SystemTime::UNIX_EPOCH - Duration::new(1, 250_000_000);
        assert_eq!(fs.metadata("f").unwrap().modified(), before);
        assert!(value("d", "system.posix_acl_default").is_some());
        // An extracted file has its own mode, not the mode that the directory would give it.
        assert_eq!(fs.metadata("d/f").unwrap().mode() & 0o7777, 0o604);
        assert!(value("d/f", "system.posix_acl_access").is_none());
    });
}

#[test]
fn numbers_that_are_not_written_are_zero() {
    let mut tar = Builder::new(Vec::new());
    let mut bare = header(EntryType::Directory, 0, 0);
    let old = bare.as_old_mut();
    (old.mode, old.uid, old.gid) = ([0; 8], [0; 8], [0; 8]);
    (old.mtime, old.size) = ([0; 12], [0; 12]);
    bare.set_path("d/").unwrap();
    bare.set_cksum();
    tar.append(&bare, &b""[..]).unwrap();
    each(&tar.into_inner().unwrap(), |fs, _| {
        let dir = fs.metadata("d").unwrap();
        assert_eq!((dir.mode() & 0o7777, dir.uid(), dir.gid()), (0, 0, 0));
        assert_eq!(dir.modified(), SystemTime::UNIX_EPOCH);
    });
}

#[test]
fn a_global_header_counts_for_all_entries_that_do_not_differ() {
    let mut tar = Builder::new(Vec::new());
    let records = b"16 mtime=1234.5\n16 uname=nobody\n";
    add(
        &mut tar,
        "global",
        header(EntryType::XGlobalHeader, 0, records.len() as u64),
        records,
    );
    add(&mut tar, "a", header(EntryType::Regular, 0o600, 1), b"x");
    tar.append_pax_extensions([("mtime", &b"99"[..])]).unwrap();
    add(&mut tar, "b", header(EntryType::Regular, 0o600, 1), b"x");
    each(&tar.into_inner().unwrap(), |fs, _| {
        let of = |path: &str| fs.metadata(path).unwrap().modified();
        assert_eq!(
            of("a"),
            SystemTime::UNIX_EPOCH + Duration::new(1234, 500_000_000)
        );
        assert_eq!(of("b"), SystemTime::UNIX_EPOCH + Duration::from_secs(99));
    });
}

/// Runs `cpio`, if this machine has it.
fn cpio(format: &str, dir: &std::path::Path) -> Option<Vec<u8>> {
    let mut cpio = Command::new("cpio");
    cpio.args(["--quiet", "-o", "-H", format]).current_dir(dir);
    let names = "d\nd/f\nd/again\nlink\npipe\n";
    let mut child = cpio
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), names.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    Some(output.stdout)
}

/// An archive of cpio(1), with the content of a file of two names after its last one.
fn by_hand(magic: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut add = |name: &str, ino: u32, mode: u32, links: u32, content: &[u8]| {
        let sum: u32 = match magic {
            "070702" if mode & 0o170_000 == 0o100_000 => {
                content.iter().map(|b| u32::from(*b)).sum()
            }
            _ => 0,
        };
        let (size, length) = (content.len() as u32, name.len() as u32 + 1);
        let numbers = [
            ino,
            mode,
            7,
            8,
            links,
            1_000_000_000,
            size,
            0,
            1,
            0,
            0,
            length,
            sum,
        ];
        bytes.extend_from_slice(magic.as_bytes());
        for number in numbers {
            bytes.extend_from_slice(format!("{number:08X}").as_bytes());
        }
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    };
    add("d", 1, 0o040_750, 2, b"");
    add("d/f", 2, 0o104_711, 2, b"");
    add("d/again", 2, 0o104_711, 2, b"hello\n");
    add("link", 3, 0o120_777, 1, b"d/f");
    add("pipe", 4, 0o010_644, 1, b"");
    add("TRAILER!!!", 0, 0, 1, b"");
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

#[test]
fn cpio_archives_are_read_with_and_without_checksums() {
    let source = tempfile::tempdir().unwrap();
    std::fs::create_dir(source.path().join("d")).unwrap();
    std::fs::write(source.path().join("d/f"), "hello\n").unwrap();
    std::fs::hard_link(source.path().join("d/f"), source.path().join("d/again")).unwrap();
    std::os::unix::fs::symlink("d/f", source.path().join("link")).unwrap();
    let pipe = source.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        0o644.into(),
        0,
    )
    .unwrap();
    let mut archives = vec![by_hand("070701"), by_hand("070702")];
    // A second archive may follow the first.
    archives.push([by_hand("070701"), by_hand("070702")].concat());
    archives.extend(
        ["newc", "crc"]
            .iter()
            .filter_map(|format| cpio(format, source.path())),
    );
    let compressed = zstd::encode_all(archives[0].as_slice(), 3).unwrap();
    archives.push(compressed);
    for archive in archives {
        for kind in Kind::ALL {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("disk.img");
            let builder = ImageBuilder::new(kind)
                .from_cpio(archive.as_slice())
                .unwrap();
            builder.write_to(&path).unwrap();
            let fs = sapwood::open(&path).unwrap();
            assert_eq!(fs.read("d/f").unwrap(), b"hello\n");
            let of = |path: &str| fs.symlink_metadata(path).unwrap();
            assert_eq!(
                (of("d/f").ino(), of("d/f").nlink()),
                (of("d/again").ino(), 2)
            );
            assert_eq!(fs.read_link("link").unwrap().to_str(), Some("d/f"));
            assert_eq!(of("pipe").file_type().kind(), FileKind::Fifo);
            if of("d").uid() == 7 {
                assert_eq!((of("d/f").mode() & 0o7777, of("d/f").gid()), (0o4711, 8));
                let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
                assert_eq!((of("d/f").modified(), of("d").modified()), (time, time));
            }
            fs.close().unwrap();
        }
    }
    let mut wrong = by_hand("070702");
    let at = wrong
        .windows(6)
        .position(|window| window == b"hello\n")
        .unwrap();
    wrong[at] = b'j';
    let builder = ImageBuilder::ext4().from_cpio(wrong.as_slice()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let error = builder.write_to(dir.path().join("disk.img")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "d/again: the checksum does not match the content"
    );
}
