//! Journals that the kernel wrote: what we recover is what the kernel and `e2fsck` recover, and
//! what was there.
//!
//! `journals/` has images as a power cut left them, with a listing of what the kernel recovered.
//! Where root, loop devices and the kernel's ext4 are, `scripts/kernel-journals` makes many more
//! kinds, with and without fast commits; all of them with `SAPWOOD_FULL=1`, some without.

mod image;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed};
use sapwood_block::{Device as _, MemoryDevice};
use sapwood_ext4::{Ext4, Options};
use sapwood_testing::machine::{Need, Outcome, missing, trial};
use sapwood_testing::oracle::{KernelMount, Kind};
use sapwood_testing::tree::{Detail, Facts, Tree, TreeInode};
use sapwood_vfs::Timestamp;
use tempfile::TempDir;

/// Kinds that always run.
const QUICK: [&str; 6] = [
    "new_files+fast",
    "unlinks+fast",
    "revokes",
    "escaped_small_blocks",
    "wrapped",
    "orphans",
];

/// Facts of a directory that a recovery may set if the directory gets a name.
const OF_DIRECTORIES: Facts = Facts::MTIME.union(Facts::CTIME).union(Facts::SIZE);

/// Compares two recoveries, without these facts of directories.
fn same(
    (one, mine): (&str, &Tree),
    (other, theirs): (&str, &Tree),
    left_out: Facts,
) -> Result<(), String> {
    let same = mine.compare(theirs, |_, node, _| {
        if node.is_dir() {
            Facts::OF_IMAGE - left_out
        } else {
            Facts::OF_IMAGE
        }
    });
    same.map_err(|why| format!("{one} and {other}: {why}"))
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/journals")
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts")
}

fn run(program: &str, args: &[&std::ffi::OsStr]) -> Result<String, String> {
    let out = Command::new(program).args(args).output();
    let out = out.map_err(|error| format!("{program}: {error}"))?;
    let mut text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&out.stderr));
    // 1 of e2fsck: it corrected something.
    if out.status.success() || program == "e2fsck" && out.status.code() == Some(1) {
        return Ok(text);
    }
    let errors = String::from_utf8_lossy(&out.stderr);
    Err(format!(
        "{program} {args:?}: {}\n{text}{errors}",
        out.status
    ))
}

/// What the kernel shows of an image, which it recovers.
fn by_kernel(path: &Path) -> Result<Tree, Failed> {
    let mount = KernelMount::new(path, "noatime")?;
    let tree = Tree::of_mount(mount.path(), Detail::Sums);
    mount.unmount()?;
    Ok(tree?)
}

fn open(device: &Arc<MemoryDevice>, read_only: bool) -> Result<Ext4, Failed> {
    let options = Options {
        read_only,
        noatime: true,
        ..Options::default()
    };
    Ok(Ext4::open(device.clone(), options)?)
}

/// Recovers an image, in memory and for good. Returns what it shows.
fn by_us(device: &Arc<MemoryDevice>) -> Result<Tree, Failed> {
    let before = device.snapshot();
    let begun = Timestamp::now();
    let shown = open(device, true)?;
    let in_memory = Tree::of(&shown, Detail::Sums)?;
    shown.close()?;
    if device.first_difference(&before).is_some() {
        return Err("a read-only mount wrote".into());
    }
    let fs = open(device, false)?;
    let tree = Tree::of(&fs, Detail::Sums)?;
    fs.close()?;
    // A replay of fast commits gives the directories that it changes its own time.
    let late = |time: Option<Timestamp>| time >= Some(begun);
    let same_or_late = |_: &str, one: &TreeInode, two: &TreeInode| {
        let mut facts = Facts::OF_IMAGE;
        for time in [Facts::MTIME, Facts::CTIME] {
            let of = |node: &TreeInode| match time {
                Facts::MTIME => node.times.map(|times| times.mtime),
                _ => node.times.map(|times| times.ctime),
            };
            facts.set(time, !(one.is_dir() && late(of(one)) && late(of(two))));
        }
        facts
    };
    let same_so_far = in_memory.compare(&tree, same_or_late);
    same_so_far.map_err(|why| format!("in memory and for good: {why}"))?;
    image::judge(device)?;
    let again = open(device, false)?;
    let shown = Tree::of(&again, Detail::Sums)?;
    same(
        ("mounted again", &shown),
        ("recovered", &tree),
        Facts::empty(),
    )?;
    again.close()?;
    Ok(tree)
}

fn like_e2fsck(ours: &Tree, image: &Path) -> Outcome {
    let said = run("e2fsck", &["-fy".as_ref(), image.as_ref()])?;
    if said.contains("while recovering journal") {
        return Err("it does not recover the journal".into());
    }
    let repaired = Arc::new(MemoryDevice::load(image)?);
    let theirs = Tree::of(&open(&repaired, true)?, Detail::Sums)?;
    Ok(same(("ours", ours), ("e2fsck's", &theirs), OF_DIRECTORIES)?)
}

/// Whether the superblock has the feature.
fn fast_commits(device: &MemoryDevice) -> Result<bool, Failed> {
    let mut features = [0; 4];
    device.read_at(1024 + 0x5c, &mut features)?;
    Ok(u32::from_le_bytes(features) & 0x400 != 0)
}

/// Compares our recovery with that of `e2fsck` and, if it can be mounted, of the kernel.
fn against_others(name: &str, device: &Arc<MemoryDevice>, mounts: bool) -> Outcome {
    let place = TempDir::new()?;
    let (checked, mounted) = (place.path().join("checked"), place.path().join("mounted"));
    device.save(&checked)?;
    device.save(&mounted)?;
    let ours = by_us(device)?;
    if let Err(difference) = like_e2fsck(&ours, &checked) {
        if !fast_commits(device)? {
            return Err(difference);
        }
        // e2fsck 1.47 gives up on fast commits that a later commit made old, and drops
        // transactions; it deletes a file that was emptied and written again, and keeps one that
        // was unlinked. Then the kernel says what is right.
        eprintln!(
            "e2fsck recovers {name} otherwise: {}",
            difference.message().unwrap_or_default()
        );
    }
    if mounts {
        let theirs = by_kernel(&mounted)?;
        let mut left_out = OF_DIRECTORIES;
        if let Err(wrong) = run("e2fsck", &["-fn".as_ref(), mounted.as_ref()])
            && fast_commits(device)?
        {
            // Linux 6.18 does not count the links of directories that fast commits made.
            eprintln!("the kernel leaves {name} damaged: {wrong}");
            left_out |= Facts::LINKS;
        }
        same(("ours", &ours), ("the kernel's", &theirs), left_out)?;
        let saved = place.path().join("ours");
        device.save(&saved)?;
        let shown = by_kernel(&saved)?;
        same(
            ("ours", &ours),
            ("shown by the kernel", &shown),
            Facts::empty(),
        )?;
    }
    Ok(())
}

fn fixture(name: &str, mounts: bool) -> Outcome {
    let packed = std::fs::read(directory().join(format!("{name}.img.zst")))?;
    let bytes = zstd::decode_all(&packed[..])?;
    let wanted = std::fs::read_to_string(directory().join(format!("{name}.txt")))?;
    let device = Arc::new(MemoryDevice::from_bytes(&bytes));
    let ours = by_us(&device)?;
    // The data map of the listing was taken after the files were read, when unwritten blocks in
    // memory count as data.
    let noted = ours.compare(&Tree::of_text(&wanted)?, |path, node, _| match path {
        "." => Facts::KIND | Facts::PERM | Facts::LINKS,
        _ if node.is_dir() => Facts::OF_IMAGE - (OF_DIRECTORIES | Facts::DATA),
        _ => Facts::OF_IMAGE - Facts::DATA,
    });
    noted.map_err(|why| format!("ours, and the listing: {why}"))?;
    against_others(name, &Arc::new(MemoryDevice::from_bytes(&bytes)), mounts)
}

fn kind(name: &str) -> Outcome {
    let place = TempDir::new()?;
    // One that was made before.
    let made = std::env::var_os("SAPWOOD_JOURNALS");
    let made = made.map(|dir| Path::new(&dir).join(format!("{name}.img")));
    if let Some(made) = made.filter(|made| made.exists()) {
        return against_others(name, &Arc::new(MemoryDevice::load(&made)?), true);
    }
    run(
        scripts()
            .join("kernel-journals")
            .to_str()
            .unwrap_or_default(),
        &[place.path().as_ref(), name.as_ref()],
    )?;
    let device = MemoryDevice::load(place.path().join(format!("{name}.img")))?;
    against_others(name, &Arc::new(device), true)
}

fn names_in(directory: &Path, ending: &str) -> Vec<String> {
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter_map(|name| name.strip_suffix(ending).map(str::to_owned))
        .collect();
    names.sort();
    names
}

fn main() {
    image::show_log();
    let arguments = Arguments::from_args();
    let kernel = [image::TOOLS, &[Need::Kernel(Kind::Ext4)]].concat();
    let mounts = missing(&kernel).is_none();
    let mut trials = Vec::new();
    let fixtures = names_in(&directory(), ".img.zst");
    assert!(!fixtures.is_empty(), "no journals");
    for name in fixtures {
        let title = format!("kept::{name}");
        trials.push(trial(title, image::TOOLS, move || fixture(&name, mounts)));
    }
    let kinds = names_in(&scripts().join("kernel-journals.d"), "");
    assert!(kinds.len() >= 20, "kinds of journals");
    for name in kinds
        .iter()
        .flat_map(|name| [name.clone(), format!("{name}+fast")])
    {
        let file = scripts()
            .join("kernel-journals.d")
            .join(name.trim_end_matches("+fast"));
        let text = std::fs::read_to_string(file).unwrap_or_default();
        if name.ends_with("+fast") && text.lines().any(|line| line.starts_with("# fast: no")) {
            continue;
        }
        let more = (!QUICK.contains(&name.as_str())).then_some(Need::Full);
        let needs: Vec<Need> = kernel.iter().copied().chain(more).collect();
        let title = format!("made::{name}");
        trials.push(trial(title, &needs, move || kind(&name)));
    }
    libtest_mimic::run(&arguments, trials).exit();
}
