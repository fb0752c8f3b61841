//! Devices: files, loop devices, images of QEMU, partitions, servers.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod file_device;
mod loop_device;
mod nbd;
mod partitions;
mod patient;
mod qcow2;
mod qemu_locks;
