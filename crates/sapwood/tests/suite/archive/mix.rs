//! Several sources of one image, and metadata that is not theirs.

use std::io::{Cursor, Read};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use sapwood::{Changes, FileSystem, ImageBuilder, Kind, Sources};
use tar::{Builder, EntryType};

use super::{add, assert_clean, header, link, opened};

pub(super) fn build(builder: impl Fn(Kind) -> ImageBuilder, test: impl Fn(&FileSystem)) {
    for kind in Kind::ALL {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        builder(kind).write_to(&path).unwrap();
        let fs = opened(&path);
        test(&fs);
        fs.close().unwrap();
        assert_clean(kind, &path);
    }
}

pub(super) fn tar(files: &[(&str, &str)]) -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    for (name, content) in files {
        let entry = header(EntryType::Regular, 0o4640, content.len() as u64);
        add(&mut tar, name, entry, content.as_bytes());
    }
    link(&mut tar, "link", EntryType::Symlink, "target");
    tar.into_inner().unwrap()
}

#[test]
fn sources_are_applied_in_their_order() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("etc")).unwrap();
    for (name, content) in [("etc/a", "dir"), ("etc/b", "dir"), ("link", "dir")] {
        std::fs::write(root.path().join(name), content).unwrap();
    }
    let first = tar(&[("etc/a", "tar"), ("etc/c", "tar")]);
    let last = tar(&[("etc/b", "last")]);
    let of = |fs: &FileSystem, path: &str| String::from_utf8(fs.read(path).unwrap()).unwrap();
    let before = |kind| {
        let builder = ImageBuilder::new(kind).from_tar(first.as_slice()).unwrap();
        let builder = builder.from_dir(root.path()).unwrap();
        builder.from_tar(last.as_slice()).unwrap()
    };
    build(before, |fs| {
        assert_eq!(of(fs, "etc/a"), "dir");
        assert_eq!(of(fs, "etc/b"), "last");
        assert_eq!(of(fs, "etc/c"), "tar");
        assert!(fs.symlink_metadata("link").unwrap().is_symlink());
    });
    let after = |kind| {
        let mut sources = Sources::default();
        sources.dir(root.path());
        sources.tar_stream(std::io::Cursor::new(first.clone()));
        ImageBuilder::new(kind).size(256 << 20).sources(sources)
    };
    build(after, |fs| {
        assert_eq!(of(fs, "etc/a"), "tar");
        assert_eq!(of(fs, "etc/b"), "dir");
        // The archive has no entry for the directory, which keeps its time.
        let time = std::fs::metadata(root.path().join("etc"))
            .unwrap()
            .modified()
            .unwrap();
        assert_eq!(fs.metadata("etc").unwrap().modified(), time);
    });
}

#[test]
fn owners_times_labels_and_exclusions_come_from_outside() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("cache/deep")).unwrap();
    std::fs::write(root.path().join("kept"), "1").unwrap();
    std::fs::write(root.path().join("cache/deep/x"), "1").unwrap();
    std::fs::write(root.path().join("junk.o"), "1").unwrap();
    let set_id = std::fs::Permissions::from_mode(0o4755);
    std::fs::set_permissions(root.path().join("kept"), set_id).unwrap();
    let archive = tar(&[("usr/a", "1"), ("usr/a.o", "1"), ("cache/y", "1")]);
    let builder = |changes: &Changes, kind| {
        let builder = ImageBuilder::new(kind).from_dir(root.path()).unwrap();
        let builder = builder.from_tar(archive.as_slice()).unwrap();
        builder.owner(0, 0).changes(changes.clone())
    };
    let mut changes = Changes::default();
    changes.map_uids("7:70:1".parse().unwrap());
    changes.map_gids("8:80:1".parse().unwrap());
    changes.exclude("*.o").unwrap();
    changes.exclude("/cache/*").unwrap();
    let latest = SystemTime::UNIX_EPOCH + Duration::from_secs(999);
    changes.clamp_times(latest);
    changes
        .file_contexts("/.* u:o:other_t:s0\n/usr(/.*)? u:o:usr_t:s0\n/kept -- u:o:kept_t:s0\n")
        .unwrap();
    build(
        |kind| builder(&changes, kind),
        |fs| {
            for gone in ["junk.o", "usr/a.o", "cache/deep", "cache/y"] {
                assert!(!fs.exists(gone).unwrap(), "{gone}");
            }
            let of = |path: &str| fs.symlink_metadata(path).unwrap();
            assert_eq!((of("usr/a").uid(), of("usr/a").gid()), (70, 80));
            assert_eq!(of("usr/a").mode() & 0o7777, 0o4640);
            for path in ["kept", "usr/a", "cache", "usr", "link"] {
                assert_eq!(of(path).modified(), latest, "{path}");
            }
            let label = |path: &str| fs.xattr(path, "security.selinux").unwrap().unwrap();
            assert_eq!(label("usr"), b"u:o:usr_t:s0\0");
            assert_eq!(label("usr/a"), b"u:o:usr_t:s0\0");
            assert_eq!(label("kept"), b"u:o:kept_t:s0\0");
            assert_eq!(label("cache"), b"u:o:other_t:s0\0");
            assert_eq!(label("link"), b"u:o:other_t:s0\0");
        },
    );
    let mut changes = Changes::default();
    changes.all_root();
    build(
        |kind| builder(&changes, kind),
        |fs| {
            for entry in fs.walk("/").unwrap() {
                let entry = entry.unwrap();
                let found = entry.metadata();
                assert_eq!((found.uid(), found.gid()), (0, 0));
            }
            assert_eq!(fs.metadata("kept").unwrap().mode() & 0o7777, 0o4755);
        },
    );
}

#[test]
fn a_list_gives_metadata_and_what_has_no_content() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("bin")).unwrap();
    std::fs::write(root.path().join("bin/ping"), "ping").unwrap();
    std::fs::write(root.path().join("plain"), "1").unwrap();
    let mtree = "#mtree\n/set uid=0 gid=0\n. type=dir mode=0755 time=7.5\n\
        ./bin type=dir mode=0750 time=8.0\n\
        ./bin/ping type=file mode=4755 uid=7 time=9.25 \
        xattr.security.capability=AQAAAgAgAAAAAAAAAAAAAAAAAAA=\n\
        ./dev type=dir mode=0755 time=8.0\n./dev/null type=char mode=0666 device=native,1,3\n\
        ./bin/again type=link link=ping\n./empty type=file size=0 mode=0600\n\
        ./gone type=file optional\n";
    let dump = "/ 4096 40755 2 0 0 0 7.5 - - -\n/bin 0 40750 2 0 0 0 8.0 - - -\n\
        /bin/ping 4 104755 1 7 0 0 9.25 - - - \
        security.capability=\\x01\\x00\\x00\\x02\\x00\\x20\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\n\
        /dev 0 40755 2 0 0 0 8.0 - - -\n/dev/null 0 20666 1 0 0 259 8.0 - - -\n\
        /bin/again 4 120777 1 0 0 0 8.0 ping - -\n/empty 0 100600 1 0 0 0 8.0 - - -\n";
    let lists = tempfile::tempdir().unwrap();
    for (name, text) in [("mtree", mtree), ("dump", dump)] {
        let list = lists.path().join(name);
        std::fs::write(&list, text).unwrap();
        let builder = |kind| {
            let mut sources = Sources::default();
            sources.dir(root.path());
            sources.manifest(&list);
            ImageBuilder::new(kind).sources(sources)
        };
        build(builder, |fs| {
            let of = |path: &str| fs.symlink_metadata(path).unwrap();
            let time = |seconds, nanos| SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
            assert_eq!(
                (of("/").uid(), of("/").modified()),
                (0, time(7, 500_000_000)),
                "{name}"
            );
            assert_eq!(
                (of("bin").mode() & 0o7777, of("bin").modified()),
                (0o750, time(8, 0))
            );
            let ping = of("bin/ping");
            assert_eq!(
                (ping.uid(), ping.gid(), ping.mode() & 0o7777),
                (7, 0, 0o4755)
            );
            assert_eq!(ping.modified(), time(9, 250_000_000));
            let capability = fs
                .xattr("bin/ping", "security.capability")
                .unwrap()
                .unwrap();
            assert_eq!(&capability[..6], [1, 0, 0, 2, 0, 0x20]);
            assert_eq!(fs.read("bin/ping").unwrap(), b"ping");
            assert_eq!(of("dev/null").rdev(), rustix::fs::makedev(1, 3));
            assert_eq!(of("dev/null").mode() & 0o7777, 0o666);
            assert_eq!(fs.read_link("bin/again").unwrap().to_str(), Some("ping"));
            assert_eq!((of("empty").len(), of("empty").mode() & 0o7777), (0, 0o600));
            assert!(!fs.exists("gone").unwrap());
            assert_eq!(fs.read("plain").unwrap(), b"1");
        });
    }
    for (text, expected) in [
        (
            "#mtree\n./no type=file\n",
            "no: is in the list, and in no source",
        ),
        (
            "#mtree\n./bin type=file\n",
            "bin: is a regular file in the list, and a directory in a source",
        ),
        ("#mtree\n./a/b type=dir\n", "a/b: no such file or directory"),
        (
            "#mtree\n./bin/../../x type=dir\n",
            "line 2: the name makes no sense",
        ),
    ] {
        let list = lists.path().join("bad");
        std::fs::write(&list, text).unwrap();
        let mut sources = Sources::default();
        sources.dir(root.path());
        sources.manifest(&list);
        let built = ImageBuilder::ext4()
            .sources(sources)
            .write_to(lists.path().join("disk.img"));
        let error = built.unwrap_err().to_string();
        assert!(error.ends_with(expected), "{error}");
        assert_eq!(std::fs::read_dir(lists.path()).unwrap().count(), 3);
    }
}

#[test]
fn owners_come_from_an_archive_or_a_list() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("d")).unwrap();
    std::fs::write(root.path().join("d/a"), "1").unwrap();
    let lists = tempfile::tempdir().unwrap();
    std::fs::write(lists.path().join("tar"), tar(&[("./d/a", "other")])).unwrap();
    std::fs::write(lists.path().join("mtree"), "#mtree\n./d/a uid=7 gid=8\n").unwrap();
    for list in ["tar", "mtree"] {
        let builder = |kind| {
            let mut sources = Sources::default();
            sources.dir(root.path());
            sources.owners_from(lists.path().join(list)).unwrap();
            ImageBuilder::new(kind).sources(sources)
        };
        build(builder, |fs| {
            let found = fs.metadata("d/a").unwrap();
            assert_eq!((found.uid(), found.gid()), (7, 8));
            assert_eq!(fs.read("d/a").unwrap(), b"1");
        });
    }
}

/// A tar archive of files of this size: zeros, and sevens in the last block.
fn zeros(names: &[&str], size: u64) -> impl Read + Send + 'static {
    let end = Box::new(Cursor::new(vec![0_u8; 1024]));
    names
        .iter()
        .rev()
        .fold(end as Box<dyn Read + Send>, |later, name| {
            let mut header = header(EntryType::Regular, 0o644, size);
            header.set_path(name).unwrap();
            header.set_cksum();
            let head = Cursor::new(header.as_bytes().to_vec());
            let content = std::io::repeat(0)
                .take(size - 512)
                .chain(Cursor::new([7_u8; 512]));
            Box::new(head.chain(content).chain(later))
        })
}

#[test]
fn an_image_grows_for_a_stream_of_unknown_size() {
    for kind in Kind::ALL {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        let mut sources = Sources::default();
        let size = 300 << 20;
        sources.tar_stream(zeros(&["f0", "f1", "f2"], size));
        ImageBuilder::new(kind)
            .sources(sources)
            .write_to(&path)
            .unwrap();
        assert!(path.metadata().unwrap().len() < size);
        let fs = opened(&path);
        for file in ["f0", "f1", "f2"] {
            assert_eq!(fs.metadata(file).unwrap().len(), size);
            let mut end = [0; 512];
            fs.open(file)
                .unwrap()
                .read_exact_at(&mut end, size - 512)
                .unwrap();
            assert_eq!(end, [7; 512]);
        }
        fs.close().unwrap();
        assert_clean(kind, &path);
    }
}
