//! Undo files: the blocks of a device before a repair, and what the repair writes to them.
//!
//! # How it works
//! An undo file has a head and one record per changed page, in rising order. A record has the page
//! before and after the change. The file is complete and durable before the first change is
//! written, and the changes are written from it. So after a power cut at any write every sector of
//! the device is as before or as after, and the file can bring the device to either side.
//!
//! A device whose recorded sectors are neither is another one, or was changed since. It is refused,
//! unless the caller forces it. The recorder adds the pages of superblocks even if they do not
//! change, because each mount for writing changes them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Device, OVERLAY_PAGE, SECTOR_SIZE};

/// First bytes of an undo file.
const MAGIC: &[u8; 8] = b"SAPWUNDO";
const VERSION: u32 = 1;
/// Bytes of the head.
const HEAD: usize = 4096;
/// Bytes of the page of a record.
const PAGE: usize = OVERLAY_PAGE as usize;
/// Bytes of the head before the name of the image.
const FIELDS: usize = 32;
/// Most bytes of the name of the image.
const NAME_MAX: usize = HEAD - FIELDS - 4;
/// Bytes of a record: offset, length, checksum, the page before and after.
const RECORD: usize = 16 + 2 * PAGE;

/// Why an undo file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UndoError {
    /// A device failed.
    #[error(transparent)]
    Device(#[from] crate::Error),
    /// The undo file cannot be written.
    #[error("undo file: {0}")]
    Write(#[from] io::Error),
    /// Another kind of file.
    #[error("{0}: no undo file")]
    NotUndo(String),
    /// An undo file of a later version.
    #[error("{file}: undo file of version {version}, only {VERSION} is known")]
    Version {
        /// The undo file.
        file: String,
        /// Its version.
        version: u32,
    },
    /// It is longer or shorter than its head says, or a checksum does not match.
    #[error("{file}: damaged undo file: {what}")]
    Damaged {
        /// The undo file.
        file: String,
        /// The damage.
        what: String,
    },
    /// The image has another size than the one that was repaired.
    #[error("{device}: {found} bytes, the undo file is for an image of {expected}")]
    Size {
        /// The image.
        device: String,
        /// Its size.
        found: u64,
        /// The size in the undo file.
        expected: u64,
    },
    /// The image was changed since the repair, or is another one.
    #[error("{device}: changed since the repair, at byte {offset}")]
    Changed {
        /// The image.
        device: String,
        /// First sector that is neither as before nor as after the repair.
        offset: u64,
    },
    /// The name of the image is too long for the head.
    #[error("{}: the name is too long for an undo file", .0.display())]
    Name(PathBuf),
}

/// State of a device, compared with an undo file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UndoState {
    /// As before the repair.
    Before,
    /// As after the repair.
    After,
    /// Partly repaired: a repair or an undo was interrupted.
    Between,
    /// A sector at this offset is neither. The image was changed, or is another one.
    Changed(u64),
}

/// The state to which an undo file brings a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UndoSide {
    /// The state before the repair.
    Before,
    /// The state after the repair.
    After,
}

/// Writes an undo file: the pages at `pages` of `before`, and of `after`, which has the changes.
/// Pages without a change count, too. Returns the number of records. The caller makes the file
/// durable.
///
/// # Errors
/// [`UndoError::Device`]; [`UndoError::Write`]; [`UndoError::Name`].
pub fn record_undo(
    image: &Path,
    before: &dyn Device,
    after: &dyn Device,
    pages: &[u64],
    to: &mut dyn Write,
) -> Result<u64, UndoError> {
    let mut pages = pages.to_vec();
    pages.retain(|offset| *offset < before.size());
    pages.sort_unstable();
    pages.dedup();
    to.write_all(&head(image, before.size(), pages.len() as u64)?)?;
    let mut record = vec![0; RECORD];
    for offset in &pages {
        let len = page_len(*offset, before.size());
        record.fill(0);
        record[..8].copy_from_slice(&offset.to_le_bytes());
        record[8..12].copy_from_slice(&(len as u32).to_le_bytes());
        before.read_at(*offset, &mut record[16..16 + len])?;
        after.read_at(*offset, &mut record[16 + PAGE..16 + PAGE + len])?;
        let sum = record_sum(&record);
        record[12..16].copy_from_slice(&sum.to_le_bytes());
        to.write_all(&record)?;
    }
    Ok(pages.len() as u64)
}

fn head(image: &Path, size: u64, records: u64) -> Result<Vec<u8>, UndoError> {
    use std::os::unix::ffi::OsStrExt;
    let name = image.as_os_str().as_bytes();
    if name.len() > NAME_MAX {
        return Err(UndoError::Name(image.to_owned()));
    }
    let mut head = vec![0; HEAD];
    head[..8].copy_from_slice(MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..16].copy_from_slice(&(name.len() as u32).to_le_bytes());
    head[16..24].copy_from_slice(&size.to_le_bytes());
    head[24..32].copy_from_slice(&records.to_le_bytes());
    head[FIELDS..FIELDS + name.len()].copy_from_slice(name);
    let sum = crc32fast::hash(&head[..HEAD - 4]);
    head[HEAD - 4..].copy_from_slice(&sum.to_le_bytes());
    Ok(head)
}

/// Bytes of the page at `offset` of a device of `size` bytes.
fn page_len(offset: u64, size: u64) -> usize {
    size.saturating_sub(offset).min(OVERLAY_PAGE) as usize
}

/// The checksum of a record, which covers all but the field of the checksum.
fn record_sum(record: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&record[..12]);
    sum.update(&record[16..]);
    sum.finalize()
}

/// A valid undo file.
#[derive(Debug)]
pub struct UndoFile {
    file: Arc<dyn Device>,
    image: PathBuf,
    size: u64,
    records: u64,
}

/// A record in memory.
struct Record {
    offset: u64,
    len: usize,
    bytes: Vec<u8>,
}

impl Record {
    fn side(&self, side: UndoSide) -> &[u8] {
        let start = match side {
            UndoSide::Before => 16,
            UndoSide::After => 16 + PAGE,
        };
        &self.bytes[start..start + self.len]
    }
}

impl UndoFile {
    /// Reads the head of an undo file, and validates all records.
    ///
    /// # Errors
    /// [`UndoError::NotUndo`], [`UndoError::Version`], [`UndoError::Damaged`];
    /// [`UndoError::Device`].
    pub fn open(file: Arc<dyn Device>) -> Result<Self, UndoError> {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        let name = || file.name().to_owned();
        let mut head = vec![0; HEAD];
        if file.size() < HEAD as u64 {
            return Err(UndoError::NotUndo(name()));
        }
        file.read_at(0, &mut head)?;
        if &head[..8] != MAGIC {
            return Err(UndoError::NotUndo(name()));
        }
        let damaged = |what: &str| UndoError::Damaged {
            file: name(),
            what: what.to_owned(),
        };
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let version = word(8);
        if version != VERSION {
            let file = name();
            return Err(UndoError::Version { file, version });
        }
        if word(HEAD - 4) != crc32fast::hash(&head[..HEAD - 4]) {
            return Err(damaged("checksum of the head"));
        }
        let image = head[FIELDS..HEAD - 4].get(..word(12) as usize);
        let image = image.ok_or_else(|| damaged("length of the image's name"))?;
        let (size, records) = (long(16), long(24));
        let bytes = records.checked_mul(RECORD as u64);
        if bytes.and_then(|bytes| bytes.checked_add(HEAD as u64)) != Some(file.size()) {
            return Err(damaged("its length does not match its number of records"));
        }
        let undo = Self {
            image: PathBuf::from(OsStr::from_bytes(image)),
            size,
            records,
            file: Arc::clone(&file),
        };
        let mut next = 0;
        undo.each(&mut |record| {
            let rising = record.offset >= next && record.offset.is_multiple_of(OVERLAY_PAGE);
            let inside = record.offset < size && record.len == page_len(record.offset, size);
            if !rising || !inside {
                return Err(damaged(&format!("record of byte {}", record.offset)));
            }
            next = record.offset + OVERLAY_PAGE;
            Ok(())
        })?;
        Ok(undo)
    }

    /// Name of the image that was repaired.
    #[must_use]
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Number of recorded pages.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Reads all records, and verifies the checksum of each.
    fn each(
        &self,
        visit: &mut dyn FnMut(&Record) -> Result<(), UndoError>,
    ) -> Result<(), UndoError> {
        let mut record = Record {
            offset: 0,
            len: 0,
            bytes: vec![0; RECORD],
        };
        for number in 0..self.records {
            let at = HEAD as u64 + number * RECORD as u64;
            self.file.read_at(at, &mut record.bytes)?;
            let bytes = &record.bytes;
            let field = |at: usize| {
                bytes[at..at + 4]
                    .iter()
                    .rev()
                    .fold(0, |n, b| n << 8 | u32::from(*b))
            };
            let (low, high, len, sum) = (field(0), field(4), field(8), field(12));
            if sum != record_sum(bytes) || len as usize > PAGE {
                return Err(UndoError::Damaged {
                    file: self.file.name().to_owned(),
                    what: format!("checksum of record {number}"),
                });
            }
            record.offset = u64::from(low) | u64::from(high) << 32;
            record.len = len as usize;
            visit(&record)?;
        }
        Ok(())
    }

    /// Compares a device with the records.
    ///
    /// # Errors
    /// [`UndoError::Size`]; [`UndoError::Damaged`]; [`UndoError::Device`].
    pub fn state(&self, device: &dyn Device) -> Result<UndoState, UndoError> {
        self.same_size(device)?;
        let (mut before, mut after, mut changed) = (true, true, None);
        let mut found = vec![0; PAGE];
        self.each(&mut |record| {
            let found = &mut found[..record.len];
            device.read_at(record.offset, found)?;
            let sectors = SECTOR_SIZE as usize;
            let old = record.side(UndoSide::Before).chunks(sectors);
            let new = record.side(UndoSide::After).chunks(sectors);
            for (number, (found, (old, new))) in found.chunks(sectors).zip(old.zip(new)).enumerate()
            {
                before &= found == old;
                after &= found == new;
                if found != old && found != new {
                    changed = changed.or(Some(record.offset + (number * sectors) as u64));
                }
            }
            Ok(())
        })?;
        Ok(match changed {
            Some(offset) => UndoState::Changed(offset),
            // A repair that changed nothing is undone.
            None if before => UndoState::Before,
            None if after => UndoState::After,
            None => UndoState::Between,
        })
    }

    fn same_size(&self, device: &dyn Device) -> Result<(), UndoError> {
        if device.size() == self.size {
            return Ok(());
        }
        Err(UndoError::Size {
            device: device.name().to_owned(),
            found: device.size(),
            expected: self.size,
        })
    }

    /// Brings a device to one side, and makes that durable. Returns the number of pages written.
    /// After an interruption it can be repeated, with either side. With `force` a changed device is
    /// overwritten, too.
    ///
    /// # Errors
    /// [`UndoError::Size`], [`UndoError::Changed`]: nothing was written.
    /// [`UndoError::Damaged`], [`UndoError::Device`].
    pub fn apply(
        &self,
        device: &dyn Device,
        side: UndoSide,
        force: bool,
    ) -> Result<u64, UndoError> {
        if let UndoState::Changed(offset) = self.state(device)?
            && !force
        {
            let device = device.name().to_owned();
            return Err(UndoError::Changed { device, offset });
        }
        let mut written = 0;
        let mut found = vec![0; PAGE];
        self.each(&mut |record| {
            let found = &mut found[..record.len];
            device.read_at(record.offset, found)?;
            if found != record.side(side) {
                device.write_at(record.offset, record.side(side))?;
                written += 1;
            }
            Ok(())
        })?;
        device.flush()?;
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::{MemoryDevice, OverlayDevice};

    /// Not a multiple of the page size.
    const SIZE: u64 = 6 * OVERLAY_PAGE + 512;

    fn memory(bytes: &[u8]) -> Arc<MemoryDevice> {
        let device = MemoryDevice::new(bytes.len() as u64);
        device.write_at(0, bytes).unwrap();
        Arc::new(device)
    }

    /// A device, and the undo file of changes to three of its pages.
    fn changed() -> (Arc<MemoryDevice>, Vec<u8>, Vec<u8>, Vec<u8>) {
        let before: Vec<u8> = (0..SIZE).map(|n| (n % 251) as u8).collect();
        let device = memory(&before);
        let overlay = OverlayDevice::new(device.clone());
        overlay.write_at(700, &[1; 2000]).unwrap();
        overlay.write_at(3 * OVERLAY_PAGE + 9, &[2; 9]).unwrap();
        overlay.write_at(SIZE - 100, &[3; 100]).unwrap();
        let mut after = vec![0; SIZE as usize];
        overlay.read_at(0, &mut after).unwrap();
        let mut file = Vec::new();
        let mut pages = overlay.written();
        pages.push(OVERLAY_PAGE);
        let path = Path::new("/images/disk.img");
        record_undo(path, &*device, &overlay, &pages, &mut file).unwrap();
        (device, before, after, file)
    }

    /// Loses its power at a write, of which only the first sector reaches the medium.
    #[derive(Debug)]
    struct Cutting {
        below: Arc<MemoryDevice>,
        /// Writes before the cut.
        writes: AtomicU64,
    }

    impl crate::Layer for Cutting {
        type Below = MemoryDevice;

        fn below(&self) -> &MemoryDevice {
            &self.below
        }

        fn write_at(&self, offset: u64, buf: &[u8]) -> crate::Result<()> {
            if self.writes.load(Ordering::SeqCst) > 0 {
                self.writes.fetch_sub(1, Ordering::SeqCst);
                return Device::write_at(&*self.below, offset, buf);
            }
            let first = buf.len().min(SECTOR_SIZE as usize);
            Device::write_at(&*self.below, offset, &buf[..first])?;
            Err(crate::Error::ReadOnly {
                device: "cut".to_owned(),
            })
        }
    }

    fn bytes(device: &MemoryDevice) -> Vec<u8> {
        let mut bytes = vec![0; device.size() as usize];
        device.read_at(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn an_undo_file_restores_the_exact_bytes() {
        let (device, before, after, file) = changed();
        let undo = UndoFile::open(memory(&file)).unwrap();
        assert_eq!(undo.image(), Path::new("/images/disk.img"));
        assert_eq!(undo.records(), 4);
        assert_eq!(undo.state(&*device).unwrap(), UndoState::Before);
        assert_eq!(undo.apply(&*device, UndoSide::After, false).unwrap(), 3);
        assert_eq!(bytes(&device), after);
        assert_eq!(undo.state(&*device).unwrap(), UndoState::After);
        assert_eq!(undo.apply(&*device, UndoSide::Before, false).unwrap(), 3);
        assert_eq!(bytes(&device), before);
    }

    #[test]
    fn a_cut_at_any_write_of_a_repair_or_an_undo_can_be_undone_and_resumed() {
        let (_, before, after, file) = changed();
        let undo = UndoFile::open(memory(&file)).unwrap();
        let sides = [(&before, UndoSide::After), (&after, UndoSide::Before)];
        for (start, side) in sides {
            for cut in 0..3 {
                for end in [(&before, UndoSide::Before), (&after, UndoSide::After)] {
                    let device = memory(start);
                    let cutting = Cutting {
                        below: device.clone(),
                        writes: AtomicU64::new(cut),
                    };
                    assert!(undo.apply(&cutting, side, false).is_err(), "cut {cut}");
                    assert!(matches!(
                        undo.state(&*device).unwrap(),
                        UndoState::Between | UndoState::Before | UndoState::After
                    ));
                    undo.apply(&*device, end.1, false).unwrap();
                    assert_eq!(bytes(&device), *end.0, "cut {cut}");
                }
            }
        }
    }

    #[test]
    fn a_changed_image_is_refused_unless_forced() {
        let (device, before, _, file) = changed();
        let undo = UndoFile::open(memory(&file)).unwrap();
        undo.apply(&*device, UndoSide::After, false).unwrap();
        // This page is recorded without a change.
        device.write_at(OVERLAY_PAGE + 1024, &[0xee]).unwrap();
        let offset = OVERLAY_PAGE + 1024;
        let repaired = bytes(&device);
        let refused = undo.apply(&*device, UndoSide::Before, false);
        assert!(matches!(refused, Err(UndoError::Changed { offset: at, .. }) if at == offset));
        assert_eq!(bytes(&device), repaired);
        undo.apply(&*device, UndoSide::Before, true).unwrap();
        assert_eq!(bytes(&device), before);
        let other = MemoryDevice::new(SIZE + 512);
        let refused = undo.apply(&other, UndoSide::Before, true);
        assert!(matches!(refused, Err(UndoError::Size { .. })));
    }

    #[test]
    fn a_damaged_undo_file_is_refused_before_anything_is_written() {
        let (_, _, _, file) = changed();
        for len in [0, 7, 4095, 4096, file.len() - 1] {
            assert!(UndoFile::open(memory(&file[..len])).is_err(), "{len} bytes");
        }
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..200 {
            let mut damaged = file.clone();
            let at = random.usize(..damaged.len());
            damaged[at] ^= 1 << random.u8(..8);
            assert!(UndoFile::open(memory(&damaged)).is_err(), "byte {at}");
        }
    }
}
