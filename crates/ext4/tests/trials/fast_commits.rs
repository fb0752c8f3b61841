//! Fast commits by Sapwood: they contain the fsynced changes, as recovered by Sapwood's replay, the
//! kernel's and `e2fsck`'s.
//!
//! Each scenario changes a file system with fast commits and some fsyncs. Then the device is taken
//! as a power cut leaves it. The recovered tree must equal the tree at the last fsync. The kernel's
//! part needs root and loop devices.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::image;
use crate::stories::{STORIES, Story, mount};
use libtest_mimic::{Failed, Trial};
use sapwood_block::MemoryDevice;
use sapwood_ext4::FastCommits;
use sapwood_testing::machine::{Need, Outcome, trial};
use sapwood_testing::oracle::{KernelMount, Kind};
use sapwood_testing::tree::{Detail, Facts, Tree, TreeInode};
use tempfile::TempDir;

type Judge = fn(&Arc<MemoryDevice>, &Tree) -> Outcome;

/// Facts that must be recovered. A recovery may set size and times of a directory that gets a name.
fn kept(_: &str, node: &TreeInode, _: &TreeInode) -> Facts {
    if node.is_dir() {
        Facts::OF_IMAGE - (Facts::MTIME | Facts::CTIME | Facts::SIZE)
    } else {
        Facts::OF_IMAGE
    }
}

/// Compares the synced tree with the recovered one.
fn same(wanted: &Tree, found: &Tree, by: &str) -> Result<(), String> {
    let same = wanted.compare(found, kept);
    same.map_err(|why| format!("what was synced, and {by}: {why}"))
}

/// Forms of the format.
const FORMS: [(&str, &[&str]); 5] = [
    ("default", &[]),
    ("many_groups", &["-b", "1024"]),
    (
        "small_blocks",
        &["-b", "1024", "-O", "^metadata_csum,^64bit"],
    ),
    ("small_inodes", &["-I", "128"]),
    ("orphan_file", &["-b", "2048", "-O", "orphan_file"]),
];

fn run(program: &str, args: &[&std::ffi::OsStr]) -> Result<String, String> {
    let out = Command::new(program).args(args).output();
    let out = out.map_err(|error| format!("{program}: {error}"))?;
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    if out.status.success() || program == "e2fsck" && out.status.code() == Some(1) {
        Ok(text.into_owned())
    } else {
        Err(format!("{program} {args:?}: {}\n{text}", out.status))
    }
}

/// The result of a scenario: the device, and the tree that must be recovered.
fn told(
    form: &[&str],
    story: fn(&Story),
    mode: FastCommits,
) -> Result<(Arc<MemoryDevice>, Tree), Failed> {
    let told = Story::begin(form, mode)?;
    story(&told);
    let device = Arc::new(told.device.snapshot());
    Ok((device, told.durable.take()))
}

fn by_us(device: &Arc<MemoryDevice>, wanted: &Tree) -> Outcome {
    let before = device.snapshot();
    let shown = mount(device, true, FastCommits::Careful)?;
    same(wanted, &Tree::of(&shown, Detail::Sums)?, "memory")?;
    shown.close()?;
    if device.first_difference(&before).is_some() {
        return Err("a read-only mount wrote".into());
    }
    let fs = mount(device, false, FastCommits::Careful)?;
    same(wanted, &Tree::of(&fs, Detail::Sums)?, "ours")?;
    fs.close()?;
    Ok(image::judge(device)?)
}

fn shown_by_kernel(file: &Path) -> Result<Tree, Failed> {
    let mount = KernelMount::new(file, "noatime")?;
    let tree = Tree::of_mount(mount.path(), Detail::Sums);
    mount.unmount()?;
    Ok(tree?)
}

fn by_kernel(device: &Arc<MemoryDevice>, wanted: &Tree) -> Outcome {
    let place = TempDir::new()?;
    let file = place.path().join("image");
    device.save(&file)?;
    let theirs = shown_by_kernel(&file)?;
    same(wanted, &theirs, "the kernel")?;
    run("e2fsck", &["-fn".as_ref(), file.as_ref()])?;
    Ok(())
}

fn by_e2fsck(device: &Arc<MemoryDevice>, wanted: &Tree) -> Outcome {
    let place = TempDir::new()?;
    let file = place.path().join("image");
    device.save(&file)?;
    let said = run("e2fsck", &["-fp".as_ref(), file.as_ref()])?;
    if std::env::var_os("SAPWOOD_SHOW").is_some() {
        eprintln!("{said}");
    }
    run("e2fsck", &["-fn".as_ref(), file.as_ref()])?;
    let repaired = Arc::new(MemoryDevice::load(&file)?);
    let theirs = Tree::of(&mount(&repaired, true, FastCommits::Off)?, Detail::Sums)?;
    Ok(same(wanted, &theirs, "e2fsck")?)
}

fn keep(name: &str, device: &MemoryDevice) {
    if let Some(dir) = std::env::var_os("SAPWOOD_KEEP_IMAGES") {
        let _ = device.save(Path::new(&dir).join(format!("{name}.img")));
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (form, options) in FORMS {
        for (name, story) in STORIES {
            let tell = move |mode| told(options, *story, mode);
            let mut add = |judge: &str, mode, needs: &[Need], judged: Judge| {
                let title = format!("{form}::{name}::{mode:?}::{judge}").to_lowercase();
                let test = move || -> Outcome {
                    let (device, wanted) = tell(mode)?;
                    keep(name, &device);
                    judged(&device, &wanted)
                };
                trials.push(trial(title, needs, test));
            };
            // Mounting takes its time.
            let often = form == FORMS[0].0;
            let more = (!often).then_some(Need::Full);
            let tools = image::TOOLS.iter().copied();
            let mounts = tools.chain([Need::Kernel(Kind::Ext4)]).chain(more);
            let mounts: Vec<Need> = mounts.collect();
            add("ours", FastCommits::Full, image::TOOLS, by_us);
            add("kernel", FastCommits::Full, &mounts, by_kernel);
            add("ours", FastCommits::Careful, image::TOOLS, by_us);
            add("kernel", FastCommits::Careful, &mounts, by_kernel);
            add("e2fsck", FastCommits::Careful, image::TOOLS, by_e2fsck);
        }
    }
    trials
}
