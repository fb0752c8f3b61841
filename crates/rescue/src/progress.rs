//! Progress of a scan, and requests to end it.

/// The state of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scanning {
    /// Bytes that were read or skipped.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// Receives the progress of a scan, from one thread at a time.
pub trait Watch: Sync {
    /// The scan has come this far. False ends it with [`Error::Interrupted`](crate::Error).
    fn step(&self, scanning: Scanning) -> bool;
}

impl<F: Fn(Scanning) -> bool + Sync> Watch for F {
    fn step(&self, scanning: Scanning) -> bool {
        self(scanning)
    }
}
