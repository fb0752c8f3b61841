//! Subvolumes and snapshots that we make and delete, judged by `btrfs check` and the kernel; and
//! the kernel's, listed by us.

use std::path::Path;
use std::sync::Arc;

use libtest_mimic::Trial;
use sapwood_block::{Device, FileDevice, OpenOptions};
use sapwood_btrfs::{Btrfs, Options, SubvolumeChoice};
use sapwood_testing::machine::{Need, trial};
use sapwood_testing::oracle::{Kind, TempImage, run};
use sapwood_vfs::{
    Credentials, Error, FileSystem, Ino, NewInode, SubvolumeId, Subvolumes, WriteMode,
};

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

fn close(fs: Btrfs) {
    fs.unmount().unwrap();
}

fn file(fs: &Btrfs, dir: Ino, name: &str, content: &[u8]) -> Ino {
    let who = Credentials::ROOT;
    let made = fs.create(&who, dir, name.as_bytes(), NewInode::Regular, 0o644);
    let ino = made.unwrap().ino();
    fs.write(ino, 0, content, WriteMode::default()).unwrap();
    ino
}

fn mkdir(fs: &Btrfs, dir: Ino, name: &str) -> Ino {
    let made = fs.create(
        &Credentials::ROOT,
        dir,
        name.as_bytes(),
        NewInode::Directory,
        0o755,
    );
    made.unwrap().ino()
}

/// Waits (by committing, which wakes the cleaner) until no deleted subvolume is left on disk.
fn wait_clean(fs: &Btrfs) {
    assert!(fs.finish_cleaning(), "something is in use");
    fs.sync().unwrap();
}

fn made_by_us_read_by_the_kernel() {
    let image = TempImage::new(512 * MIB, &[]);
    let fs = open(image.path());
    let top = fs.root();
    let sub = fs.create_subvolume(top, b"sub").unwrap().ino();
    file(&fs, sub, "a", b"before");
    let dir = mkdir(&fs, sub, "d");
    let nested = fs.create_subvolume(dir, b"nested").unwrap().ino();
    file(&fs, nested, "n", b"nested");
    let snap = fs.snapshot(sub, top, b"snap", false).unwrap().ino();
    let frozen = fs.snapshot(sub, top, b"frozen", true).unwrap().ino();
    let a = fs.lookup(sub, b"a").unwrap().ino();
    fs.write(a, 0, b"after!", WriteMode::default()).unwrap();
    file(&fs, snap, "only-in-snap", b"x");
    let denied = fs.create(&Credentials::ROOT, frozen, b"no", NewInode::Regular, 0o644);
    assert_eq!(denied.unwrap_err(), Error::ReadOnly);
    let list = fs.list().unwrap();
    close(fs);
    image.check();
    let mount = image.mount();
    assert_eq!(
        mount.shell(
            "cat sub/a snap/a frozen/a; ls snap frozen; cat sub/d/nested/n; ls snap/d/nested"
        ),
        "after!beforebeforefrozen:\na\nd\n\nsnap:\na\nd\nonly-in-snap\nnested"
    );
    assert_eq!(
        mount.shell("touch frozen/no 2>/dev/null || echo read-only"),
        "read-only\n"
    );
    let kernel = run(
        "btrfs",
        &[
            "subvolume".as_ref(),
            "list".as_ref(),
            mount.path().as_os_str(),
        ],
    );
    let theirs: Vec<String> = kernel
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap().to_owned())
        .collect();
    let mut ours: Vec<String> = list
        .iter()
        .map(|info| String::from_utf8(info.path.clone()).unwrap())
        .collect();
    assert_eq!(list[2].parent_uuid, list[0].uuid);
    assert!(list[3].read_only && !list[2].read_only);
    let mut theirs = theirs;
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs);
    mount.shell("btrfs subvolume delete snap frozen > /dev/null; btrfs filesystem sync .");
    drop(mount);
    image.check();
}

fn deleted_by_us(args: &'static [&'static str]) {
    let image = TempImage::new(1024 * MIB, args);
    {
        let mount = image.mount();
        mount.shell(
            "btrfs subvolume create a > /dev/null
            for i in $(seq 1 3000); do echo $i > a/f$i; done
            head -c 3000000 /dev/urandom > a/big
            btrfs subvolume snapshot a b > /dev/null
            for i in $(seq 1 7 3000); do echo new > b/f$i; rm a/f$((i + 1)); done
            btrfs subvolume snapshot -r b c > /dev/null
            for i in $(seq 1 11 3000); do echo newer > b/f$i; done
            cp --reflink=always b/big b/big2",
        );
    }
    let before = tree_sums(&image, "b");
    let fs = open(image.path());
    let top = fs.root();
    // The origin of all shared blocks is deleted first: they have to be converted.
    fs.delete_subvolume(top, b"a").unwrap();
    fs.sync().unwrap();
    wait_clean(&fs);
    close(fs);
    image.check();
    assert_eq!(tree_sums(&image, "b"), before);
    let fs = open(image.path());
    fs.delete_subvolume(fs.root(), b"c").unwrap();
    wait_clean(&fs);
    close(fs);
    image.check();
    assert_eq!(tree_sums(&image, "b"), before);
    let fs = open(image.path());
    fs.delete_subvolume(fs.root(), b"b").unwrap();
    wait_clean(&fs);
    let left = fs.list().unwrap();
    close(fs);
    assert!(left.is_empty());
    image.check();
    assert!(!image.dump(Some("root")).contains("ORPHAN"));
}

fn tree_sums(image: &TempImage, dir: &str) -> String {
    let mount = image.mount_with("ro");
    mount.shell(&format!(
        "cd {dir}; find . -type f -print0 | sort -z | xargs -0 md5sum"
    ))
}

fn deleted_by_the_kernel_in_part() {
    // The kernel leaves a dead tree behind when it is unmounted before its cleaner ran.
    let image = TempImage::new(512 * MIB, &[]);
    {
        let mount = image.mount_with("rw,commit=300");
        mount.shell(
            "btrfs subvolume create a > /dev/null
            for i in $(seq 1 2000); do echo $i > a/f$i; done; sync
            btrfs subvolume delete -c a > /dev/null",
        );
    }
    let fs = open(image.path());
    wait_clean(&fs);
    close(fs);
    image.check();
    assert!(!image.dump(Some("root")).contains("ORPHAN"));
}

fn refusals() {
    let image = TempImage::new(256 * MIB, &[]);
    let fs = open(image.path());
    let top = fs.root();
    let sub = fs.create_subvolume(top, b"sub").unwrap().ino();
    fs.create_subvolume(sub, b"inner").unwrap();
    mkdir(&fs, top, "dir");
    let err = |result: sapwood_vfs::Result<()>| result.unwrap_err();
    assert_eq!(err(fs.delete_subvolume(top, b"sub")), Error::NotEmpty);
    assert_eq!(err(fs.delete_subvolume(top, b"none")), Error::NotFound);
    assert_eq!(err(fs.delete_subvolume(top, b"dir")), Error::Invalid);
    assert_eq!(fs.create_subvolume(top, b"sub").unwrap_err(), Error::Exists);
    let dir = fs.lookup(top, b"dir").unwrap().ino();
    assert_eq!(
        fs.snapshot(dir, top, b"s", false).unwrap_err(),
        Error::Invalid
    );
    assert_eq!(
        fs.snapshot(sub, top, b"dir", false).unwrap_err(),
        Error::Exists
    );
    let none = SubvolumeId(9999);
    assert_eq!(err(fs.set_default_subvolume(none)), Error::NotFound);
    fs.delete_subvolume(sub, b"inner").unwrap();
    let id = fs.subvolume_of(sub).unwrap();
    fs.set_default_subvolume(id).unwrap();
    assert_eq!(fs.default_subvolume().unwrap(), id);
    assert_eq!(err(fs.delete_subvolume(top, b"sub")), Error::NotPermitted);
    file(&fs, sub, "f", b"in the default one");
    fs.set_read_only(sub, true).unwrap();
    close(fs);
    image.check();
    let mount = image.mount();
    assert_eq!(
        mount.shell("cat f; touch x 2>/dev/null || echo ro"),
        "in the default onero\n"
    );
    drop(mount);
    let fs = open(image.path());
    assert!(fs.lookup(fs.root(), b"f").is_ok());
    assert_eq!(fs.subvolume_of(fs.root()).unwrap(), id);
    close(fs);
    let options = Options {
        subvolume: SubvolumeChoice::Id(5),
        ..Options::default()
    };
    let fs = open_with(image.path(), options);
    let sub = fs.lookup(fs.root(), b"sub").unwrap().ino();
    fs.set_default_subvolume(SubvolumeId(5)).unwrap();
    fs.delete_subvolume(fs.root(), b"sub").unwrap();
    // A reference to something in it keeps it.
    assert!(!fs.finish_cleaning());
    fs.forget(sub, 1);
    wait_clean(&fs);
    close(fs);
    image.check();
}

fn paths_choose_subvolumes() {
    let image = TempImage::new(256 * MIB, &[]);
    image.mount().shell(
        "mkdir -p x/y; btrfs subvolume create x/y/s >/dev/null; mkdir x/y/s/in
        btrfs subvolume create x/y/s/in/t >/dev/null; echo t > x/y/s/in/t/f",
    );
    let choose = |path: &str| Options {
        subvolume: SubvolumeChoice::Path(path.into()),
        ..Options::default()
    };
    let fs = open_with(image.path(), choose("/x/y/s/in/t"));
    assert!(fs.lookup(fs.root(), b"f").is_ok());
    let paths: Vec<Vec<u8>> = fs.list().unwrap().into_iter().map(|i| i.path).collect();
    assert_eq!(paths, [b"x/y/s".to_vec(), b"x/y/s/in/t".to_vec()]);
    close(fs);
    let device = FileDevice::open(image.path(), OpenOptions::default()).unwrap();
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device)];
    assert!(Btrfs::open(devices, choose("x/none")).is_err());
}

fn many_snapshots() {
    let image = TempImage::new(512 * MIB, &[]);
    let fs = open(image.path());
    let top = fs.root();
    let sub = fs.create_subvolume(top, b"sub").unwrap().ino();
    for i in 0..40 {
        for j in 0..20 {
            file(&fs, sub, &format!("f{i}.{j}"), &[i; 5000]);
        }
        let name = format!("snap{i}");
        let made = fs.snapshot(sub, top, name.as_bytes(), i % 2 == 0).unwrap();
        fs.forget(made.ino(), 1);
    }
    for i in (0..40).step_by(2) {
        fs.delete_subvolume(top, format!("snap{i}").as_bytes())
            .unwrap();
    }
    wait_clean(&fs);
    close(fs);
    image.check();
    let mount = image.mount();
    assert_eq!(mount.shell("ls snap7 | wc -l; ls | wc -l"), "160\n21\n");
}

/// Pseudo-random numbers; the same for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// An expected error of a storm.
fn expected<T>(result: sapwood_vfs::Result<T>, what: &str) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(Error::NotFound | Error::Exists | Error::ReadOnly | Error::Stale | Error::NotEmpty) => {
            None
        }
        Err(err) => panic!("{what}: {err}"),
    }
}

/// Works in a random subvolume: files of random sizes are created, grow and are removed.
fn storm_files(fs: &Btrfs, dice: &mut Dice, rounds: u32) {
    for _ in 0..rounds {
        let name = format!("s{}", dice.roll(6));
        let Some(sub) = expected(fs.lookup(fs.root(), name.as_bytes()), "lookup") else {
            continue;
        };
        for _ in 0..20 {
            let name = format!("f{}", dice.roll(40));
            if dice.roll(3) == 0 {
                expected(fs.unlink(sub.ino(), name.as_bytes()), "unlink");
                continue;
            }
            let who = Credentials::ROOT;
            let what = NewInode::Regular;
            let made = match fs.create(&who, sub.ino(), name.as_bytes(), what, 0o600) {
                Err(Error::Exists) => fs.lookup(sub.ino(), name.as_bytes()),
                other => other,
            };
            let Some(made) = expected(made, "create") else {
                continue;
            };
            let (at, len) = (dice.roll(100_000), dice.roll(60_000) + 1);
            let data = vec![at as u8; len as usize];
            expected(
                fs.write(made.ino(), at, &data, WriteMode::default()),
                "write",
            );
            fs.forget(made.ino(), 1);
        }
        fs.forget(sub.ino(), 1);
    }
}

/// Makes and deletes subvolumes and snapshots.
fn storm_subvolumes(fs: &Btrfs, dice: &mut Dice, rounds: u32) {
    for _ in 0..rounds {
        let (from, to) = (dice.roll(6), dice.roll(6));
        let target = format!("s{to}");
        match dice.roll(4) {
            0 => {
                expected(fs.delete_subvolume(fs.root(), target.as_bytes()), "delete");
            }
            1 => {
                let made = fs.create_subvolume(fs.root(), target.as_bytes());
                if let Some(made) = expected(made, "create subvolume") {
                    fs.forget(made.ino(), 1);
                }
            }
            _ => {
                let name = format!("s{from}");
                let Some(source) = expected(fs.lookup(fs.root(), name.as_bytes()), "lookup") else {
                    continue;
                };
                let read_only = dice.roll(8) == 0;
                let made = fs.snapshot(source.ino(), fs.root(), target.as_bytes(), read_only);
                if let Some(made) = expected(made, "snapshot") {
                    fs.forget(made.ino(), 1);
                }
                fs.forget(source.ino(), 1);
            }
        }
    }
}

fn storm(seed: u64) {
    let image = TempImage::new(1024 * MIB, &["-n", "4096"]);
    let fs = open(image.path());
    for i in 0..3 {
        let made = fs.create_subvolume(fs.root(), format!("s{i}").as_bytes());
        fs.forget(made.unwrap().ino(), 1);
    }
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let fs = &fs;
            scope.spawn(move || {
                let mut dice = Dice(seed * 1000 + thread + 1);
                match thread {
                    0 => storm_subvolumes(fs, &mut dice, 600),
                    _ => storm_files(fs, &mut dice, 500),
                }
            });
        }
    });
    assert!(fs.finish_cleaning(), "seed {seed}: something is in use");
    close(fs);
    if let Err(found) = image.try_check() {
        panic!("seed {seed}: {found}");
    }
    image
        .mount()
        .shell("find . -type f -print0 | xargs -0 cat > /dev/null");
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut tests = vec![
        trial(
            "made_by_us_read_by_the_kernel",
            ALL,
            made_by_us_read_by_the_kernel,
        ),
        trial(
            "deleted_by_the_kernel_in_part",
            ALL,
            deleted_by_the_kernel_in_part,
        ),
        trial("refusals", ALL, refusals),
        trial("paths_choose_subvolumes", ALL, paths_choose_subvolumes),
        trial("many_snapshots", ALL, many_snapshots),
    ];
    let variants: &[(&str, &[&str])] = &[
        ("default", &[]),
        ("nodesize_4k", &["-n", "4096"]),
        ("old_extent_items", &["-O", "^skinny-metadata"]),
    ];
    for &(name, args) in variants {
        let test = move || deleted_by_us(args);
        tests.push(trial(format!("deleted_by_us::{name}"), ALL, test));
    }
    for seed in 1..=3 {
        tests.push(trial(format!("storm::{seed}"), ALL, move || storm(seed)));
    }
    tests
}
