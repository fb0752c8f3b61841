//! The engine on images in memory, a module for each subject. `btrfs check` judges them where it is
//! installed.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

#[path = "../data_files/mod.rs"]
mod data_files;
#[path = "../image/mod.rs"]
mod image;
mod small;

mod check;
mod check_fixture;
mod commit_faults;
mod crash;
mod data_crash;
mod devices;
mod faults;
mod full;
mod hostile;
mod log_removed;
mod log_write;
mod mirrors;
mod mkfs;
mod model;
mod mounted_balance;
mod mounted_replacement;
mod mounted_resize;
mod mounted_scrub;
mod names_of_one_hash;
mod orphans;
mod places;
mod quotas;
mod reclaim;
mod relocation;
mod replacement;
mod scrub_donors;
mod whiteouts;
