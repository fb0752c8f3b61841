//! The items of every tree of an empty file system.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sapwood_btrfs_format::{
    BlockGroupItem, DevExtent, DevItem, DirItemRef, ExtentFlags, ExtentItemRef, FreeSpaceInfo,
    InlineRef, InodeItem, InodeRefRef, Key, RootItem, Timespec, file_type, kind, name_hash,
    objectid, uuid_key_parts,
};

use super::layout::PlannedChunk;
use super::options::{MkfsOptions, SECTOR_SIZE};
use crate::tree::bulk::Items;

/// Transid of everything that mkfs writes.
pub(super) const GENERATION: u64 = 1;
/// Name of the default subvolume's entry in the root tree's directory.
const DEFAULT_NAME: &[u8] = b"default";

/// Identities that are created once per file system.
pub(super) struct Ids {
    pub(super) fsid: [u8; 16],
    /// UUIDs of the devices.
    pub(super) devices: Vec<[u8; 16]>,
    pub(super) chunk_tree: [u8; 16],
    pub(super) subvolume: [u8; 16],
}

/// A tree block that will be written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) bytenr: u64,
    pub(super) level: u8,
    pub(super) owner: u64,
    pub(super) first_key: Key,
}

/// The inputs of the items.
pub(super) struct MkfsPlan<'a> {
    pub(super) options: &'a MkfsOptions,
    pub(super) ids: &'a Ids,
    pub(super) now: SystemTime,
    /// Bytes of each device that are used.
    pub(super) sizes: &'a [u64],
    pub(super) chunks: &'a [PlannedChunk],
    /// Blocks of every tree.
    pub(super) blocks: Vec<Placed>,
}

fn timespec(time: SystemTime) -> Timespec {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timespec::new(since.as_secs() as i64, since.subsec_nanos()),
        Err(before) => {
            let before: Duration = before.duration();
            Timespec::new(-(before.as_secs() as i64), 0)
        }
    }
}

impl MkfsPlan<'_> {
    /// Items by tree, each sorted by key.
    pub(super) fn items(&self) -> BTreeMap<u64, Items> {
        let options = self.options;
        let mut trees = BTreeMap::from([
            (objectid::CHUNK_TREE, self.chunk_tree()),
            (objectid::DEV_TREE, self.dev_tree()),
            (objectid::EXTENT_TREE, self.extent_tree()),
            (objectid::FS_TREE, self.directory()),
            (objectid::CSUM_TREE, Items::new()),
            (objectid::UUID_TREE, self.uuid_tree()),
            (objectid::DATA_RELOC_TREE, self.directory()),
        ]);
        if options.free_space_tree {
            trees.insert(objectid::FREE_SPACE_TREE, self.free_space_tree());
        }
        if options.block_group_tree() {
            trees.insert(objectid::BLOCK_GROUP_TREE, self.block_groups());
        }
        trees.insert(objectid::ROOT_TREE, self.root_tree(trees.keys()));
        trees.values_mut().for_each(|items| items.sort_unstable());
        trees
    }

    /// Bytes of all devices.
    pub(super) fn size(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// The items of all devices, for the chunk tree and for each device's superblock.
    pub(super) fn dev_items(&self) -> Vec<DevItem> {
        let devices = self.sizes.iter().zip(&self.ids.devices).enumerate();
        let item = |(device, (size, uuid)): (usize, (&u64, &[u8; 16]))| {
            let devid = device as u64 + 1;
            let extents = self.chunks.iter().flat_map(PlannedChunk::extents);
            let here = extents.filter(|(on, ..)| *on == devid);
            let used = here.map(|(_, _, len)| len).sum::<u64>();
            DevItem {
                devid: devid.into(),
                total_bytes: (*size).into(),
                bytes_used: used.into(),
                io_align: SECTOR_SIZE.into(),
                io_width: SECTOR_SIZE.into(),
                sector_size: SECTOR_SIZE.into(),
                uuid: *uuid,
                fsid: self.ids.fsid,
                ..DevItem::default()
            }
        };
        devices.map(item).collect()
    }

    /// Root block of a tree.
    pub(super) fn root(&self, owner: u64) -> Option<Placed> {
        let of_tree = self.blocks.iter().filter(|b| b.owner == owner);
        of_tree.max_by_key(|b| b.level).copied()
    }

    /// Bytes of tree blocks in a chunk.
    fn used(&self, chunk: &PlannedChunk) -> u64 {
        self.blocks_in(chunk).len() as u64 * u64::from(self.options.node_size())
    }

    /// Addresses of the blocks in a chunk, ascending.
    fn blocks_in(&self, chunk: &PlannedChunk) -> Vec<u64> {
        let range = chunk.logical..chunk.logical + chunk.length;
        let mut inside: Vec<u64> = self.blocks.iter().map(|b| b.bytenr).collect();
        inside.retain(|at| range.contains(at));
        inside.sort_unstable();
        inside
    }

    fn chunk_tree(&self) -> Items {
        let devices = self.dev_items();
        let device = |item: &DevItem| {
            let key = Key::new(objectid::DEV_ITEMS, kind::DEV_ITEM, item.devid.get());
            (key, item.bytes().to_vec())
        };
        let mut items: Items = devices.iter().map(device).collect();
        for chunk in self.chunks {
            let key = Key::new(objectid::FIRST_CHUNK_TREE, kind::CHUNK_ITEM, chunk.logical);
            items.push((key, chunk.item(&self.ids.devices).encode()));
        }
        items
    }

    fn dev_tree(&self) -> Items {
        let mut items = Items::new();
        for chunk in self.chunks {
            for (devid, physical, length) in chunk.extents() {
                let extent = DevExtent {
                    chunk_tree: objectid::CHUNK_TREE.into(),
                    chunk_objectid: objectid::FIRST_CHUNK_TREE.into(),
                    chunk_offset: chunk.logical.into(),
                    length: length.into(),
                    chunk_tree_uuid: self.ids.chunk_tree,
                };
                let key = Key::new(devid, kind::DEV_EXTENT, physical);
                items.push((key, extent.bytes().to_vec()));
            }
        }
        items
    }

    fn block_groups(&self) -> Items {
        let group = |chunk: &PlannedChunk| {
            let item = BlockGroupItem {
                used: self.used(chunk).into(),
                chunk_objectid: objectid::FIRST_CHUNK_TREE.into(),
                flags: chunk.flags.bits().into(),
            };
            let key = Key::new(chunk.logical, kind::BLOCK_GROUP_ITEM, chunk.length);
            (key, item.bytes().to_vec())
        };
        self.chunks.iter().map(group).collect()
    }

    fn extent_tree(&self) -> Items {
        let nodesize = u64::from(self.options.node_size());
        let skinny = self.options.skinny_metadata;
        let extent = |block: &Placed| {
            let item = ExtentItemRef {
                refs: 1,
                generation: GENERATION,
                flags: ExtentFlags::TREE_BLOCK,
                tree_block: (!skinny).then_some((block.first_key, block.level)),
                inline: &[],
            };
            let key = if skinny {
                Key::new(block.bytenr, kind::METADATA_ITEM, block.level.into())
            } else {
                Key::new(block.bytenr, kind::EXTENT_ITEM, nodesize)
            };
            (
                key,
                item.encode(&[InlineRef::TreeBlock { root: block.owner }]),
            )
        };
        let mut items: Items = self.blocks.iter().map(extent).collect();
        if !self.options.block_group_tree() {
            items.extend(self.block_groups());
        }
        items
    }

    /// Free space is space that no extent covers: superblocks are not excluded here.
    fn free_space_tree(&self) -> Items {
        let nodesize = u64::from(self.options.node_size());
        let mut items = Items::new();
        for chunk in self.chunks {
            let mut at = chunk.logical;
            let mut runs = Vec::new();
            let blocks = self.blocks_in(chunk).into_iter();
            for next in blocks.chain([chunk.logical + chunk.length]) {
                if next > at {
                    runs.push((Key::new(at, kind::FREE_SPACE_EXTENT, next - at), Vec::new()));
                }
                at = next + nodesize;
            }
            let info = FreeSpaceInfo {
                extent_count: (runs.len() as u32).into(),
                flags: 0.into(),
            };
            let key = Key::new(chunk.logical, kind::FREE_SPACE_INFO, chunk.length);
            items.push((key, info.bytes().to_vec()));
            items.extend(runs);
        }
        items
    }

    fn uuid_tree(&self) -> Items {
        let (objectid, offset) = uuid_key_parts(&self.ids.subvolume);
        let key = Key::new(objectid, kind::UUID_KEY_SUBVOL, offset);
        vec![(key, objectid::FS_TREE.to_le_bytes().to_vec())]
    }

    fn dir_inode(&self) -> InodeItem {
        let now = timespec(self.now);
        InodeItem {
            generation: GENERATION.into(),
            transid: GENERATION.into(),
            nlink: 1.into(),
            mode: 0o040_755.into(),
            atime: now,
            ctime: now,
            mtime: now,
            otime: now,
            ..InodeItem::default()
        }
    }

    /// A subvolume with only its top directory, which is its own parent.
    fn directory(&self) -> Items {
        let id = objectid::FIRST_FREE;
        let parent = InodeRefRef {
            index: 0,
            name: b"..",
        };
        vec![
            (
                Key::new(id, kind::INODE_ITEM, 0),
                self.dir_inode().bytes().to_vec(),
            ),
            (Key::new(id, kind::INODE_REF, id), parent.encode()),
        ]
    }

    fn root_tree<'t>(&self, trees: impl Iterator<Item = &'t u64>) -> Items {
        let mut items: Items = trees
            .filter(|id| **id != objectid::CHUNK_TREE)
            .map(|id| {
                (
                    Key::new(*id, kind::ROOT_ITEM, 0),
                    self.root_item(*id).bytes().to_vec(),
                )
            })
            .collect();
        let dir = objectid::ROOT_TREE_DIR;
        let entry = DirItemRef {
            location: Key::new(objectid::FS_TREE, kind::ROOT_ITEM, u64::MAX),
            transid: 0,
            kind: file_type::DIR,
            name: DEFAULT_NAME,
            data: &[],
        };
        let hash = name_hash(DEFAULT_NAME).into();
        let parent = InodeRefRef {
            index: 0,
            name: b"..",
        };
        let named = InodeRefRef {
            index: 0,
            name: DEFAULT_NAME,
        };
        items.extend([
            (
                Key::new(dir, kind::INODE_ITEM, 0),
                self.dir_inode().bytes().to_vec(),
            ),
            (Key::new(dir, kind::INODE_REF, dir), parent.encode()),
            (Key::new(dir, kind::DIR_ITEM, hash), entry.encode()),
            (
                Key::new(objectid::FS_TREE, kind::INODE_REF, dir),
                named.encode(),
            ),
        ]);
        items
    }

    fn root_item(&self, id: u64) -> RootItem {
        let nodesize = u64::from(self.options.node_size());
        let root = self.root(id);
        let count = self.blocks.iter().filter(|b| b.owner == id).count() as u64;
        let mut item = RootItem {
            inode: InodeItem::of_new_tree(self.options.node_size()),
            generation: GENERATION.into(),
            bytenr: root.map_or(0, |r| r.bytenr).into(),
            bytes_used: (count * nodesize).into(),
            refs: 1.into(),
            level: root.map_or(0, |r| r.level),
            generation_v2: GENERATION.into(),
            ..RootItem::default()
        };
        if matches!(id, objectid::FS_TREE | objectid::DATA_RELOC_TREE) {
            item.root_dirid = objectid::FIRST_FREE.into();
        }
        if id == objectid::FS_TREE {
            item.uuid = self.ids.subvolume;
            item.ctime = timespec(self.now);
            item.otime = timespec(self.now);
        }
        item
    }
}
