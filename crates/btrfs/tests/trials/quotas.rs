//! Quota groups that we keep up to date: `btrfs check` counts them, and the kernel counts them anew.

mod simple;
mod storm;

use std::path::Path;
use std::sync::Arc;

use libtest_mimic::Trial;
use sapwood_block::{Device, FileDevice, OpenOptions};
use sapwood_btrfs::quota_groups::{GroupId, Limits, QuotaChange, change, change_on, show, show_on};
use sapwood_btrfs::{Btrfs, Compression, Error as Failed, Options};
use sapwood_btrfs_format::ChecksumKind;
use sapwood_testing::machine::{Need, trial};
use sapwood_testing::oracle::{Kind, TempImage, run};
use sapwood_vfs::{
    AllocMode, CopyMode, Credentials, Error, FileSystem, Ino, NewInode, RenameMode, Subvolumes,
    SyncKind, WriteMode,
};

use storm::{Dice, storm_files};

const MIB: u64 = 1 << 20;
const ALL: &[Need] = &[
    Need::Program("mkfs.btrfs"),
    Need::Program("btrfs"),
    Need::Kernel(Kind::Btrfs),
];

fn open_with(path: &Path, options: Options) -> Btrfs {
    let device = FileDevice::open(path, OpenOptions::default()).unwrap();
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device)];
    Btrfs::open(devices, options).unwrap()
}

fn open(path: &Path) -> Btrfs {
    open_with(path, Options::default())
}

/// An image of the kernel with quotas and some subvolumes, a shared group among them.
fn image(args: &[&str], script: &str) -> TempImage {
    let image = TempImage::new(512 * MIB, args);
    let script =
        format!("btrfs quota enable .\n{script}\nsync; btrfs quota rescan -w . > /dev/null");
    image.mount().shell(&script);
    image
}

/// Fails unless the numbers of an image are right: by the count of `btrfs check`, by the status,
/// and by a rescan of the kernel, which must change none.
#[track_caller]
fn assert_right(image: &TempImage) -> String {
    image.check();
    let tree = image.dump(Some("quota"));
    assert!(tree.contains("flags ON"), "{tree}");
    assert!(!tree.contains("INCONSISTENT"), "{tree}");
    let mount = image.mount_with("ro");
    let show = "btrfs qgroup show --raw -pcre .";
    let ours = mount.shell(show);
    drop(mount);
    let mount = image.mount();
    let kernel = mount.shell(&format!("btrfs quota rescan -w . > /dev/null; {show}"));
    assert_eq!(ours, kernel);
    ours
}

/// Numbers of a group in the output of `btrfs qgroup show`: referenced and exclusive bytes.
#[track_caller]
fn numbers(shown: &str, group: &str) -> (u64, u64) {
    let line = shown
        .lines()
        .find(|line| line.split_whitespace().next() == Some(group));
    let line = line.unwrap_or_else(|| panic!("no group {group} in\n{shown}"));
    let mut words = line.split_whitespace().skip(1).map(|n| n.parse().unwrap());
    (words.next().unwrap(), words.next().unwrap())
}

/// Unmounts, and releases the image.
fn close(fs: Btrfs) {
    fs.unmount().unwrap();
}

fn at(fs: &Btrfs, path: &str) -> Ino {
    let mut ino = fs.root();
    for name in path.split('/') {
        ino = fs.lookup(ino, name.as_bytes()).unwrap().ino();
    }
    ino
}

fn create(fs: &Btrfs, dir: Ino, name: &str) -> Result<Ino, Error> {
    let who = Credentials::ROOT;
    let made = fs.create(&who, dir, name.as_bytes(), NewInode::Regular, 0o644)?;
    Ok(made.ino())
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut dice = Dice(seed | 1);
    (0..len).map(|_| dice.roll(256) as u8).collect()
}

fn file(fs: &Btrfs, dir: Ino, name: &str, content: &[u8]) -> Ino {
    let ino = create(fs, dir, name).unwrap();
    fs.write(ino, 0, content, WriteMode::default()).unwrap();
    ino
}

const TREES: &str = "btrfs subvolume create a > /dev/null; btrfs subvolume create b > /dev/null
    btrfs qgroup create 1/1 .; btrfs qgroup assign --no-rescan 0/256 1/1 .
    btrfs qgroup assign --no-rescan 0/257 1/1 .
    for i in $(seq 300); do head -c 20000 /dev/urandom > a/f$i; done
    cp -r a/. b/; cp --reflink=always a/f1 b/shared; sync
    btrfs subvolume snapshot a s > /dev/null; btrfs subvolume snapshot -r a r > /dev/null";

fn every_operation_keeps_the_numbers() {
    let image = image(&[], TREES);
    let fs = open(image.path());
    let (a, b, s) = (at(&fs, "a"), at(&fs, "b"), at(&fs, "s"));
    // Overwrites, in shared and in own extents, and the log.
    for i in 1..60 {
        let ino = at(&fs, &format!("a/f{i}"));
        fs.write(ino, 4096 * (i % 4), &noise(5000, i), WriteMode::default())
            .unwrap();
        if i % 10 == 0 {
            fs.fsync(ino, SyncKind::All).unwrap();
        }
    }
    fs.sync().unwrap();
    for i in 100..150 {
        fs.unlink(s, format!("f{i}").as_bytes()).unwrap();
        fs.unlink(b, format!("f{i}").as_bytes()).unwrap();
    }
    let big = file(&fs, b, "big", &noise(3 << 20, 5));
    fs.sync().unwrap();
    let copy = create(&fs, a, "copy").unwrap();
    fs.copy_range(big, 0, copy, 0, 3 << 20, CopyMode::ShareOnly)
        .unwrap();
    fs.fallocate(
        copy,
        4 << 20,
        8 << 20,
        AllocMode::Allocate { keep_size: false },
    )
    .unwrap();
    fs.write(copy, 5 << 20, &noise(100_000, 6), WriteMode::default())
        .unwrap();
    fs.rename(a, b"f200", a, b"f201", RenameMode::Replace)
        .unwrap();
    for i in 0..500 {
        file(&fs, s, &format!("small{i}"), &noise(i, i as u64));
    }
    close(fs);
    assert_right(&image);
}

fn compressed_data_counts_its_bytes_on_disk() {
    let image = image(&[], TREES);
    let options = Options {
        compress: Some(Compression::Zstd(3)),
        ..Options::default()
    };
    let fs = open_with(image.path(), options);
    let a = at(&fs, "a");
    file(&fs, a, "zeros", &vec![7; 4 << 20]);
    file(&fs, a, "noise", &noise(1 << 20, 9));
    close(fs);
    assert_right(&image);
}

fn subvolumes_come_and_go() {
    let image = image(&["-n", "4096"], TREES);
    let fs = open(image.path());
    let top = fs.root();
    let new = fs.create_subvolume(top, b"new").unwrap().ino();
    file(&fs, new, "x", &noise(100_000, 1));
    fs.forget(new, 1);
    // A group of several subvolumes loses exclusive bytes by such a snapshot, so `new` is none of
    // them.
    fs.snapshot(at(&fs, "new"), top, b"n1", false).unwrap();
    let n1 = at(&fs, "n1");
    file(&fs, n1, "y", &noise(50_000, 2));
    fs.write(at(&fs, "n1/x"), 0, &noise(9000, 3), WriteMode::default())
        .unwrap();
    fs.snapshot(n1, top, b"n2", true).unwrap();
    fs.snapshot(at(&fs, "r"), top, b"r2", false).unwrap();
    fs.sync().unwrap();
    let inside = std::fs::read(image.path()).unwrap();
    assert_right(&TempImage::from_bytes(&inside));
    close(fs);
    let shown = assert_right(&image);
    let (referenced, exclusive) = numbers(&shown, "0/258");
    assert!(referenced > 5_000_000 && exclusive < 100_000, "{shown}");
    let fs = open(image.path());
    for name in ["new", "s", "r", "n2"] {
        fs.delete_subvolume(fs.root(), name.as_bytes()).unwrap();
    }
    assert!(fs.finish_cleaning());
    close(fs);
    let shown = assert_right(&image);
    assert!(!shown.contains("0/258"), "{shown}");
}

fn a_snapshot_out_of_a_group_is_marked() {
    let image = image(&[], TREES);
    let fs = open(image.path());
    let top = fs.root();
    fs.snapshot(at(&fs, "b"), top, b"out", false).unwrap();
    close(fs);
    image.check();
    let tree = image.dump(Some("quota"));
    assert!(tree.contains("INCONSISTENT"), "{tree}");
    let mount = image.mount();
    mount.shell("btrfs quota rescan -w . > /dev/null");
    drop(mount);
    let fs = open(image.path());
    file(&fs, at(&fs, "out"), "x", &noise(100_000, 1));
    close(fs);
    assert_right(&image);
}

/// Each copy of the image after a sync is an image that a power cut left.
fn every_commit_has_the_numbers() {
    let image = image(&["-n", "4096"], TREES);
    let fs = open(image.path());
    let mut dice = Dice(77);
    for round in 0..6 {
        storm_files(&fs, &mut dice, 3);
        fs.sync().unwrap();
        let cut = TempImage::from_bytes(&std::fs::read(image.path()).unwrap());
        cut.check();
        let tree = cut.dump(Some("quota"));
        assert!(!tree.contains("INCONSISTENT"), "round {round}: {tree}");
    }
    // With a log, which the next mount replays.
    let logged = file(&fs, at(&fs, "a"), "logged", &noise(200_000, 8));
    fs.fsync(logged, SyncKind::All).unwrap();
    let cut = TempImage::from_bytes(&std::fs::read(image.path()).unwrap());
    let mut content = vec![0; 200_000];
    {
        let fs = open(cut.path());
        let found = at(&fs, "a/logged");
        assert_eq!(fs.read(found, 0, &mut content).unwrap(), content.len());
        close(fs);
    }
    assert_eq!(content, noise(200_000, 8));
    assert_right(&cut);
    close(fs);
    assert_right(&image);
}

fn limits_refuse_in_time() {
    let image = image(
        &[],
        "btrfs subvolume create a > /dev/null; btrfs subvolume create b > /dev/null
        btrfs qgroup create 1/1 .; btrfs qgroup create 2/1 .
        btrfs qgroup assign --no-rescan 0/257 1/1 .; btrfs qgroup assign --no-rescan 1/1 2/1 .
        btrfs qgroup limit 10M 0/256 .; btrfs qgroup limit -e 5M 2/1 .",
    );
    let fs = open(image.path());
    for (sub, most) in [("a", 10 << 20), ("b", 5 << 20)] {
        let dir = at(&fs, sub);
        let big = create(&fs, dir, "big").unwrap();
        let (mut written, piece) = (0, noise(256 << 10, 3));
        let refused = loop {
            match fs.write(big, written, &piece, WriteMode::default()) {
                Ok(_) => written += piece.len() as u64,
                Err(error) => break error,
            }
            assert!(written < 20 << 20, "{sub}: no limit");
        };
        assert_eq!(refused, Error::Quota, "{sub}");
        assert!(
            written > most * 9 / 10 && written <= most,
            "{sub}: {written}"
        );
        let more = fs.fallocate(
            big,
            20 << 20,
            1 << 20,
            AllocMode::Allocate { keep_size: true },
        );
        assert_eq!(more.unwrap_err(), Error::Quota, "{sub}");
        let mut made = 0;
        let refused = loop {
            match create(&fs, dir, &format!("f{made}")) {
                Ok(ino) => fs.forget(ino, 1),
                Err(error) => break error,
            }
            made += 1;
            assert!(made < 5000, "{sub}: no limit for names");
        };
        assert_eq!(refused, Error::Quota, "{sub}");
        // Deletion makes room, also before the next commit.
        fs.forget(big, 1);
        fs.unlink(dir, b"big").unwrap();
        let again = create(&fs, dir, "again").unwrap();
        fs.write(again, 0, &piece, WriteMode::default()).unwrap();
    }
    // The other subvolumes are free.
    file(&fs, fs.root(), "free", &noise(12 << 20, 1));
    close(fs);
    assert_right(&image);
}

fn group(text: &str) -> GroupId {
    text.parse().unwrap()
}

/// Changes that the groups do not allow.
fn refuses_by_name(fs: &Btrfs) {
    for (refused, why) in [
        (
            QuotaChange::Create(group("1/7")),
            "quota group 1/7: it exists",
        ),
        (
            QuotaChange::Assign(group("2/7"), group("1/7")),
            "quota group 2/7: a member needs a lower level than its group",
        ),
        (
            QuotaChange::Assign(group("1/7"), group("1/7")),
            "quota group 1/7: a member needs a lower level than its group",
        ),
        (
            QuotaChange::Unassign(group("257"), group("1/7")),
            "quota group 0/257: it is no member",
        ),
        (
            QuotaChange::Remove(group("1/7")),
            "quota group 1/7: it has members",
        ),
        (
            QuotaChange::Remove(group("256")),
            "quota group 0/256: its subvolume exists",
        ),
        (QuotaChange::Remove(group("3/1")), "no quota group 3/1"),
    ] {
        assert_eq!(change(fs, refused).unwrap_err().to_string(), why);
    }
}

/// Quotas that we turn on, relate, limit and turn off, on an image and in a mount.
fn changed_by_us_read_by_the_kernel() {
    let image = TempImage::new(512 * MIB, &[]);
    let fs = open(image.path());
    let top = fs.root();
    let a = fs.create_subvolume(top, b"a").unwrap().ino();
    file(&fs, a, "x", &noise(300_000, 1));
    fs.create_subvolume(top, b"b").unwrap();
    file(&fs, at(&fs, "b"), "y", &noise(100_000, 2));
    fs.snapshot(a, top, b"s", false).unwrap();
    assert_eq!(show(&fs).unwrap(), None);
    assert!(matches!(
        change(&fs, QuotaChange::Rescan),
        Err(Failed::NoQuotas)
    ));
    change(&fs, QuotaChange::Enable).unwrap();
    file(&fs, at(&fs, "b"), "z", &noise(70_000, 3));
    for step in [
        QuotaChange::Create(group("1/7")),
        QuotaChange::Create(group("2/7")),
        QuotaChange::Assign(group("256"), group("1/7")),
        QuotaChange::Assign(group("258"), group("1/7")),
        QuotaChange::Assign(group("1/7"), group("2/7")),
        QuotaChange::Assign(group("257"), group("2/7")),
    ] {
        change(&fs, step).unwrap();
    }
    refuses_by_name(&fs);
    let limits = Limits {
        referenced: Some(Some(64 << 20)),
        exclusive: Some(Some(1 << 20)),
    };
    change(&fs, QuotaChange::Limit(group("2/7"), limits)).unwrap();
    let who = Credentials::ROOT;
    let made = fs.create(&who, at(&fs, "b"), b"much", NewInode::Regular, 0o644);
    let much = made.unwrap().ino();
    let piece = noise(2 << 20, 4);
    let refused = fs.write(much, 0, &piece, WriteMode::default());
    assert_eq!(refused.unwrap_err(), Error::Quota);
    change(&fs, QuotaChange::Unassign(group("257"), group("2/7"))).unwrap();
    fs.write(much, 0, &piece, WriteMode::default()).unwrap();
    fs.sync().unwrap();
    let ours = show(&fs).unwrap().unwrap();
    assert!(ours.consistent);
    close(fs);
    let shown = assert_right(&image);
    assert_eq!(ours.groups.len(), 6, "{shown}");
    for group in &ours.groups {
        let numbers = numbers(&shown, &group.id.to_string());
        assert_eq!((group.referenced, group.exclusive), numbers, "{shown}");
    }
    assert!(shown.contains("67108864"), "{shown}");
    let devices = || -> Vec<Arc<dyn Device>> {
        let device = FileDevice::open(image.path(), OpenOptions::default()).unwrap();
        vec![Arc::new(device)]
    };
    assert!(show_on(&devices(), false).unwrap().is_some());
    change_on(&devices(), false, None, QuotaChange::Disable).unwrap();
    image.check();
    assert_eq!(show_on(&devices(), false).unwrap(), None);
    let mount = image.mount();
    let off = mount.shell("btrfs qgroup show . 2>&1 || true");
    assert!(off.contains("not enabled"), "{off}");
    mount.shell("btrfs quota enable .; touch a/later; sync; btrfs quota rescan -w . > /dev/null");
    drop(mount);
    change_on(&devices(), false, None, QuotaChange::Enable).unwrap();
    assert_right(&image);
}

/// Relations that contradict the groups do not prevent changes of files, and are named.
fn a_hostile_quota_tree_is_named() {
    let image = image(
        &[],
        "btrfs subvolume create a > /dev/null; btrfs qgroup create 1/1 .
        btrfs qgroup assign --no-rescan 0/256 1/1 .",
    );
    let mut bytes = std::fs::read(image.path()).unwrap();
    let tree = image.dump(Some("quota"));
    let leaf = tree.lines().find_map(|line| line.strip_prefix("leaf "));
    let logical: u64 = leaf.unwrap().split(' ').next().unwrap().parse().unwrap();
    let map = run(
        "btrfs-map-logical",
        &["-l", &logical.to_string(), image.path().to_str().unwrap()],
    );
    let nodesize = 16384;
    for line in map.lines().filter(|line| line.contains("physical")) {
        let mut words = line
            .split_whitespace()
            .skip_while(|word| *word != "physical");
        let at: usize = words.nth(1).unwrap().parse().unwrap();
        let block = &mut bytes[at..at + nodesize];
        // The member of the relations becomes a subvolume without a group.
        let (old, new) = (256u64.to_le_bytes(), 300u64.to_le_bytes());
        let relation = 246;
        for at in 101..nodesize - 25 {
            let key = &block[at..at + 17];
            if key[8] != relation {
                continue;
            }
            if key[..8] == old {
                block[at..at + 8].copy_from_slice(&new);
            } else if key[9..17] == old {
                block[at + 9..at + 17].copy_from_slice(&new);
            }
        }
        ChecksumKind::Crc32c.seal_block(block);
    }
    let image = TempImage::from_bytes(&bytes);
    let fs = open(image.path());
    let named = show(&fs).unwrap_err().to_string();
    assert!(
        named.contains("group of the relation does not exist"),
        "{named}"
    );
    file(&fs, at(&fs, "a"), "x", &noise(100_000, 1));
    close(fs);
    let tree = image.dump(Some("quota"));
    assert!(tree.contains("INCONSISTENT"), "{tree}");
    let fs = open(image.path());
    change(&fs, QuotaChange::Disable).unwrap();
    change(&fs, QuotaChange::Enable).unwrap();
    close(fs);
    assert_right(&image);
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut tests = vec![
        trial(
            "every_operation_keeps_the_numbers",
            ALL,
            every_operation_keeps_the_numbers,
        ),
        trial(
            "compressed_data_counts_its_bytes_on_disk",
            ALL,
            compressed_data_counts_its_bytes_on_disk,
        ),
        trial("subvolumes_come_and_go", ALL, subvolumes_come_and_go),
        trial(
            "a_snapshot_out_of_a_group_is_marked",
            ALL,
            a_snapshot_out_of_a_group_is_marked,
        ),
        trial(
            "every_commit_has_the_numbers",
            ALL,
            every_commit_has_the_numbers,
        ),
        trial("limits_refuse_in_time", ALL, limits_refuse_in_time),
        trial(
            "changed_by_us_read_by_the_kernel",
            ALL,
            changed_by_us_read_by_the_kernel,
        ),
        trial(
            "a_hostile_quota_tree_is_named",
            ALL,
            a_hostile_quota_tree_is_named,
        ),
    ];
    tests.extend(simple::trials());
    for seed in 1..=3 {
        tests.push(trial(format!("storm::{seed}"), ALL, move || {
            storm::storm(seed)
        }));
    }
    tests
}
