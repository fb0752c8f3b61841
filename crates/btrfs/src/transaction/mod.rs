//! Transactions: a commit makes all changes of one durable at once.
//!
//! # How it works
//! Every change is made inside a [`Handle`] of the running transaction. A commit moves the
//! transaction through the [states](state::State). The first thread that asks for a commit performs
//! it (the committer); threads that ask meanwhile wait and share the outcome.
//!
//! ```text
//!  state          handles admitted   what threads wait for
//!  running        start, join        -
//!    |  a caller of `commit` claims it, once the previous transaction is completed
//!  commit start   join               starters wait for "unblocked";
//!    |                               the committer waits for handles of starters, then for the
//!    |                               ordered extents pinned to the transaction (hurry)
//!  commit doing   the committer's    joiners too wait for "unblocked";
//!    |                               the committer waits for handles of joiners, then is alone:
//!    |                               delayed items, snapshots (settle), delayed refs, root items,
//!    |                               block groups, superblock copy
//!  unblocked      none               the next transaction runs (created on demand);
//!    |                               the committer writes blocks, flushes, writes superblocks
//!  superblock     none               callers of `commit` return: it is durable
//!  written
//!    |                               the committer unpins freed space
//!  completed      none               the next commit may be claimed (completed)
//! ```
//!
//! In parentheses: the hooks of [`Participant`], by which higher modules take part.
//!
//! From "commit doing" until its superblock is on disk the committer holds the superblock-order
//! lock. A log of transaction T must not reach a superblock before T-1, which it builds on. Writing
//! it needs a handle of T, which exists only after T-1 is "unblocked", and that lock.
//!
//! Trouble cases:
//! - An error or a panic of the committer, or an aborted handle: [`Health`] fails before any
//!   further superblock is written, every waiter gets an error, and no handle starts any more.
//!   Earlier durable changes stay.
//! - A transaction in which nothing changed is not committed: an idle mount writes nothing.
//!
//! [`Health`]: sapwood_base::Health

mod commit;
mod dirty;
mod handle;
mod quota;
mod state;
mod store;
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
