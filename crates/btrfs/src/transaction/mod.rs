//! Transactions: what a commit makes durable all at once.
//!
//! # How it works
//! Every change is made inside a [`Handle`] of the running transaction. A commit moves the
//! transaction through the [`State`]s; the thread that asks for it first does the work; threads
//! that ask meanwhile wait and share the outcome.
//!
//! ```text
//!                 who may enter        who waits for what
//!  running        start, join          -
//!    |  a caller of `commit` claims it, once the previous transaction is completed
//!  commit start   join                 starters wait for "unblocked";
//!    |                                 the committer waits for handles of starters, then for
//!    |                                 the ordered extents pinned to the transaction
//!  commit doing   the committer        joiners too wait for "unblocked";
//!    |                                 the committer waits for handles of joiners, then is
//!    |                                 alone: inodes, snapshots, delayed refs, root items,
//!    |                                 block groups, superblock copy
//!  unblocked      none                 the next transaction runs (created on demand);
//!    |                                 the committer writes blocks, flushes, writes supers
//!  superblock     none                 callers of `commit` return: it is durable
//!  written
//!    |                                 the committer gives pinned space back
//!  completed      none                 the next commit may be claimed
//! ```
//!
//! From "commit doing" until its superblock is on disk the committer holds the superblock-order
//! lock, so that a log never reaches a superblock before the transaction that it builds on: that
//! log needs a handle of the next transaction, which there is only after "unblocked".
//!
//! Trouble cases:
//! - An error (or a panic) of the committer, or a handle that was aborted: [`Health`] fails
//!   before anything else of the superblock is written, every waiter gets an error, no handle
//!   starts any more. What was durable before stays so.
//! - A transaction in which nothing changed is not committed: an idle mount writes nothing.
//!
//! [`Health`]: sapwood_base::Health

mod commit;
mod dirty;
mod handle;
mod log_blocks;
mod state;
mod store;
mod super_copy;
mod table;
#[cfg(test)]
mod table_tests;
mod tree_write;

pub(crate) use dirty::Delayed;
pub(crate) use handle::Handle;
#[cfg(test)]
pub(crate) use state::State;
pub(crate) use store::{Participant, Store};
pub(crate) use table::Transaction;
