//! Mounts, which other systems than Linux do not have. There the functions of `portable` refuse.

#[cfg(all(target_os = "linux", not(sapwood_portable)))]
pub(crate) use sapwood::internal::mount;

#[cfg(not(all(target_os = "linux", not(sapwood_portable))))]
pub(crate) mod portable;
#[cfg(not(all(target_os = "linux", not(sapwood_portable))))]
pub(crate) use portable as mount;
