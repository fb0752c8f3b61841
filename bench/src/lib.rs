//! Benchmarks: compares Sapwood with other file systems, and its mechanisms switched on and off.
//!
//! # How it works
//!
//! ```text
//! contestants x workloads x media  ->  runner  ->  figures  ->  statistics  ->  report
//! ```
//!
//! A *contestant* is a way to run a file system: Sapwood through FUSE (served by a child that runs
//! this program) or in process, with all mechanisms or with some of them replaced by a simpler
//! method; or a *peer*: a file system of the kernel, or fuse2fs. A *workload* uses it, either
//! through a directory with real load generators or through the library with threads. In each
//! *round* every contestant runs once, on a fresh file system, so that a disturbance of the machine
//! affects all of them; a ratio is computed from pairs of one round. The first contestant runs a
//! second time in each round as a control: the difference of its two runs is noise.

pub mod contestant;
mod error;
pub mod figures;
pub mod html;
pub mod images;
pub mod machine;
pub mod markdown;
pub mod metric;
pub mod overview;
pub mod peer;
pub mod plan;
pub mod plot;
pub mod policy;
pub mod program;
pub mod published;
pub mod report;
pub mod runner;
pub mod serve;
pub mod setup;
pub mod statistics;
pub mod suite;
pub mod table;
pub mod target;
pub mod tool;
pub mod usage;
mod wait;
pub mod workload;

pub use error::{Error, Result};
