//! The explorer: it finds planted faults, and a slice of its workloads passes.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod oracle;
mod orders;
mod slice;
