//! What Sapwood is worth beside others, and what its mechanisms are, measured.
//!
//! # How it works
//!
//! ```text
//! contestants x workloads x media  ->  runner  ->  figures  ->  statistics  ->  report
//! ```
//!
//! A *contestant* is a way to have a file system: Sapwood through FUSE (served by a child of
//! this very program) or in process, with all mechanisms or with some of them switched to what was
//! done before them; or a *peer*: a file system of the kernel, or fuse2fs. A *workload* drives it,
//! through a directory with real load generators, or through the library with threads. In each
//! *round* every contestant runs once, on a fresh file system, so that a disturbance of the machine
//! hits all alike; ratios are made of pairs from one round. The first contestant runs a second
//! time in each round as a control: what it differs from itself is noise.

pub mod contestant;
mod error;
pub mod figures;
pub mod html;
pub mod images;
pub mod machine;
pub mod markdown;
pub mod metric;
pub mod peer;
pub mod plan;
pub mod plot;
pub mod policy;
pub mod published;
pub mod report;
pub mod runner;
pub mod serve;
pub mod setup;
pub mod statistics;
pub mod suite;
pub mod table;
pub mod target;
pub mod usage;
pub mod workload;

pub use error::{Error, Result};
