//! The devices, the model and the suites themselves: that they find what is wrong.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod common;

mod conformance_finds_bugs;
mod layers;
mod model;
mod record_device;
mod unmount;
