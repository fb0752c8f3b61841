//! [`PatientDevice`]: writes of metadata, while the host is full.
//!
//! A transaction that cannot be written ends all changes of a mount. If only the host has no space,
//! that need not be: nothing is acknowledged before the write is done, so it is tried again until
//! there is space, for some time. A flush is not: after it failed the host may have dropped what was
//! written.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Device, Layer, Result};

/// How long a write waits for space.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// Does a write again as long as the host has no space, at most for `patience`.
///
/// # Errors
/// That of the last try.
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

/// A device whose writes wait for space on the host. See the module.
#[derive(Debug)]
pub struct PatientDevice {
    inner: Arc<dyn Device>,
    patience: Duration,
}

impl PatientDevice {
    /// Wraps `inner`; a write waits at most for `patience`.
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
