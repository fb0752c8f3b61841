//! The journal on devices in memory, and on images that the kernel left.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod common;

mod crash;
mod faults;
mod hostile;
mod in_place;
mod kernel;
mod log;
