//! An image that a power cut left with all of its changes in the journal, of which some bytes lie,
//! mounted: the journal is recovered or refused. A mount that may not write changes nothing; what
//! only an error of the journal refused is as it was.
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

/// What is changed, and how the image is used then.
#[derive(Arbitrary, Debug)]
struct Lies {
    /// Bits 0 and 1: which form; bit 2: mounted for writing; bit 3: checked; bit 4: explored
    /// afterwards.
    mode: u8,
    /// Changes, one after the other: of a block of the log by its number (modulo how many there
    /// are), of a block elsewhere from 0xe0 on.
    changes: Vec<Change>,
}

const MOST: usize = 12;

/// An image, and which of its blocks are those of the log.
struct Journaled {
    image: Image,
    log: Vec<u64>,
    others: Vec<u64>,
}

impl Journaled {
    /// The log holds what the empty image does not, from its superblock on, which comes first.
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

/// Mounts, which recovers, and unmounts. False if either was refused.
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
