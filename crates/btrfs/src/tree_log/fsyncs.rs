//! How many fsyncs are under way.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The fsyncs under way in a mount.
#[derive(Debug, Default)]
pub(crate) struct Fsyncs(AtomicUsize);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay<'a>(&'a Fsyncs);

impl Fsyncs {
    /// Begins one.
    pub(super) fn begin(&self) -> UnderWay<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        UnderWay(self)
    }

    /// How many there are.
    pub(super) fn under_way(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
