//! Counters of the journal.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of a journal. They only grow.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
        }

        /// The counters at one moment.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        pub struct CounterValues {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Current values of all counters; each is read on its own.
            pub(crate) fn snapshot(&self) -> CounterValues {
                CounterValues { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl CounterValues {
            /// Names and values, for a listing.
            #[must_use]
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Transactions made durable.
    commits,
    /// Calls of commit that waited for another thread's commit.
    shared_commits,
    /// Handles started, restarts included.
    handles,
    /// Buffers that joined a transaction.
    joins,
    /// Metadata blocks written to the log, or to their home locations when there is no log.
    blocks_logged,
    /// Descriptor, revoke and commit blocks written to the log.
    log_overhead_blocks,
    /// Blocks that had to be escaped.
    escaped,
    /// Revoke records written.
    revokes,
    /// Revokes cancelled because the same transaction used the block again.
    cancelled_revokes,
    /// Checkpoints that moved the tail of the log.
    checkpoints,
    /// Blocks that checkpoints wrote to their home locations.
    blocks_checkpointed,
    /// Starts of handles that waited because the transaction was full.
    waits_for_transaction,
    /// Starts of handles that waited because the log was full.
    waits_for_log,
    /// Handles that changed more blocks than they reserved.
    overdrafts,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn count(counter: &AtomicU64) {
        Self::add(counter, 1);
    }
}
