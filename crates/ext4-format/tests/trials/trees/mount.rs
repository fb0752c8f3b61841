//! Images, and their mounts by the kernel.

use std::path::Path;

use sapwood_testing::oracle::Kind;
use sapwood_testing::process;

/// Runs a program to its end; its output is in the panic if it fails.
pub(crate) fn run(program: &str, args: &[&str], path: &Path) -> String {
    let mut command = process::command(program, args);
    process::succeed(command.arg(path), process::ORDINARY).unwrap()
}

/// A new image of a format.
pub(crate) fn make(path: &Path, size: u64, args: &str) {
    std::fs::File::create(path).unwrap().set_len(size).unwrap();
    let args: Vec<&str> = args.split_whitespace().collect();
    Kind::Ext4.format(path, &args).unwrap();
}

/// `e2fsck` finds nothing.
pub(crate) fn clean(path: &Path) {
    Kind::Ext4.check(path).unwrap();
}
