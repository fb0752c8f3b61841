//! A daemon with many files, in little memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use sapwood::Kind;
use sapwood_tests::Outcome;
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::machine::{self, Need};
use sapwood_tests::mount::{Mounted, SapwoodMount, sapwood};

const MIB: u64 = 1 << 20;
/// Memory of the control group, in bytes.
const GROUP: u64 = 128 * MIB;
/// Number of files: without one bound for all caches, a third of them would need more memory than
/// the group has.
const FILES: usize = 40_000;
const EACH_DIR: usize = 1000;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for kind in [Kind::Btrfs, Kind::Ext4] {
        let name = kind.name();
        trials.push(machine::trial(
            format!("{name}_many_files_in_a_small_control_group"),
            &[Need::Fuse, machine::MEMORY_GROUP],
            move || small_group(kind),
        ));
        trials.push(machine::trial(
            format!("{name}_many_files_in_bounded_caches"),
            &[Need::Fuse],
            move || bounded(kind),
        ));
    }
    trials
}

fn image(kind: Kind) -> Result<TempImage, String> {
    let how = match kind {
        Kind::Btrfs => Mkfs::default(),
        Kind::Ext4 => Mkfs::ext4(""),
    };
    TempImage::new(&how.by_us().sized(1 << 30))
}

/// Makes the files, reads each again, and compares.
fn work(dir: &Path) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let file = |nth: usize| dir.join(format!("{}/{nth}", nth / EACH_DIR));
    for nth in 0..FILES {
        let path = file(nth);
        if nth % EACH_DIR == 0 {
            fs::create_dir(path.parent().ok_or("no parent")?).map_err(told)?;
        }
        fs::write(path, nth.to_string()).map_err(told)?;
    }
    for nth in 0..FILES {
        fs::symlink_metadata(file(nth)).map_err(told)?;
    }
    for nth in (0..FILES).step_by(997) {
        let found = fs::read_to_string(file(nth)).map_err(told)?;
        if found != nth.to_string() {
            return Err(format!("file {nth} has {found:?}"));
        }
    }
    Ok(())
}

/// The caches take a share of the group's memory: the daemon is not killed.
fn small_group(kind: Kind) -> Outcome {
    let image = image(kind)?;
    let group = Group::new(GROUP)?;
    let script = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(&group.0).arg(sapwood());
    let mount = SapwoodMount::with(image.path(), "rw", &mut command)?;
    let worked = work(mount.path());
    let (peak, said) = (mount.peak_memory(), mount.said());
    worked.map_err(|error| format!("{error}\n{said}"))?;
    if peak > GROUP / 8 * 7 {
        return Err(format!("the daemon took {peak} bytes").into());
    }
    Box::new(mount).unmount()?;
    Ok(image.check_by_us()?)
}

/// The bound can be chosen, and memory beyond it does not grow with the number of files.
fn bounded(kind: Kind) -> Outcome {
    let image = image(kind)?;
    let mount = SapwoodMount::new(image.path(), "memory_size=16M")?;
    work(mount.path())?;
    let peak = mount.peak_memory();
    if peak > 80 * MIB {
        return Err(format!("the daemon took {peak} bytes").into());
    }
    Box::new(mount).unmount()?;
    Ok(())
}

/// A control group that limits memory; goes away with the guard.
struct Group(PathBuf);

impl Group {
    fn new(bytes: u64) -> Result<Self, String> {
        let (parent, limit) = machine::memory_groups().ok_or("no control groups for memory")?;
        let group = parent.join(format!(
            "sapwood-{}-{bytes}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let told = |error: std::io::Error| format!("{}: {error}", group.display());
        fs::create_dir(&group).map_err(told)?;
        let group = Self(group);
        fs::write(group.0.join(limit), bytes.to_string()).map_err(|error| error.to_string())?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel may still count a process that has ended.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        eprintln!("{} stays", self.0.display());
    }
}
