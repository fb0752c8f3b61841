//! [`CryptDevice`]: the decrypted content of a volume.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use sapwood_block::{Device, check_range};

use crate::cipher::{IV_UNIT, SectorCipher};
use crate::{Error, Result};

/// Most bytes that are encrypted at once.
const PIECE: usize = 1 << 20;

/// The position of a volume's data, and its encryption.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) cipher: String,
    /// Bytes from the start of the device.
    pub(crate) offset: u64,
    /// Bytes; `None` is up to the end of the device.
    pub(crate) size: Option<u64>,
    /// Bytes of a sector.
    pub(crate) sector: u64,
    /// Number of the first sector in the cipher.
    pub(crate) first_iv: u64,
}

/// The data of an encrypted volume. Discards do nothing, because they would reveal which blocks are
/// in use.
///
/// A write of a part of a sector first reads the whole sector. The lock `partial` excludes all
/// other writes meanwhile.
pub struct CryptDevice {
    below: Arc<dyn Device>,
    cipher: SectorCipher,
    /// Bytes from the start of the device below.
    offset: u64,
    /// Bytes.
    size: u64,
    /// Bytes of a sector.
    sector: usize,
    first_iv: u64,
    partial: RwLock<()>,
}

impl fmt::Debug for CryptDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CryptDevice")
            .field("below", &self.below)
            .field("offset", &self.offset)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl CryptDevice {
    /// The volume at a place of a device.
    ///
    /// # Errors
    /// [`Error::TooSmall`]; [`Error::Unsupported`]: the cipher.
    pub(crate) fn new(below: Arc<dyn Device>, key: &[u8], place: &Place) -> Result<Self> {
        let too_small = |needed| Error::TooSmall {
            device: below.name().to_owned(),
            size: below.size(),
            needed,
        };
        let rest = below.size().checked_sub(place.offset);
        let rest = rest.ok_or_else(|| too_small(place.offset))?;
        let size = place.size.unwrap_or(rest);
        if size > rest {
            return Err(too_small(place.offset.saturating_add(size)));
        }
        Ok(Self {
            cipher: SectorCipher::new(&place.cipher, key)?,
            below,
            offset: place.offset,
            size: size - size % place.sector,
            sector: place.sector as usize,
            first_iv: place.first_iv,
            partial: RwLock::new(()),
        })
    }

    /// The device below.
    fn disk(&self) -> &dyn Device {
        &*self.below
    }

    /// Number of the sector at an offset, for the cipher.
    fn iv(&self, offset: u64) -> u64 {
        self.first_iv.wrapping_add(offset / IV_UNIT)
    }

    /// Reads whole sectors.
    fn read_sectors(&self, offset: u64, buf: &mut [u8]) -> sapwood_block::Result<()> {
        self.disk().read_at(self.offset + offset, buf)?;
        self.cipher.decrypt(buf, self.sector, self.iv(offset));
        Ok(())
    }

    /// Writes with `write`, which gets encrypted sectors and their offset on the device below.
    fn write(
        &self,
        offset: u64,
        buf: &[u8],
        write: impl Fn(u64, &[u8]) -> sapwood_block::Result<()>,
    ) -> sapwood_block::Result<()> {
        check_range(self.disk().name(), self.size, offset, buf.len() as u64)?;
        let sector = self.sector as u64;
        let end = offset + buf.len() as u64;
        let is_whole = offset.is_multiple_of(sector) && end.is_multiple_of(sector);
        let (_shared, _alone);
        if is_whole {
            _shared = self.partial.read();
        } else {
            _alone = self.partial.write();
        }
        let mut sectors = Vec::new();
        let mut start = offset - offset % sector;
        while start < end {
            let stop = end.next_multiple_of(sector).min(start + PIECE as u64);
            sectors.resize((stop - start) as usize, 0);
            let (from, to) = (start.max(offset), stop.min(end));
            if from > start {
                self.read_sectors(start, &mut sectors[..self.sector])?;
            }
            if to < stop {
                let last = sectors.len() - self.sector;
                self.read_sectors(stop - sector, &mut sectors[last..])?;
            }
            sectors[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&buf[(from - offset) as usize..(to - offset) as usize]);
            self.cipher
                .encrypt(&mut sectors, self.sector, self.iv(start));
            write(self.offset + start, &sectors)?;
            start = stop;
        }
        Ok(())
    }
}

impl sapwood_block::Layer for CryptDevice {
    type Below = dyn Device;

    fn below(&self) -> &Self::Below {
        &*self.below
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> sapwood_block::Result<()> {
        check_range(self.disk().name(), self.size, offset, buf.len() as u64)?;
        let sector = self.sector as u64;
        let end = offset + buf.len() as u64;
        if offset.is_multiple_of(sector) && end.is_multiple_of(sector) {
            return self.read_sectors(offset, buf);
        }
        let mut sectors = Vec::new();
        let mut start = offset - offset % sector;
        while start < end {
            let stop = end.next_multiple_of(sector).min(start + PIECE as u64);
            sectors.resize((stop - start) as usize, 0);
            self.read_sectors(start, &mut sectors)?;
            let (from, to) = (start.max(offset), stop.min(end));
            buf[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&sectors[(from - start) as usize..(to - start) as usize]);
            start = stop;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> sapwood_block::Result<()> {
        self.write(offset, buf, |at, sectors| self.disk().write_at(at, sectors))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> sapwood_block::Result<()> {
        self.write(offset, &bufs.concat(), |at, sectors| {
            self.disk().write_at(at, sectors)
        })
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> sapwood_block::Result<()> {
        self.write(offset, buf, |at, sectors| {
            self.disk().write_fua(at, sectors)
        })
    }

    fn discard(&self, offset: u64, len: u64) -> sapwood_block::Result<()> {
        check_range(self.disk().name(), self.size, offset, len)
    }

    /// Refuses to grow: unwritten sectors read as noise, not as zeros.
    fn grow(&self, size: u64) -> sapwood_block::Result<()> {
        check_range(self.disk().name(), self.size, 0, size)
    }

    fn renew_size(&self) -> sapwood_block::Result<u64> {
        Ok(self.size)
    }

    fn has_no_data(&self, _offset: u64, _len: u64) -> bool {
        false
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.disk().will_read(self.offset + offset, len);
    }

    fn drop_cached(&self, offset: u64, len: u64) {
        self.disk().drop_cached(self.offset + offset, len);
    }

    fn watch(&self, offset: u64, len: u64) -> sapwood_block::Result<()> {
        check_range(self.disk().name(), self.size, offset, len)?;
        self.disk().watch(self.offset + offset, len)
    }

    fn write_behind(&self, offset: u64, len: u64) {
        self.disk().write_behind(self.offset + offset, len);
    }
}
