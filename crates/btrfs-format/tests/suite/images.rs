//! Images that mkfs and the kernel made: every reachable tree block must validate.
//!
//! `SAPWOOD_IMAGES` may name a directory with more of them (`*.img`).

use std::fs::File;

use crate::common::Walker;
use sapwood_btrfs_format::DumpBlock;
use sapwood_testing::machine::note;

#[test]
fn images_of_the_environment_validate() {
    let Ok(dir) = std::env::var("SAPWOOD_IMAGES") else {
        note(None, "SAPWOOD_IMAGES is not set");
        return;
    };
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "img") {
            continue;
        }
        let file = File::open(&path).unwrap();
        let walk = Walker::run(&file);
        println!("{}: {} blocks", path.display(), walk.blocks.len());
        assert!(
            walk.refused.is_empty(),
            "{}: {:#?}",
            path.display(),
            walk.refused
        );
        assert!(walk.blocks.len() > 8);
        for found in &walk.blocks {
            let text = DumpBlock(&found.bytes).to_string();
            assert!(!text.contains("BAD") && !text.contains("UNKNOWN"), "{text}");
            if std::env::var_os("SAPWOOD_DUMP").is_some() {
                print!("{text}");
            }
        }
    }
}
