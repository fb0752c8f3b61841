//! The trait that every device implements.

use std::fs::File;

use crate::disk_format::DiskFormat;
use crate::error::Result;

/// The unit that a medium writes atomically, in bytes.
pub const SECTOR_SIZE: u64 = 512;

/// A random-access block device. All offsets and lengths are bytes.
///
/// Any thread may issue reads and writes at any time; two overlapping requests in flight have no
/// defined order. A completed [`write_at`](Device::write_at) is visible to later reads, but durable
/// only after a [`flush`](Device::flush) that began after it.
pub trait Device: Send + Sync + std::fmt::Debug {
    /// Size in bytes.
    fn size(&self) -> u64;

    /// Short name for messages: a path or `memory`.
    fn name(&self) -> &str;

    /// Format of the file that holds the device.
    fn format(&self) -> DiskFormat {
        DiskFormat::Raw
    }

    /// True if writes are refused.
    fn read_only(&self) -> bool;

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) past the end,
    /// [`Error::Io`](crate::Error::Io) from the medium.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Writes all of `buf` at `offset`.
    ///
    /// # Errors
    /// [`Error::ReadOnly`](crate::Error::ReadOnly),
    /// [`Error::OutOfRange`](crate::Error::OutOfRange), [`Error::Io`](crate::Error::Io).
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()>;

    /// Writes the buffers consecutively from `offset` on, as one request if possible.
    ///
    /// # Errors
    /// `ReadOnly`, `OutOfRange`, `Io`, as for [`write_at`](Device::write_at).
    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        let mut at = offset;
        for buf in bufs {
            self.write_at(at, buf)?;
            at += buf.len() as u64;
        }
        Ok(())
    }

    /// Writes `buf` and returns when it is durable (FUA). Gives no guarantee for other writes.
    ///
    /// # Errors
    /// `ReadOnly`, `OutOfRange`, `Io`, as for [`write_at`](Device::write_at).
    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()>;

    /// Makes every write that completed before the call durable.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io): data written since the last successful flush may be lost.
    fn flush(&self) -> Result<()>;

    /// Declares the contents of the range unused. Later reads may return anything until it is
    /// written again. A device without discard does nothing.
    ///
    /// # Errors
    /// `ReadOnly`, `OutOfRange`, `Io`, as for [`write_at`](Device::write_at).
    fn discard(&self, offset: u64, len: u64) -> Result<()>;

    /// Makes the device at least this large; further bytes are zero. Only a file can grow.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) from a device that cannot;
    /// [`Error::Io`](crate::Error::Io).
    fn grow(&self, size: u64) -> Result<()> {
        crate::check_range(self.name(), self.size(), 0, size)
    }

    /// Reads the size of the medium again, and returns it: another program may have made a file or a
    /// block device larger. The device never becomes smaller by that. A device whose size is fixed
    /// does nothing, which is the default.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io).
    fn renew_size(&self) -> Result<u64> {
        Ok(self.size())
    }

    /// Whether a write ends in memory of this machine, so that many small ones cost little.
    fn writes_to_memory(&self) -> bool {
        false
    }

    /// Whether the range is known to read as zeros, without reading it. The default is no.
    fn has_no_data(&self, _offset: u64, _len: u64) -> bool {
        false
    }

    /// Announces that the range will be read soon. Does not wait. A device that gains nothing from
    /// it does nothing, which is the default.
    fn will_read(&self, _offset: u64, _len: u64) {}

    /// Drops what this machine caches of the range, so that the next read sees what another machine
    /// wrote there. Changes that were not flushed stay. A device that does not cache does nothing,
    /// which is the default.
    fn drop_cached(&self, _offset: u64, _len: u64) {}

    /// Watches a range that every program changes that writes to the file system, such as its
    /// superblock. A device that repeats writes on its own, after it lost a connection, first
    /// compares the range with what it wrote there, and fails for good if another client wrote to
    /// it. Other devices do nothing, which is the default.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange); errors of reading the range.
    fn watch(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }

    /// Announces that a large writeback wrote the range. The device may start to write it to its
    /// medium, so that the next flush has less to wait for. This makes nothing durable; the next
    /// flush reports errors. A device that does not cache writes does nothing, which is the
    /// default.
    fn write_behind(&self, _offset: u64, _len: u64) {}

    /// Releases the lock, and with it all access: every later request fails. For an owner that is
    /// done with the device before it can drop it. A device without a lock does nothing, which is
    /// the default.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io): the lock is still held.
    fn release_lock(&self) -> Result<()> {
        Ok(())
    }

    /// Makes a device writable that was opened read-only, with a descriptor of the same file that
    /// [`open_for_writing`](crate::open_for_writing) has opened. A process that may not open files
    /// needs it. The lock becomes one for writing. A writable device stays as it is.
    ///
    /// # Errors
    /// [`Error::ReadOnly`](crate::Error::ReadOnly): the device cannot change, which is the default,
    /// or the descriptor is not writable. [`Error::Busy`](crate::Error::Busy): another reader has a
    /// lock. The device is as before.
    fn make_writable(&self, _file: File) -> Result<()> {
        if !self.read_only() {
            return Ok(());
        }
        Err(crate::Error::ReadOnly {
            device: self.name().to_owned(),
        })
    }
}
