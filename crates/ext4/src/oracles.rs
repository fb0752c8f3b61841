//! Oracles for unit tests: images of `mke2fs`, judged by `e2fsck`, `dumpe2fs` and the kernel.

use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_testing::machine::{E2FSPROGS, Need};
use sapwood_testing::oracle::Kind;
use sapwood_vfs::{Credentials, FileSystem, Ino, NewInode};

use crate::engine::Engine;
use crate::{Ext4, Options, mount};

pub(crate) use sapwood_testing::machine::left_out;
pub(crate) use sapwood_testing::oracle::ext4::{
    clean, debugfs, debugfs_only, image, image_on_garbage, kernel, kernel_writes,
};

pub(crate) const MIB: u64 = 1 << 20;
/// The needs of a test with e2fsprogs.
pub(crate) const TOOLS: &[Need] = &E2FSPROGS;
/// The needs of a test with a kernel mount.
pub(crate) const KERNEL: &[Need] = &[Need::Kernel(Kind::Ext4)];

/// `dumpe2fs` of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dumped {
    pub(crate) free_blocks: u32,
    pub(crate) free_inodes: u32,
    pub(crate) dirs: u32,
    pub(crate) unused_inodes: u32,
}

/// `dumpe2fs` of all groups.
pub(crate) fn dumped(device: &MemoryDevice) -> Vec<Dumped> {
    let text = sapwood_testing::oracle::ext4::dumpe2fs(device);
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
