//! Fast commits that we write: what they say is what was fsynced, by our own replay, by the kernel's and by `e2fsck`'s.
//!
//! Each story changes a file system with fast commits and fsyncs here and there. Then the device is taken as a power cut leaves
//! it. What is recovered must be the tree at the last fsync. The kernel's part needs root and loop devices.

mod image;
mod stories;
mod tree;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use sapwood_block::MemoryDevice;
use stories::{STORIES, Story, mount};
use tempfile::TempDir;
use tree::Tree;

type Outcome = Result<(), Failed>;

/// What recoveries may set as they like in directories that get a name.
const OF_DIRECTORIES: [&str; 3] = ["mtime", "ctime", "size"];

/// Forms of the format.
const FORMS: [(&str, &[&str]); 4] = [
    ("default", &[]),
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
    match out.status.success() || program == "e2fsck" && out.status.code() == Some(1) {
        true => Ok(text.into_owned()),
        false => Err(format!("{program} {args:?}: {}\n{text}", out.status)),
    }
}

/// What a story leaves: the device, and the tree that must be recovered.
fn told(form: &[&str], story: fn(&Story)) -> Result<(Arc<MemoryDevice>, Tree), Failed> {
    let told = Story::begin(form)?;
    story(&told);
    let device = Arc::new(told.device.snapshot());
    Ok((device, told.durable.take()))
}

fn by_us(device: &Arc<MemoryDevice>, wanted: &Tree) -> Outcome {
    let before = device.snapshot();
    let shown = mount(device, true)?;
    wanted.compare(
        &Tree::of_ours(&shown)?,
        "what was synced",
        "memory",
        &OF_DIRECTORIES,
    )?;
    shown.close()?;
    if device.first_difference(&before).is_some() {
        return Err("a read-only mount wrote".into());
    }
    let fs = mount(device, false)?;
    wanted.compare(
        &Tree::of_ours(&fs)?,
        "what was synced",
        "ours",
        &OF_DIRECTORIES,
    )?;
    fs.close()?;
    Ok(image::judge(device)?)
}

fn shown_by_kernel(file: &Path) -> Result<Tree, Failed> {
    let target = TempDir::new()?;
    let (target, options) = (target.path(), "loop,noatime".as_ref());
    let args = ["-t".as_ref(), "ext4".as_ref(), "-o".as_ref(), options];
    let all: Vec<_> = args
        .into_iter()
        .chain([file.as_ref(), target.as_ref()])
        .collect();
    run("mount", &all)?;
    let tree = Tree::of_mount(target);
    run("umount", &[target.as_ref()])?;
    Ok(tree?)
}

fn by_kernel(device: &Arc<MemoryDevice>, wanted: &Tree) -> Outcome {
    let place = TempDir::new()?;
    let file = place.path().join("image");
    device.save(&file)?;
    let theirs = shown_by_kernel(&file)?;
    wanted.compare(&theirs, "what was synced", "the kernel", &OF_DIRECTORIES)?;
    run("e2fsck", &["-fn".as_ref(), file.as_ref()])?;
    Ok(())
}

fn by_e2fsck(device: &Arc<MemoryDevice>, wanted: &Tree) -> Outcome {
    let place = TempDir::new()?;
    let file = place.path().join("image");
    device.save(&file)?;
    let said = run("e2fsck", &["-fy".as_ref(), file.as_ref()])?;
    if std::env::var_os("SAPWOOD_SHOW").is_some() {
        eprintln!("{said}");
    }
    run("e2fsck", &["-fn".as_ref(), file.as_ref()])?;
    let repaired = Arc::new(MemoryDevice::load(&file)?);
    let theirs = Tree::of_ours(&mount(&repaired, true)?)?;
    Ok(wanted.compare(&theirs, "what was synced", "e2fsck", &OF_DIRECTORIES)?)
}

/// Whether the kernel mounts an image here.
fn mounts() -> bool {
    image::missing().is_none()
        && rustix::process::geteuid().is_root()
        && TempDir::new().is_ok_and(|place| {
            let file = place.path().join("image");
            let saved = image::formatted(16 << 20, &[]).save(&file);
            saved.is_ok() && shown_by_kernel(&file).is_ok()
        })
}

fn keep(name: &str, device: &MemoryDevice) {
    if let Some(dir) = std::env::var_os("SAPWOOD_KEEP_IMAGES") {
        let _ = device.save(Path::new(&dir).join(format!("{name}.img")));
    }
}

fn main() {
    image::show_log();
    let arguments = Arguments::from_args();
    let (tools, mounts) = (image::missing().is_none(), mounts());
    let mut trials = Vec::new();
    for (form, options) in FORMS {
        for (name, story) in STORIES {
            let title = format!("{form}::{name}");
            let ours = move || {
                let (device, wanted) = told(options, *story)?;
                keep(name, &device);
                by_us(&device, &wanted)
            };
            let kernel = move || {
                let (device, wanted) = told(options, *story)?;
                by_kernel(&device, &wanted)
            };
            let e2fsck = move || {
                let (device, wanted) = told(options, *story)?;
                by_e2fsck(&device, &wanted)
            };
            trials.push(Trial::test(format!("{title}::ours"), ours).with_ignored_flag(!tools));
            trials.push(Trial::test(format!("{title}::kernel"), kernel).with_ignored_flag(!mounts));
            trials.push(Trial::test(format!("{title}::e2fsck"), e2fsck).with_ignored_flag(!tools));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
