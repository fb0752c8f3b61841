//! Errors for a caller: errno, kind, and the conversion from [`io::Error`].

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sapwood::internal::OperationError;
use sapwood::{Error, ErrorKind, FileSystem, ImageBuilder, Kind, Options, vfs};
use tempfile::TempDir;

fn image(kind: Kind) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    let builder = ImageBuilder::new(kind).size(128 << 20);
    builder.write_to(&path).unwrap();
    (dir, path)
}

/// The error has the number and its kind, and keeps both as an [`io::Error`], with path and cause.
fn has_errno(error: Error, number: i32, what: &str) {
    let kind = io::Error::from_raw_os_error(number).kind();
    assert_eq!(error.errno(), number, "{what}: {error}");
    let text = error.to_string();
    let converted = io::Error::from(error);
    assert_eq!(converted.kind(), kind, "{what}: {text}");
    assert_eq!(sapwood::errno(&converted), Some(number), "{what}: {text}");
    assert_eq!(converted.to_string(), text);
    let inside: Error = converted.downcast().unwrap();
    assert_eq!(inside.to_string(), text);
}

fn refused<T: std::fmt::Debug>(result: sapwood::Result<T>, number: i32, what: &str) {
    has_errno(result.unwrap_err(), number, what);
}

#[test]
fn operations_fail_with_the_errno_of_the_system_call() {
    for kind in Kind::ALL {
        let (_dir, path) = image(kind);
        let fs = sapwood::open(&path).unwrap();
        fs.create_dir_all("dir/below").unwrap();
        fs.write("file", "x").unwrap();
        fs.symlink("loop", "loop").unwrap();
        let long = "n".repeat(300);
        refused(fs.metadata("none"), libc::ENOENT, "ENOENT");
        refused(fs.create_dir("dir"), libc::EEXIST, "EEXIST");
        let onto = fs.rename_no_replace("file", "dir");
        refused(onto, libc::EEXIST, "EEXIST of rename");
        refused(fs.remove_dir("dir"), libc::ENOTEMPTY, "ENOTEMPTY");
        refused(fs.create("dir"), libc::EISDIR, "EISDIR");
        refused(fs.metadata("file/x"), libc::ENOTDIR, "ENOTDIR");
        refused(fs.read_dir("file"), libc::ENOTDIR, "ENOTDIR of a listing");
        refused(fs.metadata("loop"), libc::ELOOP, "ELOOP");
        refused(fs.create("loop"), libc::ELOOP, "ELOOP of a new file");
        refused(fs.create(&long), libc::ENAMETOOLONG, "ENAMETOOLONG");
        let full = fill(&fs).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        assert_eq!(sapwood::errno(&full), Some(libc::ENOSPC));
        fs.close().unwrap();
        let fs = Options::new().read_only(true).open(&path).unwrap();
        refused(fs.remove_file("file"), libc::EROFS, "EROFS");
    }
}

/// Writes until the image has no space.
fn fill(fs: &FileSystem) -> io::Result<()> {
    let mut file = fs.create("big")?;
    loop {
        file.write_all(&[1; 1 << 20])?;
    }
}

#[test]
fn a_damaged_device_keeps_its_cause() {
    let error = |source| -> Error {
        let (action, path) = ("read", "file".into());
        OperationError::Path {
            action,
            path,
            source,
        }
        .into()
    };
    let broken = io::Error::other("a bad sector");
    has_errno(error(vfs::Error::io(broken)), libc::EIO, "EIO");
    has_errno(error(vfs::Error::corrupt("block 7")), libc::EUCLEAN, "");
    let converted = io::Error::from(error(vfs::Error::io("a bad sector")));
    let found = std::error::Error::source(&converted).map(ToString::to_string);
    assert!(found.unwrap().contains("a bad sector"));
}

#[test]
fn an_image_that_cannot_be_opened_has_the_errno_of_its_cause() {
    let (dir, path) = image(Kind::Btrfs);
    let open = |path: &Path| sapwood::open(path);
    refused(open(&dir.path().join("none")), libc::ENOENT, "missing");
    let fs = open(&path).unwrap();
    refused(open(&path), libc::EBUSY, "in use");
    fs.close().unwrap();
    let text = dir.path().join("text");
    std::fs::write(&text, "no image").unwrap();
    let error = open(&text).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoFileSystem, "{error}");
    assert_eq!(error.path(), Some(&*text));
    assert_eq!(error.errno(), libc::EMEDIUMTYPE);
    let converted = io::Error::from(error);
    assert_eq!(converted.kind(), io::ErrorKind::InvalidData);
}

#[test]
fn the_errno_of_a_system_call_is_found_too() {
    let error = std::fs::metadata("/none/such").unwrap_err();
    assert_eq!(sapwood::errno(&error), Some(libc::ENOENT));
    assert_eq!(sapwood::errno(&io::Error::other("x")), None);
}
