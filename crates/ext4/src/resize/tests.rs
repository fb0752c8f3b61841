//! A file system with casefold, which is not mounted for writing.

use std::sync::Arc;

use sapwood_block::Device;
use sapwood_ext4_format::{SUPER_OFFSET, SUPER_SIZE, SuperBlock, SuperState};
use sapwood_testing::oracle::ext4::debugfs_only;
use sapwood_vfs::FileSystem;

use crate::oracles::{MIB, TOOLS, clean, image, left_out};
use crate::{Ext4, Options};

const DIRS: u32 = 40;

/// Directories and files, some of them in a directory that folds case.
fn filled() -> Arc<sapwood_block::MemoryDevice> {
    let plain = image(64 * MIB, "-b 1024 -g 4096 -N 2048 -O casefold");
    let mut commands = String::new();
    for dir in 0..DIRS {
        commands += &format!("mkdir d{dir}\nmkdir d{dir}/Sub\n");
    }
    commands += "sif d7 flags 0x40080000\n";
    debugfs_only(&plain, &commands)
}

#[test]
fn a_file_system_with_casefold_is_resized() {
    if left_out(TOOLS) {
        return;
    }
    let device = filled();
    clean(&device, "before");
    let resized: Arc<dyn Device> = device.clone();
    for size in [24, 64, 16] {
        super::resize(&resized, size * MIB, None, &mut |_| ()).unwrap();
        clean(&device, &format!("{size} MiB"));
    }
    super::shrink_to_fit(&resized, 0, None, &mut |_| ()).unwrap();
    clean(&device, "smallest");
    let options = Options {
        read_only: true,
        ..Options::default()
    };
    let fs = Ext4::open(device, options).unwrap();
    for dir in 0..DIRS {
        let found = fs.lookup(fs.root(), format!("d{dir}").as_bytes()).unwrap();
        fs.lookup(found.ino(), b"Sub").unwrap();
    }
    let folding = fs.lookup(fs.root(), b"d7").unwrap();
    fs.lookup(folding.ino(), b"sUB").unwrap();
}

#[test]
fn one_that_needs_recovery_or_has_errors_is_refused() {
    if left_out(TOOLS) {
        return;
    }
    for (unclean, why) in [(true, "casefold"), (false, "has errors")] {
        let device = filled();
        let mut bytes = vec![0; SUPER_SIZE];
        device.read_at(SUPER_OFFSET, &mut bytes).unwrap();
        let mut sb = SuperBlock::parse(&bytes).unwrap();
        if unclean {
            let mut features = sb.features();
            features.incompat |= sapwood_ext4_format::Incompat::RECOVER;
            sb.set_features(features);
        } else {
            sb.set_state(SuperState::VALID | SuperState::ERROR);
        }
        sb.set_checksum();
        device.write_at(SUPER_OFFSET, sb.bytes()).unwrap();
        let before = device.snapshot();
        let resized: Arc<dyn Device> = device.clone();
        let error = super::resize(&resized, 24 * MIB, None, &mut |_| ()).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(device.first_difference(&before), None);
    }
}
