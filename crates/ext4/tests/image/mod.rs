//! Images in memory made by `mke2fs`, and their judge, `e2fsck`.
#![allow(dead_code, clippy::unwrap_used, unreachable_pub)]

use std::io::Write as _;
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice};
use sapwood_ext4::check::{CheckOptions, check};

/// Why `mke2fs` or `e2fsck` is not there.
pub fn missing() -> Option<String> {
    ["mke2fs", "e2fsck"].into_iter().find_map(|name| {
        let found = Command::new(name).arg("-V").output().is_ok();
        (!found).then(|| format!("no {name}"))
    })
}

/// An image of `bytes` bytes in memory, made with these options of `mke2fs`.
pub fn formatted(bytes: u64, options: &[&str]) -> Arc<MemoryDevice> {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(bytes).unwrap();
    let out = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4"])
        .args(options)
        .arg(file.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "mke2fs {options:?}: {said}");
    Arc::new(MemoryDevice::load(file.path()).unwrap())
}

/// What `e2fsck`, or our own check, finds wrong with an image that was unmounted.
pub fn judge(device: &Arc<MemoryDevice>) -> Result<(), String> {
    let ours: Arc<dyn Device> = device.clone();
    let options = CheckOptions::default();
    let report = check(&ours, &options, &mut |_| ControlFlow::Continue(()));
    let report = report.map_err(|error| error.to_string())?;
    if !report.is_clean() {
        return Err(format!("our check: {:?}", report.findings));
    }
    let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    device
        .save(file.path())
        .map_err(|error| error.to_string())?;
    let out = Command::new("e2fsck")
        .arg("-fn")
        .arg(file.path())
        .output()
        .unwrap();
    if out.status.success() {
        return Ok(());
    }
    let kept = std::env::var_os("SAPWOOD_KEEP_IMAGES").map(|dir| {
        let path = std::path::Path::new(&dir).join(format!("{}.img", fastrand::u32(..)));
        std::fs::copy(file.path(), &path).unwrap();
        path
    });
    Err(format!(
        "e2fsck -fn: {}\n{}{}{kept:?}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    ))
}

/// Shows what the engine logs, on standard error.
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
