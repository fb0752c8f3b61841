//! A mount of a sparse image whose host file system, a small tmpfs, is full.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use sapwood::Kind;
use sapwood_tests::machine::{self, Need};
use sapwood_tests::mount::{Mounted, SapwoodMount, sapwood};
use sapwood_tests::{Outcome, process, scratch};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
/// Size of the tmpfs.
const HOST: u64 = 96 * MIB;
/// Free space of the host when the file is written, and the file's size.
const LEFT: u64 = 8 * MIB;
const FILE: u64 = 32 * MIB;

pub(crate) fn trials() -> Vec<Trial> {
    let kinds = [Kind::Btrfs, Kind::Ext4].into_iter();
    kinds
        .map(|kind| {
            let name = format!("{}_goes_on_when_there_is_space_again", kind.name());
            let needs = [Need::Root, Need::Fuse, Need::Program("mount")];
            machine::trial(name, &needs, move || goes_on(kind))
        })
        .collect()
}

fn goes_on(kind: Kind) -> Outcome {
    let host = Host::new()?;
    let image = host.image(kind)?;
    let mount = SapwoodMount::new(&image, "commit=300")?;
    let ballast = host.0.path().join("host/ballast");
    host.fill(&ballast)?;

    let path = mount.path().join("f");
    let file = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(&path)?;
    let block = |nth: u64| vec![(nth % 251) as u8 + 1; MIB as usize];
    for nth in 0..FILE / MIB {
        file.write_all_at(&block(nth), nth * MIB)?;
    }
    for _ in 0..2 {
        match file.sync_all() {
            Err(error) if error.raw_os_error() == Some(28) => {}
            other => return Err(format!("fsync on a full host: {other:?}").into()),
        }
    }
    fs::remove_file(&ballast)?;
    file.sync_all()?;
    // No data was lost, and new data is written as before.
    fs::write(mount.path().join("more"), b"more")?;
    let mut found = block(0);
    for nth in 0..FILE / MIB {
        file.read_exact_at(&mut found, nth * MIB)?;
        if found != block(nth) {
            return Err(format!("mebibyte {nth} is not as it was written").into());
        }
    }
    drop(file);
    Box::new(mount).unmount()?;
    let mut check = Command::new(sapwood());
    process::succeed(check.arg("check").arg(&image), Duration::from_secs(300))?;
    let again = SapwoodMount::new(&image, "ro")?;
    let kept = fs::read(again.path().join("f"))?;
    let whole: Vec<u8> = (0..FILE / MIB).flat_map(block).collect();
    if kept != whole {
        return Err("the file differs after the next mount".into());
    }
    Box::new(again).unmount()?;
    Ok(())
}

/// A tmpfs below a scratch directory; goes away with the guard.
struct Host(TempDir);

impl Host {
    fn new() -> Result<Self, String> {
        let host = Self(scratch::directory());
        let at = host.0.path().join("host");
        fs::create_dir(&at).map_err(|error| error.to_string())?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={HOST}"), "none"]);
        process::succeed(mount.arg(at), Duration::from_secs(60))?;
        Ok(host)
    }

    /// A sparse image. Its name is elsewhere, so that the daemon's log is.
    fn image(&self, kind: Kind) -> Result<PathBuf, String> {
        let (name, image) = (
            self.0.path().join("image"),
            self.0.path().join("host/image"),
        );
        let mut mkfs = Command::new(sapwood());
        mkfs.args(["mkfs", "--type", kind.name(), "--size", "512M"]);
        process::succeed(mkfs.arg(&image), Duration::from_secs(60))?;
        std::os::unix::fs::symlink(&image, &name).map_err(|error| error.to_string())?;
        Ok(name)
    }

    /// Takes all but a little of the space.
    fn fill(&self, path: &PathBuf) -> std::io::Result<()> {
        let stat = rustix::fs::statvfs(self.0.path().join("host"))?;
        let mut left = (stat.f_bavail * stat.f_frsize).saturating_sub(LEFT);
        let (mut file, zeros) = (File::create(path)?, vec![1; MIB as usize]);
        while left > 0 {
            let len = left.min(MIB);
            file.write_all(&zeros[..len as usize])?;
            left -= len;
        }
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let at = self.0.path().join("host");
        let flags = rustix::mount::UnmountFlags::DETACH;
        if let Err(error) = rustix::mount::unmount(at, flags) {
            eprintln!("the tmpfs stays: {error}");
        }
    }
}
