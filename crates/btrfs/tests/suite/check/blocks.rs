//! Superblocks and tree blocks.

use sapwood_block::{Device, MemoryDevice};
use sapwood_btrfs::check::{CheckError, CheckOptions, Finding, check};
use sapwood_btrfs_format::{
    BlockGroupFlags, ChunkItem, DevItem, Incompat, InodeItem, Key, SUPER_OFFSETS, kind, objectid,
};
use sapwood_testing::{Fault, FaultDevice, FaultRule, RequestKinds};

use super::editor::{Editor, LONE};
use super::{Case, codes, run};

pub const CASES: &[Case] = &[
    (|e| e.flip(SUPER_OFFSETS[1] + 200), &["SuperBad"]),
    (
        |e| {
            let older = e.sb.generation.get() - 1;
            e.one_superblock(1, |sb| {
                sb.generation = older.into();
                sb.chunk_root_generation = 1.into();
            });
        },
        &["SuperStale"],
    ),
    (
        |e| e.one_superblock(1, |sb| sb.label[0] ^= 1),
        &["SuperDiffers"],
    ),
    (
        |e| {
            e.superblock(|sb| {
                sb.super_roots
                    .iter_mut()
                    .for_each(|b| b.bytes_used = 4096.into());
            });
        },
        &["BackupRoot"],
    ),
    (
        |e| {
            e.superblock(|sb| {
                sb.super_roots
                    .iter_mut()
                    .for_each(|b| b.tree_root_gen = 1.into());
            });
        },
        &["BackupMissing"],
    ),
    (
        |e| {
            let more = e.sb.total_bytes.get() + 4096;
            e.superblock(|sb| sb.total_bytes = more.into());
        },
        &["SuperTotalBytes", "BackupRoot"],
    ),
    (
        |e| {
            let more = e.sb.bytes_used.get() + 4096;
            e.superblock(|sb| sb.bytes_used = more.into());
        },
        &["SuperBytesUsed", "BackupRoot"],
    ),
    (
        |e| {
            let item = DevItem {
                devid: 2.into(),
                ..DevItem::default()
            };
            let key = Key::new(objectid::DEV_ITEMS, kind::DEV_ITEM, 2);
            e.put(objectid::CHUNK_TREE, &key, item.bytes());
        },
        &["SuperDevices"],
    ),
    (
        |e| {
            let more = e.sb.dev_item.bytes_used.get() + 4096;
            e.superblock(|sb| sb.dev_item.bytes_used = more.into());
        },
        &["DeviceItem"],
    ),
    (
        |e| {
            let mut bytes = vec![0; e.device.size() as usize - (64 << 10)];
            e.device.read_at(0, &mut bytes).unwrap();
            e.device = MemoryDevice::from_bytes(&bytes);
        },
        &["DeviceSize"],
    ),
    (
        |e| {
            let (key, data) = e.first(objectid::CHUNK_TREE, kind::DEV_ITEM);
            let mut item = DevItem::read(&data).unwrap();
            item.bytes_used = (item.bytes_used.get() + 4096).into();
            e.put(objectid::CHUNK_TREE, &key, item.bytes());
            e.superblock(|sb| sb.dev_item.bytes_used = item.bytes_used);
        },
        &["DeviceBytesUsed"],
    ),
    (|e| e.flip(e.places(some_leaf(e))[1] + 5000), &["BlockCopy"]),
    (
        |e| {
            // The last byte before the data of the first item: free, and not checked.
            let leaf = some_leaf(e);
            let mut bytes = e.block(leaf);
            let at = 101 + sapwood_btrfs_format::Block::new(&bytes).unwrap().nritems() * 25;
            bytes[at] ^= 1;
            e.sb.checksum_kind().unwrap().seal_block(&mut bytes);
            e.device.write_at(e.places(leaf)[1], &bytes).unwrap();
        },
        &["BlockCopiesDiffer"],
    ),
    (|e| destroy(e, some_leaf(e)), &["BlockBad"]),
    // Findings that follow from a hole alone are not reported, in any tree.
    (
        |e| destroy(e, e.blocks(objectid::EXTENT_TREE)[1]),
        &["BlockBad"],
    ),
    (|e| destroy(e, e.root(objectid::EXTENT_TREE)), &["BlockBad"]),
    (
        |e| destroy(e, e.root(objectid::FREE_SPACE_TREE)),
        &["BlockBad"],
    ),
    (
        |e| destroy(e, e.root(objectid::BLOCK_GROUP_TREE)),
        &["BlockBad"],
    ),
    (|e| destroy(e, e.root(objectid::CSUM_TREE)), &["BlockBad"]),
    (|e| destroy(e, e.root(objectid::DEV_TREE)), &["BlockBad"]),
    (|e| destroy(e, e.root(objectid::UUID_TREE)), &["BlockBad"]),
    (|e| destroy(e, e.root(objectid::ROOT_TREE)), &["BlockBad"]),
    (|e| destroy(e, e.root(objectid::CHUNK_TREE)), &["BlockBad"]),
    (|e| destroy(e, e.root(LONE)), &["BlockBad"]),
    (|e| destroy(e, e.sb.log_root.get()), &["BlockBad"]),
    (
        // The nested subvolume's root item leads to the block of another one.
        |e| {
            let (_, other) = e.root_item(259);
            let (key, mut item) = e.root_item(260);
            item.bytenr = other.bytenr;
            item.generation = other.generation;
            item.generation_v2 = other.generation;
            e.put(objectid::ROOT_TREE, &key, item.bytes());
        },
        &["BlockTwice", "ExtentUnused", "RefMissing"],
    ),
    (
        // An orphan inode of a number that belongs into the next leaf.
        |e| {
            let leaf = e.blocks(LONE)[1];
            e.change_block(leaf, |block| {
                let (count, last) = (block.view().nritems(), block.view().last_key().unwrap());
                let item = InodeItem {
                    mode: 0o100_644.into(),
                    ..InodeItem::default()
                };
                let key = Key::new(last.objectid + 1000, kind::INODE_ITEM, 0);
                block.insert(count, &key, item.bytes()).unwrap();
            });
        },
        &["KeyOrder", "DirectorySize", "InodeMissing", "OrphanMissing"],
    ),
    (
        |e| e.put(LONE, &Key::new(256, 77, 0), b"what?"),
        &["UnexpectedItem"],
    ),
    (
        |e| {
            e.put(
                objectid::CSUM_TREE,
                &Key::new(1, kind::STRING_ITEM, 0),
                b"what?",
            )
        },
        &["UnexpectedItem"],
    ),
];

/// A leaf of the lone subvolume.
fn some_leaf(e: &Editor) -> u64 {
    e.blocks(LONE)[1]
}

/// Spoils all copies of a block.
fn destroy(e: &Editor, logical: u64) {
    e.places(logical)
        .into_iter()
        .for_each(|place| e.flip(place + 5000));
}

#[test]
fn a_superblock_that_cannot_be_read() {
    let device = FaultDevice::new(Editor::fixture().device);
    let there = SUPER_OFFSETS[1]..SUPER_OFFSETS[1] + 1;
    device.arm(
        FaultRule::new(RequestKinds::READ, 1, Fault::Fail)
            .from_then_on()
            .within(there),
    );
    let report = run(&device);
    assert!(matches!(
        report.findings[..],
        [Finding::SuperUnreadable {
            offset: 67_108_864,
            ..
        }]
    ));
}

#[test]
fn a_block_that_the_device_does_not_give() {
    let editor = Editor::fixture();
    let place = editor.places(some_leaf(&editor))[1];
    let device = FaultDevice::new(editor.device);
    let rule = FaultRule::new(RequestKinds::READ, 1, Fault::Fail);
    device.arm(rule.from_then_on().within(place..place + 1));
    assert_eq!(Vec::from_iter(codes(&run(&device))), ["BlockCopy"]);
}

#[test]
fn what_cannot_be_checked_is_an_error() {
    let fails = |device: &MemoryDevice| {
        check(&[device], &CheckOptions::default(), &mut |_| ()).unwrap_err()
    };
    let options = CheckOptions::default();
    assert!(matches!(
        check(&[], &options, &mut |_| ()),
        Err(CheckError::NoDevice)
    ));
    assert!(matches!(
        fails(&MemoryDevice::new(1 << 20)),
        CheckError::NotBtrfs { .. }
    ));
    assert!(matches!(
        fails(&MemoryDevice::new(0)),
        CheckError::NotBtrfs { .. }
    ));
    let mut editor = Editor::fixture();
    editor.superblock(|sb| {
        let flags = sb.incompat() | Incompat::ZONED;
        sb.incompat_flags = flags.bits().into();
    });
    let error = fails(&editor.device);
    assert_eq!(error.to_string(), "unsupported features: ZONED");
    let mut editor = Editor::fixture();
    editor.superblock(|sb| sb.num_devices = 2.into());
    assert!(matches!(
        fails(&editor.device),
        CheckError::MissingDevices {
            expected: 2,
            found: 1
        }
    ));
    let editor = Editor::fixture();
    let is_data = |key: &Key, data: &[u8]| {
        let chunk = ChunkItem::parse(data);
        key.kind == kind::CHUNK_ITEM && chunk.unwrap().flags.contains(BlockGroupFlags::DATA)
    };
    let (key, data) = editor.find(objectid::CHUNK_TREE, is_data);
    let mut chunk = ChunkItem::parse(&data).unwrap();
    chunk.flags |= BlockGroupFlags::RAID5;
    chunk.stripes.push(chunk.stripes[0]);
    editor.put(objectid::CHUNK_TREE, &key, &chunk.encode());
    assert!(matches!(
        fails(&editor.device),
        CheckError::Profile {
            profile: "raid5",
            ..
        }
    ));
    let (a, b) = (Editor::fixture(), MemoryDevice::new(64 << 20));
    sapwood_btrfs::mkfs::mkfs(&b, &Default::default()).unwrap();
    let foreign = check(&[&a.device, &b], &options, &mut |_| ());
    assert!(matches!(foreign, Err(CheckError::ForeignDevice { .. })));
}

#[test]
fn findings_beyond_the_limit_are_counted() {
    let editor = Editor::fixture();
    for inode in 1000..1100 {
        editor.put(260, &Key::new(inode, kind::VERITY_DESC_ITEM, 0), b"");
    }
    let options = CheckOptions {
        max_findings: 10,
        ..CheckOptions::default()
    };
    let report = check(&[&editor.device], &options, &mut |_| ()).unwrap();
    assert_eq!((report.findings.len(), report.suppressed), (10, 90));
    assert!(!report.is_clean());
}
