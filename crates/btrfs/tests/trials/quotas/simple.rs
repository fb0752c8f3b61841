//! Simple quotas: ours and the kernel's, which each keeps for the other.

use std::sync::Arc;

use libtest_mimic::Trial;
use sapwood_block::{Device, FileDevice, OpenOptions};
use sapwood_btrfs::quota_groups::{Limits, QuotaChange, change, show, show_on};
use sapwood_testing::machine::{Need, trial};
use sapwood_testing::oracle::{Kind, TempImage};
use sapwood_vfs::{CopyMode, Error, FileSystem, Subvolumes, SyncKind, WriteMode};

use super::{Dice, MIB, at, close, create, file, group, noise, numbers, open, storm_files};

/// Turns simple quotas on, which btrfs-progs knows only in newer versions.
const ENABLE_SIMPLE: &str = "python3 -c 'import fcntl, os, struct
directory = os.open(\".\", os.O_RDONLY)
fcntl.ioctl(directory, 0xc0109428, struct.pack(\"<QQ\", 4, 0))'";

/// Fails unless the numbers of simple quotas are right by our count, which follows the extents, and
/// the kernel reads the same ones.
#[track_caller]
fn assert_simple(image: &TempImage) -> String {
    let device = FileDevice::open(image.path(), OpenOptions::default()).unwrap();
    let report = sapwood_btrfs::check::check(&[&device], &Default::default(), &mut |_| ()).unwrap();
    // mkfs.btrfs and the kernel leave free-space items that a check mentions.
    assert!(report.is_clean(), "{:?}", report.findings);
    let device: Arc<dyn Device> = Arc::new(device);
    let ours = show_on(&[device], false).unwrap().unwrap();
    assert!(ours.consistent);
    let mount = image.mount();
    let shown = mount.shell("btrfs qgroup show --raw -pcre .");
    for group in &ours.groups {
        let numbers = numbers(&shown, &group.id.to_string());
        assert_eq!((group.referenced, group.exclusive), numbers, "{shown}");
    }
    shown
}

fn simple_quotas_of_the_kernel_are_kept() {
    let image = TempImage::new(512 * MIB, &["-n", "4096"]);
    image.mount().shell(&format!(
        "for i in $(seq 50); do head -c 20000 /dev/urandom > old$i; done; sync
        {ENABLE_SIMPLE}
        btrfs subvolume create a > /dev/null; btrfs subvolume create b > /dev/null
        btrfs qgroup create 1/1 .; btrfs qgroup assign --no-rescan 0/256 1/1 .
        for i in $(seq 200); do head -c 20000 /dev/urandom > a/f$i; done; cp -r a/. b/
        sync; btrfs subvolume snapshot a s > /dev/null; rm a/f1*; sync"
    ));
    assert_simple(&image);
    let fs = open(image.path());
    let (top, a, b) = (fs.root(), at(&fs, "a"), at(&fs, "b"));
    for i in 20..60 {
        let ino = at(&fs, &format!("a/f{i}"));
        fs.write(ino, 4096, &noise(5000, i), WriteMode::default())
            .unwrap();
        fs.unlink(b, format!("f{i}").as_bytes()).unwrap();
        fs.unlink(top, format!("old{}", i - 10).as_bytes()).ok();
    }
    fs.fsync(at(&fs, "a/f21"), SyncKind::All).unwrap();
    let inner = fs.create_subvolume(a, b"inner").unwrap().ino();
    file(&fs, inner, "x", &noise(100_000, 1));
    fs.snapshot(inner, top, b"copy", false).unwrap();
    let shared = create(&fs, b, "shared").unwrap();
    let x = at(&fs, "copy/x");
    fs.copy_range(x, 0, shared, 0, 98_304, CopyMode::ShareOnly)
        .unwrap();
    fs.unlink(at(&fs, "copy"), b"x").unwrap();
    storm_files(&fs, &mut Dice(5), 20);
    fs.sync().unwrap();
    let cut = TempImage::from_bytes(&std::fs::read(image.path()).unwrap());
    assert_simple(&cut);
    fs.delete_subvolume(top, b"s").unwrap();
    fs.forget(b, 8);
    fs.forget(shared, 1);
    assert!(fs.finish_cleaning());
    close(fs);
    let shown = assert_simple(&image);
    let id = shown.lines().find(|line| line.ends_with(" a/inner"));
    let id = id.unwrap().split_whitespace().next().unwrap();
    let members = shown.lines().find(|line| line.starts_with("1/1 ")).unwrap();
    assert!(members.contains(&format!("0/256,{id}")), "{shown}");
    image.mount().shell(
        "rm -r b/* a/f2*; echo y > a/new
        btrfs subvolume delete -c copy > /dev/null; btrfs subvolume sync . > /dev/null",
    );
    assert_simple(&image);
}

fn simple_quotas_of_ours_are_kept_by_the_kernel() {
    let image = TempImage::new(512 * MIB, &[]);
    let fs = open(image.path());
    let a = fs.create_subvolume(fs.root(), b"a").unwrap().ino();
    let before = file(&fs, a, "before", &noise(300_000, 1));
    fs.sync().unwrap();
    change(&fs, QuotaChange::EnableSimple).unwrap();
    let refused = change(&fs, QuotaChange::Rescan).unwrap_err().to_string();
    assert!(refused.contains("not counted anew"), "{refused}");
    file(&fs, a, "after", &noise(300_000, 2));
    change(&fs, QuotaChange::Create(group("1/7"))).unwrap();
    change(&fs, QuotaChange::Assign(group("256"), group("1/7"))).unwrap();
    let limits = Limits {
        referenced: Some(Some(2 << 20)),
        exclusive: None,
    };
    change(&fs, QuotaChange::Limit(group("1/7"), limits)).unwrap();
    let refused = fs.write(before, 0, &noise(2 << 20, 3), WriteMode::default());
    assert_eq!(refused.unwrap_err(), Error::Quota);
    fs.write(before, 0, &noise(100_000, 4), WriteMode::default())
        .unwrap();
    close(fs);
    let shown = assert_simple(&image);
    assert!(numbers(&shown, "1/7").0 > 400_000, "{shown}");
    image.mount().shell(
        "rm a/before; head -c 500000 /dev/urandom > a/new; sync
        head -c 3000000 /dev/urandom > a/much 2> /dev/null && exit 1; rm a/much; sync",
    );
    assert_simple(&image);
    let fs = open(image.path());
    change(&fs, QuotaChange::Disable).unwrap();
    assert_eq!(show(&fs).unwrap(), None);
    change(&fs, QuotaChange::Enable).unwrap();
    close(fs);
    let mount = image.mount();
    let show = "btrfs qgroup show --raw -pcre .";
    let ours = mount.shell(show);
    assert_eq!(
        ours,
        mount.shell(&format!("btrfs quota rescan -w . > /dev/null; {show}"))
    );
}

pub(super) fn trials() -> Vec<Trial> {
    let needs: &[Need] = &[
        Need::Program("mkfs.btrfs"),
        Need::Program("btrfs"),
        Need::Program("python3"),
        Need::Kernel(Kind::Btrfs),
    ];
    vec![
        trial(
            "simple_quotas_of_the_kernel_are_kept",
            needs,
            simple_quotas_of_the_kernel_are_kept,
        ),
        trial(
            "simple_quotas_of_ours_are_kept_by_the_kernel",
            needs,
            simple_quotas_of_ours_are_kept_by_the_kernel,
        ),
    ]
}
