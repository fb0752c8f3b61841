//! [`FileDevice`]: an image file or a block device of the host.
//!
//! # How it works
//!
//! - Requests have positions (`pread`, `pwritev`), so threads share one descriptor without a lock.
//!   Interrupted and short calls are continued.
//! - `flush` is `fdatasync`. A write-through is `pwritev2` with `RWF_DSYNC`, which the host turns
//!   into a FUA write where it can. Without `RWF_DSYNC` it is a write and an `fdatasync`.
//! - `fdatasync` writes out every dirty page of the file, including pages that other callers wrote.
//!   So `write_behind` makes the host start early (`sync_file_range`); otherwise a small fsync
//!   would wait for large data that need not be durable. If the host reports that this failed, no
//!   flush succeeds any more, because the host reports an error only once
//!   (`no_flush_succeeds_after_a_failed_write_behind`).
//! - The size is read once, at open; only `grow` and `renew_size` change it. A read that ends early, or a flush
//!   that finds the file shorter, means that another program truncated the image:
//!   [`Error::Shrunk`], never zeros (`tests/suite/file_device.rs`: `shrunk_image_is_an_error`).
//! - With `direct`, requests that are not aligned are copied through an aligned buffer
//!   (`direct.rs`).
//! - `host` makes the system calls, and defines which opens exclude each other. Other systems than
//!   Linux have fewer of them; see there.

mod direct;

use std::fs::File;
use std::io::{self, IoSlice, Seek, SeekFrom};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::error::{check_range, check_writable};
use crate::host::{self, Medium, OpenOptions, Opened};
use crate::{Device, Error, Result};
use direct::Direct;

/// Most buffers in one `pwritev` on Linux (`UIO_MAXIOV`).
const MAX_BUFFERS: usize = 1024;

/// An image file or a block device. See the module for how it performs each request.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    /// The file below a loop device, locked.
    backing: Option<File>,
    name: String,
    size: AtomicU64,
    /// Held by a caller that makes the file longer.
    growing: Mutex<()>,
    medium: Medium,
    read_only: AtomicBool,
    /// The descriptor of the open that [`make_writable`](Device::make_writable) replaced: it has
    /// the lock.
    replaced: OnceLock<File>,
    direct: Option<Direct>,
    /// False after the host refused `RWF_DSYNC`.
    dsync: AtomicBool,
    /// The error number of the first failed write behind.
    behind_failed: OnceLock<i32>,
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        for file in self.locked() {
            host::unlock(file);
        }
    }
}

/// Opens an image file or a block device for writing, and locks it, for another process that takes
/// the descriptor over ([`FileDevice::adopt`]). The lock ends with the last copy of the descriptor.
///
/// # Errors
/// The errors of [`FileDevice::open`].
pub fn open_to_pass(path: &Path) -> Result<File> {
    Ok(host::open(path, OpenOptions::default())?.file)
}

impl FileDevice {
    /// Opens an image file or a block device.
    ///
    /// # Errors
    /// [`Error::Busy`] if it is locked or mounted; [`Error::Open`] for other reasons: missing, no
    /// permission, a directory, no `O_DIRECT` on that file system.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self> {
        let name = path.as_ref().display().to_string();
        Ok(Self::new(host::open(path.as_ref(), options)?, name))
    }

    /// Creates a sparse regular file of `size` zero bytes, and opens it read-write and locked. An
    /// existing file loses its content only after its lock was taken, so an image in use is never
    /// harmed.
    ///
    /// # Errors
    /// [`Error::Open`] if the path cannot be created or is not a regular file; [`Error::Busy`].
    pub fn create(path: impl AsRef<Path>, size: u64) -> Result<Self> {
        let name = path.as_ref().display().to_string();
        Ok(Self::new(host::create(path.as_ref(), size)?, name))
    }

    /// Takes over a descriptor from [`open_to_pass`], which has the lock.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if it is not open for writing; [`Error::Open`] if it is no regular file
    /// and no block device.
    pub fn adopt(file: File, name: String) -> Result<Self> {
        Ok(Self::new(host::adopt(file, &name)?, name))
    }

    fn new(opened: Opened, name: String) -> Self {
        host::prepare_release();
        Self {
            file: opened.file,
            backing: opened.backing,
            name,
            size: opened.size.into(),
            growing: Mutex::new(()),
            medium: opened.medium,
            read_only: AtomicBool::new(opened.read_only),
            replaced: OnceLock::new(),
            direct: opened.align.map(Direct::new),
            dsync: AtomicBool::new(host::WRITES_THROUGH),
            behind_failed: OnceLock::new(),
        }
    }

    /// True for a block device, false for a regular file.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        matches!(self.medium, Medium::Block { .. })
    }

    /// The descriptors of the image.
    fn locked(&self) -> impl Iterator<Item = &File> {
        let others = self.backing.iter().chain(self.replaced.get());
        std::iter::once(&self.file).chain(others)
    }

    fn error(&self, op: &'static str, offset: u64, len: usize, e: impl Into<io::Error>) -> Error {
        Error::io(&self.name, op, offset, len as u64, e)
    }

    /// Fills `buf` from the descriptor.
    fn read_full(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let got = self.read_some(offset, buf)?;
        if got < buf.len() {
            return Err(Error::Shrunk {
                device: self.name.clone(),
                offset,
                len: buf.len() as u64,
                end: offset + got as u64,
            });
        }
        Ok(())
    }

    /// Reads until `buf` is full or the file ends. Returns the number of bytes read.
    fn read_some(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            let n = host::read_at(&self.file, &mut buf[done..], offset + done as u64)
                .map_err(|e| self.error("read", offset, buf.len(), e))?;
            done += n;
            // A direct read that ends at an unaligned offset ended at the end of the file.
            // Continuing there would fail as misaligned.
            let ended = self
                .direct
                .as_ref()
                .is_some_and(|d| !d.is_aligned(n as u64));
            if n == 0 || ended {
                break;
            }
        }
        Ok(done)
    }

    /// Writes all of `buf` to the descriptor. It is durable on return if `through`.
    fn write_full(&self, offset: u64, buf: &[u8], through: bool) -> Result<()> {
        self.write_slices(offset, &mut [IoSlice::new(buf)], buf.len(), through)
    }

    /// Writes all of `slices`, which have `len` bytes together.
    fn write_slices(
        &self,
        offset: u64,
        mut slices: &mut [IoSlice<'_>],
        len: usize,
        through: bool,
    ) -> Result<()> {
        let op = if through { "FUA write" } else { "write" };
        let mut at = offset;
        let end = offset + len as u64;
        let mut sync_after = false;
        while at < end {
            let some = &slices[..slices.len().min(MAX_BUFFERS)];
            let dsync = through && self.dsync.load(Ordering::Relaxed);
            let n = match host::write(&self.file, some, at, dsync) {
                Ok(0) => return Err(self.error(op, offset, len, io::ErrorKind::WriteZero)),
                Ok(n) => n,
                Err(e) if dsync && host::is_unsupported(&e) => {
                    self.dsync.store(false, Ordering::Relaxed);
                    continue;
                }
                Err(e) => return Err(self.error(op, offset, len, e)),
            };
            sync_after |= through && !dsync;
            at += n as u64;
            IoSlice::advance_slices(&mut slices, n);
        }
        if sync_after {
            host::data_sync(&self.file).map_err(|e| self.error(op, offset, len, e))?;
        }
        Ok(())
    }

    fn check_write(&self, offset: u64, len: u64) -> Result<()> {
        check_writable(&self.name, self.read_only())?;
        check_range(&self.name, self.size(), offset, len)
    }

    fn write(&self, offset: u64, buf: &[u8], through: bool) -> Result<()> {
        self.check_write(offset, buf.len() as u64)?;
        match &self.direct {
            Some(direct) => direct.write(self, offset, buf, through),
            None => self.write_full(offset, buf, through),
        }
    }

    /// Records an error of a write-behind for later flushes, unless the host merely did not start.
    fn wrote_behind(&self, outcome: &io::Result<()>) {
        if let Some(errno) = outcome.as_ref().err().and_then(host::writeback_failed) {
            let _ = self.behind_failed.set(errno);
        }
    }

    /// Checks that the file still has the size that it was opened with.
    fn check_not_shrunk(&self) -> Result<()> {
        if self.medium != Medium::File {
            return Ok(());
        }
        // Not with `fstat`: after a query of the file's times, the host writes new ones to disk
        // with the next write. The descriptor's position is not used otherwise.
        let end = (&self.file)
            .seek(SeekFrom::End(0))
            .map_err(|e| self.error("flush", 0, 0, e))?;
        if end < self.size() {
            return Err(Error::Shrunk {
                device: self.name.clone(),
                offset: 0,
                len: self.size(),
                end,
            });
        }
        Ok(())
    }
}

impl Device for FileDevice {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_range(&self.name, self.size(), offset, buf.len() as u64)?;
        match &self.direct {
            Some(direct) => direct.read(self, offset, buf),
            None => self.read_full(offset, buf),
        }
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.write(offset, buf, false)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> Result<()> {
        let len: usize = bufs.iter().map(|b| b.len()).sum();
        self.check_write(offset, len as u64)?;
        if self.direct.is_some() {
            return self.write(offset, &bufs.concat(), false);
        }
        let mut slices: Vec<_> = bufs
            .iter()
            .filter(|b| !b.is_empty())
            .map(|b| IoSlice::new(b))
            .collect();
        self.write_slices(offset, &mut slices, len, false)
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.write(offset, buf, true)
    }

    fn flush(&self) -> Result<()> {
        if self.read_only() {
            return Ok(());
        }
        host::data_sync(&self.file).map_err(|e| self.error("flush", 0, 0, e))?;
        if let Some(&errno) = self.behind_failed.get() {
            let error = io::Error::from_raw_os_error(errno);
            return Err(self.error("write behind", 0, 0, error));
        }
        self.check_not_shrunk()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check_write(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let outcome = match self.medium {
            Medium::File => host::punch_hole(&self.file, offset, len),
            Medium::Block { logical } => {
                let start = offset.next_multiple_of(logical);
                let end = (offset + len) / logical * logical;
                if start >= end {
                    return Ok(());
                }
                host::discard_blocks(&self.file, start, end - start)
            }
        };
        match outcome {
            Ok(()) => Ok(()),
            Err(e) if host::is_unsupported(&e) => Ok(()),
            Err(e) => Err(Error::io(&self.name, "discard", offset, len, e)),
        }
    }

    fn grow(&self, size: u64) -> Result<()> {
        if self.medium != Medium::File {
            return check_range(&self.name, self.renew_size()?, 0, size);
        }
        check_writable(&self.name, self.read_only())?;
        if size <= self.size() {
            return Ok(());
        }
        let _growing = self.growing.lock();
        if size > self.size() {
            self.file
                .set_len(size)
                .map_err(|e| Error::io(&self.name, "growth", 0, size, e))?;
            self.size.store(size, Ordering::Release);
        }
        Ok(())
    }

    fn renew_size(&self) -> Result<u64> {
        let _growing = self.growing.lock();
        // The descriptor's position is not used otherwise.
        let end = (&self.file)
            .seek(SeekFrom::End(0))
            .map_err(|e| self.error("size", 0, 0, e))?;
        self.size.fetch_max(end, Ordering::AcqRel);
        Ok(self.size())
    }

    fn writes_to_memory(&self) -> bool {
        self.direct.is_none()
    }

    fn has_no_data(&self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len);
        if self.medium != Medium::File || end > self.size() {
            return false;
        }
        // The descriptor's position is not used otherwise.
        match host::next_data(&self.file, offset) {
            Ok(Some(data)) => data >= end,
            Ok(None) => offset < self.size(),
            Err(_) => false,
        }
    }

    fn will_read(&self, offset: u64, len: u64) {
        // Without the page cache there is no place to read it into.
        if self.direct.is_none() {
            host::will_read(&self.file, offset, len);
        }
    }

    fn drop_cached(&self, offset: u64, len: u64) {
        if self.direct.is_none() {
            host::drop_cached(&self.file, offset, len);
        }
    }

    fn write_behind(&self, offset: u64, len: u64) {
        if self.direct.is_none() {
            self.wrote_behind(&host::begin_writeback(&self.file, offset, len));
        }
    }

    fn release_lock(&self) -> Result<()> {
        for file in self.locked() {
            host::release(file).map_err(|e| self.error("release", 0, 0, e))?;
        }
        Ok(())
    }

    fn make_writable(&self, file: File) -> Result<()> {
        if !self.read_only() {
            return Ok(());
        }
        if self.direct.is_some() {
            return check_writable(&self.name, true);
        }
        let replaced = host::make_writable(&self.file, self.backing.as_ref(), &self.name, &file)?;
        let _ = self.replaced.set(replaced);
        self.read_only.store(false, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Call, calls};

    fn device() -> (tempfile::TempDir, FileDevice) {
        let dir = tempfile::tempdir().unwrap();
        let device = FileDevice::create(dir.path().join("image"), 1 << 20).unwrap();
        calls::take();
        (dir, device)
    }

    #[test]
    fn a_lock_ends_with_its_device_even_if_a_copy_of_the_descriptor_is_left() {
        let (dir, device) = device();
        let path = dir.path().join("image");
        let copy = device.file.try_clone().unwrap();
        let open = || FileDevice::open(&path, OpenOptions::default());
        assert!(matches!(open(), Err(Error::Busy { .. })));
        drop(device);
        open().unwrap();
        drop(copy);
    }

    #[test]
    fn a_released_lock_ends_even_if_a_copy_of_the_descriptor_is_left() {
        let (dir, device) = device();
        let path = dir.path().join("image");
        let copy = device.file.try_clone().unwrap();
        let open = || FileDevice::open(&path, OpenOptions::default());
        assert!(matches!(open(), Err(Error::Busy { .. })));
        device.release_lock().unwrap();
        open().unwrap();
        drop(copy);
    }

    #[cfg(unix)]
    #[test]
    fn a_range_without_data_is_a_hole_of_the_file() {
        let (_dir, device) = device();
        device.write_at(256 << 10, &[1; 4096]).unwrap();
        assert!(device.has_no_data(0, 256 << 10));
        assert!(device.has_no_data(512 << 10, 512 << 10));
        assert!(!device.has_no_data(0, (256 << 10) + 1));
        assert!(!device.has_no_data(256 << 10, 1));
        for (offset, len) in [(0, (1 << 20) + 1), (1 << 20, 1), (u64::MAX, 1)] {
            assert!(!device.has_no_data(offset, len));
        }

        let device: std::sync::Arc<dyn Device> = std::sync::Arc::new(device);
        let part = crate::PartDevice::new(device, "disk#1".to_owned(), 128 << 10, 512 << 10);
        let part = part.unwrap();
        assert!(part.has_no_data(0, 128 << 10) && !part.has_no_data(128 << 10, 4096));
        assert!(!part.has_no_data(256 << 10, (256 << 10) + 1));
    }

    #[test]
    fn a_flush_is_an_fdatasync() {
        let (_dir, device) = device();
        device.write_at(0, &[1; 512]).unwrap();
        device.flush().unwrap();
        assert_eq!(calls::take(), [Call::Write, Call::DataSync]);
    }

    #[cfg(all(target_os = "linux", not(sapwood_portable)))]
    #[test]
    fn a_fua_write_is_write_through_or_an_fdatasync_after_it() {
        let (_dir, device) = device();
        device.write_fua(0, &[1; 512]).unwrap();
        assert_eq!(calls::take(), [Call::WriteThrough]);
        device.dsync.store(false, Ordering::Relaxed);
        device.write_fua(0, &[1; 512]).unwrap();
        assert_eq!(calls::take(), [Call::Write, Call::DataSync]);
    }

    #[cfg(all(target_os = "linux", not(sapwood_portable)))]
    #[test]
    fn a_write_behind_begins_writeback_and_does_not_wait() {
        let (_dir, device) = device();
        device.write_at(0, &[1; 4096]).unwrap();
        device.write_behind(0, 4096);
        assert_eq!(calls::take(), [Call::Write, Call::BeginWriteback]);
    }

    #[cfg(all(target_os = "linux", not(sapwood_portable)))]
    #[test]
    fn no_flush_succeeds_after_a_failed_write_behind() {
        let (_dir, device) = device();
        let failed = |errno| Err(io::Error::from_raw_os_error(errno));
        for harmless in [libc::EINVAL, libc::ENOSYS, libc::EINTR, libc::ENOMEM] {
            device.wrote_behind(&failed(harmless));
        }
        device.flush().unwrap();
        device.wrote_behind(&failed(libc::EIO));
        device.wrote_behind(&Ok(()));
        for _ in 0..2 {
            assert!(matches!(device.flush(), Err(Error::Io { .. })));
        }
    }
}
