//! An image with a log of the kernel and changed bytes is mounted: the mount replays the log or
//! refuses it. After a refusal the image is unchanged; after a replay, a later mount finds no log.
//!
//! Input: see [`Lies`].
#![no_main]

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use arbitrary::Arbitrary;
use libfuzzer_sys::{Corpus, fuzz_target};
use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::Btrfs;
use sapwood_btrfs::inspect::{self, TreeChoice};
use sapwood_btrfs_format::Block;
use sapwood_fuzz::lies::Change;
use sapwood_hostile::explore::{check_all, explore, options};
use sapwood_hostile::image::{GoodImage, TreeBlockPlace};
use sapwood_vfs::FileSystem;

/// The changes, and the use of the image after them.
#[derive(Arbitrary, Debug)]
struct Lies {
    /// Number of the log (modulo the number of logs).
    log: u8,
    /// Bit 0: checked before; bit 1: explored and changed afterwards; bit 2: checksums are not
    /// updated.
    mode: u8,
    /// Changes, in order, each of a block of the log by its number (modulo the number of blocks),
    /// or from 0xe0 on of a block of the other trees.
    changes: Vec<Change>,
}

const MOST: usize = 12;

macro_rules! logs {
    ($($name:literal)*) => {
        [$(include_bytes!(concat!("../../crates/btrfs/tests/data/logs/", $name, ".img.zst"))
            as &[u8]),*]
    };
}

/// They contain all kinds of items that a log can have.
const LOGS: [&[u8]; 12] = logs!(
    "append" "compressed_kinds" "hardlink" "name_reused" "newdir_tree" "old_parent" "punch"
    "rename_dir" "special" "subvol" "swap_dirs" "xattr"
);

/// An image, and the blocks of its log.
struct Log {
    image: GoodImage,
    log: Vec<TreeBlockPlace>,
    others: Vec<TreeBlockPlace>,
}

impl Log {
    fn expand(packed: &[u8]) -> Self {
        let image = GoodImage::expand(packed);
        let device: Vec<Arc<dyn Device>> = vec![Arc::new(image.device.snapshot())];
        let mut of_log = HashSet::new();
        inspect::walk(&device, TreeChoice::Log, &mut |bytes| {
            of_log.extend(Block::new(bytes).map(|block| block.bytenr()));
        })
        .expect("a good log");
        let all = image.blocks.clone().into_iter();
        let (log, others) = all.partition(|place| of_log.contains(&place.logical));
        Self { image, log, others }
    }

    fn place(&self, number: u8) -> &TreeBlockPlace {
        let (places, number) = match number {
            0..0xe0 => (&self.log, number),
            0xe0.. => (&self.others, number - 0xe0),
        };
        &places[usize::from(number) % places.len()]
    }
}

fn log(number: u8) -> &'static Log {
    static EXPANDED: [OnceLock<Log>; LOGS.len()] = [const { OnceLock::new() }; LOGS.len()];
    let number = usize::from(number) % LOGS.len();
    EXPANDED[number].get_or_init(|| Log::expand(LOGS[number]))
}

fuzz_target!(|lies: Lies| -> Corpus {
    if lies.changes.len() > MOST {
        return Corpus::Reject;
    }
    let log = log(lies.log);
    let device = log.image.device.snapshot();
    for change in &lies.changes {
        let place = log.place(change.block);
        change.edit_block(&log.image, &device, place, lies.mode & 4 == 0);
    }
    let device = Arc::new(device);
    if lies.mode & 1 != 0 {
        check_all(&device);
    }
    if replays(&device) && lies.mode & 2 != 0 {
        explore(&device, options(false));
    }
    Corpus::Keep
});

/// Mounts, which replays. False if the mount was refused.
fn replays(device: &Arc<MemoryDevice>) -> bool {
    let before = device.snapshot();
    match Btrfs::open(vec![device.clone()], options(false)) {
        Ok(fs) => {
            let _ = fs.unmount();
            drop(fs);
            let devices: [Arc<dyn Device>; 1] = [device.clone()];
            let after = inspect::super_block(&devices).expect("it was mounted");
            assert_eq!(after.log_root.get(), 0, "the log is still there");
            true
        }
        Err(error) => {
            let changed = device.first_difference(&before);
            assert_eq!(changed, None, "refused, but changed: {error}");
            false
        }
    }
}
