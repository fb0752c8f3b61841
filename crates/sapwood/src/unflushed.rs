//! The device below a new file system, which may be lost in a power cut until it is complete.

use std::sync::Arc;

use sapwood_block::{Device, DiskFormat, Result};

use crate::coalesced::{Coalesced, SHORT};

/// Passes on all requests but flushes, and coalesces short writes. The caller that fills the file
/// system flushes the device below at the end.
#[derive(Debug)]
pub(crate) struct Unflushed {
    device: Arc<dyn Device>,
    coalesced: Coalesced,
}

impl Unflushed {
    /// Wraps a raw file or block device: a flush through another descriptor covers all its writes.
    /// Returns any other device as it is.
    pub(crate) fn over(device: Arc<dyn Device>, is_export: bool) -> Arc<dyn Device> {
        if !is_export && device.format() == DiskFormat::Raw {
            Arc::new(Self {
                device,
                coalesced: Coalesced::default(),
            })
        } else {
            device
        }
    }

    fn write_back(&self, offset: u64, len: u64) -> Result<()> {
        self.coalesced.write_back(&*self.device, offset, len)
    }
}

impl sapwood_block::Layer for Unflushed {
    type Below = dyn Device;

    fn below(&self) -> &Self::Below {
        &*self.device
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.write_back(offset, buf.len() as u64)?;
        Device::read_at(&*self.device, offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        Device::write_vectored_at(self, offset, &[buf])
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let end = offset.checked_add(len as u64);
        // The device refuses requests that are out of its range or cannot be written.
        let fits = end.is_some_and(|end| end <= Device::size(&*self.device));
        if len < SHORT && fits && !Device::read_only(&*self.device) {
            return self.coalesced.write(&*self.device, offset, bufs);
        }
        self.write_back(offset, len as u64)?;
        Device::write_vectored_at(&*self.device, offset, bufs)
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        Device::write_at(self, offset, buf)
    }

    /// Writes all streams to the device below, and does not flush it.
    fn flush(&self) -> Result<()> {
        self.write_back(0, u64::MAX)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.write_back(offset, len)?;
        Device::discard(&*self.device, offset, len)
    }

    fn has_no_data(&self, offset: u64, len: u64) -> bool {
        self.write_back(offset, len).is_ok() && Device::has_no_data(&*self.device, offset, len)
    }

    fn write_behind(&self, offset: u64, len: u64) {
        // A stream that the device refuses stays, and the next flush returns the error.
        if self.write_back(offset, len).is_ok() {
            Device::write_behind(&*self.device, offset, len);
        }
    }
}

#[cfg(test)]
mod tests {
    use sapwood_testing::CountDevice;

    use super::*;

    #[test]
    fn flushes_stay_above_and_all_else_goes_below() {
        let counted = Arc::new(CountDevice::new(sapwood_block::MemoryDevice::new(1 << 20)));
        let device = Unflushed::over(counted.clone(), false);
        device.write_fua(0, &[7; 512]).unwrap();
        let mut found = [0; 512];
        device.read_at(0, &mut found).unwrap();
        assert_eq!(found, [7; 512]);
        device.write_at(512, &[8; 512]).unwrap();
        device.flush().unwrap();
        counted.read_at(512, &mut found).unwrap();
        assert_eq!(found, [8; 512]);
        let counts = counted.counts();
        assert_eq!((counts.flushes, counts.fuas, counts.writes), (0, 0, 2));
        let export = Unflushed::over(counted.clone(), true);
        export.flush().unwrap();
        assert_eq!(counted.counts().flushes, 1);
    }

    #[test]
    fn a_stream_is_written_before_a_request_that_overlaps_it() {
        let memory = Arc::new(sapwood_block::MemoryDevice::new(1 << 20));
        let device = Unflushed::over(memory.clone(), false);
        let found = |at| {
            let mut found = [0];
            memory.read_at(at, &mut found).unwrap();
            found[0]
        };
        device.write_at(0, &[1; 4096]).unwrap();
        device.write_at(0, &vec![2; SHORT]).unwrap();
        assert_eq!(found(0), 2);
        device.write_at(4096, &[3; 4096]).unwrap();
        device.discard(4096, 4096).unwrap();
        device.flush().unwrap();
        assert_eq!(found(4096), 0);
        device.write_at(8192, &[4; 4096]).unwrap();
        device.write_behind(8192, 4096);
        assert_eq!(found(8192), 4);
        assert!(device.write_at(1 << 20, &[5]).is_err());
        assert!(device.write_at(u64::MAX, &[5]).is_err());
        device.flush().unwrap();
    }
}
