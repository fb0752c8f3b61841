//! Parsers, validators and editors on bytes in memory.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod hostile;
mod hostile_base;
mod models;
