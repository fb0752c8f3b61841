//! Streams of ext4 images: damaged images, and states of one directory.

use std::fs::{self, File, FileTimes};
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use sapwood::{FileSystem, ImageBuilder, Options, SendOptions, SendReport};

const SIZE: u64 = 8 << 20;

/// Bytes that a mutant may change: inode tables, directories and maps are in such pages.
const PAGE: usize = 1024;

fn fill(dir: &Path) {
    for number in 0..12 {
        let below = dir.join(format!("d{number}"));
        fs::create_dir_all(&below).unwrap();
        for file in 0..12 {
            let name = below.join(format!("file-{file}"));
            fs::write(&name, vec![b'a'; file * 700]).unwrap();
        }
        fs::hard_link(below.join("file-3"), below.join("link")).unwrap();
        symlink("file-1", below.join("short")).unwrap();
        symlink("x".repeat(300), below.join("long")).unwrap();
        let sparse = File::create(below.join("sparse")).unwrap();
        for hole in 0..12 {
            sparse.write_all_at(b"data", hole * 9000).unwrap();
        }
    }
}

fn build(tree: &Path, image: &Path) {
    // Without checksums more damage is not known as such.
    let builder = ImageBuilder::ext4().size(SIZE).replace(true);
    let builder = builder.option("O", Some("^metadata_csum")).unwrap();
    let builder = builder.from_dir(tree).unwrap();
    builder.write_to(image).unwrap();
}

fn open(image: &Path) -> sapwood::Result<FileSystem> {
    Options::new().read_only(true).open(image)
}

fn send(new: &FileSystem, old: Option<&FileSystem>) -> sapwood::Result<SendReport> {
    let mut options = SendOptions::default();
    options.version = 2;
    options.parent_image = old.cloned();
    new.send("", io::sink(), &options, &mut |_| {})
}

#[test]
fn damaged_images_end_in_a_stream_or_an_error() {
    const MUTANTS: u64 = 200;
    let dir = tempfile::tempdir().unwrap();
    let (tree, good, bad) = (
        dir.path().join("t"),
        dir.path().join("good"),
        dir.path().join("bad"),
    );
    fill(&tree);
    build(&tree, &good);
    let bytes = fs::read(&good).unwrap();
    let is_metadata =
        |page: &[u8]| page.iter().any(|byte| *byte != 0) && !page.starts_with(b"aaaa");
    let pages = bytes.chunks(PAGE).enumerate();
    let pages: Vec<usize> = pages
        .filter_map(|(number, page)| is_metadata(page).then_some(number * PAGE))
        .collect();
    let whole = open(&good).unwrap();
    let (mut sent, mut refused) = (0, 0);
    for seed in 0..MUTANTS {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut bytes = bytes.clone();
        for _ in 0..1 + seed % 8 {
            let at = pages[random.usize(..pages.len())] + random.usize(..PAGE);
            bytes[at] = match random.u8(..3) {
                0 => random.u8(..),
                1 => bytes[at].wrapping_add(1),
                _ => 0xff,
            };
        }
        fs::write(&bad, bytes).unwrap();
        let Ok(mutant) = open(&bad) else {
            refused += 1;
            continue;
        };
        let results = [
            send(&mutant, None),
            send(&mutant, Some(&whole)),
            send(&whole, Some(&mutant)),
        ];
        for result in results {
            match result {
                Ok(_) => sent += 1,
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    refused += 1;
                }
            }
        }
    }
    assert!(sent > 0 && refused > 0, "{sent} sent, {refused} refused");
}

#[test]
fn an_image_that_is_open_for_writing_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("t"), dir.path().join("image"));
    fill(&tree);
    build(&tree, &image);
    let fs = sapwood::open(&image).unwrap();
    let error = send(&fs, None).unwrap_err();
    assert!(error.to_string().contains("open for writing"), "{error}");
    fs.close().unwrap();
    let report = send(&open(&image).unwrap(), None).unwrap();
    assert_eq!(report.inodes, 12 * 17);
}

#[test]
fn directories_of_one_image_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("t"), dir.path().join("image"));
    fill(&tree);
    build(&tree, &image);
    let fs = open(&image).unwrap();
    let whole = send(&fs, None).unwrap();
    // The same directory, and another one with the same content.
    let mut options = SendOptions::default();
    options.parent = Some("d1".into());
    let report = |path: &str| fs.send(path, io::sink(), &options, &mut |_| {}).unwrap();
    assert_eq!(report("d1").inodes, 0);
    assert_eq!(report("d2").content, 0);
    assert!(report("d2").size < whole.size / 12);
}

/// Two directories with equal times, built with one UUID and one fixed time.
fn builds(dir: &Path, change: impl FnOnce(&Path)) -> [FileSystem; 2] {
    let (tree, time) = (
        dir.join("t"),
        SystemTime::UNIX_EPOCH + Duration::from_secs(1000),
    );
    let aged = |path: &Path| {
        let times = FileTimes::new().set_modified(time).set_accessed(time);
        File::open(path).unwrap().set_times(times).unwrap();
    };
    let built = |name: &str| {
        for path in [&tree.join("d/file"), &tree.join("d"), &tree] {
            aged(path);
        }
        let builder = ImageBuilder::ext4().size(SIZE).uuid([7; 16]).time(time);
        let builder = builder.from_dir(&tree).unwrap();
        builder.write_to(dir.join(name)).unwrap();
        open(&dir.join(name)).unwrap()
    };
    fs::create_dir_all(tree.join("d")).unwrap();
    fs::write(tree.join("d/file"), vec![b'a'; 9000]).unwrap();
    let old = built("old");
    change(&tree.join("d"));
    [old, built("new")]
}

#[test]
fn equal_inodes_of_a_fixed_time_prove_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let [old, new] = builds(dir.path(), |dir| {
        let file = File::options().write(true).open(dir.join("file")).unwrap();
        file.write_all_at(b"b", 5000).unwrap();
    });
    let attr = |fs: &FileSystem| fs.metadata("d/file").unwrap();
    assert_eq!(attr(&old), attr(&new));
    // One block.
    assert_eq!(send(&new, Some(&old)).unwrap().content, 1024);
    assert_eq!(send(&old, Some(&old)).unwrap().content, 0);
}

#[test]
fn a_directory_whose_names_changed_gets_its_times() {
    let dir = tempfile::tempdir().unwrap();
    let [old, new] = builds(dir.path(), |dir| {
        fs::hard_link(dir.join("file"), dir.join("link")).unwrap();
    });
    let report = send(&new, Some(&old)).unwrap();
    assert_eq!((report.inodes, report.content), (2, 0));
}

/// The image `old`, and a mounted copy of it with other bytes in `/file`, whose inode is the same.
fn overwritten(dir: &Path, mounted: bool) -> [FileSystem; 2] {
    let (old, new) = (dir.join("old"), dir.join("new"));
    let builder = ImageBuilder::ext4().size(SIZE).replace(true);
    builder.write_to(&old).unwrap();
    let fs = sapwood::open(&old).unwrap();
    fs.write("/file", b"before".repeat(2000)).unwrap();
    fs.close().unwrap();
    fs::copy(&old, &new).unwrap();
    let mut bytes = if mounted {
        let copy = dir.join("copy");
        fs::copy(&old, &copy).unwrap();
        let fs = sapwood::open(&copy).unwrap();
        let bytes = fs::read(&copy).unwrap();
        fs.close().unwrap();
        bytes
    } else {
        fs::read(&new).unwrap()
    };
    let at = bytes.windows(12).position(|bytes| bytes == b"beforebefore");
    bytes[at.unwrap()] = b'B';
    fs::write(&new, bytes).unwrap();
    [open(&old).unwrap(), open(&new).unwrap()]
}

#[test]
fn different_content_with_one_identity_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [old, new] = overwritten(dir.path(), false);
    let mut options = SendOptions::default();
    options.parent_image = Some(old.clone());
    let send = |options: &SendOptions| new.send("", io::sink(), options, &mut |_| {});
    // The inode did not change.
    assert_eq!(send(&options).unwrap().content, 0);
    options.content = true;
    let error = send(&options).unwrap_err();
    assert!(error.to_string().contains("same identity"), "{error}");
    options.parent_image = Some(new.clone());
    assert_eq!(send(&options).unwrap().inodes, 0);
}

#[test]
fn inodes_of_an_image_that_was_not_unmounted_prove_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let [old, new] = overwritten(dir.path(), true);
    let error = send(&new, Some(&old)).unwrap_err();
    assert!(error.to_string().contains("same identity"), "{error}");
}

#[cfg(all(target_os = "linux", not(sapwood_portable)))]
#[test]
fn a_state_that_is_its_own_parent_keeps_the_record_of_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let [old, _] = overwritten(dir.path(), false);
    let target = dir.path().join("target");
    fs::create_dir(&target).unwrap();
    let stream = |name: &str, parent: bool| {
        let mut options = SendOptions::default();
        options.name = Some(name.into());
        options.parent_image = parent.then(|| old.clone());
        let mut bytes = Vec::new();
        old.send("", &mut bytes, &options, &mut |_| {}).unwrap();
        bytes
    };
    let receive = |stream: &[u8]| {
        let options = sapwood::ReceiveOptions::default();
        sapwood::receive(&target, stream, &options, &mut |_| {})
    };
    receive(&stream("a", false)).unwrap();
    for _ in 0..2 {
        let error = receive(&stream("b", true)).unwrap_err();
        assert!(error.to_string().contains("same UUID"), "{error}");
    }
    assert!(!target.join("b.part").exists());
}
