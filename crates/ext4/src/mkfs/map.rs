//! The map from a new file's blocks to the device's, as extents or as block pointers.

use sapwood_ext4_format::{
    EXTENT_MAX_LEN, EXTENT_ROOT_MAX, Extent, ExtentIndex, ExtentNodeMut, Geometry, I_BLOCK_SIZE,
    INDIRECT_DIRECT, Incompat, IndirectGeometry, InodeFlags, extent_block_max, extent_block_seal,
};

use super::error::MkfsError;
use super::layout::{Layout, Run};

/// A block and its contents.
pub(super) type Block = (u64, Vec<u8>);

/// An allocated file and its map.
pub(super) struct Mapped {
    /// Location of the data, in the order of the file.
    pub(super) data: Vec<Run>,
    /// `i_block`.
    pub(super) root: [u8; I_BLOCK_SIZE],
    pub(super) flags: InodeFlags,
    /// Blocks of the map itself.
    pub(super) blocks: Vec<Block>,
}

impl Mapped {
    /// Blocks of data and map.
    pub(super) fn all_blocks(&self) -> u64 {
        self.data_blocks() + self.blocks.len() as u64
    }

    /// Blocks of data.
    pub(super) fn data_blocks(&self) -> u64 {
        self.data.iter().map(|run| run.len).sum()
    }

    /// The blocks of data, one by one.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.data
            .iter()
            .flat_map(|run| run.start..run.start + run.len)
    }
}

/// Allocates `count` blocks for inode `ino`, the first free ones from `goal` on, and maps them,
/// with extents if the file system has them.
///
/// # Errors
/// [`MkfsError::TooSmall`].
pub(super) fn new(
    layout: &mut Layout,
    ino: u32,
    goal: u64,
    count: u64,
) -> Result<Mapped, MkfsError> {
    let features = layout.geometry.features();
    if features.has_incompat(Incompat::EXTENTS) {
        let data = layout.take(goal, count)?;
        with_extents(layout, ino, goal, data)
    } else {
        // Without extents all blocks of a file are searched for near its inode.
        with_pointers(layout, layout.inode_goal(), count)
    }
}

/// Entries of a node: their first logical blocks, and their contents.
struct Entries {
    depth: u16,
    list: Vec<(u32, u64, u32)>,
}

impl Entries {
    fn write(&self, part: &[(u32, u64, u32)], bytes: &mut [u8]) -> Result<(), MkfsError> {
        let mut node = ExtentNodeMut::init(bytes, self.depth)?;
        for (index, &(logical, block, len)) in part.iter().enumerate() {
            if self.depth == 0 {
                let extent = Extent {
                    logical,
                    len,
                    physical: block,
                    unwritten: false,
                };
                node.insert_extent(index, &extent)?;
            } else {
                let child = block;
                node.insert_index(index, &ExtentIndex { logical, child })?;
            }
        }
        Ok(())
    }
}

fn leaf_entries(data: &[Run]) -> Entries {
    let mut logical = 0_u32;
    let mut list = Vec::new();
    for run in data {
        let mut at = run.start;
        let end = run.start + run.len;
        while at < end {
            let len = (end - at).min(u64::from(EXTENT_MAX_LEN)) as u32;
            list.push((logical, at, len));
            logical = logical.saturating_add(len);
            at += u64::from(len);
        }
    }
    Entries { depth: 0, list }
}

fn with_extents(
    layout: &mut Layout,
    ino: u32,
    goal: u64,
    data: Vec<Run>,
) -> Result<Mapped, MkfsError> {
    let geometry = layout.geometry.clone();
    let block_size = geometry.block_size() as usize;
    let mut entries = leaf_entries(&data);
    let mut blocks = Vec::new();
    while entries.list.len() > usize::from(EXTENT_ROOT_MAX) {
        let mut above = Vec::new();
        for part in entries
            .list
            .chunks(usize::from(extent_block_max(block_size)))
        {
            let number = one(layout, goal)?;
            let mut bytes = vec![0; block_size];
            entries.write(part, &mut bytes)?;
            if geometry.metadata_csum() {
                extent_block_seal(&mut bytes, geometry.inode_seed(ino, 0))?;
            }
            let logical = part.first().map_or(0, |(logical, ..)| *logical);
            above.push((logical, number, 0));
            blocks.push((number, bytes));
        }
        entries = Entries {
            depth: entries.depth + 1,
            list: above,
        };
    }
    let mut root = [0; I_BLOCK_SIZE];
    entries.write(&entries.list, &mut root)?;
    Ok(Mapped {
        data,
        root,
        flags: InodeFlags::EXTENTS,
        blocks,
    })
}

/// Allocates one block.
///
/// # Errors
/// [`MkfsError::TooSmall`].
pub(super) fn one(layout: &mut Layout, goal: u64) -> Result<u64, MkfsError> {
    let runs = layout.take(goal, 1)?;
    runs.first()
        .map(|run| run.start)
        .ok_or_else(|| layout.full())
}

/// Blocks of pointers that `count` blocks need.
fn pointer_blocks(count: u64, shape: &IndirectGeometry) -> u64 {
    let mut rest = count.saturating_sub(u64::from(INDIRECT_DIRECT));
    let mut pointers = 0;
    for depth in 1..=3 {
        let below = rest.min(shape.span(depth));
        pointers += (1..=depth)
            .map(|level| below.div_ceil(shape.span(level)))
            .sum::<u64>();
        rest -= below;
    }
    pointers
}

/// Distributes the allocated blocks in order: each block of pointers before the blocks that it
/// points to.
struct Dealer<I> {
    free: I,
    left: u64,
    shape: IndirectGeometry,
    block_size: usize,
    data: Vec<Run>,
    blocks: Vec<Block>,
}

impl<I: Iterator<Item = u64>> Dealer<I> {
    /// Number of the next block that is `depth` blocks of pointers above data; 0 if none is left.
    fn deal(&mut self, depth: u8) -> u32 {
        if self.left == 0 {
            return 0;
        }
        let number = self.free.next().unwrap_or(0);
        if depth == 0 {
            self.left -= 1;
            match self.data.last_mut() {
                Some(run) if run.start + run.len == number => run.len += 1,
                _ => self.data.push(Run {
                    start: number,
                    len: 1,
                }),
            }
        } else {
            let mut bytes = Vec::with_capacity(self.block_size);
            for _ in 0..self.shape.per_block() {
                bytes.extend(self.deal(depth - 1).to_le_bytes());
            }
            self.blocks.push((number, bytes));
        }
        // Without extents there are no more than 2^32 blocks: 64bit needs extents.
        number as u32
    }
}

fn with_pointers(layout: &mut Layout, goal: u64, count: u64) -> Result<Mapped, MkfsError> {
    let block_size = layout.geometry.block_size();
    let shape = IndirectGeometry::new(block_size);
    if count > shape.max_blocks() {
        return Err(layout.full());
    }
    let runs = layout.take(goal, count + pointer_blocks(count, &shape))?;
    let mut dealer = Dealer {
        free: runs.iter().flat_map(|run| run.start..run.start + run.len),
        left: count,
        shape,
        block_size: block_size as usize,
        data: Vec::new(),
        blocks: Vec::new(),
    };
    let depths = std::iter::repeat_n(0, INDIRECT_DIRECT as usize).chain(1..=3);
    let mut root = [0; I_BLOCK_SIZE];
    for (word, depth) in root.chunks_exact_mut(4).zip(depths) {
        word.copy_from_slice(&dealer.deal(depth).to_le_bytes());
    }
    Ok(Mapped {
        data: dealer.data,
        root,
        flags: InodeFlags::empty(),
        blocks: dealer.blocks,
    })
}

/// The map of the inode with the blocks reserved for descriptors: a block that names, in the slot
/// of each future descriptor block, the reserved one in group 0, which names its copies.
///
/// Source: "Reserved GDT blocks" of the kernel documentation; the output of `debugfs` for inode 7.
pub(super) fn reserved_for_descriptors(
    layout: &mut Layout,
    geometry: &Geometry,
) -> Result<Mapped, MkfsError> {
    let block_size = geometry.block_size() as usize;
    let per_block = block_size / 4;
    let first = geometry.super_block() + 1 + u64::from(geometry.desc_blocks());
    // After the blocks that group 0 would have at its front if it were alone.
    let front =
        u64::from(geometry.reserved_gdt_blocks()) + u64::from(geometry.inode_table_blocks());
    let table = one(layout, first + front + 2)?;
    let mut top = vec![0; block_size];
    let mut blocks = Vec::new();
    let mut data = Vec::new();
    for n in 0..u64::from(geometry.reserved_gdt_blocks()) {
        let number = first + n;
        let slot = (u64::from(geometry.desc_blocks()) + n) as usize % per_block;
        put(&mut top, slot, number);
        let mut copies = vec![0; block_size];
        let groups = (1..geometry.group_count()).filter(|group| geometry.has_super(*group));
        for (slot, group) in groups.enumerate() {
            let copy = geometry.group_first_block(group)? + (number - geometry.super_block());
            put(&mut copies, slot, copy);
            data.push(Run {
                start: copy,
                len: 1,
            });
        }
        blocks.push((number, copies));
    }
    blocks.push((table, top));
    let mut root = [0; I_BLOCK_SIZE];
    put(&mut root, INDIRECT_DIRECT as usize + 1, table);
    Ok(Mapped {
        data,
        root,
        flags: InodeFlags::empty(),
        blocks,
    })
}

/// Stores a block number of 32 bits. Slots past the end are ignored.
fn put(bytes: &mut [u8], slot: usize, number: u64) {
    if let Some(word) = bytes.get_mut(slot * 4..slot * 4 + 4) {
        word.copy_from_slice(&(number as u32).to_le_bytes());
    }
}
