//! Oracles for unit tests: images of `mke2fs`, judged by `e2fsck`, `dumpe2fs` and the kernel.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use sapwood_block::{Device, MemoryDevice};
use sapwood_vfs::{Credentials, FileSystem, Ino, NewInode};
use tempfile::TempDir;

use crate::engine::Engine;
use crate::{Ext4, Options, mount};

pub(crate) const MIB: u64 = 1 << 20;

/// What a test needs of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// `mke2fs`, `e2fsck`, `dumpe2fs`.
    Tools,
    /// Root, a loop device and the kernel's ext4.
    Mount,
}

fn missing(need: Need) -> Option<String> {
    static MOUNT: OnceLock<Option<String>> = OnceLock::new();
    let tool = |name: &str| {
        let found = Command::new(name).arg("-V").output().is_ok();
        (!found).then(|| format!("no {name}"))
    };
    let tools = ["mke2fs", "e2fsck", "dumpe2fs"].into_iter().find_map(tool);
    match need {
        Need::Tools => tools,
        Need::Mount => tools.or_else(|| {
            let try_mount = || try_kernel(&image(16 * MIB, ""), |_| ()).err();
            MOUNT.get_or_init(try_mount).clone()
        }),
    }
}

/// Whether the running test has to be left out. Says so once on standard error, by the test's name,
/// past the harness.
pub(crate) fn left_out(need: Need) -> bool {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let Some(why) = missing(need) else {
        return false;
    };
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("tests");
    let line = format!("\nleft out: sapwood_ext4::{test}: {why}\n");
    if SAID.lock().is_ok_and(|mut said| said.insert(line.clone())) {
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    true
}

fn try_run(program: &str, args: &[&str], path: &Path) -> Result<String, String> {
    let output = Command::new(program).args(args).arg(path).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return Ok(text);
    }
    Err(format!(
        "{program} {args:?}: {}\n{text}{errors}",
        output.status
    ))
}

fn run(program: &str, args: &[&str], path: &Path) -> String {
    try_run(program, args, path).unwrap_or_else(|why| panic!("{why}"))
}

fn scratch() -> TempDir {
    tempfile::Builder::new()
        .prefix("sapwood-test-")
        .tempdir()
        .unwrap()
}

/// A new image in memory, made by `mke2fs` with these arguments.
pub(crate) fn image(size: u64, args: &str) -> Arc<MemoryDevice> {
    let dir = scratch();
    let path = dir.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    make(&path, args);
    Arc::new(MemoryDevice::load(&path).unwrap())
}

/// The same on a device that was full of something else, which `mke2fs` leaves where it can.
pub(crate) fn image_on_garbage(size: u64, args: &str) -> Arc<MemoryDevice> {
    let dir = scratch();
    let path = dir.path().join("image");
    std::fs::write(&path, vec![0xa5; usize::try_from(size).unwrap()]).unwrap();
    make(&path, &format!("{args} -E nodiscard,lazy_itable_init=1"));
    Arc::new(MemoryDevice::load(&path).unwrap())
}

fn make(path: &Path, args: &str) {
    let mut all = vec!["-q", "-F"];
    if !args.contains("-t ") {
        all.extend(["-t", "ext4"]);
    }
    all.extend(args.split_whitespace());
    run("mke2fs", &all, path);
}

fn saved(device: &MemoryDevice) -> (TempDir, std::path::PathBuf) {
    let dir = scratch();
    let path = dir.path().join("image");
    device.save(&path).unwrap();
    (dir, path)
}

/// `e2fsck -fn` of what is on the device finds nothing.
pub(crate) fn clean(device: &MemoryDevice, what: &str) {
    let (_dir, path) = saved(device);
    if let Err(why) = try_run("e2fsck", &["-fn"], &path) {
        panic!("{what}: {why}");
    }
}

/// What the image is after these commands of `debugfs`.
pub(crate) fn debugfs_only(device: &MemoryDevice, commands: &str) -> Arc<MemoryDevice> {
    let (dir, path) = saved(device);
    let list = dir.path().join("commands");
    std::fs::write(&list, commands).unwrap();
    run("debugfs", &["-w", "-f", list.to_str().unwrap()], &path);
    Arc::new(MemoryDevice::load(&path).unwrap())
}

/// What the image is after these commands of `debugfs`, and after `e2fsck` gave indexes to
/// directories that need one.
pub(crate) fn debugfs(device: &MemoryDevice, commands: &str) -> Arc<MemoryDevice> {
    let (dir, path) = saved(device);
    let list = dir.path().join("commands");
    std::fs::write(&list, commands).unwrap();
    run("debugfs", &["-w", "-f", list.to_str().unwrap()], &path);
    // It says so by its status that it changed something.
    let _ = try_run("e2fsck", &["-fyD"], &path);
    Arc::new(MemoryDevice::load(&path).unwrap())
}

/// What `dumpe2fs` says of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dumped {
    pub(crate) free_blocks: u32,
    pub(crate) free_inodes: u32,
    pub(crate) dirs: u32,
    pub(crate) unused_inodes: u32,
}

/// What `dumpe2fs` says of all groups.
pub(crate) fn dumped(device: &MemoryDevice) -> Vec<Dumped> {
    let (_dir, path) = saved(device);
    let text = run("dumpe2fs", &[], &path);
    let lines = text.lines().filter(|line| line.contains(" free inodes, "));
    lines
        .map(|line| {
            let number = |what: &str| -> u32 {
                let parts = line.split(',').find(|part| part.trim_end().ends_with(what));
                let word = parts.and_then(|part| part.split_whitespace().next());
                word.map_or(0, |word| word.parse().unwrap())
            };
            Dumped {
                free_blocks: number("free blocks"),
                free_inodes: number("free inodes"),
                dirs: number("directories"),
                unused_inodes: number("unused inodes"),
            }
        })
        .collect()
}

/// Runs `body` with the image mounted by the kernel, read-only.
pub(crate) fn kernel<T>(device: &MemoryDevice, body: impl FnOnce(&Path) -> T) -> T {
    try_kernel(device, body).unwrap_or_else(|why| panic!("{why}"))
}

struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        unmount(self.0);
    }
}

/// Unmounts.
pub(crate) fn unmount(at: &Path) {
    let done = sapwood_testing::unmount(at);
    // A second panic while one unwinds would end the other tests.
    assert!(done.is_ok() || std::thread::panicking(), "{done:?}");
}

fn try_kernel<T>(device: &MemoryDevice, body: impl FnOnce(&Path) -> T) -> Result<T, String> {
    let (dir, path) = saved(device);
    mounted(&dir, &path, "ro,loop", body)
}

fn mounted<T>(
    dir: &TempDir,
    image: &Path,
    options: &str,
    body: impl FnOnce(&Path) -> T,
) -> Result<T, String> {
    let at = dir.path().join("mnt");
    std::fs::create_dir(&at).unwrap();
    let image = image.to_str().unwrap();
    try_run("mount", &["-t", "ext4", "-o", options, image], &at)?;
    let mounted = Mounted(&at);
    Ok(body(mounted.0))
}

/// What the image is after the kernel had it mounted, and `body` changed something there.
pub(crate) fn kernel_writes(device: &MemoryDevice, body: impl FnOnce(&Path)) -> Arc<MemoryDevice> {
    let (dir, path) = saved(device);
    mounted(&dir, &path, "loop", body).unwrap_or_else(|why| panic!("{why}"));
    Arc::new(MemoryDevice::load(&path).unwrap())
}

/// An engine without background threads.
pub(crate) fn engine(device: &Arc<MemoryDevice>, options: Options) -> Arc<Engine> {
    let device: Arc<dyn Device> = device.clone();
    let options = Options {
        background: false,
        ..options
    };
    mount::open(device, options).unwrap()
}

/// A mount without background threads.
pub(crate) fn open(device: &Arc<MemoryDevice>) -> Ext4 {
    let options = Options {
        background: false,
        ..Options::default()
    };
    Ext4::open(device.clone(), options).unwrap()
}

/// A new file in the root, with the one reference that its maker gets.
pub(crate) fn file(fs: &Ext4, name: &str) -> Ino {
    let (who, what) = (Credentials::ROOT, NewInode::Regular);
    let made = fs.create(&who, fs.root(), name.as_bytes(), what, 0o644);
    made.unwrap().ino()
}
