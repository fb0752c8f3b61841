//! The library as its users have it, on both formats.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod archive;
mod copying;
mod damage;
mod errors;
mod host_full;
mod in_place;
mod library;
mod no_wait;
mod opening;
mod public_names;
mod repair;
mod resize;
mod sealing;
mod sending;
mod transaction;
