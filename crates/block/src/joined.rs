//! [`JoinedDevice`]: several devices as one.

use std::sync::Arc;

use crate::error::check_range;
use crate::{Device, OVERLAY_PAGE, Result};

/// Several devices one after the other, each from a multiple of [`OVERLAY_PAGE`] on. The bytes
/// between two devices read as zeros, and writes to them are dropped.
#[derive(Debug)]
pub struct JoinedDevice {
    /// Start and device, ascending.
    parts: Vec<(u64, Arc<dyn Device>)>,
    size: u64,
    name: String,
}

impl JoinedDevice {
    /// Joins devices in this order. Messages about the whole name the first one.
    #[must_use]
    pub fn new(devices: Vec<Arc<dyn Device>>) -> Self {
        let name = devices
            .first()
            .map_or("", |device| device.name())
            .to_owned();
        let mut size = 0u64;
        let mut parts = Vec::new();
        for device in devices {
            let len = device.size();
            parts.push((size, device));
            let end = size.saturating_add(len);
            size = end.checked_next_multiple_of(OVERLAY_PAGE).unwrap_or(end);
        }
        Self { parts, size, name }
    }

    /// Start and length of each device.
    #[must_use]
    pub fn ranges(&self) -> Vec<(u64, u64)> {
        let parts = self.parts.iter();
        parts
            .map(|(start, device)| (*start, device.size()))
            .collect()
    }

    /// Calls `each` for the pieces of a request: the device, the offset on it, and the range of the
    /// request.
    fn pieces(
        &self,
        offset: u64,
        len: usize,
        mut each: impl FnMut(&dyn Device, u64, std::ops::Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let end = offset.saturating_add(len as u64);
        for (start, device) in &self.parts {
            let from = offset.max(*start);
            let to = end.min(start.saturating_add(device.size()));
            if from < to {
                let range = (from - offset) as usize..(to - offset) as usize;
                each(&**device, from - start, range)?;
            }
        }
        Ok(())
    }
}

impl Device for JoinedDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn read_only(&self) -> bool {
        self.parts.iter().any(|(_, device)| device.read_only())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_range(&self.name, self.size, offset, buf.len() as u64)?;
        buf.fill(0);
        self.pieces(offset, buf.len(), |device, at, range| {
            device.read_at(at, buf.get_mut(range).unwrap_or_default())
        })
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        check_range(&self.name, self.size, offset, buf.len() as u64)?;
        self.pieces(offset, buf.len(), |device, at, range| {
            device.write_at(at, buf.get(range).unwrap_or_default())
        })
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        check_range(&self.name, self.size, offset, buf.len() as u64)?;
        self.pieces(offset, buf.len(), |device, at, range| {
            device.write_fua(at, buf.get(range).unwrap_or_default())
        })
    }

    fn flush(&self) -> Result<()> {
        self.parts.iter().try_for_each(|(_, device)| device.flush())
    }

    /// Does nothing: a discard is a hint.
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_range(&self.name, self.size, offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn requests_reach_each_device_in_its_range() {
        let one = Arc::new(MemoryDevice::new(OVERLAY_PAGE + 512));
        let two = Arc::new(MemoryDevice::new(2 * OVERLAY_PAGE));
        let joined = JoinedDevice::new(vec![one.clone(), two.clone()]);
        let ranges = [
            (0, OVERLAY_PAGE + 512),
            (2 * OVERLAY_PAGE, 2 * OVERLAY_PAGE),
        ];
        assert_eq!(joined.ranges(), ranges);
        assert_eq!(joined.size(), 4 * OVERLAY_PAGE);
        let bytes = vec![7; 2 * OVERLAY_PAGE as usize];
        joined.write_at(OVERLAY_PAGE, &bytes).unwrap();
        let (mut first, mut second) = ([0; 512], [0; 4096]);
        one.read_at(OVERLAY_PAGE, &mut first).unwrap();
        two.read_at(0, &mut second).unwrap();
        assert!(first == [7; 512] && second == [7; 4096]);
        two.read_at(OVERLAY_PAGE, &mut second).unwrap();
        assert_eq!(second, [0; 4096]);
        let mut found = vec![9; 3 * OVERLAY_PAGE as usize];
        joined.read_at(OVERLAY_PAGE, &mut found).unwrap();
        let gap = 512..OVERLAY_PAGE as usize;
        assert!(found[gap].iter().all(|byte| *byte == 0));
        assert!(
            found[OVERLAY_PAGE as usize..][..4096]
                .iter()
                .all(|byte| *byte == 7)
        );
        assert!(joined.write_at(4 * OVERLAY_PAGE - 1, &[0; 2]).is_err());
    }
}
