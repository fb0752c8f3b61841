//! The chunk map: from the chunk tree, from older chunk trees, and from device extents.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;

use sapwood_btrfs_format::{
    Block, BlockGroupFlags, BlockGroupItem, ChunkItem, DevExtent, Key, StripeItem, SuperBlock,
    kind, objectid,
};

use super::items::items;
use super::leaves::{Leaves, Orphans, RootPtr};
use super::nodes::Nodes;
use super::scan::Identity;
use super::volume::{ChunkMap, Volume};

/// Most blocks of a chunk tree that is read without an index.
const MOST_BLOCKS: usize = 100_000;
/// Bytes of a stripe element.
const STRIPE_LEN: u64 = 64 << 10;

/// The root of the chunk tree in a superblock.
pub(super) fn root(sb: &SuperBlock) -> RootPtr {
    RootPtr {
        logical: sb.chunk_root.get(),
        generation: sb.chunk_root_generation.get(),
        level: sb.chunk_root_level,
    }
}

/// The system chunks of a superblock.
pub(super) fn system(sb: &SuperBlock) -> ChunkMap {
    let mut map = ChunkMap::default();
    for (logical, chunk) in sb.sys_chunks().flatten() {
        map.add(logical, chunk);
    }
    map
}

/// Adds all chunks of the chunk tree to a volume that has the system chunks, without a scan. False
/// if a block of the tree is missing.
pub(super) fn read_tree(volume: &mut Volume, identity: &Identity, root: RootPtr) -> bool {
    let mut todo = vec![root];
    let mut visited = HashSet::new();
    let mut found = Vec::new();
    while let Some(ptr) = todo.pop() {
        if !visited.insert(ptr.logical) || visited.len() > MOST_BLOCKS {
            return false;
        }
        let bytes = volume.tree_block(ptr.logical, ptr.generation, identity);
        let block = bytes.as_ref().and_then(|bytes| Block::new(bytes).ok());
        let Some(block) = block.filter(|block| block.level() == ptr.level) else {
            return false;
        };
        for ptr in block.ptrs() {
            todo.push(RootPtr {
                logical: ptr.blockptr.get(),
                generation: ptr.generation.get(),
                level: block.level().saturating_sub(1),
            });
        }
        let slots = 0..if block.is_leaf() { block.nritems() } else { 0 };
        let entries = slots.filter_map(|slot| block.entry(slot).ok());
        found.extend(entries.filter_map(|(key, data)| chunk(key, data)));
    }
    for (logical, chunk) in found {
        volume.chunks.add(logical, chunk);
    }
    true
}

fn chunk(key: Key, data: &[u8]) -> Option<(u64, ChunkItem)> {
    let wanted = key.kind == kind::CHUNK_ITEM;
    let chunk = ChunkItem::parse(data).ok().filter(|_| wanted)?;
    Some((key.offset, chunk))
}

/// Adds the chunks that the scan found: of the chunk tree, then of its older generations.
pub(super) fn from_scan(nodes: &Nodes, map: &mut ChunkMap, root: Option<RootPtr>, newest: u64) {
    let orphans = Orphans {
        owner: objectid::CHUNK_TREE,
        newest,
    };
    let leaves = Leaves::build(nodes, root, &[orphans]);
    items(nodes, &leaves, Key::MIN, Key::MAX, &mut |key, data| {
        if let Some((logical, chunk)) = chunk(key, data) {
            map.add(logical, chunk);
        }
        ControlFlow::Continue(())
    });
    for node in nodes.index.of_owner(objectid::CHUNK_TREE) {
        let bytes = nodes.bytes(node.logical, node.generation);
        let Some(block) = bytes.as_ref().and_then(|bytes| Block::new(bytes).ok()) else {
            continue;
        };
        for slot in 0..block.items().len() {
            let found = block
                .entry(slot)
                .ok()
                .and_then(|(key, data)| chunk(key, data));
            if let Some((logical, chunk)) = found {
                map.add(logical, chunk);
            }
        }
    }
}

/// Adds chunks that only the device extents still name. The block group gives profile and length.
/// Without it, the device extents are taken as copies of each other.
pub(super) fn from_extents(nodes: &Nodes, map: &mut ChunkMap, newest: u64) {
    let mut groups: BTreeMap<u64, (u64, BlockGroupFlags)> = BTreeMap::new();
    for owner in [objectid::BLOCK_GROUP_TREE, objectid::EXTENT_TREE] {
        each_item(nodes, owner, newest, &mut |key, data| {
            if key.kind == kind::BLOCK_GROUP_ITEM
                && let Ok(item) = BlockGroupItem::read(data)
            {
                let flags = BlockGroupFlags::from_bits_retain(item.flags.get());
                groups.entry(key.objectid).or_insert((key.offset, flags));
            }
        });
    }
    let mut stripes: BTreeMap<u64, (u64, Vec<StripeItem>)> = BTreeMap::new();
    each_item(nodes, objectid::DEV_TREE, newest, &mut |key, data| {
        if key.kind == kind::DEV_EXTENT
            && let Ok(item) = DevExtent::read(data)
        {
            let found = stripes.entry(item.chunk_offset.get());
            let (len, all) = found.or_insert((item.length.get(), Vec::new()));
            if *len == item.length.get() {
                all.push(StripeItem {
                    devid: key.objectid,
                    offset: key.offset,
                    dev_uuid: [0; 16],
                });
            }
        }
    });
    for (logical, (len, stripes)) in stripes {
        let (length, flags) = match groups.get(&logical) {
            Some(group) => *group,
            None if stripes.len() == 1 => (len, BlockGroupFlags::empty()),
            None => (len, BlockGroupFlags::RAID1),
        };
        let raid10 = flags.profile() == BlockGroupFlags::RAID10;
        map.add(
            logical,
            ChunkItem {
                length,
                owner: objectid::EXTENT_TREE,
                stripe_len: STRIPE_LEN,
                flags,
                io_align: 0,
                io_width: 0,
                sector_size: 0,
                sub_stripes: if raid10 { 2 } else { 1 },
                stripes,
            },
        );
    }
}

/// Calls `each` for every item of the newest state of a tree that the orphans give.
fn each_item(nodes: &Nodes, owner: u64, newest: u64, each: &mut dyn FnMut(Key, &[u8])) {
    let leaves = Leaves::build(nodes, None, &[Orphans { owner, newest }]);
    items(nodes, &leaves, Key::MIN, Key::MAX, &mut |key, data| {
        each(key, data);
        ControlFlow::Continue(())
    });
}
