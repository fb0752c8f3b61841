//! A small image of which some bytes lie, opened, walked, changed, checked, unmounted.
//!
//! Input: see [`Lies`].
#![no_main]

use std::sync::{Arc, OnceLock};

use arbitrary::Arbitrary;
use libfuzzer_sys::{Corpus, fuzz_target};
use sapwood_fuzz::explore::{check_all, explore, options};
use sapwood_fuzz::image::{DEFAULT, Image, MIXED};

/// What is changed, and how the image is used then.
#[derive(Arbitrary, Debug)]
struct Lies {
    /// Bit 0: which image; bit 1: mounted for writing; bit 2: checked; bit 3: checksums stay
    /// as they were; bit 4: mounted without replaying a log.
    mode: u8,
    /// Changes, one after the other.
    changes: Vec<Change>,
}

#[derive(Arbitrary, Debug)]
struct Change {
    /// Tree block by its number (modulo how many there are), the superblock from 0xf0 on.
    block: u8,
    /// Where in its used bytes (modulo how many those are).
    at: u16,
    how: How,
}

#[derive(Arbitrary, Debug)]
enum How {
    /// Other bytes.
    Set([u8; 1]),
    Set2([u8; 2]),
    Set8([u8; 8]),
    /// One bit.
    Flip(u8),
    /// A number of 8 bytes becomes a little more or less.
    Add(i8),
    /// The bytes at another place of the block.
    Copy {
        from: u16,
        len: u8,
    },
    /// This block's bytes become those of another block, but for its header.
    Other {
        block: u8,
        from: u16,
        len: u16,
    },
}

const MOST: usize = 12;

fn images() -> &'static [Image; 2] {
    static IMAGES: OnceLock<[Image; 2]> = OnceLock::new();
    IMAGES.get_or_init(|| [Image::expand(MIXED), Image::expand(DEFAULT)])
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
                // The last 565 bytes are of no meaning.
                apply(
                    image,
                    &change.how,
                    bytes,
                    usize::from(change.at) % (4096 - 565),
                );
            });
            continue;
        }
        let place = &image.blocks[usize::from(change.block) % image.blocks.len()];
        let [head, tail] = place.used.clone();
        let at = usize::from(change.at) % (head.len() + tail.len()).max(1);
        let at = if at < head.len() {
            at
        } else {
            tail.start + (at - head.len())
        };
        image.edit(&device, place, reseal, |bytes| {
            apply(image, &change.how, bytes, at)
        });
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

fn apply(image: &Image, how: &How, bytes: &mut [u8], at: usize) {
    let set = |bytes: &mut [u8], at: usize, new: &[u8]| {
        bytes[at..]
            .iter_mut()
            .zip(new)
            .for_each(|(to, from)| *to = *from);
    };
    match how {
        How::Set(new) => set(bytes, at, new),
        How::Set2(new) => set(bytes, at, new),
        How::Set8(new) => set(bytes, at, new),
        How::Flip(bit) => bytes[at] ^= 1 << (bit % 8),
        How::Add(more) => {
            let mut old = [0; 8];
            old.iter_mut()
                .zip(&bytes[at..])
                .for_each(|(to, from)| *to = *from);
            let new = u64::from_le_bytes(old).wrapping_add_signed(i64::from(*more));
            set(bytes, at, &new.to_le_bytes());
        }
        How::Copy { from, len } => {
            let from = usize::from(*from) % bytes.len();
            let new: Vec<u8> = bytes[from..]
                .iter()
                .copied()
                .take(usize::from(*len))
                .collect();
            set(bytes, at, &new);
        }
        How::Other { block, from, len } => {
            let place = &image.blocks[usize::from(*block) % image.blocks.len()];
            let other = image.block(place);
            let from = usize::from(*from) % other.len();
            let end = (from + usize::from(*len)).min(other.len());
            set(bytes, at, &other[from..end]);
        }
    }
}
