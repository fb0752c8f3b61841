//! The explorer: that it finds what is wrong, and a slice of what it explores.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod oracle;
mod orders;
mod slice;
