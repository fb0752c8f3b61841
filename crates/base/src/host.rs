//! System calls of this crate: how a thread sleeps until a number changes, the machine's name, a
//! clock.
//!
//! `linux` uses futexes. `portable` has the same functions on the standard library's locks, for
//! every other system and for `--cfg sapwood_portable`.

#[cfg(all(target_os = "linux", not(sapwood_portable)))]
mod linux;
#[cfg(all(target_os = "linux", not(sapwood_portable)))]
pub(crate) use linux::{Sleep, awake_or_asleep, node_name};

#[cfg(not(all(target_os = "linux", not(sapwood_portable))))]
mod portable;
#[cfg(not(all(target_os = "linux", not(sapwood_portable))))]
pub(crate) use portable::{Sleep, awake_or_asleep, node_name};
