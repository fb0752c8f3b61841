//! `Device` for pointers to devices, so that wrappers compose and share one device.

use std::sync::Arc;

use crate::{Device, Result};

macro_rules! forward {
    ($pointer:ident) => {
        impl<T: Device + ?Sized> Device for $pointer<T> {
            fn size(&self) -> u64 {
                (**self).size()
            }
            fn name(&self) -> &str {
                (**self).name()
            }
            fn read_only(&self) -> bool {
                (**self).read_only()
            }
            fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
                (**self).read_at(offset, buf)
            }
            fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
                (**self).write_at(offset, buf)
            }
            fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
                (**self).write_vectored_at(offset, bufs)
            }
            fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
                (**self).write_fua(offset, buf)
            }
            fn flush(&self) -> Result<()> {
                (**self).flush()
            }
            fn discard(&self, offset: u64, len: u64) -> Result<()> {
                (**self).discard(offset, len)
            }
            fn will_read(&self, offset: u64, len: u64) {
                (**self).will_read(offset, len);
            }
            fn write_behind(&self, offset: u64, len: u64) {
                (**self).write_behind(offset, len);
            }
        }
    };
}

forward!(Arc);
forward!(Box);
