//! The journal of ext4 (jbd2): handles, commit, checkpoint, revokes, recovery.
//!
//! Metadata blocks live in a [`Cache`] as [`Buffer`]s. Every change is made through a [`Handle`] of
//! the running transaction of a [`Journal`], which a commit makes durable all at once, while the
//! next one runs. A [`Log`] is where a journal is on the device; it is recovered before a
//! journal uses it. The engine above is the journal's [`Host`]. A file system without a journal uses the
//! same in place.

mod buffer;
mod cache;
mod checkpoint;
mod checksum;
mod codec;
mod commit;
mod counters;
mod error;
mod failure;
mod fast;
mod format;
mod handle;
mod home;
mod host;
mod journal;
mod layout;
mod log;
mod log_write;
mod nesting;
mod pending;
mod rank;
mod recovery;
mod space;
mod state;
mod superblock;
mod table;
mod tid;
mod transaction;

pub use buffer::{Buffer, BufferRead, BufferWrite, Seal};
pub use cache::Cache;
pub use counters::CounterValues;
pub use error::{Damage, Error, Features, HostError, Result};
pub use fast::{FastCommitStart, FastCommitTurn};
pub use format::{Incompat, LayoutRun};
pub use handle::Handle;
pub use host::{Closing, Host, Wish};
pub use journal::{Journal, Options};
pub use layout::LayoutMap;
pub use log::Log;
pub use rank::LockOrder;
pub use recovery::{FastCommits, LogCopy, LogEntry, Plan, Recovery, Scanned};
pub use superblock::NewJournal;
pub use tid::Tid;
