//! Images of the kernel and of e2fsprogs, read by this crate. Tests are listed at run time: a case
//! for each row of a table. A case whose requirements are missing is ignored by name.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod trees;

mod hashes;
mod images;
mod kernel_trees;

fn main() {
    let trials = sapwood_testing::trials_of![hashes, images, kernel_trees];
    libtest_mimic::run(&libtest_mimic::Arguments::from_args(), trials).exit();
}
