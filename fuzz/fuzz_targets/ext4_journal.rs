//! An image that a power cut left with all its changes in the journal, with changed bytes, is
//! mounted: the mount recovers the journal or refuses it. A read-only mount changes nothing. If the
//! mount fails only because of the journal, the image is unchanged.
//!
//! Input: see [`Lies`].
#![no_main]

use std::sync::{Arc, OnceLock};

use arbitrary::Arbitrary;
use libfuzzer_sys::{Corpus, fuzz_target};
use sapwood_block::MemoryDevice;
use sapwood_ext4::{Error, Ext4};
use sapwood_fuzz::ext4::{FORMS, Image, check_all, explore, options};
use sapwood_fuzz::lies::Change;
use sapwood_vfs::FileSystem;

/// The changes, and the use of the image after them.
#[derive(Arbitrary, Debug)]
struct Lies {
    /// Bits 0 and 1: form of the image; bit 2: mounted for writing; bit 3: checked; bit 4: explored
    /// afterwards.
    mode: u8,
    /// Changes, in order, each of a block of the log by its number (modulo the number of blocks),
    /// or from 0xe0 on of another block.
    changes: Vec<Change>,
}

const MOST: usize = 12;

/// An image, and the blocks of its log.
struct Journaled {
    image: Image,
    log: Vec<u64>,
    others: Vec<u64>,
}

impl Journaled {
    /// The log has the blocks that differ from the empty image, beginning with its superblock.
    fn new(form: usize) -> Self {
        let image = Image::cut_off(form);
        let magic = |offset: &u64| {
            image
                .block(*offset)
                .starts_with(&0xc03b_3998_u32.to_be_bytes())
        };
        let first = image.blocks.iter().copied().find(magic);
        let first = first.expect("a journal");
        let inside = first..first + (1 << 20);
        let (log, others) = image.blocks.iter().partition(|at| inside.contains(*at));
        Self { image, log, others }
    }

    fn edit(&self, device: &MemoryDevice, change: &Change) {
        let places = match change.block {
            0..0xe0 => &self.log,
            0xe0.. => &self.others,
        };
        self.image.edit(device, places, change);
    }
}

fn journaled(form: usize) -> &'static Journaled {
    static MADE: [OnceLock<Journaled>; FORMS.len()] = [const { OnceLock::new() }; FORMS.len()];
    MADE[form].get_or_init(|| Journaled::new(form))
}

fuzz_target!(|lies: Lies| -> Corpus {
    if lies.changes.len() > MOST {
        return Corpus::Reject;
    }
    let made = journaled(usize::from(lies.mode) % FORMS.len());
    let device = made.image.device.snapshot();
    for change in &lies.changes {
        made.edit(&device, change);
    }
    let device = Arc::new(device);
    if lies.mode & 8 != 0 {
        check_all(&device);
    }
    let read_only = lies.mode & 4 == 0;
    if recovers(&device, read_only) {
        if lies.changes.is_empty() && !read_only {
            assert!(check_all(&device), "a good journal left findings");
        }
        if lies.mode & 16 != 0 {
            explore(&device, options(false));
        }
    }
    Corpus::Keep
});

/// Mounts (which recovers) and unmounts. False if either was refused.
fn recovers(device: &Arc<MemoryDevice>, read_only: bool) -> bool {
    let before = device.snapshot();
    let opened = Ext4::open(device.clone(), options(read_only));
    let untouched = match &opened {
        Ok(_) => read_only,
        Err(error) => read_only || matches!(error, Error::Journal(_)),
    };
    if untouched {
        let changed = device.first_difference(&before);
        assert_eq!(changed, None, "changed: {:?}", opened.err());
    }
    opened.is_ok_and(|fs| fs.unmount().is_ok())
}
