//! Extents, refs, checksums, data.

use sapwood_btrfs_format::{
    Block, ChunkItem, ExtentFlags, ExtentItemRef, FileExtent, InlineRef, InodeFlags, InodeItem,
    Key, RegularExtent, SUPER_OFFSETS, header_flag, kind, objectid,
};
use sapwood_testing::{Fault, FaultDevice, FaultRule, RequestKinds};

use super::editor::{Editor, LONE};
use super::space::{FAR, data_chunk};
use super::{Case, codes, run};

const EXTENTS: u64 = objectid::EXTENT_TREE;
const SPACE: [&str; 3] = ["BlockGroupUsed", "FreeSpaceUsed", "SuperBytesUsed"];

pub const CASES: &[Case] = &[
    (
        |e| e.remove(EXTENTS, &data_extent(e, 1).0),
        &[
            "ExtentMissing",
            "BlockGroupUsed",
            "ChecksumStray",
            "FreeSpaceMissing",
            "SuperBytesUsed",
        ],
    ),
    (
        |e| {
            let at = free_data(e);
            put_data_extent(e, at, 4096);
        },
        &["ExtentUnused", SPACE[0], SPACE[1], SPACE[2]],
    ),
    (
        |e| {
            let (last, next) = leaf_border(e, EXTENTS, kind::EXTENT_ITEM);
            let longer = next.objectid - last.objectid + 4096;
            e.rekey(
                EXTENTS,
                &last,
                &Key {
                    offset: longer,
                    ..last
                },
            );
        },
        &[
            "ExtentOverlap",
            "ExtentLength",
            SPACE[0],
            SPACE[1],
            SPACE[2],
        ],
    ),
    (
        |e| put_data_extent(e, 2 * FAR, 4096),
        &["ExtentNoGroup", "ExtentUnused", "SuperBytesUsed"],
    ),
    (
        |e| {
            let at = free_metadata(e);
            put_data_extent(e, at, 16384);
        },
        &[
            "ExtentWrongGroup",
            "ExtentUnused",
            SPACE[0],
            SPACE[1],
            SPACE[2],
        ],
    ),
    (
        |e| put_extent(e, on_second_super(e), 16384, ExtentFlags::TREE_BLOCK),
        &[
            "ExtentOnSuper",
            "ExtentUnused",
            SPACE[0],
            SPACE[1],
            SPACE[2],
        ],
    ),
    (
        |e| {
            let key = file_extent(e, "regular");
            change_extent(e, &key, |extent| extent.disk_num_bytes += 4096);
        },
        &["ExtentLength"],
    ),
    (
        |e| {
            let at = e.blocks(LONE)[1];
            let (key, _) = e.find(EXTENTS, |k, _| k.objectid == at);
            e.remove(EXTENTS, &key);
            put_data_extent(e, at, 16384);
        },
        &["ExtentKind", "ExtentWrongGroup"],
    ),
    (
        |e| {
            let (key, _) = e.first(EXTENTS, kind::METADATA_ITEM);
            e.rekey(
                EXTENTS,
                &key,
                &Key {
                    offset: key.offset + 1,
                    ..key
                },
            );
        },
        &["ExtentLevel"],
    ),
    (
        |e| {
            let at = e.blocks(LONE)[1];
            let (key, _) = e.find(EXTENTS, |k, _| k.objectid == at);
            change_item(e, &key, |item, _| item.generation -= 1);
        },
        &["ExtentGeneration"],
    ),
    // A tree that no snapshot shares.
    (
        |e| charge_itself(e, e.root(objectid::CSUM_TREE)),
        &["FullBackref"],
    ),
    // The tree that is read before the extent tree.
    (|e| charge_itself(e, e.sb.root.get()), &["FullBackref"]),
    (
        |e| {
            let leaf = *e.blocks(LONE).last().unwrap();
            let mut bytes = e.block(leaf);
            bytes[56] |= header_flag::RELOC as u8;
            e.write(leaf, &mut bytes);
        },
        &["FullBackref"],
    ),
    (
        |e| change_item(e, &data_extent(e, 1).0, |item, _| item.refs += 1),
        &["RefCount"],
    ),
    (
        // One use less than there are.
        |e| {
            change_item(e, &data_extent(e, 2).0, |item, refs| {
                item.refs -= 1;
                refs.pop();
            });
        },
        &["RefMissing"],
    ),
    (
        |e| {
            change_item(e, &data_extent(e, 1).0, |item, refs| {
                item.refs += 1;
                refs.push(InlineRef::SharedData {
                    parent: 1 << 20,
                    count: 1,
                });
            });
        },
        &["RefStray"],
    ),
    (
        |e| {
            let reference = InlineRef::TreeBlock { root: LONE };
            e.put(EXTENTS, &reference.key(free_metadata(e)), b"");
        },
        &["RefNoExtent"],
    ),
    (
        |e| {
            let (key, extent) = regular(e, "regular");
            let _ = key;
            split_sums(e, extent.disk_bytenr);
        },
        &["ChecksumMissing"],
    ),
    (
        |e| {
            let key = Key::new(objectid::EXTENT_CSUM, kind::EXTENT_CSUM, free_data(e));
            e.put(objectid::CSUM_TREE, &key, &[1, 2, 3, 4]);
        },
        &["ChecksumStray", "DataChecksum"],
    ),
    (
        |e| {
            let key = Key::new(file_extent(e, "regular").objectid, kind::INODE_ITEM, 0);
            e.change(LONE, &key, |data| {
                let mut inode = InodeItem::read(data).unwrap();
                inode.flags = (inode.inode_flags() | InodeFlags::NODATASUM).bits().into();
                *data = inode.bytes().to_vec();
            });
        },
        &["ChecksumUnwanted"],
    ),
    (
        |e| {
            let at = free_metadata(e);
            e.split(objectid::CSUM_TREE, [at, at + 16384]);
            let leaf = e.block(at);
            let last = Block::new(&leaf).unwrap().last_key().unwrap();
            e.change(objectid::CSUM_TREE, &last, |sums| sums.extend([0; 400]));
        },
        &[
            "ChecksumOverlap",
            "ChecksumStray",
            "DataChecksum",
            "ExtentLevel",
            "ExtentMissing",
        ],
    ),
    (
        |e| {
            let bytenr = regular(e, "regular").1.disk_bytenr;
            e.flip(e.places(bytenr)[0] + 4096);
        },
        &["DataChecksum"],
    ),
    // Two subvolumes have the same log.
    (
        |e| {
            e.change_block(e.sb.log_root.get(), |block| {
                let (mut key, data) = block.view().entry(0).unwrap();
                let data = data.to_vec();
                key.offset += 1;
                block.insert(1, &key, &data).unwrap();
            });
        },
        &["BlockTwice"],
    ),
    (
        |e| put_extent(e, e.sb.log_root.get(), 16384, ExtentFlags::TREE_BLOCK),
        &[
            "LogBlockInUse",
            "ExtentUnused",
            SPACE[0],
            SPACE[1],
            SPACE[2],
        ],
    ),
];

/// Item of a data extent with this many refs, all inline.
fn data_extent(e: &Editor, refs: usize) -> (Key, Vec<u8>) {
    e.find(EXTENTS, |key, data| {
        let item = ExtentItemRef::parse(key.kind, data);
        key.kind == kind::EXTENT_ITEM
            && item.is_ok_and(|i| i.refs >= refs as u64 && i.inline_refs().count() == refs)
            && has_sums(e, key.objectid)
    })
}

fn has_sums(e: &Editor, bytenr: u64) -> bool {
    let sums = e.items(objectid::CSUM_TREE);
    sums.iter()
        .any(|(key, data)| (key.offset..key.offset + data.len() as u64 * 1024).contains(&bytenr))
}

/// Changes an extent item's head and inline refs.
fn change_item(
    e: &Editor,
    key: &Key,
    change: impl FnOnce(&mut ExtentItemRef<'_>, &mut Vec<InlineRef>),
) {
    let data = e.get(EXTENTS, key);
    let mut item = ExtentItemRef::parse(key.kind, &data).unwrap();
    let mut refs: Vec<InlineRef> = item.inline_refs().map(|r| r.unwrap()).collect();
    change(&mut item, &mut refs);
    e.put(EXTENTS, key, &item.encode(&refs));
}

/// Marks a tree block as one that charges its uses to itself.
fn charge_itself(e: &Editor, block: u64) {
    let (key, _) = e.find(EXTENTS, |k, _| k.objectid == block);
    change_item(e, &key, |item, _| item.flags |= ExtentFlags::FULL_BACKREF);
}

fn put_data_extent(e: &Editor, bytenr: u64, len: u64) {
    put_extent(e, bytenr, len, ExtentFlags::DATA);
}

fn put_extent(e: &Editor, bytenr: u64, len: u64, flags: ExtentFlags) {
    let item = ExtentItemRef {
        refs: 1,
        generation: 1,
        flags,
        tree_block: None,
        inline: &[],
    };
    let (key, by) = if flags == ExtentFlags::DATA {
        let by = InlineRef::ExtentData {
            root: LONE,
            objectid: 300,
            offset: 0,
            count: 1,
        };
        (Key::new(bytenr, kind::EXTENT_ITEM, len), by)
    } else {
        (
            Key::new(bytenr, kind::METADATA_ITEM, 0),
            InlineRef::TreeBlock { root: LONE },
        )
    };
    e.put(EXTENTS, &key, &item.encode(&[by]));
}

/// The address of the second superblock: a metadata chunk lies there.
fn on_second_super(e: &Editor) -> u64 {
    let sb = SUPER_OFFSETS[1];
    let chunks = e.items(objectid::CHUNK_TREE).into_iter();
    let mut places = chunks
        .filter(|(key, _)| key.kind == kind::CHUNK_ITEM)
        .flat_map(|(key, data)| {
            let chunk = ChunkItem::parse(&data).unwrap();
            let stripes = chunk.stripes.into_iter();
            let over = stripes.filter(move |s| (s.offset..s.offset + chunk.length).contains(&sb));
            over.map(move |s| key.offset + sb - s.offset)
        });
    places
        .next()
        .expect("no chunk on the second superblock in the fixture")
}

/// A free range of a group: after its last extent.
fn free_after(e: &Editor, start: u64, end: u64) -> u64 {
    let items = e.items(EXTENTS);
    let inside = items
        .iter()
        .filter(|(k, _)| (start..end).contains(&k.objectid));
    let ends = inside.map(|(k, _)| {
        k.objectid
            + if k.kind == kind::EXTENT_ITEM {
                k.offset
            } else {
                16384
            }
    });
    ends.max().unwrap_or(start).next_multiple_of(16384)
}

fn free_data(e: &Editor) -> u64 {
    let (key, chunk) = data_chunk(e);
    free_after(e, key.offset, key.offset + chunk.length)
}

/// Free blocks in the group that the extent tree's root is in, past where the log may be.
pub fn free_metadata(e: &Editor) -> u64 {
    let root = e.root(EXTENTS);
    let (key, _) = e.find(objectid::BLOCK_GROUP_TREE, |k, _| {
        (k.objectid..k.objectid + k.offset).contains(&root)
    });
    free_after(e, key.objectid, key.objectid + key.offset) + (1 << 20)
}

/// Last key of a leaf and first of the next, both of that kind and, for files, of one inode.
pub fn leaf_border(e: &Editor, tree: u64, kind: u8) -> (Key, Key) {
    let leaves = e.blocks(tree);
    let ends: Vec<(Key, Key)> = leaves[1..]
        .iter()
        .map(|at| {
            let bytes = e.block(*at);
            let block = Block::new(&bytes).unwrap();
            (block.first_key().unwrap(), block.last_key().unwrap())
        })
        .collect();
    let borders = ends.windows(2).map(|pair| (pair[0].1, pair[1].0));
    let mut fitting = borders.filter(|(last, next)| {
        (last.kind, next.kind) == (kind, kind)
            && (kind != kind::EXTENT_DATA || last.objectid == next.objectid)
    });
    fitting
        .next()
        .expect("no such border of leaves in the fixture")
}

/// Key of the first extent of a file in the lone subvolume's top directory.
pub fn file_extent(e: &Editor, name: &str) -> Key {
    let inode = super::names::inode(e, name);
    e.find(LONE, |key, _| {
        (key.objectid, key.kind) == (inode, kind::EXTENT_DATA)
    })
    .0
}

fn regular(e: &Editor, name: &str) -> (Key, RegularExtent) {
    let key = file_extent(e, name);
    match FileExtent::parse(&e.get(LONE, &key)) {
        Ok(FileExtent::Regular(extent)) => (key, extent),
        other => panic!("{other:?}"),
    }
}

pub fn change_extent(e: &Editor, key: &Key, change: impl FnOnce(&mut RegularExtent)) {
    let data = e.get(LONE, key);
    let Ok(FileExtent::Regular(mut extent)) = FileExtent::parse(&data) else {
        panic!("{key} is not regular");
    };
    change(&mut extent);
    e.put(LONE, key, &FileExtent::Regular(extent).encode());
}

/// Cuts the checksum item that begins at or before an address, so that the address has none.
fn split_sums(e: &Editor, bytenr: u64) {
    let (key, sums) = e.find(objectid::CSUM_TREE, |key, data| {
        (key.offset..key.offset + data.len() as u64 * 1024).contains(&bytenr)
    });
    let before = ((bytenr - key.offset) / 1024) as usize;
    e.remove(objectid::CSUM_TREE, &key);
    if before > 0 {
        e.put(objectid::CSUM_TREE, &key, &sums[..before]);
    }
    if sums.len() > before + 4 {
        let rest = Key {
            offset: bytenr + 4096,
            ..key
        };
        e.put(objectid::CSUM_TREE, &rest, &sums[before + 4..]);
    }
}

#[test]
fn data_that_cannot_be_read() {
    let editor = Editor::fixture();
    let bytenr = regular(&editor, "regular").1.disk_bytenr;
    let place = editor.places(bytenr)[0];
    let device = FaultDevice::new(editor.device);
    let rule = FaultRule::new(RequestKinds::READ, 1, Fault::Fail);
    device.arm(rule.from_then_on().within(place..place + 1));
    assert_eq!(Vec::from_iter(codes(&run(&device))), ["DataUnreadable"]);
}
