//! Images in memory made by `mke2fs`, and their judge, `e2fsck`.
#![allow(dead_code, unreachable_pub)]

use std::io::Write as _;
use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_ext4::check::{CheckOptions, check};
use sapwood_testing::machine::{E2FSPROGS, Need};
use sapwood_testing::oracle::ext4;

/// The needs of a test that makes an image and checks it.
pub const TOOLS: &[Need] = &E2FSPROGS;

/// An image of `bytes` bytes in memory, made with these options of `mke2fs`.
pub fn formatted(bytes: u64, options: &[&str]) -> Arc<MemoryDevice> {
    ext4::image(bytes, &options.join(" "))
}

/// The findings of `e2fsck`, or of Sapwood's check, on an unmounted image.
pub fn judge(device: &Arc<MemoryDevice>) -> Result<(), String> {
    let ours: Arc<dyn Device> = device.clone();
    let options = CheckOptions::default();
    let report = check(&ours, &options, &mut |_| ControlFlow::Continue(()));
    let report = report.map_err(|error| error.to_string())?;
    if !report.is_clean() {
        return Err(format!("our check: {:?}", report.findings));
    }
    ext4::check(device)
}

/// Shows the engine's log on standard error.
pub fn show_log() {
    struct Stderr;
    impl log::Log for Stderr {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            let _ = writeln!(std::io::stderr(), "{}: {}", record.level(), record.args());
        }
        fn flush(&self) {}
    }
    static LOGGER: Stderr = Stderr;
    if log::set_logger(&LOGGER).is_ok() {
        log::set_max_level(log::LevelFilter::Warn);
    }
}
