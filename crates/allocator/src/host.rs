//! The allocator below: jemalloc on Linux, the system's elsewhere.

#[cfg(all(target_os = "linux", not(sapwood_portable)))]
mod linux;
#[cfg(all(target_os = "linux", not(sapwood_portable)))]
pub(crate) use linux::Below;

#[cfg(not(all(target_os = "linux", not(sapwood_portable))))]
pub(crate) use std::alloc::System as Below;
