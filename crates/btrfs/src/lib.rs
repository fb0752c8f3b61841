//! The btrfs engine: volumes, trees, space, transactions, data, operations.
#![allow(dead_code)]

mod data;
mod engine;
mod error;
mod health;
mod lock;
pub mod mkfs;
mod options;
mod space;
mod transaction;
mod tree;
mod volume;

pub use data::compress::{Compression, UnknownCompression};
pub use engine::Btrfs;
pub use error::{Error, Result};
pub use options::{Options, SubvolumeChoice};
