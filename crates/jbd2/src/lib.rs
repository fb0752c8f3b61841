//! The journal of ext4 (jbd2): handles, commit, checkpoint, revokes, recovery.

#![allow(dead_code)]

mod buffer;
mod cache;
mod commit;
mod counters;
mod error;
mod failure;
mod handle;
mod home;
mod host;
mod journal;
mod rank;
mod space;
mod state;
mod table;
mod transaction;

pub use buffer::{Buffer, BufferRead, BufferWrite, Seal};
pub use cache::Cache;
pub use counters::CounterValues;
pub use error::{Error, HostError, Result};
pub use handle::Handle;
pub use host::{Closing, Host, Wish};
pub use journal::{Journal, Options};

/// Number of a transaction. The log has the low 32 bits; in memory it never wraps.
pub type Tid = u64;
