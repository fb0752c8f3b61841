//! A journal on another device: made by Sapwood and by `mke2fs`, replayed by Sapwood, by the kernel
//! and by `e2fsck`, each after a power cut of the other's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use libtest_mimic::{Failed, Trial};
use sapwood_block::MemoryDevice;
use sapwood_ext4::mkfs::{MkfsOptions, mkfs};
use sapwood_ext4::{Ext4, JournalDevice, Options};
use sapwood_testing::machine::{E2FSPROGS, Need, trial};
use sapwood_testing::oracle::{KernelMount, Kind, Loop};
use sapwood_vfs::{Credentials, FileSystem, NewInode, SyncKind, WriteMode};

const SIZE: u64 = 32 << 20;
const JOURNAL: u64 = 8 << 20;

/// Makes a file system and its journal.
type Maker = fn(&Pair) -> Result<(), Failed>;

/// The files of a file system and its journal.
struct Pair {
    _dir: tempfile::TempDir,
    disk: PathBuf,
    journal: PathBuf,
}

impl Pair {
    fn new() -> Result<Self, Failed> {
        let dir = tempfile::tempdir()?;
        let (disk, journal) = (dir.path().join("disk"), dir.path().join("journal"));
        std::fs::File::create(&disk)?.set_len(SIZE)?;
        std::fs::File::create(&journal)?.set_len(JOURNAL)?;
        Ok(Self {
            _dir: dir,
            disk,
            journal,
        })
    }

    /// The files' content in memory, where Sapwood works.
    fn load(&self) -> Result<(Arc<MemoryDevice>, Arc<MemoryDevice>), Failed> {
        let (disk, journal) = (
            MemoryDevice::load(&self.disk)?,
            MemoryDevice::load(&self.journal)?,
        );
        Ok((Arc::new(disk), Arc::new(journal)))
    }

    fn save(&self, disk: &MemoryDevice, journal: &MemoryDevice) -> Result<(), Failed> {
        disk.save(&self.disk)?;
        journal.save(&self.journal)?;
        Ok(())
    }

    /// `e2fsck` replays the journal, or finds nothing to do.
    fn recovered_by_e2fsck(&self) -> Result<(), Failed> {
        run(
            Command::new("e2fsck")
                .arg("-fy")
                .arg("-j")
                .arg(&self.journal)
                .arg(&self.disk),
            &[0, 1],
        )?;
        self.clean()
    }

    fn clean(&self) -> Result<(), Failed> {
        run(
            Command::new("e2fsck")
                .arg("-fn")
                .arg("-j")
                .arg(&self.journal)
                .arg(&self.disk),
            &[0],
        )?;
        Ok(())
    }
}

fn run(command: &mut Command, good: &[i32]) -> Result<String, Failed> {
    let out = command.output()?;
    let text = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    if out.status.code().is_some_and(|code| good.contains(&code)) {
        Ok(text)
    } else {
        Err(format!("{command:?}: {text}").into())
    }
}

fn by_us(pair: &Pair) -> Result<(), Failed> {
    let (disk, journal) = pair.load()?;
    let options = |features: &[&str]| MkfsOptions {
        features: features
            .iter()
            .map(|name| ((*name).to_owned(), true))
            .collect(),
        block_size: Some(4096),
        ..MkfsOptions::default()
    };
    mkfs(&*journal, &options(&["journal_dev"]))?;
    let options = MkfsOptions {
        journal: Some(JournalDevice::new(journal.clone())),
        ..options(&[])
    };
    mkfs(&*disk, &options)?;
    pair.save(&disk, &journal)
}

fn by_mke2fs(pair: &Pair) -> Result<(), Failed> {
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-F", "-b", "4096", "-O", "journal_dev"]);
    run(make.arg(&pair.journal), &[0])?;
    let loops = Loop::new(&pair.journal, &[])?;
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-F", "-b", "4096", "-t", "ext4", "-J"]);
    make.arg(format!("device={}", loops.path().display()));
    run(make.arg(&pair.disk), &[0])?;
    Ok(())
}

fn mount(disk: Arc<MemoryDevice>, journal: Arc<MemoryDevice>) -> Result<Ext4, Failed> {
    let options = Options {
        journal: Some(JournalDevice::new(journal)),
        ..Options::default()
    };
    Ok(Ext4::open(disk, options)?)
}

fn write(fs: &Ext4, name: &str, len: usize) -> Result<(), Failed> {
    let who = Credentials::ROOT;
    let made = fs.create(&who, fs.root(), name.as_bytes(), NewInode::Regular, 0o644)?;
    fs.write(made.ino(), 0, &vec![b'x'; len], WriteMode::default())?;
    fs.fsync(made.ino(), SyncKind::All)?;
    Ok(())
}

fn has(fs: &Ext4, name: &str, len: u64) -> Result<(), Failed> {
    let found = fs.lookup(fs.root(), name.as_bytes())?;
    let size = fs.getattr(found.ino())?.size;
    if size == len {
        Ok(())
    } else {
        Err(format!("{name} has {size} bytes").into())
    }
}

/// Mounted by the kernel with its journal on a loop device.
fn by_kernel(pair: &Pair, body: impl FnOnce(&KernelMount)) -> Result<(), Failed> {
    let journal = Loop::new(&pair.journal, &[])?;
    let options = format!("commit=300,journal_path={}", journal.path().display());
    let mount = KernelMount::at(&pair.disk, &options, &pair.disk.with_extension("mnt"))?;
    body(&mount);
    mount.unmount()?;
    Ok(())
}

fn copied(from: &Path, to: &Path) {
    let copy = Command::new("cp")
        .arg("--sparse=always")
        .arg(from)
        .arg(to)
        .status();
    assert!(copy.unwrap().success());
}

fn both_ways(make: Maker) -> Result<(), Failed> {
    let pair = Pair::new()?;
    make(&pair)?;
    pair.clean()?;
    // A power cut of ours, recovered by the kernel and by e2fsck.
    let (disk, journal) = pair.load()?;
    let fs = mount(disk.clone(), journal.clone())?;
    write(&fs, "ours", 10_000)?;
    pair.save(&disk, &journal)?;
    drop(fs);
    let other = Pair::new()?;
    copied(&pair.disk, &other.disk);
    copied(&pair.journal, &other.journal);
    other.recovered_by_e2fsck()?;
    let (disk, journal) = other.load()?;
    let fs = mount(disk, journal)?;
    has(&fs, "ours", 10_000)?;
    fs.unmount()?;
    // And one of the kernel's, recovered by us.
    let cut = Pair::new()?;
    by_kernel(&pair, |mount| {
        mount.shell(
            "test $(stat -c %s ours) = 10000\n\
             head -c 20000 /dev/zero > theirs; sync theirs; mkdir dir; touch dir/a; sync dir",
        );
        copied(&pair.disk, &cut.disk);
        copied(&pair.journal, &cut.journal);
    })?;
    pair.clean()?;
    let (disk, journal) = cut.load()?;
    let fs = mount(disk.clone(), journal.clone())?;
    has(&fs, "theirs", 20_000)?;
    has(&fs, "ours", 10_000)?;
    write(&fs, "more", 5000)?;
    fs.unmount()?;
    cut.save(&disk, &journal)?;
    cut.clean()?;
    by_kernel(&cut, |mount| {
        mount.shell("test $(stat -c %s more) = 5000 -a -e dir/a");
    })?;
    cut.clean()
}

pub(crate) fn trials() -> Vec<Trial> {
    let needs = [&E2FSPROGS[..], &[Need::Kernel(Kind::Ext4)]].concat();
    let makers: [(&str, Maker); 2] = [("ours", by_us), ("mke2fs", by_mke2fs)];
    let trials = makers.into_iter().map(|(name, make)| {
        let name = format!("journal_device::kernel::{name}");
        trial(name, &needs, move || both_ways(make))
    });
    trials.collect()
}
