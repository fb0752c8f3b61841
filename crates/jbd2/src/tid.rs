//! Numbers of transactions.

/// Number of a transaction. The log stores the low 32 bits; in memory the number never wraps.
pub type Tid = u64;
