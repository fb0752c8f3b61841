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
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::host;
use crate::{Device, OVERLAY_PAGE, SECTOR_SIZE};

/// First bytes of an undo file.
const MAGIC: [u8; 8] = *b"SAPWUNDO";
const VERSION: u32 = 1;
/// The image is on several devices: their names are separated by zero bytes, and offsets count
/// from the start of the first one ([`JoinedDevice`](crate::JoinedDevice)).
const SEVERAL: u32 = 2;
/// Bytes of the page of a record.
const PAGE: usize = OVERLAY_PAGE as usize;
/// Most bytes of the names of the image's devices.
const NAME_MAX: usize = 4060;

/// The start of an undo file.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    version: U32,
    name_len: U32,
    /// Bytes of the image.
    size: U64,
    records: U64,
    name: [u8; NAME_MAX],
    /// CRC-32 of the bytes before.
    sum: U32,
}
const HEAD: usize = size_of::<Head>();
const _: () = assert!(HEAD == 4096);
const _: () = assert!(std::mem::offset_of!(Head, name) == 32);

impl Head {
    fn expected_sum(&self) -> u32 {
        crc32fast::hash(&self.as_bytes()[..std::mem::offset_of!(Head, sum)])
    }
}

/// A changed page.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Record {
    /// Bytes from the start of the image.
    offset: U64,
    /// Bytes of the page: fewer at the end of the image.
    len: U32,
    /// CRC-32 of all other bytes.
    sum: U32,
    before: [u8; PAGE],
    after: [u8; PAGE],
}
const RECORD: usize = size_of::<Record>();
const _: () = assert!(RECORD == 8208);
const _: () = assert!(std::mem::offset_of!(Record, before) == 16);

impl Record {
    fn expected_sum(&self) -> u32 {
        let mut sum = crc32fast::Hasher::new();
        sum.update(self.offset.as_bytes());
        sum.update(self.len.as_bytes());
        sum.update(&self.before);
        sum.update(&self.after);
        sum.finalize()
    }

    fn side(&self, side: UndoSide) -> &[u8] {
        let page = match side {
            UndoSide::Before => &self.before,
            UndoSide::After => &self.after,
        };
        page.get(..self.len.get() as usize).unwrap_or(page)
    }

    /// Gives both sides the bytes `found` in a range of the image.
    fn leave(&mut self, range: &Range<u64>, found: &[u8]) {
        let within = |at: u64| at.saturating_sub(self.offset.get()).min(found.len() as u64);
        let part = within(range.start) as usize..within(range.end) as usize;
        if let Some(bytes) = found.get(part.clone()) {
            self.before[part.clone()].copy_from_slice(bytes);
            self.after[part].copy_from_slice(bytes);
        }
    }
}

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
    #[error("{file}: undo file of version {version}, only {VERSION} and {SEVERAL} are known")]
    Version {
        /// The undo file.
        file: String,
        /// Its version.
        version: u32,
    },
    /// It is longer or shorter than its head states, or a checksum does not match.
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
    /// The device has the content from before the repair.
    Before,
    /// The device has the content from after the repair.
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

/// Writes an undo file for the image on `devices`: the pages at `pages` of `before`, and of `after`,
/// which has the changes. Pages without a change count, too. Returns the number of records. The
/// caller makes the file durable.
///
/// # Errors
/// [`UndoError::Device`]; [`UndoError::Write`]; [`UndoError::Name`].
pub fn record_undo(
    devices: &[PathBuf],
    before: &dyn Device,
    after: &dyn Device,
    pages: &[u64],
    to: &mut dyn Write,
) -> Result<u64, UndoError> {
    let mut pages = pages.to_vec();
    pages.retain(|offset| *offset < before.size());
    pages.sort_unstable();
    pages.dedup();
    to.write_all(head(devices, before.size(), pages.len() as u64)?.as_bytes())?;
    let mut record = Record::new_zeroed();
    for offset in &pages {
        record.zero();
        let len = page_len(*offset, before.size());
        record.offset = (*offset).into();
        record.len = (len as u32).into();
        before.read_at(*offset, &mut record.before[..len])?;
        after.read_at(*offset, &mut record.after[..len])?;
        record.sum = record.expected_sum().into();
        to.write_all(record.as_bytes())?;
    }
    Ok(pages.len() as u64)
}

fn head(devices: &[PathBuf], size: u64, records: u64) -> Result<Head, UndoError> {
    let names: Vec<&[u8]> = devices
        .iter()
        .map(|name| name.as_os_str().as_encoded_bytes())
        .collect();
    let name = names.join(&0);
    let mut head = Head::new_zeroed();
    let place = head.name.get_mut(..name.len());
    let first = devices.first().cloned().unwrap_or_default();
    place.ok_or(UndoError::Name(first))?.copy_from_slice(&name);
    let version = if devices.len() > 1 { SEVERAL } else { VERSION };
    head.magic = MAGIC;
    head.version = version.into();
    head.name_len = (name.len() as u32).into();
    head.size = size.into();
    head.records = records.into();
    head.sum = head.expected_sum().into();
    Ok(head)
}

/// Bytes of the page at `offset` of a device of `size` bytes.
fn page_len(offset: u64, size: u64) -> usize {
    size.saturating_sub(offset).min(OVERLAY_PAGE) as usize
}

/// A valid undo file.
#[derive(Debug)]
pub struct UndoFile {
    file: Arc<dyn Device>,
    devices: Vec<PathBuf>,
    size: u64,
    records: u64,
    /// Bytes of the image that stay as they are.
    left: Range<u64>,
}

impl UndoFile {
    /// Reads the head of an undo file, and validates all records.
    ///
    /// # Errors
    /// [`UndoError::NotUndo`], [`UndoError::Version`], [`UndoError::Damaged`];
    /// [`UndoError::Device`].
    pub fn open(file: Arc<dyn Device>) -> Result<Self, UndoError> {
        let name = || file.name().to_owned();
        let mut head = Head::new_zeroed();
        if file.size() < HEAD as u64 {
            return Err(UndoError::NotUndo(name()));
        }
        file.read_at(0, head.as_mut_bytes())?;
        if head.magic != MAGIC {
            return Err(UndoError::NotUndo(name()));
        }
        let damaged = |what: &str| UndoError::Damaged {
            file: name(),
            what: what.to_owned(),
        };
        let version = head.version.get();
        if version != VERSION && version != SEVERAL {
            let file = name();
            return Err(UndoError::Version { file, version });
        }
        if head.sum.get() != head.expected_sum() {
            return Err(damaged("checksum of the head"));
        }
        let image = head.name.get(..head.name_len.get() as usize);
        let image = image.ok_or_else(|| damaged("length of the image's name"))?;
        let (size, records) = (head.size.get(), head.records.get());
        let bytes = records.checked_mul(RECORD as u64);
        if bytes.and_then(|bytes| bytes.checked_add(HEAD as u64)) != Some(file.size()) {
            return Err(damaged("its length does not match its number of records"));
        }
        let undo = Self {
            devices: image
                .split(|byte| *byte == 0)
                .map(|name| PathBuf::from(host::os_str(name)))
                .collect(),
            size,
            records,
            left: 0..0,
            file: Arc::clone(&file),
        };
        let mut next = 0;
        undo.each(&mut |record| {
            let (offset, len) = (record.offset.get(), record.len.get() as usize);
            let rising = offset >= next && offset.is_multiple_of(OVERLAY_PAGE);
            let inside = offset < size && len == page_len(offset, size);
            if !rising || !inside {
                return Err(damaged(&format!("record of byte {offset}")));
            }
            next = offset + OVERLAY_PAGE;
            Ok(())
        })?;
        Ok(undo)
    }

    /// Leaves a range of the image as it is, whatever the records have there: bytes that record the
    /// use of the image.
    #[must_use]
    pub fn leaving(mut self, range: Range<u64>) -> Self {
        self.left = range;
        self
    }

    /// Names of the devices of the image that was repaired, in their order.
    #[must_use]
    pub fn devices(&self) -> &[PathBuf] {
        &self.devices
    }

    /// Number of recorded pages.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Reads all records, and verifies the checksum of each.
    fn each(
        &self,
        visit: &mut dyn FnMut(&mut Record) -> Result<(), UndoError>,
    ) -> Result<(), UndoError> {
        let mut record = Record::new_zeroed();
        for number in 0..self.records {
            let at = HEAD as u64 + number * RECORD as u64;
            self.file.read_at(at, record.as_mut_bytes())?;
            if record.sum.get() != record.expected_sum() || record.len.get() as usize > PAGE {
                return Err(UndoError::Damaged {
                    file: self.file.name().to_owned(),
                    what: format!("checksum of record {number}"),
                });
            }
            visit(&mut record)?;
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
            let offset = record.offset.get();
            let found = &mut found[..record.len.get() as usize];
            device.read_at(offset, found)?;
            record.leave(&self.left, found);
            let sectors = SECTOR_SIZE as usize;
            let old = record.side(UndoSide::Before).chunks(sectors);
            let new = record.side(UndoSide::After).chunks(sectors);
            for (number, (found, (old, new))) in found.chunks(sectors).zip(old.zip(new)).enumerate()
            {
                before &= found == old;
                after &= found == new;
                if found != old && found != new {
                    changed = changed.or(Some(offset + (number * sectors) as u64));
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
            let offset = record.offset.get();
            let found = &mut found[..record.len.get() as usize];
            device.read_at(offset, found)?;
            record.leave(&self.left, found);
            if found != record.side(side) {
                device.write_at(offset, record.side(side))?;
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
        let names = ["/images/disk.img", "/images/second.img"].map(PathBuf::from);
        record_undo(&names, &*device, &overlay, &pages, &mut file).unwrap();
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
        assert_eq!(
            undo.devices(),
            ["/images/disk.img", "/images/second.img"].map(PathBuf::from)
        );
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
    fn a_range_that_is_left_may_change() {
        let (device, before, after, file) = changed();
        let undo = UndoFile::open(memory(&file)).unwrap().leaving(800..1000);
        undo.apply(&*device, UndoSide::After, false).unwrap();
        device.write_at(850, &[7; 100]).unwrap();
        assert_eq!(undo.state(&*device).unwrap(), UndoState::After);
        let expected = |side: &[u8], from: &[u8]| {
            let mut bytes = side.to_vec();
            bytes[800..1000].copy_from_slice(&from[800..1000]);
            bytes
        };
        undo.apply(&*device, UndoSide::Before, false).unwrap();
        let mut own = before.clone();
        own[850..950].fill(7);
        assert_eq!(bytes(&device), expected(&before, &own));
        assert_eq!(undo.state(&*device).unwrap(), UndoState::Before);
        undo.apply(&*device, UndoSide::After, false).unwrap();
        assert_eq!(bytes(&device), expected(&after, &own));
        // Other bytes may not.
        device.write_at(1000, &[8]).unwrap();
        assert_eq!(undo.state(&*device).unwrap(), UndoState::Changed(512));
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
