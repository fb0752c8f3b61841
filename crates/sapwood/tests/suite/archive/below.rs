//! Sources that are put into a directory of the image.

use std::path::Path;
use std::time::{Duration, SystemTime};

use sapwood::{ErrorKind, FileSystem, ImageBuilder, Kind, Sources};
use tar::{Builder, EntryType};

use super::mix::{build, tar};
use super::{add, header, link};

/// A directory of this machine with a file `name`.
fn directory(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    std::fs::write(dir.path().join("sub").join(name), name).unwrap();
    dir
}

fn text(fs: &FileSystem, path: &str) -> String {
    String::from_utf8(fs.read(path).unwrap()).unwrap()
}

/// An archive with a name and a hard link to it.
fn linked() -> Vec<u8> {
    let mut archive = Builder::new(Vec::new());
    let entry = header(EntryType::Regular, 0o644, 1);
    add(&mut archive, "a", entry, b"1");
    link(&mut archive, "sub/again", EntryType::Link, "./a");
    archive.into_inner().unwrap()
}

#[test]
fn each_source_goes_into_its_directory() {
    let (first, second) = (directory("first"), directory("second"));
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(77);
    let builder = |kind| {
        let mut sources = Sources::default();
        sources.set_time(time);
        sources.dir(first.path());
        sources.at("/srv//data/").unwrap();
        sources.dir(second.path());
        sources.at("opt/x").unwrap();
        sources.tar_stream(std::io::Cursor::new(linked()));
        sources.at("/").unwrap();
        sources.tar_stream(std::io::Cursor::new(tar(&[("top", "2")])));
        let changes = sources.changes_mut();
        changes.exclude("/sub/again").unwrap();
        changes.exclude("/opt/x/link").unwrap();
        let labels = "/opt(/.*)? u:o:opt_t:s0\n/srv/data(/.*)? u:o:data_t:s0\n";
        changes.file_contexts(labels).unwrap();
        ImageBuilder::new(kind).owner(5, 6).sources(sources)
    };
    build(builder, |fs| {
        assert_eq!(text(fs, "sub/first"), "first");
        assert_eq!(text(fs, "srv/data/sub/second"), "second");
        assert_eq!(text(fs, "top"), "2");
        assert!(!fs.exists("srv/data/sub/first").unwrap());
        // A hard link means a name of its own archive; patterns mean paths from the root.
        let of = |path: &str| fs.symlink_metadata(path).unwrap();
        assert_eq!(of("opt/x/sub/again").ino(), of("opt/x/a").ino());
        // Directories that no source has belong to the owner of the image.
        for made in ["srv", "opt", "opt/x", "opt/x/sub"] {
            let made = of(made);
            assert_eq!((made.uid(), made.gid()), (5, 6));
            assert_eq!((made.mode() & 0o7777, made.modified()), (0o755, time));
        }
        // A directory of this machine brings its own attributes.
        let local = second.path().metadata().unwrap();
        assert_eq!(of("srv/data").modified(), local.modified().unwrap());
        let label = |path: &str| fs.xattr(path, "security.selinux").unwrap();
        assert_eq!(label("opt/x/a").unwrap(), b"u:o:opt_t:s0\0");
        assert_eq!(label("opt").unwrap(), b"u:o:opt_t:s0\0");
        assert_eq!(label("srv/data/sub/second").unwrap(), b"u:o:data_t:s0\0");
        assert_eq!(label("top"), None);
    });
}

#[test]
fn a_link_in_the_image_leads_to_the_directory() {
    let dir = directory("module");
    let builder = |kind| {
        let mut links = Builder::new(Vec::new());
        link(&mut links, "lib", EntryType::Symlink, "usr/lib");
        let entry = header(EntryType::Directory, 0o751, 0);
        add(&mut links, "usr/lib", entry, b"");
        let mut sources = Sources::default();
        sources.tar_stream(std::io::Cursor::new(links.into_inner().unwrap()));
        sources.at("/lib/modules").unwrap();
        sources.dir(dir.path());
        sources.tar_stream(std::io::Cursor::new(linked()));
        ImageBuilder::new(kind).size(256 << 20).sources(sources)
    };
    build(builder, |fs| {
        assert!(fs.symlink_metadata("lib").unwrap().is_symlink());
        assert_eq!(text(fs, "usr/lib/modules/sub/module"), "module");
        assert_eq!(text(fs, "usr/lib/modules/sub/again"), "1");
        assert_eq!(fs.metadata("usr/lib").unwrap().mode() & 0o7777, 0o751);
    });
}

#[test]
fn an_entry_of_the_directory_itself_keeps_a_link_to_it() {
    let builder = |kind| {
        let mut links = Builder::new(Vec::new());
        link(&mut links, "lib", EntryType::Symlink, "usr/lib");
        let kept = header(EntryType::Regular, 0o644, 1);
        add(&mut links, "usr/lib/kept", kept, b"1");
        let mut own = Builder::new(Vec::new());
        add(&mut own, "./", header(EntryType::Directory, 0o750, 0), b"");
        add(
            &mut own,
            "./new",
            header(EntryType::Regular, 0o644, 1),
            b"2",
        );
        let mut sources = Sources::default();
        sources.tar_stream(std::io::Cursor::new(links.into_inner().unwrap()));
        sources.at("/lib").unwrap();
        sources.tar_stream(std::io::Cursor::new(own.into_inner().unwrap()));
        ImageBuilder::new(kind).size(256 << 20).sources(sources)
    };
    build(builder, |fs| {
        assert!(fs.symlink_metadata("lib").unwrap().is_symlink());
        assert_eq!(text(fs, "usr/lib/kept"), "1");
        assert_eq!(text(fs, "lib/new"), "2");
        assert_eq!(fs.metadata("usr/lib").unwrap().mode() & 0o7777, 0o750);
    });
}

#[test]
fn a_layer_hides_names_in_its_directory_only() {
    let dir = directory("below");
    let builder = |kind| {
        let mut layer = Builder::new(Vec::new());
        for name in ["sub/.wh.below", ".wh.gone"] {
            add(&mut layer, name, header(EntryType::Regular, 0o644, 0), b"");
        }
        let mut sources = Sources::default();
        sources.dir(dir.path());
        sources.at("root").unwrap();
        sources.dir(dir.path());
        sources.layer_stream(std::io::Cursor::new(layer.into_inner().unwrap()));
        ImageBuilder::new(kind).size(256 << 20).sources(sources)
    };
    build(builder, |fs| {
        assert_eq!(text(fs, "sub/below"), "below");
        assert!(fs.exists("root/sub").unwrap());
        assert!(!fs.exists("root/sub/below").unwrap());
    });
}

#[test]
fn a_path_that_is_no_directory_is_refused() {
    for path in ["..", "a/../b", "a\0b"] {
        let error = Sources::default().at(path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(error.path(), Some(Path::new(path)));
    }
    let (first, dir) = (directory("file"), tempfile::tempdir().unwrap());
    let image = dir.path().join("disk.img");
    for kind in Kind::ALL {
        for last_is_dir in [true, false] {
            let mut sources = Sources::default();
            sources.dir(first.path());
            sources.at("sub/file").unwrap();
            if last_is_dir {
                sources.dir(first.path());
            } else {
                sources.tar_stream(std::io::Cursor::new(linked()));
            }
            let built = ImageBuilder::new(kind).sources(sources).write_to(&image);
            let error = built.unwrap_err();
            assert!(error.to_string().contains("sub/file"), "{error}");
            assert_eq!(error.kind(), ErrorKind::NotADirectory, "{error}");
            assert!(!image.exists());
        }
    }
}

#[test]
fn an_image_depends_on_the_directory_of_a_source() {
    let dir = tempfile::tempdir().unwrap();
    for kind in Kind::ALL {
        let built = |name: &str, at: &str| {
            let mut sources = Sources::default();
            sources.at(at).unwrap();
            sources.tar_stream(std::io::Cursor::new(linked()));
            let image = dir.path().join(name);
            let builder = ImageBuilder::new(kind).sources(sources);
            builder.reproducible().write_to(&image).unwrap();
            std::fs::read(image).unwrap()
        };
        let (one, again, other) = (built("1", "/a"), built("2", "a/"), built("3", "b"));
        assert!(one == again, "{kind}");
        assert!(one != other, "{kind}");
    }
}
