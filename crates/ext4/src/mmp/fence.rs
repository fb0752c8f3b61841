//! [`FencedDevice`]: refuses writes that a lost lease no longer covers.

use std::ops::Range;
use std::sync::Arc;

use sapwood_block::{Device, Layer, Result};

use super::lease::Lease;

/// A device whose writes need a valid [`Lease`]. A write that finds the lease expired renews it
/// first, and fails if another machine took the file system over.
///
/// Only the lease writes the block of the protection. Layers above that keep whole pages may write
/// an older copy of it with its neighbours; such a write leaves the block out.
#[derive(Debug)]
pub(super) struct FencedDevice {
    inner: Arc<dyn Device>,
    lease: Arc<Lease>,
    /// Bytes that only the lease writes.
    own: Range<u64>,
}

impl FencedDevice {
    /// The device of the file system; the block of the protection is on it.
    pub(super) fn new(inner: Arc<dyn Device>, lease: Arc<Lease>) -> Self {
        let own = lease.place();
        Self { inner, lease, own }
    }

    /// Another device that the lease covers.
    pub(super) fn other(inner: Arc<dyn Device>, lease: Arc<Lease>) -> Self {
        let own = 0..0;
        Self { inner, lease, own }
    }

    /// The parts of `buf` before and after the block of the protection, with their offsets.
    fn around<'b>(&self, offset: u64, buf: &'b [u8]) -> impl Iterator<Item = (u64, &'b [u8])> {
        let place = |at: u64| {
            let within = at.saturating_sub(offset).min(buf.len() as u64);
            // At most the length of the buffer.
            within as usize
        };
        let (from, to) = (place(self.own.start), place(self.own.end));
        let parts = if from == to {
            [0..buf.len(), 0..0]
        } else {
            [0..from, to..buf.len()]
        };
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        parts.filter_map(move |part| Some((offset + part.start as u64, buf.get(part)?)))
    }

    fn has_own(&self, offset: u64, len: u64) -> bool {
        offset < self.own.end && offset.saturating_add(len) > self.own.start
    }
}

impl Layer for FencedDevice {
    type Below = dyn Device;

    fn below(&self) -> &(dyn Device + 'static) {
        &*self.inner
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.lease.check()?;
        let mut parts = self.around(offset, buf);
        parts.try_for_each(|(at, part)| Device::write_at(&*self.inner, at, part))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        if self.has_own(offset, len) {
            return Device::write_at(self, offset, &bufs.concat());
        }
        self.lease.check()?;
        Device::write_vectored_at(&*self.inner, offset, bufs)
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.lease.check()?;
        let mut parts = self.around(offset, buf);
        parts.try_for_each(|(at, part)| Device::write_fua(&*self.inner, at, part))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.lease.check()?;
        Device::discard(&*self.inner, offset, len)
    }
}
