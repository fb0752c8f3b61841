//! Directories with an index that no kernel counts to, with right checksums and links: a listing
//! shows every entry once and ends, also while its entries are renamed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use sapwood_block::MemoryDevice;
use sapwood_btrfs::Btrfs;
use sapwood_btrfs::check::{CheckOptions, check};
use sapwood_btrfs_format::{Block, DirItemRef, Key, dir_items, inode_refs, kind, objectid};
use sapwood_hostile::explore::options;
use sapwood_hostile::image::{DEFAULT, GoodImage};
use sapwood_vfs::{Credentials, DirEntry, FileSystem, Ino, NewInode, RenameMode};

/// Bytes of a tree block's header and of an item's head.
pub(super) const HEADER: usize = 101;
pub(super) const ITEM: usize = 25;

const INDEXES: [u64; 12] = [
    1 << 24,
    (1 << 43) - 1,
    1 << 43,
    0x0300_0000_0000_0003,
    1 << 56,
    (57 << 57) + 3,
    (58 << 57) + 3,
    i64::MAX as u64 - 2,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 2,
    u64::MAX,
];

/// Leaves of the top-level subvolume.
fn leaves(image: &GoodImage) -> impl Iterator<Item = (usize, Vec<u8>)> {
    let blocks = image.blocks.iter().enumerate();
    let blocks = blocks.map(|(number, place)| (number, image.block(place)));
    blocks.filter(|(_, bytes)| {
        let block = Block::new(bytes).unwrap();
        block.is_leaf() && block.owner() == objectid::FS_TREE
    })
}

/// A directory: the block and slot of its last entry, the inode and name that this leads to, and
/// the number of its entries.
struct Directory {
    objectid: u64,
    last: (usize, usize),
    target: u64,
    name: Vec<u8>,
    entries: usize,
}

/// The directory with the most entries whose last one can be given another index in its place.
fn directory(image: &GoodImage) -> Directory {
    let mut found: BTreeMap<u64, Directory> = BTreeMap::new();
    for (number, bytes) in leaves(image) {
        let block = Block::new(&bytes).unwrap();
        for slot in 1..block.nritems() {
            let (key, item) = block.entry(slot).unwrap();
            if key.kind != kind::DIR_INDEX {
                continue;
            }
            let entry: DirItemRef<'_> = dir_items(item).next().unwrap().unwrap();
            let entries = found.get(&key.objectid).map_or(0, |dir| dir.entries) + 1;
            let dir = Directory {
                objectid: key.objectid,
                last: (number, slot),
                target: entry.location.objectid,
                name: entry.name.to_vec(),
                entries,
            };
            found.insert(key.objectid, dir);
        }
    }
    let reference = |dir: &Directory| ref_of(image, dir).is_some();
    let dirs = found.into_values().filter(reference);
    dirs.max_by_key(|dir| dir.entries).unwrap()
}

/// Block and byte of the index in the ref of a directory's last entry.
fn ref_of(image: &GoodImage, dir: &Directory) -> Option<(usize, usize)> {
    let wanted = Key::new(dir.target, kind::INODE_REF, dir.objectid);
    leaves(image).find_map(|(number, bytes)| {
        let block = Block::new(&bytes).unwrap();
        let slot = block.search(&wanted).ok()?;
        let (_, item) = block.entry(slot).unwrap();
        let first = inode_refs(item).next().unwrap().unwrap();
        let at = HEADER + block.item_offset(slot).unwrap();
        (first.name == dir.name).then_some((number, at))
    })
}

/// The image with another index of that entry.
fn with_index(image: &GoodImage, dir: &Directory, index: u64) -> Arc<MemoryDevice> {
    let device = image.device.snapshot();
    let (block, slot) = dir.last;
    let (ref_block, ref_at) = ref_of(image, dir).unwrap();
    for (number, at) in [(block, HEADER + slot * ITEM + 9), (ref_block, ref_at)] {
        image.edit(&device, &image.blocks[number], true, |bytes| {
            bytes[at..at + 8].copy_from_slice(&index.to_le_bytes());
        });
    }
    let report = check(&[&device], &CheckOptions::default(), &mut |_| ()).unwrap();
    assert!(report.is_clean(), "{index:#x}: {:?}", report.findings);
    Arc::new(device)
}

fn page(fs: &Btrfs, dir: Ino, from: u64, limit: usize) -> Vec<DirEntry> {
    let mut entries = Vec::new();
    fs.readdir(dir, from, &mut |entry| {
        entries.push(entry);
        if entries.len() < limit {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })
    .unwrap();
    entries
}

/// Lists in pages; fails if there are more entries than `most`.
fn list(fs: &Btrfs, dir: Ino, limit: usize, most: usize, each: impl Fn(&DirEntry)) -> Vec<Vec<u8>> {
    let (mut names, mut from) = (Vec::new(), 0);
    loop {
        let entries = page(fs, dir, from, limit);
        let Some(last) = entries.last() else {
            return names;
        };
        from = last.next;
        entries.iter().for_each(&each);
        names.extend(entries.into_iter().map(|entry| entry.name));
        assert!(names.len() <= most, "the listing does not end");
    }
}

#[test]
fn every_index_lists_once_and_ends() {
    let image = GoodImage::expand(DEFAULT);
    let dir = directory(&image);
    assert!(dir.entries > 5);
    let ino = Ino(dir.objectid);
    let good = Btrfs::open(vec![Arc::new(image.device.snapshot())], options(true)).unwrap();
    let expected: BTreeSet<_> = page(&good, ino, 0, usize::MAX)
        .into_iter()
        .map(|entry| entry.name)
        .collect();
    for index in INDEXES {
        let device = with_index(&image, &dir, index);
        let fs = Btrfs::open(vec![device], options(false)).unwrap();
        for limit in [1, 3, usize::MAX] {
            let names = list(&fs, ino, limit, expected.len(), |_| ());
            assert_eq!(names.len(), expected.len(), "{index:#x}");
            assert_eq!(BTreeSet::from_iter(names), expected, "{index:#x}");
        }
        let mut more = expected.clone();
        for number in 0..5 {
            let name = format!("more-{number}").into_bytes();
            let made = fs.create(&Credentials::ROOT, ino, &name, NewInode::Regular, 0o644);
            if made.is_ok() {
                more.insert(name);
            }
        }
        assert!(more.len() > expected.len() || index >= u64::MAX - 2);
        let names = list(&fs, ino, 2, more.len(), |_| ());
        assert_eq!(BTreeSet::from_iter(names), more, "{index:#x}");
        let renamed = |entry: &DirEntry| {
            let name = [&entry.name[..], b"+"].concat();
            let _ = fs.rename(ino, &entry.name, ino, &name, RenameMode::Replace);
        };
        list(&fs, ino, 1, 2 * more.len(), renamed);
        let _ = fs.unmount();
    }
}
