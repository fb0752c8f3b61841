//! Arbitrary bytes in place of metadata: the check ends, with a report or an error.

use std::sync::{Arc, OnceLock};

use proptest::prelude::*;
use sapwood_block::{Device, MemoryDevice};

use crate::oracles::{MIB, TOOLS, image, left_out};

use super::tools::{Saved, report};

/// Names and files without a kernel, made by `debugfs`.
fn sample(args: &str) -> Arc<MemoryDevice> {
    let saved = Saved::new(&image(8 * MIB, args));
    let source = saved.beside("source");
    std::fs::write(&source, vec![5; 40_000]).unwrap();
    let source = source.to_str().unwrap();
    let mut commands = String::from("mkdir /d\nmkdir /d/e\nsymlink /s target\n");
    for number in 0..20 {
        commands.push_str(&format!("write {source} /d/file-{number}\n"));
    }
    commands.push_str("ea_set /d/file-1 user.name value\n");
    saved.debugfs(&commands);
    saved.load()
}

fn samples() -> &'static [Arc<MemoryDevice>; 3] {
    static SAMPLES: OnceLock<[Arc<MemoryDevice>; 3]> = OnceLock::new();
    SAMPLES.get_or_init(|| {
        [
            "-b 1024 -O ^metadata_csum",
            "-t ext2 -b 1024",
            "-b 1024 -O ^metadata_csum,^has_journal,inline_data",
        ]
        .map(sample)
    })
}

fn change() -> impl Strategy<Value = (u64, Vec<u8>)> {
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..64),
        prop::collection::vec(Just(0xff), 1..1024),
        prop::collection::vec(Just(0), 1..1024),
    ];
    // Superblock, descriptors, tables and directories are at the front.
    (
        prop_oneof![1024..4096_u64, 0..400 * 1024_u64, 0..4 * MIB],
        bytes,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn no_damage_panics_or_hangs(
        which in 0..3_usize,
        changes in prop::collection::vec(change(), 1..8),
    ) {
        if left_out(TOOLS) {
            return Ok(());
        }
        let device = Saved::new(&samples()[which]).load();
        for (offset, bytes) in changes {
            device.write_at(offset, &bytes).unwrap();
        }
        if let Ok(report) = report(&device) {
            for finding in &report.findings {
                let line = finding.to_string();
                prop_assert!(!line.is_empty() && !line.contains('\n'));
            }
        }
    }
}
