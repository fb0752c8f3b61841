//! Fields that no reader needs, of superblock, devices, file extents, blocks and root items, and
//! the findings of `btrfs check` about them.

use std::sync::Arc;

use sapwood_block::Device;
use sapwood_btrfs::check::repair::repair;
use sapwood_btrfs::check::{Finding, check};
use sapwood_btrfs_format::{
    DevItem, DirItemRef, InodeFlags, Key, QgroupInfo, QgroupStatus, SUPER_OFFSETS, SUPER_SIZE,
    SuperFlags, kind, name_hash, objectid,
};
use sapwood_hostile::image::{GoodImage, MIXED};

use super::editor::{Editor, LONE};
use super::extents::file_extent;
use super::names::{change_inode, inode};
use super::space::data_chunk;
use super::{Case, codes, run};

const RELOC: u64 = objectid::DATA_RELOC_TREE;

pub const CASES: &[Case] = &[
    (
        |e| e.superblock(|sb| sb.stripesize = 512.into()),
        &["SuperField"],
    ),
    (
        |e| {
            let (key, mut chunk) = data_chunk(e);
            chunk.stripes[0].dev_uuid[3] ^= 1;
            e.put(objectid::CHUNK_TREE, &key, &chunk.encode());
        },
        &["ChunkDeviceUuid"],
    ),
    (
        |e| {
            let (key, data) = e.first(objectid::CHUNK_TREE, kind::DEV_ITEM);
            let mut item = DevItem::read(&data).unwrap();
            item.fsid[3] ^= 1;
            e.put(objectid::CHUNK_TREE, &key, item.bytes());
        },
        &["DeviceItem"],
    ),
    (
        |e| set_owner(e, e.root(256), 256 + (1 << 20)),
        &["BlockOwner"],
    ),
    (
        |e| {
            let root = e.root(256);
            let mut bytes = e.block(root);
            bytes[56] |= 2;
            e.write(root, &mut bytes);
        },
        &["RootMoved"],
    ),
    (
        |e| {
            let (key, _) = e.root_item(objectid::CSUM_TREE);
            e.rekey(objectid::ROOT_TREE, &key, &Key { offset: 1, ..key });
        },
        &["RootOffset"],
    ),
    // Names in the tree of relocated data are compared like a subvolume's.
    (
        |e| {
            let entry = DirItemRef {
                location: Key::new(257, kind::INODE_ITEM, 0),
                transid: 1,
                kind: 1,
                name: b"file",
                data: b"",
            };
            let key = Key::new(256, kind::DIR_ITEM, name_hash(b"file").into());
            e.put(RELOC, &key, &entry.encode());
        },
        &["DirIndexMissing"],
    ),
    (
        |e| {
            let fixed = InodeFlags::IMMUTABLE.bits();
            change_inode(e, inode(e, "symlink"), |i| i.flags = fixed.into());
        },
        &["SymlinkFlags"],
    ),
    // The field "other encoding", of two bytes.
    (
        |e| e.change(LONE, &file_extent(e, "regular"), |data| data[18] = 1),
        &["FileExtentField"],
    ),
    // Uncompressed bytes: fewer than the file uses of them.
    (
        |e| {
            let none = 0u64.to_le_bytes();
            let key = file_extent(e, "regular");
            e.change(LONE, &key, |data| data[8..16].copy_from_slice(&none));
        },
        &["FileExtentField"],
    ),
    // Written data becomes data that is only allocated; its checksums stay.
    (
        |e| {
            let key = Key::new(inode(e, "prealloc"), kind::EXTENT_DATA, 3 * 4096);
            e.change(LONE, &key, |data| data[20] = 2);
        },
        &["ChecksumUnwritten"],
    ),
    // Compressed data has checksums whatever the inode's flags are.
    (
        |e| {
            let unsummed = InodeFlags::NODATASUM | InodeFlags::NODATACOW;
            let key = file_extent(e, "zstd");
            let data = e.get(LONE, &key);
            let bytenr = u64::from_le_bytes(data[21..29].try_into().unwrap());
            let (sums, _) = e.find(objectid::CSUM_TREE, |key, data| {
                let end = key.offset + data.len() as u64 / 4 * 4096;
                (key.offset..end).contains(&bytenr)
            });
            // Its checksums begin somewhere in an item: the item ends before them.
            let before = usize::try_from((bytenr - sums.offset) / 4096 * 4).unwrap();
            if before == 0 {
                e.remove(objectid::CSUM_TREE, &sums);
            } else {
                e.change(objectid::CSUM_TREE, &sums, |data| data.truncate(before));
            }
            change_inode(e, key.objectid, |i| i.flags = unsummed.bits().into());
        },
        &["ChecksumMissing"],
    ),
    // A removed directory may still have indexes: nothing is wrong.
    (
        |e| {
            let dead = e.first(LONE, kind::ORPHAN_ITEM).0.offset;
            change_inode(e, dead, |i| i.mode = 0o040_755.into());
            let entry = DirItemRef {
                location: Key::new(9999, kind::INODE_ITEM, 0),
                transid: 1,
                kind: 1,
                name: b"gone",
                data: b"",
            };
            let key = Key::new(dead, kind::DIR_INDEX, 2);
            e.put(LONE, &key, &entry.encode());
        },
        &[],
    ),
];

fn set_owner(e: &Editor, logical: u64, owner: u64) {
    let mut bytes = e.block(logical);
    bytes[88..96].copy_from_slice(&owner.to_le_bytes());
    e.write(logical, &mut bytes);
}

#[test]
fn a_restored_dump_needs_one_superblock_only() {
    let mut e = Editor::fixture();
    let dump = SuperFlags::METADUMP_V2.bits();
    let erase = |e: &Editor| {
        let empty = [0; SUPER_SIZE];
        e.device.write_at(SUPER_OFFSETS[1], &empty).unwrap();
    };
    erase(&e);
    let found: Vec<_> = codes(&run(&e.device)).into_iter().collect();
    assert_eq!(found, ["SuperBad"]);
    e.superblock(|sb| sb.flags = (sb.flags.get() | dump).into());
    erase(&e);
    let report = run(&e.device);
    let found: Vec<_> = codes(&report).into_iter().collect();
    assert_eq!(found, ["DataOfDump", "SuperOfDump"]);
    assert!(report.is_clean());
}

#[test]
fn quota_groups_are_compared_unless_they_are_known_to_be_wrong() {
    let image = GoodImage::expand(MIXED).device;
    let e = Editor::new(image);
    assert_eq!(codes(&run(&e.device)).len(), 0);
    let quotas = objectid::QUOTA_TREE;
    let change = |change: fn(&mut QgroupInfo)| {
        let e = Editor::new(e.device.snapshot());
        let key = Key::new(0, kind::QGROUP_INFO, 256);
        e.change(quotas, &key, |data| {
            let mut info = QgroupInfo::read(data).unwrap();
            change(&mut info);
            *data = info.bytes().to_vec();
        });
        e
    };
    for wrong in [
        change(|info| info.referenced = (info.referenced.get() + 4096).into()),
        change(|info| info.exclusive = (info.exclusive.get() - 4096).into()),
    ] {
        let report = run(&wrong.device);
        let found: Vec<_> = report.findings.iter().map(Finding::code).collect();
        assert_eq!(found, ["QuotaGroup"], "{:?}", report.findings);
        let corrected: Arc<dyn Device> = Arc::new(wrong.device.snapshot());
        let done = repair(&[corrected], false, &Default::default(), &mut |_| ()).unwrap();
        assert_eq!(done.report.findings, []);
        let status = Key::new(0, kind::QGROUP_STATUS, 0);
        wrong.change(quotas, &status, |data| {
            let mut status = QgroupStatus::read(data).unwrap();
            status.flags = (status.flags.get() | 4).into();
            *data = status.bytes().to_vec();
        });
        let report = check(&[&wrong.device], &Default::default(), &mut |_| ()).unwrap();
        assert_eq!(report.findings, []);
    }
}
