//! A mounted file system that grows by its daemon while programs write to it. The kernel reads the
//! result.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use libtest_mimic::Trial;
use sapwood_testing::oracle::{KernelMount, Kind};
use sapwood_tests::image::{Mkfs, TempImage};
use sapwood_tests::mount::{Mounted, SapwoodMount, sapwood};
use sapwood_tests::{Need, Outcome, machine, process, trial};

use super::several::{run, said};

const MIB: u64 = 1 << 20;
const NOBODY: u32 = 65534;

pub(crate) fn trials() -> Vec<Trial> {
    let both = [
        machine::KERNEL,
        Need::Program("btrfs"),
        Need::Program("e2fsck"),
        Need::Fuse,
    ];
    vec![
        trial("a_mounted_btrfs_grows_while_it_is_used", &both, || {
            grows(Kind::Btrfs)
        }),
        trial("a_mounted_ext4_grows_while_it_is_used", &both, || {
            grows(Kind::Ext4)
        }),
    ]
}

/// Bytes of the file system, as `df` gets them.
fn size_of(dir: &Path) -> u64 {
    let found = rustix::fs::statvfs(dir).unwrap();
    found.f_blocks * found.f_frsize
}

fn content(nth: usize) -> Vec<u8> {
    (0..20_000 + nth % 17 * 9000)
        .map(|at| (at * 31 + nth * 7 + at / 253) as u8)
        .collect()
}

/// Writes files with fsyncs until it is told to end. Returns their number.
fn busy(dir: &Path, ended: &AtomicBool) -> usize {
    let mut count = 0;
    while count < 8 || (!ended.load(Ordering::Relaxed) && count < 400) {
        let path = dir.join(format!("busy{count}"));
        fs::write(&path, content(count)).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        count += 1;
    }
    count
}

fn grows(kind: Kind) -> Outcome {
    let how = match kind {
        Kind::Btrfs => Mkfs::with(""),
        Kind::Ext4 => Mkfs::ext4(""),
    };
    let image = TempImage::new(&how.sized(160 * MIB))?;
    let path = image.path().to_str().unwrap().to_owned();
    let mount = SapwoodMount::new(image.path(), "allow_other")?;
    let dir = mount.path().to_owned();
    let place = dir.to_str().unwrap().to_owned();
    let ended = AtomicBool::new(false);
    let count = thread::scope(|scope| -> Result<usize, String> {
        let writer = scope.spawn(|| busy(&dir, &ended));
        let grown = (|| {
            let before = size_of(&dir);
            run(&["resize", "-q", &place, "+150M"])?;
            assert!(size_of(&dir) > before + 130 * MIB);
            assert_eq!(fs::metadata(&path).unwrap().len(), 310 * MIB);
            // Another program makes the file longer.
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(700 * MIB).unwrap();
            let json = run(&["resize", "--json", "max", &place])?;
            let report: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(report["before"], 310 * MIB);
            assert_eq!(report["after"], 700 * MIB);
            assert!(size_of(&dir) > before + 500 * MIB);
            refused(kind, &place)
        })();
        ended.store(true, Ordering::Relaxed);
        let count = writer.join().unwrap();
        grown.map(|()| count)
    })?;
    let large = content(5).repeat(4000);
    fs::write(dir.join("large"), &large)?;
    Box::new(mount).unmount()?;
    image.check()?;
    let kernel = KernelMount::new(image.path(), "ro")?;
    assert!(size_of(kernel.path()) > 600 * MIB);
    for nth in 0..count {
        let found = fs::read(kernel.path().join(format!("busy{nth}")))?;
        assert!(found == content(nth), "busy{nth}");
    }
    assert!(fs::read(kernel.path().join("large"))? == large);
    kernel.unmount()?;
    Ok(())
}

fn refused(kind: Kind, place: &str) -> Result<(), String> {
    let fails = |args: &[&str], code: i32, why: &str| -> Result<(), String> {
        let said = said(&[&["resize"], args].concat())?;
        let fits = said.status.code() == Some(code) && said.stderr.contains(why);
        assert!(fits, "{args:?}: {}", said.all());
        Ok(())
    };
    fails(&[place, "min"], 1, "no smallest size")?;
    fails(&[place, "large"], 2, "is not min, max, or a size")?;
    fails(&["/proc", "+1M"], 1, "not in a mount by Sapwood")?;
    match kind {
        Kind::Btrfs => fails(&[place, "7:max"], 1, "no device 7")?,
        Kind::Ext4 => {
            fails(&[place, "1:max"], 1, "no device ids")?;
            fails(&[place, "100M"], 1, "unmount it first")?;
            fails(&[place, "-1M"], 1, "only grows")?;
        }
    }
    let mut other = Command::new(sapwood());
    other.args(["resize", place, "+1M"]).uid(NOBODY).gid(NOBODY);
    let other = process::finish(&mut other, process::ORDINARY)?;
    assert_eq!(other.status.code(), Some(1), "{}", other.all());
    Ok(())
}
