//! Builds the tree of a device, in one pass over its data.

use sapwood_block::Device;

use crate::digest::RootHash;
use crate::header::{HEADER_SIZE, Header, Params};
use crate::layout::{Layout, Level};
use crate::{Error, Result};

/// Bytes of data that are read at once.
const PIECE: u64 = 1 << 20;

/// Callback with the number of data bytes hashed so far.
pub type OnHashed<'p> = dyn FnMut(u64) + 'p;

/// Writes the hash tree of all of `data` to `hashes`, with a superblock at its start, and flushes
/// it. Returns the superblock and the root hash. `hashes` grows as needed. Without a `uuid`, the
/// first bytes of the root hash are the UUID, with the version and variant of a name-based one.
///
/// # Errors
/// `data` does not consist of blocks, or is empty; `hashes` cannot grow; I/O errors of the devices.
pub fn build(
    data: &dyn Device,
    hashes: &dyn Device,
    params: &Params,
    uuid: Option<[u8; 16]>,
    hashed: &mut OnHashed<'_>,
) -> Result<(Header, RootHash)> {
    params.check()?;
    let block = u64::from(params.data_block);
    let size = data.size();
    if size == 0 || !size.is_multiple_of(block) {
        return Err(Error::Unaligned {
            device: data.name().to_owned(),
            size,
            block: params.data_block,
        });
    }
    let mut header = Header {
        params: params.clone(),
        data_blocks: size / block,
        uuid: uuid.unwrap_or_default(),
    };
    let layout = Layout::new(&header)?;
    hashes.grow(layout.blocks * u64::from(params.hash_block))?;
    let mut tree = Tree::new(hashes, params, &layout);
    let mut piece = vec![0; PIECE as usize];
    let mut at = 0;
    while at < size {
        let len = (size - at).min(PIECE) as usize;
        let bytes = &mut piece[..len];
        data.read_at(at, bytes)?;
        for block in bytes.chunks_exact(params.data_block as usize) {
            tree.add(0, &params.algorithm.digest(&params.salt, block))?;
        }
        at += len as u64;
        hashed(at);
    }
    let root = tree.finish()?;
    if uuid.is_none()
        && let Some(first) = root.0.first_chunk::<16>()
    {
        header.uuid = *first;
        header.uuid[6] = header.uuid[6] & 0x0f | 0x80;
        header.uuid[8] = header.uuid[8] & 0x3f | 0x80;
    }
    let mut first =
        vec![0; (HEADER_SIZE as u64).next_multiple_of(params.hash_block.into()) as usize];
    first[..HEADER_SIZE].copy_from_slice(&header.bytes());
    hashes.write_at(0, &first)?;
    hashes.flush()?;
    Ok((header, root))
}

/// The levels of a tree that is being built.
struct Tree<'b> {
    hashes: &'b dyn Device,
    params: &'b Params,
    levels: Vec<Growing>,
    root: Option<Vec<u8>>,
}

struct Growing {
    place: Level,
    /// Blocks that are written.
    done: u64,
    /// Digests of the current block.
    bytes: Vec<u8>,
}

impl<'b> Tree<'b> {
    fn new(hashes: &'b dyn Device, params: &'b Params, layout: &Layout) -> Self {
        let levels = layout.levels.iter().map(|place| Growing {
            place: *place,
            done: 0,
            bytes: Vec::with_capacity(params.hash_block as usize),
        });
        Self {
            hashes,
            params,
            levels: levels.collect(),
            root: None,
        }
    }

    /// Adds the next digest to a level; above the highest one it is the root hash.
    fn add(&mut self, level: usize, digest: &[u8]) -> Result<()> {
        let Some(growing) = self.levels.get_mut(level) else {
            self.root = Some(digest.to_vec());
            return Ok(());
        };
        growing.bytes.extend_from_slice(digest);
        if growing.bytes.len() >= self.params.hash_block as usize {
            self.write(level)?;
        }
        Ok(())
    }

    /// Writes the current block of a level, filled up with zeros.
    fn write(&mut self, level: usize) -> Result<()> {
        let size = self.params.hash_block;
        let Some(growing) = self.levels.get_mut(level) else {
            return Ok(());
        };
        let mut bytes = std::mem::take(&mut growing.bytes);
        bytes.resize(size as usize, 0);
        let at = growing.place.start + growing.done;
        growing.done += 1;
        self.hashes.write_at(at * u64::from(size), &bytes)?;
        let digest = self.params.algorithm.digest(&self.params.salt, &bytes);
        self.add(level + 1, &digest)
    }

    fn finish(mut self) -> Result<RootHash> {
        for level in 0..self.levels.len() {
            if !self.levels[level].bytes.is_empty() {
                self.write(level)?;
            }
        }
        Ok(RootHash(self.root.unwrap_or_default()))
    }
}
