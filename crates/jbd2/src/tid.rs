//! Numbers of transactions.

/// Number of a transaction. The log has the low 32 bits; in memory it never wraps.
pub type Tid = u64;
