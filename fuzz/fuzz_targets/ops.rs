//! Operations on a fresh file system and on a model of it, with mounts in between: the outcomes and
//! trees must be equal, and the check at the end must be clean.
//!
//! Input: see [`Run`].
#![no_main]

use std::sync::{Arc, OnceLock};

use arbitrary::Arbitrary;
use libfuzzer_sys::{Corpus, fuzz_target};
use sapwood_block::MemoryDevice;
use sapwood_btrfs::check::{CheckOptions, check};
use sapwood_btrfs::mkfs::{MkfsOptions, mkfs};
use sapwood_btrfs::{Btrfs, Compression};
use sapwood_fuzz::step::Step;
use sapwood_hostile::explore::options;
use sapwood_testing::MemoryFs;
use sapwood_testing::model::{Settings, compare_trees, replay};
use sapwood_vfs::FileSystem;

/// The mount options, and the operations.
#[derive(Arbitrary, Debug)]
struct Run {
    /// 0: none; 1 to 3: compress written data; 4: no checksums; others: none.
    mount: u8,
    /// Nodes of 4 KiB.
    small_nodes: bool,
    steps: Vec<Step>,
}

const MOST: usize = 60;

/// An empty file system, by node size.
fn empty(small_nodes: bool) -> MemoryDevice {
    static EMPTY: OnceLock<[MemoryDevice; 2]> = OnceLock::new();
    let make = |node_size| {
        let device = MemoryDevice::new(256 << 20);
        let options = MkfsOptions {
            node_size: Some(node_size),
            uuid: Some([7; 16]),
            ..MkfsOptions::default()
        };
        mkfs(&device, &options).map(|_| device).expect("mkfs")
    };
    let devices = EMPTY.get_or_init(|| [make(16 << 10), make(4 << 10)]);
    devices[usize::from(small_nodes)].snapshot()
}

fuzz_target!(|run: Run| -> Corpus {
    if run.steps.is_empty() || run.steps.len() > MOST {
        return Corpus::Reject;
    }
    let device = Arc::new(empty(run.small_nodes));
    let mut options = options(false);
    // Without this, data that does not compress sets a flag that the model does not know.
    options.compress_force = true;
    match run.mount % 6 {
        1 => options.compress = Some(Compression::Zlib(1)),
        2 => options.compress = Some(Compression::Lzo),
        3 => options.compress = Some(Compression::Zstd(1)),
        4 => options.nodatasum = true,
        _ => {}
    }
    let settings = Settings {
        compare_every: usize::MAX,
        ..Settings::default()
    };
    let model = MemoryFs::new();
    for part in run.steps.split(|step| matches!(step, Step::Remount)) {
        let ops: Vec<_> = part.iter().filter_map(Step::op).collect();
        let fs = Btrfs::open(vec![device.clone()], options.clone()).expect("mounts");
        compare_trees(&fs, &model).unwrap_or_else(|found| panic!("after the mount: {found}"));
        if let Err(failure) = replay(&ops, &fs, &model, &settings) {
            panic!("{failure}");
        }
        fs.unmount().expect("unmounts");
    }
    let whole = CheckOptions {
        check_data_csum: true,
        max_findings: 20,
    };
    let report = check(&[&*device], &whole, &mut |_| ()).expect("checks");
    assert!(report.is_clean(), "{:#?}", report.findings);
    Corpus::Keep
});
