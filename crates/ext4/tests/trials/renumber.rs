//! An ext4 shrinks below the numbers of its inodes: inodes of its last groups get other numbers.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood_block::{Device, MemoryDevice};
use sapwood_ext4::check::{CheckOptions, check};
use sapwood_ext4::resize::{ResizeError, resize, shrink_to_fit, size};
use sapwood_ext4::{Ext4, Options};
use sapwood_testing::machine::{Need, note, trial};
use sapwood_testing::oracle::{KernelMount, Kind, Saved, ext4};
use sapwood_testing::tree::{Detail, Facts, Tree};
use sapwood_testing::{CrashPlan, RecordDevice, Replayer, process};
use sapwood_vfs::FileSystem;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(120);
const NEEDS: [Need; 3] = [
    Need::Kernel(Kind::Ext4),
    Need::Program("setfattr"),
    Need::Program("resize2fs"),
];

/// Groups of 2 MiB with 128 inodes each.
const SMALL_GROUPS: &str = "-b 1024 -g 2048 -N 4096 -J size=1";

/// The kernel's files in every group: it spreads the directories of the root.
const FILL: &str = r#"
for d in $(seq 1 30); do
    mkdir -p d$d/sub/deep
    echo $d >d$d/small
    head -c $((d * 700)) /dev/urandom >d$d/sub/file
    setfattr -n user.a -v short-$d d$d/small
    setfattr -n user.b -v "$(printf '%0600d' $d)" d$d/sub/file
    setfattr -n user.c -v "$(printf '%0600d' 7)" d$d/sub/deep
    ln -s ../target d$d/fast
    ln -s $(printf '%090d' $d) d$d/slow
    mkfifo d$d/fifo
    mknod d$d/null c 1 3
    chmod 1710 d$d/sub
    chown 7:70000 d$d/small
    touch -d '2001-02-03 04:05:06.789' d$d/small d$d/sub
done
ln d3/small d17/sub/other; ln d17/small d2/other; ln d20/sub/file d21/sub/deep/again
ln d30/small d30/sub/again
mkdir d29/many
for n in $(seq 1 500); do echo >d29/many/name-that-is-long-enough-$n; done
for n in $(seq 0 2 60); do
    dd if=/dev/urandom of=d28/sparse bs=1024 count=1 seek=$n conv=notrunc status=none
done
"#;

/// An image of `mke2fs` that the kernel filled. `None`: the kernel cannot mount it.
fn filled(size: u64, args: &str, script: &str) -> Option<Arc<MemoryDevice>> {
    let image = ext4::image(size, args);
    let filled = ext4::try_kernel_writes(&image, |at| {
        process::shell(at, script, LIMIT).unwrap();
    });
    filled.ok()
}

fn tree(device: &MemoryDevice) -> Tree {
    let options = Options {
        read_only: true,
        ..Options::default()
    };
    let device: Arc<dyn Device> = Arc::new(device.snapshot());
    let fs = Ext4::open(device, options).unwrap();
    let tree = Tree::of(&fs, Detail::Sums).unwrap();
    fs.unmount().unwrap();
    tree
}

/// All facts but numbers, and blocks of maps, which a move may join.
const ALL: Facts = Facts::PLAIN
    .union(Facts::DATA)
    .union(Facts::FLAGS)
    .union(Facts::TIMES);

fn same(before: &Tree, after: &Tree, what: &str) {
    let compared = before.compare(after, |_, _, _| ALL);
    compared.unwrap_or_else(|why| panic!("{what}: {why}"));
}

/// How many paths lead to another number.
fn renumbered(before: &Tree, after: &Tree) -> usize {
    let (before, after) = (before.paths(), after.paths());
    let other = |(path, ino): &(&String, _)| after.get(*path) != Some(*ino);
    before.iter().filter(other).count()
}

fn checked(device: &Arc<MemoryDevice>) -> Result<(), String> {
    let device: Arc<dyn Device> = device.clone();
    let report = check(&device, &CheckOptions::default(), &mut |_| {
        ControlFlow::Continue(())
    });
    let report = report.map_err(|error| error.to_string())?;
    report
        .errors()
        .next()
        .map_or(Ok(()), |e| Err(e.to_string()))
}

/// The image as small as possible, on a device of that size.
fn smallest(image: &MemoryDevice) -> Arc<MemoryDevice> {
    let memory = Arc::new(image.snapshot());
    let device: Arc<dyn Device> = memory.clone();
    let least = shrink_to_fit(&device, 0, None, &mut |_| ()).unwrap();
    Arc::new(memory.resized(least))
}

/// The size that `resize2fs -M` gives it.
fn smallest_by_tool(image: &MemoryDevice) -> u64 {
    let saved = Saved::new(image);
    let path = saved.path();
    process::run("resize2fs", &["-f", "-M", path.to_str().unwrap()]).unwrap();
    size(&*saved.load()).unwrap()
}

/// Shrinks an image and compares everything. Returns the trees before and after.
fn shrunk(image: &MemoryDevice, small: &Arc<MemoryDevice>, what: &str) -> (Tree, Tree) {
    ext4::clean(image, what);
    let before = tree(image);
    checked(small).unwrap_or_else(|why| panic!("{what}: {why}"));
    ext4::clean(small, what);
    let after = tree(small);
    same(&before, &after, what);
    let (ours, theirs) = (small.size(), smallest_by_tool(image));
    assert!(ours <= theirs, "{what}: {ours}, resize2fs {theirs}");
    (before, after)
}

/// Shrinks like [`shrunk`]; the kernel mounts and changes the result. Returns the number of paths
/// with other inodes.
fn shrinks(image: &MemoryDevice, what: &str) -> usize {
    let small = smallest(image);
    let (before, after) = shrunk(image, &small, what);
    let kernel = ext4::kernel_writes(&small, |at| {
        let theirs = Tree::of_mount(at, Detail::Sums).unwrap();
        let facts = ALL - (Facts::ATIME | Facts::FLAGS | Facts::DATA);
        let compared = after.compare(&theirs, |_, _, _| facts);
        compared.unwrap_or_else(|why| panic!("{what}, kernel: {why}"));
        process::shell(at, "rm -r d29; mv d30 new; chmod 700 new", LIMIT).unwrap();
    });
    ext4::clean(&kernel, what);
    renumbered(&before, &after)
}

fn inodes_of_the_last_groups_move() {
    for features in [
        "",
        "-I 128 -O ^metadata_csum,^64bit,^extents,^flex_bg,uninit_bg",
        "-O ^has_journal,^metadata_csum,^uninit_bg,^dir_index",
        "-O ^has_journal",
        "-O inline_data,orphan_file -I 512",
        "-O meta_bg,^resize_inode",
    ] {
        let args = format!("{SMALL_GROUPS} {features}");
        let args = if features.contains("^has_journal") {
            args.replace("-J size=1", "")
        } else {
            args
        };
        let Some(image) = filled(64 * MIB, &args, FILL) else {
            eprintln!("the kernel cannot mount {features:?}");
            continue;
        };
        let moved = shrinks(&image, features);
        assert!(moved > 20, "{features:?}: {moved}");
    }
}

/// Values of attributes in inodes of their own, some of them shared by two attributes.
fn inodes_of_values_move() {
    let script = format!(
        r#"{FILL}
        for d in $(seq 1 30); do
            setfattr -n user.own -v "$(printf '%03000d' $d)" d$d/small
            setfattr -n user.shared -v "$(printf '%03000d' 777)" d$d/sub
            setfattr -n user.two -v "$(printf '%02000d' $d)" d$d/small
            for n in $(seq 1 6); do
                setfattr -n user.v$n -v "$(printf '%02000d' $n$d)" d$d/sub/file
            done
        done"#
    );
    let args = format!("{SMALL_GROUPS} -O ea_inode");
    let image = filled(64 * MIB, &args, &script).unwrap();
    let moved = shrinks(&image, "ea_inode");
    assert!(moved > 20, "{moved}");
}

/// Names and contents are encrypted with a key that the kernel has for tests.
fn encrypted_directories_move() {
    let image = ext4::image(64 * MIB, &format!("{SMALL_GROUPS} -O encrypt"));
    let dummy = |saved: &Saved| {
        KernelMount::at(&saved.path(), "test_dummy_encryption", &saved.beside("mnt"))
    };
    let saved = Saved::new(&image);
    let Ok(mount) = dummy(&saved) else {
        note(
            Some("encrypted_directories_move"),
            "no test_dummy_encryption",
        );
        return;
    };
    process::shell(mount.path(), FILL, LIMIT).unwrap();
    let before = Tree::of_mount(mount.path(), Detail::Sums).unwrap();
    mount.unmount().unwrap();
    let image = saved.load();
    let small = smallest(&image);
    checked(&small).unwrap();
    ext4::clean(&small, "encrypt");
    let saved = Saved::new(&small);
    let mount = dummy(&saved).unwrap();
    let after = Tree::of_mount(mount.path(), Detail::Sums).unwrap();
    let compared = before.compare(&after, |_, _, _| ALL - Facts::ATIME);
    compared.unwrap_or_else(|why| panic!("{why}"));
    assert!(renumbered(&before, &after) > 20);
    process::shell(mount.path(), "rm -r d30; echo x >d28/new", LIMIT).unwrap();
    mount.unmount().unwrap();
    ext4::clean(&saved.load(), "encrypt, changed");
}

fn stable_inodes_keep_their_groups() {
    let args = format!("{SMALL_GROUPS} -O stable_inodes");
    let image = filled(64 * MIB, &args, FILL).unwrap();
    let before = tree(&image);
    let small = smallest(&image);
    let after = tree(&small);
    same(&before, &after, "stable_inodes");
    assert_eq!(renumbered(&before, &after), 0);
    let last = before.paths().values().map(|ino| ino.0).max().unwrap();
    let groups = small.size().div_ceil(2 * MIB);
    assert_eq!(groups, last.div_ceil(128), "{last}");
    let device: Arc<dyn Device> = small.clone();
    let refused = resize(&device, small.size() - 4 * MIB, None, &mut |_| ());
    let refused = refused.unwrap_err();
    assert!(
        matches!(refused, ResizeError::Pinned { .. })
            && refused.to_string().contains("stable_inodes"),
        "{refused}"
    );
    same(&before, &tree(&small), "after a refusal");
    ext4::clean(&small, "after a refusal");
}

/// The orphan file is an inode like others, which only the superblock names.
fn the_orphan_file_moves() {
    let fill = "mkdir d{1..30}
        for d in d*; do touch $d/{1..150} 2>/dev/null || true; done
        rm $(find . -type f -printf '%i %p\\n' | sort -n | tail -n 1 | cut -d ' ' -f 2)";
    let full = filled(64 * MIB, SMALL_GROUPS, fill).unwrap();
    let saved = Saved::new(&full);
    let path = saved.path();
    process::run("tune2fs", &["-O", "orphan_file", path.to_str().unwrap()]).unwrap();
    let image = ext4::kernel_writes(&saved.load(), |at| {
        process::shell(at, "rm -r d*; mkdir -p d30/sub d29; echo x >d30/x", LIMIT).unwrap();
    });
    let number = |image: &MemoryDevice| -> u32 {
        let super_block = ext4::dumpe2fs(image);
        let mut lines = super_block.lines();
        let value = lines.find_map(|line| line.strip_prefix("Orphan file inode:"));
        value.unwrap().trim().parse().unwrap()
    };
    let before = number(&image);
    assert!(before > 3000, "{before}");
    shrinks(&image, "full");
    let after = number(&smallest(&image));
    assert!(after < 3000, "{after}");
}

fn a_name_of_a_free_inode_is_refused() {
    let image = filled(64 * MIB, SMALL_GROUPS, "mkdir d{1..30}; touch d{1..30}/x").unwrap();
    let before = tree(&image);
    let wrong = ext4::debugfs_only(&image, "ln <4090> /d1/wrong");
    let device: Arc<dyn Device> = wrong.clone();
    let refused = shrink_to_fit(&device, 0, None, &mut |_| ()).unwrap_err();
    assert!(refused.to_string().contains("4090"), "{refused}");
    drop(device);
    let mended = ext4::debugfs_only(&wrong, "unlink /d1/wrong");
    assert_eq!(size(&*mended).unwrap(), 64 * MIB);
    assert_eq!(renumbered(&before, &tree(&mended)), 0);
}

/// More subdirectories than the journal has blocks: each names its parent.
fn an_inode_with_too_many_names_for_the_journal_keeps_its_group() {
    let script = format!(
        "{FILL}
        last=$(stat -c '%i %n' d*/sub | sort -n | tail -n 1 | cut -d ' ' -f 2)
        mkdir $last/{{1..1100}}"
    );
    let args = SMALL_GROUPS.replace("4096", "8192");
    let image = filled(64 * MIB, &args, &script).unwrap();
    let before = tree(&image);
    let last = |tree: &Tree| {
        let paths = tree.paths().into_iter();
        let subs = paths.filter(|(path, _)| path.ends_with("/sub"));
        subs.map(|(_, ino)| ino).max().unwrap()
    };
    // A group has 256 inodes.
    let start = (last(&before).0 - 1) / 256 * 2 * MIB;
    let device: Arc<dyn Device> = Arc::new(image.snapshot());
    let refused = resize(&device, start, None, &mut |_| ()).unwrap_err();
    assert!(refused.to_string().contains("journal"), "{refused}");
    let small = smallest(&image);
    ext4::clean(&small, "many subdirectories");
    let after = tree(&small);
    same(&before, &after, "many subdirectories");
    assert_eq!(last(&before), last(&after));
    assert!(small.size() < image.size());
}

/// Small enough for every cut to be tried.
const FEW: &str = r#"
for d in $(seq 1 12); do
    mkdir -p d$d/sub
    head -c $((d * 900)) /dev/urandom >d$d/file
    setfattr -n user.b -v "$(printf '%0600d' $d)" d$d/file
done
ln d9/file d2/other; ln d12/file d12/sub/again
mkdir d11/many
for n in $(seq 1 120); do echo >d11/many/name-that-is-long-enough-$n; done
"#;

/// Shrinks an image and tries power cuts: every `step`th.
fn cuts(image: &MemoryDevice, step: usize, mut judge: impl FnMut(Arc<MemoryDevice>, &CrashPlan)) {
    let memory = Arc::new(image.snapshot());
    let record = Arc::new(RecordDevice::new(Arc::clone(&memory)));
    let device: Arc<dyn Device> = record.clone();
    shrink_to_fit(&device, 0, None, &mut |_| ()).unwrap();
    let log = record.log();
    let mut replayer = Replayer::new(&log, image);
    for at in log.crash_points().into_iter().step_by(step) {
        let plan = CrashPlan::at(at);
        judge(Arc::new(replayer.image(&plan)), &plan);
        let mut plan = log.random_plan(at, at as u64);
        plan.torn.clear();
        judge(Arc::new(log.image(image, &plan)), &plan);
    }
}

fn a_cut_of_a_renumbering_leaves_the_same_tree() {
    let image = filled(32 * MIB, SMALL_GROUPS, FEW).unwrap();
    let before = tree(&image);
    let (mut number, mut some) = (0, 0);
    cuts(&image, 1, |cut, plan| {
        let device: Arc<dyn Device> = cut.clone();
        let fs = Ext4::open(device, Options::default()).unwrap();
        fs.unmount().unwrap();
        drop(fs);
        let after = tree(&cut);
        same(&before, &after, &format!("{plan:?}"));
        let moved = renumbered(&before, &after);
        some += usize::from(moved > 0 && moved < 100);
        checked(&cut).unwrap_or_else(|why| panic!("{plan:?}: {why}"));
        number += 1;
        if number % 16 == 0 {
            ext4::clean(&cut, &format!("{plan:?}"));
        }
    });
    assert!(some > 0 && number > 60, "{some} {number}");
}

/// The file system has a journal while inodes move. Before and after, `e2fsck` frees blocks.
fn a_cut_without_a_journal_leaves_the_same_tree() {
    for features in ["-O ^has_journal", "-O ^has_journal,^extents,^64bit"] {
        let args = SMALL_GROUPS.replace("-J size=1", features);
        let image = filled(32 * MIB, &args, FEW).unwrap();
        let before = tree(&image);
        let (mut number, mut some) = (0, 0);
        cuts(&image, 4, |cut, plan| {
            let what = format!("{features}, {plan:?}");
            let after = tree(&cut);
            same(&before, &after, &what);
            let moved = renumbered(&before, &after);
            some += usize::from(moved > 0 && moved < 100);
            number += 1;
            if number % 4 == 0 {
                let saved = Saved::new(&cut);
                let mut e2fsck = process::command("e2fsck", &["-fy"]);
                // Its status is not 0 if it changed something.
                let _ = process::finish(e2fsck.arg(saved.path()), LIMIT);
                same(&before, &tree(&saved.load()), &what);
                ext4::clean(&saved.load(), &what);
            }
        });
        assert!(some > 0 && number > 60, "{some} {number}");
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    macro_rules! trials {
        ($($test:ident),* $(,)?) => { vec![$(trial(stringify!($test), &NEEDS, $test)),*] };
    }
    trials![
        inodes_of_the_last_groups_move,
        inodes_of_values_move,
        encrypted_directories_move,
        stable_inodes_keep_their_groups,
        the_orphan_file_moves,
        a_name_of_a_free_inode_is_refused,
        an_inode_with_too_many_names_for_the_journal_keeps_its_group,
        a_cut_of_a_renumbering_leaves_the_same_tree,
        a_cut_without_a_journal_leaves_the_same_tree,
    ]
}
