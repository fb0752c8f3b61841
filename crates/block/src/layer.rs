//! Devices on top of another device, which pass on all requests that they do not change.

use std::fs::File;
use std::sync::Arc;

use crate::{Device, DiskFormat, Result};

/// A device that passes every request to the one below, unless it overrides the method.
///
/// Every layer is a [`Device`]. A method that is added to `Device` must be added here, and all
/// layers then pass it on. A device that keeps writes to itself is not a layer: it implements
/// `Device`.
///
/// The methods have the names of `Device`. Where both traits are in scope a call is ambiguous, so
/// import this one only in generic functions.
pub trait Layer: Send + Sync + std::fmt::Debug {
    /// The type of the device below.
    type Below: Device + ?Sized;

    /// The device below.
    fn below(&self) -> &Self::Below;

    /// See [`Device::size`].
    fn size(&self) -> u64 {
        self.below().size()
    }

    /// See [`Device::name`].
    fn name(&self) -> &str {
        self.below().name()
    }

    /// See [`Device::format`].
    fn format(&self) -> DiskFormat {
        self.below().format()
    }

    /// See [`Device::read_only`].
    fn read_only(&self) -> bool {
        self.below().read_only()
    }

    /// See [`Device::read_at`].
    ///
    /// # Errors
    /// The errors of the device below.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.below().read_at(offset, buf)
    }

    /// See [`Device::write_at`].
    ///
    /// # Errors
    /// The errors of the device below.
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.below().write_at(offset, buf)
    }

    /// See [`Device::write_vectored_at`].
    ///
    /// # Errors
    /// The errors of the device below.
    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        self.below().write_vectored_at(offset, bufs)
    }

    /// See [`Device::write_fua`].
    ///
    /// # Errors
    /// The errors of the device below.
    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.below().write_fua(offset, buf)
    }

    /// See [`Device::flush`].
    ///
    /// # Errors
    /// The errors of the device below.
    fn flush(&self) -> Result<()> {
        self.below().flush()
    }

    /// See [`Device::discard`].
    ///
    /// # Errors
    /// The errors of the device below.
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.below().discard(offset, len)
    }

    /// See [`Device::grow`].
    ///
    /// # Errors
    /// The errors of the device below.
    fn grow(&self, size: u64) -> Result<()> {
        self.below().grow(size)
    }

    /// See [`Device::renew_size`].
    ///
    /// # Errors
    /// The errors of the device below.
    fn renew_size(&self) -> Result<u64> {
        self.below().renew_size()
    }

    /// See [`Device::writes_to_memory`].
    fn writes_to_memory(&self) -> bool {
        self.below().writes_to_memory()
    }

    /// See [`Device::has_no_data`].
    fn has_no_data(&self, offset: u64, len: u64) -> bool {
        self.below().has_no_data(offset, len)
    }

    /// See [`Device::will_read`].
    fn will_read(&self, offset: u64, len: u64) {
        self.below().will_read(offset, len);
    }

    /// See [`Device::drop_cached`].
    fn drop_cached(&self, offset: u64, len: u64) {
        self.below().drop_cached(offset, len);
    }

    /// See [`Device::watch`].
    ///
    /// # Errors
    /// The errors of the device below.
    fn watch(&self, offset: u64, len: u64) -> Result<()> {
        self.below().watch(offset, len)
    }

    /// See [`Device::write_behind`].
    fn write_behind(&self, offset: u64, len: u64) {
        self.below().write_behind(offset, len);
    }

    /// See [`Device::release_lock`].
    ///
    /// # Errors
    /// The errors of the device below.
    fn release_lock(&self) -> Result<()> {
        self.below().release_lock()
    }

    /// See [`Device::make_writable`].
    ///
    /// # Errors
    /// The errors of the device below.
    fn make_writable(&self, file: File) -> Result<()> {
        self.below().make_writable(file)
    }
}

impl<L: Layer> Device for L {
    fn size(&self) -> u64 {
        Layer::size(self)
    }

    fn name(&self) -> &str {
        Layer::name(self)
    }

    fn format(&self) -> DiskFormat {
        Layer::format(self)
    }

    fn read_only(&self) -> bool {
        Layer::read_only(self)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        Layer::read_at(self, offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        Layer::write_at(self, offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        Layer::write_vectored_at(self, offset, bufs)
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        Layer::write_fua(self, offset, buf)
    }

    fn flush(&self) -> Result<()> {
        Layer::flush(self)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        Layer::discard(self, offset, len)
    }

    fn grow(&self, size: u64) -> Result<()> {
        Layer::grow(self, size)
    }

    fn renew_size(&self) -> Result<u64> {
        Layer::renew_size(self)
    }

    fn writes_to_memory(&self) -> bool {
        Layer::writes_to_memory(self)
    }

    fn has_no_data(&self, offset: u64, len: u64) -> bool {
        Layer::has_no_data(self, offset, len)
    }

    fn will_read(&self, offset: u64, len: u64) {
        Layer::will_read(self, offset, len);
    }

    fn drop_cached(&self, offset: u64, len: u64) {
        Layer::drop_cached(self, offset, len);
    }

    fn watch(&self, offset: u64, len: u64) -> Result<()> {
        Layer::watch(self, offset, len)
    }

    fn write_behind(&self, offset: u64, len: u64) {
        Layer::write_behind(self, offset, len);
    }

    fn release_lock(&self) -> Result<()> {
        Layer::release_lock(self)
    }

    fn make_writable(&self, file: File) -> Result<()> {
        Layer::make_writable(self, file)
    }
}

/// A shared device is a device, so that a test can keep access to one that an engine owns.
impl<T: Device + ?Sized> Layer for Arc<T> {
    type Below = T;

    fn below(&self) -> &T {
        self
    }
}

/// A boxed device is a device.
impl<T: Device + ?Sized> Layer for Box<T> {
    type Below = T;

    fn below(&self) -> &T {
        self
    }
}
