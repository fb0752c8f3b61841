//! A small image with changed bytes: it is opened, walked, changed, checked and unmounted.
//!
//! Input: see [`Lies`].
#![no_main]

use std::sync::{Arc, OnceLock};

use arbitrary::Arbitrary;
use libfuzzer_sys::{Corpus, fuzz_target};
use sapwood_fuzz::lies::{Change, apply, other_block};
use sapwood_hostile::explore::{check_all, explore, options};
use sapwood_hostile::image::{DEFAULT, GoodImage, MIXED};

/// The changes, and the use of the image after them.
#[derive(Arbitrary, Debug)]
struct Lies {
    /// Bit 0: which image; bit 1: mounted for writing; bit 2: checked; bit 3: checksums are not
    /// updated; bit 4: mounted without replaying a log.
    mode: u8,
    /// Changes, in order, each of a tree block by its number (modulo the number of blocks), or from
    /// 0xf0 on of the superblock.
    changes: Vec<Change>,
}

const MOST: usize = 12;

fn images() -> &'static [GoodImage; 2] {
    static IMAGES: OnceLock<[GoodImage; 2]> = OnceLock::new();
    IMAGES.get_or_init(|| [GoodImage::expand(MIXED), GoodImage::expand(DEFAULT)])
}

fuzz_target!(|lies: Lies| -> Corpus {
    if lies.changes.len() > MOST {
        return Corpus::Reject;
    }
    let image = &images()[usize::from(lies.mode & 1)];
    let device = image.device.snapshot();
    let reseal = lies.mode & 8 == 0;
    for change in &lies.changes {
        if change.block >= 0xf0 {
            image.edit_super(&device, reseal, |bytes| {
                // The last 565 bytes are unused.
                let at = usize::from(change.at) % (4096 - 565);
                apply(&change.how, bytes, at, &|number| other_block(image, number));
            });
            continue;
        }
        let place = &image.blocks[usize::from(change.block) % image.blocks.len()];
        change.edit_block(image, &device, place, reseal);
    }
    let device = Arc::new(device);
    if lies.mode & 4 != 0 {
        check_all(&device);
    }
    let mut options = options(lies.mode & 2 == 0);
    options.no_log_replay = lies.mode & 0x10 != 0;
    explore(&device, options);
    Corpus::Keep
});
