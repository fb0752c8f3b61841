//! The blocks of a file.

use sapwood_ext4_format::{
    ExtentBounds, ExtentNode, INDIRECT_DIRECT, IndirectGeometry, Inode, InodeFlags,
    extent_block_verify, indirect_pointers,
};

use super::volume::Volume;

/// The content of a file from a block on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mapped {
    /// Data from this block of the device on.
    Data {
        /// Block of the device.
        physical: u64,
        /// Blocks.
        len: u64,
    },
    /// Blocks without data.
    Hole {
        /// Blocks.
        len: u64,
    },
    /// Blocks of unknown place, because a block of the map is damaged.
    Lost {
        /// The damaged block; 0: the map in the inode.
        block: u64,
        /// Blocks.
        len: u64,
    },
}

/// Whether an inode is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    InUse,
    /// It was deleted, which emptied the blocks of its map. Earlier contents of them are in the
    /// journal. Other files may have its blocks now.
    Deleted,
}

/// An inode with its number.
pub(super) type Numbered<'i> = (u32, &'i Inode, Life);

/// The content of an inode from block `at` on.
pub(super) fn find(volume: &Volume, inode: Numbered<'_>, at: u32) -> Mapped {
    if inode.1.flags().contains(InodeFlags::EXTENTS) {
        extents(volume, inode, at)
    } else {
        pointers(volume, inode, at)
    }
}

/// The first content of a block of an inode's metadata that `accept` takes.
pub(super) fn content<T>(
    volume: &Volume,
    life: Life,
    block: u64,
    mut accept: impl FnMut(&[u8]) -> Option<T>,
) -> Option<T> {
    match life {
        Life::Deleted if !volume.is_free(block) => {
            let mut copies = volume.copies.contents(&*volume.device, block);
            copies.find_map(|bytes| accept(&bytes))
        }
        _ => volume.content(block, accept),
    }
}

fn extents(volume: &Volume, (ino, inode, life): Numbered<'_>, at: u32) -> Mapped {
    let geometry = &volume.geometry;
    let first = u64::from(geometry.first_data_block());
    let mut bounds = ExtentBounds::root(first, geometry.blocks_count());
    let seed = geometry.inode_seed(ino, inode.generation());
    let sums = geometry.metadata_csum();
    let mut bytes = inode.block().to_vec();
    let mut block = 0;
    loop {
        let rest = bounds.limit.saturating_sub(u64::from(at)).max(1);
        let Ok(node) = ExtentNode::parse(&bytes, &bounds) else {
            return Mapped::Lost { block, len: rest };
        };
        let Some(index) = node.search(at) else {
            let next = node.logical(0).map_or(bounds.limit, u64::from);
            let len = next.saturating_sub(u64::from(at)).max(1);
            return Mapped::Hole { len };
        };
        if let Some(extent) = node.extent(index) {
            if u64::from(at) >= extent.end() {
                let next = node.logical(index + 1).map_or(bounds.limit, u64::from);
                let len = next.saturating_sub(u64::from(at)).max(1);
                return Mapped::Hole { len };
            }
            let skip = u64::from(at - extent.logical);
            let len = u64::from(extent.len) - skip;
            if extent.unwritten {
                return Mapped::Hole { len };
            }
            let physical = extent.physical + skip;
            return Mapped::Data { physical, len };
        }
        let below = node.index(index).zip(node.child_bounds(index, &bounds));
        let Some((child, below)) = below else {
            return Mapped::Lost { block, len: rest };
        };
        block = child.child;
        bounds = below;
        let good = |bytes: &[u8]| {
            let node = ExtentNode::parse(bytes, &bounds).ok()?;
            let emptied = life == Life::Deleted && node.is_empty();
            let valid = !emptied && (!sums || extent_block_verify(bytes, seed).is_ok());
            valid.then(|| bytes.to_vec())
        };
        let Some(found) = content(volume, life, block, good) else {
            let len = bounds.limit.saturating_sub(u64::from(at)).max(1);
            return Mapped::Lost { block, len };
        };
        bytes = found;
    }
}

fn pointers(volume: &Volume, (_, inode, life): Numbered<'_>, at: u32) -> Mapped {
    let geometry = IndirectGeometry::new(volume.geometry.block_size());
    let Some(path) = geometry.path(at) else {
        return Mapped::Hole { len: u64::MAX >> 1 };
    };
    let blocks = volume.geometry.blocks_count();
    let mut pointers: Vec<u32> = (0..15).map(|word| inode.block_word(word)).collect();
    let mut block = 0;
    let offsets = path.offsets();
    for (level, offset) in offsets.iter().enumerate() {
        let below = (offsets.len() - 1 - level) as u8;
        let span = geometry.span(below).max(1);
        let pointer = pointers.get(*offset as usize).copied().unwrap_or(0);
        let within = if level == 0 && *offset < INDIRECT_DIRECT {
            0
        } else {
            offsets[level + 1..]
                .iter()
                .enumerate()
                .fold(0, |sum, (deeper, offset)| {
                    let below = below - 1 - deeper as u8;
                    sum + u64::from(*offset) * geometry.span(below).max(1)
                })
        };
        let len = span.saturating_sub(within).max(1);
        if pointer == 0 {
            return Mapped::Hole { len };
        }
        if u64::from(pointer) >= blocks {
            return Mapped::Lost { block, len };
        }
        if below == 0 {
            return Mapped::Data {
                physical: pointer.into(),
                len: contiguous(&pointers, *offset as usize),
            };
        }
        block = pointer.into();
        let all = match life {
            Life::InUse => volume.block(block).and_then(|bytes| words(&bytes)),
            Life::Deleted => content(volume, life, block, |bytes| {
                words(bytes).filter(|words| words.iter().any(|word| *word != 0))
            }),
        };
        let Some(all) = all else {
            return Mapped::Lost { block, len };
        };
        pointers = all;
    }
    Mapped::Lost { block, len: 1 }
}

/// The pointers of a block.
fn words(bytes: &[u8]) -> Option<Vec<u32>> {
    let pointers = indirect_pointers(bytes).ok()?;
    Some(pointers.iter().map(|pointer| pointer.get()).collect())
}

/// Number of pointers from an index on that refer to consecutive blocks. Of the inode's pointers
/// only the direct ones count.
fn contiguous(pointers: &[u32], from: usize) -> u64 {
    let end = if pointers.len() == 15 {
        INDIRECT_DIRECT as usize
    } else {
        pointers.len()
    };
    let run = pointers.get(from..end).unwrap_or_default();
    let pairs = run.windows(2);
    1 + pairs
        .take_while(|pair| pair[0].checked_add(1) == Some(pair[1]))
        .count() as u64
}
