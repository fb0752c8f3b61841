//! The library as a program uses it, on both formats.

mod formats;
mod reproducible;
mod stopped;
mod trees;

use std::error::Error as _;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sapwood::vfs::{FileKind, InodeFlags};
use sapwood::{
    ErrorKind, File, FileSystem, ImageBuilder, Kind, OpenOptions, Options, Progress, Stop, Times,
    WalkEntry,
};
use tempfile::TempDir;

struct TempImage {
    _dir: TempDir,
    path: PathBuf,
}

impl TempImage {
    fn new(kind: Kind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        ImageBuilder::new(kind)
            .size(128 << 20)
            .write_to(&path)
            .unwrap();
        Self { _dir: dir, path }
    }

    fn open(&self) -> FileSystem {
        sapwood::open(&self.path).unwrap()
    }
}

/// Runs a test on an image of each format.
fn each(test: impl Fn(&TempImage)) {
    for kind in Kind::ALL {
        test(&TempImage::new(kind));
    }
}

fn kind<T: std::fmt::Debug>(result: sapwood::Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

#[test]
fn handles_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<FileSystem>();
    shared::<File>();
    shared::<sapwood::ReadDir>();
    shared::<sapwood::Walk>();
    shared::<sapwood::Error>();
}

/// The image after a power cut at this moment: without the state in memory.
fn cut(image: &TempImage) -> (PathBuf, FileSystem) {
    let copy = image.path.with_extension("cut");
    std::fs::copy(&image.path, &copy).unwrap();
    let fs = sapwood::open(&copy).unwrap();
    (copy, fs)
}

#[test]
fn a_rename_is_durable_if_either_directory_is_synchronous() {
    for synchronous in ["from", "to"] {
        each(|image| {
            let fs = image.open();
            fs.create_dir("from").unwrap();
            fs.create_dir("to").unwrap();
            fs.write("from/a", b"1").unwrap();
            let vfs = fs.engine().shared();
            let dir = vfs.lookup(vfs.root(), synchronous.as_bytes()).unwrap();
            vfs.set_flags(dir.attr.ino, InodeFlags::DIRSYNC).unwrap();
            fs.sync().unwrap();
            fs.rename("from/a", "to/b").unwrap();
            let (_, after) = cut(image);
            assert!(!after.exists("from/a").unwrap());
            assert_eq!(after.read("to/b").unwrap(), b"1");
        });
    }
}

#[test]
fn changes_of_a_synchronous_file_are_durable() {
    each(|image| {
        let fs = image.open();
        fs.write("a", b"1").unwrap();
        let vfs = fs.engine().shared();
        let file = vfs.lookup(vfs.root(), b"a").unwrap();
        vfs.set_flags(file.attr.ino, InodeFlags::SYNC).unwrap();
        fs.sync().unwrap();
        fs.write("a", b"new").unwrap();
        fs.set_permissions("a", 0o600).unwrap();
        fs.set_xattr("a", "user.x", b"y").unwrap();
        let (_, after) = cut(image);
        assert_eq!(after.read("a").unwrap(), b"new");
        assert_eq!(after.metadata("a").unwrap().mode() & 0o777, 0o600);
        assert_eq!(after.xattr("a", "user.x").unwrap().unwrap(), b"y");
    });
}

#[test]
fn files_are_written_read_and_sought() {
    each(|image| {
        let fs = image.open();
        fs.create_dir_all("etc/deep/er").unwrap();
        let mut file = fs.create("etc/hostname").unwrap();
        file.write_all(b"box").unwrap();
        file.write_all(b"\n").unwrap();
        file.sync_all().unwrap();
        assert_eq!(kind(file.read_at(&mut [0], 0)), ErrorKind::PermissionDenied);
        let mut options = OpenOptions::new();
        let mut file = fs
            .open_with("/etc/hostname", options.read(true).append(true))
            .unwrap();
        file.write_at(b"more\n", 0).unwrap();
        file.seek(SeekFrom::End(-5)).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "more\n");
        assert_eq!(fs.read("etc/hostname").unwrap(), b"box\nmore\n");
        assert!(file.seek(SeekFrom::Current(-100)).is_err());
        fs.write("etc/hostname", "new").unwrap();
        assert_eq!(file.metadata().unwrap().len(), 3);
        let mut content = [0; 3];
        file.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(&content, b"new");
        let short = file.read_exact_at(&mut [0; 4], 0).unwrap_err();
        assert_eq!(short.kind(), std::io::ErrorKind::UnexpectedEof);
        drop(file);
        fs.close().unwrap();
    });
}

#[test]
fn options_of_open_are_those_of_std() {
    each(|image| {
        let fs = image.open();
        let open = |options: &mut OpenOptions| fs.open_with("f", options);
        assert_eq!(
            kind(open(OpenOptions::new().read(true))),
            ErrorKind::NotFound
        );
        assert_eq!(kind(open(&mut OpenOptions::new())), ErrorKind::InvalidInput);
        let refused = open(OpenOptions::new().read(true).create(true));
        assert_eq!(kind(refused), ErrorKind::InvalidInput);
        let made = open(OpenOptions::new().write(true).create_new(true).mode(0o600)).unwrap();
        assert_eq!(made.metadata().unwrap().mode(), 0o600);
        let again = open(OpenOptions::new().write(true).create_new(true));
        assert_eq!(kind(again), ErrorKind::AlreadyExists);
        fs.create_dir("dir").unwrap();
        assert_eq!(kind(fs.create("dir")), ErrorKind::IsADirectory);
        assert_eq!(kind(fs.create("none/f")), ErrorKind::NotFound);
        fs.symlink("../made", "dir/link").unwrap();
        fs.write("dir/link", "through the link").unwrap();
        assert_eq!(fs.read("made").unwrap(), b"through the link");
        fs.symlink("loop", "loop").unwrap();
        assert!(fs.create("loop").is_err());
    });
}

#[test]
fn metadata_is_set() {
    each(|image| {
        let fs = image.open();
        fs.set_creator(1000, 1001);
        fs.write("f", "content").unwrap();
        let found = fs.metadata("f").unwrap();
        assert_eq!(
            (found.uid(), found.gid(), found.mode()),
            (1000, 1001, 0o644)
        );
        fs.set_permissions("f", 0o4755).unwrap();
        fs.set_owner("f", Some(7), None).unwrap();
        let found = fs.metadata("f").unwrap();
        assert_eq!((found.uid(), found.gid(), found.mode()), (7, 1001, 0o755));
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 250);
        fs.set_times("f", Times::new().modified(time)).unwrap();
        assert_eq!(fs.metadata("f").unwrap().modified(), time);
        fs.set_xattr("f", "user.note", b"value").unwrap();
        assert_eq!(fs.xattr("f", "user.note").unwrap().unwrap(), b"value");
        assert_eq!(fs.xattrs("f").unwrap(), ["user.note"]);
        fs.remove_xattr("f", "user.note").unwrap();
        assert_eq!(fs.xattr("f", "user.note").unwrap(), None);
        assert!(fs.statfs().unwrap().blocks_free > 0);
    });
}

#[test]
fn holes_are_made_and_found() {
    each(|image| {
        let fs = image.open();
        let file = fs.create("sparse").unwrap();
        file.write_at(&[1; 8192], 1 << 20).unwrap();
        file.set_len(2 << 20).unwrap();
        assert_eq!(file.next_data(0).unwrap(), Some(1 << 20));
        assert_eq!(file.next_hole(1 << 20).unwrap(), Some((1 << 20) + 8192));
        assert_eq!(file.next_data((1 << 20) + 8192).unwrap(), None);
        file.punch_hole(1 << 20, 4096).unwrap();
        assert_eq!(file.next_data(0).unwrap(), Some((1 << 20) + 4096));
        file.allocate(4 << 20, 4096).unwrap();
        assert_eq!(file.metadata().unwrap().len(), (4 << 20) + 4096);
    });
}

#[test]
fn copies_within_an_image_keep_content_and_mode() {
    each(|image| {
        let fs = image.open();
        let content: Vec<u8> = (0..3_000_001_u32).map(|n| (n % 251) as u8).collect();
        fs.write("from", &content).unwrap();
        fs.set_permissions("from", 0o6750).unwrap();
        fs.write("to", "longer than nothing").unwrap();
        assert_eq!(fs.copy("from", "to").unwrap(), content.len() as u64);
        assert_eq!(fs.read("to").unwrap(), content);
        assert_eq!(fs.metadata("to").unwrap().mode(), 0o750);
        assert_eq!(kind(fs.copy("from", "from")), ErrorKind::InvalidInput);
        assert_eq!(fs.read("from").unwrap(), content);
    });
}

#[test]
fn dropping_without_close_loses_nothing() {
    each(|image| {
        let fs = image.open();
        let mut file = fs.create("f").unwrap();
        drop(fs);
        // The file keeps the file system open.
        file.write_all(&[7; 100_000]).unwrap();
        let busy = sapwood::open(&image.path);
        assert!(busy.is_err(), "the image is in use");
        drop(file);
        let fs = image.open();
        assert_eq!(fs.read("f").unwrap(), [7; 100_000]);
        fs.close().unwrap();
    });
}

#[test]
fn operations_after_close_fail() {
    each(|image| {
        let fs = image.open();
        let file = fs.create("f").unwrap();
        file.write_at(b"kept", 0).unwrap();
        fs.clone().close().unwrap();
        assert!(file.write_at(b"lost", 0).is_err());
        assert!(fs.create_dir("d").is_err());
        fs.close().unwrap();
        drop(file);
        assert_eq!(image.open().read("f").unwrap(), b"kept");
    });
}

#[test]
fn snapshots_are_made_of_btrfs_alone() {
    let image = TempImage::new(Kind::Btrfs);
    let fs = image.open();
    fs.create_subvolume("home").unwrap();
    fs.write("home/f", "before").unwrap();
    fs.create_dir("snapshots").unwrap();
    fs.snapshot("home", "snapshots/monday").unwrap();
    fs.snapshot_read_only("home", "snapshots/fixed").unwrap();
    fs.write("home/f", "after").unwrap();
    assert_eq!(fs.read("snapshots/monday/f").unwrap(), b"before");
    let refused = fs.write("snapshots/fixed/f", "x");
    assert_eq!(kind(refused), ErrorKind::ReadOnlyFilesystem);
    let paths = |fs: &FileSystem| -> Vec<_> {
        let all = fs.subvolumes().unwrap();
        all.into_iter()
            .map(|one| String::from_utf8(one.path).unwrap())
            .collect()
    };
    assert_eq!(paths(&fs), ["home", "snapshots/monday", "snapshots/fixed"]);
    fs.delete_subvolume("snapshots/monday").unwrap();
    assert_eq!(paths(&fs), ["home", "snapshots/fixed"]);
    fs.close().unwrap();
    let image = TempImage::new(Kind::Ext4);
    assert_eq!(
        kind(image.open().create_subvolume("x")),
        ErrorKind::Unsupported
    );
}

#[test]
fn errors_lead_to_their_cause() {
    each(|image| {
        let fs = image.open();
        let error = fs.metadata("none/at/all").unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot stat none/at/all: no such file or directory"
        );
        assert_eq!((error.errno(), error.kind()), (2, ErrorKind::NotFound));
        let io = std::io::Error::from(fs.remove_file("none").unwrap_err());
        let inside = io
            .get_ref()
            .unwrap()
            .downcast_ref::<sapwood::Error>()
            .unwrap();
        assert_eq!(inside.errno(), 2);
        fs.close().unwrap();
        std::fs::write(&image.path, b"nothing").unwrap();
        let error = sapwood::open(&image.path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoFileSystem, "{error}");
    });
}

#[test]
fn a_damaged_inode_is_named_by_the_source() {
    let image = TempImage::new(Kind::Ext4);
    let fs = image.open();
    fs.write("f", "content").unwrap();
    let number = fs.metadata("f").unwrap().ino();
    fs.close().unwrap();
    // Block size, first block, inode size and the first group's table (kernel documentation,
    // ext4/super.rst and ext4/group_descr.rst).
    let content = std::fs::read(&image.path).unwrap();
    let word = |at: usize| u32::from_le_bytes(content[at..at + 4].try_into().unwrap()) as usize;
    let block = 1024 << word(1024 + 24);
    let descriptor = (word(1024 + 20) + 1) * block;
    let inode_size = word(1024 + 88) & 0xffff;
    let at = word(descriptor + 8) * block + (number as usize - 1) * inode_size;
    assert_eq!(content[at..at + 2], [0xa4, 0x81], "mode");
    let mut damaged = content;
    damaged[at + 4] ^= 1;
    std::fs::write(&image.path, damaged).unwrap();
    let fs = image.open();
    let error = fs.metadata("f").unwrap_err();
    assert_eq!(error.errno(), 117, "{error}");
    let engine = error.source().unwrap().source().unwrap();
    let engine = engine
        .downcast_ref::<sapwood::internal::ext4::Error>()
        .unwrap();
    let named = matches!(engine, sapwood::internal::ext4::Error::BadInode { ino, .. } if u64::from(*ino) == number);
    assert!(named, "{engine}");
}

#[test]
fn a_build_that_fails_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("small.img");
    let error = ImageBuilder::btrfs()
        .size(1 << 20)
        .write_to(&path)
        .unwrap_err();
    assert!(
        error.to_string().starts_with(&path.display().to_string()),
        "{error}"
    );
    assert!(
        ImageBuilder::ext4().write_to(&path).is_err(),
        "without a size"
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn options_are_built_in_one_expression() {
    each(|image| {
        let fs = image.open();
        fs.write("f", "content").unwrap();
        fs.close().unwrap();
        let fs = Options::new().read_only(true).open(&image.path).unwrap();
        assert_eq!(fs.read("f").unwrap(), b"content");
        assert_eq!(kind(fs.create_dir("d")), ErrorKind::ReadOnlyFilesystem);
        fs.close().unwrap();
        let compressed = Options::new().compress(sapwood::internal::btrfs::Compression::Lzo);
        let opened = compressed.open(&image.path);
        match opened {
            Ok(fs) => assert_eq!(fs.kind(), Kind::Btrfs),
            Err(error) => assert!(error.to_string().contains("compress=lzo"), "{error}"),
        }
        let refused = Options::new().option("commit", Some("soon"));
        assert!(refused.is_err());
    });
}

#[test]
fn a_subvolume_is_read_only_while_it_is_set_so_and_can_be_the_default() {
    let image = TempImage::new(Kind::Btrfs);
    let fs = image.open();
    fs.create_subvolume("home").unwrap();
    fs.write("home/f", "kept").unwrap();
    fs.set_subvolume_read_only("home", true).unwrap();
    assert_eq!(
        kind(fs.write("home/f", "lost")),
        ErrorKind::ReadOnlyFilesystem
    );
    fs.set_subvolume_read_only("home", false).unwrap();
    fs.write("home/f", "new").unwrap();
    let id = fs.subvolumes().unwrap()[0].id;
    fs.set_default_subvolume(id).unwrap();
    assert_eq!(fs.default_subvolume().unwrap(), id);
    fs.close().unwrap();
    let fs = image.open();
    assert_eq!(fs.read("f").unwrap(), b"new");
    fs.close().unwrap();
    let fs = Options::new().subvolume("/").open(&image.path).unwrap();
    assert_eq!(fs.read("home/f").unwrap(), b"new");
}

#[test]
fn an_image_says_what_it_is_and_shows_its_structures() {
    each(|image| {
        let format = image.open().kind();
        let info = sapwood::info(&image.path).unwrap();
        assert_eq!(info.size, 128 << 20);
        assert!(info.used + info.free <= info.size && !info.features.is_empty());
        let btrfs = matches!(info.details, sapwood::Details::Btrfs { log: false, .. });
        assert_eq!(btrfs, format == Kind::Btrfs);
        let mut lines = Vec::new();
        sapwood::dump(&image.path, Some("super"), &mut |line| {
            lines.push(line.to_string())
        })
        .unwrap();
        assert!(!lines.is_empty());
        let error = sapwood::dump(&image.path, Some("turbo"), &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("turbo"), "{error}");
    });
}

#[test]
fn new_directories_have_mode_umask_and_creator() {
    each(|image| {
        let fs = image.open();
        fs.set_creator(7, 8);
        fs.set_umask(0o027);
        fs.create_dir_all_with("a/b", 0o777).unwrap();
        fs.create_dir_with("c", 0o1777).unwrap();
        for (path, mode) in [("a", 0o750), ("a/b", 0o750), ("c", 0o1750)] {
            let found = fs.metadata(path).unwrap();
            assert_eq!((found.uid(), found.gid()), (7, 8), "{path}");
            assert_eq!(found.mode(), mode, "{path}");
        }
    });
}

#[test]
fn the_top_level_contains_every_subvolume() {
    let image = TempImage::new(Kind::Btrfs);
    let fs = image.open();
    fs.set_creator(7, 8);
    fs.create_subvolume("home").unwrap();
    let home = fs.subvolumes().unwrap();
    let home = home.iter().find(|one| one.path == b"home").unwrap().id;
    fs.set_default_subvolume(home).unwrap();
    fs.close().unwrap();
    let fs = image.open();
    assert!(!fs.exists("home").unwrap());
    fs.close().unwrap();
    let fs = Options::new().top_level().open(&image.path).unwrap();
    let found = fs.metadata("home").unwrap();
    assert_eq!((found.uid(), found.gid()), (7, 8));
    assert_eq!(fs.subvolume_at("home").unwrap(), home);
    fs.close().unwrap();
    let other = TempImage::new(Kind::Ext4);
    let refused = FileSystem::open_btrfs(&other.path, &Options::new());
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("a subvolume needs btrfs"), "{text}");
    let refused = Options::new().top_level().open(&other.path);
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("btrfs"), "{text}");
}

#[test]
fn a_path_is_in_the_open_subvolume_for_files_and_for_subvolumes() {
    let image = TempImage::new(Kind::Btrfs);
    let fs = image.open();
    fs.create_subvolume("@").unwrap();
    fs.write("@/f", "kept").unwrap();
    let id = fs.subvolume_at("@").unwrap();
    assert_eq!(kind(fs.subvolume_at("@/f")), ErrorKind::InvalidInput);
    fs.set_default_subvolume(id).unwrap();
    fs.close().unwrap();
    for (options, path) in [
        (Options::new(), "@/s"),
        (Options::new().subvolume("@/s"), "@/s/s"),
    ] {
        let fs = FileSystem::open_btrfs(&image.path, &options).unwrap();
        fs.snapshot("/", "/s").unwrap();
        assert_eq!(fs.read("s/f").unwrap(), b"kept");
        let all = fs.subvolumes().unwrap();
        let made = all.iter().find(|one| one.path == path.as_bytes());
        assert_eq!(made.unwrap().id, fs.subvolume_at("s").unwrap());
        fs.close().unwrap();
    }
}

#[test]
fn a_canonical_path_has_no_links() {
    each(|image| {
        let fs = image.open();
        fs.create_dir_all("a/b").unwrap();
        fs.write("a/b/f", "").unwrap();
        fs.symlink("/a/b/../b", "one").unwrap();
        fs.symlink("../one/f", "a/two").unwrap();
        fs.symlink("loop", "loop").unwrap();
        assert_eq!(fs.canonicalize("a/two").unwrap(), Path::new("/a/b/f"));
        assert_eq!(fs.canonicalize("/one/./..").unwrap(), Path::new("/a"));
        assert_eq!(fs.canonicalize("../..").unwrap(), Path::new("/"));
        assert_eq!(kind(fs.canonicalize("one/none")), ErrorKind::NotFound);
        assert_eq!(kind(fs.canonicalize("a/b/f/x")), ErrorKind::NotADirectory);
        assert_eq!(fs.canonicalize("loop").unwrap_err().errno(), 40);
    });
}

#[test]
fn a_replaced_file_keeps_everything_but_its_content() {
    each(|image| {
        let fs = image.open();
        fs.create_dir("d").unwrap();
        fs.write("d/f", "old").unwrap();
        fs.set_owner("d/f", Some(7), Some(8)).unwrap();
        fs.set_permissions("d/f", 0o4750).unwrap();
        fs.set_xattr("d/f", "user.note", b"kept").unwrap();
        fs.hard_link("d/f", "other").unwrap();
        fs.symlink("d/f", "link").unwrap();
        fs.replace("link", "new content").unwrap();
        assert_eq!(fs.read("d/f").unwrap(), b"new content");
        let found = fs.symlink_metadata("d/f").unwrap();
        assert_eq!((found.uid(), found.gid(), found.mode()), (7, 8, 0o4750));
        assert_eq!(fs.xattr("d/f", "user.note").unwrap().unwrap(), b"kept");
        assert_eq!(fs.read("other").unwrap(), b"old");
        assert!(fs.symlink_metadata("link").unwrap().is_symlink());
        fs.set_umask(0o027);
        fs.replace("d/new", "made").unwrap();
        assert_eq!(fs.metadata("d/new").unwrap().mode(), 0o640);
        assert_eq!(kind(fs.replace("d", "")), ErrorKind::IsADirectory);
        assert_eq!(kind(fs.replace("none/f", "")), ErrorKind::NotFound);
        // Nothing temporary is left.
        assert_eq!(fs.read_dir("d").unwrap().count(), 2);
        assert_eq!(
            fs.read_dir("/")
                .unwrap()
                .filter(|entry| {
                    entry
                        .as_ref()
                        .unwrap()
                        .file_name()
                        .to_string_lossy()
                        .starts_with(".sapwood")
                })
                .count(),
            0
        );
    });
}

#[test]
fn users_and_groups_have_the_names_of_the_image() {
    each(|image| {
        let fs = image.open();
        assert_eq!(fs.user_id("ann").unwrap(), None);
        fs.create_dir("etc").unwrap();
        fs.write("etc/passwd", "root:x:0:0:::\nann:x:1042:50:::\n")
            .unwrap();
        fs.write("etc/group", "staff:x:50:ann\n").unwrap();
        assert_eq!(fs.user_id("ann").unwrap(), Some(1042));
        assert_eq!(fs.group_id("staff").unwrap(), Some(50));
        assert_eq!(fs.group_id("ann").unwrap(), None);
    });
}

#[test]
fn a_check_reports_how_much_there_is_to_do() {
    each(|image| {
        let options = sapwood::CheckOptions {
            data: true,
            ..sapwood::CheckOptions::default()
        };
        let (mut total, mut known) = (0, 0);
        let checked = sapwood::check(&image.path, &options, &mut |step| match step {
            Progress::Total(now) => (total, known) = (now, known + u32::from(now > 0)),
            Progress::Done { phase, done } if total > 0 => {
                assert!(done <= total, "{phase}: {done} of {total}");
            }
            _ => {}
        });
        assert!(checked.unwrap().clean && known > 0);
    });
}
