//! Operations on a fresh ext4 file system and on a model of it, with mounts and power cuts after a
//! sync in between: the outcomes and trees must be equal, and the check at the end must be clean.
//!
//! Input: see [`Run`].
#![no_main]

use std::sync::{Arc, OnceLock};

use arbitrary::Arbitrary;
use libfuzzer_sys::{Corpus, fuzz_target};
use sapwood_block::MemoryDevice;
use sapwood_ext4::{DataMode, Ext4};
use sapwood_fuzz::ext4::{FORMS, check_all, empty, options};
use sapwood_fuzz::step::Step;
use sapwood_testing::MemoryFs;
use sapwood_testing::model::{Settings, compare_trees, replay};
use sapwood_testing::op::Op;
use sapwood_vfs::FileSystem;

/// The mount options, and the operations.
#[derive(Arbitrary, Debug)]
struct Run {
    /// Bits 0 and 1: form of the image; bit 2: data through the journal; bit 3: a power cut after a
    /// sync, in place of each unmount.
    mount: u8,
    steps: Vec<Step>,
}

const MOST: usize = 60;

fn fresh(form: usize) -> MemoryDevice {
    static EMPTY: [OnceLock<MemoryDevice>; FORMS.len()] = [const { OnceLock::new() }; FORMS.len()];
    let made = EMPTY[form].get_or_init(|| {
        let device = Arc::new(empty(form));
        let fs = Ext4::open(device.clone(), options(false)).expect("mounts");
        // The model has no `lost+found`.
        fs.rmdir(fs.root(), b"lost+found").expect("it is empty");
        fs.unmount().expect("unmounts");
        device.snapshot()
    });
    made.snapshot()
}

/// Files with block maps have no unwritten blocks.
fn possible(op: &Op, form: usize) -> bool {
    form != 1 || op.allocation().is_none()
}

fuzz_target!(|run: Run| -> Corpus {
    if run.steps.is_empty() || run.steps.len() > MOST {
        return Corpus::Reject;
    }
    let form = usize::from(run.mount) % FORMS.len();
    let mut device = Arc::new(fresh(form));
    let mut options = options(false);
    if run.mount & 4 != 0 {
        options.data = DataMode::Journal;
    }
    let settings = Settings {
        compare_every: usize::MAX,
        ..Settings::default()
    };
    let model = MemoryFs::new();
    for part in run.steps.split(|step| matches!(step, Step::Remount)) {
        let ops = part.iter().filter_map(Step::op);
        let ops: Vec<_> = ops.filter(|op| possible(op, form)).collect();
        let fs = Ext4::open(device.clone(), options.clone()).expect("mounts");
        compare_trees(&fs, &model).unwrap_or_else(|found| panic!("after the mount: {found}"));
        if let Err(failure) = replay(&ops, &fs, &model, &settings) {
            panic!("{failure}");
        }
        if run.mount & 8 == 0 {
            fs.unmount().expect("unmounts");
        } else {
            fs.sync().expect("syncs");
            device = Arc::new(device.snapshot());
        }
    }
    if run.mount & 8 != 0 {
        let fs = Ext4::open(device.clone(), options).expect("recovers");
        fs.unmount().expect("unmounts");
    }
    assert!(check_all(&device), "findings");
    Corpus::Keep
});
