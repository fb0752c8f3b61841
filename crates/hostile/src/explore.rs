//! Does everything with an image that a user could, within bounds.

use std::sync::Arc;

use sapwood_block::MemoryDevice;
use sapwood_btrfs::check::{self, CheckOptions};
use sapwood_btrfs::{Btrfs, Options};
use sapwood_testing::tour::{Outcome, tour};
use sapwood_vfs::FileSystem;

/// Options for many short mounts.
#[must_use]
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

/// Mounts the image, reads everything, makes one change of each kind if it is writable, and
/// unmounts; `None` if it could not be mounted.
pub fn explore(device: &Arc<MemoryDevice>, options: Options) -> Option<Outcome> {
    let writable = !options.read_only;
    let fs = Btrfs::open(vec![device.clone()], options).ok()?;
    let outcome = tour(&fs, writable);
    let _ = fs.unmount();
    Some(outcome)
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
