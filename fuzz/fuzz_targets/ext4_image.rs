//! A small ext4 image with changed bytes: it is checked, opened, walked, changed and unmounted.
//!
//! Input: see [`Lies`].
#![no_main]

use std::sync::{Arc, OnceLock};

use arbitrary::Arbitrary;
use libfuzzer_sys::{Corpus, fuzz_target};
use sapwood_fuzz::ext4::{FORMS, Image, check_all, explore, options};
use sapwood_fuzz::lies::Change;

/// The changes, and the use of the image after them.
#[derive(Arbitrary, Debug)]
struct Lies {
    /// Bits 0 and 1: form of the image; bit 2: mounted for writing; bit 3: checked; bit 4: mounted
    /// a second time.
    mode: u8,
    /// Changes, in order, each of a block by its number (modulo the number of blocks).
    changes: Vec<Change>,
}

const MOST: usize = 12;

fn image(form: usize) -> &'static Image {
    static IMAGES: [OnceLock<Image>; FORMS.len()] = [const { OnceLock::new() }; FORMS.len()];
    IMAGES[form].get_or_init(|| Image::filled(form))
}

fuzz_target!(|lies: Lies| -> Corpus {
    if lies.changes.len() > MOST {
        return Corpus::Reject;
    }
    let image = image(usize::from(lies.mode) % FORMS.len());
    let device = image.device.snapshot();
    for change in &lies.changes {
        image.edit(&device, &image.blocks, change);
    }
    let device = Arc::new(device);
    if lies.mode & 8 != 0 {
        let clean = check_all(&device);
        assert!(
            clean || !lies.changes.is_empty(),
            "a good image has findings"
        );
    }
    let read_only = lies.mode & 4 == 0;
    let before = device.snapshot();
    let mounted = explore(&device, options(read_only));
    if read_only || !mounted {
        assert_eq!(device.first_difference(&before), None, "changed");
    }
    if lies.mode & 16 != 0 {
        explore(&device, options(false));
    }
    Corpus::Keep
});
