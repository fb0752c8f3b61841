//! Chunks, device extents, block groups, free space.

use sapwood_btrfs_format::{
    BlockGroupFlags, BlockGroupItem, ChunkItem, DevExtent, DevItem, FreeSpaceInfo, Key, StripeItem,
    kind, objectid,
};

use super::Case;
use super::editor::Editor;

/// Where a new chunk goes: past all of the fixture's.
pub const FAR: u64 = 1 << 40;
const MIB: u64 = 1 << 20;

/// The part of a new chunk that is left out or made different.
#[derive(Clone, Copy, PartialEq)]
enum But {
    Nothing,
    NoGroup,
    Shorter,
    OtherKind,
    NoFreeSpace,
}

pub const CASES: &[Case] = &[
    (
        |e| {
            let chunk = new_chunk(e, BlockGroupFlags::SYSTEM, unused(e));
            e.put(objectid::CHUNK_TREE, &chunk_key(FAR), &chunk.encode());
        },
        &["SysChunkMissing", "BlockGroupMissing", "DevExtentMissing"],
    ),
    (
        |e| {
            let chunk = new_chunk(e, BlockGroupFlags::SYSTEM, unused(e));
            let mut all: Vec<(u64, ChunkItem)> = e.sb.sys_chunks().map(|c| c.unwrap()).collect();
            all.push((FAR, chunk));
            e.superblock(|sb| {
                sb.set_sys_chunks(all.iter().map(|(at, c)| (*at, c)))
                    .unwrap()
            });
        },
        &["SysChunkStray"],
    ),
    (
        // The last chunk of the first leaf grows over the first one of the second.
        |e| {
            let free = free_blocks(e, e.root(objectid::CHUNK_TREE));
            e.split(objectid::CHUNK_TREE, free);
            let leaf = e.block(free[0]);
            let leaf = sapwood_btrfs_format::Block::new(&leaf).unwrap();
            let last = leaf.last_key().unwrap();
            e.change(objectid::CHUNK_TREE, &last, |data| {
                let mut chunk = ChunkItem::parse(data).unwrap();
                chunk.length += 64 << 10;
                *data = chunk.encode();
            });
        },
        &[
            "ChunkOverlap",
            "BackupRoot",
            "BlockGroupLength",
            "DevExtentLength",
            "ExtentLevel",
            "ExtentMissing",
        ],
    ),
    (
        |e| {
            let (key, mut chunk) = data_chunk(e);
            chunk.stripes[0].devid = 2;
            e.put(objectid::CHUNK_TREE, &key, &chunk.encode());
        },
        &[
            "ChunkDevice",
            "DataUnreadable",
            "DevExtentMissing",
            "DevExtentStray",
        ],
    ),
    (
        |e| {
            let place = data_chunk(e).1.stripes[0].offset;
            e.remove(objectid::DEV_TREE, &Key::new(1, kind::DEV_EXTENT, place));
        },
        &["DevExtentMissing", "DeviceBytesUsed"],
    ),
    (
        |e| dev_extent(e, unused(e), FAR, MIB),
        &["DevExtentStray", "DeviceBytesUsed"],
    ),
    (
        |e| {
            let (key, chunk) = data_chunk(e);
            dev_extent(
                e,
                chunk.stripes[0].offset,
                key.offset,
                chunk.length - (64 << 10),
            );
        },
        &["DevExtentLength", "DeviceBytesUsed"],
    ),
    (
        |e| {
            let free = free_blocks(e, e.root(objectid::DEV_TREE));
            e.split(objectid::DEV_TREE, free);
            let leaf = e.block(free[0]);
            let leaf = sapwood_btrfs_format::Block::new(&leaf).unwrap();
            let last = leaf.last_key().unwrap();
            e.change(objectid::DEV_TREE, &last, |data| {
                let mut extent = DevExtent::read(data).unwrap();
                extent.length = (extent.length.get() + 65536).into();
                *data = extent.bytes().to_vec();
            });
        },
        &[
            "DevExtentOverlap",
            "DevExtentLength",
            "DeviceBytesUsed",
            "ExtentLevel",
            "ExtentMissing",
        ],
    ),
    (
        |e| {
            let (key, data) = e.first(objectid::CHUNK_TREE, kind::DEV_ITEM);
            let mut item = DevItem::read(&data).unwrap();
            item.total_bytes = (item.total_bytes.get() - 4096).into();
            e.put(objectid::CHUNK_TREE, &key, item.bytes());
            e.superblock(|sb| {
                sb.dev_item.total_bytes = item.total_bytes;
                sb.total_bytes = item.total_bytes;
                sb.super_roots
                    .iter_mut()
                    .for_each(|b| b.total_bytes = item.total_bytes);
            });
        },
        &["DevExtentPastEnd"],
    ),
    (|e| add_group(e, But::Nothing), &[]),
    (
        |e| add_group(e, But::NoGroup),
        &["BlockGroupMissing", "FreeSpaceInfoStray"],
    ),
    (|e| add_group(e, But::Shorter), &["BlockGroupLength"]),
    (|e| add_group(e, But::OtherKind), &["BlockGroupKind"]),
    (
        |e| add_group(e, But::NoFreeSpace),
        &["FreeSpaceInfoMissing"],
    ),
    (
        |e| {
            add_group(e, But::Nothing);
            put_group(e, 2 * FAR, MIB, BlockGroupFlags::DATA);
            put_free(e, 2 * FAR, MIB);
        },
        &["BlockGroupStray"],
    ),
    (
        |e| {
            let (key, data) = e.find(objectid::BLOCK_GROUP_TREE, |key, _| {
                e.room(objectid::EXTENT_TREE, key) > 100
            });
            e.put(objectid::EXTENT_TREE, &key, &data);
        },
        &["BlockGroupPlace"],
    ),
    (
        |e| {
            let (key, data) = e.first(objectid::BLOCK_GROUP_TREE, kind::BLOCK_GROUP_ITEM);
            let mut item = BlockGroupItem::read(&data).unwrap();
            item.used = (item.used.get() + 4096).into();
            e.put(objectid::BLOCK_GROUP_TREE, &key, item.bytes());
        },
        &["BlockGroupUsed"],
    ),
    (
        |e| {
            let info = FreeSpaceInfo::default();
            let key = Key::new(FAR, kind::FREE_SPACE_INFO, MIB);
            e.put(objectid::FREE_SPACE_TREE, &key, info.bytes());
        },
        &["FreeSpaceInfoStray"],
    ),
    (
        |e| change_info(e, |info| info.extent_count = 99.into()),
        &["FreeSpaceCount"],
    ),
    (
        |e| change_info(e, |info| info.flags = (info.flags.get() ^ 1).into()),
        &["FreeSpaceForm"],
    ),
    (
        |e| {
            let key = e
                .first(objectid::FREE_SPACE_TREE, kind::FREE_SPACE_EXTENT)
                .0;
            e.remove(objectid::FREE_SPACE_TREE, &key);
            change_info(e, |info| {
                info.extent_count = (info.extent_count.get() - 1).into()
            });
        },
        &["FreeSpaceMissing"],
    ),
    (
        |e| {
            let key = e.find(objectid::FREE_SPACE_TREE, |k, d| {
                k.kind == kind::FREE_SPACE_BITMAP && d.iter().any(|b| *b != 0)
            });
            e.change(objectid::FREE_SPACE_TREE, &key.0, |data| data.fill(0xff));
        },
        &["FreeSpaceUsed", "FreeSpaceCount"],
    ),
    (
        |e| {
            let key = Key::new(FAR, kind::FREE_SPACE_EXTENT, MIB);
            e.put(objectid::FREE_SPACE_TREE, &key, b"");
        },
        &["FreeSpaceOutside"],
    ),
];

fn chunk_key(logical: u64) -> Key {
    Key::new(objectid::FIRST_CHUNK_TREE, kind::CHUNK_ITEM, logical)
}

fn new_chunk(e: &Editor, flags: BlockGroupFlags, physical: u64) -> ChunkItem {
    let (_, chunk) = data_chunk(e);
    let stripe = StripeItem {
        offset: physical,
        ..chunk.stripes[0]
    };
    ChunkItem {
        length: MIB,
        flags,
        stripes: vec![stripe],
        ..chunk
    }
}

/// The first data chunk.
pub fn data_chunk(e: &Editor) -> (Key, ChunkItem) {
    let is_data = |key: &Key, data: &[u8]| {
        key.kind == kind::CHUNK_ITEM
            && ChunkItem::parse(data)
                .unwrap()
                .flags
                .contains(BlockGroupFlags::DATA)
    };
    let (key, data) = e.find(objectid::CHUNK_TREE, is_data);
    (key, ChunkItem::parse(&data).unwrap())
}

/// Two free block addresses after `from`.
fn free_blocks(e: &Editor, from: u64) -> [u64; 2] {
    let used: Vec<u64> = e
        .items(objectid::EXTENT_TREE)
        .iter()
        .map(|(k, _)| k.objectid)
        .collect();
    let mut free = (0..)
        .map(|n| from + n * 16384)
        .filter(|at| !used.contains(at));
    [free.next().unwrap(), free.next().unwrap()]
}

fn dev_extent(e: &Editor, physical: u64, logical: u64, length: u64) {
    let (_, old) = e.first(objectid::DEV_TREE, kind::DEV_EXTENT);
    let extent = DevExtent {
        chunk_offset: logical.into(),
        length: length.into(),
        ..DevExtent::read(&old).unwrap()
    };
    e.put(
        objectid::DEV_TREE,
        &Key::new(1, kind::DEV_EXTENT, physical),
        extent.bytes(),
    );
}

fn put_group(e: &Editor, logical: u64, length: u64, flags: BlockGroupFlags) {
    let group = BlockGroupItem {
        used: 0.into(),
        chunk_objectid: objectid::FIRST_CHUNK_TREE.into(),
        flags: flags.bits().into(),
    };
    let key = Key::new(logical, kind::BLOCK_GROUP_ITEM, length);
    e.put(objectid::BLOCK_GROUP_TREE, &key, group.bytes());
}

fn put_free(e: &Editor, logical: u64, length: u64) {
    let info = FreeSpaceInfo {
        extent_count: 1.into(),
        flags: 0.into(),
    };
    let tree = objectid::FREE_SPACE_TREE;
    e.put(
        tree,
        &Key::new(logical, kind::FREE_SPACE_INFO, length),
        info.bytes(),
    );
    e.put(
        tree,
        &Key::new(logical, kind::FREE_SPACE_EXTENT, length),
        b"",
    );
}

/// A place on the device that no chunk has.
fn unused(e: &Editor) -> u64 {
    let mut at = MIB;
    for (key, data) in e.items(objectid::DEV_TREE) {
        if key.kind == kind::DEV_EXTENT {
            if key.offset >= at + MIB {
                return at;
            }
            at = key.offset + DevExtent::read(&data).unwrap().length.get();
        }
    }
    at
}

/// Adds an empty data chunk with all that belongs to it, at `FAR`.
fn add_group(e: &mut Editor, but: But) {
    let physical = unused(e);
    let flags = BlockGroupFlags::DATA;
    let chunk = new_chunk(e, flags, physical);
    e.put(objectid::CHUNK_TREE, &chunk_key(FAR), &chunk.encode());
    dev_extent(e, physical, FAR, MIB);
    let (key, data) = e.first(objectid::CHUNK_TREE, kind::DEV_ITEM);
    let mut item = DevItem::read(&data).unwrap();
    item.bytes_used = (item.bytes_used.get() + MIB).into();
    e.put(objectid::CHUNK_TREE, &key, item.bytes());
    e.superblock(|sb| sb.dev_item.bytes_used = item.bytes_used);
    let length = if but == But::Shorter { MIB / 2 } else { MIB };
    let flags = if but == But::OtherKind {
        BlockGroupFlags::METADATA
    } else {
        flags
    };
    if but != But::NoGroup {
        put_group(e, FAR, length, flags);
    }
    if but != But::NoFreeSpace {
        put_free(e, FAR, length);
    }
}

/// Changes the info of the first group that keeps its free space in extents.
fn change_info(e: &Editor, change: impl FnOnce(&mut FreeSpaceInfo)) {
    let in_extents = |key: &Key, data: &[u8]| {
        key.kind == kind::FREE_SPACE_INFO && FreeSpaceInfo::read(data).unwrap().flags.get() == 0
    };
    let (key, data) = e.find(objectid::FREE_SPACE_TREE, in_extents);
    let mut info = FreeSpaceInfo::read(&data).unwrap();
    change(&mut info);
    e.put(objectid::FREE_SPACE_TREE, &key, info.bytes());
}
