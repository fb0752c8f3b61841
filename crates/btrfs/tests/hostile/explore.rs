//! Does everything with an image that a user could, within bounds. The fuzz targets use this
//! file too.
#![allow(dead_code, unreachable_pub)]

use std::sync::Arc;

use sapwood_block::MemoryDevice;
use sapwood_btrfs::check::{self, CheckOptions};
use sapwood_btrfs::{Btrfs, Options};
use sapwood_testing::tour::tour;
use sapwood_vfs::FileSystem;

/// What came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// It was mounted.
    pub mounted: bool,
    /// Inodes that could be looked at.
    pub inodes: usize,
    /// Bytes that could be read.
    pub bytes: u64,
    /// Calls that failed.
    pub errors: usize,
}

/// Options for many short mounts.
pub fn options(read_only: bool) -> Options {
    Options {
        read_only,
        cache_bytes: 4 << 20,
        dirty_bytes: 4 << 20,
        threads: 1,
        background: false,
        ..Options::default()
    }
}

/// Mounts the image, looks at everything, changes a little of everything if it is writable, and
/// unmounts.
pub fn explore(device: &Arc<MemoryDevice>, options: Options) -> Outcome {
    let writable = !options.read_only;
    let Ok(fs) = Btrfs::open(vec![device.clone()], options) else {
        return Outcome::default();
    };
    let sapwood_testing::tour::Outcome {
        inodes,
        bytes,
        errors,
    } = tour(&fs, writable);
    let _ = fs.unmount();
    Outcome {
        mounted: true,
        inodes,
        bytes,
        errors,
    }
}

/// Runs our check on the image.
pub fn check_all(device: &Arc<MemoryDevice>) {
    let options = CheckOptions {
        check_data_csum: true,
        max_findings: 100,
    };
    if let Ok(report) = check::check(&[&**device], &options, &mut |_| ()) {
        for finding in &report.findings {
            let _ = finding.to_string();
        }
    }
}
