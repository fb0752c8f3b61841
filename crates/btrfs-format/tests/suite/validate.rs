//! The validator accepts blocks of real images, and refuses each planted defect with its variant.
//! `mutate.rs` has random defects.

use std::collections::BTreeSet;

use crate::common;
use crate::common::{Found, blocks, leaf_entries};
use sapwood_btrfs_format::{
    Block, BlockError, BlockMut, DumpBlock, Expect, ExtentItemRef, FileExtent, InodeItem,
    ItemProblem, Key, RegularExtent, kind, validate_block, validate_content,
};

#[test]
fn fixtures_validate_dump_and_round_trip() {
    let mut kinds = BTreeSet::new();
    for found in blocks() {
        let text = DumpBlock(&found.bytes).to_string();
        assert!(!text.contains("BAD") && !text.contains("UNKNOWN"), "{text}");
        common::assert_round_trip(&found.bytes);
        kinds.extend(leaf_entries(&found.bytes).iter().map(|(key, _)| key.kind));
    }
    let names: Vec<_> = kinds.iter().filter_map(|k| kind::name(*k)).collect();
    // Kinds that the fixtures must contain.
    for wanted in [
        kind::INODE_EXTREF,
        kind::XATTR_ITEM,
        kind::DIR_LOG_INDEX,
        kind::EXTENT_CSUM,
        kind::ROOT_REF,
        kind::EXTENT_ITEM,
        kind::METADATA_ITEM,
        kind::EXTENT_DATA_REF,
        kind::SHARED_DATA_REF,
        kind::FREE_SPACE_EXTENT,
        kind::UUID_KEY_SUBVOL,
    ] {
        assert!(
            kinds.contains(&wanted),
            "no {:?} among {names:?}",
            kind::name(wanted)
        );
    }
}

#[test]
fn names_of_a_fixture_hash_to_their_keys() {
    let mut seen = 0;
    for found in blocks() {
        for (key, data) in leaf_entries(&found.bytes) {
            if key.kind == kind::DIR_ITEM {
                let entry = sapwood_btrfs_format::dir_items(data)
                    .next()
                    .unwrap()
                    .unwrap();
                assert_eq!(
                    u64::from(sapwood_btrfs_format::name_hash(entry.name)),
                    key.offset
                );
                seen += 1;
            }
        }
    }
    assert!(seen > 300);
}

/// A leaf and a node of the default fixture.
fn sample(level: u8) -> &'static Found {
    blocks()
        .iter()
        .find(|b| b.bytes[100] == level && Block::new(&b.bytes).unwrap().nritems() > 3)
        .unwrap()
}

/// Changes a block, seals it and validates it.
fn refused(found: &Found, change: impl FnOnce(&mut Vec<u8>)) -> BlockError {
    let mut bytes = found.bytes.clone();
    change(&mut bytes);
    found.expect.checksum.seal_block(&mut bytes);
    validate_block(&bytes, &found.expect).unwrap_err()
}

#[test]
fn header_defects_have_their_variant() {
    let leaf = sample(0);
    let set = |at: usize, value: u8| move |b: &mut Vec<u8>| b[at] = value;
    assert!(matches!(
        refused(leaf, |b| b.truncate(4096)),
        BlockError::Length { .. }
    ));
    assert!(matches!(
        refused(leaf, set(49, 0xee)),
        BlockError::Bytenr { .. }
    ));
    assert!(matches!(
        refused(leaf, set(32, !leaf.bytes[32])),
        BlockError::Fsid { .. }
    ));
    assert!(
        matches!(refused(leaf, set(56, 0)), BlockError::HeaderFlags { flags, .. } if flags & 1 == 0)
    );
    assert!(matches!(
        refused(leaf, set(63, 9)),
        BlockError::HeaderFlags { .. }
    ));
    assert!(matches!(
        refused(leaf, set(100, 1)),
        BlockError::Level { found: 1, .. }
    ));
    assert!(matches!(
        refused(leaf, set(81, 0xee)),
        BlockError::Generation { .. }
    ));
    assert!(matches!(
        refused(leaf, set(88, 77)),
        BlockError::Owner { found: 77, .. }
    ));
    assert!(matches!(
        refused(leaf, set(99, 1)),
        BlockError::Nritems { .. }
    ));
    assert!(matches!(
        refused(leaf, |b| b[96..100].fill(0)),
        BlockError::Nritems { .. }
    ));
    let mut bytes = leaf.bytes.clone();
    bytes[4000] ^= 1;
    assert!(matches!(
        validate_block(&bytes, &leaf.expect),
        Err(BlockError::Checksum { expected, found, .. }) if expected != found
    ));
    let other = leaf.expect.with_first_key(Key::new(3, 3, 3));
    assert!(matches!(
        validate_block(&leaf.bytes, &other),
        Err(BlockError::FirstKey { .. })
    ));
}

#[test]
fn structure_defects_have_their_variant() {
    let leaf = sample(0);
    let item = |slot: usize| 101 + 25 * slot;
    let swap = |b: &mut Vec<u8>| {
        let (one, two) = (item(1), item(2));
        let first = b[one..one + 17].to_vec();
        b.copy_within(two..two + 17, one);
        b[two..two + 17].copy_from_slice(&first);
    };
    assert!(matches!(refused(leaf, swap), BlockError::KeyOrder { .. }));
    let far = |b: &mut Vec<u8>| b[item(1) + 19] = 1;
    assert!(matches!(
        refused(leaf, far),
        BlockError::ItemBounds { slot: 1, .. }
    ));
    let shift = |b: &mut Vec<u8>| b[item(1) + 17] ^= 1;
    assert!(matches!(
        refused(leaf, shift),
        BlockError::ItemPlace { slot: 1, .. }
    ));
    let node = sample(1);
    let ptr = |slot: usize| 101 + 33 * slot;
    let odd = |b: &mut Vec<u8>| b[ptr(1) + 17] = 1;
    assert!(matches!(
        refused(node, odd),
        BlockError::ChildAddress { slot: 1, .. }
    ));
    let null = |b: &mut Vec<u8>| b[ptr(1) + 17..ptr(1) + 25].fill(0);
    assert!(matches!(
        refused(node, null),
        BlockError::ChildAddress { blockptr: 0, .. }
    ));
    let young = |b: &mut Vec<u8>| b[ptr(1) + 28] = 1;
    assert!(matches!(
        refused(node, young),
        BlockError::ChildGeneration { slot: 1, .. }
    ));
    let same = |b: &mut Vec<u8>| b.copy_within(ptr(0)..ptr(0) + 17, ptr(1));
    assert!(matches!(
        refused(node, same),
        BlockError::KeyOrder { slot: 1, .. }
    ));
}

/// The first item for which `wanted` is true, in a block with some room.
fn find(wanted: impl Fn(&Key, &[u8]) -> bool) -> (&'static Found, usize, Key, Vec<u8>) {
    let room = |b: &&Found| Block::new(&b.bytes).unwrap().free_space() > 100;
    for found in blocks().iter().filter(room) {
        for (slot, (key, data)) in leaf_entries(&found.bytes).into_iter().enumerate() {
            if wanted(&key, data) {
                return (found, slot, key, data.to_vec());
            }
        }
    }
    panic!("no such item in the fixtures");
}

/// Replaces an item's data, and returns the problem that the validator reports.
fn planted(found: &Found, slot: usize, key: Key, data: &[u8]) -> ItemProblem {
    let mut bytes = found.bytes.clone();
    let mut block = BlockMut::new(&mut bytes).unwrap();
    block.resize_item(slot, data.len(), false).unwrap();
    block.item_data_mut(slot).unwrap().copy_from_slice(data);
    block.set_key(slot, &key).unwrap();
    match validate_content(
        &bytes,
        &Expect {
            first_key: None,
            ..found.expect
        },
    ) {
        Err(BlockError::Item {
            problem, slot: at, ..
        }) if at == slot => problem,
        other => panic!("{key}: {other:?}"),
    }
}

/// Changes bytes of the first item of a kind.
fn poked(wanted: u8, change: impl Fn(&mut Vec<u8>)) -> ItemProblem {
    let (found, slot, key, mut data) = find(|key, _| key.kind == wanted);
    change(&mut data);
    planted(found, slot, key, &data)
}

#[test]
fn inode_defects_have_their_variant() {
    use ItemProblem as P;
    let at = core::mem::offset_of!(InodeItem, mode);
    assert!(matches!(
        poked(kind::INODE_ITEM, |d| d[at + 1] = 0),
        P::Mode { .. }
    ));
    assert!(matches!(
        poked(kind::INODE_ITEM, |d| d[at + 2] = 1),
        P::Mode { .. }
    ));
    assert!(matches!(
        poked(kind::INODE_ITEM, |d| d[7] = 1),
        P::Generation { .. }
    ));
    assert!(matches!(
        poked(kind::INODE_ITEM, |d| d[69] = 1),
        P::Flags { .. }
    ));
    assert!(matches!(
        poked(kind::INODE_ITEM, |d| d[23] = 0xff),
        P::TooLarge { .. }
    ));
    assert!(matches!(
        poked(kind::INODE_ITEM, |d| d.truncate(159)),
        P::Size { .. }
    ));
    let (found, slot, key, mut data) =
        find(|k, d| k.kind == kind::INODE_ITEM && d[at + 1] == 0o40_000u16.to_le_bytes()[1] | 1);
    data[40] = 2;
    assert!(matches!(
        planted(found, slot, key, &data),
        P::Field { field: "nlink", .. }
    ));
    assert!(matches!(
        poked(kind::INODE_REF, |d| d[8] = 200),
        P::Parse(_)
    ));
    assert!(matches!(
        poked(kind::INODE_REF, |d| d[10] = b'/'),
        P::Name { .. }
    ));
    assert!(matches!(
        poked(kind::INODE_EXTREF, |d| d[18] ^= 1),
        P::NameHash { .. }
    ));
}

#[test]
fn dir_item_defects_have_their_variant() {
    use ItemProblem as P;
    assert!(matches!(
        poked(kind::DIR_ITEM, |d| d[30] ^= 1),
        P::NameHash { .. }
    ));
    assert!(matches!(
        poked(kind::DIR_ITEM, |d| d[29] = 8),
        P::FileType { found: 8 }
    ));
    assert!(matches!(
        poked(kind::DIR_ITEM, |d| d[8] = 77),
        P::Location { .. }
    ));
    assert!(matches!(
        poked(kind::DIR_INDEX, |d| d[30] = 0),
        P::Name { .. }
    ));
    assert!(matches!(
        poked(kind::DIR_INDEX, |d| d.extend(d.clone())),
        P::Field { .. }
    ));
    assert!(matches!(
        poked(kind::DIR_INDEX, |d| d.clear()),
        P::SizeUnit { .. }
    ));
    assert!(matches!(
        poked(kind::XATTR_ITEM, |d| d[0] = 1),
        P::Location { .. }
    ));
    assert!(matches!(
        poked(kind::XATTR_ITEM, |d| d[29] = 1),
        P::FileType { .. }
    ));
    assert!(matches!(
        poked(kind::DIR_LOG_INDEX, |d| d.fill(0)),
        P::Field { .. }
    ));
}

/// A file extent that begins where the one before it ends.
fn adjacent_extents() -> (&'static Found, usize) {
    for found in blocks() {
        let entries = leaf_entries(&found.bytes);
        for (slot, pair) in entries.windows(2).enumerate() {
            let [(before, data), (key, _)] = pair else {
                continue;
            };
            if before.kind == kind::EXTENT_DATA
                && (key.objectid, key.kind) == (before.objectid, before.kind)
                && before.offset + FileExtent::parse(data).unwrap().len() == key.offset
                && FileExtent::parse(data).unwrap().len() > 4096
            {
                return (found, slot + 1);
            }
        }
    }
    panic!("no such extents in the fixtures");
}

#[test]
fn file_extent_defects_have_their_variant() {
    use ItemProblem as P;
    let regular =
        |d: &[u8]| matches!(FileExtent::parse(d), Ok(FileExtent::Regular(e)) if e.disk_bytenr > 0);
    let change = |edit: fn(&mut RegularExtent)| {
        let (found, slot, key, data) = find(|k, d| k.kind == kind::EXTENT_DATA && regular(d));
        let Ok(FileExtent::Regular(mut extent)) = FileExtent::parse(&data) else {
            panic!()
        };
        edit(&mut extent);
        planted(found, slot, key, &FileExtent::Regular(extent).encode())
    };
    assert!(matches!(
        change(|e| e.disk_bytenr += 1),
        P::Misaligned { .. }
    ));
    assert!(matches!(change(|e| e.num_bytes = 0), P::Field { .. }));
    assert!(matches!(
        change(|e| e.num_bytes = !4095),
        P::TooLarge { .. } | P::Overflow { .. }
    ));
    assert!(matches!(change(|e| e.offset = 1 << 30), P::TooLarge { .. }));
    assert!(matches!(
        change(|e| e.compression = 9),
        P::Field {
            field: "compression",
            ..
        }
    ));
    assert!(matches!(
        change(|e| e.generation = 1 << 40),
        P::Generation { .. }
    ));
    let big = change(|e| (e.compression, e.ram_bytes) = (1, 1 << 40));
    assert!(matches!(
        big,
        P::TooLarge {
            field: "ram_bytes",
            ..
        }
    ));
    let inline = |d: &[u8]| matches!(FileExtent::parse(d), Ok(FileExtent::Inline { .. }));
    let (found, slot, key, mut data) = find(|k, d| k.kind == kind::EXTENT_DATA && inline(d));
    data[8] += 1;
    assert!(matches!(
        planted(found, slot, key, &data),
        P::Field {
            field: "ram_bytes",
            ..
        }
    ));
    let (found, slot) = adjacent_extents();
    let (key, data) = leaf_entries(&found.bytes)[slot];
    let early = planted(
        found,
        slot,
        Key {
            offset: key.offset - 4096,
            ..key
        },
        data,
    );
    assert!(matches!(early, P::Overlap { .. }), "{early:?}");
}

#[test]
fn tree_of_roots_and_extent_defects_have_their_variant() {
    use ItemProblem as P;
    assert!(matches!(
        poked(kind::ROOT_ITEM, |d| d[176] = 1),
        P::Misaligned { .. }
    ));
    assert!(matches!(
        poked(kind::ROOT_ITEM, |d| d[238] = 8),
        P::TooLarge { .. }
    ));
    assert!(matches!(
        poked(kind::ROOT_ITEM, |d| d[212] = 1),
        P::Flags { .. }
    ));
    assert!(matches!(
        poked(kind::ROOT_ITEM, |d| d.truncate(300)),
        P::Parse(_)
    ));
    assert!(matches!(poked(kind::ROOT_REF, |d| d[16] += 1), P::Parse(_)));
    assert!(matches!(
        poked(kind::METADATA_ITEM, |d| d[16] = 1),
        P::Flags { .. }
    ));
    assert!(matches!(
        poked(kind::METADATA_ITEM, |d| d[24] = 178),
        P::Parse(_)
    ));
    assert!(matches!(
        poked(kind::METADATA_ITEM, |d| d[0] = 0),
        P::Field { field: "refs", .. }
    ));
    assert!(matches!(
        poked(kind::METADATA_ITEM, |d| d[25..33].fill(0)),
        P::Field { .. }
    ));
    assert!(matches!(
        poked(kind::EXTENT_DATA_REF, |d| d[24] = 0),
        P::Field { .. }
    ));
    assert!(matches!(
        poked(kind::EXTENT_DATA_REF, |d| d.truncate(20)),
        P::Parse(_)
    ));
    let several = |k: &Key, d: &[u8]| {
        k.kind == kind::EXTENT_ITEM
            && ExtentItemRef::parse(k.kind, d)
                .unwrap()
                .inline_refs()
                .count()
                > 2
    };
    let (found, slot, key, data) = find(several);
    let item = ExtentItemRef::parse(key.kind, &data).unwrap();
    let mut refs: Vec<_> = item.inline_refs().map(|r| r.unwrap()).collect();
    let few = ExtentItemRef { refs: 1, ..item }.encode(&refs);
    assert!(matches!(
        planted(found, slot, key, &few),
        P::RefCount { refs: 1, .. }
    ));
    refs.reverse();
    assert!(matches!(
        planted(found, slot, key, &item.encode(&refs)),
        P::RefOrder
    ));
    let moved = Key {
        objectid: key.objectid + 1,
        ..key
    };
    assert!(matches!(
        planted(found, slot, moved, &data),
        P::Misaligned { .. }
    ));
}

#[test]
fn space_defects_have_their_variant() {
    use ItemProblem as P;
    assert!(matches!(
        poked(kind::CHUNK_ITEM, |d| d[24] = 0),
        P::Flags { .. }
    ));
    assert!(matches!(
        poked(kind::CHUNK_ITEM, |d| d[24] |= 0x18),
        P::Flags { .. }
    ));
    assert!(matches!(
        poked(kind::CHUNK_ITEM, |d| d[16] = 1),
        P::Field {
            field: "stripe_len",
            ..
        }
    ));
    assert!(matches!(
        poked(kind::CHUNK_ITEM, |d| d[44] = 0),
        P::Parse(_)
    ));
    assert!(matches!(
        poked(kind::CHUNK_ITEM, |d| d[24] ^= 0x20),
        P::Stripes { .. }
    ));
    assert!(matches!(
        poked(kind::DEV_ITEM, |d| d[0] = 9),
        P::Field { field: "devid", .. }
    ));
    assert!(matches!(
        poked(kind::DEV_ITEM, |d| d[23] = 9),
        P::TooLarge { .. }
    ));
    assert!(matches!(
        poked(kind::DEV_EXTENT, |d| d[24..32].fill(0)),
        P::Field { .. }
    ));
    assert!(matches!(
        poked(kind::BLOCK_GROUP_ITEM, |d| d[7] = 1),
        P::TooLarge { .. }
    ));
    assert!(matches!(
        poked(kind::BLOCK_GROUP_ITEM, |d| d[8] = 1),
        P::Field { .. }
    ));
    assert!(matches!(
        poked(kind::FREE_SPACE_INFO, |d| d[4] = 2),
        P::Flags { .. }
    ));
    assert!(matches!(
        poked(kind::FREE_SPACE_EXTENT, |d| d.push(0)),
        P::Size { .. }
    ));
    assert!(matches!(
        poked(kind::EXTENT_CSUM, |d| d.push(0)),
        P::SizeUnit { .. }
    ));
    let grown = |wanted: u8| {
        let (found, slot, key, data) =
            find(|k, _| k.kind == wanted && k.offset > 1 << 20 && k.objectid > 256);
        planted(
            found,
            slot,
            Key {
                offset: !4095,
                ..key
            },
            &data,
        )
    };
    assert!(matches!(grown(kind::FREE_SPACE_EXTENT), P::Overflow { .. }));
    assert!(matches!(
        poked(kind::UUID_KEY_SUBVOL, |d| d.push(0)),
        P::SizeUnit { .. }
    ));
    let (found, slot, key, data) = find(|k, _| k.kind == kind::DEV_ITEM);
    let key = Key { objectid: 3, ..key };
    assert!(matches!(
        planted(found, slot, key, &data),
        P::KeyObjectid { found: 3 }
    ));
}
