//! [`StagedDevice`]: keeps the writes that would change what is on the device.
//!
//! # How it works
//! A file system runs over the staged device. A write to pages that nothing stored uses passes to
//! the device below at once. Every other write stays in an [`OverlayDevice`], so that the stored file
//! system is as before, whatever happens. The engine, which knows the format, decides which pages
//! pass, and writes the kept pages in one crash-safe step at the end.
//!
//! Flushes do nothing, because nothing has to be durable before that step. Discards do nothing,
//! because they could destroy stored data.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::check_range;
use crate::overlay::{OVERLAY_PAGE, OverlayDevice};
use crate::{Device, DiskFormat, Error, Result};

/// Tells whether writes of the page at this offset pass to the device below. The answer never
/// changes.
pub type Passes = dyn Fn(u64) -> bool + Send + Sync;

/// See the module. It is writable even if the device below is not, as long as no page passes.
pub struct StagedDevice {
    kept: OverlayDevice,
    passes: Box<Passes>,
    /// Bytes that the overlay may keep.
    limit: u64,
    overflowed: AtomicBool,
}

impl StagedDevice {
    /// A staged device over `below`, which keeps at most `limit` bytes.
    #[must_use]
    pub fn new(below: Arc<dyn Device>, limit: u64, passes: Box<Passes>) -> Self {
        Self {
            kept: OverlayDevice::new(below),
            passes,
            limit,
            overflowed: AtomicBool::new(false),
        }
    }

    /// The device below.
    #[must_use]
    pub fn below(&self) -> &Arc<dyn Device> {
        self.kept.inner()
    }

    /// Offsets of the kept pages, of [`OVERLAY_PAGE`] bytes, in rising order.
    #[must_use]
    pub fn kept(&self) -> Vec<u64> {
        self.kept.written()
    }

    /// Fails if a write was refused because too much would have been kept.
    ///
    /// # Errors
    /// [`Error::StagedTooMuch`].
    pub fn check(&self) -> Result<()> {
        if self.overflowed.load(Ordering::Acquire) {
            return Err(self.too_much());
        }
        Ok(())
    }

    fn too_much(&self) -> Error {
        Error::StagedTooMuch {
            device: Device::name(self).to_owned(),
            limit: self.limit,
        }
    }

    fn keep(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.kept.write_at(offset, buf)?;
        if self.kept.resident_bytes() > self.limit {
            self.overflowed.store(true, Ordering::Release);
            return Err(self.too_much());
        }
        Ok(())
    }

    /// The end of the run of pages from `offset` on that all pass or all stay, at most `end`, and
    /// whether they pass.
    fn run(&self, offset: u64, end: u64) -> (u64, bool) {
        let first = offset - offset % OVERLAY_PAGE;
        let pass = (self.passes)(first);
        let mut next = first.saturating_add(OVERLAY_PAGE);
        while next < end && (self.passes)(next) == pass {
            next = next.saturating_add(OVERLAY_PAGE);
        }
        (next.min(end), pass)
    }
}

impl std::fmt::Debug for StagedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StagedDevice")
            .field("kept", &self.kept)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl Device for StagedDevice {
    fn size(&self) -> u64 {
        self.below().size()
    }

    fn name(&self) -> &str {
        self.below().name()
    }

    fn format(&self) -> DiskFormat {
        self.below().format()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.kept.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        check_range(Device::name(self), self.size(), offset, buf.len() as u64)?;
        let end = offset + buf.len() as u64;
        let mut at = offset;
        while at < end {
            let (stop, pass) = self.run(at, end);
            let piece = &buf[(at - offset) as usize..(stop - offset) as usize];
            if pass {
                self.below().write_at(at, piece)?;
            } else {
                self.keep(at, piece)?;
            }
            at = stop;
        }
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        check_range(Device::name(self), self.size(), offset, len)?;
        if len > 0 && self.run(offset, offset + len) == (offset + len, true) {
            return self.below().write_vectored_at(offset, bufs);
        }
        let mut at = offset;
        for buf in bufs {
            self.write_at(at, buf)?;
            at += buf.len() as u64;
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
        check_range(Device::name(self), self.size(), offset, len)
    }

    fn writes_to_memory(&self) -> bool {
        self.below().writes_to_memory()
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.below().will_read(offset, len);
    }

    fn write_behind(&self, offset: u64, len: u64) {
        if len > 0 && self.run(offset, offset.saturating_add(len)).1 {
            self.below().write_behind(offset, len);
        }
    }

    fn release_lock(&self) -> Result<()> {
        self.below().release_lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    const PAGE: u64 = OVERLAY_PAGE;
    const SIZE: u64 = 8 * PAGE + 512;

    fn staged(limit: u64) -> (Arc<MemoryDevice>, StagedDevice) {
        let below = Arc::new(MemoryDevice::new(SIZE));
        // Odd pages pass.
        let passes = Box::new(|offset: u64| offset / PAGE % 2 == 1);
        (below.clone(), StagedDevice::new(below, limit, passes))
    }

    fn read(device: &dyn Device, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        device.read_at(offset, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn only_pages_that_pass_change_below() {
        let (below, staged) = staged(SIZE + PAGE);
        let model = MemoryDevice::new(SIZE);
        let mut random = fastrand::Rng::with_seed(11);
        for round in 1..200_u8 {
            let offset = random.u64(..SIZE);
            let len = random.u64(..(SIZE - offset).min(3 * PAGE) + 1) as usize;
            let (one, two) = (vec![round; len / 2], vec![round + 1; len - len / 2]);
            staged.write_vectored_at(offset, &[&one, &two]).unwrap();
            model.write_at(offset, &[one, two].concat()).unwrap();
            let all = read(&staged, 0, SIZE as usize);
            assert_eq!(all, read(&model, 0, SIZE as usize), "round {round}");
        }
        for page in 0..SIZE.div_ceil(PAGE) {
            let len = (SIZE - page * PAGE).min(PAGE) as usize;
            let found = read(&*below, page * PAGE, len);
            if page % 2 == 1 {
                assert_eq!(found, read(&model, page * PAGE, len), "page {page}");
            } else {
                assert_eq!(found, vec![0; len], "page {page}");
            }
        }
        let kept: Vec<u64> = (0..SIZE).step_by(2 * PAGE as usize).collect();
        assert_eq!(staged.kept(), kept);
        staged.check().unwrap();
    }

    #[test]
    fn more_than_the_limit_is_refused_and_remembered() {
        let (_, staged) = staged(2 * PAGE);
        staged.write_at(0, &[1; 2 * PAGE as usize]).unwrap();
        staged.write_at(2 * PAGE, &[1; 2 * PAGE as usize]).unwrap();
        assert!(staged.write_at(4 * PAGE, &[1]).is_err());
        let refused = staged.check();
        assert!(matches!(refused, Err(Error::StagedTooMuch { limit, .. }) if limit == 2 * PAGE));
        assert!(staged.write_at(SIZE, &[1]).is_err());
    }

    #[test]
    fn discards_and_flushes_leave_what_is_below() {
        let (below, staged) = staged(SIZE);
        below.write_at(0, &[9; 2 * PAGE as usize]).unwrap();
        staged.discard(0, 2 * PAGE).unwrap();
        staged.flush().unwrap();
        assert_eq!(read(&*below, 0, 8), [9; 8]);
        assert!(staged.discard(SIZE, 1).is_err());
    }
}
