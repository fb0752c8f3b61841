//! The devices, the model and the suites themselves: they find planted defects.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod conformance_finds_bugs;
mod faulty;
mod layers;
mod model;
mod record_device;
mod unmount;
