//! Structures, validators and dumps on blocks in memory, of the kernel and damaged.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod common;

mod block;
mod images;
mod kernel;
mod mutate;
mod validate;
