//! [`PatientDevice`]: retries writes of metadata while the host is full.
//!
//! If a transaction cannot be written, all changes of a mount end. This is not necessary if only
//! the host has no space: nothing is acknowledged before the write completes, so the device retries
//! it for some time. It does not retry a flush: after a failed flush the host may have dropped
//! data.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Device, Layer, Result};

/// Time for which a write is retried.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Retries a write while the host has no space, at most for `patience`.
///
/// # Errors
/// The error of the last attempt.
pub fn patiently<T>(patience: Duration, mut write: impl FnMut() -> Result<T>) -> Result<T> {
    let mut since = None;
    loop {
        match write() {
            Err(error) if error.is_host_full() => {
                let begun = *since.get_or_insert_with(|| {
                    log::warn!("waiting for space on the host: {error}");
                    Instant::now()
                });
                if begun.elapsed() >= patience {
                    return Err(error);
                }
                std::thread::sleep(PAUSE.min(patience));
            }
            result => return result,
        }
    }
}

/// A device that retries writes while the host has no space. See the module.
#[derive(Debug)]
pub struct PatientDevice {
    inner: Arc<dyn Device>,
    patience: Duration,
}

impl PatientDevice {
    /// A device over `inner` that retries a write at most for `patience`.
    #[must_use]
    pub fn new(inner: Arc<dyn Device>, patience: Duration) -> Self {
        Self { inner, patience }
    }
}

impl Layer for PatientDevice {
    type Below = dyn Device;

    fn below(&self) -> &(dyn Device + 'static) {
        &*self.inner
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        patiently(self.patience, || {
            Device::write_at(&*self.inner, offset, buf)
        })
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        patiently(self.patience, || {
            Device::write_vectored_at(&*self.inner, offset, bufs)
        })
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        patiently(self.patience, || {
            Device::write_fua(&*self.inner, offset, buf)
        })
    }
}
