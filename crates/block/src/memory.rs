//! [`MemoryDevice`]: a sparse device in memory with cheap snapshots.
//!
//! # How it works
//!
//! The content is a map from page number to page, divided into shards with a lock each. A page that
//! was never written, or was discarded, is missing and reads as zeros. Shard maps and pages are
//! reference counted, and copied when a shared one is written. So a snapshot copies one pointer per
//! shard, and later each side pays only for its changes. Neighbouring pages share a shard, so a
//! small change copies few maps.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::error::{check_range, check_writable};
use crate::host;
use crate::{Device, Error, Result};

/// Bytes in one page. As large as the usual tree block, so that writing one copies nothing else.
pub const PAGE_SIZE: usize = 16 * 1024;

const SHARDS: usize = 64;
/// Neighbouring pages in one shard: 2 to this power.
const RUN_BITS: u32 = 4;

type Pages = HashMap<u64, Arc<[u8]>>;

/// A sparse device in memory: only written pages take memory.
///
/// Threads may use it concurrently; a request that spans pages is not atomic.
#[derive(Debug)]
pub struct MemoryDevice {
    size: u64,
    read_only: AtomicBool,
    shards: Box<[RwLock<Arc<Pages>>]>,
}

/// The part of a request that lies in one page.
struct Span {
    page: u64,
    /// Byte range within the page.
    start: usize,
    end: usize,
    /// Start of the part within the request.
    at: usize,
}

impl MemoryDevice {
    /// A device of `size` zero bytes.
    #[must_use]
    pub fn new(size: u64) -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Self {
            size,
            read_only: AtomicBool::new(false),
            shards,
        }
    }

    /// A device with the content and size of `bytes`.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let device = Self::new(bytes.len() as u64);
        device.put(0, bytes);
        device
    }

    /// A device with the same content that shares its pages until either side writes.
    ///
    /// A concurrent write may be in the snapshot in part. The snapshot is writable.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        let shards = self.shards.iter();
        Self {
            size: self.size,
            read_only: AtomicBool::new(false),
            shards: shards.map(|s| RwLock::new(s.read().clone())).collect(),
        }
    }

    /// A [`snapshot`](Self::snapshot) with another size. Further bytes are zero.
    #[must_use]
    pub fn resized(&self, size: u64) -> Self {
        if size < self.size {
            let less = self.snapshot();
            less.clear(size, self.size - size);
            return Self { size, ..less };
        }
        Self {
            size,
            ..self.snapshot()
        }
    }

    /// Sets whether writes are refused from now on.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::Relaxed);
    }

    /// Bytes of memory that the content takes, including shared pages.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let pages: usize = self.shards.iter().map(|s| s.read().len()).sum();
        (pages * PAGE_SIZE) as u64
    }

    /// Offset of the first byte in which two devices differ. A device that is shorter differs at
    /// its end. Shared pages are skipped.
    #[must_use]
    pub fn first_difference(&self, other: &Self) -> Option<u64> {
        let mut pages: Vec<u64> = self.page_numbers();
        pages.extend(other.page_numbers());
        pages.sort_unstable();
        pages.dedup();
        let zeros = [0; PAGE_SIZE];
        for page in pages {
            let (a, b) = (self.page(page), other.page(page));
            if let (Some(a), Some(b)) = (&a, &b)
                && Arc::ptr_eq(a, b)
            {
                continue;
            }
            let a = a.as_deref().unwrap_or(&zeros);
            let b = b.as_deref().unwrap_or(&zeros);
            if let Some(i) = a.iter().zip(b).position(|(x, y)| x != y) {
                return Some(page * PAGE_SIZE as u64 + i as u64);
            }
        }
        (self.size != other.size).then(|| self.size.min(other.size))
    }

    /// Reads a file into memory, skipping its holes. The device is as large as the file.
    ///
    /// # Errors
    /// [`Error::Open`] if it cannot be opened, [`Error::Io`] if it cannot be read.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let name = path.as_ref().display().to_string();
        let file = File::open(path).map_err(|e| Error::open(&name, e))?;
        let size = file.metadata().map_err(|e| Error::open(&name, e))?.len();
        let device = Self::new(size);
        device
            .fill_from(&file)
            .map_err(|e| Error::io(&name, "read", 0, size, e))?;
        Ok(device)
    }

    fn fill_from(&self, file: &File) -> io::Result<()> {
        let mut buf = vec![0; 64 * PAGE_SIZE];
        let mut at = 0;
        while at < self.size {
            at = match host::next_data(file, at)? {
                // In whole pages, so that no page is examined twice.
                Some(data) => data / PAGE_SIZE as u64 * PAGE_SIZE as u64,
                None => break,
            };
            let hole = host::next_hole(file, at)?.max(at + 1);
            let end = hole.next_multiple_of(PAGE_SIZE as u64).min(self.size);
            while at < end {
                let len = (end - at).min(buf.len() as u64) as usize;
                host::read_exact_at(file, &mut buf[..len], at)?;
                for (i, page) in buf[..len].chunks(PAGE_SIZE).enumerate() {
                    if page.iter().any(|&b| b != 0) {
                        self.put(at + (i * PAGE_SIZE) as u64, page);
                    }
                }
                at += len as u64;
            }
        }
        Ok(())
    }

    /// Writes the content to a sparse file, replacing an existing one.
    ///
    /// # Errors
    /// [`Error::Open`] if the file cannot be created, [`Error::Io`] if it cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let name = path.as_ref().display().to_string();
        let file = File::create(path).map_err(|e| Error::open(&name, e))?;
        self.write_to(&file)
            .map_err(|e| Error::io(&name, "write", 0, self.size, e))
    }

    fn write_to(&self, file: &File) -> io::Result<()> {
        file.set_len(self.size)?;
        let mut pages = self.page_numbers();
        pages.sort_unstable();
        for number in pages {
            let Some(page) = self.page(number) else {
                continue;
            };
            let at = number * PAGE_SIZE as u64;
            let len = (self.size - at).min(PAGE_SIZE as u64) as usize;
            host::write_all_at(file, &page[..len], at)?;
        }
        Ok(())
    }

    fn page_numbers(&self) -> Vec<u64> {
        let shards = self.shards.iter();
        shards
            .flat_map(|s| s.read().keys().copied().collect::<Vec<_>>())
            .collect()
    }

    fn shard(&self, page: u64) -> &RwLock<Arc<Pages>> {
        &self.shards[(page >> RUN_BITS) as usize % SHARDS]
    }

    fn page(&self, number: u64) -> Option<Arc<[u8]>> {
        self.shard(number).read().get(&number).cloned()
    }

    /// Writes `buf`, which must be within the device, even if the device is read-only.
    pub fn put(&self, offset: u64, buf: &[u8]) {
        for span in spans(offset, buf.len() as u64) {
            let part = &buf[span.at..span.at + (span.end - span.start)];
            let mut shard = self.shard(span.page).write();
            let pages = Arc::make_mut(&mut shard);
            if part.len() == PAGE_SIZE {
                pages.insert(span.page, part.into());
                continue;
            }
            let page = pages
                .entry(span.page)
                .or_insert_with(|| Arc::from([0; PAGE_SIZE].as_slice()));
            Arc::make_mut(page)[span.start..span.end].copy_from_slice(part);
        }
    }

    /// Zeroes a range within the device and frees its whole pages.
    pub fn clear(&self, offset: u64, len: u64) {
        let end = offset + len;
        let size = PAGE_SIZE as u64;
        let whole = offset.next_multiple_of(size)..end / size * size;
        if whole.is_empty() {
            return self.zero_parts(offset, len);
        }
        self.zero_parts(offset, whole.start - offset);
        self.zero_parts(whole.end, end - whole.end);
        let numbers = whole.start / size..whole.end / size;
        for shard in &self.shards {
            let mut shard = shard.write();
            if shard.keys().any(|n| numbers.contains(n)) {
                Arc::make_mut(&mut shard).retain(|n, _| !numbers.contains(n));
            }
        }
    }

    fn zero_parts(&self, offset: u64, len: u64) {
        for span in spans(offset, len) {
            let mut shard = self.shard(span.page).write();
            if !shard.contains_key(&span.page) {
                continue;
            }
            if let Some(page) = Arc::make_mut(&mut shard).get_mut(&span.page) {
                Arc::make_mut(page)[span.start..span.end].fill(0);
            }
        }
    }

    fn check_write(&self, offset: u64, len: u64) -> Result<()> {
        check_writable(self.name(), self.read_only())?;
        check_range(self.name(), self.size, offset, len)
    }
}

/// Splits a request at page boundaries.
fn spans(offset: u64, len: u64) -> impl Iterator<Item = Span> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let page = at / PAGE_SIZE as u64;
        let start = (at % PAGE_SIZE as u64) as usize;
        let take = (end - at).min((PAGE_SIZE - start) as u64);
        let span = Span {
            page,
            start,
            end: start + take as usize,
            at: (at - offset) as usize,
        };
        at += take;
        Some(span)
    })
}

impl Device for MemoryDevice {
    fn writes_to_memory(&self) -> bool {
        true
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn name(&self) -> &str {
        "memory"
    }

    fn read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_range(self.name(), self.size, offset, buf.len() as u64)?;
        for span in spans(offset, buf.len() as u64) {
            let part = &mut buf[span.at..span.at + (span.end - span.start)];
            match self.shard(span.page).read().get(&span.page) {
                Some(page) => part.copy_from_slice(&page[span.start..span.end]),
                None => part.fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.check_write(offset, buf.len() as u64)?;
        self.put(offset, buf);
        Ok(())
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.write_at(offset, buf)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// Frees the whole pages of the range. All of it reads as zeros afterwards.
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check_write(offset, len)?;
        self.clear(offset, len);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(device: &MemoryDevice, offset: u64, len: usize) -> Vec<u8> {
        let mut buf = vec![0xee; len];
        device.read_at(offset, &mut buf).unwrap();
        buf
    }

    #[test]
    fn a_terabyte_costs_only_what_is_written() {
        let device = MemoryDevice::new(1 << 40);
        assert_eq!(device.resident_bytes(), 0);
        device.write_at((1 << 40) - 3, b"end").unwrap();
        device.write_at(PAGE_SIZE as u64 - 2, b"over").unwrap();
        assert_eq!(device.resident_bytes(), 3 * PAGE_SIZE as u64);
        assert_eq!(read(&device, (1 << 40) - 4, 4), b"\0end");
        assert_eq!(read(&device, PAGE_SIZE as u64 - 3, 6), b"\0over\0");
        device.discard(0, 1 << 40).unwrap();
        assert_eq!(device.resident_bytes(), 0);
    }

    #[test]
    fn requests_past_the_end_are_refused() {
        let device = MemoryDevice::new(100);
        for (offset, len) in [(100, 1), (99, 2), (u64::MAX, 2)] {
            let refused = |r: Result<()>| assert!(matches!(r, Err(Error::OutOfRange { .. })));
            refused(device.read_at(offset, &mut vec![0; len]));
            refused(device.write_at(offset, &vec![0; len]));
            refused(device.write_fua(offset, &vec![0; len]));
            refused(device.write_vectored_at(offset, &[&vec![0; len]]));
            refused(device.discard(offset, len as u64));
        }
        device.write_at(100, &[]).unwrap();
        device.set_read_only(true);
        assert!(matches!(
            device.write_at(0, b"x"),
            Err(Error::ReadOnly { .. })
        ));
        assert!(matches!(device.discard(0, 1), Err(Error::ReadOnly { .. })));
    }

    #[test]
    fn snapshot_and_original_do_not_see_each_other() {
        let device = MemoryDevice::from_bytes(&vec![1; 5 * PAGE_SIZE + 7]);
        let snapshot = device.snapshot();
        assert_eq!(device.first_difference(&snapshot), None);
        device.write_at(10, &[2]).unwrap();
        snapshot.write_at(4 * PAGE_SIZE as u64, &[3]).unwrap();
        assert_eq!(read(&snapshot, 10, 1), [1]);
        assert_eq!(read(&device, 4 * PAGE_SIZE as u64, 1), [1]);
        assert_eq!(device.first_difference(&snapshot), Some(10));
        device.write_at(10, &[1]).unwrap();
        assert_eq!(
            device.first_difference(&snapshot),
            Some(4 * PAGE_SIZE as u64)
        );
        device.discard(0, PAGE_SIZE as u64).unwrap();
        assert_eq!(read(&snapshot, 0, 1), [1]);
    }

    #[test]
    fn discard_zeroes_exactly_its_range() {
        let device = MemoryDevice::from_bytes(&vec![9; 4 * PAGE_SIZE]);
        let (start, len) = (PAGE_SIZE as u64 - 5, 2 * PAGE_SIZE as u64 + 10);
        device.discard(start, len).unwrap();
        let mut model = vec![9; 4 * PAGE_SIZE];
        model[start as usize..(start + len) as usize].fill(0);
        assert_eq!(read(&device, 0, model.len()), model);
        assert_eq!(device.resident_bytes(), 2 * PAGE_SIZE as u64);
        device.discard(1, 3).unwrap();
        assert_eq!(read(&device, 0, 5), [9, 0, 0, 0, 9]);
    }

    #[test]
    fn saved_and_loaded_is_the_same_and_stays_sparse() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let device = MemoryDevice::new((1 << 30) + 77);
        device.write_at(3, b"start").unwrap();
        device.write_at(500 << 20, &vec![7; 100_000]).unwrap();
        device.write_at((1 << 30) + 76, b"e").unwrap();
        device.save(&path).unwrap();
        let loaded = MemoryDevice::load(&path).unwrap();
        assert_eq!(loaded.size(), device.size());
        assert_eq!(loaded.first_difference(&device), None);
        assert_eq!(loaded.resident_bytes(), device.resident_bytes());
        assert!(path.metadata().unwrap().blocks() * 512 < 4 << 20);
    }

    #[test]
    fn threads_write_without_losing_neighbours() {
        let device = MemoryDevice::new(1 << 20);
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let device = &device;
                scope.spawn(move || {
                    for i in 0..1000 {
                        device
                            .write_at((i * 8 + thread) * 7, &[thread as u8 + 1; 7])
                            .unwrap();
                    }
                });
            }
        });
        for i in 0..8000 {
            assert_eq!(read(&device, i * 7, 7), [(i % 8) as u8 + 1; 7]);
        }
    }
}
