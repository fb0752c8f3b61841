//! Images and edits that depend on their input alone: not on time, threads, or the order of
//! directories. The suite `builders` has the other host file systems and users.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sapwood::copy::{CopyOptions, Place, copy};
use sapwood::disk::{DiskBuilder, NewPartition, PartitionContent};
use sapwood::{FreeRoom, ImageBuilder, Kind, NewSize, Options, progress};

const TIME: Duration = Duration::from_secs(1_700_000_000);

fn time() -> SystemTime {
    UNIX_EPOCH + TIME
}

/// A tree whose names are made in this order, with the same times.
fn tree(dir: &Path, backwards: bool) {
    let mut numbers: Vec<u64> = (0..120).collect();
    if backwards {
        numbers.reverse();
    }
    for number in numbers {
        let below = dir.join(format!("d{}", number % 7));
        fs::create_dir_all(&below).unwrap();
        let content = vec![number as u8; (number * number * 7) as usize];
        fs::write(below.join(format!("f{number}")), content).unwrap();
        symlink(format!("f{number}"), below.join(format!("l{number}"))).unwrap();
    }
    fs::hard_link(dir.join("d1/f8"), dir.join("d2/hard")).unwrap();
    let holes = fs::File::create(dir.join("holes")).unwrap();
    if backwards {
        holes.set_len(3 << 20).unwrap()
    } else {
        holes.write_all_at(&vec![0; 3 << 20], 0).unwrap()
    }
    holes.write_all_at(&[1; 9000], 1 << 20).unwrap();
    for entry in walk(dir) {
        let times =
            fs::FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000));
        if !entry.is_symlink() {
            fs::File::open(&entry).unwrap().set_times(times).unwrap()
        } else {
            let time = rustix::fs::Timespec {
                tv_sec: 1_000_000_000,
                tv_nsec: 0,
            };
            let times = rustix::fs::Timestamps {
                last_access: time,
                last_modification: time,
            };
            let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::utimensat(rustix::fs::CWD, &entry, &times, flags).unwrap();
        }
    }
}

/// Everything in a directory, and it itself last.
fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            all.extend(walk(&path))
        } else {
            all.push(path)
        }
    }
    all.push(dir.to_owned());
    all
}

fn bytes(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}

/// Whether two files are equal, without both in a message.
fn assert_same(one: &Path, other: &Path, what: &str) {
    let (one, other) = (bytes(one), bytes(other));
    let differs = one.iter().zip(&other).position(|(one, other)| one != other);
    assert_eq!(differs, None, "{what}: first byte that differs");
    assert_eq!(one.len(), other.len(), "{what}");
}

#[test]
fn the_same_sources_give_the_same_image() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for (name, backwards) in [("one", false), ("two", true)] {
        fs::create_dir(at(name)).unwrap();
        tree(&at(name), backwards);
    }
    for (kind, size) in [
        (Kind::Btrfs, None),
        (Kind::Ext4, None),
        (Kind::Btrfs, Some(200 << 20)),
        (Kind::Ext4, Some(64 << 20)),
    ] {
        let build = |source: &str, image: &str| {
            let builder = ImageBuilder::new(kind).reproducible();
            let builder = builder.from_dir(at(source)).unwrap();
            let builder = match size {
                Some(size) => builder.size(size),
                None => builder.free(FreeRoom::Bytes(1 << 20)),
            };
            builder.write_to(at(image)).unwrap();
        };
        build("one", "a.img");
        sleep(Duration::from_millis(1100));
        build("two", "b.img");
        assert_same(&at("a.img"), &at("b.img"), &format!("{kind} {size:?}"));
        let before = sapwood::info(at("a.img")).unwrap();
        fs::write(at("two/new"), "x").unwrap();
        build("two", "c.img");
        let after = sapwood::info(at("c.img")).unwrap();
        assert_ne!(before.uuid, after.uuid, "another input");
        fs::remove_file(at("two/new")).unwrap();
        let set =
            fs::FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000));
        fs::File::open(at("two")).unwrap().set_times(set).unwrap();
    }
}

#[test]
fn the_same_parts_give_the_same_disk() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    tree(&at("tree"), false);
    fs::write(at("file"), vec![3; 100_000]).unwrap();
    let build = |name: &str| {
        let mut disk = DiskBuilder::new().reproducible();
        for kind in Kind::ALL {
            let image = ImageBuilder::new(kind).from_dir(at("tree")).unwrap();
            let mut part = NewPartition::default();
            part.name = kind.name().to_owned();
            part.content = PartitionContent::Image(Box::new(image));
            disk = disk.partition(part);
        }
        let mut part = NewPartition::default();
        part.name = "file".to_owned();
        part.content = PartitionContent::File(at("file"));
        disk.partition(part).write_to(at(name)).unwrap();
    };
    build("one");
    sleep(Duration::from_millis(1100));
    build("two");
    assert_same(&at("one"), &at("two"), "disk");
    fs::write(at("file"), vec![4; 100_000]).unwrap();
    build("three");
    let differs = |range: std::ops::Range<usize>| {
        bytes(&at("one"))[range.clone()] != bytes(&at("three"))[range]
    };
    assert!(differs(512..1024), "another UUID in the table");
}

/// Edits of every kind in an image.
fn edit(image: &Path, tree: &Path, threads: &str) {
    let options = Options::new().reproducible(time());
    let options = options.option("threads", Some(threads)).unwrap();
    let fs = options.open(image).unwrap();
    assert!(fs.is_reproducible());
    let archive = CopyOptions::archive();
    let copied = |from: Place<'_>, to: &str| {
        let to = Place::image(&fs, to);
        let report = copy(&[from], &to, &archive, &mut progress::ignore).unwrap();
        report.complete().unwrap();
    };
    copied(Place::host(tree), "copy");
    copied(Place::image(&fs, "copy/d3"), "again");
    fs.create_dir_all("new/a/b").unwrap();
    fs.write("new/file", vec![5; 40_000_000]).unwrap();
    fs.write("new/small", "small").unwrap();
    fs.replace("new/small", "smaller").unwrap();
    fs.set_xattr("new/small", "user.long", &[b'x'; 600])
        .unwrap();
    fs.rename("copy/d2", "new/moved").unwrap();
    fs.hard_link("new/small", "new/linked").unwrap();
    fs.set_permissions("new/small", 0o640).unwrap();
    fs.remove_dir_all("copy/d1").unwrap();
    let file = fs
        .open_with("new/file", sapwood::OpenOptions::new().write(true))
        .unwrap();
    file.set_len(10_000_000).unwrap();
    file.sync_all().unwrap();
    drop(file);
    if fs.kind() == Kind::Btrfs {
        fs.create_subvolume("sub").unwrap();
        fs.write("sub/file", vec![6; 100_000]).unwrap();
        fs.snapshot("sub", "snap").unwrap();
        fs.delete_subvolume("sub").unwrap();
    }
    fs.close().unwrap();
    let more = NewSize::More(40 << 20);
    sapwood::resize_reproducibly(image, more, time(), &mut progress::ignore).unwrap();
    let least = NewSize::Min(FreeRoom::default());
    sapwood::resize_reproducibly(image, least, time(), &mut progress::ignore).unwrap();
    sapwood::trim_with_options(image, &Options::new().reproducible(time())).unwrap();
}

#[test]
fn edits_depend_on_what_they_do_alone() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    tree(&at("tree"), true);
    for kind in Kind::ALL {
        let builder = ImageBuilder::new(kind)
            .uuid([7; 16])
            .time(time())
            .size(300 << 20);
        builder
            .from_dir(at("tree"))
            .unwrap()
            .write_to(at("base"))
            .unwrap();
        for threads in ["1", "2", "16"] {
            fs::copy(at("base"), at(threads)).unwrap();
            edit(&at(threads), &at("tree"), threads);
            assert_same(
                &at("1"),
                &at(threads),
                &format!("{kind}, {threads} threads"),
            );
        }
        let report = sapwood::check(
            at("1"),
            &sapwood::CheckOptions::default(),
            &mut progress::ignore,
        )
        .unwrap();
        assert!(report.clean, "{kind}");
        let fs = sapwood::open(at("1")).unwrap();
        for path in ["new/small", "copy", "new"] {
            assert_eq!(fs.metadata(path).unwrap().created(), time(), "{path}");
        }
        assert_eq!(
            fs.metadata("copy/d4").unwrap().accessed(),
            UNIX_EPOCH + Duration::from_secs(1_000_000_000)
        );
    }
}
