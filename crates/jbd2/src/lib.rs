//! The journal of ext4 (jbd2): handles, commit, checkpoint, revokes, recovery.
//!
//! Metadata blocks live in a [`Cache`] as [`Buffer`]s. A [`Handle`] of the running transaction of a
//! [`Journal`] makes every change. A commit makes the transaction durable as a whole, while the
//! next one runs. A [`Log`] is the part of the device that holds the journal; it must be recovered
//! before a journal uses it. The engine above implements [`Host`]. A file system without a journal
//! uses the same types in place.

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
pub use fast::{FastCommitLeader, FastCommitStart};
pub use format::{Incompat, LayoutRun};
pub use handle::Handle;
pub use host::{Closing, Host, Request};
pub use journal::{Journal, Options};
pub use layout::LayoutMap;
pub use log::Log;
pub use rank::LockOrder;
pub use recovery::{FastCommits, LogCopy, LogEntry, Recovery, RecoveryPlan, Scanned};
pub use superblock::NewJournal;
pub use tid::Tid;
