//! [`VerityDevice`]: verifies every block that it reads.
//!
//! A block of the tree is verified with the block above it, up to the root hash, once. It then stays
//! in a cache of bounded size. A data block is verified each time that it is read.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use sapwood_block::{Device, check_range};

use crate::header::Header;
use crate::layout::Layout;
use crate::{Error, Result, RootHash};

/// Most bytes of verified hash blocks in memory.
const CACHE: usize = 16 << 20;
/// Most bytes of data that are verified at once.
const PIECE: u64 = 1 << 20;

/// A read-only device over data and its hash tree. See the module.
#[derive(Debug)]
pub struct VerityDevice {
    data: Arc<dyn Device>,
    hashes: Arc<dyn Device>,
    header: Header,
    layout: Layout,
    root: RootHash,
    /// Verified blocks of the hash device.
    verified: Mutex<HashMap<u64, Arc<[u8]>>>,
}

impl VerityDevice {
    /// Opens a hash tree whose superblock is at the start of `hashes`.
    ///
    /// # Errors
    /// The errors of [`Header::read`]; a device is too small; the root hash has another length, or
    /// does not match the tree ([`Error::Mismatch`]).
    pub fn open(data: Arc<dyn Device>, hashes: Arc<dyn Device>, root: RootHash) -> Result<Self> {
        let header = Header::read(&*hashes)?;
        let layout = Layout::new(&header)?;
        let expected = header.params.algorithm.size();
        if root.0.len() != expected {
            return Err(Error::RootLength {
                expected: 2 * expected,
                found: 2 * root.0.len(),
            });
        }
        let data_bytes = header.data_blocks * u64::from(header.params.data_block);
        let hash_bytes = layout.blocks * u64::from(header.params.hash_block);
        for (device, needed) in [(&data, data_bytes), (&hashes, hash_bytes)] {
            if device.size() < needed {
                return Err(Error::TooSmall {
                    device: device.name().to_owned(),
                    size: device.size(),
                    needed,
                });
            }
        }
        let device = Self {
            data,
            hashes,
            header,
            layout,
            root,
            verified: Mutex::default(),
        };
        // A wrong root hash is found now, and not at the first read.
        device.expected(0)?;
        Ok(device)
    }

    /// The superblock.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Verifies all data. `verified` gets the bytes so far.
    ///
    /// # Errors
    /// [`Error::Mismatch`] with the first wrong block; I/O errors of the devices.
    pub fn verify_all(&self, verified: &mut dyn FnMut(u64)) -> Result<()> {
        let size = Device::size(self);
        let mut piece = vec![0; PIECE as usize];
        let mut at = 0;
        while at < size {
            let len = (size - at).min(PIECE) as usize;
            self.read_verified(at, &mut piece[..len])?;
            at += len as u64;
            verified(at);
        }
        Ok(())
    }

    /// Reads whole data blocks.
    fn read_verified(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.data.read_at(offset, buf)?;
        let params = &self.header.params;
        let first = offset / u64::from(params.data_block);
        for (block, bytes) in (first..).zip(buf.chunks_exact(params.data_block as usize)) {
            if params.algorithm.digest(&params.salt, bytes) != self.expected(block)? {
                return Err(Error::Mismatch {
                    device: self.data.name().to_owned(),
                    block,
                    above: "hash tree",
                });
            }
        }
        Ok(())
    }

    /// The digest that a data block must have, from a verified hash block.
    fn expected(&self, block: u64) -> Result<Vec<u8>> {
        self.digest_in(0, block)
    }

    /// The digest number `index` of a level; above the highest level it is the root hash.
    fn digest_in(&self, level: usize, index: u64) -> Result<Vec<u8>> {
        let Some(place) = self.layout.levels.get(level) else {
            return Ok(self.root.0.clone());
        };
        let (nth, slot) = (index / self.layout.per_block, index % self.layout.per_block);
        let bytes = self.hash_block(level, nth, place.start + nth)?;
        let size = self.header.params.algorithm.size();
        let start = slot as usize * size;
        Ok(bytes.get(start..start + size).unwrap_or_default().to_vec())
    }

    /// Block number `nth` of a level, at `block` of the hash device.
    fn hash_block(&self, level: usize, nth: u64, block: u64) -> Result<Arc<[u8]>> {
        if let Some(known) = self.verified.lock().get(&block) {
            return Ok(Arc::clone(known));
        }
        let params = &self.header.params;
        let mut bytes = vec![0; params.hash_block as usize];
        self.hashes
            .read_at(block * u64::from(params.hash_block), &mut bytes)?;
        // A level has far fewer blocks than the one below, so the recursion is short.
        if params.algorithm.digest(&params.salt, &bytes) != self.digest_in(level + 1, nth)? {
            let top = level + 1 == self.layout.levels.len();
            return Err(Error::Mismatch {
                device: self.hashes.name().to_owned(),
                block,
                above: if top { "root hash" } else { "hash tree" },
            });
        }
        let bytes: Arc<[u8]> = bytes.into();
        let mut verified = self.verified.lock();
        if verified.len() * bytes.len() >= CACHE {
            verified.clear();
        }
        verified.insert(block, Arc::clone(&bytes));
        Ok(bytes)
    }

    fn refused<T>(&self) -> sapwood_block::Result<T> {
        Err(sapwood_block::Error::ReadOnly {
            device: Device::name(self).to_owned(),
        })
    }
}

impl Device for VerityDevice {
    fn size(&self) -> u64 {
        self.header.data_blocks * u64::from(self.header.params.data_block)
    }

    fn name(&self) -> &str {
        self.data.name()
    }

    fn read_only(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> sapwood_block::Result<()> {
        check_range(
            Device::name(self),
            Device::size(self),
            offset,
            buf.len() as u64,
        )?;
        let block = u64::from(self.header.params.data_block);
        let io = |at: u64, error| match error {
            Error::Device(error) => error,
            error => {
                let error = io::Error::new(io::ErrorKind::InvalidData, error);
                sapwood_block::Error::io(Device::name(self), "verity", at, block, error)
            }
        };
        let end = offset + buf.len() as u64;
        let mut at = offset;
        while at < end {
            let first = at - at % block;
            let stop = end.next_multiple_of(block).min(first + PIECE.max(block));
            let upto = stop.min(end);
            let place = &mut buf[(at - offset) as usize..(upto - offset) as usize];
            if first == at && stop == upto {
                self.read_verified(at, place)
                    .map_err(|error| io(at, error))?;
            } else {
                let mut bytes = vec![0; (stop - first) as usize];
                self.read_verified(first, &mut bytes)
                    .map_err(|error| io(at, error))?;
                let start = (at - first) as usize;
                place.copy_from_slice(&bytes[start..start + place.len()]);
            }
            at = upto;
        }
        Ok(())
    }

    fn write_at(&self, _offset: u64, _buf: &[u8]) -> sapwood_block::Result<()> {
        self.refused()
    }

    fn write_fua(&self, _offset: u64, _buf: &[u8]) -> sapwood_block::Result<()> {
        self.refused()
    }

    fn flush(&self) -> sapwood_block::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> sapwood_block::Result<()> {
        self.refused()
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.data.will_read(offset, len);
    }

    fn release_lock(&self) -> sapwood_block::Result<()> {
        self.hashes.release_lock()?;
        self.data.release_lock()
    }
}
