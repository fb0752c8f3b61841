//! The engine as a whole: on images of `mke2fs`, compared with e2fsprogs and the kernel. Tests are
//! listed at run time: a case for each row of a table or file of a directory. A case whose
//! requirements are missing is ignored by name.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod image;
mod stories;

mod conformance;
mod fast_commits;
mod inspect;
mod journal_device;
mod kernel_journals;
mod mkfs_kernel;
mod mmp;
mod model;
mod mutants;
mod renumber;

fn main() {
    image::show_log();
    let trials = sapwood_testing::trials_of![
        conformance,
        fast_commits,
        inspect,
        journal_device,
        kernel_journals,
        mkfs_kernel,
        mmp,
        model,
        mutants,
        renumber,
    ];
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), trials).exit();
}
