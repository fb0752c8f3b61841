//! Helpers of the whole-system tests: a mixed tree to fill file systems with ([`fill`]),
//! comparisons of trees ([`compare`]), images and mounts that their guards remove ([`image`],
//! [`mount`]), forms of file systems for programs to work in ([`form`]), and requirements on the
//! machine ([`machine`]).
#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a failed step fails the test"
)]

pub mod changes;
pub mod compare;
pub mod ext4;
pub mod fill;
pub mod form;
pub mod image;
pub mod machine;
pub mod matrix;
pub mod mount;
pub mod random;
pub mod subvolumes;
pub mod volume;

pub use machine::{Need, Outcome, trial};
pub use sapwood_testing::{process, scratch};
