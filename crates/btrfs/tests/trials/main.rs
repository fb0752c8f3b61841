//! Tests that are listed at run time: a case for each row of a table or image of a directory, and
//! tests that need the kernel or the tools, which are ignored by name where those are missing.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

#[path = "../data_files/mod.rs"]
mod data_files;
#[path = "../image/mod.rs"]
mod image;
mod logs;

mod commit;
mod conformance;
mod data_kernel;
mod data_write;
mod devices_kernel;
mod log_replay;
mod mkfs_kernel;
mod mutants;
mod oracle;
mod quotas;
mod subvolumes;
mod trees_kernel;

fn main() {
    let trials = sapwood_testing::trials_of![
        commit,
        conformance,
        data_kernel,
        data_write,
        devices_kernel,
        log_replay,
        mkfs_kernel,
        mutants,
        oracle,
        quotas,
        subvolumes,
        trees_kernel,
    ];
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), trials).exit();
}
