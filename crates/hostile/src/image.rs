//! Small images that the kernel filled with every kind of inode and extent, and the places of their
//! tree blocks.

use std::io::Read;
use std::sync::Arc;

use sapwood_block::{Device, MemoryDevice, PAGE_SIZE};
use sapwood_btrfs::inspect::{self, TreeChoice};
use sapwood_btrfs_format::{Block, ChecksumKind, ChunkItem, SUPER_SIZE, SuperBlock, kind};

/// 24 MiB, mixed block groups, nodes of 4 KiB, holes with items, v1 space cache, quotas.
pub const MIXED: &[u8] = include_bytes!("../images/mixed.img.zst");
/// 128 MiB, as `mkfs.btrfs` makes it by default: nodes of 16 KiB, metadata twice.
pub const DEFAULT: &[u8] = include_bytes!("../images/default.img.zst");

/// Offset of the first superblock.
pub const SUPER_OFFSET: u64 = 64 << 10;

/// A tree block of the image.
#[derive(Debug, Clone)]
pub struct TreeBlockPlace {
    /// Logical address.
    pub logical: u64,
    /// Byte offsets of its copies on the device.
    pub copies: Vec<u64>,
    /// Byte ranges of the block with a meaning; the rest is free space.
    pub used: [std::ops::Range<usize>; 2],
}

/// A good image.
#[derive(Debug)]
pub struct GoodImage {
    /// Its content. Work on a [`MemoryDevice::snapshot`] of it.
    pub device: MemoryDevice,
    /// Its superblock.
    pub super_block: SuperBlock,
    /// Its tree blocks, parents before children.
    pub blocks: Vec<TreeBlockPlace>,
}

impl GoodImage {
    /// Expands one of the images above.
    #[must_use]
    pub fn expand(packed: &[u8]) -> Self {
        let mut size = 0;
        let mut pages = Vec::new();
        let mut reader = zstd::stream::read::Decoder::new(packed).unwrap();
        reader.window_log_max(27).unwrap();
        loop {
            let mut page = Vec::with_capacity(PAGE_SIZE);
            reader
                .by_ref()
                .take(PAGE_SIZE as u64)
                .read_to_end(&mut page)
                .unwrap();
            if page.is_empty() {
                break;
            }
            let at = size;
            size += page.len() as u64;
            if page.iter().any(|byte| *byte != 0) {
                pages.push((at, page));
            }
        }
        let device = MemoryDevice::new(size);
        for (at, page) in pages {
            device.write_at(at, &page).unwrap();
        }
        Self::of(device)
    }

    /// Finds the tree blocks of a good image.
    #[must_use]
    pub fn of(device: MemoryDevice) -> Self {
        let shared: Vec<Arc<dyn Device>> = vec![Arc::new(device.snapshot())];
        let super_block = inspect::super_block(&shared).unwrap();
        let mut found = Vec::new();
        let mut chunks: Vec<(u64, ChunkItem)> =
            super_block.sys_chunks().map(|c| c.unwrap()).collect();
        inspect::walk(&shared, TreeChoice::All, &mut |bytes| {
            let block = Block::new(bytes).unwrap();
            found.push((block.bytenr(), used(&block)));
            if !block.is_leaf() {
                return;
            }
            for slot in 0..block.nritems() {
                let (key, item) = block.entry(slot).unwrap();
                if key.kind == kind::CHUNK_ITEM {
                    chunks.push((key.offset, ChunkItem::parse(item).unwrap()));
                }
            }
        })
        .unwrap();
        let mut blocks: Vec<TreeBlockPlace> = Vec::new();
        for (logical, used) in found {
            if blocks.iter().any(|place| place.logical == logical) {
                continue;
            }
            let (start, chunk) = chunks
                .iter()
                .find(|(start, chunk)| (*start..start + chunk.length).contains(&logical))
                .unwrap();
            let stripes = chunk.stripes.iter();
            blocks.push(TreeBlockPlace {
                logical,
                copies: stripes.map(|s| s.offset + (logical - start)).collect(),
                used,
            });
        }
        Self {
            device,
            super_block,
            blocks,
        }
    }

    /// Bytes of a tree block.
    #[must_use]
    pub fn nodesize(&self) -> usize {
        self.super_block.nodesize.get() as usize
    }

    /// Checksum algorithm.
    #[must_use]
    pub fn checksum(&self) -> ChecksumKind {
        self.super_block.checksum_kind().unwrap()
    }

    /// The bytes of a tree block.
    #[must_use]
    pub fn block(&self, place: &TreeBlockPlace) -> Vec<u8> {
        let mut bytes = vec![0; self.nodesize()];
        self.device.read_at(place.copies[0], &mut bytes).unwrap();
        bytes
    }

    /// Changes a block on `device` in all its copies; `reseal` makes its checksum right again.
    pub fn edit(
        &self,
        device: &MemoryDevice,
        place: &TreeBlockPlace,
        reseal: bool,
        change: impl FnOnce(&mut [u8]),
    ) {
        let mut bytes = vec![0; self.nodesize()];
        device.read_at(place.copies[0], &mut bytes).unwrap();
        change(&mut bytes);
        if reseal {
            self.checksum().seal_block(&mut bytes);
        }
        for copy in &place.copies {
            device.write_at(*copy, &bytes).unwrap();
        }
    }

    /// Changes the superblock on `device` in all its copies.
    pub fn edit_super(&self, device: &MemoryDevice, reseal: bool, change: impl FnOnce(&mut [u8])) {
        let mut bytes = vec![0; SUPER_SIZE];
        device.read_at(SUPER_OFFSET, &mut bytes).unwrap();
        change(&mut bytes);
        let copies = [SUPER_OFFSET, 64 << 20].into_iter();
        for offset in copies.filter(|at| at + SUPER_SIZE as u64 <= device.size()) {
            let bytenr = offset - SUPER_OFFSET;
            let mut copy = bytes.clone();
            // Each copy has its own address; a changed address stays changed.
            for (to, add) in copy[48..56].iter_mut().zip(bytenr.to_le_bytes()) {
                *to = to.wrapping_add(add);
            }
            if reseal {
                // A changed algorithm must not be what saves us from the change.
                let kind = SuperBlock::read(&copy).unwrap().checksum_kind();
                kind.unwrap_or(self.checksum()).seal_block(&mut copy);
            }
            device.write_at(offset, &copy).unwrap();
        }
    }
}

/// Header, keys and pointers; data of items.
fn used(block: &Block<'_>) -> [std::ops::Range<usize>; 2] {
    const HEADER: usize = 101;
    let entry = if block.is_leaf() { 25 } else { 33 };
    let items = block.items().iter();
    let data = items.map(|item| item.offset.get() as usize + HEADER).min();
    let nodesize = block.nodesize();
    [
        0..HEADER + block.nritems() * entry,
        data.unwrap_or(nodesize)..nodesize,
    ]
}
