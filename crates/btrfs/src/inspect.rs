//! Dumps of an image: its superblock, and the blocks of its trees in the order of their keys. For
//! readers who know the format.

use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs_format::{Block, Key, RootItem, SuperBlock, kind, objectid};

use crate::devices::{Access, DeviceSet};
use crate::tree::{self, BlockCache, Opened};
use crate::{Error, Result};

/// Bytes of tree blocks kept in memory.
const CACHE_BYTES: usize = 16 << 20;

/// The trees to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeChoice {
    /// All, and the log if there is one.
    All,
    /// The log root tree and the log trees.
    Log,
    /// One, by its id.
    Id(u64),
}

impl TreeChoice {
    /// The choice that a name or a number stands for.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let id = match name {
            "all" => return Some(Self::All),
            "log" => return Some(Self::Log),
            "root" => objectid::ROOT_TREE,
            "extent" => objectid::EXTENT_TREE,
            "chunk" => objectid::CHUNK_TREE,
            "dev" | "device" => objectid::DEV_TREE,
            "fs" => objectid::FS_TREE,
            "csum" | "checksum" => objectid::CSUM_TREE,
            "quota" => objectid::QUOTA_TREE,
            "uuid" => objectid::UUID_TREE,
            "free-space" => objectid::FREE_SPACE_TREE,
            "block-group" => objectid::BLOCK_GROUP_TREE,
            "data-reloc" => objectid::DATA_RELOC_TREE,
            number => number.parse().ok()?,
        };
        Some(Self::Id(id))
    }
}

const READ_ONLY: Access = Access {
    read_only: true,
    degraded: false,
    resync: false,
};

/// The newest valid superblock of the devices of one file system; some of them may be missing. Its
/// `dev_item` belongs to the device that has it.
///
/// # Errors
/// No device, no btrfs, no valid copy, devices that do not belong together.
pub fn super_block(devices: &[Arc<dyn Device>]) -> Result<SuperBlock> {
    let (_, supers) = DeviceSet::assemble(devices, READ_ONLY)?;
    Ok(*supers)
}

/// Calls `each` with every block of the chosen trees, parents before children.
///
/// # Errors
/// The errors of opening, the first unreadable block, [`Error::NoSuchRoot`].
pub fn walk(
    devices: &[Arc<dyn Device>],
    choice: TreeChoice,
    each: &mut dyn FnMut(&[u8]),
) -> Result<()> {
    let opened = tree::open(devices, READ_ONLY, CACHE_BYTES)?;
    match choice {
        TreeChoice::Id(objectid::CHUNK_TREE) => from_root(&opened, objectid::CHUNK_TREE, each),
        TreeChoice::Id(objectid::ROOT_TREE) => from_root(&opened, objectid::ROOT_TREE, each),
        TreeChoice::Id(id) => from_root(&opened, id, each),
        TreeChoice::Log => log(&opened, each),
        TreeChoice::All => {
            from_root(&opened, objectid::CHUNK_TREE, each)?;
            from_root(&opened, objectid::ROOT_TREE, each)?;
            for id in opened.roots.ids()? {
                from_root(&opened, id, each)?;
            }
            log(&opened, each)
        }
    }
}

fn from_root(opened: &Opened, id: u64, each: &mut dyn FnMut(&[u8])) -> Result<()> {
    let top = opened.roots.get(id)?.node();
    below(&opened.blocks, id, &top.snapshot(), each)
}

fn log(opened: &Opened, each: &mut dyn FnMut(&[u8])) -> Result<()> {
    let bytenr = opened.super_block.log_root.get();
    if bytenr == 0 {
        return Ok(());
    }
    let mut roots = Vec::new();
    subtree(&opened.blocks, objectid::TREE_LOG, bytenr, &mut |block| {
        each(block);
        roots.extend(root_items(block));
    })?;
    for item in roots {
        subtree(&opened.blocks, objectid::TREE_LOG, item.bytenr.get(), each)?;
    }
    Ok(())
}

fn root_items(block: &[u8]) -> Vec<RootItem> {
    let Ok(block) = Block::new(block) else {
        return Vec::new();
    };
    let slots = if block.is_leaf() { block.nritems() } else { 0 };
    let items = (0..slots).filter_map(|slot| block.entry(slot).ok());
    let roots = items.filter(|(key, _)| key.kind == kind::ROOT_ITEM);
    roots
        .filter_map(|(_, item)| RootItem::parse(item).ok())
        .collect()
}

fn subtree(blocks: &BlockCache, tree: u64, bytenr: u64, each: &mut dyn FnMut(&[u8])) -> Result<()> {
    let expect = tree::Expect {
        owner: Some(tree),
        ..tree::Expect::default()
    };
    let top = blocks.get(bytenr, &expect)?;
    below(blocks, tree, &top.snapshot(), each)
}

/// Visits a block and the blocks below it. Levels fall from parent to child, so this ends.
fn below(blocks: &BlockCache, tree: u64, top: &[u8], each: &mut dyn FnMut(&[u8])) -> Result<()> {
    each(top);
    let mut open = vec![(top.to_vec(), 0)];
    while let Some((bytes, slot)) = open.last_mut() {
        let bad = |source| Error::Block { root: tree, source };
        let block = Block::new(bytes).map_err(bad)?;
        if block.is_leaf() || *slot >= block.nritems() {
            open.pop();
            continue;
        }
        let child = block.child(*slot).map_err(bad)?;
        let key: Key = child.key.get();
        let expect = tree::expect_child(
            tree,
            block.level().saturating_sub(1),
            child.generation.get(),
            key,
        );
        *slot += 1;
        let bytes = blocks.get(child.blockptr.get(), &expect)?.snapshot();
        each(&bytes);
        open.push((bytes.to_vec(), 0));
    }
    Ok(())
}
