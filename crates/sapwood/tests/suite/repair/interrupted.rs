//! A repair or an undo that ends at any write: it is resumed, or undone, to the exact bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sapwood::UndoOptions;
use sapwood_block::{
    Device, FileDevice, Layer, MemoryDevice, OpenOptions, Result, SECTOR_SIZE, UndoFile, UndoSide,
};
use sapwood_testing::machine::{Need, left_out};
use sapwood_testing::oracle::KernelMount;
use tempfile::TempDir;

use super::extents::without_extent_tree;
use super::{EXT4, damage_btrfs, damage_ext4, files, lost, repair};

/// Loses its power at a write, whose first sector alone reaches the medium.
#[derive(Debug)]
struct Cutting {
    below: Arc<MemoryDevice>,
    /// Writes before the cut.
    writes: AtomicU64,
}

impl Layer for Cutting {
    type Below = MemoryDevice;

    fn below(&self) -> &MemoryDevice {
        &self.below
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        if self.writes.load(Ordering::SeqCst) > 0 {
            self.writes.fetch_sub(1, Ordering::SeqCst);
            return Device::write_at(&*self.below, offset, buf);
        }
        let first = buf.len().min(SECTOR_SIZE as usize);
        Device::write_at(&*self.below, offset, &buf[..first])?;
        Err(sapwood_block::Error::ReadOnly {
            device: "cut".to_owned(),
        })
    }
}

fn undo_file(path: &Path) -> UndoFile {
    let file = FileDevice::open(path, OpenOptions::read_only()).unwrap();
    UndoFile::open(Arc::new(file)).unwrap()
}

#[test]
fn a_cut_at_every_write_of_a_real_repair_and_of_its_undo_is_resumed_or_undone() {
    for damage in [damage_ext4, damage_btrfs, without_extent_tree] {
        let dir = TempDir::new().unwrap();
        let image = damage(dir.path());
        let before = MemoryDevice::load(&image).unwrap();
        let report = repair(&image, false).unwrap();
        assert!(report.after.clean, "{:#?}", super::lines(&report));
        let after = MemoryDevice::load(&image).unwrap();
        let undo = undo_file(&report.undo.unwrap());
        let sides = [
            (UndoSide::After, &before, &after),
            (UndoSide::Before, &after, &before),
        ];
        for (side, start, _) in sides {
            for cut in 0.. {
                let device = Arc::new(start.snapshot());
                let cutting = Cutting {
                    below: Arc::clone(&device),
                    writes: AtomicU64::new(cut),
                };
                if undo.apply(&cutting, side, false).is_ok() {
                    assert!(cut > 2, "{cut} writes");
                    break;
                }
                for (end, _, expected) in sides {
                    let device = device.snapshot();
                    undo.apply(&device, end, false).unwrap();
                    let differs = device.first_difference(expected);
                    assert_eq!(differs, None, "{side:?}, cut at write {cut}, {end:?}");
                }
            }
        }
    }
}

/// The repair of the test below, in a process of its own.
#[test]
fn repairs_for_its_parent() {
    if let Some(image) = std::env::var_os("SAPWOOD_REPAIR_CHILD") {
        repair(Path::new(&image), false).unwrap();
    }
}

/// Repairs an image in another process, which ends by SIGINT at the given system call, the `nth`
/// one. Returns whether it was early enough.
fn ended_at(image: &Path, call: &str, nth: usize) -> bool {
    let mut command = Command::new("strace");
    let inject = format!("inject={call}:signal=INT:when={nth}");
    command.args(["-f", "-o", "/dev/null", "-e", &format!("trace={call}")]);
    command
        .args(["-e", &inject])
        .arg(std::env::current_exe().unwrap());
    command.args(["--exact", "repair::interrupted::repairs_for_its_parent"]);
    let command = command.env("SAPWOOD_REPAIR_CHILD", image);
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    !command.status().unwrap().success()
}

#[test]
fn a_repair_that_ctrl_c_ends_leaves_the_image_as_it_was_or_can_be_resumed_and_undone() {
    if left_out(&[Need::Program("strace")]) {
        return;
    }
    let dir = TempDir::new().unwrap();
    let image = damage_ext4(dir.path());
    let undo = dir.path().join("image.undo");
    let damaged = fs::read(&image).unwrap();
    let write = "pwrite64,pwritev";
    let calls = [("fsync", 1), (write, 1), (write, 2), (write, 4)];
    let mut ended = 0;
    for (call, nth) in calls {
        fs::write(&image, &damaged).unwrap();
        ended += usize::from(ended_at(&image, call, nth));
        let left = fs::read(&image).unwrap();
        if !undo.exists() {
            assert!(
                left == damaged,
                "{call} {nth}: changed, without an undo file"
            );
        }
        let report = repair(&image, false).unwrap();
        assert!(report.after.clean, "{call} {nth}");
        fs::write(&image, &left).unwrap();
        sapwood::undo(&undo, &UndoOptions::default()).unwrap();
        assert!(fs::read(&image).unwrap() == damaged, "{call} {nth}");
        fs::remove_file(&undo).unwrap();
    }
    assert!(ended >= 2, "{ended} processes ended");
}

#[test]
fn without_space_for_the_undo_file_nothing_is_changed() {
    if left_out(&[Need::Root]) {
        return;
    }
    let dir = TempDir::new().unwrap();
    let image = damage_ext4(dir.path());
    let damaged = fs::read(&image).unwrap();
    let small = dir.path().join("small");
    let mount = KernelMount::of_device(Path::new("none"), "tmpfs", "size=8k", &small).unwrap();
    let options = sapwood::RepairOptions {
        undo: Some(mount.path().join("undo")),
        ..sapwood::RepairOptions::default()
    };
    let refused = sapwood::repair(&image, &options, &mut |_| {}).unwrap_err();
    assert_eq!(refused.errno(), libc::ENOSPC, "{refused}");
    assert!(fs::read(&image).unwrap() == damaged);
    let left: Vec<PathBuf> = fs::read_dir(mount.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(left, Vec::<PathBuf>::new());
}

#[test]
fn the_kernel_reads_the_same_files_from_a_repaired_image() {
    for damage in [damage_ext4, damage_btrfs] {
        let dir = TempDir::new().unwrap();
        let image = damage(dir.path());
        let kind = sapwood_testing::oracle::Kind::of(&image);
        if left_out(&[Need::Kernel(kind)]) {
            continue;
        }
        repair(&image, false).unwrap();
        let ours = files(&image);
        let mount = KernelMount::new(&image, "ro").unwrap();
        let theirs = ours
            .keys()
            .filter_map(|path| Some((path.clone(), fs::read(mount.path().join(path)).ok()?)));
        assert_eq!(lost(&ours, &theirs.collect()), Vec::<PathBuf>::new());
        assert!(ours.len() > 20);
    }
}

/// An ext4 with several kinds of damage.
pub(super) fn several_kinds(dir: &Path) -> PathBuf {
    let image = super::filled(dir, "ext4", EXT4);
    let path = image.to_str().unwrap();
    for command in [
        "unlink /d3",
        "freei /d0/file-3",
        "sif /d0/file-1 links_count 9",
    ] {
        sapwood_testing::oracle::run("debugfs", &["-w", "-R", command, path]);
    }
    image
}
