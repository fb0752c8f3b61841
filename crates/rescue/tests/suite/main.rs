//! Damaged images in memory: what is lost, and what is not.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod btrfs;
mod devices;
mod ext4;
mod walk;
