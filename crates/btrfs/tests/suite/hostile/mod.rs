//! Images with wrong bytes: every byte of the superblock and, with `SAPWOOD_FULL=1`, of every tree
//! block is changed; without it, every third byte of these. The result is an error, or a mount that
//! serves the valid parts; no panic, no hang.
//!
//! A case that panics is named; so is one that takes longer than [`watch::LIMIT`], which ends the
//! process, as there is no other way to end it.

mod indexes;
mod subvolumes;
mod watch;

use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs_format::SUPER_SIZE;
use sapwood_hostile::explore::{check_all, explore, options};
use sapwood_hostile::image::{DEFAULT, GoodImage, MIXED, SUPER_OFFSET};
use sapwood_testing::machine;
use sapwood_testing::tour::Outcome;
use watch::each;

/// The new value of a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Flip,
    Zero,
    Ones,
    Bit(u8),
}

impl Change {
    fn apply(self, byte: &mut u8) {
        match self {
            Self::Flip => *byte = !*byte,
            Self::Zero => *byte = 0,
            Self::Ones => *byte = 0xff,
            Self::Bit(bit) => *byte ^= 1 << bit,
        }
    }

    /// Whether this byte would be another one.
    fn changes(self, byte: u8) -> bool {
        let mut changed = byte;
        self.apply(&mut changed);
        changed != byte
    }
}

fn look(device: MemoryDevice) -> Option<Outcome> {
    explore(&Arc::new(device), options(true))
}

#[test]
fn the_images_are_good() {
    for packed in [MIXED, DEFAULT] {
        let image = GoodImage::expand(packed);
        let outcome = look(image.device.snapshot());
        let good = outcome.is_some_and(|outcome| {
            outcome.errors == 0 && outcome.inodes > 80 && outcome.bytes > 300_000
        });
        assert!(good, "{outcome:?}");
        let device = Arc::new(image.device.snapshot());
        assert!(explore(&device, options(false)).is_some());
        check_all(&device);
    }
}

#[test]
fn every_byte_of_the_superblock() {
    let image = GoodImage::expand(MIXED);
    let mut good = vec![0; SUPER_SIZE];
    image.device.read_at(SUPER_OFFSET, &mut good).unwrap();
    let all = (0..SUPER_SIZE).flat_map(|at| {
        let changes = [Change::Flip, Change::Zero, Change::Ones];
        changes
            .into_iter()
            .flat_map(move |change| [(at, change, false), (at, change, true)])
    });
    let all: Vec<_> = all
        .filter(|(at, change, _)| change.changes(good[*at]))
        .collect();
    let mounted = each(all, |&(at, change, reseal)| {
        let device = image.device.snapshot();
        image.edit_super(&device, reseal, |bytes| change.apply(&mut bytes[at]));
        let mounted = look(device).is_some();
        // This image has one superblock. Its checksum covers every byte except its own field;
        // crc32c uses the first four bytes of that.
        let free = reseal || (4..32).contains(&at);
        assert!(free || !mounted, "a bad checksum was taken");
        usize::from(mounted)
    });
    // The bytes without meaning, and the backup roots, which are for repair, change nothing.
    assert!(mounted > 3000, "{mounted}");
}

/// A change of each meaningful byte in a tree block: block, byte, change.
fn block_changes(image: &GoodImage) -> Vec<(usize, usize, Change)> {
    let mut all = Vec::new();
    for (number, place) in image.blocks.iter().enumerate() {
        let good = image.block(place);
        // The checksum is made right again.
        for at in place.used.iter().cloned().flatten().filter(|at| *at >= 32) {
            let choice = (at as u64 + number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
            let change = match choice {
                0..=7 => Change::Bit(choice as u8),
                8..=10 => Change::Zero,
                11..=13 => Change::Ones,
                _ => Change::Flip,
            };
            if change.changes(good[at]) {
                all.push((number, at, change));
            }
        }
    }
    all
}

/// Of the changes of tree blocks, one in this many is tried.
fn step() -> usize {
    if machine::full() { 1 } else { 3 }
}

#[test]
fn bytes_of_every_block() {
    let image = GoodImage::expand(MIXED);
    let some: Vec<_> = block_changes(&image).into_iter().step_by(step()).collect();
    let mounted = each(some, |&(number, at, change)| {
        let device = image.device.snapshot();
        let place = &image.blocks[number];
        image.edit(&device, place, true, |bytes| change.apply(&mut bytes[at]));
        usize::from(look(device).is_some())
    });
    assert!(mounted > 300, "{mounted}");
}

#[test]
fn bytes_of_blocks_under_a_mount_that_writes() {
    // Each takes ten times as long as one that only reads.
    let step = 23 * step();
    for packed in [MIXED, DEFAULT] {
        let image = GoodImage::expand(packed);
        let some: Vec<_> = block_changes(&image).into_iter().step_by(step).collect();
        let mounted = each(some, |&(number, at, change)| {
            let device = Arc::new(image.device.snapshot());
            let place = &image.blocks[number];
            image.edit(&device, place, true, |bytes| change.apply(&mut bytes[at]));
            check_all(&device);
            usize::from(explore(&device, options(false)).is_some())
        });
        assert!(mounted > 30, "{mounted}");
    }
}

#[test]
fn one_bad_copy_of_a_block_is_as_good_as_none() {
    let image = GoodImage::expand(DEFAULT);
    let good = look(image.device.snapshot());
    let all: Vec<_> = (0..image.blocks.len())
        .flat_map(|n| [(n, 0), (n, 1)])
        .collect();
    each(all, |&(number, copy)| {
        let device = image.device.snapshot();
        let place = &image.blocks[number];
        assert_eq!(place.copies.len(), 2);
        device
            .write_at(place.copies[copy] + 200, &[0x5a; 64])
            .unwrap();
        assert_eq!(look(device), good);
        0
    });
}
