//! [`FencedDevice`]: refuses writes that a lost lease no longer covers.

use std::sync::Arc;

use sapwood_block::{Device, Layer, Result};

use super::lease::Lease;

/// A device whose writes need a valid [`Lease`]. A write that finds the lease expired renews it
/// first, and fails if another machine took the file system over.
#[derive(Debug)]
pub(super) struct FencedDevice {
    inner: Arc<dyn Device>,
    lease: Arc<Lease>,
}

impl FencedDevice {
    pub(super) fn new(inner: Arc<dyn Device>, lease: Arc<Lease>) -> Self {
        Self { inner, lease }
    }
}

impl Layer for FencedDevice {
    type Below = dyn Device;

    fn below(&self) -> &(dyn Device + 'static) {
        &*self.inner
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.lease.check()?;
        Device::write_at(&*self.inner, offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        self.lease.check()?;
        Device::write_vectored_at(&*self.inner, offset, bufs)
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.lease.check()?;
        Device::write_fua(&*self.inner, offset, buf)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.lease.check()?;
        Device::discard(&*self.inner, offset, len)
    }
}
