//! Volumes: devices, the map from logical addresses to them, copies and their repair.
//!
//! # How it works
//! Everything above speaks logical addresses. A logical range is cut at chunk borders and, in
//! striped profiles, at stripe borders; each part is read from one copy or written to all. Who
//! reads knows how to judge what it got (checksums) and asks for the next copy if it is bad;
//! [`Volume::repair`] then writes the good bytes over the bad copy. Tree blocks are judged here
//! ([`Volume::read_tree_block`]). While a mount begins nothing is repaired: one that is refused has
//! written nothing. What was found bad by then is looked at again afterwards
//! ([`Volume::begin_repairs`]). Nothing assumes one device or one copy; that only one device
//! is accepted is decided in `superblock`.

mod map;
pub(crate) mod superblock;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sapwood_block::{Device, PATIENCE, PatientDevice, patiently};
use sapwood_btrfs_format::{
    BlockError, ChecksumKind, ChunkItem, Expect, Header, SuperBlock, validate_block,
    validate_content,
};

use crate::lock::{Rank, RankedMutex, RankedRwLock};
use crate::{Error, Result};
pub(crate) use map::{ChunkMap, Piece, copies};
#[cfg(test)]
pub(crate) use superblock::write_all as write_supers_to;

/// Tree blocks with a bad copy that are kept in mind until repairs begin.
const MOST_BAD: usize = 4096;

/// One device of a volume.
#[derive(Debug)]
pub(crate) struct VolumeDevice {
    /// Device id.
    pub(crate) devid: u64,
    /// The device.
    pub(crate) device: Arc<dyn Device>,
}

/// Sizes and identities that never change while a file system is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    /// Bytes of a tree block.
    pub(crate) nodesize: u32,
    /// Bytes of a sector.
    pub(crate) sectorsize: u32,
    /// Checksum algorithm.
    pub(crate) checksum: ChecksumKind,
    /// fsid that tree blocks carry.
    pub(crate) fsid: [u8; 16],
}

/// What is known of a tree block before it is read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockExpect {
    /// Level.
    pub(crate) level: Option<u8>,
    /// Generation, exactly.
    pub(crate) generation: Option<u64>,
    /// Tree that is read; see [`Expect::owner`].
    pub(crate) owner: Option<u64>,
    /// First key.
    pub(crate) first_key: Option<sapwood_btrfs_format::Key>,
}

/// Devices and chunk map of a file system.
#[derive(Debug)]
pub(crate) struct Volume {
    devices: Vec<VolumeDevice>,
    chunks: RankedRwLock<ChunkMap>,
    geometry: Geometry,
    read_only: bool,
    /// Tree blocks with a bad copy, while nothing is repaired yet.
    bad: RankedMutex<Option<Vec<(u64, BlockExpect)>>>,
    repaired: AtomicU64,
    chunk_tree_uuid: OnceLock<[u8; 16]>,
    /// How long writes of metadata wait for space on the host.
    patience: OnceLock<Duration>,
}

impl Volume {
    /// Reads the newest superblock, refuses what cannot be handled, and maps the system chunks;
    /// the others are added when the chunk tree is read.
    ///
    /// # Errors
    /// Those of [`superblock::read_newest`] and [`superblock::check_features`];
    /// [`Error::Superblock`] for an unreadable system chunk or a device smaller than it says.
    pub(crate) fn open(
        devices: Vec<Arc<dyn Device>>,
        read_only: bool,
    ) -> Result<(Self, SuperBlock)> {
        let first = devices.first().ok_or(Error::NoDevice)?;
        let sb = superblock::read_newest(&**first)?;
        let bad = |reason: String| Error::Superblock {
            device: first.name().to_owned(),
            reason,
        };
        superblock::check_features(&sb, read_only)?;
        if devices.len() > 1 {
            return Err(Error::SeveralDevices(devices.len() as u64));
        }
        let need = sb.dev_item.total_bytes.get();
        if need > first.size() {
            let have = first.size();
            return Err(bad(format!(
                "file system of {need} bytes on a device of {have}"
            )));
        }
        let checksum = sb.checksum_kind();
        let checksum = checksum.ok_or_else(|| bad("unknown checksum algorithm".to_owned()))?;
        let mut chunks = ChunkMap::default();
        for chunk in sb.sys_chunks() {
            let (logical, chunk) = chunk.map_err(|e| bad(e.to_string()))?;
            chunks.add(logical, chunk)?;
        }
        let volume = Self {
            geometry: Geometry {
                nodesize: sb.nodesize.get(),
                sectorsize: sb.sectorsize.get(),
                checksum,
                fsid: sb.tree_fsid(),
            },
            chunks: RankedRwLock::new(Rank::ChunkMap, chunks),
            read_only: read_only || first.read_only(),
            devices: vec![VolumeDevice {
                devid: sb.dev_item.devid.get(),
                device: first.clone(),
            }],
            bad: RankedMutex::new(Rank::Leaf, Some(Vec::new())),
            repaired: AtomicU64::new(0),
            chunk_tree_uuid: OnceLock::new(),
            patience: OnceLock::new(),
        };
        Ok((volume, sb))
    }

    /// Sizes and identities.
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Devices.
    pub(crate) fn devices(&self) -> &[VolumeDevice] {
        &self.devices
    }

    /// Adds a chunk to the map.
    ///
    /// # Errors
    /// Those of [`ChunkMap::add`]; [`Error::MissingDevice`], [`Error::BadChunk`] if it lies past
    /// the end of its device.
    pub(crate) fn add_chunk(&self, logical: u64, chunk: ChunkItem) -> Result<()> {
        for stripe in &chunk.stripes {
            let devid = stripe.devid;
            let device = self.device(logical, devid)?;
            let striped = map::copies(&chunk) != chunk.stripes.len();
            let end = stripe.offset.checked_add(chunk.length);
            if !striped && end.is_none_or(|end| end > device.size()) {
                let reason = format!("reaches past the end of device {devid}");
                return Err(Error::BadChunk { logical, reason });
            }
        }
        self.chunks.write().add(logical, chunk)
    }

    /// Removes a chunk from the map.
    pub(crate) fn remove_chunk(&self, logical: u64) -> Option<Arc<ChunkItem>> {
        self.chunks.write().remove(logical)
    }

    /// The chunk that a logical address lies in, with where it begins.
    ///
    /// # Errors
    /// [`Error::Unmapped`].
    pub(crate) fn chunk_at(&self, logical: u64) -> Result<(u64, Arc<ChunkItem>)> {
        let found = self.chunks.read().find(logical);
        found.ok_or(Error::Unmapped { logical, len: 1 })
    }

    /// All chunks in order of their logical addresses.
    pub(crate) fn chunks(&self) -> Vec<(u64, Arc<ChunkItem>)> {
        self.chunks.read().all()
    }

    fn device(&self, logical: u64, devid: u64) -> Result<&dyn Device> {
        let found = self.devices.iter().find(|d| d.devid == devid);
        let found = found.ok_or(Error::MissingDevice { logical, devid })?;
        Ok(&*found.device)
    }

    /// Number of copies of each byte at a logical address.
    ///
    /// # Errors
    /// [`Error::Unmapped`].
    pub(crate) fn mirrors(&self, logical: u64, len: u64) -> Result<usize> {
        let (at, chunk) = self.chunk_at(logical)?;
        if logical - at + len > chunk.length {
            let (_, next) = self.chunk_at(at + chunk.length)?;
            return Ok(map::copies(&chunk).min(map::copies(&next)));
        }
        Ok(map::copies(&chunk))
    }

    /// Where a logical range lies: one piece after another for copy `mirror`.
    ///
    /// # Errors
    /// [`Error::Unmapped`], also if there is no such copy.
    pub(crate) fn map(&self, logical: u64, len: u64, mirror: usize) -> Result<Vec<Piece>> {
        let mut pieces = Vec::with_capacity(1);
        self.each_piece(logical, len, mirror, &mut |_, piece| {
            pieces.push(piece);
            Ok(())
        })?;
        Ok(pieces)
    }

    /// Calls `each` with the offset within the range and the piece.
    fn each_piece(
        &self,
        logical: u64,
        len: u64,
        mirror: usize,
        each: &mut dyn FnMut(u64, Piece) -> Result<()>,
    ) -> Result<()> {
        let unmapped = || Error::Unmapped { logical, len };
        let end = logical.checked_add(len).ok_or_else(unmapped)?;
        let mut at = logical;
        while at < end {
            let (start, chunk) = self.chunk_at(at)?;
            // A range may go from a chunk with more copies into one with fewer.
            let piece = map::piece(&chunk, at - start, end - at, mirror).ok_or_else(unmapped)?;
            each(at - logical, piece)?;
            at += piece.len;
        }
        Ok(())
    }

    /// Reads copy `mirror` (from 0) of a logical range.
    ///
    /// # Errors
    /// [`Error::Unmapped`], [`Error::Device`].
    pub(crate) fn read(&self, logical: u64, buf: &mut [u8], mirror: usize) -> Result<()> {
        let len = buf.len() as u64;
        self.each_piece(logical, len, mirror, &mut |at, piece| {
            let (from, to) = (at as usize, (at + piece.len) as usize);
            let device = self.device(logical, piece.devid)?;
            let part = buf.get_mut(from..to).unwrap_or_default();
            Ok(device.read_at(piece.physical, part)?)
        })
    }

    /// Tells the devices that the first copy of a logical range will be read soon.
    pub(crate) fn will_read(&self, logical: u64, len: u64) {
        self.hint(logical, len, 0, |device, at, len| device.will_read(at, len));
    }

    /// Tells the devices that a big writeback wrote all copies of a logical range.
    pub(crate) fn write_behind(&self, logical: u64, len: u64) {
        for mirror in 0..self.mirrors(logical, len).unwrap_or(0) {
            self.hint(logical, len, mirror, |device, at, len| {
                device.write_behind(at, len);
            });
        }
    }

    fn hint(&self, logical: u64, len: u64, mirror: usize, tell: impl Fn(&dyn Device, u64, u64)) {
        // A range that is not mapped is found out by the thread that reads or writes it.
        let _ = self.each_piece(logical, len, mirror, &mut |_, piece| {
            let device = self.device(logical, piece.devid)?;
            tell(device, piece.physical, piece.len);
            Ok(())
        });
    }

    /// Writes buffers one after another from `logical` on, to all copies, each with as few
    /// requests as the map allows.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn write_vectored(&self, logical: u64, bufs: &[&[u8]]) -> Result<()> {
        let len = bufs.iter().map(|b| b.len() as u64).sum();
        if len == 0 {
            return Ok(());
        }
        for mirror in 0..self.mirrors(logical, len)? {
            self.write_mirror(logical, bufs, len, mirror)?;
        }
        Ok(())
    }

    /// How long writes of metadata wait for space on the host; set once.
    pub(crate) fn set_patience(&self, patience: Duration) {
        let _ = self.patience.set(patience);
    }

    fn patience(&self) -> Duration {
        self.patience.get().copied().unwrap_or(PATIENCE)
    }

    /// As [`write_vectored`](Self::write_vectored), for metadata: waits for space on the host.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn write_metadata(&self, logical: u64, bufs: &[&[u8]]) -> Result<()> {
        let len = bufs.iter().map(|b| b.len() as u64).sum();
        if len == 0 {
            return Ok(());
        }
        for mirror in 0..self.mirrors(logical, len)? {
            self.each_piece(logical, len, mirror, &mut |at, piece| {
                let device = self.device(logical, piece.devid)?;
                let part = cut(bufs, at as usize, piece.len as usize);
                let write = || device.write_vectored_at(piece.physical, &part);
                Ok(patiently(self.patience(), write)?)
            })?;
        }
        Ok(())
    }

    fn write_mirror(&self, logical: u64, bufs: &[&[u8]], len: u64, mirror: usize) -> Result<()> {
        self.each_piece(logical, len, mirror, &mut |at, piece| {
            let device = self.device(logical, piece.devid)?;
            if at == 0 && piece.len == len {
                return Ok(device.write_vectored_at(piece.physical, bufs)?);
            }
            let part = cut(bufs, at as usize, piece.len as usize);
            Ok(device.write_vectored_at(piece.physical, &part)?)
        })
    }

    /// From now on bad copies are repaired; those that were found before are read again.
    pub(crate) fn begin_repairs(&self) {
        let bad = self.bad.lock().take().unwrap_or_default();
        for (logical, expect) in bad {
            // A thread that needs the block is told what is wrong with it.
            let _ = self.read_tree_block(logical, &expect);
        }
    }

    /// Writes good bytes over one bad copy. Does nothing on a read-only volume, and before
    /// [`begin_repairs`](Self::begin_repairs).
    ///
    /// # Errors
    /// [`Error::Unmapped`], [`Error::Device`].
    pub(crate) fn repair(&self, logical: u64, good: &[u8], mirror: usize) -> Result<()> {
        if self.read_only || self.bad.lock().is_some() {
            return Ok(());
        }
        self.write_mirror(logical, &[good], good.len() as u64, mirror)?;
        self.repaired.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Makes all completed writes durable.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn flush(&self) -> Result<()> {
        for device in &self.devices {
            device.device.flush()?;
        }
        Ok(())
    }

    /// Discards all copies of a logical range.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn discard(&self, logical: u64, len: u64) -> Result<()> {
        for mirror in 0..self.mirrors(logical, len)? {
            self.each_piece(logical, len, mirror, &mut |_, piece| {
                let device = self.device(logical, piece.devid)?;
                Ok(device.discard(piece.physical, piece.len)?)
            })?;
        }
        Ok(())
    }

    /// Writes all copies of the superblock to all devices. The caller flushed before. When this
    /// returns the first copy is durable.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn write_supers(&self, sb: &SuperBlock) -> Result<()> {
        for device in &self.devices {
            let patient = PatientDevice::new(Arc::clone(&device.device), self.patience());
            superblock::write_all(&patient, sb)?;
        }
        Ok(())
    }

    /// Writes the superblock of a log: the first copy on each device. The caller flushed before.
    /// Durable when this returns.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn write_log_super(&self, sb: &SuperBlock) -> Result<()> {
        for device in &self.devices {
            let patient = PatientDevice::new(Arc::clone(&device.device), self.patience());
            superblock::write_first(&patient, sb)?;
        }
        Ok(())
    }

    fn expect(&self, logical: u64, expect: &BlockExpect) -> Expect {
        Expect {
            logical,
            nodesize: self.geometry.nodesize,
            sectorsize: self.geometry.sectorsize,
            fsid: self.geometry.fsid,
            checksum: self.geometry.checksum,
            level: expect.level,
            owner: expect.owner,
            min_generation: expect.generation,
            max_generation: expect.generation,
            first_key: expect.first_key,
        }
    }

    /// Reads and judges a tree block; tries every copy, and repairs the bad ones once a good one
    /// is found.
    ///
    /// # Errors
    /// [`Error::Unmapped`]; if no copy is good, [`Error::BadBlock`] or [`Error::Device`] of the
    /// first.
    pub(crate) fn read_tree_block(&self, logical: u64, want: &BlockExpect) -> Result<Arc<[u8]>> {
        let nodesize = self.geometry.nodesize as usize;
        let expect = self.expect(logical, want);
        // Zeroed in place: one allocation, no copy.
        let mut block: Arc<[u8]> = std::iter::repeat_n(0, nodesize).collect();
        let mut first: Option<Error> = None;
        let mirrors = self.mirrors(logical, nodesize as u64)?;
        for mirror in 0..mirrors {
            let bytes = Arc::make_mut(&mut block);
            let result = self.read(logical, bytes, mirror).and_then(|()| {
                validate_block(bytes, &expect).map_err(|e| self.bad_block(logical, mirror, e))
            });
            match result {
                Ok(()) => {
                    self.repair_others(logical, &block, mirror, want);
                    self.note_chunk_tree_uuid(&block);
                    return Ok(block);
                }
                Err(err) => {
                    log::warn!("copy {} of tree block {logical}: {err}", mirror + 1);
                    first.get_or_insert(err);
                }
            }
        }
        let len = nodesize as u64;
        Err(first.unwrap_or(Error::Unmapped { logical, len }))
    }

    /// uuid of the chunk tree, as all tree blocks carry it; zeros before the first was read.
    pub(crate) fn chunk_tree_uuid(&self) -> [u8; 16] {
        self.chunk_tree_uuid.get().copied().unwrap_or_default()
    }

    fn note_chunk_tree_uuid(&self, block: &[u8]) {
        if let Ok((header, _)) = Header::split(block) {
            self.chunk_tree_uuid.get_or_init(|| header.chunk_tree_uuid);
        }
    }

    /// Copies before `good` were just found bad.
    fn repair_others(&self, logical: u64, block: &[u8], good: usize, want: &BlockExpect) {
        if good == 0 || self.read_only {
            return;
        }
        if let Some(bad) = &mut *self.bad.lock() {
            if bad.len() < MOST_BAD {
                bad.push((logical, *want));
            }
            return;
        }
        for mirror in 0..good {
            match self.repair(logical, block, mirror) {
                Ok(()) => log::warn!("tree block {logical}: copy {} repaired", mirror + 1),
                Err(err) => log::warn!("tree block {logical}: repair failed: {err}"),
            }
        }
    }

    fn bad_block(&self, logical: u64, mirror: usize, reason: BlockError) -> Error {
        let piece = self.map(logical, 1, mirror).unwrap_or_default();
        let piece = piece.first().copied();
        let device = piece.and_then(|p| self.device(logical, p.devid).ok());
        Error::BadBlock {
            device: device.map_or("?", |d| d.name()).to_owned(),
            physical: piece.map_or(0, |p| p.physical),
            reason: Box::new(reason),
        }
    }

    /// Judges a tree block that is about to be written; its checksum may be missing.
    ///
    /// # Errors
    /// [`Error::BadBlockToWrite`].
    pub(crate) fn check_before_write(
        &self,
        logical: u64,
        bytes: &[u8],
        want: &BlockExpect,
    ) -> Result<()> {
        validate_content(bytes, &self.expect(logical, want))
            .map_err(|err| Error::BadBlockToWrite(Box::new(err)))
    }
}

/// The parts of consecutive buffers that lie in `at..at + len`.
fn cut<'b>(bufs: &[&'b [u8]], at: usize, len: usize) -> Vec<&'b [u8]> {
    let (mut start, end) = (0, at + len);
    let mut parts = Vec::new();
    for buf in bufs {
        let (from, to) = (at.max(start), end.min(start + buf.len()));
        if from < to {
            parts.push(buf.get(from - start..to - start).unwrap_or_default());
        }
        start += buf.len();
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn cut_takes_parts_across_buffers() {
        let bufs: [&[u8]; 3] = [b"abc", b"defg", b"h"];
        assert_eq!(cut(&bufs, 2, 5).concat(), b"cdefg");
        assert_eq!(cut(&bufs, 3, 5).concat(), b"defgh");
        assert_eq!(cut(&bufs, 0, 3), [b"abc"]);
    }
}
