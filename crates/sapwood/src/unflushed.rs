//! The device below a new file system, which need not survive a power cut before it is complete.

use std::sync::Arc;

use sapwood_block::{Device, DiskFormat, Result};

/// Passes on all requests but flushes. The caller that fills the file system flushes the device
/// below at the end.
#[derive(Debug)]
pub(crate) struct Unflushed(Arc<dyn Device>);

impl Unflushed {
    /// Wraps a raw file or block device: a flush through another descriptor covers all its writes.
    /// Returns any other device as it is.
    pub(crate) fn over(device: Arc<dyn Device>, is_export: bool) -> Arc<dyn Device> {
        match !is_export && device.format() == DiskFormat::Raw {
            true => Arc::new(Self(device)),
            false => device,
        }
    }
}

impl sapwood_block::Layer for Unflushed {
    type Below = dyn Device;

    fn below(&self) -> &Self::Below {
        &*self.0
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        Device::write_at(&*self.0, offset, buf)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sapwood_testing::CountDevice;

    use super::*;

    #[test]
    fn flushes_stay_above_and_all_else_goes_below() {
        let counted = Arc::new(CountDevice::new(sapwood_block::MemoryDevice::new(1 << 16)));
        let device = Unflushed::over(counted.clone(), false);
        device.write_fua(0, &[7; 512]).unwrap();
        device.flush().unwrap();
        let mut found = [0; 512];
        device.read_at(0, &mut found).unwrap();
        assert_eq!(found, [7; 512]);
        let counts = counted.counts();
        assert_eq!((counts.flushes, counts.fuas, counts.writes), (0, 0, 1));
        let export = Unflushed::over(counted.clone(), true);
        export.flush().unwrap();
        assert_eq!(counted.counts().flushes, 1);
    }
}
