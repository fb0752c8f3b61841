//! btrfs images whose bytes are wrong: the images that are damaged ([`image`]), and the use of a
//! damaged one ([`explore`]). The tests of the engine and the fuzz targets share them.
//!
//! It is not a part of `sapwood-testing`, because it needs the engine, whose unit tests use that
//! crate.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

pub mod explore;
pub mod image;
