//! [`OverlayDevice`]: keeps writes in memory, over another device.
//!
//! # How it works
//!
//! A map has the pages that were written. All other data is read from the device below, which
//! receives no write. A write of part of a page copies the page from below first. Discards do
//! nothing, so discarded data stays readable. A recovery whose result must not reach the medium
//! uses it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::error::check_range;
use crate::{Device, Result};

/// Bytes of a page.
pub const OVERLAY_PAGE: u64 = 4096;
use OVERLAY_PAGE as PAGE;

/// Shows the device below with changes that are kept in memory. It is writable even if the device
/// below is not.
#[derive(Debug)]
pub struct OverlayDevice {
    inner: Arc<dyn Device>,
    pages: RwLock<BTreeMap<u64, Box<[u8]>>>,
}

impl OverlayDevice {
    /// An overlay over `inner`, without changes.
    #[must_use]
    pub fn new(inner: Arc<dyn Device>) -> Self {
        Self {
            inner,
            pages: RwLock::default(),
        }
    }

    /// Bytes of memory that the changes take.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.pages.read().len() as u64 * PAGE
    }

    /// The device below.
    #[must_use]
    pub fn inner(&self) -> &Arc<dyn Device> {
        &self.inner
    }

    /// Writes all changes to the device below, and flushes it. Not atomic.
    ///
    /// # Errors
    /// The errors of the device below.
    pub fn write_home(&self) -> Result<()> {
        for (page, bytes) in &*self.pages.read() {
            let start = page * PAGE;
            let len = self.inner.size().saturating_sub(start).min(PAGE);
            self.inner.write_at(start, &bytes[..len as usize])?;
        }
        self.inner.flush()
    }

    /// Offsets of the pages that were written, in rising order.
    #[must_use]
    pub fn written(&self) -> Vec<u64> {
        self.pages.read().keys().map(|page| page * PAGE).collect()
    }

    /// The page from the device below; zeros past its end.
    fn fetch(&self, page: u64) -> Result<Box<[u8]>> {
        let mut bytes = vec![0; PAGE as usize].into_boxed_slice();
        let start = page * PAGE;
        let len = self.inner.size().saturating_sub(start).min(PAGE);
        self.inner.read_at(start, &mut bytes[..len as usize])?;
        Ok(bytes)
    }
}

/// Splits a range at page boundaries: page, position in the page, position in the range, bytes.
fn spans(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE) as usize;
        let count = (PAGE as usize - within).min(len - done);
        let span = (at / PAGE, within, done, count);
        done += count;
        (count > 0).then_some(span)
    })
}

impl Device for OverlayDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_at(offset, buf)?;
        let pages = self.pages.read();
        for (page, within, at, count) in spans(offset, buf.len()) {
            if let Some(bytes) = pages.get(&page) {
                buf[at..at + count].copy_from_slice(&bytes[within..within + count]);
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        check_range(self.name(), self.size(), offset, buf.len() as u64)?;
        let mut pages = self.pages.write();
        for (page, within, at, count) in spans(offset, buf.len()) {
            let bytes = match pages.remove(&page) {
                Some(bytes) => bytes,
                None => self.fetch(page)?,
            };
            let bytes = pages.entry(page).or_insert(bytes);
            bytes[within..within + count].copy_from_slice(&buf[at..at + count]);
        }
        Ok(())
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.write_at(offset, buf)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_range(self.name(), self.size(), offset, len)
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.inner.will_read(offset, len);
    }

    /// Written data stays in memory.
    fn write_behind(&self, _offset: u64, _len: u64) {}

    fn release_lock(&self) -> Result<()> {
        self.inner.release_lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    /// Not a multiple of the page size.
    const SIZE: u64 = 5 * PAGE + 512;

    #[test]
    fn an_overlay_reads_like_a_written_device() {
        let below = MemoryDevice::new(SIZE);
        let pattern: Vec<u8> = (0..SIZE).map(|n| (n % 251) as u8).collect();
        below.write_at(0, &pattern).unwrap();
        let model = below.snapshot();
        let below = Arc::new(below);
        below.set_read_only(true);
        let overlay = OverlayDevice::new(below.clone());
        assert!(!overlay.read_only());
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..300 {
            let offset = random.u64(..SIZE);
            let len = random.u64(..(SIZE - offset).min(3 * PAGE) + 1);
            let bytes = vec![round as u8; len as usize];
            overlay.write_at(offset, &bytes).unwrap();
            model.write_at(offset, &bytes).unwrap();
            let from = random.u64(..SIZE);
            let mut seen = vec![0; (SIZE - from) as usize];
            let mut wanted = seen.clone();
            overlay.read_at(from, &mut seen).unwrap();
            model.read_at(from, &mut wanted).unwrap();
            assert_eq!(seen, wanted, "round {round}");
        }
        let mut still = vec![0; SIZE as usize];
        below.read_at(0, &mut still).unwrap();
        assert_eq!(still, pattern);
        assert!(overlay.resident_bytes() <= 6 * PAGE);
    }

    #[test]
    fn write_home_writes_to_the_device_below() {
        let below = Arc::new(MemoryDevice::new(SIZE));
        let over = OverlayDevice::new(below.clone());
        over.write_at(SIZE - 3, &[1, 2, 3]).unwrap();
        over.write_at(PAGE - 1, &[4, 5]).unwrap();
        assert_eq!(
            below.first_difference(&MemoryDevice::new(SIZE).snapshot()),
            None
        );
        over.write_home().unwrap();
        let mut seen = vec![0; SIZE as usize];
        below.read_at(0, &mut seen).unwrap();
        let mut expected = vec![0; SIZE as usize];
        expected[SIZE as usize - 3..].copy_from_slice(&[1, 2, 3]);
        expected[PAGE as usize - 1..][..2].copy_from_slice(&[4, 5]);
        assert_eq!(seen, expected);
    }

    #[test]
    fn an_overlay_keeps_within_the_device() {
        let overlay = OverlayDevice::new(Arc::new(MemoryDevice::new(SIZE)));
        assert!(overlay.write_at(SIZE - 1, &[1, 2]).is_err());
        assert!(overlay.read_at(SIZE, &mut [0]).is_err());
        assert!(overlay.discard(0, SIZE + 1).is_err());
        overlay.write_fua(SIZE - 1, &[7]).unwrap();
        overlay.discard(0, SIZE).unwrap();
        overlay.flush().unwrap();
        let mut last = [0];
        overlay.read_at(SIZE - 1, &mut last).unwrap();
        assert_eq!(last, [7]);
    }
}
