//! The btrfs engine: volumes, trees, space, transactions, data, operations.
#![allow(dead_code)]

mod engine;
mod error;
mod health;
mod lock;
mod options;
mod transaction;

pub use engine::Btrfs;
pub use error::{Error, Result};
pub use options::{Compression, Options, SubvolumeChoice};
