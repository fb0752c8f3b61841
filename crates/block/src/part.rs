//! [`PartDevice`]: a range of another device.

use std::sync::Arc;

use crate::error::{check_range, check_writable};
use crate::{Device, Layer, Result};

/// A range of another device, which appears as a device of its own. No request reaches a byte
/// outside of the range.
#[derive(Debug)]
pub struct PartDevice {
    inner: Arc<dyn Device>,
    name: String,
    start: u64,
    len: u64,
}

impl PartDevice {
    /// The `len` bytes from `start` on of `inner`. Messages call it `name`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange): `inner` ends before the range does.
    pub fn new(inner: Arc<dyn Device>, name: String, start: u64, len: u64) -> Result<Self> {
        check_range(&name, Device::size(&*inner), start, len)?;
        Ok(Self {
            inner,
            name,
            start,
            len,
        })
    }

    /// First byte of the range on the device below.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Checks a request, and returns where it begins on the device below.
    fn at(&self, offset: u64, len: u64) -> Result<u64> {
        check_range(&self.name, self.len, offset, len)?;
        Ok(self.start + offset)
    }

    fn at_for_write(&self, offset: u64, len: u64) -> Result<u64> {
        check_writable(&self.name, Device::read_only(&*self.inner))?;
        self.at(offset, len)
    }

    /// The part of a hint that lies within the range, on the device below.
    fn clamp(&self, offset: u64, len: u64) -> Option<(u64, u64)> {
        let left = self.len.checked_sub(offset)?;
        Some((self.start + offset, len.min(left)))
    }
}

impl Layer for PartDevice {
    type Below = dyn Device;

    fn below(&self) -> &(dyn Device + 'static) {
        &*self.inner
    }

    fn size(&self) -> u64 {
        self.len
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn grow(&self, size: u64) -> Result<()> {
        crate::check_range(&self.name, self.len, 0, size)
    }

    fn renew_size(&self) -> Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let at = self.at(offset, buf.len() as u64)?;
        Device::read_at(&*self.inner, at, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let at = self.at_for_write(offset, buf.len() as u64)?;
        Device::write_at(&*self.inner, at, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let at = self.at_for_write(offset, len as u64)?;
        Device::write_vectored_at(&*self.inner, at, bufs)
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        let at = self.at_for_write(offset, buf.len() as u64)?;
        Device::write_fua(&*self.inner, at, buf)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let at = self.at_for_write(offset, len)?;
        Device::discard(&*self.inner, at, len)
    }

    fn has_no_data(&self, offset: u64, len: u64) -> bool {
        let at = self.at(offset, len);
        at.is_ok_and(|at| Device::has_no_data(&*self.inner, at, len))
    }

    fn will_read(&self, offset: u64, len: u64) {
        if let Some((at, len)) = self.clamp(offset, len) {
            Device::will_read(&*self.inner, at, len);
        }
    }

    fn drop_cached(&self, offset: u64, len: u64) {
        if let Some((at, len)) = self.clamp(offset, len) {
            Device::drop_cached(&*self.inner, at, len);
        }
    }

    fn watch(&self, offset: u64, len: u64) -> Result<()> {
        Device::watch(&*self.inner, self.at(offset, len)?, len)
    }

    fn write_behind(&self, offset: u64, len: u64) {
        if let Some((at, len)) = self.clamp(offset, len) {
            Device::write_behind(&*self.inner, at, len);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::PartDevice;
    use crate::{Device, Error, MemoryDevice};

    const SIZE: u64 = 64 << 10;
    const START: u64 = 8192;
    const LEN: u64 = 16 << 10;

    fn part() -> (Arc<MemoryDevice>, PartDevice) {
        let below = Arc::new(MemoryDevice::new(SIZE));
        let part = PartDevice::new(below.clone(), "disk#1".to_owned(), START, LEN).unwrap();
        (below, part)
    }

    #[test]
    fn a_range_beyond_the_device_is_refused() {
        let below: Arc<dyn Device> = Arc::new(MemoryDevice::new(SIZE));
        for (start, len) in [(0, SIZE + 1), (SIZE, 1), (1, SIZE), (u64::MAX, 2)] {
            let made = PartDevice::new(Arc::clone(&below), "x".to_owned(), start, len);
            assert!(matches!(made, Err(Error::OutOfRange { .. })));
        }
        assert!(PartDevice::new(below, "x".to_owned(), SIZE, 0).is_ok());
    }

    #[test]
    fn requests_move_by_the_start_of_the_range() {
        let (below, part) = part();
        part.write_at(0, &[1; 4]).unwrap();
        part.write_vectored_at(100, &[&[2; 2], &[3; 2]]).unwrap();
        part.write_fua(LEN - 4, &[4; 4]).unwrap();
        let mut seen = [0; 4];
        for (at, wanted) in [(0, [1; 4]), (100, [2, 2, 3, 3]), (LEN - 4, [4; 4])] {
            below.read_at(START + at, &mut seen).unwrap();
            assert_eq!(seen, wanted);
            part.read_at(at, &mut seen).unwrap();
            assert_eq!(seen, wanted);
        }
    }

    #[test]
    fn no_request_reaches_a_byte_outside() {
        let (below, part) = part();
        let before = below.snapshot();
        let all = vec![7; LEN as usize + 1];
        assert!(part.write_at(0, &all).is_err());
        assert!(part.write_at(LEN - 1, &[7; 2]).is_err());
        assert!(part.write_at(u64::MAX, &[7; 2]).is_err());
        assert!(part.write_vectored_at(LEN - 1, &[&[7], &[7]]).is_err());
        assert!(part.write_fua(LEN, &[7]).is_err());
        assert!(part.discard(LEN - 1, 2).is_err());
        assert!(part.discard(0, u64::MAX).is_err());
        assert!(part.read_at(LEN, &mut [0]).is_err());
        part.will_read(LEN + 5, 7);
        part.write_behind(0, u64::MAX);
        assert_eq!(below.first_difference(&before), None);
    }

    #[test]
    fn a_read_only_device_has_read_only_parts() {
        let (below, part) = part();
        below.set_read_only(true);
        assert!(part.read_only());
        let refused = part.write_at(0, &[1]);
        assert!(matches!(refused, Err(Error::ReadOnly { device }) if device == "disk#1"));
    }
}
