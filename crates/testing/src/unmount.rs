//! Unmounting in tests: one file for the tests of all crates.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Unmounts what the kernel has mounted at `at`. Patiently: a child that another test just starts may
/// hold a file of ours until it is a program of its own.
///
/// # Errors
/// What `umount` said last.
pub fn unmount(at: &Path) -> Result<(), String> {
    let mut left = 200;
    loop {
        let output = Command::new("umount").arg(at).output();
        let output = output.map_err(|error| format!("umount: {error}"))?;
        left -= 1;
        if output.status.success() {
            return Ok(());
        }
        if left == 0 {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        thread::sleep(Duration::from_millis(50));
    }
}
