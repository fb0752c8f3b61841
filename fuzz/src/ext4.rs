//! Small ext4 images with every kind of inode and block, made by our own `mkfs` and engine, and
//! their use in the targets.

use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_ext4::check::{self, CheckOptions};
use sapwood_ext4::mkfs::{MkfsOptions, mkfs};
use sapwood_ext4::{Ext4, Options};
use sapwood_testing::tour::tour;
use sapwood_vfs::{
    AllocMode, Credentials, FileSystem, Ino, NewInode, Result, SetXattrMode, SyncKind, WriteMode,
};

use crate::lies::{Change, apply};

/// Block size of all images here.
pub const BLOCK: usize = 1024;
const MIB: u64 = 1 << 20;

/// Features that are switched on or off. In the first three forms, only checks of the structures
/// themselves detect an error; the last one has checksums everywhere.
pub const FORMS: [&[(&str, bool)]; 4] = [
    &[("metadata_csum", false), ("ea_inode", true)],
    &[
        ("metadata_csum", false),
        ("extent", false),
        ("64bit", false),
    ],
    &[
        ("metadata_csum", false),
        ("inline_data", true),
        ("meta_bg", true),
        ("resize_inode", false),
    ],
    &[("orphan_file", true)],
];

/// Options for many short mounts.
pub fn options(read_only: bool) -> Options {
    Options {
        read_only,
        cache_bytes: 4 << 20,
        dirty_bytes: 4 << 20,
        threads: 1,
        background: false,
        ..Options::default()
    }
}

/// An empty file system of 12 MiB in one of the [`FORMS`]; it is the same in every run.
pub fn empty(form: usize) -> MemoryDevice {
    let device = MemoryDevice::new(12 * MIB);
    let features = FORMS[form]
        .iter()
        .map(|(name, on)| ((*name).to_owned(), *on));
    let options = MkfsOptions {
        uuid: Some([7; 16]),
        hash_seed: Some([3; 16]),
        block_size: Some(BLOCK as u32),
        features: features.collect(),
        journal_size: Some(MIB),
        time: Some(1_700_000_000),
        ..MkfsOptions::default()
    };
    mkfs(&device, &options).expect("mkfs");
    device
}

/// A valid image.
pub struct Image {
    /// Its content. Work on a [`MemoryDevice::snapshot`] of it.
    pub device: MemoryDevice,
    /// Offsets of the blocks with more than one byte value: these are metadata, because data blocks
    /// here have only one.
    pub blocks: Vec<u64>,
}

impl Image {
    /// The filled and unmounted file system.
    pub fn filled(form: usize) -> Self {
        let device = Arc::new(empty(form));
        let fs = Ext4::open(device.clone(), options(false)).expect("mounts");
        fill(&fs).expect("fills");
        fs.unmount().expect("unmounts");
        Self::of(device.snapshot())
    }

    /// Filled, changed and synced, and then left by a power cut: the journal has all changes.
    pub fn cut_off(form: usize) -> Self {
        let device = Arc::new(empty(form));
        let fs = Ext4::open(device.clone(), options(false)).expect("mounts");
        fill(&fs).expect("fills");
        let root = fs.root();
        fs.fsync(root, SyncKind::All).expect("syncs");
        // Frees blocks, so that there are revokes.
        remove(&fs, root, b"tree").expect("removes");
        fs.sync().expect("syncs");
        Self::of(device.snapshot())
    }

    fn of(device: MemoryDevice) -> Self {
        let mut block = vec![0; BLOCK];
        let offsets = (0..device.size()).step_by(BLOCK);
        let blocks = offsets
            .filter(|offset| {
                device.read_at(*offset, &mut block).expect("in memory");
                block.iter().any(|byte| *byte != block[0])
            })
            .collect();
        Self { device, blocks }
    }

    /// The block at an offset.
    pub fn block(&self, offset: u64) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK];
        self.device.read_at(offset, &mut bytes).expect("in memory");
        bytes
    }

    /// Changes one of `places`, by its number.
    pub fn edit(&self, device: &MemoryDevice, places: &[u64], change: &Change) {
        let of = |number: u8| places[usize::from(number) % places.len()];
        let offset = of(change.block);
        let mut bytes = vec![0; BLOCK];
        device.read_at(offset, &mut bytes).expect("in memory");
        let at = usize::from(change.at) % BLOCK;
        apply(&change.how, &mut bytes, at, &|number| {
            self.block(of(number))
        });
        device.write_at(offset, &bytes).expect("in memory");
    }
}

const ROOT: Credentials = Credentials::ROOT;

fn file(fs: &Ext4, dir: Ino, name: &str, ranges: &[(u64, usize)]) -> Result<Ino> {
    let made = fs.create(&ROOT, dir, name.as_bytes(), NewInode::Regular, 0o644)?;
    for (offset, len) in ranges {
        let _ = fs.write(made.ino(), *offset, &vec![0x55; *len], WriteMode::default())?;
    }
    Ok(made.ino())
}

/// Every kind of inode and of block that fits in a few hundred blocks.
fn fill(fs: &Ext4) -> Result<()> {
    let root = fs.root();
    let tree = fs
        .create(&ROOT, root, b"tree", NewInode::Directory, 0o755)?
        .ino();
    // A directory with an index.
    for number in 0..60 {
        let name = format!("{number}-a-name-that-fills-the-blocks-of-a-directory-soon");
        let ino = file(fs, tree, &name, &[])?;
        fs.forget(ino, 1);
    }
    // More extents than an inode holds, or blocks of pointers to pointers.
    let holes: Vec<_> = (0..12).map(|n| (n * 40_000, 3000)).collect();
    let holes = file(fs, root, "holes", &holes)?;
    let small = file(fs, root, "small", &[(0, 70)])?;
    // Files with block maps have no unwritten blocks.
    let _ = fs.fallocate(small, 20_000, 9000, AllocMode::Allocate { keep_size: true });
    for (name, len) in [("user.short", 5), ("user.block", 300), ("user.long", 900)] {
        // The longest value fits only if values may be in inodes of their own.
        let _ = fs.setxattr(small, name.as_bytes(), &vec![b'v'; len], SetXattrMode::Any);
    }
    fs.setxattr(holes, b"user.short", b"v", SetXattrMode::Any)?;
    let special = [
        ("short", NewInode::Symlink(b"small")),
        ("long", NewInode::Symlink(&[b'x'; 200])),
        ("device", NewInode::CharDevice(0x103)),
        ("pipe", NewInode::Fifo),
    ];
    for (name, what) in special {
        fs.create(&ROOT, root, name.as_bytes(), what, 0o644)?;
    }
    fs.link(small, tree, b"second")?;
    // An inode without a name: an orphan while it is held.
    fs.unlink(root, b"holes")?;
    fs.link(small, root, b"third")?;
    Ok(())
}

/// Removes a directory and the files in it.
fn remove(fs: &Ext4, parent: Ino, name: &[u8]) -> Result<()> {
    let dir = fs.lookup(parent, name)?.ino();
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        ControlFlow::Continue(())
    })?;
    for name in names {
        fs.unlink(dir, &name)?;
    }
    fs.rmdir(parent, name)
}

/// Mounts the image, reads everything, makes one change of each kind if it is writable, and
/// unmounts. False if it could not be mounted.
pub fn explore(device: &Arc<MemoryDevice>, options: Options) -> bool {
    let writable = !options.read_only;
    let Ok(fs) = Ext4::open(device.clone(), options) else {
        return false;
    };
    tour(&fs, writable);
    let _ = fs.unmount();
    true
}

/// Runs our check on the image. True if it finds nothing.
pub fn check_all(device: &Arc<MemoryDevice>) -> bool {
    let device: Arc<dyn Device> = device.clone();
    let report = check::check(&device, &CheckOptions::default(), &mut |_| {
        ControlFlow::Continue(())
    });
    report.is_ok_and(|report| {
        for finding in &report.findings {
            let _ = finding.to_string();
        }
        report.is_clean()
    })
}
