//! Copies into images, out of them, and between them.

use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sapwood::internal::{BuildError, CopyCause, CopyError};
use sapwood::{CopyOptions, Existing, FileSystem, ImageBuilder, Kind, Place, Progress, copy};
use tempfile::TempDir;

const SIZE: u64 = 128 << 20;

/// A directory of this machine with a file of each sort.
fn tree() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(at("a/b")).unwrap();
    std::fs::write(at("a/small"), "small").unwrap();
    let large: Vec<u8> = (0..3_000_001_u32).map(|nth| (nth % 251) as u8).collect();
    std::fs::write(at("a/b/large"), large).unwrap();
    let sparse = std::fs::File::create(at("a/sparse")).unwrap();
    sparse.set_len(5 << 20).unwrap();
    std::os::unix::fs::symlink("b/large", at("a/link")).unwrap();
    std::fs::hard_link(at("a/small"), at("a/b/again")).unwrap();
    std::fs::set_permissions(at("a/small"), PermissionsExt::from_mode(0o640)).unwrap();
    dir
}

fn image(kind: Kind, dir: &Path, name: &str) -> FileSystem {
    let path = dir.join(name);
    let builder = ImageBuilder::new(kind).size(SIZE);
    builder.write_to(&path).unwrap();
    sapwood::open(path).unwrap()
}

fn archive(from: Place<'_>, to: Place<'_>) -> u64 {
    let copied = copy(&[from], &to, &CopyOptions::archive(), &mut |_| {});
    copied.unwrap().complete().unwrap()
}

/// The expected state of `a` after an archive copy.
fn assert_complete(fs: &FileSystem, tree: &Path) {
    let read = |name: &str| std::fs::read(tree.join(name)).unwrap();
    assert_eq!(fs.read("a/small").unwrap(), read("a/small"));
    assert_eq!(fs.read("a/b/large").unwrap(), read("a/b/large"));
    assert_eq!(fs.read_link("a/link").unwrap(), PathBuf::from("b/large"));
    let (small, again) = (
        fs.metadata("a/small").unwrap(),
        fs.metadata("a/b/again").unwrap(),
    );
    assert_eq!(small.ino(), again.ino());
    assert_eq!(small.mode() & 0o777, 0o640);
    let sparse = fs.open("a/sparse").unwrap();
    assert_eq!(sparse.metadata().unwrap().len(), 5 << 20);
    assert_eq!(sparse.next_data(0).unwrap(), None);
}

#[test]
fn an_archive_copy_goes_in_across_and_out_again() {
    for kind in Kind::ALL {
        let (tree, dir) = (tree(), tempfile::tempdir().unwrap());
        let one = image(kind, dir.path(), "one");
        assert_eq!(
            archive(Place::host(tree.path().join("a")), Place::image(&one, "/")),
            6
        );
        assert_complete(&one, tree.path());
        for other in Kind::ALL {
            let name = format!("to {other}");
            let two = image(other, dir.path(), &name);
            archive(Place::image(&one, "/a"), Place::image(&two, "/"));
            assert_complete(&two, tree.path());
            let out = dir.path().join(format!("out of {other}"));
            archive(Place::image(&two, "a"), Place::host(&out));
            let (found, made) = (out.join("b/large"), tree.path().join("a/b/large"));
            assert_eq!(std::fs::read(found).unwrap(), std::fs::read(made).unwrap());
            assert_eq!(std::fs::metadata(out.join("small")).unwrap().nlink(), 2);
            two.close().unwrap();
        }
        one.close().unwrap();
    }
}

#[test]
fn a_copy_within_an_image_shares_content_on_btrfs() {
    let dir = tempfile::tempdir().unwrap();
    let fs = image(Kind::Btrfs, dir.path(), "image");
    let content: Vec<u8> = (0..24_u32 << 20).map(|nth| (nth % 253) as u8).collect();
    fs.create_dir("from").unwrap();
    fs.write("from/f", &content).unwrap();
    // The copies take more than the image has room for, if they were not shared.
    for number in 0..4 {
        archive(
            Place::image(&fs, "from"),
            Place::image(&fs, format!("to {number}")),
        );
        assert_eq!(fs.read(format!("to {number}/f")).unwrap(), content);
    }
    fs.write("to 0/f", "changed").unwrap();
    assert_eq!(fs.read("from/f").unwrap(), content);
    fs.close().unwrap();
}

#[test]
fn what_cannot_be_copied_is_reported_and_left_out() {
    for kind in Kind::ALL {
        let (tree, dir) = (tree(), tempfile::tempdir().unwrap());
        let fs = image(kind, dir.path(), "image");
        let sources = [
            Place::host(tree.path().join("a/small")),
            Place::host(tree.path().join("none")),
            Place::host(tree.path().join("a")),
        ];
        let mut failed = Vec::new();
        let report = copy(
            &sources,
            &Place::image(&fs, "/"),
            &CopyOptions::default(),
            &mut |step| {
                if let Progress::Failed(error) = step {
                    failed.push(error.downcast_ref::<CopyError>().unwrap().to_string());
                }
            },
        );
        let report = report.unwrap();
        assert_eq!((report.left_out, failed.len()), (2, 2), "{failed:?}");
        let error = report.complete().unwrap_err();
        assert!(matches!(cause(&error), CopyCause::Missing), "{error}");
        assert_eq!(std::io::Error::from(error).kind(), ErrorKind::NotFound);
        assert_eq!(fs.read("small").unwrap(), b"small");
        fs.close().unwrap();
    }
}

fn cause(error: &sapwood::Error) -> &CopyCause {
    error.downcast_ref::<CopyError>().unwrap().cause()
}

#[test]
fn a_full_image_ends_a_copy_with_its_cause() {
    let dir = tempfile::tempdir().unwrap();
    let many = dir.path().join("many");
    std::fs::create_dir(&many).unwrap();
    for number in 0..200_u8 {
        std::fs::write(many.join(number.to_string()), vec![number; 1 << 20]).unwrap();
    }
    for kind in Kind::ALL {
        let fs = image(kind, dir.path(), kind.name());
        let (from, to) = (Place::host(&many), Place::image(&fs, "/"));
        let error = copy(&[from], &to, &CopyOptions::archive(), &mut |_| {}).unwrap_err();
        assert!(matches!(cause(&error), CopyCause::Image(_)), "{error}");
        assert_eq!(std::io::Error::from(error).kind(), ErrorKind::StorageFull);
    }
}

#[test]
fn an_image_is_built_from_a_directory() {
    for kind in Kind::ALL {
        let (tree, dir) = (tree(), tempfile::tempdir().unwrap());
        let path = dir.path().join("image");
        let mut done = 0;
        let builder = ImageBuilder::new(kind).from_dir(tree.path()).unwrap();
        let built = builder.write_with_progress(&path, &mut |step| match step {
            Progress::Done { phase, .. } if phase == sapwood::internal::MOVING => {}
            Progress::Done { done: so_far, .. } => done = so_far,
            _ => {}
        });
        built.unwrap();
        assert_eq!(done, 7);
        let fs = sapwood::open(&path).unwrap();
        assert_complete(&fs, tree.path());
        let top = std::fs::metadata(tree.path()).unwrap();
        let root = fs.metadata("/").unwrap();
        assert_eq!(
            (root.uid(), root.mode() & 0o7777),
            (top.uid(), top.mode() & 0o7777)
        );
        fs.close().unwrap();
        let checked = sapwood::check(&path, &sapwood::CheckOptions::default(), &mut |_| {});
        assert!(checked.unwrap().clean);
    }
}

#[test]
fn a_directory_that_does_not_fit_leaves_no_image() {
    let (tree, dir) = (tree(), tempfile::tempdir().unwrap());
    let large = vec![7; 200 << 20];
    std::fs::write(tree.path().join("large"), large).unwrap();
    for kind in Kind::ALL {
        let path = dir.path().join("image");
        let builder = ImageBuilder::new(kind).size(SIZE);
        let built = builder.from_dir(tree.path()).unwrap().write_to(&path);
        let error = built.unwrap_err();
        let copy = error.downcast_ref::<BuildError>();
        assert!(matches!(copy, Some(BuildError::Copy(_))), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn options_of_mkfs_reach_the_image() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let builder = ImageBuilder::ext4().size(SIZE);
    let builder = builder.option("inodes", Some("1024")).unwrap();
    builder
        .option("L", Some("data"))
        .unwrap()
        .write_to(&path)
        .unwrap();
    let fs = sapwood::open(&path).unwrap();
    assert_eq!(fs.statfs().unwrap().inodes, 1024);
    assert!(ImageBuilder::btrfs().option("inodes", Some("1")).is_err());
}

/// A copy of `a/small` to an image that has it already, with the content `old`.
fn over(existing: Existing, newer: bool) -> (Vec<u8>, u64) {
    let (tree, dir) = (tree(), tempfile::tempdir().unwrap());
    let fs = image(Kind::Ext4, dir.path(), "image");
    fs.write("small", "old").unwrap();
    let day = std::time::Duration::from_secs(86_400);
    let now = std::time::SystemTime::now();
    let time = if newer { now + day } else { now - day };
    fs.set_times("small", sapwood::Times::new().modified(time))
        .unwrap();
    let mut options = CopyOptions::recursive();
    options.existing = existing;
    let from = [Place::host(tree.path().join("a/small"))];
    let report = copy(&from, &Place::image(&fs, "/"), &options, &mut |_| {}).unwrap();
    (fs.read("small").unwrap(), report.kept)
}

#[test]
fn an_existing_file_stays_where_that_is_asked_for() {
    let (old, new) = (b"old".to_vec(), b"small".to_vec());
    for newer in [false, true] {
        assert_eq!(over(Existing::Replace, newer), (new.clone(), 0));
        assert_eq!(over(Existing::Keep, newer), (old.clone(), 1));
    }
    assert_eq!(over(Existing::KeepNewer, false), (new, 0));
    assert_eq!(over(Existing::KeepNewer, true), (old, 1));
}

#[test]
fn a_copy_names_and_counts_what_it_copies() {
    let (tree, dir) = (tree(), tempfile::tempdir().unwrap());
    let fs = image(Kind::Btrfs, dir.path(), "image");
    let (mut names, mut bytes) = (Vec::new(), 0);
    let from = [Place::host(tree.path().join("a"))];
    let report = copy(
        &from,
        &Place::image(&fs, "/"),
        &CopyOptions::recursive(),
        &mut |step| match step {
            Progress::Item(item) => names.push(item.to_string()),
            Progress::Bytes(done) => bytes = done,
            _ => {}
        },
    );
    // Without -a a file with two names is copied twice; the hole of `sparse` is no content.
    assert_eq!((report.unwrap().bytes, bytes), (3_000_011, 3_000_011));
    let (at, image) = (tree.path().display(), dir.path().join("image"));
    let line = format!("{at}/a/b/large -> {}:/a/b/large", image.display());
    assert!(names.contains(&line), "{names:?}");
    assert_eq!(names.len(), 6);
}

#[test]
fn a_preserving_copy_keeps_mode_and_times_and_follows_links() {
    let (tree, dir) = (tree(), tempfile::tempdir().unwrap());
    let fs = image(Kind::Ext4, dir.path(), "image");
    let mut options = CopyOptions::default();
    options.preserve = true;
    let from = ["a/small", "a/link"].map(|name| Place::host(tree.path().join(name)));
    let to = Place::image(&fs, "/");
    copy(&from, &to, &options, &mut |_| {})
        .unwrap()
        .complete()
        .unwrap();
    let source = std::fs::metadata(tree.path().join("a/small")).unwrap();
    let copied = fs.metadata("small").unwrap();
    assert_eq!((copied.mode(), copied.uid()), (0o640, source.uid()));
    assert_eq!(copied.modified(), source.modified().unwrap());
    assert!(fs.symlink_metadata("link").unwrap().is_file());
}

#[test]
fn a_copy_ends_when_it_is_asked_to() {
    let (tree, dir) = (tree(), tempfile::tempdir().unwrap());
    let fs = image(Kind::Btrfs, dir.path(), "image");
    let options = CopyOptions::recursive();
    let stop = options.stop.clone();
    let from = [Place::host(tree.path().join("a"))];
    let copied = copy(&from, &Place::image(&fs, "/"), &options, &mut |step| {
        if matches!(step, Progress::Done { done: 2, .. }) {
            stop.stop();
        }
    });
    let error = copied.unwrap_err();
    assert!(matches!(cause(&error), CopyCause::Interrupted));
    assert_eq!(error.kind(), sapwood::ErrorKind::Interrupted);
    fs.close().unwrap();
    let path = dir.path().join("image");
    let checked = sapwood::check(&path, &sapwood::CheckOptions::default(), &mut |_| {});
    assert!(checked.unwrap().clean);
}

/// The value of an ACL that gives user 5 the permissions `perm`.
fn acl(perm: u16) -> Vec<u8> {
    let entries = [
        (1, 7, u32::MAX),
        (2, perm, 5),
        (4, 5, u32::MAX),
        (16, 7, u32::MAX),
        (32, 5, u32::MAX),
    ];
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        let (tag, perm): (u16, u16) = (tag, perm);
        value.extend([tag.to_le_bytes(), perm.to_le_bytes()].as_flattened());
        value.extend(u32::to_le_bytes(id));
    }
    value
}

#[test]
fn a_copy_that_keeps_attributes_has_the_acls_of_its_source_alone() {
    const ACCESS: &str = "system.posix_acl_access";
    const DEFAULT: &str = "system.posix_acl_default";
    for kind in Kind::ALL {
        let (tree, dir) = (tree(), tempfile::tempdir().unwrap());
        let (one, two) = (
            image(kind, dir.path(), "one"),
            image(kind, dir.path(), "two"),
        );
        for fs in [&one, &two] {
            fs.create_dir("in").unwrap();
            fs.set_xattr("in", DEFAULT, &acl(7)).unwrap();
        }
        archive(Place::host(tree.path().join("a")), Place::image(&one, "in"));
        one.set_xattr("in/a/small", ACCESS, &acl(4)).unwrap();
        let small = one.metadata("in/a/small").unwrap().mode();
        let check = |fs: &FileSystem, top: &str| {
            let at = |name: &str| format!("{top}/{name}");
            assert_eq!(
                fs.xattr(at("small"), ACCESS).unwrap(),
                Some(acl(4)),
                "{top}"
            );
            assert_eq!(fs.metadata(at("small")).unwrap().mode(), small);
            for name in ["", "b", "b/large", "sparse"] {
                assert_eq!(fs.xattr(at(name), ACCESS).unwrap(), None, "{top}/{name}");
            }
            for name in ["", "b"] {
                assert_eq!(fs.xattr(at(name), DEFAULT).unwrap(), None, "{top}/{name}");
            }
            let large = std::fs::metadata(tree.path().join("a/b/large")).unwrap();
            let mode = fs.metadata(at("b/large")).unwrap().mode();
            assert_eq!(mode, large.mode() & 0o7777, "{top}");
        };
        check(&one, "in/a");
        archive(Place::image(&one, "in/a"), Place::image(&one, "in/b"));
        check(&one, "in/b");
        archive(Place::image(&one, "in/a"), Place::image(&two, "in"));
        check(&two, "in/a");
        // An existing file loses attributes that the source lacks.
        for name in ["in/a", "in/a/b", "in/a/b/large"] {
            two.set_xattr(name, ACCESS, &acl(7)).unwrap();
        }
        archive(Place::image(&one, "in/a"), Place::image(&two, "in"));
        check(&two, "in/a");
        // Any other copy inherits.
        let recursive = CopyOptions::recursive();
        let (from, to) = ([Place::image(&one, "in/a")], Place::image(&one, "in/c"));
        copy(&from, &to, &recursive, &mut |_| {})
            .unwrap()
            .complete()
            .unwrap();
        assert!(one.xattr("in/c/b", DEFAULT).unwrap().is_some());
        one.close().unwrap();
        two.close().unwrap();
    }
}
