//! [`NbdOptions`].

use std::time::Duration;

#[cfg(doc)]
use super::NbdDevice;

/// Options for opening an [`NbdDevice`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// Write although the server has no flush. Nothing is then known to be durable.
    pub without_flush: bool,
    /// Connections, if the server allows several.
    pub connections: usize,
    /// Longest time for replacing a lost connection.
    pub patience: Duration,
    /// Time without a reply after which the connection counts as lost.
    pub timeout: Duration,
}

impl Default for NbdOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            without_flush: false,
            connections: 4,
            patience: Duration::from_secs(30),
            timeout: Duration::from_secs(120),
        }
    }
}
