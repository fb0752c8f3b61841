//! Multiple mount protection with the kernel as the other machine: it refuses an image that Sapwood
//! has, and Sapwood one that the kernel has. `e2fsck` and `dumpe2fs` judge the image in between.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use sapwood_block::{Device, Error as DeviceError, FileDevice};
use sapwood_ext4::mkfs::{MkfsOptions, mkfs};
use sapwood_ext4::{Clock, Error, Ext4, Options, SharedClock};
use sapwood_testing::machine::{E2FSPROGS, Need, trial};
use sapwood_testing::oracle::{KernelMount, Kind};
use sapwood_vfs::{Credentials, FileSystem, NewInode};

const SIZE: u64 = 32 << 20;

/// Makes an image.
type Maker = fn(&Path) -> Result<(), Failed>;

/// A file without a lock: its other user is on another machine.
#[derive(Debug)]
struct Shared(std::fs::File);

impl Shared {
    fn open(path: &Path) -> Result<Arc<dyn Device>, Failed> {
        let file = std::fs::File::options().read(true).write(true).open(path)?;
        Ok(Arc::new(Self(file)))
    }
}

impl Device for Shared {
    fn size(&self) -> u64 {
        SIZE
    }

    fn name(&self) -> &str {
        "/dev/shared"
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> sapwood_block::Result<()> {
        let read = self.0.read_exact_at(buf, offset);
        read.map_err(|e| DeviceError::io(self.name(), "read", offset, buf.len() as u64, e))
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> sapwood_block::Result<()> {
        let written = self.0.write_all_at(buf, offset);
        written.map_err(|e| DeviceError::io(self.name(), "write", offset, buf.len() as u64, e))
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> sapwood_block::Result<()> {
        self.write_at(offset, buf)?;
        self.flush()
    }

    fn flush(&self) -> sapwood_block::Result<()> {
        let synced = self.0.sync_data();
        synced.map_err(|e| DeviceError::io(self.name(), "flush", 0, 0, e))
    }

    fn discard(&self, _offset: u64, _len: u64) -> sapwood_block::Result<()> {
        Ok(())
    }
}

/// Waits shorter than it says: long enough for a renewal of a holder whose interval is a second.
#[derive(Debug)]
struct Hasty(Instant);

impl Clock for Hasty {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, _: Duration) {
        std::thread::sleep(Duration::from_secs(3));
    }
}

fn open(path: &Path) -> Result<Result<Ext4, Error>, Failed> {
    let options = Options {
        clock: SharedClock::new(Arc::new(Hasty(Instant::now()))),
        ..Options::default()
    };
    Ok(Ext4::open(Shared::open(path)?, options))
}

fn judged(path: &Path) -> Result<(), Failed> {
    let run = |program: &str, args: &[&str]| -> Result<String, Failed> {
        let out = Command::new(program).args(args).arg(path).output()?;
        let text = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
        if out.status.success() {
            Ok(text)
        } else {
            Err(format!("{program}: {text}").into())
        }
    };
    run("e2fsck", &["-fn"])?;
    let dumped = run("dumpe2fs", &["-m"])?;
    if !dumped.contains("clean") && !dumped.contains("0xff4d4d50") {
        return Err(dumped.into());
    }
    Ok(())
}

/// An image that Sapwood has, is refused by the kernel; one that the kernel has, by Sapwood.
fn with_the_kernel(make: Maker) -> Result<(), Failed> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("image");
    std::fs::File::create(&path)?.set_len(SIZE)?;
    make(&path)?;
    judged(&path)?;
    let fs = open(&path)??;
    let who = Credentials::ROOT;
    fs.create(&who, fs.root(), b"ours", NewInode::Regular, 0o644)?;
    let refused = KernelMount::new(&path, "rw");
    let Err(why) = refused else {
        return Err("the kernel mounted an image that is in use".into());
    };
    // The mount was not disturbed.
    fs.create(&who, fs.root(), b"more", NewInode::Regular, 0o644)?;
    fs.unmount()?;
    judged(&path)?;
    let kernel = KernelMount::new(&path, "rw").map_err(|error| format!("{why}; then {error}"))?;
    kernel.shell("test -e ours -a -e more; touch theirs");
    let error = open(&path)?.map(|_| ()).err();
    let error = error
        .ok_or("opened an image that the kernel has")?
        .to_string();
    let node = rustix::system::uname();
    let node = node.nodename().to_string_lossy();
    if !error.contains(&format!("in use by {node:?} through \"loop")) {
        return Err(error.into());
    }
    kernel.unmount()?;
    judged(&path)?;
    let fs = open(&path)??;
    fs.lookup(fs.root(), b"theirs")?;
    fs.unmount()?;
    judged(&path)
}

fn by_us(path: &Path) -> Result<(), Failed> {
    let options = MkfsOptions {
        features: vec![("mmp".to_owned(), true)],
        mmp_update_interval: Some(1),
        ..MkfsOptions::default()
    };
    let device = FileDevice::create(path, SIZE)?;
    mkfs(&device, &options)?;
    Ok(())
}

fn by_mke2fs(path: &Path) -> Result<(), Failed> {
    let out = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-O", "mmp,^metadata_csum"])
        .args(["-E", "mmp_update_interval=1"])
        .arg(path)
        .output()?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned().into());
    }
    Ok(())
}

pub(crate) fn trials() -> Vec<Trial> {
    let needs = [&E2FSPROGS[..], &[Need::Kernel(Kind::Ext4)]].concat();
    let makers: [(&str, Maker); 2] = [("ours", by_us), ("mke2fs_without_checksums", by_mke2fs)];
    let trials = makers.into_iter().map(|(name, make)| {
        let name = format!("mmp::kernel::{name}");
        trial(name, &needs, move || with_the_kernel(make))
    });
    trials.collect()
}
