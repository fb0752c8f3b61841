//! Devices: files, loop devices, images of QEMU, partitions, servers.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod file_device;
#[cfg(all(target_os = "linux", not(sapwood_portable)))]
mod loop_device;
mod nbd;
mod partitions;
mod patient;
mod qcow2;
#[cfg(all(target_os = "linux", not(sapwood_portable)))]
mod qemu_locks;
