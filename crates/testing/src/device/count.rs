//! [`CountDevice`]: the number of requests and bytes that a workload costs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sapwood_block::{Device, Result};

/// Requests and bytes since the device was wrapped or last reset. Failed requests count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes without write-through; a vectored one counts once.
    pub writes: u64,
    /// Bytes of these writes.
    pub write_bytes: u64,
    /// Write-through writes.
    pub fuas: u64,
    /// Bytes of these writes.
    pub fua_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes that were discarded.
    pub discard_bytes: u64,
    /// Bytes that a writeback reported as [written behind](Device::write_behind).
    pub behind_bytes: u64,
}

impl Counts {
    /// The difference to `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            reads: self.reads.wrapping_sub(earlier.reads),
            read_bytes: self.read_bytes.wrapping_sub(earlier.read_bytes),
            writes: self.writes.wrapping_sub(earlier.writes),
            write_bytes: self.write_bytes.wrapping_sub(earlier.write_bytes),
            fuas: self.fuas.wrapping_sub(earlier.fuas),
            fua_bytes: self.fua_bytes.wrapping_sub(earlier.fua_bytes),
            flushes: self.flushes.wrapping_sub(earlier.flushes),
            discards: self.discards.wrapping_sub(earlier.discards),
            discard_bytes: self.discard_bytes.wrapping_sub(earlier.discard_bytes),
            behind_bytes: self.behind_bytes.wrapping_sub(earlier.behind_bytes),
        }
    }
}

#[derive(Debug, Default)]
struct Counter {
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    fn add(&self, bytes: u64) {
        self.requests.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }
}

/// Passes requests to the device below and counts them.
#[derive(Debug)]
pub struct CountDevice<D> {
    inner: D,
    read: Counter,
    write: Counter,
    fua: Counter,
    flush: Counter,
    discard: Counter,
    behind: Counter,
}

impl<D: Device> CountDevice<D> {
    /// Wraps `inner` with all counters at zero.
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            read: Counter::default(),
            write: Counter::default(),
            fua: Counter::default(),
            flush: Counter::default(),
            discard: Counter::default(),
            behind: Counter::default(),
        }
    }

    /// The counters now. Requests in flight may be counted in part.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            reads: self.read.requests.load(Relaxed),
            read_bytes: self.read.bytes.load(Relaxed),
            writes: self.write.requests.load(Relaxed),
            write_bytes: self.write.bytes.load(Relaxed),
            fuas: self.fua.requests.load(Relaxed),
            fua_bytes: self.fua.bytes.load(Relaxed),
            flushes: self.flush.requests.load(Relaxed),
            discards: self.discard.requests.load(Relaxed),
            discard_bytes: self.discard.bytes.load(Relaxed),
            behind_bytes: self.behind.bytes.load(Relaxed),
        }
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }
}

impl<D: Device> sapwood_block::Layer for CountDevice<D> {
    type Below = D;

    fn below(&self) -> &D {
        &self.inner
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read.add(buf.len() as u64);
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.write.add(buf.len() as u64);
        self.inner.write_at(offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        self.write.add(bufs.iter().map(|b| b.len() as u64).sum());
        self.inner.write_vectored_at(offset, bufs)
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.fua.add(buf.len() as u64);
        self.inner.write_fua(offset, buf)
    }

    fn flush(&self) -> Result<()> {
        self.flush.add(0);
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.discard.add(len);
        self.inner.discard(offset, len)
    }

    fn write_behind(&self, offset: u64, len: u64) {
        self.behind.add(len);
        self.inner.write_behind(offset, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sapwood_block::MemoryDevice;
    use std::sync::Arc;

    #[test]
    fn counts_each_kind_through_any_pointer() {
        let counted = Arc::new(CountDevice::new(MemoryDevice::new(1 << 20)));
        let device: Box<dyn Device> = Box::new(counted.clone());
        device.read_at(0, &mut [0; 10]).unwrap();
        device.write_at(0, &[0; 20]).unwrap();
        let before = counted.counts();
        device.write_vectored_at(0, &[&[0; 3], &[0; 4]]).unwrap();
        device.write_fua(0, &[0; 30]).unwrap();
        device.flush().unwrap();
        device.discard(0, 40).unwrap();
        device.write_behind(0, 50);
        let counts = counted.counts();
        assert_eq!((counts.reads, counts.read_bytes), (1, 10));
        assert_eq!((counts.writes, counts.write_bytes), (2, 27));
        let since = counts.since(&before);
        assert_eq!((since.reads, since.writes, since.write_bytes), (0, 1, 7));
        assert_eq!((since.fuas, since.fua_bytes, since.flushes), (1, 30, 1));
        assert_eq!((since.discards, since.discard_bytes), (1, 40));
        assert_eq!(since.behind_bytes, 50);
    }

    #[test]
    fn a_hint_reaches_the_device_below() {
        let below = Arc::new(CountDevice::new(MemoryDevice::new(1 << 20)));
        let above = CountDevice::new(below.clone());
        above.write_behind(4096, 8192);
        assert_eq!(below.counts().behind_bytes, 8192);
        assert_eq!(below.counts(), above.counts());
    }
}
