//! [`Qcow2Device`]: the disk in a qcow2 file, as a device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};

use super::compressed::unpack;
use super::header::{AUTOCLEAR_AT, CORRUPT, DIRTY, Header, set_field};
use super::repair;
use super::tables::{Mapping, Tables};
use crate::Qcow2Error;
use crate::error::{check_range, check_writable};
use crate::{Device, DiskFormat, Error, Result};

/// The disk in a qcow2 file. See the module.
#[derive(Debug)]
pub struct Qcow2Device {
    file: Arc<dyn Device>,
    backing: Option<Arc<dyn Device>>,
    size: u64,
    cluster: u64,
    zstd: bool,
    tables: RwLock<Tables>,
    failed: AtomicBool,
}

/// A part of a request that lies in one cluster.
#[derive(Clone, Copy)]
struct Piece {
    cluster: u64,
    /// Offset in the cluster.
    within: u64,
    len: usize,
}

impl Qcow2Device {
    /// Opens the disk in a file. It is read-only if the file is. `backing` has the content of
    /// clusters that the file does not have. No path in the file is ever followed.
    ///
    /// # Errors
    /// [`Error::Qcow2`]: the file is damaged, needs an unsupported feature, or a backing file that
    /// is not given.
    pub fn open(file: Arc<dyn Device>, backing: Option<Arc<dyn Device>>) -> Result<Self> {
        let failed = |why| Error::qcow2(file.name(), why);
        let header = Header::open(&*file)?;
        if let (Some(name), None) = (&header.backing, &backing) {
            let name = name.clone();
            return Err(failed(Qcow2Error::Backing { name }));
        }
        let writable = !file.read_only();
        if writable && header.incompatible & CORRUPT != 0 {
            return Err(failed(Qcow2Error::Corrupt));
        }
        let dirty = header.incompatible & DIRTY != 0;
        let autoclear = header.autoclear;
        let mut device = Self {
            size: header.size,
            cluster: header.cluster(),
            zstd: header.zstd,
            tables: RwLock::new(Tables::read(&*file, header)?),
            backing,
            file,
            failed: AtomicBool::new(false),
        };
        if writable && dirty {
            repair::counts(&*device.file, device.tables.get_mut())?;
        }
        if writable && autoclear != 0 {
            // Bitmaps would not include the writes.
            set_field(&*device.file, AUTOCLEAR_AT, &[0; 8])?;
        }
        Ok(device)
    }

    fn pieces(&self, offset: u64, len: usize) -> impl Iterator<Item = Piece> + use<> {
        let size = self.cluster;
        let end = offset + len as u64;
        let mut at = offset;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let within = at % size;
                let len = (size - within).min(end - at);
                let cluster = at / size;
                at += len;
                Piece {
                    cluster,
                    within,
                    len: len as usize,
                }
            })
        })
    }

    /// The locked tables, and the mapping of a cluster.
    fn find(&self, cluster: u64) -> Result<(RwLockReadGuard<'_, Tables>, Mapping)> {
        loop {
            let tables = self.tables.read();
            if let Some(mapping) = tables.find(cluster) {
                return Ok((tables, mapping));
            }
            drop(tables);
            self.tables.write().load(&*self.file, cluster)?;
        }
    }

    /// Fills `buf` from a place of the cluster with this mapping.
    fn read_piece(&self, mapping: Mapping, piece: Piece, buf: &mut [u8]) -> Result<()> {
        match mapping {
            Mapping::Zero => buf.fill(0),
            Mapping::Nowhere => self.read_backing(piece, buf)?,
            Mapping::At { offset, .. } => self.read_file(offset, piece.within, buf)?,
            Mapping::Compressed { offset, len } => {
                let damaged = || Error::qcow2(self.name(), Qcow2Error::Compressed { offset });
                let left = self.file.size().checked_sub(offset).ok_or_else(damaged)?;
                let mut packed = vec![0; len.min(left) as usize];
                self.file.read_at(offset, &mut packed)?;
                let mut whole = vec![0; self.cluster as usize];
                if !unpack(self.zstd, &packed, &mut whole) {
                    return Err(damaged());
                }
                let from = piece.within as usize;
                buf.copy_from_slice(whole.get(from..from + buf.len()).unwrap_or_default());
            }
        }
        Ok(())
    }

    /// Refuses the offset of a cluster that is not one of the file.
    fn check_place(&self, offset: u64) -> Result<()> {
        if offset < self.file.size() && offset.is_multiple_of(self.cluster) {
            return Ok(());
        }
        let what = "a cluster";
        let why = Qcow2Error::Place { what, offset };
        Err(Error::qcow2(self.name(), why))
    }

    /// Reads from a cluster of the file. The last one may end early.
    fn read_file(&self, offset: u64, within: u64, buf: &mut [u8]) -> Result<()> {
        self.check_place(offset)?;
        let end = self.file.size();
        let there = end.saturating_sub(offset + within).min(buf.len() as u64) as usize;
        let (data, rest) = buf.split_at_mut(there);
        rest.fill(0);
        self.file.read_at(offset + within, data)
    }

    fn read_backing(&self, piece: Piece, buf: &mut [u8]) -> Result<()> {
        let at = piece.cluster * self.cluster + piece.within;
        let there = self.backed(at).min(buf.len() as u64) as usize;
        let (data, rest) = buf.split_at_mut(there);
        rest.fill(0);
        match &self.backing {
            Some(backing) if there > 0 => backing.read_at(at, data),
            _ => Ok(()),
        }
    }

    /// Bytes of the backing disk from an offset on.
    fn backed(&self, at: u64) -> u64 {
        let size = self.backing.as_ref().map_or(0, |backing| backing.size());
        size.saturating_sub(at)
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<()> {
        check_writable(self.name(), self.read_only())?;
        check_range(self.name(), self.size, offset, buf.len() as u64)?;
        let mut rest = buf;
        for piece in self.pieces(offset, buf.len()) {
            let (part, more) = rest.split_at(piece.len);
            rest = more;
            let (tables, mapping) = self.find(piece.cluster)?;
            if let Mapping::At { offset, own: true } = mapping {
                self.write_place(offset, piece, part)?;
                continue;
            }
            drop(tables);
            self.write_new(piece, part)?;
        }
        Ok(())
    }

    /// Writes in place. The file is long enough for whole clusters afterwards.
    fn write_place(&self, offset: u64, piece: Piece, part: &[u8]) -> Result<()> {
        self.check_place(offset)?;
        self.file.grow(offset + self.cluster)?;
        self.file.write_at(offset + piece.within, part)
    }

    /// Writes a cluster that the file does not have, or shares.
    fn write_new(&self, piece: Piece, part: &[u8]) -> Result<()> {
        let mut tables = self.tables.write();
        if tables.is_full() {
            self.flush_tables(&mut tables)?;
        }
        tables.load(&*self.file, piece.cluster)?;
        let mapping = tables.find(piece.cluster).unwrap_or(Mapping::Nowhere);
        if let Mapping::At { offset, own: true } = mapping {
            return self.write_place(offset, piece, part);
        }
        let reads_zero = match mapping {
            Mapping::Zero => true,
            Mapping::Nowhere => self.backed(piece.cluster * self.cluster) == 0,
            _ => false,
        };
        if reads_zero && part.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let offset = tables.take(&*self.file)?;
        if part.len() as u64 == self.cluster {
            self.file.write_at(offset, part)?;
        } else {
            let mut whole = vec![0; self.cluster as usize];
            let all = Piece {
                within: 0,
                len: whole.len(),
                ..piece
            };
            self.read_piece(mapping, all, &mut whole)?;
            let from = piece.within as usize;
            if let Some(place) = whole.get_mut(from..from + part.len()) {
                place.copy_from_slice(part);
            }
            self.file.write_at(offset, &whole)?;
        }
        tables.put(&*self.file, piece.cluster, offset)
    }

    fn flush_tables(&self, tables: &mut Tables) -> Result<()> {
        if self.failed.load(Ordering::Acquire) {
            return Err(Error::qcow2(self.name(), Qcow2Error::FlushFailed));
        }
        let done = tables.flush(&*self.file);
        if done.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        done
    }
}

impl Device for Qcow2Device {
    fn size(&self) -> u64 {
        self.size
    }

    fn name(&self) -> &str {
        self.file.name()
    }

    fn format(&self) -> DiskFormat {
        DiskFormat::Qcow2
    }

    fn read_only(&self) -> bool {
        self.file.read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        check_range(self.name(), self.size, offset, buf.len() as u64)?;
        let mut rest = buf;
        for piece in self.pieces(offset, rest.len()) {
            let (part, more) = rest.split_at_mut(piece.len);
            rest = more;
            // The tables stay locked, so that the cluster is not used for something else meanwhile.
            let (_tables, mapping) = self.find(piece.cluster)?;
            self.read_piece(mapping, piece, part)?;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        self.write(offset, buf)
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> Result<()> {
        check_writable(self.name(), self.read_only())?;
        check_range(self.name(), self.size, offset, buf.len() as u64)?;
        let mut pieces = self.pieces(offset, buf.len());
        if let (Some(piece), None) = (pieces.next(), pieces.next()) {
            let (tables, mapping) = self.find(piece.cluster)?;
            if let Mapping::At { offset, own: true } = mapping
                && tables.is_stored(piece.cluster)
            {
                return self.file.write_fua(offset + piece.within, buf);
            }
        }
        self.write(offset, buf)?;
        self.flush()
    }

    fn flush(&self) -> Result<()> {
        if self.read_only() {
            return Ok(());
        }
        let mut tables = self.tables.write();
        if tables.is_changed() || self.failed.load(Ordering::Acquire) {
            return self.flush_tables(&mut tables);
        }
        drop(tables);
        let done = self.file.flush();
        if done.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        done
    }

    /// Frees the whole clusters of the range, with the next flush.
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        check_writable(self.name(), self.read_only())?;
        check_range(self.name(), self.size, offset, len)?;
        let last = (offset + len) == self.size;
        let first = offset.div_ceil(self.cluster);
        let end = if last {
            self.size.div_ceil(self.cluster)
        } else {
            (offset + len) / self.cluster
        };
        let mut next = first;
        while next < end {
            let cluster = next;
            if let Some(later) = self.tables.read().next_table(cluster) {
                next = later;
                continue;
            }
            next += 1;
            let (tables, mapping) = self.find(cluster)?;
            if matches!(mapping, Mapping::Nowhere | Mapping::Zero) {
                continue;
            }
            drop(tables);
            let mut tables = self.tables.write();
            if tables.is_full() {
                self.flush_tables(&mut tables)?;
            }
            let backed = self.backed(cluster * self.cluster) > 0;
            tables.drop_cluster(&*self.file, cluster, backed)?;
        }
        Ok(())
    }

    fn drop_cached(&self, offset: u64, len: u64) {
        if len > self.cluster {
            return self.file.drop_cached(0, self.file.size());
        }
        for piece in self.pieces(offset, len as usize) {
            if let Ok((_tables, Mapping::At { offset, .. })) = self.find(piece.cluster) {
                let at = offset.saturating_add(piece.within);
                self.file.drop_cached(at, piece.len as u64);
            }
        }
    }

    fn release_lock(&self) -> Result<()> {
        if !self.read_only() {
            self.flush()?;
        }
        self.file.release_lock()
    }
}

impl Drop for Qcow2Device {
    /// Flushes, so that written data is in the file unless the power fails.
    fn drop(&mut self) {
        if !self.failed.load(Ordering::Acquire)
            && self.tables.get_mut().is_changed()
            && let Err(error) = self.flush()
        {
            log::error!("{}: {error}", self.name());
        }
    }
}
